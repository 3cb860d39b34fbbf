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
        /// The object that was published.
        id: ObjectId,
        /// The put that was published.
        put: PutId,
        /// The decision of the shard.
        verdict: Verdict,
    },
    /// A sender slot: an answer to `Query`.
    Granted(Grant),
    /// The bytes themselves: an answer to `Query`. The receiver counts as a complete, evictable location from now on.
    Inline {
        /// The query that this answers.
        request: RequestId,
        /// The id of the object.
        id: ObjectId,
        /// The put that the bytes are of.
        put: PutId,
        /// The metadata of the object.
        metadata: Metadata,
        /// All bytes of the object.
        bytes: InlineBytes,
    },
    /// The failure of a query or a delete.
    Failed {
        /// The query, or the `Delete`.
        request: RequestId,
        /// The reason for which it failed.
        error: Error,
    },
    /// The store must drop its copy, if it has one.
    Drop {
        /// The object to drop.
        id: ObjectId,
        /// The put to drop; copies of others stay.
        put: PutId,
        /// The reason for which the copy must go.
        reason: DropReason,
    },
    /// The store's copy must survive from now on: it becomes pinned.
    Promote {
        /// The object to keep.
        id: ObjectId,
        /// The put to keep.
        put: PutId,
    },
    /// The last copy of an inline object is gone with its node: the store keeps one from now on, pinned. It says so with
    /// `Publish`, or has no room.
    TakeOver {
        /// The object to keep.
        id: ObjectId,
        /// The put that the bytes are of.
        put: PutId,
        /// The metadata of the object.
        metadata: Metadata,
        /// All bytes of the object.
        bytes: InlineBytes,
    },
    /// A closer or better linked receiver needs this slot. The store ends the pull, returns the
    /// slot with [`PullOutcome::GaveWay`](super::PullOutcome::GaveWay), and sends another query to
    /// resume.
    GiveWay {
        /// The slot.
        grant: GrantId,
    },
    /// The groups of the store, by its labels or by measurements, and the capacity of uplinks.
    Placed(Placed),
    /// No copy is left.
    DeleteDone {
        /// The `Delete` that this answers.
        request: RequestId,
        /// The put that was deleted; `None` if there was no such object.
        put: Option<PutId>,
    },
    /// An answer to `Subscribe`, and every change after it.
    Locations {
        /// The `Subscribe` that this answers.
        request: RequestId,
        /// The locations now.
        locations: Locations,
    },
    /// The store fetches an object and keeps it, pinned. It says so with `Publish`, or answers with
    /// `NotReplicated`.
    Replicate(Replicate),
    /// The copies of an object of which the store has a pinned copy.
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

/// The reason for the choice of a sender, for logs and `hoplite stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GrantReason {
    /// The only location that could be chosen.
    OnlyCandidate,
    /// A complete copy while others were partial.
    CompleteBeforePartial,
    /// The closest, by the places of the nodes: without them another would have been chosen.
    Closest,
    /// As close as others, and longest without a grant.
    LeastRecentlyUsed,
    /// A copy that is not complete, as close as others, and the first of them to have bytes.
    EarliestBytes,
    /// A copy that is not complete, while many others receive the object too: the bytes are about to reach it. Until then a
    /// chain is not extended, so that none gets longer than a transfer takes.
    ChainHasBytes,
    /// It failed this receiver lately, but there is no other.
    AvoidedButOnly,
    /// The receiver is the first of its group to get the object: no node there has any of it.
    FirstOfGroup,
    /// The copies that are closer served others for too long.
    CloserAreBusy,
    /// The link from the next best sender is slow, or its bytes come over a slow link.
    FasterLink,
    /// The link from this sender is slow, or its bytes come over a slow link, but there is no
    /// other.
    SlowButOnly,
}

impl GrantReason {
    /// Returns `true` if it was chosen only since there was no better one.
    pub const fn is_last_resort(self) -> bool {
        matches!(self, Self::AvoidedButOnly | Self::SlowButOnly)
    }
}

/// A slot at a sender. The receiver counts as a partial location from now on, until it says otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The query it answers.
    pub request: RequestId,
    /// The slot, to be returned with [`Publish::slot`](super::Publish::slot) or [`ToShard::ReturnSlot`](super::ToShard::ReturnSlot).
    pub grant: GrantId,
    /// The object to pull.
    pub id: ObjectId,
    /// The put that the sender has.
    pub put: PutId,
    /// The size of the whole object.
    pub size_bytes: u64,
    /// The metadata of the object.
    pub metadata: Metadata,
    /// The node to pull from.
    pub sender: NodeId,
    /// The address of the data plane of that node.
    pub sender_address: SocketAddr,
    /// The completeness of the sender's copy.
    pub sender_state: LocationState,
    /// The reason for which this sender was chosen.
    pub reason: GrantReason,
}

/// The answer to `Publish`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The location is known now.
    Accepted,
    /// Another put of this id was here first. If it was equal (same size, metadata and bytes, known only for inline
    /// objects), the store's copy may take its place under the put id `winner`.
    Conflict {
        /// The put that was first.
        winner: PutId,
        /// The result of the comparison.
        equality: Equality,
    },
    /// This put was deleted; the copy must be dropped.
    Deleted,
    /// The shard holds as many objects as it may.
    ShardFull,
}

/// The result of a comparison of two puts of one id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Equality {
    /// The puts are equal.
    Equal,
    /// The puts differ.
    Different,
    /// Size and metadata agree; the bytes must be compared with a copy at this node, if there is one.
    Unknown {
        /// A node that has, or will have, a complete copy of the winner, and its data plane.
        holder: Option<(NodeId, SocketAddr)>,
    },
}

/// The reason for which a shard tells a store to drop its copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// `Delete` was called. The store answers with `Unpublish` and [`UnpublishReason::Deleted`](super::UnpublishReason::Deleted), even if it has no copy.
    Deleted,
    /// Its producer gave up, or the last node with all the bytes was lost, so that it can never be complete.
    Lost,
    /// The producer makes the object again, under another put id.
    Superseded,
}
