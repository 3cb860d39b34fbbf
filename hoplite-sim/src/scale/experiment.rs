//! The description of an experiment.

use std::time::Duration;

/// The collective of an experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workload {
    /// All nodes except the first get an object that the first one has put.
    Broadcast,
    /// Every node puts an object, and the first one reduces them.
    Reduce,
    /// Like [`Self::Reduce`], and all nodes get the target while it grows: the general path of an
    /// allreduce. Sessions are not simulated.
    Allreduce,
}

/// The arrival of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrivals {
    /// All nodes arrive at once. Sources were put before.
    Together,
    /// Nodes arrive one after the other in equal steps, the last one this long after the first.
    /// Each puts its source when it arrives.
    Staggered(Duration),
}

/// The parameters of an experiment.
#[derive(Debug, Clone, PartialEq)]
pub struct Experiment {
    /// The number of stores.
    pub nodes: usize,
    /// The number of shards. An id belongs to two of them.
    pub shards: usize,
    /// The collective.
    pub workload: Workload,
    /// The arrival of nodes.
    pub arrivals: Arrivals,
    /// The share of nodes that fail permanently, in percent, at random times between the start and
    /// the bound. Reduces request as many sources as there are nodes that do not fail.
    pub failures_percent: f64,
    /// The number of racks in the nodes' labels, in turn; zero for no labels. Links are alike in
    /// any case.
    pub racks: usize,
    /// The number of receivers that one copy serves at once; the daemons allow one.
    pub slots: u32,
    /// The seed of failures and names.
    pub seed: u64,
    /// The size of each object.
    pub size_bytes: u64,
    /// The rate of a link in each direction.
    pub bytes_per_second: u64,
    /// The time from the sending of a byte to its arrival.
    pub latency: Duration,
    /// Time for which a shard is busy with each received message.
    pub shard_service: Duration,
    /// The time after the start at which the experiment is given up.
    pub time_limit: Duration,
}
