//! Messages of stores to shards. A message gets no answer unless its documentation names one.

use std::time::Duration;

use super::{GrantId, InlineBytes, Lead, LocationState, Obstacle, Placed, RequestId, Retention};
use crate::vocabulary::id::{NodeId, ObjectId, PutId};
use crate::vocabulary::metadata::Metadata;
use crate::vocabulary::placement::ShardList;

/// A message of a store to a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub enum ToShard {
    /// The store has begun or completed a copy. Answered by `Published` on request, or if the copy
    /// is rejected.
    Publish(Publish),
    Unpublish {
        id: ObjectId,
        put: PutId,
        reason: UnpublishReason,
    },
    /// Requests a slot of a sender of the object. Answered by `Granted`, `Inline` or `Failed`.
    Query(Query),
    /// Withdraws a `Query`, or ends the wait for a `Delete`, which the shard still performs. The
    /// store must still return a slot that was `Granted` at the same time.
    Cancel {
        request: RequestId,
    },
    /// Returns a slot whose pull did not bring all bytes. A complete pull returns its slot by
    /// [`Publish::slot`].
    ReturnSlot {
        grant: GrantId,
        outcome: PullOutcome,
    },
    /// Deletes an object at all stores. Answered by `DeleteDone` when all nodes have dropped their
    /// copies or are lost; answered again if the delete waits for lost nodes.
    Delete {
        request: RequestId,
        id: ObjectId,
        terms: DeleteTerms,
    },
    /// Tells a shard that a put was deleted at another shard of the id.
    Forget {
        id: ObjectId,
        put: PutId,
    },
    /// Requests `Locations` now and at every change, until `Unsubscribe`.
    Subscribe {
        request: RequestId,
        id: ObjectId,
        wants: Wants,
        /// `true` if the store makes the object. If the store is lost before it publishes the
        /// object, waiting queries fail.
        makes: bool,
    },
    /// Ends a subscription. Changes may still be in flight.
    Unsubscribe {
        request: RequestId,
    },
    /// Persistently slow links of the store, which transfers avoid.
    SlowLinks {
        /// At most [`MAX_SLOW_PEERS`](crate::topology::live::MAX_SLOW_PEERS).
        peers: Vec<NodeId>,
    },
    /// The store's groups and uplinks, as another shard or run of this shard told it.
    Placed(Placed),
    /// Tells the shard if it leads. Answered by `Replication` if so.
    Lead(Lead),
    /// The store cannot keep the copy that a `Replicate` orders.
    NotReplicated {
        id: ObjectId,
        put: PutId,
        reason: Obstacle,
    },
    /// The store starts or ends draining. A draining store's copies do not count as replicas, and
    /// it gets no new ones.
    Drain {
        is_draining: bool,
    },
    /// List of shards that the store now uses, from protocol version 10 on.
    Shards(ShardList),
}

impl ToShard {
    /// Names of all messages, for metrics.
    pub const KINDS: [&str; 15] = [
        "publish", "unpublish", "query", "cancel", "return-slot", "delete", "forget", "subscribe",
        "unsubscribe", "placed", "slow-links", "lead", "not-replicated", "drain", "shards",
    ];

    /// Name in [`Self::KINDS`].
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Publish(_) => "publish",
            Self::Unpublish { .. } => "unpublish",
            Self::Query(_) => "query",
            Self::Cancel { .. } => "cancel",
            Self::ReturnSlot { .. } => "return-slot",
            Self::Delete { .. } => "delete",
            Self::Forget { .. } => "forget",
            Self::Subscribe { .. } => "subscribe",
            Self::Unsubscribe { .. } => "unsubscribe",
            Self::Placed(_) => "placed",
            Self::SlowLinks { .. } => "slow-links",
            Self::Lead(_) => "lead",
            Self::NotReplicated { .. } => "not-replicated",
            Self::Drain { .. } => "drain",
            Self::Shards(_) => "shards",
        }
    }
}

/// Announces a copy: at its start, when complete, and again in a new session. The shard that
/// granted the slot already knows of the start.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub struct Publish {
    pub id: ObjectId,
    pub put: PutId,
    pub size_bytes: u64,
    pub metadata: Metadata,
    pub state: LocationState,
    /// `Pinned` if the store must keep the copy.
    pub retention: Retention,
    /// Sender of a partial copy, so that the shard grants no cycle of pulls.
    pub pulling_from: Option<NodeId>,
    /// Bytes of a complete small object that this store put.
    pub inline: Option<InlineBytes>,
    /// Slot by which a complete copy got its last bytes. This message returns it.
    pub slot: Option<GrantId>,
    /// `true` to request an answer even if the copy is accepted.
    pub wants_answer: bool,
    /// In a new session, for a put that this run of the shard knows: the time since the store last
    /// heard from the shard. The shard rejects a put that was deleted since.
    pub returning: Option<Duration>,
}

/// Conditions of a delete, from protocol version 9 on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
#[expect(missing_docs, reason = "most names say it")]
pub struct DeleteTerms {
    /// Removes only this put, which the id's other shard has deleted already. `None` removes the
    /// put that the shard lists now.
    pub only: Option<PutId>,
    pub wait: DeleteWait,
}

/// Stores that a delete waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum DeleteWait {
    /// Stores that the directory can reach.
    #[default]
    Reachable,
    /// Also lost stores that may still have a copy.
    All,
}

/// Reason why a copy is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UnpublishReason {
    /// Evicted to free memory.
    Evicted,
    /// The pull ended early.
    PullEnded,
    /// The writing client gave up or died, so no copy can become complete.
    Aborted,
    /// The producer makes the object again under another put id. Waiting calls continue.
    Superseded,
    /// Given up, because another put of the id came first.
    Conceded,
    /// Deleted on the shard's order.
    Deleted,
}

/// End of a pull.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PullOutcome {
    /// All bytes arrived.
    Complete,
    /// The sender's connection failed.
    SenderUnreachable,
    /// The sender was silent for too long, or itself waits for the receiver.
    SenderStalled,
    /// The sender has no copy of this put.
    SenderHasNoCopy,
    /// A frame was damaged.
    Corrupt,
    /// The receiver cancelled the pull or lacks memory.
    Cancelled,
    /// The receiver returned the slot on request: [`ToStore::GiveWay`](super::ToStore::GiveWay).
    GaveWay,
}

/// A request for a sender, which the shard answers when a sender is free, or at the deadline.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub struct Query {
    pub request: RequestId,
    pub id: ObjectId,
    /// Longest wait at the shard.
    pub timeout: Duration,
    /// Put whose first bytes the receiver has.
    pub resume: Option<PutId>,
    /// Senders that failed this receiver lately. The shard grants them only as a last resort.
    pub avoid: Vec<NodeId>,
}

/// Content of the first answer to a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wants {
    /// The locations.
    Locations,
    /// Locations, and the shard's inline bytes if the store has no copy. Saves a query.
    Bytes,
}
