//! The description of an experiment.

use std::time::Duration;

/// The collective of an experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workload {
    /// All nodes get the first one's object.
    Broadcast,
    /// The first node reduces every node's object.
    Reduce,
    /// A reduce whose target all nodes get while it grows: an allreduce's general path.
    Allreduce,
}

/// Arrivals of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrivals {
    /// All at once, after the puts.
    Together,
    /// In equal steps over this time; each puts when it arrives.
    Staggered(Duration),
}

/// An experiment.
#[derive(Debug, Clone, PartialEq)]
pub struct Experiment {
    /// Stores.
    pub nodes: usize,
    /// Shards.
    pub shards: usize,
    /// The collective.
    pub workload: Workload,
    /// The arrivals.
    pub arrivals: Arrivals,
    /// The share of permanent failures, at random times before the bound. Reduces request as many
    /// sources as nodes survive.
    pub failures_percent: f64,
    /// Racks in the labels, in turn; zero for none. Links are alike.
    pub racks: usize,
    /// Receivers per copy at once; the daemons allow one.
    pub slots: u32,
    /// Of failures and names.
    pub seed: u64,
    /// Each object's size.
    pub size_bytes: u64,
    /// A link's rate in each direction.
    pub bytes_per_second: u64,
    /// A byte's travel.
    pub latency: Duration,
    /// A shard's time per message.
    pub shard_service: Duration,
    /// The time to give up.
    pub time_limit: Duration,
}
