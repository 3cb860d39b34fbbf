//! The parts of the state of a reduction: its hops, its target, its failures, and its slow links.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use crate::extent::Extent;
use crate::id::{NodeId, ObjectId, PutId};
use crate::message::{CopyId, HopId};
use crate::plan::reduce::VertexId;
use crate::shard::Location;
use crate::time::Time;
use crate::topology::place::Path;

/// The hop of a vertex.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) node: NodeId,
    pub(super) address: SocketAddr,
    /// The groups that the node is in, and the peers to which its links are slow.
    pub(super) path: Path,
    pub(super) slow_peers: Vec<NodeId>,
    /// The time at which the vertex joined.
    pub(super) joined_at: Time,
    pub(super) phase: RunPhase,
    /// The name of the output.
    pub(super) output: ObjectId,
    pub(super) put: PutId,
    pub(super) offset_bytes: u64,
}

impl Run {
    /// A vertex at this node whose hop was not asked for.
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

    /// Another vertex at the same node, which takes in nothing more.
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

    /// Changes the phase. Returns the hop that was requested before.
    pub(super) fn turn(&mut self, phase: RunPhase) -> Option<HopId> {
        std::mem::replace(&mut self.phase, phase).hop()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RunPhase {
    /// Not requested. A plain vertex stays planned.
    Planned,
    /// Requested.
    Running(HopId),
    /// All its output is there.
    Complete(HopId),
    /// It failed, and must be ended.
    Failed(HopId),
    /// Its consumer has all of it, so it was ended.
    Released,
}

impl RunPhase {
    /// Returns `true` if it has taken in all that it ever needs.
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

/// From where the target, or a hop, takes an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    /// From a vertex.
    Vertex(VertexId),
    /// From a source that is at the same node.
    Source(usize),
}

/// The puts of sources that went into a target.
pub(super) type Ingredients = BTreeSet<(usize, PutId)>;

/// The progress of the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TargetState {
    /// Not begun.
    None,
    /// There is room for it.
    Reserved { room: Extent },
    /// Being combined.
    Combining { copy: CopyId, ingredients: Ingredients, streams: Vec<Stream> },
    /// Waits until it can go on from the first `valid_bytes`.
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

/// Failures that are not repaired yet, and counts of repairs.
#[derive(Debug, Default)]
pub(super) struct Faults {
    /// Sources that cannot be had where they were.
    pub(super) sources: BTreeSet<usize>,
    /// Vertices whose hops have to restart.
    pub(super) vertices: BTreeSet<VertexId>,
    /// Vertices whose node cannot combine.
    pub(super) unfit: BTreeSet<VertexId>,
    /// `true` if one of the sources had never failed where it was. Such failures are no reason to
    /// wait, because a node dies once.
    pub(super) is_news: bool,
    pub(super) repair_at: Option<Time>,
    /// The number of bytes that the target had at the last repair.
    pub(super) valid_bytes: u64,
    /// Repairs in a row that brought no byte, since the latest news.
    pub(super) attempts: u32,
    /// The number of repairs.
    pub(super) repairs: u32,
    /// The number of times that the target was superseded.
    pub(super) restarts: u32,
}

impl Faults {
    pub(super) fn is_empty(&self) -> bool {
        self.sources.is_empty() && self.vertices.is_empty() && self.unfit.is_empty()
    }
}

/// The way of a reduce around slow links.
#[derive(Debug, Default)]
pub(super) struct Rerouting {
    /// `true` if a participating node has reported slow links.
    pub(super) are_sought: bool,
    /// A remark for the record of the reduce, if slow links matter.
    pub(super) remark: Option<&'static str>,
}
