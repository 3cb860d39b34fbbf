//! A cluster: real stores and shards on simulated machines, with one thread, clock and seed.
//!
//! These modules model the daemons around each [`Node`](hoplite_core::node::Node) and
//! [`Shard`](hoplite_core::shard::Shard):
//!
//! * `hosts`: machines, crashes, time. `effects`: performs the effects of a store.
//! * `network`, `sessions`: latencies, cut links, messages between stores and shards. `slots`
//!   checks granted slots.
//! * `transfers`: pulls and combinations. Bytes move in `blocks` with `contents`, or `flow` along a
//!   `line`. `lanes`: the connections of flows.
//! * `shard_list`: changes of the list of shards.
//! * `comparisons`: comparisons of puts. `watches`: calls that follow a copy or inspect shards.
//! * `directed`: tasks for other stores. `exchange`: the streams of a collective.

mod blocks;
mod comparisons;
pub(crate) mod contents;
mod directed;
mod effects;
mod exchange;
mod flow;
mod hosts;
mod lanes;
mod line;
mod network;
mod sessions;
mod shard_list;
mod slots;
mod transfers;
mod watches;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hoplite_core::collective::Plan;
use hoplite_core::node::{CallId, ClientId, Effect, Response};
use hoplite_core::placement::ShardList;
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
pub use lanes::FlowCap;
use lanes::Lanes;
pub(crate) use network::{LinkEnd, Network};
use sessions::Session;
use transfers::{Transfer, TransferId};
use watches::{Watch, WatchKey};

pub(crate) type Answer = Result<Response, Error>;

pub(crate) trait Application: Sized + 'static {
    fn answered(
        cluster: &mut Cluster<Self>,
        store: usize,
        client: ClientId,
        call: CallId,
        answer: Answer,
    );

    fn inspected(
        _cluster: &mut Cluster<Self>,
        _store: usize,
        _client: ClientId,
        _call: CallId,
        _answer: Result<Page, Error>,
    ) {
    }

    fn observe(_cluster: &mut Cluster<Self>, _store: usize, _effect: &Effect) {}

    /// Called when a member of a collective has all bytes. `pieces` are its ranges, each with its
    /// bytes' tag and shape.
    fn filled(_cluster: &mut Cluster<Self>, _store: usize, _plan: &Plan, _pieces: &[Piece]) {}

    /// Called during a step of a reduce, which the application can make fail.
    fn interfere(_cluster: &mut Cluster<Self>, _store: usize, _other: usize) {}
}

/// Racks in the labels of stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Labels {
    /// Zero for no labels.
    pub racks: usize,
    /// `true` if each restart moves a store to another rack, and every fourth start to none.
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
    pub(crate) capacity_bytes: u64,
    /// Time for which a new shard waits for the reports of stores.
    pub(crate) warm_up: Duration,
    pub(crate) shard_service: Duration,
    pub(crate) network: Network,
}

impl Config {
    /// Returns `true` if granted slots are checked, which takes linear time.
    const fn checks_slots(&self) -> bool {
        matches!(self.network, Network::Blocks { .. })
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub struct Counts {
    pub events: u64,
    /// Messages that arrived at stores and shards.
    pub messages: u64,
    pub grants: u64,
    pub pulls: u64,
    pub failed_pulls: u64,
    pub combinations: u64,
    pub failed_combinations: u64,
    pub hops: u64,
    pub failed_hops: u64,
    /// Stores that coordinators enlisted for collectives.
    pub members: u64,
    pub failed_members: u64,
    pub resumed_streams: u64,
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

pub(crate) struct Cluster<A> {
    pub(crate) app: A,
    pub(crate) config: Config,
    pub(crate) random: Random,
    pub(crate) counts: Counts,
    pub(crate) stores: Vec<StoreHost>,
    pub(crate) shards: Vec<ShardHost>,
    pub(crate) contents: Contents,
    pub(crate) list: ShardList,
    clock: Clock<Self>,
    last_number: u64,
    by_name: BTreeMap<NodeId, usize>,
    cut: BTreeSet<(LinkEnd, LinkEnd)>,
    sessions: BTreeMap<u64, Session>,
    directed_connections: BTreeMap<u64, DirectedConnection>,
    directed_numbers: BTreeMap<(usize, Directed), u64>,
    transfers: BTreeMap<TransferId, Transfer>,
    watches: BTreeMap<WatchKey, Watch>,
    nics: Vec<Nic>,
    lanes: Lanes,
    dirty: BTreeSet<TransferId>,
    trace: Option<Trace>,
}

impl<A: Application> Cluster<A> {
    pub(crate) fn new(config: Config, seed: u64, app: A, trace: Option<Trace>) -> Self {
        let mut cluster = Self {
            app,
            random: Random::new(seed),
            counts: Counts::default(),
            stores: Vec::new(),
            shards: Vec::new(),
            contents: Contents::default(),
            list: ShardList::new((0..config.shards).map(shard_name)),
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
            lanes: Lanes::default(),
            dirty: BTreeSet::new(),
            trace,
            config,
        };
        cluster.add_hosts();
        cluster
    }

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
        self.clock.schedule(at, action);
    }

    pub(crate) fn step(&mut self, end: Duration) -> bool {
        let Some(action) = self.clock.next(end) else { return false };
        self.counts.events += 1;
        action(self);
        self.settle_flows();
        self.settle_follows();
        true
    }

    pub(crate) fn pass_until(&mut self, at: Duration) {
        self.clock.pass_until(at);
    }

    pub(crate) fn fresh_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    pub(crate) fn note(&self, line: impl FnOnce(&Self) -> String) {
        if let Some(trace) = &self.trace {
            trace.add(format!("{:>12} us  {}", self.now().as_micros(), line(self)));
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.directed_connections.is_empty()
            && self.directed_numbers.is_empty()
            && self.transfers.is_empty()
            && self.watches.is_empty()
    }
}
