//! Simulates Hoplite with thousands of nodes: its real decisions over a fluid model of the network.
//!
//! # Real parts
//! * Every store is a real [`Node`](hoplite_core::node::Node), and every shard a real
//!   [`Shard`](hoplite_core::shard::Shard). They exchange the messages of the daemons. They have
//!   the planner of reduces, the choice of senders, retries, repairs and deadlines of the daemons.
//! * The schedule of a reduce is planned for the simulated link, as in a store that has measured
//!   its links.
//!
//! # Models
//! * **Bytes** flow as in pipes. A transfer has a rate, and is told when the rate of its input
//!   changes. Each node can send and receive at the link's rate at the same time, and the switch
//!   between nodes is never full. Transfers that share a direction of a node's link have equal
//!   shares. A share that one transfer cannot use is not given to the others. The results are
//!   therefore rather late than early when many transfers share a link, which is rare in these
//!   broadcasts and reduces.
//! * **Latency**: a sent byte arrives a link's latency later. A relay forwards received bytes one
//!   block later, because it verifies a block first. Blocks are as long as in stores, about a
//!   millisecond. A connection between stores takes a round trip before its first request.
//! * **Shards** handle one message after the other, each in the same time. The default of 10 us
//!   stands for the intended 100,000 messages per second. The real time of the code is measured
//!   besides the model. Messages between stores and shards need no bandwidth, stores decide in no
//!   time, and workers write in no time.
//! * **Failures** are failures of processes. Peers notice them after a link's latency, as with a
//!   connection reset. The node that puts the broadcast object, or that receives the reduce, does
//!   not fail.
//!
//! With one thread, one agenda and one seed, an [`Experiment`] always has the same [`Outcome`]. The
//! [`Cost`] is the real time of decisions on this computer, and differs from run to run.
//!
//! * `workload`: the calls, their times, and their results.
//! * `outcome`: the results, and the bound for comparison.

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

/// Size of a store's memory in objects: source, hop output and target, doubled and more for
/// restarts during cleanup.
const ARENA_OBJECTS: u64 = 8;

impl Default for Experiment {
    /// Returns a broadcast of 64 MiB to 100 nodes that arrive together, over links of 10 Gbit/s and
    /// 100 us.
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
    ///
    /// Panics if the parameters make no sense: fewer than two nodes, no shard, a too small object,
    /// or too little bandwidth. Also panics if a state machine requests an impossible action.
    pub fn run(&self) -> (Outcome, Cost) {
        assert!(self.nodes >= 2 && self.shards >= 1, "a collective needs two nodes and a shard");
        assert!(
            self.size_bytes >= 4096 && self.bytes_per_second >= 4096,
            "an object and a rate have a minimum"
        );
        let began = Instant::now();
        let mut world = Cluster::new(self.config(), self.seed, Calls::new(self.clone()), None);
        // Wait until all stores are connected.
        world.settle();
        world.put_in_advance();
        world.advance(|world| world.app.is_prepared());
        world.settle();
        // The cost of the preparation does not belong to the workload.
        world.counts = Counts::default();
        for host in &mut world.stores {
            host.thought = Duration::ZERO;
        }
        for host in &mut world.shards {
            (host.load, host.thought) = (ShardLoad::default(), Duration::ZERO);
        }
        world.begin();
        world.advance(|world| world.app.is_over());
        // The last messages to the directory belong to the workload.
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
            // Shards have been running for long, with all stores connected.
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

    /// Returns a lower bound of the time, whatever the decisions: the bytes that must go through
    /// some node's link, and the latency of one link. The last node to arrive must send or receive
    /// an object.
    ///
    /// An allreduce must move 2S(n-1)/n through each link (Patarasuk and Yuan, 2009), but may have
    /// moved many of these bytes before the last node arrives.
    pub fn bound(&self) -> Duration {
        let after_the_last = self.last_arrival() + self.transfer_time(1.0);
        let in_all = match self.workload {
            Workload::Broadcast | Workload::Reduce => Duration::ZERO,
            Workload::Allreduce => self.transfer_time(2.0 * (self.nodes - 1) as f64 / self.nodes as f64),
        };
        after_the_last.max(in_all) + self.latency
    }

    /// Returns the time between the start and the arrival of the last node.
    pub fn last_arrival(&self) -> Duration {
        match self.arrivals {
            Arrivals::Together => Duration::ZERO,
            Arrivals::Staggered(spread) => spread,
        }
    }

    /// Returns the time that a link takes for this number of objects.
    pub fn transfer_time(&self, objects: f64) -> Duration {
        Duration::from_secs_f64(objects * self.size_bytes as f64 / self.bytes_per_second as f64)
    }

    /// Returns the time that each further node of a chain adds: the latency of a link, and one
    /// block.
    pub fn hop_time(&self) -> Duration {
        self.latency + block_time(self)
    }
}

/// Returns the time that a relay needs to receive a block, before it verifies and forwards it.
fn block_time(experiment: &Experiment) -> Duration {
    let rate = experiment.bytes_per_second;
    Duration::from_secs_f64(block_bytes(rate).min(experiment.size_bytes) as f64 / rate as f64)
}
