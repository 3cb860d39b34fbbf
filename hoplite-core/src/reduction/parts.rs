use std::collections::BTreeSet;
use std::net::SocketAddr;

use crate::extent::Extent;
use crate::id::{NodeId, ObjectId, PutId};
use crate::message::{CopyId, HopId};
use crate::plan::reduce::VertexId;
use crate::shard::Location;
use crate::time::Time;
use crate::topology::place::Path;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) node: NodeId,
    pub(super) address: SocketAddr,
    pub(super) path: Path,
    pub(super) slow_peers: Vec<NodeId>,
    pub(super) joined_at: Time,
    pub(super) phase: RunPhase,
    pub(super) output: ObjectId,
    pub(super) put: PutId,
    pub(super) offset_bytes: u64,
}

impl Run {
    pub(super) fn planned(location: &Location, joined_at: Time) -> Self {
        Self {
            node: location.node.clone(),
            address: location.data_address,
            path: location.path,
            slow_peers: location.slow_peers.clone(),
            joined_at,
            phase: RunPhase::Planned,
            output: ObjectId::of_hop(PutId(0)),
            put: PutId(0),
            offset_bytes: 0,
        }
    }

    pub(super) fn planned_again(&self) -> Self {
        Self {
            joined_at: Time::ZERO,
            phase: RunPhase::Planned,
            output: ObjectId::of_hop(PutId(0)),
            put: PutId(0),
            offset_bytes: 0,
            ..self.clone()
        }
    }

    pub(super) fn set_phase(&mut self, phase: RunPhase) -> Option<HopId> {
        std::mem::replace(&mut self.phase, phase).hop()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RunPhase {
    /// The hop is not requested. A vertex that only sends its source stays planned.
    Planned,
    Running(HopId),
    Complete(HopId),
    Failed(HopId),
    /// The hop has ended, because the vertex's consumer has the whole output.
    Released,
}

impl RunPhase {
    pub(super) const fn has_all(self) -> bool {
        matches!(self, Self::Complete(_) | Self::Released)
    }

    pub(super) const fn hop(self) -> Option<HopId> {
        match self {
            Self::Running(hop) | Self::Complete(hop) | Self::Failed(hop) => Some(hop),
            Self::Planned | Self::Released => None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    Vertex(VertexId),
    /// Index of a source at the node that combines it.
    Source(usize),
}

pub(super) type InputPuts = BTreeSet<(usize, PutId)>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TargetState {
    None,
    Reserved { extent: Extent },
    Combining { copy: CopyId, input_puts: InputPuts, streams: Vec<Stream> },
    Stopped { copy: CopyId, input_puts: InputPuts, valid_bytes: u64 },
}

impl TargetState {
    pub(super) const fn copy(&self) -> Option<CopyId> {
        match self {
            Self::None | Self::Reserved { .. } => None,
            Self::Combining { copy, .. } | Self::Stopped { copy, .. } => Some(*copy),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Faults {
    /// Sources that failed at the node where they joined.
    pub(super) sources: BTreeSet<usize>,
    pub(super) vertices: BTreeSet<VertexId>,
    pub(super) unfit: BTreeSet<VertexId>,
    /// `true` if a source failed for the first time at its node. The next repair then does not back
    /// off.
    pub(super) is_first_failure: bool,
    pub(super) repair_at: Option<Time>,
    pub(super) valid_bytes: u64,
    /// Repairs since the last progress or new failure.
    pub(super) attempts: u32,
    pub(super) repairs: u32,
    pub(super) restarts: u32,
}

impl Faults {
    pub(super) fn is_empty(&self) -> bool {
        self.sources.is_empty() && self.vertices.is_empty() && self.unfit.is_empty()
    }
}

#[derive(Debug, Default)]
pub(super) struct Rerouting {
    pub(super) is_enabled: bool,
    pub(super) remark: Option<&'static str>,
}
