//! The configurable limits of a store and of a shard.

use std::time::Duration;

/// Limits that a store or shard enforces. `docs/reference/limits.md` has a row for each, with its
/// flag if it has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Largest object, in bytes. The arena's capacity also limits objects.
    pub max_object_bytes: u64,
    /// Objects with fewer bytes are also kept in their directory shards. Zero disables this.
    pub inline_below_bytes: u64,
    /// A put of this size or more is answered after the directory has accepted it. A smaller put
    /// waits only if its caller requests it, and is published only when it is complete.
    pub confirmed_from_bytes: u64,
    /// Most clients connected to one store.
    pub max_clients: usize,
    /// Most unanswered requests of one client.
    pub max_requests_per_client: usize,
    /// Most references (views and writers) that one client may hold. Several references to one copy
    /// count separately.
    pub max_references_per_client: usize,
    /// Most copies in one store, and most objects in one shard.
    pub max_objects: usize,
    /// Most ids in the open `delete`s and `wait`s of one client together.
    pub max_ids_per_request: usize,
    /// Most receivers that one location serves at once, per object.
    pub slots_per_location: u32,
    /// Time for which a node may be away from its shard before its copies count as lost.
    pub node_grace: Duration,
    /// Time for which a shard remembers a deleted object, so that a late publication does not bring
    /// it back.
    pub tombstone_ttl: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_object_bytes: 1 << 40,
            // The bytes cross the shard's link once for each receiver: 15 times 8 KiB take 5 ms at
            // 200 Mbit/s.
            inline_below_bytes: 8 << 10,
            confirmed_from_bytes: 64 << 10,
            max_clients: 1024,
            max_requests_per_client: 4096,
            max_references_per_client: 1 << 16,
            max_objects: 1 << 20,
            max_ids_per_request: 1 << 16,
            slots_per_location: 1,
            node_grace: Duration::from_secs(1),
            tombstone_ttl: Duration::from_secs(30),
        }
    }
}
