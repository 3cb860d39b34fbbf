//! The limits of a store and of a shard that can be set.

use std::time::Duration;

/// Limits that a store or shard enforces. Each has a row in `docs/reference/limits.md`, which names its flag if it has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Largest object, in bytes. The arena's capacity limits further.
    pub max_object_bytes: u64,
    /// Objects below this many bytes are also kept in their directory shard. Zero switches that off.
    pub inline_below_bytes: u64,
    /// A put of this many bytes or more is answered when the directory has accepted it, a smaller one only if its caller wants that.
    /// What is smaller is published only when it is complete.
    pub confirmed_from_bytes: u64,
    /// Most clients connected to one store.
    pub max_clients: usize,
    /// Most requests of one client that are waiting for an answer.
    pub max_requests_per_client: usize,
    /// Most references (views and writers) that one client may hold, several to one copy counted each.
    pub max_references_per_client: usize,
    /// Most copies in one store, and most objects in one shard.
    pub max_objects: usize,
    /// Most ids that the open `delete`s and `wait`s of one client name together.
    pub max_ids_per_request: usize,
    /// Most receivers that one location serves at once, per object.
    pub slots_per_location: u32,
    /// The time that a node may be away from its shard before its copies count as lost.
    pub node_grace: Duration,
    /// The time that a shard remembers a deleted object, so that a late publication does not bring it back.
    pub tombstone_ttl: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_object_bytes: 1 << 40,
            // The bytes cross the link of the shard once for each receiver: 15 times 8 KiB take 5 ms at 200 Mbit/s.
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
