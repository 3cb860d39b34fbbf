//! The messages of shards to stores.

use std::net::SocketAddr;

use super::{GrantId, InlineBytes, LocationState, Locations, Placed, Replicate, Replication, RequestId};
use crate::vocabulary::error::Error;
use crate::vocabulary::id::{NodeId, ObjectId, PutId};
use crate::vocabulary::metadata::Metadata;

/// Shard to store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToStore {
    /// The answer to `Publish`.
    Published {
        /// The object.
        id: ObjectId,
        /// The put.
        put: PutId,
        /// The decision.
        verdict: Verdict,
    },
    /// Answers `Query` with a sender slot.
    Granted(Grant),
    /// Answers `Query` with the bytes. The receiver counts as a complete, evictable location from
    /// now on.
    Inline {
        /// The query.
        request: RequestId,
        /// The object.
        id: ObjectId,
        /// The put.
        put: PutId,
        /// The object's metadata.
        metadata: Metadata,
        /// The object's bytes.
        bytes: InlineBytes,
    },
    /// A query or a delete failed.
    Failed {
        /// The query, or the `Delete`.
        request: RequestId,
        /// The reason.
        error: Error,
    },
    /// The store must drop its copy of this put.
    Drop {
        /// The object.
        id: ObjectId,
        /// The put.
        put: PutId,
        /// The reason.
        reason: DropReason,
    },
    /// The store must pin its copy.
    Promote {
        /// The object.
        id: ObjectId,
        /// The put.
        put: PutId,
    },
    /// The last copy of an inline object is lost: the store keeps a pinned one, and answers with
    /// `Publish` if it has room.
    TakeOver {
        /// The object.
        id: ObjectId,
        /// The put.
        put: PutId,
        /// The object's metadata.
        metadata: Metadata,
        /// The object's bytes.
        bytes: InlineBytes,
    },
    /// A better receiver needs this slot. The store ends the pull, returns the slot with
    /// [`PullOutcome::GaveWay`](super::PullOutcome::GaveWay), and queries again to resume.
    GiveWay {
        /// The slot.
        grant: GrantId,
    },
    /// The store's groups, and the capacity of uplinks.
    Placed(Placed),
    /// No copy is left.
    DeleteDone {
        /// The `Delete`.
        request: RequestId,
        /// The deleted put; `None` if there was no object.
        put: Option<PutId>,
    },
    /// Answers `Subscribe`, now and at every change.
    Locations {
        /// The `Subscribe`.
        request: RequestId,
        /// The locations.
        locations: Locations,
    },
    /// The store fetches and pins an object. It answers with `Publish` or `NotReplicated`.
    Replicate(Replicate),
    /// The copies of an object pinned at this store.
    Replication(Replication),
}

impl ToStore {
    /// The kinds of messages, for metrics.
    pub const KINDS: [&str; 13] = [
        "published",
        "granted",
        "inline",
        "failed",
        "drop",
        "promote",
        "take-over",
        "give-way",
        "placed",
        "delete-done",
        "locations",
        "replicate",
        "replication",
    ];

    /// Returns the entry of [`Self::KINDS`].
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Published { .. } => "published",
            Self::Granted(_) => "granted",
            Self::Inline { .. } => "inline",
            Self::Failed { .. } => "failed",
            Self::Drop { .. } => "drop",
            Self::Promote { .. } => "promote",
            Self::TakeOver { .. } => "take-over",
            Self::GiveWay { .. } => "give-way",
            Self::Placed(_) => "placed",
            Self::DeleteDone { .. } => "delete-done",
            Self::Locations { .. } => "locations",
            Self::Replicate(_) => "replicate",
            Self::Replication(_) => "replication",
        }
    }
}

/// The reason for the choice of a sender, for logs and tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GrantReason {
    /// The only candidate.
    OnlyCandidate,
    /// The only complete copy.
    CompleteBeforePartial,
    /// The closest, against the order of age.
    Closest,
    /// Among the closest, longest without a grant.
    LeastRecentlyUsed,
    /// Among the closest partial copies, the first to have bytes.
    EarliestBytes,
    /// A partial copy that has or soon gets its first bytes. With many receivers, a chain grows
    /// only then, so that none gets longer than a transfer takes.
    ChainHasBytes,
    /// Failed this receiver lately, but there is no other.
    AvoidedButOnly,
    /// The receiver is the first of its group.
    FirstOfGroup,
    /// Closer copies have been busy for too long.
    CloserAreBusy,
    /// The next best sender has a slow link or gets its bytes over one.
    FasterLink,
    /// This sender has a slow link or gets its bytes over one, but there is no other.
    SlowButOnly,
}

impl GrantReason {
    /// Returns `true` if there was no better sender.
    pub const fn is_last_resort(self) -> bool {
        matches!(self, Self::AvoidedButOnly | Self::SlowButOnly)
    }
}

/// A slot at a sender. The receiver counts as a partial location from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The query.
    pub request: RequestId,
    /// The slot, returned with [`Publish::slot`](super::Publish::slot) or
    /// [`ToShard::ReturnSlot`](super::ToShard::ReturnSlot).
    pub grant: GrantId,
    /// The object.
    pub id: ObjectId,
    /// The put.
    pub put: PutId,
    /// The object's size.
    pub size_bytes: u64,
    /// The object's metadata.
    pub metadata: Metadata,
    /// The sender.
    pub sender: NodeId,
    /// The sender's data plane.
    pub sender_address: SocketAddr,
    /// The completeness of the sender's copy.
    pub sender_state: LocationState,
    /// The reason for this choice.
    pub reason: GrantReason,
}

/// The answer to `Publish`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The location is known.
    Accepted,
    /// Another put of this id was first. The store may replace an equal copy's put id with
    /// `winner`.
    Conflict {
        /// The first put.
        winner: PutId,
        /// The comparison of both puts.
        equality: Equality,
    },
    /// This put was deleted: drop the copy.
    Deleted,
    /// The shard has too many objects.
    ShardFull,
}

/// The comparison of two puts of one id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Equality {
    /// The puts are equal.
    Equal,
    /// The puts differ.
    Different,
    /// Size and metadata agree. The store must compare the bytes.
    Unknown {
        /// A node with a copy of the winner, and its data plane.
        holder: Option<(NodeId, SocketAddr)>,
    },
}

/// The reason to drop a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// `Delete` was called. The store answers with
    /// [`UnpublishReason::Deleted`](super::UnpublishReason::Deleted) even without a copy.
    Deleted,
    /// It can never be complete: the producer or the last complete copy is lost.
    Lost,
    /// The producer makes the object again under another put id.
    Superseded,
}
