//! The results of an experiment, and the bound for comparison.

use std::time::Duration;

use super::Workload;
use super::workload::World;
use crate::cluster::{Counts, ShardLoad};

/// The result of a run, which is always the same for the same experiment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The time from the start until the last surviving node was done.
    pub completion: Duration,
    /// The lower bound of the time; see [`Experiment::bound`](super::Experiment::bound).
    pub bound: Duration,
    /// The longest time of a node from its own arrival; for a reduce, from the start.
    pub longest: Duration,
    /// The number of nodes that were done.
    pub done: usize,
    /// The number of surviving nodes that were not done, because their calls failed or timed out.
    pub undone: usize,
    /// The first error of a call and its node, if there was one.
    pub error: Option<String>,
    /// The plan of a reduce.
    pub plan: Option<String>,
    /// The number of repairs of a reduce.
    pub mendings: u32,
    /// The number of restarts of a reduce's target.
    pub restarts: u32,
    /// The load of each shard.
    pub shards: Vec<ShardLoad>,
    /// Counts since the start.
    pub counts: Counts,
    /// The number of operations: gets, and sources of a reduce.
    pub operations: u64,
}

impl Outcome {
    /// Returns the ratio of the completion time to the bound.
    pub fn times_bound(&self) -> f64 {
        self.completion.as_secs_f64() / self.bound.as_secs_f64()
    }

    /// Returns the number of messages from and to shards per operation.
    pub fn messages_per_operation(&self) -> f64 {
        let messages: u64 = self.shards.iter().map(|shard| shard.received + shard.sent).sum();
        messages as f64 / self.operations.max(1) as f64
    }

    /// Returns the load of the shard that received the most messages.
    pub fn busiest_shard(&self) -> ShardLoad {
        self.shards.iter().copied().max_by_key(|shard| shard.received).unwrap_or_default()
    }
}

/// The real cost of decisions on this computer, which differs from run to run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    /// The time of the whole simulation.
    pub wall: Duration,
    /// The mean time in which a shard handles a message.
    pub shard_message: Duration,
    /// The time of all decisions of the first node, which coordinates reduces.
    pub coordinator: Duration,
}

impl World {
    pub(super) fn conclude(self, wall: Duration) -> (Outcome, Cost) {
        let calls = &self.app;
        let nodes = self.stores.len() as u64;
        let operations = match self.app.experiment.workload {
            Workload::Broadcast => nodes - 1,
            Workload::Reduce => nodes,
            Workload::Allreduce => 2 * nodes - 1,
        };
        let end = calls.last_done().unwrap_or(self.elapsed());
        let errors = calls.errors();
        let (mendings, restarts) = self.repairs();
        let outcome = Outcome {
            completion: end.saturating_sub(self.app.started),
            bound: self.app.experiment.bound(),
            longest: calls.longest(),
            done: calls.done(),
            undone: calls.awaited() + errors.len(),
            error: errors.first().map(|(store, error)| format!("node {store}: {error}")),
            plan: self.plan(),
            mendings,
            restarts,
            shards: self.shards.iter().map(|host| host.load).collect(),
            counts: self.counts,
            operations,
        };
        let handled: u64 = self.shards.iter().map(|host| host.load.received).sum();
        let thought: Duration = self.shards.iter().map(|host| host.thought).sum();
        let cost = Cost {
            wall,
            shard_message: thought.div_f64(handled.max(1) as f64),
            coordinator: self.stores[0].thought,
        };
        (outcome, cost)
    }
}
