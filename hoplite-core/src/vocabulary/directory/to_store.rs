use std::net::SocketAddr;

use super::{
    GrantId, InlineBytes, LocationState, Locations, Placed, Replicate, Replication, RequestId,
};
use crate::vocabulary::error::Error;
use crate::vocabulary::id::{NodeId, ObjectId, PutId};
use crate::vocabulary::metadata::Metadata;
use crate::vocabulary::missing::Named;
use crate::vocabulary::placement::ShardList;

/// A message of a shard to a store.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub enum ToStore {
    /// Answers `Publish`.
    Published {
        id: ObjectId,
        put: PutId,
        verdict: Verdict,
    },
    /// Answers `Query` with a sender slot.
    Granted(Grant),
    /// Answers `Query` with the bytes. From now on, the receiver is a complete, evictable location.
    Inline {
        request: RequestId,
        id: ObjectId,
        put: PutId,
        metadata: Metadata,
        bytes: InlineBytes,
    },
    /// A query or a delete failed.
    Failed {
        request: RequestId,
        error: Error,
    },
    Drop {
        id: ObjectId,
        put: PutId,
        reason: DropReason,
    },
    /// The store must pin its copy.
    Promote {
        id: ObjectId,
        put: PutId,
    },
    /// The store must keep a pinned copy, because the last copy of an inline object is lost. It
    /// answers with `Publish` if it has memory.
    TakeOver {
        id: ObjectId,
        put: PutId,
        metadata: Metadata,
        bytes: InlineBytes,
    },
    /// A closer or faster receiver needs this slot. The store ends the pull, returns the slot with
    /// [`PullOutcome::GaveWay`](super::PullOutcome::GaveWay), and queries again to resume.
    GiveWay {
        grant: GrantId,
    },
    Placed(Placed),
    /// Answers `Delete`: only the lost stores in `absent` may still have a copy. If the delete
    /// waits for them, a second answer follows once `absent` is empty.
    DeleteDone {
        request: RequestId,
        /// Deleted put; `None` if there was no object.
        put: Option<PutId>,
        absent: Named<NodeId>,
    },
    /// Answers `Subscribe`, now and at every change.
    Locations {
        request: RequestId,
        locations: Locations,
    },
    /// The store fetches and pins an object. It answers with `Publish` or `NotReplicated`.
    Replicate(Replicate),
    Replication(Replication),
    /// List of shards to use, from protocol version 10 on. The store answers with
    /// [`ToShard::Shards`](super::ToShard::Shards).
    Shards(ShardList),
}

impl ToStore {
    /// Names of all messages, for metrics.
    pub const KINDS: [&str; 14] = [
        "published", "granted", "inline", "failed", "drop", "promote", "take-over", "give-way",
        "placed", "delete-done", "locations", "replicate", "replication", "shards",
    ];

    /// Name in [`Self::KINDS`].
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
            Self::Shards(_) => "shards",
        }
    }
}

/// Reason for the choice of a sender, for logs and tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GrantReason {
    /// The sender is the only candidate.
    OnlyCandidate,
    /// The sender has the only complete copy.
    CompleteBeforePartial,
    /// The sender is in the receiver's group. Without groups, the shard would choose another
    /// sender.
    Closest,
    /// Among the closest senders, the one without a new receiver for the longest time.
    LeastRecentlyUsed,
    /// Among the closest partial copies, the first one to have bytes.
    EarliestBytes,
    /// A partial copy that has its first bytes, or soon gets them. With many receivers, a chain
    /// grows only at such a copy, because complete copies can begin new chains.
    ChainHasBytes,
    /// The sender failed this receiver lately, but is the only one.
    AvoidedButOnly,
    /// No connected node of the receiver's group, such as its rack, has a copy.
    FirstOfGroup,
    /// Closer copies have been busy for too long.
    CloserAreBusy,
    /// The next best sender has a slow link to the receiver, or gets its own bytes over one.
    FasterLink,
    /// The only sender has a slow link to the receiver, or gets its own bytes over one.
    SlowButOnly,
}

impl GrantReason {
    /// Returns `true` if the shard had no better sender.
    pub const fn is_last_resort(self) -> bool {
        matches!(self, Self::AvoidedButOnly | Self::SlowButOnly)
    }
}

/// A slot at a sender. From now on, the receiver is a partial location.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub struct Grant {
    /// Number of the answered query.
    pub request: RequestId,
    /// Slot, returned with [`Publish::slot`](super::Publish::slot) or
    /// [`ToShard::ReturnSlot`](super::ToShard::ReturnSlot).
    pub grant: GrantId,
    pub id: ObjectId,
    pub put: PutId,
    pub size_bytes: u64,
    pub metadata: Metadata,
    pub sender: NodeId,
    /// Address of the sender's data plane.
    pub sender_address: SocketAddr,
    /// Completeness of the sender's copy.
    pub sender_state: LocationState,
    /// Reason for the choice of the sender.
    pub reason: GrantReason,
    /// Number of complete copies at connected stores, including the sender's.
    pub complete_copies: u32,
}

/// Shard's answer to `Publish`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The shard records the copy.
    Accepted,
    /// As `Accepted`, but the published sender pulls from this copy, so the store must leave it.
    /// Stores before version 11 read `Accepted`.
    Cyclic {
        /// Sender to leave.
        sender: NodeId,
    },
    /// Another put was first. If both are equal, the store may give its copy the put id `winner`.
    Conflict {
        /// First put.
        winner: PutId,
        /// Equality with the first put, if known.
        equality: Equality,
    },
    /// The put was deleted: the store must drop the copy.
    Deleted,
    /// The shard has too many objects.
    ShardFull,
}

/// Equality of two puts of one id, if known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Equality {
    /// The puts are equal.
    Equal,
    /// The puts differ.
    Different,
    /// Size and metadata are equal, and the store must compare the bytes.
    Unknown {
        /// A node with a copy of the winning put, and the address of its data plane.
        holder: Option<(NodeId, SocketAddr)>,
    },
}

/// Reason why a store must drop a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// The object was deleted. The store answers with
    /// [`UnpublishReason::Deleted`](super::UnpublishReason::Deleted) even without a copy.
    Deleted,
    /// The copy can never be complete: the producer or the last complete copy is lost.
    Lost,
    /// The producer makes the object again under another put id.
    Superseded,
}
