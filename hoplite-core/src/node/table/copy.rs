//! One copy: what it is, how far it is, and who uses it.

use super::super::publication::Publication;
use super::super::{ClientId, CombineId, PullId};
use crate::error::Error;
use crate::extent::Extent;
use crate::id::{NodeId, ObjectId, PutId};
use crate::metadata::Metadata;
use crate::shard::{GrantId, Retention};

/// How far a copy is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum Phase {
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
pub(in super::super) struct ActivePull {
    pub(in super::super) pull: PullId,
    pub(in super::super) sender: NodeId,
    /// Who granted the slot, and which slot; `None` once that shard's session is lost.
    pub(in super::super) shard: usize,
    pub(in super::super) grant: Option<GrantId>,
    /// How many bytes were there when it started.
    pub(in super::super) offset_bytes: u64,
}

/// Who is told of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Visibility {
    /// The directory.
    Public,
    /// Nobody: only those who were told its name ask for it.
    Private,
}

/// One copy. Only the table changes it.
#[derive(Debug)]
pub(in super::super) struct LocalCopy {
    pub(in super::super) id: ObjectId,
    pub(in super::super) put: PutId,
    pub(in super::super) size_bytes: u64,
    pub(in super::super) metadata: Metadata,
    pub(in super::super) extent: Extent,
    pub(in super::super) phase: Phase,
    pub(in super::super) retention: Retention,
    pub(in super::super) visibility: Visibility,
    /// Why it left the index; what its writer is told.
    pub(in super::super) detached: Option<Error>,
    pub(in super::super) references: u32,
    pub(in super::super) serves: u32,
    /// A comparison reads the bytes.
    pub(super) is_comparing: bool,
    /// What the directory knows of it.
    publication: Publication,
}

impl LocalCopy {
    /// A copy that nobody uses yet. What a client writes or a reduce makes is a put: it stays, and the directory has yet to
    /// accept it.
    pub(in super::super) fn begin(
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
    pub(in super::super) const fn received_bytes(&self) -> u64 {
        match self.phase {
            Phase::Receiving { valid_bytes, .. } => valid_bytes,
            _ => 0,
        }
    }

    /// What the directory knows of it.
    pub(in super::super) const fn publication(&self) -> &Publication {
        &self.publication
    }

    pub(in super::super) const fn publication_mut(&mut self) -> &mut Publication {
        &mut self.publication
    }

    pub(in super::super) fn is_comparing(&self) -> bool {
        self.is_comparing
    }

    pub(in super::super) fn is_complete(&self) -> bool {
        self.phase == Phase::Complete
    }

    pub(in super::super) fn is_pinned(&self) -> bool {
        self.retention == Retention::Pinned
    }

    /// Whether it becomes complete by itself, without any other node.
    pub(in super::super) fn is_produced_here(&self) -> bool {
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
