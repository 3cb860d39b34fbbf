//! Simulates thousands of nodes over a fluid model of the network.
//!
//! Stores and shards are real ([`Node`](hoplite_core::node::Node),
//! [`Shard`](hoplite_core::shard::Shard)), with the daemons' retries and deadlines. Reduces are
//! planned for the simulated link.
//!
//! # Models
//!
//! * **Bytes** flow at full rate in both directions at once, through a switch that is never full.
//!   Transfers share a direction of a node's link equally. Unused shares are lost, so results are
//!   too slow with many transfers on a link.
//! * **Latency**: a relay verifies each block first, which delays it by about a millisecond. A
//!   connection takes a round trip.
//! * **Connections** may have a [`FlowCap`]. Real senders then decide their number, see
//!   `cluster::lanes`.
//! * **Shards** handle messages in turn, by default in 10 us each. Their messages use no bandwidth.
//!   Stores decide, and workers write, in no time.
//! * **Failures** are deaths of processes, which peers notice after a latency. The first node does
//!   not fail.

mod experiment;
mod outcome;
mod workload;

use std::time::{Duration, Instant};

use hoplite_core::Limits;
use hoplite_core::plan::blocks::block_bytes;
use hoplite_core::plan::collective::SchedulePreference;
use hoplite_core::plan::link::LinkEstimate;

pub use crate::cluster::FlowCap;
use crate::cluster::{Cluster, Config, Counts, Labels, Network, ShardLoad};
pub use experiment::{Arrivals, Experiment, Workload};
pub use outcome::{Cost, Outcome};
use workload::Calls;

/// The arena's capacity in objects: a source, a partial result, a target, and old objects of a
/// restarted reduce.
const ARENA_OBJECTS: u64 = 8;

impl Default for Experiment {
    fn default() -> Self {
        Self {
            nodes: 100,
            shards: 4,
            workload: Workload::Broadcast,
            arrivals: Arrivals::Together,
            failures_percent: 0.0,
            racks: 0,
            slots: 1,
            flow_cap: None,
            is_repeated: false,
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
    /// Without two nodes and a shard, with too small objects or too little bandwidth, if a repeated
    /// run has failures or staggered arrivals, or if a state machine requests an impossible action.
    pub fn run(&self) -> (Outcome, Cost) {
        assert!(self.nodes >= 2 && self.shards >= 1, "a collective needs two nodes and a shard");
        assert!(
            self.size_bytes >= 4096 && self.bytes_per_second >= 4096,
            "an object and a rate have a minimum"
        );
        assert!(
            !self.is_repeated
                || (self.failures_percent == 0.0 && self.arrivals == Arrivals::Together),
            "a repeated run needs all nodes"
        );
        let began = Instant::now();
        let mut world = Cluster::new(self.config(), self.seed, Calls::new(self.clone()), None);
        world.settle();
        world.put_in_advance();
        world.prepare();
        if self.is_repeated {
            world.begin();
            world.advance(|world| world.app.is_over());
            world.settle();
            world.start_over();
            world.prepare();
        }
        world.counts = Counts::default();
        for host in &mut world.stores {
            host.thought = Duration::ZERO;
        }
        for host in &mut world.shards {
            (host.load, host.thought) = (ShardLoad::default(), Duration::ZERO);
        }
        world.begin();
        world.advance(|world| world.app.is_over());
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
            warm_up: Duration::ZERO,
            allreduce_schedule: SchedulePreference::Auto,
            shard_service: self.shard_service,
            network: Network::Flow {
                bytes_per_second: self.bytes_per_second,
                latency: self.latency,
                block_time: block_time(self),
                flow_cap: self.flow_cap,
            },
        }
    }

    /// Returns a lower bound of the completion time: the last node to arrive must send or receive
    /// an object, after a latency.
    ///
    /// An allreduce of S bytes must move 2S(n-1)/n through each link (Patarasuk and Yuan, 2009),
    /// possibly before the last node arrives.
    pub fn bound(&self) -> Duration {
        let after_the_last = self.last_arrival() + self.transfer_time(1.0);
        let in_all = match self.workload {
            Workload::Broadcast | Workload::Reduce => Duration::ZERO,
            Workload::Allreduce => {
                self.transfer_time(2.0 * (self.nodes - 1) as f64 / self.nodes as f64)
            }
        };
        after_the_last.max(in_all) + self.latency
    }

    /// Time at which the last node arrives.
    pub fn last_arrival(&self) -> Duration {
        match self.arrivals {
            Arrivals::Together => Duration::ZERO,
            Arrivals::Staggered(spread) => spread,
        }
    }

    /// Time in which a link carries this number of objects.
    pub fn transfer_time(&self, objects: f64) -> Duration {
        Duration::from_secs_f64(objects * self.size_bytes as f64 / self.bytes_per_second as f64)
    }

    /// Time that each further node adds to a chain: latency and a block.
    pub fn hop_time(&self) -> Duration {
        self.latency + block_time(self)
    }
}

fn block_time(experiment: &Experiment) -> Duration {
    let rate = experiment.bytes_per_second;
    Duration::from_secs_f64(block_bytes(rate).min(experiment.size_bytes) as f64 / rate as f64)
}
