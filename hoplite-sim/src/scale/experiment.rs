//! The description of an experiment.

use std::time::Duration;

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workload {
    /// The first node has put an object; all others get it.
    Broadcast,
    /// Every node puts an object; the first one reduces them.
    Reduce,
    /// As [`Self::Reduce`], and all get the target while it grows: the general path of an allreduce. Sessions are not simulated.
    Allreduce,
}

/// When nodes take part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrivals {
    /// All at once; what is reduced was put before.
    Together,
    /// One after the other in equal steps, the last one this long after the first; each puts what is reduced when it
    /// arrives.
    Staggered(Duration),
}

/// What is simulated.
#[derive(Debug, Clone, PartialEq)]
pub struct Experiment {
    /// How many stores.
    pub nodes: usize,
    /// How many shards. An id belongs to two of them.
    pub shards: usize,
    /// What is done.
    pub workload: Workload,
    /// When nodes take part.
    pub arrivals: Arrivals,
    /// Which share of the nodes fails for good, in percent, at any time between the start and the bound. Reduces are asked
    /// for as many sources as there are nodes that do not fail.
    pub failures_percent: f64,
    /// In how many racks the nodes say that they are, in turn; zero if they say nothing. Links are alike in any case.
    pub racks: usize,
    /// The number of receivers that one copy serves at once; the daemons allow one.
    pub slots: u32,
    /// From which failures and names follow.
    pub seed: u64,
    /// The size of each object.
    pub size_bytes: u64,
    /// What a link carries in each direction.
    pub bytes_per_second: u64,
    /// From the sending of a byte to its arrival.
    pub latency: Duration,
    /// The time that a shard is busy with each message that it receives.
    pub shard_service: Duration,
    /// The time to give up, after the start.
    pub time_limit: Duration,
}
