//! The clock, the agenda and the hosts.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::{Duration, Instant};

use hoplite_core::node::{CombineId, CopyId, HopId, Node, NodeConfig, PullId, ServeId};
use hoplite_core::placement::ShardMap;
use hoplite_core::plan::broadcast::Topology;
use hoplite_core::plan::reduce::Link;
use hoplite_core::shard::{Shard, ShardConfig};
use hoplite_core::{Limits, NodeId, Time};

use super::flow::{Nic, Serve, Stock, Transfer, TransferId};
use super::hops::Direction;
use super::line::Nanos;
use super::outcome::{Cost, Counts, Outcome, ShardLoad};
use super::workload::Calls;
use super::{Experiment, Workload};
use crate::campaign::random::Random;

/// A relay passes on a block when it has checked it. As in `hoplite-store/src/data/rate.rs`.
const BLOCK_TIME: Duration = Duration::from_millis(1);
const MIN_BLOCK_BYTES: u64 = 16 << 10;
const MAX_BLOCK_BYTES: u64 = 1 << 20;

/// Between the end of the preparation and the start.
const PAUSE: Duration = Duration::from_secs(1);

/// How many objects' worth of memory a store has: its source, the output of a hop and the target, and as much again for
/// what is begun anew before the rest of what failed is gone.
const ARENA_OBJECTS: u64 = 8;

type Action = Box<dyn FnOnce(&mut World)>;

struct Entry {
    at: Nanos,
    order: u64,
    action: Action,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    /// The heap yields its greatest entry, which must be the earliest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

/// A machine with a store.
pub(super) struct StoreHost {
    pub(super) node: Node,
    pub(super) name: NodeId,
    pub(super) is_alive: bool,
    pub(super) stocks: BTreeMap<CopyId, Stock>,
    pub(super) pulls: BTreeMap<PullId, TransferId>,
    pub(super) combinations: BTreeMap<CombineId, TransferId>,
    pub(super) nic: Nic,
    pub(super) tick_at: Option<Nanos>,
}

/// A machine with a shard.
pub(super) struct ShardHost {
    pub(super) shard: Shard,
    pub(super) busy_until: Nanos,
    pub(super) queued: usize,
    pub(super) load: ShardLoad,
    /// How long it really took to decide.
    pub(super) thought: Duration,
    pub(super) tick_at: Option<Nanos>,
}

/// The state of a run.
pub(super) struct World {
    pub(super) experiment: Experiment,
    pub(super) random: Random,
    pub(super) now: Nanos,
    agenda: BinaryHeap<Entry>,
    entered: u64,
    last_number: u64,
    pub(super) stores: Vec<StoreHost>,
    pub(super) by_name: BTreeMap<NodeId, usize>,
    pub(super) shards: Vec<ShardHost>,
    pub(super) transfers: BTreeMap<TransferId, Transfer>,
    /// Transfers that must be looked at before time goes on.
    pub(super) dirty: BTreeSet<TransferId>,
    pub(super) serves: BTreeMap<ServeId, Serve>,
    pub(super) directions: BTreeMap<u64, Direction>,
    /// The direction of each hop, by coordinator.
    pub(super) directed: BTreeMap<(usize, HopId), u64>,
    pub(super) calls: Calls,
    pub(super) counts: Counts,
    /// How long the first node, which coordinates reduces, really took to decide.
    pub(super) coordinator_thought: Duration,
    /// When the workload began.
    pub(super) started: Nanos,
}

impl World {
    pub(super) fn new(experiment: Experiment) -> Self {
        let mut world = Self {
            random: Random::new(experiment.seed),
            now: 0,
            agenda: BinaryHeap::new(),
            entered: 0,
            last_number: 0,
            stores: Vec::new(),
            by_name: BTreeMap::new(),
            shards: Vec::new(),
            transfers: BTreeMap::new(),
            dirty: BTreeSet::new(),
            serves: BTreeMap::new(),
            directions: BTreeMap::new(),
            directed: BTreeMap::new(),
            calls: Calls::default(),
            counts: Counts::default(),
            coordinator_thought: Duration::ZERO,
            started: 0,
            experiment,
        };
        for _ in 0..world.experiment.shards {
            world.add_shard();
        }
        for store in 0..world.experiment.nodes {
            world.add_store(store);
        }
        world
    }

    pub(super) fn run(mut self) -> (Outcome, Cost) {
        let began = Instant::now();
        self.connect_all();
        self.put_in_advance();
        let is_idle = |world: &Self| world.shards.iter().all(|host| host.queued == 0);
        self.advance(|world| world.calls.is_prepared() && is_idle(world));
        // All that is under way arrives, before the clock is started.
        let quiet = self.now + duration_nanos(PAUSE);
        self.at(quiet, |_| {});
        self.advance(|world| world.now >= quiet && is_idle(world));
        // What the preparation cost is no part of the workload.
        self.counts = Counts::default();
        self.coordinator_thought = Duration::ZERO;
        for host in &mut self.shards {
            (host.load, host.thought) = (ShardLoad::default(), Duration::ZERO);
        }
        self.begin();
        self.advance(|world| world.calls.is_over());
        self.conclude(began.elapsed())
    }

    /// Lets time go on until `is_over`, or the time limit, or until nothing is left to happen.
    fn advance(&mut self, is_over: impl Fn(&Self) -> bool) {
        let end = self.now + duration_nanos(self.experiment.time_limit);
        while !is_over(self)
            && let Some(next) = self.agenda.pop()
        {
            if next.at > end {
                break;
            }
            self.now = self.now.max(next.at);
            self.counts.events += 1;
            (next.action)(self);
            self.settle();
        }
    }

    /// Does something after a while.
    pub(super) fn after(&mut self, delay: Nanos, action: impl FnOnce(&mut Self) + 'static) {
        self.at(self.now + delay, action);
    }

    pub(super) fn at(&mut self, at: Nanos, action: impl FnOnce(&mut Self) + 'static) {
        self.entered += 1;
        self.agenda.push(Entry { at, order: self.entered, action: Box::new(action) });
    }

    /// A number that was not used before.
    pub(super) fn fresh_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    fn add_shard(&mut self) {
        // It has been there for long, with all stores connected.
        let limits = Limits { slots_per_location: self.experiment.slots, ..Limits::default() };
        let config = ShardConfig { warm_up: Duration::ZERO, limits, ..ShardConfig::default() };
        self.shards.push(ShardHost {
            shard: Shard::new(config, Time::ZERO),
            busy_until: 0,
            queued: 0,
            load: ShardLoad::default(),
            thought: Duration::ZERO,
            tick_at: None,
        });
    }

    fn add_store(&mut self, store: usize) {
        let name = NodeId::new(&format!("node-{store:05}")).expect("the name is short");
        let mut node = Node::new(NodeConfig {
            node: name.clone(),
            topology: Topology::Uniform,
            capacity_bytes: self.experiment.size_bytes * ARENA_OBJECTS + (1 << 20),
            limits: Limits::default(),
            shards: ShardMap::new((0..self.experiment.shards).map(|shard| format!("shard-{shard}"))),
            seed: self.random.next_number(),
        });
        node.measured(Link {
            bytes_per_second: self.experiment.bytes_per_second,
            latency: self.experiment.latency,
        });
        self.by_name.insert(name.clone(), store);
        self.stores.push(StoreHost {
            node,
            name,
            is_alive: true,
            stocks: BTreeMap::new(),
            pulls: BTreeMap::new(),
            combinations: BTreeMap::new(),
            nic: Nic::default(),
            tick_at: None,
        });
    }

    /// The time as the machines are told it.
    pub(super) const fn time(&self) -> Time {
        Time::from_micros(self.now / 1000)
    }

    pub(super) fn latency(&self) -> Nanos {
        duration_nanos(self.experiment.latency)
    }

    /// From the moment a relay has received a byte to that at which the next node has it.
    pub(super) fn relay_latency(&self) -> Nanos {
        self.latency() + duration_nanos(block_time(&self.experiment))
    }
}

impl Experiment {
    /// The least that this can take, whatever is decided: the bytes that must go through some node's link, and the latency
    /// of one link. The last one to arrive has an object to send, or to receive.
    ///
    /// Of an allreduce, 2S(n-1)/n must go through each link (Patarasuk and Yuan, 2009), but much of that may be done when
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
            super::Arrivals::Together => Duration::ZERO,
            super::Arrivals::Staggered(spread) => spread,
        }
    }

    /// How long a link takes for so many objects.
    pub fn transfer_time(&self, objects: f64) -> Duration {
        Duration::from_secs_f64(objects * self.size_bytes as f64 / self.bytes_per_second as f64)
    }

    /// What each further node of a chain adds: the latency of a link, and one block.
    pub fn hop_time(&self) -> Duration {
        self.latency + block_time(self)
    }
}

/// How long a block is on the way.
fn block_time(experiment: &Experiment) -> Duration {
    let rate = experiment.bytes_per_second as f64;
    let block_bytes = (rate * BLOCK_TIME.as_secs_f64()).clamp(MIN_BLOCK_BYTES as f64, MAX_BLOCK_BYTES as f64);
    Duration::from_secs_f64(block_bytes.min(experiment.size_bytes as f64) / rate)
}

pub(super) fn duration_nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 4)
}
