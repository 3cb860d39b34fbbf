//! A deterministic simulation of stores and shards: the real state machines on a simulated network.
//!
//! One thread, one heap of events, one seed. Messages take time, sessions break, stores and shards crash and come back,
//! links are cut, pulls advance block by block behind partial senders and may be corrupted, clients put, get, delete and
//! die. The bytes of an object are represented by a *tag* that is unique to what was put, so that wrong or mixed bytes
//! are noticed.
//!
//! * `machines`: stores and shards, crashes and restarts, and what their effects do.
//! * `network`: sessions between stores and shards, and cut links.
//! * `transfer`: pulls, serves and comparisons.
//! * `clients`: what applications do, and what they may observe.
//! * `faults`: when what fails.
//! * `verdict`: what must hold at the end.

mod clients;
mod faults;
mod history;
mod machines;
mod network;
mod random;
mod transfer;
mod verdict;

use std::cell::RefCell;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use hoplite_core::Time;

use clients::{CallKey, Client, PendingCall};
use history::History;
use machines::{ShardHost, StoreHost};
use network::{Place, Session};
use random::Random;

/// A hundred times as many events as an ordinary run has: more than that is a loop.
const MOST_EVENTS: u64 = 1_000_000;

/// What a run is made of.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// How many stores.
    pub stores: usize,
    /// How many shards.
    pub shards: usize,
    /// How many clients at each store.
    pub clients_per_store: usize,
    /// How many object ids there are.
    pub ids: usize,
    /// The arena of each store.
    pub capacity_bytes: u64,
    /// For how long clients are busy.
    pub duration: Duration,
    /// What fails meanwhile.
    pub faults: Faults,
    /// How long it is from one fault to the next, at most.
    pub fault_interval: Duration,
    /// How many times as long as usual writes and transfers take.
    pub slowness: u32,
    /// The largest object.
    pub largest_bytes: u64,
}

/// Whether anything fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Faults {
    /// Nothing does, apart from clients.
    None,
    /// Sessions, stores, shards, links and frames do.
    Many,
}

impl Scenario {
    /// The scenario that belongs to `seed`.
    pub fn of(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x5ce2_a810);
        let stores = 3 + random.index(6);
        let largest_bytes = *random.pick(&[65_536, 150_001, 1_000_000]);
        Self {
            fault_interval: random.millis(50..700),
            slowness: *random.pick(&[1, 1, 10, 100]),
            largest_bytes,
            stores,
            shards: 1 + random.index(3),
            clients_per_store: 1 + random.index(3),
            ids: 2 + random.index(8),
            capacity_bytes: largest_bytes * random.number(2..10),
            duration: random.millis(1_000..5_000),
            faults: if random.chance(25) { Faults::None } else { Faults::Many },
        }
    }
}

/// What a run did, to see that it was not idle.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Events handled.
    pub events: u64,
    /// Calls answered with success.
    pub successes: u64,
    /// Calls answered with an error.
    pub errors: u64,
    /// Pulls completed.
    pub pulls: u64,
    /// Pulls that ended otherwise.
    pub failed_pulls: u64,
    /// Copies evicted.
    pub evictions: u64,
}

impl Summary {
    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        self.events += other.events;
        self.successes += other.successes;
        self.errors += other.errors;
        self.pulls += other.pulls;
        self.failed_pulls += other.failed_pulls;
        self.evictions += other.evictions;
    }
}

type Action = Box<dyn FnOnce(&mut Simulation)>;

struct Scheduled {
    at: Time,
    order: u64,
    action: Action,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    /// The heap yields its greatest entry, which must be the earliest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

/// The latest events of a run, in words; shared, so that they survive a panic.
#[derive(Debug, Clone)]
pub struct Trace {
    lines: Rc<RefCell<VecDeque<String>>>,
    limit: usize,
}

impl Trace {
    /// A trace of the latest `limit` events.
    pub fn new(limit: usize) -> Self {
        Self { lines: Rc::default(), limit }
    }

    /// The lines, oldest first.
    pub fn lines(&self) -> Vec<String> {
        self.lines.borrow().iter().cloned().collect()
    }

    fn add(&self, line: String) {
        let mut lines = self.lines.borrow_mut();
        if lines.len() >= self.limit {
            lines.pop_front();
        }
        lines.push_back(line);
    }
}

/// The state of a run. See the [module documentation](self).
pub struct Simulation {
    scenario: Scenario,
    random: Random,
    now: Time,
    schedule: BinaryHeap<Scheduled>,
    scheduled: u64,
    stores: Vec<StoreHost>,
    shards: Vec<ShardHost>,
    sessions: BTreeMap<u64, Session>,
    cut: BTreeSet<(Place, Place)>,
    clients: BTreeMap<u64, Client>,
    calls: BTreeMap<CallKey, PendingCall>,
    history: History,
    next_number: u64,
    is_winding_down: bool,
    trace: Option<Trace>,
    summary: Summary,
}

impl Simulation {
    /// Runs the scenario of `seed` to its end.
    ///
    /// # Panics
    /// If something that must hold does not.
    pub fn run(seed: u64, trace: Option<Trace>) -> Summary {
        let scenario = Scenario::of(seed);
        let mut simulation = Self {
            random: Random::new(seed),
            now: Time::ZERO,
            schedule: BinaryHeap::new(),
            scheduled: 0,
            stores: Vec::new(),
            shards: Vec::new(),
            sessions: BTreeMap::new(),
            cut: BTreeSet::new(),
            clients: BTreeMap::new(),
            calls: BTreeMap::new(),
            history: History::default(),
            next_number: 0,
            is_winding_down: false,
            trace,
            summary: Summary::default(),
            scenario,
        };
        simulation.note(|sim| format!("{:?}", sim.scenario));
        simulation.start();
        simulation.advance(simulation.scenario.duration);
        simulation.wind_down();
        for store in &simulation.stores {
            simulation.summary.evictions += store.node.status().evictions;
        }
        simulation.summary
    }

    fn start(&mut self) {
        for shard in 0..self.scenario.shards {
            self.add_shard(shard);
        }
        for store in 0..self.scenario.stores {
            self.add_store(store);
        }
        self.watch_calls();
        if self.scenario.faults == Faults::Many {
            self.schedule_fault();
        }
    }

    /// Handles all events of the next `duration`.
    fn advance(&mut self, duration: Duration) {
        let end = self.now + duration;
        while self.schedule.peek().is_some_and(|next| next.at <= end) {
            let Some(next) = self.schedule.pop() else { break };
            self.now = self.now.max(next.at);
            self.summary.events += 1;
            assert!(self.summary.events < MOST_EVENTS, "the machines keep each other busy for ever");
            (next.action)(self);
        }
        self.now = end;
    }

    /// Does something after a while.
    fn after(&mut self, delay: Duration, action: impl FnOnce(&mut Self) + 'static) {
        self.at(self.now + delay, action);
    }

    fn at(&mut self, at: Time, action: impl FnOnce(&mut Self) + 'static) {
        self.scheduled += 1;
        self.schedule.push(Scheduled { at, order: self.scheduled, action: Box::new(action) });
    }

    /// A number that was not used before.
    fn fresh_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// Adds a line to the trace, if there is one.
    fn note(&self, line: impl FnOnce(&Self) -> String) {
        if let Some(trace) = &self.trace {
            trace.add(format!("{:>12} us  {}", self.now.as_micros(), line(self)));
        }
    }
}
