//! Parts of a reduction's state: hops, target, failures, slow links.

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
    /// The node's groups and slow peers.
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

    /// Makes another vertex at the node, which takes in nothing more.
    pub(super) fn beside(&self) -> Self {
        Self {
            joined_at: Time::ZERO,
            phase: RunPhase::Planned,
            output: ObjectId::of_hop(PutId(0)),
            put: PutId(0),
            offset_bytes: 0,
            ..self.clone()
        }
    }

    /// Changes the phase. Returns the previous hop.
    pub(super) fn turn(&mut self, phase: RunPhase) -> Option<HopId> {
        std::mem::replace(&mut self.phase, phase).hop()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RunPhase {
    /// Not requested. A plain vertex stays planned.
    Planned,
    Running(HopId),
    Complete(HopId),
    /// It must be ended.
    Failed(HopId),
    /// Ended, because its consumer has all of it.
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

/// An input of the target or of a hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    Vertex(VertexId),
    /// A source at the same node.
    Source(usize),
}

/// The puts that went into a target.
pub(super) type Ingredients = BTreeSet<(usize, PutId)>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TargetState {
    None,
    Reserved { room: Extent },
    Combining { copy: CopyId, ingredients: Ingredients, streams: Vec<Stream> },
    Stopped { copy: CopyId, ingredients: Ingredients, valid_bytes: u64 },
}

impl TargetState {
    pub(super) const fn copy(&self) -> Option<CopyId> {
        match self {
            Self::None | Self::Reserved { .. } => None,
            Self::Combining { copy, .. } | Self::Stopped { copy, .. } => Some(*copy),
        }
    }
}

/// Failures to repair, and counts of repairs.
#[derive(Debug, Default)]
pub(super) struct Faults {
    /// Sources that failed where they were.
    pub(super) sources: BTreeSet<usize>,
    /// Vertices to restart.
    pub(super) vertices: BTreeSet<VertexId>,
    /// Vertices at nodes that cannot combine.
    pub(super) unfit: BTreeSet<VertexId>,
    /// `true` for a first failure of a source at its place. It is no reason to wait, because a node
    /// dies once.
    pub(super) is_news: bool,
    pub(super) repair_at: Option<Time>,
    /// The target's bytes at the last repair.
    pub(super) valid_bytes: u64,
    /// Repairs without progress since the latest news.
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
    /// `true` if a node has reported slow links.
    pub(super) are_sought: bool,
    /// For the record, if slow links matter.
    pub(super) remark: Option<&'static str>,
}
