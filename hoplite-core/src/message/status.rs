use super::{SpillConfig, SpillStatus};
use crate::id::NodeId;
use crate::limits::Limits;
use crate::placement::ShardMap;
use crate::plan::collective::SchedulePreference;
use crate::shard::Placed;
use crate::topology::place::Path;

/// Settings of a [`Node`](crate::node::Node).
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the names say it")]
pub struct NodeConfig {
    pub node: NodeId,
    pub path: Path,
    pub capacity_bytes: u64,
    pub limits: Limits,
    pub shards: ShardMap,
    /// Preferred schedule of allreduces that this store coordinates.
    pub allreduce_schedule: SchedulePreference,
    /// Number of copies of an object whose put requests none.
    pub replicas: u8,
    pub spill: Option<SpillConfig>,
    /// `true` if a directory shard for other stores runs in this process.
    pub serves_directory: bool,
    /// Makes put ids unique among all runs and nodes.
    pub seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "the names say it")]
pub struct NodeStatus {
    pub capacity_bytes: u64,
    pub free_bytes: u64,
    pub pinned_bytes: u64,
    pub evictable_bytes: u64,
    pub copies: usize,
    pub pulls: usize,
    /// Memory reserved for targets of reduces.
    pub reserved_bytes: u64,
    /// Reduces that this store coordinates.
    pub reductions: usize,
    /// Hops that this store performs, including failed ones before their release.
    pub hops: usize,
    pub evictions: u64,
    /// Objects whose time to live has ended here.
    pub expired: u64,
    /// Objects deleted here because no client held their owner for the grace period.
    pub abandoned: u64,
    pub put_conflicts: u64,
    pub over_quota_puts: u64,
    /// Hops, at all stores, of the reduces coordinated here.
    pub directed_hops: usize,
    pub combinations: usize,
    pub is_draining: bool,
    /// Calls, transfers, reduces and hops that wait for memory.
    pub waiting_for_room: usize,
    /// Node's groups: from its labels at version zero, later from a probe.
    pub place: Placed,
    pub spill: SpillStatus,
}
