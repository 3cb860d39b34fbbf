//! One copy, its progress and its users.

use super::super::context::Context;
use super::super::publication::Publication;
use super::spills::Spilled;
use crate::error::Error;
use crate::extent::Extent;
use crate::id::{NodeId, ObjectId, PutId};
use crate::message::{ClientId, CombineId, Effect, PullId};
use crate::metadata::Metadata;
use crate::shard::{GrantId, LocationState, PullOutcome, Retention};

/// The progress of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Phase {
    /// A client writes it.
    Writing { client: ClientId },
    /// It is pulled from another node, or waits for a sender.
    Receiving { pull: Option<Box<ActivePull>>, valid_bytes: u64 },
    /// It is computed from other copies, or waits until that can go on.
    Combining { combine: Option<CombineId> },
    /// All bytes are there.
    Complete,
}

/// A pull under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ActivePull {
    pub(crate) pull: PullId,
    pub(crate) sender: NodeId,
    /// The shard that granted the slot, and which slot; no slot once that shard's session is lost.
    pub(crate) shard: usize,
    pub(crate) grant: Option<GrantId>,
    /// The outcome to report, if this store is ending the pull to have another sender.
    pub(crate) ends_as: Option<PullOutcome>,
    /// The number of bytes that were there when it started.
    pub(crate) offset_bytes: u64,
}

impl ActivePull {
    /// Has the pull end soon, unless it is being ended already.
    pub(super) fn end_as(&mut self, ctx: &mut Context, outcome: PullOutcome) {
        if self.ends_as.is_none() {
            self.ends_as = Some(outcome);
            ctx.push(Effect::CancelPull { pull: self.pull });
        }
    }
}

/// The object of a copy.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) id: ObjectId,
    pub(crate) put: PutId,
    pub(crate) size_bytes: u64,
    pub(crate) metadata: Metadata,
}

/// One copy. Only the table changes it.
#[derive(Debug)]
pub(crate) struct LocalCopy {
    pub(crate) id: ObjectId,
    pub(crate) put: PutId,
    pub(crate) size_bytes: u64,
    pub(crate) metadata: Metadata,
    pub(crate) extent: Extent,
    pub(super) phase: Phase,
    pub(crate) retention: Retention,
    /// The client that has put it here.
    pub(crate) creator: Option<ClientId>,
    /// `true` if the directory may know it. Only nodes that were told its name request a private copy.
    pub(crate) is_public: bool,
    /// The reason for which it left the index, which its writer is told.
    pub(crate) detached: Option<Box<Error>>,
    pub(super) references: u32,
    pub(super) serves: u32,
    /// A comparison reads the bytes.
    pub(crate) is_comparing: bool,
    /// The record of the copy in a spill file.
    pub(super) spilled: Option<Box<Spilled>>,
    /// The shards that know it, and their verdicts.
    pub(crate) publication: Publication,
}

impl LocalCopy {
    /// A new copy without users. The copy of a client that writes or of a reduce is a put: it is
    /// pinned, and the directory has yet to accept it.
    pub(crate) fn begin(object: Object, extent: Extent, phase: Phase) -> Self {
        let Object { id, put, size_bytes, metadata } = object;
        let is_put = matches!(phase, Phase::Writing { .. } | Phase::Combining { .. });
        let retention = if is_put { Retention::Pinned } else { Retention::Evictable };
        let creator = if let Phase::Writing { client } = phase { Some(client) } else { None };
        Self {
            id,
            put,
            size_bytes,
            metadata,
            extent,
            phase,
            retention,
            creator,
            is_public: true,
            detached: None,
            references: 0,
            serves: 0,
            is_comparing: false,
            spilled: None,
            publication: Publication::default(),
        }
    }

    /// Returns the number of leading bytes that were received so far.
    pub(crate) const fn received_bytes(&self) -> u64 {
        match self.phase {
            Phase::Receiving { valid_bytes, .. } => valid_bytes,
            _ => 0,
        }
    }

    /// The same copy, hidden from the directory.
    pub(crate) fn private(self) -> Self {
        Self { is_public: false, ..self }
    }

    /// The same copy, which may be evicted when it is complete.
    pub(crate) fn evictable(self) -> Self {
        Self { retention: Retention::Evictable, ..self }
    }

    /// Returns `true` if it is in the index.
    pub(crate) const fn is_live(&self) -> bool {
        self.detached.is_none()
    }

    pub(crate) const fn is_written(&self) -> bool {
        matches!(self.phase, Phase::Writing { .. })
    }

    pub(crate) fn is_written_by(&self, client: ClientId) -> bool {
        self.phase == Phase::Writing { client }
    }

    pub(crate) const fn is_combined(&self) -> bool {
        matches!(self.phase, Phase::Combining { .. })
    }

    /// Returns `true` if its bytes come from another node.
    pub(crate) const fn is_received(&self) -> bool {
        matches!(self.phase, Phase::Receiving { .. })
    }

    /// Returns `true` if they do, and no pull runs.
    pub(crate) const fn awaits_sender(&self) -> bool {
        matches!(self.phase, Phase::Receiving { pull: None, .. })
    }

    /// The node from which it is pulled now.
    pub(crate) const fn sender(&self) -> Option<&NodeId> {
        match &self.phase {
            Phase::Receiving { pull: Some(active), .. } => Some(&active.sender),
            _ => None,
        }
    }

    /// The combination that fills it now.
    pub(crate) const fn combination(&self) -> Option<CombineId> {
        match self.phase {
            Phase::Combining { combine } => combine,
            _ => None,
        }
    }

    /// The state in which it is published.
    pub(crate) const fn location_state(&self) -> LocationState {
        match self.phase {
            Phase::Writing { .. } | Phase::Combining { .. } => LocationState::Producing,
            Phase::Receiving { .. } => LocationState::Partial,
            Phase::Complete => LocationState::Complete,
        }
    }

    pub(crate) const fn is_referenced(&self) -> bool {
        self.references > 0
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.phase == Phase::Complete
    }

    pub(crate) fn is_pinned(&self) -> bool {
        self.retention == Retention::Pinned
    }

    /// Returns `true` if a producer on this node fills it.
    pub(crate) fn is_produced_here(&self) -> bool {
        matches!(self.phase, Phase::Writing { .. } | Phase::Combining { .. })
    }

    pub(super) fn is_idle(&self) -> bool {
        let is_filled = matches!(
            self.phase,
            Phase::Receiving { pull: Some(_), .. } | Phase::Combining { combine: Some(_), .. }
        );
        self.references == 0 && self.serves == 0 && !is_filled && !self.is_comparing && !self.is_in_motion()
    }
}
