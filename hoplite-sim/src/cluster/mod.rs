//! A cluster: the state machines of real stores and shards on simulated machines, and an application that uses them.
//!
//! One thread, one clock, one seed. What stores and shards decide is decided by [`Node`](hoplite_core::node::Node) and
//! [`Shard`](hoplite_core::shard::Shard); what their daemons do when the machines say so is modelled here, once:
//!
//! * `hosts`: the machines, what they hold, how they crash and start, and how time passes for them.
//! * `effects`: what the effects of a store do.
//! * `network`: latencies, cut links, and which of the two precisions transfers have.
//! * `sessions`: messages between stores and shards.
//! * `slots`: whether shards grant slots that are in use.
//! * `transfers`: pulls and combinations, from their beginning to their end; who serves them.
//! * `blocks`: how their bytes move one block at a time, and what those bytes are (`contents`).
//! * `flow`: how their bytes flow at rates that links leave them, for thousands of nodes (`line`).
//! * `comparisons`: comparisons of two puts of one id.
//! * `watches`: calls that follow a copy, or ask what shards know.
//! * `directed`: connections over which one store has another combine something, or be a member of a session.
//! * `exchange`: what members of a session give and take.

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

/// What a store answers to a call.
pub(crate) type Answer = Result<Response, Error>;

/// A program that uses a cluster.
pub(crate) trait Application: Sized + 'static {
    /// A store answers a call of a client.
    fn answered(cluster: &mut Cluster<Self>, store: usize, client: ClientId, call: CallId, answer: Answer);

    /// Shards have answered a call of a client that asks what they know.
    fn inspected(
        _cluster: &mut Cluster<Self>,
        _store: usize,
        _client: ClientId,
        _call: CallId,
        _answer: Result<Page, Error>,
    ) {
    }

    /// A store is about to perform an effect.
    fn observe(_cluster: &mut Cluster<Self>, _store: usize, _effect: &Effect) {}

    /// A member of a session has all bytes: these, as tags and shapes of ranges.
    fn filled(_cluster: &mut Cluster<Self>, _store: usize, _plan: &Plan, _pieces: &[Piece]) {}

    /// Two stores are in the middle of what they do together for a reduce: something may fail.
    fn interfere(_cluster: &mut Cluster<Self>, _store: usize, _other: usize) {}
}

/// In which rack a store says that it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Labels {
    /// The number of racks; with none, stores say nothing.
    pub racks: usize,
    /// `true` if a store is in another rack after each start, and every fourth run of one in none.
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

/// What a cluster is made of.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) stores: usize,
    pub(crate) shards: usize,
    /// The limits of all of them.
    pub(crate) limits: Limits,
    /// Where stores say that they are.
    pub(crate) labels: Labels,
    /// How the sessions of allreduces exchange data.
    pub(crate) allreduce_schedule: SchedulePreference,
    /// What stores take their links for.
    pub(crate) link: LinkEstimate,
    /// The arena of each store.
    pub(crate) capacity_bytes: u64,
    /// For how long a new shard waits for stores to publish again.
    pub(crate) warm_up: Duration,
    /// The time that a shard is busy with each message that it receives.
    pub(crate) shard_service: Duration,
    pub(crate) network: Network,
}

impl Config {
    /// Returns `true` if slots are counted: that takes as long as there are slots, and thousands of nodes have thousands.
    const fn checks_slots(&self) -> bool {
        matches!(self.network, Network::Blocks { .. })
    }
}

/// What happened in a run, by counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Events handled.
    pub events: u64,
    /// Messages between stores and shards that arrived, in both directions.
    pub messages: u64,
    /// Slots granted by shards.
    pub grants: u64,
    /// Pulls begun.
    pub pulls: u64,
    /// Pulls that ended before all bytes were there.
    pub failed_pulls: u64,
    /// Combinations begun.
    pub combinations: u64,
    /// Combinations that ended before all bytes were there.
    pub failed_combinations: u64,
    /// Hops asked for at other nodes.
    pub hops: u64,
    /// Hops of which the coordinator heard that they failed.
    pub failed_hops: u64,
    /// Members of sessions asked for.
    pub members: u64,
    /// Those of which the coordinator heard that they failed.
    pub failed_members: u64,
    /// Streams between members that were resumed.
    pub resumed_streams: u64,
    /// Stores that crashed.
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
    /// The connection of what each coordinator directs.
    directed_numbers: BTreeMap<(usize, Directed), u64>,
    transfers: BTreeMap<TransferId, Transfer>,
    watches: BTreeMap<WatchKey, Watch>,
    /// What the links of each store carry, if bytes flow.
    nics: Vec<Nic>,
    /// Flows that must be looked at before time goes on.
    dirty: BTreeSet<TransferId>,
    trace: Option<Trace>,
}

impl<A: Application> Cluster<A> {
    /// Stores and shards that have just started.
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

    /// Since the beginning.
    pub(crate) const fn elapsed(&self) -> Duration {
        self.clock.now()
    }

    /// The time as the machines are told it.
    pub(crate) fn now(&self) -> Time {
        Time::ZERO + self.clock.now()
    }

    /// Does something after a while.
    pub(crate) fn after(&mut self, delay: Duration, action: impl FnOnce(&mut Self) + 'static) {
        self.at(self.clock.now() + delay, action);
    }

    /// Does something when so much time has passed since the beginning.
    pub(crate) fn at(&mut self, at: Duration, action: impl FnOnce(&mut Self) + 'static) {
        self.clock.enter(at, action);
    }

    /// Lets happen what happens next, if that is before or at `end`; returns whether there was anything.
    pub(crate) fn step(&mut self, end: Duration) -> bool {
        let Some(action) = self.clock.next(end) else { return false };
        self.counts.events += 1;
        action(self);
        self.settle_flows();
        self.settle_follows();
        true
    }

    /// Lets time pass in which nothing happens.
    pub(crate) fn pass_until(&mut self, at: Duration) {
        self.clock.pass_until(at);
    }

    /// A number that was not used before.
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

    /// Returns `true` if nobody directs anything, nothing is transferred, and no call looks at something.
    pub(crate) fn is_idle(&self) -> bool {
        self.directed_connections.is_empty()
            && self.directed_numbers.is_empty()
            && self.transfers.is_empty()
            && self.watches.is_empty()
    }
}
