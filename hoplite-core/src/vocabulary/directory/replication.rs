//! The messages by which shards keep as many pinned copies of objects as their puts want.

use crate::vocabulary::id::{ObjectId, PutId};
use crate::vocabulary::metadata::Metadata;

/// A store tells a shard if it regards the shard as the first connected shard of an object. Only
/// that shard creates copies, so that two shards do not create twice as many.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lead {
    /// The object of a pinned copy that the store has published to this shard.
    pub id: ObjectId,
    /// The put of the copy.
    pub put: PutId,
    /// `true` if the shard is the first connected one. The shard answers with [`Replication`], and
    /// again when the number of copies changes.
    pub leads: bool,
    /// `true` if the put is not answered yet. The shard then creates copies without a pause.
    pub is_new: bool,
}

/// The copies of an object, as a shard tells a store with a pinned copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replication {
    /// The object.
    pub id: ObjectId,
    /// The put of the copies.
    pub put: PutId,
    /// The number of pinned and complete copies at connected stores that do not drain.
    pub copies: u32,
    /// The number of connected stores that do not drain, up to the largest number of replicas.
    pub nodes: u32,
    /// The reason for which no further copy can be created now.
    pub obstacle: Option<Obstacle>,
}

/// The order of a shard to keep a pinned copy of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replicate {
    /// The object to keep.
    pub id: ObjectId,
    /// The put to keep.
    pub put: PutId,
    /// The size of the object.
    pub size_bytes: u64,
    /// The metadata of the object.
    pub metadata: Metadata,
}

/// The reason for which an object has fewer copies than its put wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Obstacle {
    /// A store could not fetch the object.
    Failed,
    /// A store has no room.
    NoRoom,
    /// Every connected store has a copy already, or drains.
    NoNode,
}
