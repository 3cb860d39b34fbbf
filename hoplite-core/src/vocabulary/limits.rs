//! Configurable limits of stores and shards.

use std::time::Duration;

/// Limits of a store or shard. `docs/reference/limits.md` has a row for each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Largest object, in bytes.
    pub max_object_bytes: u64,
    /// Shards keep the bytes of smaller objects, and answer gets with them. Zero disables this.
    pub inline_below_bytes: u64,
    /// Puts of at least this size always wait until the directory accepts them.
    pub confirmed_from_bytes: u64,
    /// Most clients of a store.
    pub max_clients: usize,
    /// Most open requests of a client.
    pub max_requests_per_client: usize,
    /// Most references (views and writers) of one client, even to the same object. Puts may exceed
    /// the limit by `max_requests_per_client`.
    pub max_references_per_client: usize,
    /// Most copies in one store, and most objects known to one shard.
    pub max_objects: usize,
    /// Most ids in a client's open deletes, waits, reduces and batches.
    pub max_ids_per_request: usize,
    /// Most receivers that pull an object from one location at once.
    pub slots_per_location: u32,
    /// Time for which a node may be away before its copies count as lost.
    pub node_grace: Duration,
    /// Time for which a shard remembers deleted objects, to reject copies published later.
    pub tombstone_ttl: Duration,
    /// Time after which an owner's objects are deleted, once no client holds the owner.
    pub owner_grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_object_bytes: 1 << 40,
            // A shard sends the bytes to each receiver: 15 times 8 KiB take 5 ms at 200 Mbit/s.
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
            owner_grace: Duration::from_secs(30),
        }
    }
}
