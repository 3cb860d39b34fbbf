//! A campaign of random failures, which checks invariants.
//!
//! Messages take time, sessions break, machines crash, links are cut, frames are damaged; clients
//! put, get, reduce, delete and die. A *tag*, a number, stands for an object's bytes. It names the
//! put or combination that made the bytes.
//!
//! A run follows its `scenario`. Clients' calls are checked with the `history`; `verdict` checks
//! the cluster at the end.

mod allreduces;
mod clients;
mod exchanges;
mod faults;
mod gets;
mod history;
mod probes;
mod puts;
mod reduces;
mod scenario;
mod shard_changes;
mod verdict;

use std::collections::BTreeMap;
use std::time::Duration;

use hoplite_core::collective::{CollectiveEffect, Plan};
use hoplite_core::node::{CallId, ClientId, Effect};
use hoplite_core::shard::{Page, PullOutcome, ToShard, UnpublishReason};
use hoplite_core::{Error, Limits, ObjectId, PutId, Time};

use crate::cluster::{Answer, Application, Cluster, Config, Counts, Network, Piece};
use crate::trace::Trace;
use allreduces::SessionRecord;
use clients::{CallKey, Client, Listing, PendingCall};
use exchanges::PartsCall;
use history::History;
use reduces::ReduceCall;
use scenario::Kind;
pub use scenario::{Faults, Scenario};

/// Most events in a run, a hundred times the usual number. More events indicate a loop.
const MAX_EVENTS: u64 = 1_000_000;

/// Counts of a run, which show that it was not idle.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub struct Summary {
    /// Counts of messages and faults.
    pub counts: Counts,
    /// Successful calls.
    pub successes: u64,
    /// Failed calls.
    pub errors: u64,
    /// Evicted copies.
    pub evictions: u64,
    pub reduces: u64,
    pub failed_reduces: u64,
    /// Successful allreduces by a reduce and a broadcast.
    pub allreduces: u64,
    /// Participants that got an allreduce's target.
    pub participants: u64,
    /// Participants that did not get an allreduce's target.
    pub failed_participants: u64,
    /// Collectives whose target the stores made together.
    pub sessions: u64,
    /// Stores that got all their parts in a collective of parts.
    pub exchanged: u64,
    /// Participants that got all their parts.
    pub parts: u64,
    /// Participants that must get their parts otherwise, after a failure.
    pub parts_left: u64,
    /// Probes' results that reached a shard, counted at each shard.
    pub probes_received: u64,
    /// Reduces that succeeded after repairing their tree.
    pub repaired_reduces: u64,
    /// Reduces that succeeded after starting again.
    pub restarted_reduces: u64,
    /// Changes of the list of shards.
    pub shard_changes: u64,
}

impl Summary {
    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        self.counts.add(&other.counts);
        self.successes += other.successes;
        self.errors += other.errors;
        self.evictions += other.evictions;
        self.reduces += other.reduces;
        self.failed_reduces += other.failed_reduces;
        self.allreduces += other.allreduces;
        self.participants += other.participants;
        self.failed_participants += other.failed_participants;
        self.sessions += other.sessions;
        self.exchanged += other.exchanged;
        self.parts += other.parts;
        self.parts_left += other.parts_left;
        self.probes_received += other.probes_received;
        self.repaired_reduces += other.repaired_reduces;
        self.restarted_reduces += other.restarted_reduces;
        self.shard_changes += other.shard_changes;
    }
}

pub(crate) struct Campaign {
    scenario: Scenario,
    clients: BTreeMap<u64, Client>,
    calls: BTreeMap<CallKey, PendingCall>,
    listings: BTreeMap<CallKey, Listing>,
    history: History,
    reduces: BTreeMap<CallKey, ReduceCall>,
    sessions: BTreeMap<PutId, SessionRecord>,
    exchanges: BTreeMap<ObjectId, PartsCall>,
    only_puts: BTreeMap<ObjectId, PutId>,
    results: Vec<ObjectId>,
    is_winding_down: bool,
    healed_at: Option<Time>,
    lacked_space_at: Vec<Time>,
    ended_hop_at: Vec<Time>,
    summary: Summary,
}

type Simulation = Cluster<Campaign>;

impl Application for Campaign {
    fn answered(
        cluster: &mut Simulation,
        store: usize,
        client: ClientId,
        call: CallId,
        answer: Answer,
    ) {
        cluster.call_answered(store, client, call, answer);
    }

    fn inspected(
        cluster: &mut Simulation,
        _store: usize,
        client: ClientId,
        call: CallId,
        answer: Result<Page, Error>,
    ) {
        cluster.listed((client.0, call.0), answer);
    }

    fn observe(cluster: &mut Simulation, store: usize, effect: &Effect) {
        match effect {
            Effect::ToShard {
                message:
                    ToShard::ReturnSlot { outcome: PullOutcome::Cancelled, .. }
                    | ToShard::Unpublish { reason: UnpublishReason::Evicted, .. },
                ..
            } => cluster.app.lacked_space_at[store] = cluster.now(),
            Effect::EndHop { .. } => cluster.app.ended_hop_at[store] = cluster.now(),
            Effect::Collective(CollectiveEffect::Enlist { plan, .. }) => {
                cluster.member_requested(store, plan)
            }
            Effect::CopyCompleted { copy } => cluster.copy_completed(store, *copy),
            _ => {}
        }
    }

    fn filled(cluster: &mut Simulation, _store: usize, plan: &Plan, pieces: &[Piece]) {
        cluster.member_filled(plan, pieces);
    }

    fn interfere(cluster: &mut Simulation, store: usize, other: usize) {
        cluster.fail_at_step(store, other);
    }
}

/// Runs the random scenario of `seed`.
///
/// # Panics
/// If an invariant is violated.
pub fn run(seed: u64, trace: Option<Trace>) -> Summary {
    let scenario = Scenario::of(seed);
    let limits =
        Limits { inline_below_bytes: 4096, confirmed_from_bytes: 16 << 10, ..Limits::default() };
    let config = Config {
        stores: scenario.stores,
        shards: scenario.shards,
        labels: scenario.labels,
        allreduce_schedule: scenario.allreduce_schedule,
        link: scenario.link,
        capacity_bytes: scenario.capacity_bytes,
        warm_up: limits.node_grace * 3,
        limits,
        shard_service: Duration::ZERO,
        network: Network::Blocks {
            slowness: scenario.slowness,
            damages: scenario.faults == Faults::Many,
        },
    };
    let campaign = Campaign {
        clients: BTreeMap::new(),
        calls: BTreeMap::new(),
        listings: BTreeMap::new(),
        history: History::default(),
        reduces: BTreeMap::new(),
        sessions: BTreeMap::new(),
        exchanges: BTreeMap::new(),
        only_puts: BTreeMap::new(),
        results: Vec::new(),
        is_winding_down: false,
        healed_at: None,
        lacked_space_at: vec![Time::ZERO; scenario.stores],
        ended_hop_at: vec![Time::ZERO; scenario.stores],
        summary: Summary::default(),
        scenario,
    };
    let mut simulation = Cluster::new(config, seed, campaign, trace);
    simulation.note(|sim| format!("{:?}", sim.app.scenario));
    simulation.start();
    simulation.advance(simulation.app.scenario.duration);
    simulation.wind_down();
    simulation.conclude()
}

impl Simulation {
    fn start(&mut self) {
        for store in 0..self.stores.len() {
            self.spawn_clients(store);
        }
        self.put_sources();
        self.watch_calls();
        if self.app.scenario.faults == Faults::Many {
            self.schedule_fault();
        }
        if self.app.scenario.has_probes {
            self.schedule_probe();
        }
        if self.app.scenario.changes_shards {
            self.schedule_shard_change();
        }
    }

    fn advance(&mut self, duration: Duration) {
        let end = self.elapsed() + duration;
        while self.step(end) {
            assert!(self.counts.events < MAX_EVENTS, "the events do not end");
        }
        self.pass_until(end);
    }

    fn conclude(self) -> Summary {
        let evictions: u64 = self.stores.iter().map(|host| host.node.status().evictions).sum();
        let summary = Summary { shard_changes: self.list.version(), ..self.app.summary };
        Summary { counts: self.counts, evictions: summary.evictions + evictions, ..summary }
    }
}
