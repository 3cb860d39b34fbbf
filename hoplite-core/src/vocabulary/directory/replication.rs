//! Messages by which a shard and stores keep as many pinned copies as a put wants.

use std::fmt;

use crate::vocabulary::id::{ObjectId, PutId};
use crate::vocabulary::metadata::Metadata;

/// Tells a shard if it leads, as the first of an object's shards to which the store is connected.
/// Only the leader creates copies, because two shards would create twice as many.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub struct Lead {
    /// Id of the object, pinned at the store.
    pub id: ObjectId,
    pub put: PutId,
    /// `true` if the shard leads. It then sends [`Replication`] now and when the copies change.
    pub leads: bool,
    /// `true` until the put is answered. Until then, the shard creates copies without a pause.
    pub is_new: bool,
}

/// A shard's report about an object's copies.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub struct Replication {
    pub id: ObjectId,
    pub put: PutId,
    /// Number of complete pinned copies at connected stores that do not drain.
    pub copies: u32,
    /// Number of connected stores that do not drain, up to
    /// [`MAX_REPLICAS`](crate::metadata::MAX_REPLICAS).
    pub nodes: u32,
    /// `true` if the shard knows that the receiving store drains, so `copies` leaves out its copy.
    pub is_draining: bool,
    /// Obstacle to a further copy, if any.
    pub obstacle: Option<Obstacle>,
}

/// A shard's order to a store to keep a pinned copy.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub struct Replicate {
    pub id: ObjectId,
    pub put: PutId,
    pub size_bytes: u64,
    pub metadata: Metadata,
}

/// Reason why an object has too few copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Obstacle {
    /// A store could not fetch the object.
    Failed,
    /// A store lacks memory.
    NoRoom,
    /// Every connected store has a copy or drains.
    NoNode,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Failed => "other stores could not fetch it",
            Self::NoRoom => "no other store has room",
            Self::NoNode => "there is no other store",
        })
    }
}
