//! The messages of stores to shards.

use std::time::Duration;

use super::{GrantId, InlineBytes, Lead, LocationState, Obstacle, Placed, RequestId, Retention};
use crate::vocabulary::id::{NodeId, ObjectId, PutId};
use crate::vocabulary::metadata::Metadata;

/// Store to shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToShard {
    /// A copy has started or is complete. Answered by `Published` if the store wants that, or the copy is not accepted.
    Publish(Publish),
    /// A copy is gone. Not answered.
    Unpublish {
        /// The object that the copy was of.
        id: ObjectId,
        /// The put that the copy was of.
        put: PutId,
        /// The reason for which the copy is gone.
        reason: UnpublishReason,
    },
    /// A synchronous location query that takes a sender slot. Answered by `Granted`, `Inline` or `Failed`.
    Query(Query),
    /// Withdraws a `Query`, or the answer to a `Delete`, which goes on. A `Granted` slot that is
    /// under way must still be returned. Not answered.
    Cancel {
        /// The query, or the delete.
        request: RequestId,
    },
    /// Returns a slot whose pull did not bring all bytes; [`Publish::slot`] returns the others. Not answered.
    ReturnSlot {
        /// The slot of a `Granted`.
        grant: GrantId,
        /// The end of the pull.
        outcome: PullOutcome,
    },
    /// Removes every copy. Answered by `DeleteDone` when all nodes have dropped theirs or are gone.
    Delete {
        /// Correlates the answer.
        request: RequestId,
        /// The object to remove.
        id: ObjectId,
    },
    /// Tells the second shard of an id what the first one deleted. Not answered.
    Forget {
        /// The object that was deleted.
        id: ObjectId,
        /// The put that was deleted.
        put: PutId,
    },
    /// An asynchronous location query: answered at once by `Locations`, and again at every change, until `Unsubscribe`.
    Subscribe {
        /// Correlates the answers.
        request: RequestId,
        /// The object to watch.
        id: ObjectId,
        /// The content of the first answer.
        wants: Wants,
    },
    /// Ends a subscription. Not answered; updates under way may still arrive.
    Unsubscribe {
        /// The subscription.
        request: RequestId,
    },
    /// Only the links to these peers have been slow for long: transfers should avoid them. Not
    /// answered.
    SlowLinks {
        /// The peers, at most [`MAX_TOLD`](crate::topology::live::MAX_TOLD).
        peers: Vec<NodeId>,
    },
    /// The place of the store after a probe, from another shard, or from this one before a restart.
    /// Not answered.
    Placed(Placed),
    /// Says if the shard is the first connected shard of an object. Answered by `Replication`.
    Lead(Lead),
    /// The store does not keep the copy that a `Replicate` requested. Not answered.
    NotReplicated {
        /// The object.
        id: ObjectId,
        /// The put that the store was asked to keep.
        put: PutId,
        /// The reason.
        reason: Obstacle,
    },
    /// The store is about to stop, or no longer is. While it drains, its copies do not count, and it
    /// gets no new ones. Not answered.
    Drain {
        /// `true` if the store drains.
        is_draining: bool,
    },
}

impl ToShard {
    /// The kinds of messages, for metrics.
    pub const KINDS: [&str; 14] = [
        "publish",
        "unpublish",
        "query",
        "cancel",
        "return-slot",
        "delete",
        "forget",
        "subscribe",
        "unsubscribe",
        "placed",
        "slow-links",
        "lead",
        "not-replicated",
        "drain",
    ];

    /// Returns the entry of [`Self::KINDS`].
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
        }
    }
}

/// A store announces a copy: when it starts, when it is complete, and again when a session is new. The shard that granted
/// a slot for a copy knows without this that the copy has started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publish {
    /// The object that the copy is of.
    pub id: ObjectId,
    /// The put that made it.
    pub put: PutId,
    /// The size of the whole object.
    pub size_bytes: u64,
    /// The metadata of the object.
    pub metadata: Metadata,
    /// The completeness of the copy.
    pub state: LocationState,
    /// The lifetime of the copy.
    pub retention: Retention,
    /// For a [`LocationState::Partial`] copy: its sender, so that the shard grants no cycle.
    pub pulling_from: Option<NodeId>,
    /// The bytes, if the object is complete, small and this store put it.
    pub inline: Option<InlineBytes>,
    /// For a [`LocationState::Complete`] copy: the slot over which its last bytes came, which is returned with this.
    pub slot: Option<GrantId>,
    /// `true` if the store waits even for `Accepted`.
    pub wants_answer: bool,
    /// For a copy of a put that this run of the shard has listed, in the first publication of a new session: the time
    /// since the store last heard from the shard. The shard rejects a put that was deleted since.
    pub returning: Option<Duration>,
}

/// The reason for which a copy is no longer there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UnpublishReason {
    /// Evicted to make room.
    Evicted,
    /// The pull ended without all the bytes.
    PullEnded,
    /// The worker that was writing it died or gave up: no copy of this put can ever be complete.
    Aborted,
    /// The producing node makes the object again, under another put id. Calls that wait for the
    /// object continue.
    Superseded,
    /// Given up by its store, because another put of the id was first.
    Conceded,
    /// Deleted, as the shard had asked.
    Deleted,
}

/// The end of a pull, reported when the slot is returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PullOutcome {
    /// All bytes arrived.
    Complete,
    /// The sender could not be reached, or its connection broke.
    SenderUnreachable,
    /// The sender sent nothing for too long, or needs this put from the receiver.
    SenderStalled,
    /// The sender does not have this put of the object (any more).
    SenderHasNoCopy,
    /// A frame was damaged on the way.
    Corrupt,
    /// The receiver no longer wants it, or has no room, and has no copy.
    Cancelled,
    /// The receiver returned the slot on request: [`ToStore::GiveWay`](super::ToStore::GiveWay).
    GaveWay,
}

/// A request for one location to pull from, answered when there is one, or at the deadline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query {
    /// Correlates the answer: `Granted`, `Inline` or `Failed`.
    pub request: RequestId,
    /// The object to find a sender for.
    pub id: ObjectId,
    /// The time to wait at most, from arrival.
    pub timeout: Duration,
    /// The put whose leading bytes the receiver has: only its copies are useful.
    pub resume: Option<PutId>,
    /// Senders that failed this receiver lately: granted only if there is no other.
    pub avoid: Vec<NodeId>,
}

/// The content of a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wants {
    /// The locations of the object.
    Locations,
    /// Also the bytes, which come first if the shard has them and the store has no copy. Saves the
    /// store a query.
    Bytes,
}
