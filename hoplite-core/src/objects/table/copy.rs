//! One copy: what it is, how far it is, and who uses it.

use super::super::context::Context;
use super::super::publication::Publication;
use crate::error::Error;
use crate::extent::Extent;
use crate::id::{NodeId, ObjectId, PutId};
use crate::message::{ClientId, CombineId, Effect, PullId};
use crate::metadata::Metadata;
use crate::shard::{GrantId, LocationState, PullOutcome, Retention};

/// How far a copy is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Phase {
    /// A client writes it.
    Writing { client: ClientId },
    /// It is pulled from another node, or waits for a sender.
    Receiving { pull: Option<ActivePull>, valid_bytes: u64 },
    /// It is computed from other copies, or waits until that can go on.
    Combining { combine: Option<CombineId>, valid_bytes: u64 },
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
    /// What its end counts as, if this store is ending it to have another sender.
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

/// Whether the directory knows of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Visibility {
    /// It does.
    Public,
    /// It does not: only those who were told its name ask for it.
    Private,
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
    pub(super) retention: Retention,
    pub(super) visibility: Visibility,
    /// Why it left the index; what its writer is told.
    pub(super) detached: Option<Error>,
    pub(super) references: u32,
    pub(super) serves: u32,
    /// A comparison reads the bytes.
    pub(super) is_comparing: bool,
    /// What the directory knows of it.
    publication: Publication,
}

impl LocalCopy {
    /// A copy that nobody uses yet. What a client writes or a reduce makes is a put: it stays, and the directory has yet to
    /// accept it.
    pub(crate) fn begin(
        id: ObjectId,
        put: PutId,
        size_bytes: u64,
        metadata: Metadata,
        extent: Extent,
        phase: Phase,
    ) -> Self {
        let is_put = matches!(phase, Phase::Writing { .. } | Phase::Combining { .. });
        let retention = if is_put { Retention::Pinned } else { Retention::Evictable };
        Self {
            id,
            put,
            size_bytes,
            metadata,
            extent,
            phase,
            retention,
            visibility: Visibility::Public,
            detached: None,
            references: 0,
            serves: 0,
            is_comparing: false,
            publication: Publication::default(),
        }
    }

    /// How many of its leading bytes were received so far.
    pub(crate) const fn received_bytes(&self) -> u64 {
        match self.phase {
            Phase::Receiving { valid_bytes, .. } => valid_bytes,
            _ => 0,
        }
    }

    /// What the directory knows of it.
    pub(crate) const fn publication(&self) -> &Publication {
        &self.publication
    }

    pub(crate) const fn publication_mut(&mut self) -> &mut Publication {
        &mut self.publication
    }

    /// The same copy, of which no shard is told.
    pub(crate) fn private(self) -> Self {
        Self { visibility: Visibility::Private, ..self }
    }

    /// The same copy, which may be evicted when it is complete.
    pub(crate) fn evictable(self) -> Self {
        Self { retention: Retention::Evictable, ..self }
    }

    pub(crate) fn is_public(&self) -> bool {
        self.visibility == Visibility::Public
    }

    /// Returns `true` if it is in the index.
    pub(crate) const fn is_live(&self) -> bool {
        self.detached.is_none()
    }

    /// Returns the reason for which it left the index.
    pub(crate) const fn end(&self) -> Option<&Error> {
        self.detached.as_ref()
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

    /// The state in which it is published.
    pub(crate) const fn location_state(&self) -> LocationState {
        match self.phase {
            Phase::Writing { .. } | Phase::Combining { .. } => LocationState::Producing,
            Phase::Receiving { .. } => LocationState::Partial,
            Phase::Complete => LocationState::Complete,
        }
    }

    pub(crate) const fn retention(&self) -> Retention {
        self.retention
    }

    pub(crate) const fn is_referenced(&self) -> bool {
        self.references > 0
    }

    pub(crate) fn is_comparing(&self) -> bool {
        self.is_comparing
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.phase == Phase::Complete
    }

    pub(crate) fn is_pinned(&self) -> bool {
        self.retention == Retention::Pinned
    }

    /// Returns `true` if it becomes complete by itself, without any other node.
    pub(crate) fn is_produced_here(&self) -> bool {
        matches!(self.phase, Phase::Writing { .. } | Phase::Combining { .. })
    }

    pub(super) fn is_idle(&self) -> bool {
        let is_filled = matches!(
            self.phase,
            Phase::Receiving { pull: Some(_), .. } | Phase::Combining { combine: Some(_), .. }
        );
        self.references == 0 && self.serves == 0 && !is_filled && !self.is_comparing
    }
}
