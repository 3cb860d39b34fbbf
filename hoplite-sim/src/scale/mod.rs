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
//! * **Shards** handle one message after the other, each in the same time, 10 us by default: that is the 100,000 messages
//!   per second that a shard is meant to handle, and not what the code takes here. That is measured too, beside the model.
//!   Messages between stores and shards are charged no bandwidth, stores no time to think, and workers none to write.
//! * **Failures** are those of processes: peers hear of them after a link's latency, as from a connection that is reset. The
//!   node that puts what is broadcast, or receives what is reduced, is spared.
//!
//! One thread, one agenda, one seed: an [`Experiment`] always has the same [`Outcome`]. How long the machines took to
//! decide, on this computer, is a [`Cost`] and differs from run to run.
//!
//! * `workload`: who calls what when, and what becomes of it.
//! * `outcome`: what is found, and the bound that it stands beside.

mod experiment;
mod outcome;
mod workload;

use std::time::{Duration, Instant};

use hoplite_core::Limits;
use hoplite_core::plan::blocks::block_bytes;
use hoplite_core::plan::collective::SchedulePreference;
use hoplite_core::plan::link::LinkEstimate;

use crate::cluster::{Cluster, Config, Counts, Labels, Network, ShardLoad};
pub use experiment::{Arrivals, Experiment, Workload};
pub use outcome::{Cost, Outcome};
use workload::Calls;

/// How many objects' worth of memory a store has: its source, the output of a hop and the target, and as much again for
/// what is begun anew before the rest of what failed is gone.
const ARENA_OBJECTS: u64 = 8;

impl Default for Experiment {
    /// A broadcast of 64 MiB to 100 nodes that arrive together, over 10 Gbit/s and 100 us.
    fn default() -> Self {
        Self {
            nodes: 100,
            shards: 4,
            workload: Workload::Broadcast,
            arrivals: Arrivals::Together,
            failures_percent: 0.0,
            racks: 0,
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
        let began = Instant::now();
        let mut world = Cluster::new(self.config(), self.seed, Calls::new(self.clone()), None);
        // All stores connect.
        world.settle();
        world.put_in_advance();
        world.advance(|world| world.app.is_prepared());
        world.settle();
        // What the preparation cost is no part of the workload.
        world.counts = Counts::default();
        for host in &mut world.stores {
            host.thought = Duration::ZERO;
        }
        for host in &mut world.shards {
            (host.load, host.thought) = (ShardLoad::default(), Duration::ZERO);
        }
        world.begin();
        world.advance(|world| world.app.is_over());
        // What the last ones still say to the directory belongs to what they did.
        world.settle();
        world.conclude(began.elapsed())
    }

    fn config(&self) -> Config {
        Config {
            stores: self.nodes,
            shards: self.shards,
            limits: Limits { slots_per_location: self.slots, ..Limits::default() },
            labels: Labels { racks: self.racks, moves: false },
            link: LinkEstimate {
                bytes_per_second: self.bytes_per_second,
                latency: self.latency,
                ..LinkEstimate::default()
            },
            capacity_bytes: self.size_bytes * ARENA_OBJECTS + (1 << 20),
            // Shards have been there for long, with all stores connected.
            warm_up: Duration::ZERO,
            allreduce_schedule: SchedulePreference::Auto,
            shard_service: self.shard_service,
            network: Network::Flow {
                bytes_per_second: self.bytes_per_second,
                latency: self.latency,
                block_time: block_time(self),
            },
        }
    }

    /// The least that this can take, whatever is decided: the bytes that must go through some node's link, and the latency
    /// of one link. The last one to arrive has an object to send, or to receive.
    ///
    /// An allreduce must move 2S(n-1)/n through each link (Patarasuk and Yuan, 2009), but much of that may be done when
    /// the last one arrives.
    pub fn bound(&self) -> Duration {
        let after_the_last = self.last_arrival() + self.transfer_time(1.0);
        let in_all = match self.workload {
            Workload::Broadcast | Workload::Reduce => Duration::ZERO,
            Workload::Allreduce => self.transfer_time(2.0 * (self.nodes - 1) as f64 / self.nodes as f64),
        };
        after_the_last.max(in_all) + self.latency
    }

    /// When the last node arrives, after the start.
    pub fn last_arrival(&self) -> Duration {
        match self.arrivals {
            Arrivals::Together => Duration::ZERO,
            Arrivals::Staggered(spread) => spread,
        }
    }

    /// Returns the time that a link takes for so many objects.
    pub fn transfer_time(&self, objects: f64) -> Duration {
        Duration::from_secs_f64(objects * self.size_bytes as f64 / self.bytes_per_second as f64)
    }

    /// What each further node of a chain adds: the latency of a link, and one block.
    pub fn hop_time(&self) -> Duration {
        self.latency + block_time(self)
    }
}

/// Returns the time that a block is on the way. A relay passes it on when it has checked it.
fn block_time(experiment: &Experiment) -> Duration {
    let rate = experiment.bytes_per_second;
    Duration::from_secs_f64(block_bytes(rate).min(experiment.size_bytes) as f64 / rate as f64)
}
