//! What is found, and the bound that it stands beside.

use std::time::Duration;

use super::Workload;
use super::workload::World;
use crate::cluster::{Counts, ShardLoad};

/// What a run came to. The same for the same experiment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// From the start until the last one who did not fail was done.
    pub completion: Duration,
    /// The least that it could have taken; see [`Experiment::bound`](super::Experiment::bound).
    pub bound: Duration,
    /// The time that the one took that took longest from its own arrival; of a reduce, from the start.
    pub longest: Duration,
    /// How many were done.
    pub done: usize,
    /// How many were not, though they did not fail: those whose calls failed, or ran out of time.
    pub undone: usize,
    /// The first error that a call was answered with, if there was one, and where.
    pub error: Option<String>,
    /// How a reduce was planned.
    pub plan: Option<String>,
    /// How often a reduce was mended.
    pub mendings: u32,
    /// How often the target of a reduce had to be begun anew.
    pub restarts: u32,
    /// The load of each shard.
    pub shards: Vec<ShardLoad>,
    /// What happened since the start, by counts.
    pub counts: Counts,
    /// Operations: gets, and sources of a reduce.
    pub operations: u64,
}

impl Outcome {
    /// How many times as long as the bound it took.
    pub fn times_bound(&self) -> f64 {
        self.completion.as_secs_f64() / self.bound.as_secs_f64()
    }

    /// Messages from and to shards, for each operation.
    pub fn messages_per_operation(&self) -> f64 {
        let messages: u64 = self.shards.iter().map(|shard| shard.received + shard.sent).sum();
        messages as f64 / self.operations.max(1) as f64
    }

    /// The shard that received most.
    pub fn busiest_shard(&self) -> ShardLoad {
        self.shards.iter().copied().max_by_key(|shard| shard.received).unwrap_or_default()
    }
}

/// What the decisions cost on this computer. Differs from run to run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    /// The whole simulation.
    pub wall: Duration,
    /// The mean time for a shard to handle a message.
    pub shard_message: Duration,
    /// All that the first node, which coordinates reduces, had to decide.
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
