//! How Hoplite behaves with thousands of nodes: its real decisions over a fluid model of the network.
//!
//! # What is real
//! * Every store is a real [`Node`](hoplite_core::node::Node), every shard a real [`Shard`](hoplite_core::shard::Shard).
//!   They exchange the messages that the daemons exchange, with the planner of reduces, the choice of senders, retries,
//!   mending and deadlines that the daemons have.
//! * The schedule of a reduce is planned for the link that is simulated, as a store does once it has measured its links.
//!
//! # What is a model
//! * **Bytes** flow as in pipes: a transfer has a rate, and is told when the rate of what it reads changes. Each node can
//!   send and receive at the link's rate at the same time; the switch between them is never full. Transfers that share a
//!   direction of a node's link have equal shares. What one of them cannot use is not given to the others, so what is found
//!   is late rather than early when many transfers share a link; the broadcasts and reduces here hardly do.
//! * **Latency**: a byte that was sent arrives a link's latency later. A relay passes on what it has received one block
//!   later, since it checks a block before it forwards it; blocks are as long as the stores make them, about a millisecond.
//!   A connection between stores costs a round trip before its first request.
//! * **Shards** handle one message after the other, each in the same time, 10 us by default: that is the 100,000 operations
//!   per second of DESIGN, section 12, and not what the code takes here. That is measured too, beside the model. Messages
//!   between stores and shards are charged no bandwidth, stores no time to think, and workers none to write.
//! * **Failures** are those of processes: peers hear of them after a link's latency, as from a connection that is reset. The
//!   node that puts what is broadcast, or receives what is reduced, is spared.
//!
//! One thread, one agenda, one seed: an [`Experiment`] always has the same [`Outcome`]. How long the machines took to
//! decide, on this computer, is a [`Cost`] and differs from run to run.
//!
//! * `world`: the clock, the agenda, the hosts.
//! * `control`: messages between stores and shards.
//! * `stores`: what the effects of stores do.
//! * `flow`: transfers, and how they share links. `line`: how bytes grow.
//! * `hops`: stores that direct hops of other stores.
//! * `workload`: who calls what when, and what becomes of it.
//! * `outcome`: what is found, and the bound that it stands beside.

mod control;
mod flow;
mod hops;
mod line;
mod outcome;
mod stores;
mod workload;
mod world;

use std::time::Duration;

pub use outcome::{Cost, Outcome, ShardLoad};

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workload {
    /// The first node has put an object; all others get it.
    Broadcast,
    /// Every node puts an object; the first one reduces them.
    Reduce,
    /// As [`Self::Reduce`], and all get the target while it grows: what `Client::allreduce` does below the size from which
    /// it divides objects into segments.
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
    /// How many receivers one copy serves at once; the daemons allow one.
    pub slots: u32,
    /// From which failures and names follow.
    pub seed: u64,
    /// The size of each object.
    pub size_bytes: u64,
    /// What a link carries in each direction.
    pub bytes_per_second: u64,
    /// From the sending of a byte to its arrival.
    pub latency: Duration,
    /// How long a shard is busy with each message that it receives.
    pub shard_service: Duration,
    /// When to give up, after the start.
    pub time_limit: Duration,
}

impl Default for Experiment {
    /// A broadcast of 64 MiB to 100 nodes that arrive together, over 10 Gbit/s and 100 us.
    fn default() -> Self {
        Self {
            nodes: 100,
            shards: 4,
            workload: Workload::Broadcast,
            arrivals: Arrivals::Together,
            failures_percent: 0.0,
            slots: 1,
            seed: 1,
            size_bytes: 64 << 20,
            bytes_per_second: 1_250_000_000,
            latency: Duration::from_micros(100),
            shard_service: Duration::from_micros(10),
            time_limit: Duration::from_secs(600),
        }
    }
}

impl Experiment {
    /// Runs the experiment.
    ///
    /// # Panics
    /// If it makes no sense: fewer than two nodes, no shard, an empty object, no bandwidth. Or if a state machine asks for
    /// what cannot be.
    pub fn run(&self) -> (Outcome, Cost) {
        assert!(self.nodes >= 2 && self.shards >= 1, "one node has nobody to talk to");
        assert!(self.size_bytes >= 4096 && self.bytes_per_second >= 4096, "bytes take time");
        world::World::new(self.clone()).run()
    }
}
