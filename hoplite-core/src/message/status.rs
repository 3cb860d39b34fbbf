//! The settings of a node, and what it tells of itself.

use crate::id::NodeId;
use crate::limits::Limits;
use crate::placement::ShardMap;
use crate::plan::collective::SchedulePreference;
use crate::shard::Placed;
use crate::topology::place::Path;

/// What a [`Node`](crate::node::Node) is told at its start.
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
    /// How the sessions of allreduces exchange data that this node coordinates.
    pub allreduce_schedule: SchedulePreference,
    /// Makes the [`PutId`](crate::id::PutId)s of this run differ from those of every other run and node.
    pub seed: u64,
}

/// What is in a store, for status reports and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NodeStatus {
    /// The size of the arena.
    pub capacity_bytes: u64,
    /// How much of it is free.
    pub free_bytes: u64,
    /// How much holds pinned copies.
    pub pinned_bytes: u64,
    /// How much could be evicted at once.
    pub evictable_bytes: u64,
    /// The number of copies.
    pub copies: usize,
    /// How many pulls are under way.
    pub pulls: usize,
    /// How much is set aside for targets of reduces that have not begun to grow.
    pub reserved_bytes: u64,
    /// How many reduces this store coordinates.
    pub reductions: usize,
    /// The number of hops that it performs, for itself or others, failed ones included that were not released yet.
    pub hops: usize,
    /// The number of copies that were evicted so far.
    pub evictions: u64,
    /// The number of puts that met another put of the same id, so far.
    pub put_conflicts: u64,
    /// The number of hops that are performed for its reduces, here or elsewhere.
    pub directed_hops: usize,
    /// How many combinations are under way.
    pub combinations: usize,
    /// How many calls, fetches, hops and reduces wait for room.
    pub waiting_for_room: usize,
    /// Where it is, and by which version of the measured places; of version zero if it was told none.
    pub place: Placed,
}
