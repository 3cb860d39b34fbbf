use std::time::Duration;

use super::FlowCap;

/// Collective of an experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workload {
    /// All nodes get an object of the first node.
    Broadcast,
    /// The first node reduces an object of each node.
    Reduce,
    /// Reduce whose target all nodes get while it grows.
    Allreduce,
}

/// Arrival times of the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrivals {
    /// All at once, after the puts.
    Together,
    /// One after the other, in equal steps over this time; each node puts when it arrives.
    Staggered(Duration),
}

/// Simulated collective and its parameters.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "most names say it")]
pub struct Experiment {
    /// Number of stores.
    pub nodes: usize,
    pub shards: usize,
    /// Simulated collective.
    pub workload: Workload,
    /// Arrival times of the nodes.
    pub arrivals: Arrivals,
    /// Percentage of nodes that fail for good, at random times before [`Experiment::bound`].
    /// Reduces request a source per survivor.
    pub failures_percent: f64,
    /// Racks in the nodes' labels, in turn; zero for no labels. All links are alike.
    pub racks: usize,
    /// Receivers that one copy serves at once; the daemons allow one.
    pub slots: u32,
    /// Limit of each connection; `None` if one connection fills a link.
    pub flow_cap: Option<FlowCap>,
    /// `true` to measure a second run, after shards have learnt the delay of a hop, and stores
    /// their lanes.
    pub is_repeated: bool,
    pub seed: u64,
    pub size_bytes: u64,
    /// Rate of a link in each direction.
    pub bytes_per_second: u64,
    /// From one node to another.
    pub latency: Duration,
    /// A shard's time per message.
    pub shard_service: Duration,
    pub time_limit: Duration,
}
