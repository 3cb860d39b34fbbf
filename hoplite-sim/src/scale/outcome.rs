use std::time::Duration;

use super::Workload;
use super::workload::World;
use crate::cluster::{Counts, ShardLoad};

/// Simulated result, equal in each run of an experiment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Time until the last surviving node is done.
    pub completion: Duration,
    /// Lower bound: [`Experiment::bound`](super::Experiment::bound).
    pub bound: Duration,
    /// Longest time from a node's arrival to its end; for a reduce, from the start.
    pub longest: Duration,
    /// Nodes whose calls succeeded.
    pub done: usize,
    /// Surviving nodes whose calls failed or timed out.
    pub undone: usize,
    /// First error and its node.
    pub error: Option<String>,
    /// Plan of the reduce, in words.
    pub plan: Option<String>,
    /// Repairs of the reduce's tree after failures.
    pub mendings: u32,
    /// Restarts of the reduce's target.
    pub restarts: u32,
    /// Load of each shard.
    pub shards: Vec<ShardLoad>,
    /// Counts of events since the start.
    pub counts: Counts,
    /// Number of gets, or of the reduce's sources.
    pub operations: u64,
}

impl Outcome {
    /// Completion time divided by the bound.
    pub fn times_bound(&self) -> f64 {
        self.completion.as_secs_f64() / self.bound.as_secs_f64()
    }

    /// Shards' messages, divided by [`operations`](Self::operations).
    pub fn messages_per_operation(&self) -> f64 {
        let messages: u64 = self.shards.iter().map(|shard| shard.received + shard.sent).sum();
        messages as f64 / self.operations.max(1) as f64
    }

    /// Shard with the most messages.
    pub fn busiest_shard(&self) -> ShardLoad {
        self.shards.iter().copied().max_by_key(|shard| shard.received).unwrap_or_default()
    }
}

/// Real time of the simulation, which differs from run to run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    /// Time of the whole simulation.
    pub wall: Duration,
    /// A shard's mean time per message.
    pub shard_message: Duration,
    /// Time of the first node's decisions. This node coordinates reduces.
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
