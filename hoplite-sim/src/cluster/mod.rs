//! A cluster: the state machines of real stores and shards on simulated machines, and an
//! application.
//!
//! It has one thread, one clock and one seed. [`Node`](hoplite_core::node::Node) and
//! [`Shard`](hoplite_core::shard::Shard) make the decisions. These modules model the shells:
//!
//! * `hosts`: the machines, their contents, crashes, starts and time.
//! * `effects`: the effects of a store.
//! * `network`: latencies, cut links, and the two precisions of transfers.
//! * `sessions`: messages between stores and shards.
//! * `slots`: checks that shards grant only free slots.
//! * `transfers`: pulls and combinations, and the serving stores.
//! * `blocks`: moves bytes block by block, with `contents`.
//! * `flow`: lets bytes flow at the links' rates along a `line`, for thousands of nodes.
//! * `comparisons`: comparisons of two puts of one id.
//! * `watches`: calls that follow a copy, or inspect shards.
//! * `directed`: connections over which a store directs another one.
//! * `exchange`: the streams of a session's members.

mod blocks;
mod comparisons;
pub(crate) mod contents;
mod directed;
mod effects;
mod exchange;
mod flow;
mod hosts;
mod line;
mod network;
mod sessions;
mod slots;
mod transfers;
mod watches;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hoplite_core::collective::Plan;
use hoplite_core::node::{CallId, ClientId, Effect, Response};
use hoplite_core::plan::collective::SchedulePreference;
use hoplite_core::plan::link::LinkEstimate;
use hoplite_core::shard::Page;
use hoplite_core::{Error, Limits, NodeId, Time};

use crate::clock::Clock;
use crate::random::Random;
use crate::trace::Trace;
use contents::Contents;
use directed::{Directed, DirectedConnection};
pub(crate) use effects::bytes_of;
pub(crate) use exchange::Piece;
use flow::Nic;
pub use hosts::ShardLoad;
pub(crate) use hosts::{Copy, ShardHost, StoreHost, node_id, shard_name};
pub(crate) use network::{LinkEnd, Network};
use sessions::Session;
use transfers::{Transfer, TransferId};
use watches::{Watch, WatchKey};

pub(crate) type Answer = Result<Response, Error>;

pub(crate) trait Application: Sized + 'static {
    fn answered(cluster: &mut Cluster<Self>, store: usize, client: ClientId, call: CallId, answer: Answer);

    fn inspected(
        _cluster: &mut Cluster<Self>,
        _store: usize,
        _client: ClientId,
        _call: CallId,
        _answer: Result<Page, Error>,
    ) {
    }

    fn observe(_cluster: &mut Cluster<Self>, _store: usize, _effect: &Effect) {}

    /// Handles a session member with all its bytes. `pieces` are the tags and shapes of ranges.
    fn filled(_cluster: &mut Cluster<Self>, _store: usize, _plan: &Plan, _pieces: &[Piece]) {}

    /// May make something fail, because two stores are in the middle of a reduce step.
    fn interfere(_cluster: &mut Cluster<Self>, _store: usize, _other: usize) {}
}

/// The rack labels of stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Labels {
    /// The number of racks. With zero racks, stores have no labels.
    pub racks: usize,
    /// `true` if each run of a store is in another rack, and every fourth run in no rack.
    pub moves: bool,
}

impl Labels {
    fn of(self, store: usize, run: u64) -> Vec<(String, String)> {
        let moved = if self.moves { run as usize } else { 0 };
        if self.racks == 0 || moved % 4 == 3 {
            return Vec::new();
        }
        vec![("rack".to_owned(), ((store + moved) % self.racks).to_string())]
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) stores: usize,
    pub(crate) shards: usize,
    pub(crate) limits: Limits,
    pub(crate) labels: Labels,
    pub(crate) allreduce_schedule: SchedulePreference,
    pub(crate) link: LinkEstimate,
    /// The size of each store's arena.
    pub(crate) capacity_bytes: u64,
    /// Time for which a new shard waits for stores to publish again.
    pub(crate) warm_up: Duration,
    /// Time for which a shard is busy with each received message.
    pub(crate) shard_service: Duration,
    pub(crate) network: Network,
}

impl Config {
    /// Returns `true` if slots are checked. The check is linear in the slots, too slow for
    /// thousands of nodes.
    const fn checks_slots(&self) -> bool {
        matches!(self.network, Network::Blocks { .. })
    }
}

/// Counts of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Handled events.
    pub events: u64,
    /// Messages between stores and shards that arrived, in both directions.
    pub messages: u64,
    /// Slots that shards granted.
    pub grants: u64,
    /// Started pulls.
    pub pulls: u64,
    /// Pulls that ended incomplete.
    pub failed_pulls: u64,
    /// Started combinations.
    pub combinations: u64,
    /// Combinations that ended incomplete.
    pub failed_combinations: u64,
    /// Hops requested at other nodes.
    pub hops: u64,
    /// Hops whose failure reached the coordinator.
    pub failed_hops: u64,
    /// Requested members of sessions.
    pub members: u64,
    /// Members of sessions whose failure reached the coordinator.
    pub failed_members: u64,
    /// Resumed streams between members.
    pub resumed_streams: u64,
    /// Crashes of stores.
    pub crashes: u64,
}

impl Counts {
    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        self.events += other.events;
        self.messages += other.messages;
        self.grants += other.grants;
        self.pulls += other.pulls;
        self.failed_pulls += other.failed_pulls;
        self.combinations += other.combinations;
        self.failed_combinations += other.failed_combinations;
        self.hops += other.hops;
        self.failed_hops += other.failed_hops;
        self.members += other.members;
        self.failed_members += other.failed_members;
        self.resumed_streams += other.resumed_streams;
        self.crashes += other.crashes;
    }
}

/// The state of a simulated cluster. See the [module documentation](self).
pub(crate) struct Cluster<A> {
    pub(crate) app: A,
    pub(crate) config: Config,
    pub(crate) random: Random,
    pub(crate) counts: Counts,
    pub(crate) stores: Vec<StoreHost>,
    pub(crate) shards: Vec<ShardHost>,
    pub(crate) contents: Contents,
    clock: Clock<Self>,
    last_number: u64,
    by_name: BTreeMap<NodeId, usize>,
    cut: BTreeSet<(LinkEnd, LinkEnd)>,
    sessions: BTreeMap<u64, Session>,
    directed_connections: BTreeMap<u64, DirectedConnection>,
    /// The connection of each directed task.
    directed_numbers: BTreeMap<(usize, Directed), u64>,
    transfers: BTreeMap<TransferId, Transfer>,
    watches: BTreeMap<WatchKey, Watch>,
    /// The load of each store's link, if bytes flow.
    nics: Vec<Nic>,
    /// Flowing transfers that must be handled before time goes on.
    dirty: BTreeSet<TransferId>,
    trace: Option<Trace>,
}

impl<A: Application> Cluster<A> {
    /// Creates stores and shards that have just started.
    pub(crate) fn new(config: Config, seed: u64, app: A, trace: Option<Trace>) -> Self {
        let mut cluster = Self {
            app,
            random: Random::new(seed),
            counts: Counts::default(),
            stores: Vec::new(),
            shards: Vec::new(),
            contents: Contents::default(),
            clock: Clock::new(),
            last_number: 0,
            by_name: BTreeMap::new(),
            cut: BTreeSet::new(),
            sessions: BTreeMap::new(),
            directed_connections: BTreeMap::new(),
            directed_numbers: BTreeMap::new(),
            transfers: BTreeMap::new(),
            watches: BTreeMap::new(),
            nics: Vec::new(),
            dirty: BTreeSet::new(),
            trace,
            config,
        };
        cluster.add_hosts();
        cluster
    }

    /// Returns the time since the start.
    pub(crate) const fn elapsed(&self) -> Duration {
        self.clock.now()
    }

    pub(crate) fn now(&self) -> Time {
        Time::ZERO + self.clock.now()
    }

    pub(crate) fn after(&mut self, delay: Duration, action: impl FnOnce(&mut Self) + 'static) {
        self.at(self.clock.now() + delay, action);
    }

    pub(crate) fn at(&mut self, at: Duration, action: impl FnOnce(&mut Self) + 'static) {
        self.clock.enter(at, action);
    }

    /// Performs the next event if it is due by `end`. Returns `false` if there is none.
    pub(crate) fn step(&mut self, end: Duration) -> bool {
        let Some(action) = self.clock.next(end) else { return false };
        self.counts.events += 1;
        action(self);
        self.settle_flows();
        self.settle_follows();
        true
    }

    /// Advances the time without events.
    pub(crate) fn pass_until(&mut self, at: Duration) {
        self.clock.pass_until(at);
    }

    pub(crate) fn fresh_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Adds a line to the trace, if there is one.
    pub(crate) fn note(&self, line: impl FnOnce(&Self) -> String) {
        if let Some(trace) = &self.trace {
            trace.add(format!("{:>12} us  {}", self.now().as_micros(), line(self)));
        }
    }

    /// Returns `true` if there are no directed tasks, no transfers and no watches.
    pub(crate) fn is_idle(&self) -> bool {
        self.directed_connections.is_empty()
            && self.directed_numbers.is_empty()
            && self.transfers.is_empty()
            && self.watches.is_empty()
    }
}
