//! The settings and the status of a node.

use super::{SpillConfig, SpillStatus};
use crate::id::NodeId;
use crate::limits::Limits;
use crate::placement::ShardMap;
use crate::plan::collective::SchedulePreference;
use crate::shard::Placed;
use crate::topology::place::Path;

/// The settings of a [`Node`](crate::node::Node).
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// The name of this node.
    pub node: NodeId,
    /// The groups of nodes that it is in.
    pub path: Path,
    /// The size of the arena.
    pub capacity_bytes: u64,
    /// The limits to enforce.
    pub limits: Limits,
    /// The shards of the directory.
    pub shards: ShardMap,
    /// The schedule of allreduces that this node coordinates.
    pub allreduce_schedule: SchedulePreference,
    /// The number of copies of an object whose put does not say how many it wants.
    pub replicas: u8,
    /// The settings of spilling; `None` if the store does not spill.
    pub spill: Option<SpillConfig>,
    /// Makes the [`PutId`](crate::id::PutId)s of this run unique among all runs and nodes.
    pub seed: u64,
}

/// The contents of a store, for status reports and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NodeStatus {
    /// The size of the arena.
    pub capacity_bytes: u64,
    /// The size of the free part.
    pub free_bytes: u64,
    /// The size of pinned copies.
    pub pinned_bytes: u64,
    /// The size of evictable copies.
    pub evictable_bytes: u64,
    /// The number of copies.
    pub copies: usize,
    /// The number of pulls under way.
    pub pulls: usize,
    /// The size of room that is reserved for targets of reduces.
    pub reserved_bytes: u64,
    /// The number of reduces that this store coordinates.
    pub reductions: usize,
    /// The number of hops that it performs, including failed hops that were not released yet.
    pub hops: usize,
    /// The number of copies that were evicted so far.
    pub evictions: u64,
    /// The number of objects whose time to live has ended here so far.
    pub expired: u64,
    /// The number of objects that were deleted here so far because their owner was gone.
    pub abandoned: u64,
    /// The number of puts that met another put of the same id, so far.
    pub put_conflicts: u64,
    /// The number of hops that are performed for its reduces, here or elsewhere.
    pub directed_hops: usize,
    /// The number of combinations under way.
    pub combinations: usize,
    /// `true` while the store moves its pinned copies to other stores.
    pub is_draining: bool,
    /// The number of calls, fetches, hops and reduces that wait for room.
    pub waiting_for_room: usize,
    /// The place of the node, with the version of the measured places; version zero if the node was
    /// told no place.
    pub place: Placed,
    /// The state of spilling.
    pub spill: SpillStatus,
}
