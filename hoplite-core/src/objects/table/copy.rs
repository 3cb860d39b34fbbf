use super::super::context::Context;
use super::super::publication::Publication;
use super::super::quotas::{Charge, Payer};
use super::spills::Spilled;
use crate::error::Error;
use crate::extent::Extent;
use crate::id::{NodeId, ObjectId, PutId};
use crate::message::{ClientId, CombineId, Effect, PullId, SpillRecord};
use crate::metadata::{BoxedMetadata, Metadata};
use crate::quota::QuotaUse;
use crate::shard::{GrantId, LocationState, PullOutcome, Retention};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Phase {
    Writing {
        client: ClientId,
    },
    /// Pulled from another node, or waiting for a sender. Boxed, because most copies are complete.
    Receiving(Box<Reception>),
    Combining {
        combine: Option<CombineId>,
    },
    Complete,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Reception {
    pub(super) pull: Option<ActivePull>,
    pub(super) valid_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ActivePull {
    pub(crate) pull: PullId,
    pub(crate) sender: NodeId,
    /// Shard that granted the pull. `grant` is `None` once the session with it is lost.
    pub(crate) shard: usize,
    pub(crate) grant: Option<GrantId>,
    /// Outcome to report if this store ended the pull itself.
    pub(crate) ends_as: Option<PullOutcome>,
    pub(crate) offset_bytes: u64,
}

impl Phase {
    pub(crate) fn awaiting_sender() -> Self {
        Self::Receiving(Box::default())
    }
}

impl ActivePull {
    pub(super) fn end_as(&mut self, ctx: &mut Context, outcome: PullOutcome) {
        if self.ends_as.is_none() {
            self.ends_as = Some(outcome);
            ctx.push(Effect::CancelPull { pull: self.pull });
        }
    }
}

#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) id: ObjectId,
    pub(crate) put: PutId,
    pub(crate) size_bytes: u64,
    pub(crate) metadata: Metadata,
}

#[derive(Debug)]
pub(crate) struct LocalCopy {
    pub(crate) id: ObjectId,
    pub(crate) put: PutId,
    pub(crate) size_bytes: u64,
    pub(crate) metadata: BoxedMetadata,
    pub(crate) extent: Extent,
    pub(super) phase: Phase,
    pub(crate) retention: Retention,
    pub(super) creator: ClientId,
    pub(super) payer: Payer,
    /// `true` if the directory may know the copy. A private copy, such as a partial result, is
    /// requested only by nodes that a coordinator told its id.
    pub(crate) is_public: bool,
    pub(super) is_reduced: bool,
    /// Reason why the copy was deleted, lost or given up, for the writer.
    pub(crate) detached: Option<Box<Error>>,
    pub(super) references: u32,
    pub(super) serves: u32,
    pub(crate) is_comparing: bool,
    pub(super) spilled: Option<Box<Spilled>>,
    pub(crate) publication: Publication,
}

impl LocalCopy {
    /// Makes a copy. If a client or a reduce makes its bytes, it is a pinned put.
    pub(crate) fn begin(object: Object, extent: Extent, phase: Phase) -> Self {
        let Object { id, put, size_bytes, metadata } = object;
        let is_put = matches!(phase, Phase::Writing { .. } | Phase::Combining { .. });
        let retention = if is_put { Retention::Pinned } else { Retention::Evictable };
        let creator = if let Phase::Writing { client } = phase { client } else { ClientId::NOBODY };
        Self {
            id,
            put,
            size_bytes,
            metadata: metadata.into(),
            extent,
            phase,
            retention,
            creator,
            payer: Payer::Nobody,
            is_public: true,
            is_reduced: false,
            detached: None,
            references: 0,
            serves: 0,
            is_comparing: false,
            spilled: None,
            publication: Publication::default(),
        }
    }

    /// Client that put the object, or called the reduce that made it.
    pub(crate) fn creator(&self) -> Option<ClientId> {
        (self.creator != ClientId::NOBODY).then_some(self.creator)
    }

    pub(crate) fn received_bytes(&self) -> u64 {
        match &self.phase {
            Phase::Receiving(reception) => reception.valid_bytes,
            _ => 0,
        }
    }

    pub(crate) fn private(self) -> Self {
        Self { is_public: false, ..self }
    }

    pub(crate) fn paid_by(self, payer: Payer) -> Self {
        Self { payer, ..self }
    }

    pub(crate) fn evictable(self) -> Self {
        Self { retention: Retention::Evictable, ..self }
    }

    pub(super) fn charge(&self) -> Charge<'_> {
        let mut charge = self.charge_of_memory();
        charge.used.objects = 1;
        if self.spilled.is_some() {
            charge.used.add(self.charge_of_disk().used);
        }
        charge
    }

    pub(super) const fn charge_of_memory(&self) -> Charge<'_> {
        let memory_bytes = self.extent.length_bytes;
        let used = QuotaUse { memory_bytes, disk_bytes: 0, objects: 0 };
        Charge { payer: self.payer, id: &self.id, used }
    }

    pub(super) const fn charge_of_disk(&self) -> Charge<'_> {
        let disk_bytes = SpillRecord::length_bytes(self.size_bytes);
        let used = QuotaUse { memory_bytes: 0, disk_bytes, objects: 0 };
        Charge { payer: self.payer, id: &self.id, used }
    }

    pub(crate) const fn is_reduced(&self) -> bool {
        self.is_reduced
    }

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

    pub(crate) const fn is_received(&self) -> bool {
        matches!(self.phase, Phase::Receiving(_))
    }

    pub(crate) fn awaits_sender(&self) -> bool {
        matches!(&self.phase, Phase::Receiving(reception) if reception.pull.is_none())
    }

    pub(super) fn pull(&self) -> Option<&ActivePull> {
        match &self.phase {
            Phase::Receiving(reception) => reception.pull.as_ref(),
            _ => None,
        }
    }

    pub(super) fn pull_mut(&mut self) -> Option<&mut ActivePull> {
        match &mut self.phase {
            Phase::Receiving(reception) => reception.pull.as_mut(),
            _ => None,
        }
    }

    pub(crate) fn sender(&self) -> Option<&NodeId> {
        self.pull().map(|active| &active.sender)
    }

    pub(crate) const fn combination(&self) -> Option<CombineId> {
        match self.phase {
            Phase::Combining { combine } => combine,
            _ => None,
        }
    }

    pub(crate) const fn location_state(&self) -> LocationState {
        match self.phase {
            Phase::Writing { .. } | Phase::Combining { .. } => LocationState::Producing,
            Phase::Receiving(_) => LocationState::Partial,
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

    pub(crate) fn is_produced_here(&self) -> bool {
        matches!(self.phase, Phase::Writing { .. } | Phase::Combining { .. })
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.references == 0
            && self.serves == 0
            && self.pull().is_none()
            && self.combination().is_none()
            && !self.is_comparing
            && !self.is_in_motion()
    }
}
