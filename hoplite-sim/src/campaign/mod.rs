//! A deterministic simulation of stores and shards: the real state machines on a simulated network.
//!
//! One thread, one heap of events, one seed. Messages take time, sessions break, stores and shards crash and come back,
//! links are cut, pulls advance block by block behind partial senders and may be corrupted, reduces are combined along
//! chains of hops, clients put, get, reduce, delete and die. The bytes of an object are represented by a *tag* that tells
//! what was put, or what was combined, so that wrong or mixed bytes are noticed.
//!
//! * `scenario`: what a run is made of.
//! * `machines`: stores and shards, crashes and restarts, and what their effects do.
//! * `network`: sessions between stores and shards, and cut links.
//! * `contents`: tags.
//! * `transfer`: pulls, serves and comparisons.
//! * `combine`: combinations of several inputs.
//! * `hops`: connections over which one store has another combine something.
//! * `clients`: what applications do, and what they may observe.
//! * `reduces`: how they reduce, and what a reduce may come to.
//! * `faults`: when what fails.
//! * `verdict`: what must hold at the end.

mod clients;
mod combine;
mod contents;
mod faults;
mod history;
mod hops;
mod machines;
mod network;
pub(crate) mod random;
mod reduces;
mod scenario;
mod transfer;
mod verdict;

use std::cell::RefCell;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use hoplite_core::{ObjectId, Time};

use clients::{CallKey, Client, PendingCall};
use contents::Contents;
use history::History;
use hops::Direction;
use machines::{ShardHost, StoreHost};
use network::{Place, Session};
use random::Random;
use reduces::ReduceCall;
pub use scenario::{Faults, Scenario};
use scenario::{Kind, MOST_RESULTS};

/// A hundred times as many events as an ordinary run has: more than that is a loop.
const MOST_EVENTS: u64 = 1_000_000;

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
    /// Combinations completed.
    pub combinations: u64,
    /// Hops asked for.
    pub hops: u64,
    /// Hops of which the coordinator heard that they failed.
    pub failed_hops: u64,
    /// Reduces answered with success.
    pub reduces: u64,
    /// Reduces answered with an error.
    pub failed_reduces: u64,
    /// Reduces that succeeded though something failed on the way.
    pub mended_reduces: u64,
    /// Reduces that succeeded though their target had to be begun anew.
    pub restarted_reduces: u64,
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
        self.combinations += other.combinations;
        self.hops += other.hops;
        self.failed_hops += other.failed_hops;
        self.reduces += other.reduces;
        self.failed_reduces += other.failed_reduces;
        self.mended_reduces += other.mended_reduces;
        self.restarted_reduces += other.restarted_reduces;
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
    contents: Contents,
    directions: BTreeMap<u64, Direction>,
    reduces: BTreeMap<CallKey, ReduceCall>,
    /// The objects made by one reduce each.
    results: Vec<ObjectId>,
    next_number: u64,
    is_winding_down: bool,
    /// Since when nothing fails any more.
    healed_at: Option<Time>,
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
            contents: Contents::default(),
            directions: BTreeMap::new(),
            reduces: BTreeMap::new(),
            results: Vec::new(),
            next_number: 0,
            is_winding_down: false,
            healed_at: None,
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
        self.put_sources();
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
