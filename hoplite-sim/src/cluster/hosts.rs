use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use hoplite_core::id::Incarnation;
use hoplite_core::node::{self, CombineId, CopyId, Node, NodeConfig, Producer, PullId, ServeId};
use hoplite_core::placement::{ShardList, ShardMap};
use hoplite_core::session::Attempts;
use hoplite_core::shard::{self, NodeInfo, Reception, Shard, ShardConfig};
use hoplite_core::stall::Sign;
use hoplite_core::topology::Place;
use hoplite_core::{Error, NodeId, ObjectId, PutId, Time};

use super::exchange::Exchange;
use super::line::Line;
use super::network::Break;
use super::slots::Slots;
use super::transfers::{Reader, Serve, TransferId};
use super::{Application, Cluster, Config, Network};

const DATA_PORT: u16 = 7400;
const MAX_START_MS: u64 = 20;

pub(crate) struct StoreHost {
    pub(crate) node: Node,
    pub(crate) info: NodeInfo,
    pub(crate) is_alive: bool,
    /// Number of this run. A restart increases it, and events for an earlier run have no effect.
    pub(crate) run: u64,
    pub(crate) copies: BTreeMap<CopyId, Copy>,
    pub(super) sessions: Vec<Option<u64>>,
    pub(super) attempts: Vec<Attempts>,
    /// Simulation's numbers of the shards that this run knows, by the store's index.
    pub(super) shards: Vec<usize>,
    /// Removed shards that this run of the store has left.
    pub(super) left: BTreeSet<usize>,
    pub(super) pulls: BTreeMap<PullId, TransferId>,
    pub(super) combinations: BTreeMap<CombineId, TransferId>,
    pub(super) serves: BTreeMap<ServeId, Serve>,
    pub(super) exchanges: BTreeMap<CombineId, Exchange>,
    pub(crate) thought: Duration,
    tick_at: Option<Time>,
}

impl StoreHost {
    pub(crate) fn is_running(&self, run: u64) -> bool {
        self.is_alive && self.run == run
    }

    pub(super) fn index_of(&self, shard: usize) -> usize {
        let index = self.shards.iter().position(|known| *known == shard);
        index.expect("a store has sessions only with shards that it knows")
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.copies.is_empty()
            && self.pulls.is_empty()
            && self.combinations.is_empty()
            && self.serves.is_empty()
            && self.exchanges.is_empty()
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Copy {
    pub(crate) id: Option<ObjectId>,
    pub(crate) put: Option<PutId>,
    pub(crate) producer: Producer,
    pub(crate) size_bytes: u64,
    pub(crate) valid_bytes: u64,
    /// First byte that a hop computes. Earlier bytes count as valid but do not exist.
    pub(crate) from_bytes: u64,
    pub(crate) tag: Option<u64>,
    pub(crate) shape: u64,
    pub(crate) is_complete: bool,
    pub(crate) completed_at: Time,
    pub(crate) failure: Option<Error>,
    pub(super) last_sign: Sign,
    pub(crate) references: u32,
    pub(super) comparisons: u32,
    pub(super) line: Line,
    pub(super) readers: BTreeSet<Reader>,
}

impl Copy {
    pub(crate) fn is_of_hop(&self) -> bool {
        self.id.as_ref().is_some_and(|id| id.as_bytes().starts_with(b"\0hop-"))
    }
}

pub(crate) struct ShardHost {
    pub(crate) shard: Shard,
    pub(crate) is_alive: bool,
    pub(super) has_ended: bool,
    pub(crate) load: ShardLoad,
    pub(crate) thought: Duration,
    pub(super) sessions: Vec<Option<u64>>,
    pub(super) known: Vec<Option<Incarnation>>,
    slots: Slots,
    pub(crate) queued: usize,
    busy_until: Duration,
    pub(super) run: u64,
    tick_at: Option<Time>,
}

impl ShardHost {
    pub(super) fn incarnation_of(&self, store: usize) -> Incarnation {
        self.known[store].expect("a store with a session has introduced itself")
    }
}

/// A shard's messages in a simulation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub struct ShardLoad {
    pub received: u64,
    pub sent: u64,
    /// Modelled time in which the shard was busy.
    pub busy: Duration,
    pub longest_queue: usize,
}

pub(crate) fn node_id(store: usize) -> NodeId {
    NodeId::new(&format!("node-{store:05}")).expect("the name is valid")
}

pub(crate) fn shard_name(shard: usize) -> String {
    format!("shard-{shard}")
}

fn introduction(store: usize, run: u64, config: &Config) -> NodeInfo {
    let address =
        u32::from(Ipv4Addr::new(10, 0, 0, 0)) + u32::try_from(store).expect("it is small");
    NodeInfo {
        node: node_id(store),
        incarnation: Incarnation(run),
        data_address: SocketAddr::from((Ipv4Addr::from(address), DATA_PORT)),
        labels: config.labels.of(store, run),
        shards: ShardList::new((0..config.shards).map(shard_name)),
        version: hoplite_core::Version::NEWEST,
    }
}

impl<A: Application> Cluster<A> {
    pub(super) fn add_hosts(&mut self) {
        for _ in 0..self.config.shards {
            self.add_shard_host();
        }
        for store in 0..self.config.stores {
            let node = self.new_node(store, 1);
            self.by_name.insert(node_id(store), store);
            self.stores.push(StoreHost {
                node,
                info: introduction(store, 1, &self.config),
                is_alive: true,
                run: 1,
                copies: BTreeMap::new(),
                sessions: vec![None; self.config.shards],
                attempts: vec![Attempts::default(); self.config.shards],
                shards: (0..self.config.shards).collect(),
                left: BTreeSet::new(),
                pulls: BTreeMap::new(),
                combinations: BTreeMap::new(),
                serves: BTreeMap::new(),
                exchanges: BTreeMap::new(),
                thought: Duration::ZERO,
                tick_at: None,
            });
        }
        self.nics.resize_with(self.config.stores, Default::default);
        for store in 0..self.config.stores {
            self.open_sessions(store);
        }
    }

    pub(super) fn add_shard_host(&mut self) {
        let shard = self.new_shard();
        self.shards.push(ShardHost {
            shard,
            is_alive: true,
            has_ended: false,
            load: ShardLoad::default(),
            thought: Duration::ZERO,
            sessions: vec![None; self.config.stores],
            known: vec![None; self.config.stores],
            slots: Slots::default(),
            queued: 0,
            busy_until: Duration::ZERO,
            run: 1,
            tick_at: None,
        });
    }

    fn new_node(&mut self, store: usize, run: u64) -> Node {
        let mut node = Node::new(NodeConfig {
            node: node_id(store),
            path: Place::of_labels(&self.config.labels.of(store, run)).path,
            capacity_bytes: self.config.capacity_bytes,
            limits: self.config.limits.clone(),
            shards: ShardMap::new((0..self.config.shards).map(shard_name)),
            allreduce_schedule: self.config.allreduce_schedule,
            replicas: 1,
            spill: None,
            serves_directory: false,
            seed: self.random.next_number(),
        });
        node.apply(self.now(), node::Event::Measured { link: self.config.link }, &mut Vec::new());
        node
    }

    fn new_shard(&self) -> Shard {
        let config =
            ShardConfig { warm_up: self.config.warm_up, limits: self.config.limits.clone() };
        Shard::new(config, self.now())
    }

    fn open_sessions(&mut self, store: usize) {
        let run = self.stores[store].run;
        for shard in 0..self.config.shards {
            let delay = self.start_time();
            self.after(delay, move |cluster| cluster.connect(store, run, shard));
        }
    }

    pub(crate) fn store_named(&self, name: &NodeId) -> usize {
        *self.by_name.get(name).expect("machines know only stores of the simulation")
    }

    pub(crate) fn crash_store(&mut self, store: usize) {
        if !self.stores[store].is_alive {
            return;
        }
        self.note(|_| format!("store {store} crashes"));
        self.counts.crashes += 1;
        self.transfers_of_crashed(store);
        let host = &mut self.stores[store];
        host.is_alive = false;
        host.sessions.fill(None);
        host.copies.clear();
        host.exchanges.clear();
        host.tick_at = None;
        self.directed_numbers.retain(|(coordinator, _), _| *coordinator != store);
        self.watches.retain(|(watcher, ..), _| *watcher != store);
        self.break_sessions(Break::Reset, |session| session.store == store);
        self.break_directed(Break::Reset, |connection| {
            connection.host.store == store || connection.coordinator.store == store
        });
    }

    pub(crate) fn restart_store(&mut self, store: usize) {
        if self.stores[store].is_alive {
            return;
        }
        let node = self.new_node(store, self.stores[store].run + 1);
        let host = &mut self.stores[store];
        host.node = node;
        host.is_alive = true;
        host.run += 1;
        host.attempts.fill(Attempts::default());
        host.shards = (0..self.config.shards).collect();
        host.left.clear();
        host.info = introduction(store, host.run, &self.config);
        self.note(|_| format!("store {store} restarts"));
        self.open_sessions(store);
    }

    pub(crate) fn crash_shard(&mut self, shard: usize) {
        if !self.shards[shard].is_alive {
            return;
        }
        self.note(|_| format!("shard {shard} crashes"));
        let host = &mut self.shards[shard];
        host.is_alive = false;
        host.sessions.fill(None);
        host.known.fill(None);
        host.slots = Slots::default();
        host.tick_at = None;
        self.break_sessions(Break::Reset, |session| session.shard == shard);
    }

    pub(crate) fn restart_shard(&mut self, shard: usize) {
        if self.shards[shard].is_alive || self.shards[shard].has_ended {
            return;
        }
        self.note(|_| format!("shard {shard} restarts"));
        let fresh = self.new_shard();
        let host = &mut self.shards[shard];
        host.shard = fresh;
        host.is_alive = true;
        host.run += 1;
    }

    pub(super) fn queue_at_shard(
        &mut self,
        shard: usize,
        action: impl FnOnce(&mut Self) + 'static,
    ) {
        let (service, now) = (self.config.shard_service, self.elapsed());
        let host = &mut self.shards[shard];
        if service.is_zero() {
            host.load.received += 1;
            return action(self);
        }
        host.queued += 1;
        host.load.longest_queue = host.load.longest_queue.max(host.queued);
        host.busy_until = host.busy_until.max(now) + service;
        let at = host.busy_until;
        self.at(at, move |cluster| {
            let host = &mut cluster.shards[shard];
            host.queued -= 1;
            host.load.received += 1;
            host.load.busy += service;
            action(cluster);
        });
    }

    pub(crate) fn send_event_to_shard(&mut self, shard: usize, event: shard::Event) {
        self.queue_at_shard(shard, move |cluster| {
            cluster.shard_event(shard, event);
        });
    }

    pub(super) fn shard_event(&mut self, shard: usize, event: shard::Event) {
        if self.config.checks_slots() {
            self.shards[shard].slots.before(&event);
        }
        self.shard_turn(shard, |shard, now, effects| shard.apply(now, event, effects));
    }

    pub(super) fn shard_connect(&mut self, shard: usize, info: NodeInfo) -> Reception {
        if self.config.checks_slots() {
            self.shards[shard].slots.forget_node(&info.node);
        }
        let received =
            self.shard_turn(shard, |shard, now, effects| shard.connect(now, info, effects));
        received.expect("a crashed shard receives no session")
    }

    pub(super) fn shard_turn<T>(
        &mut self,
        shard: usize,
        turn: impl FnOnce(&mut Shard, Time, &mut Vec<shard::Effect>) -> T,
    ) -> Option<T> {
        let (now, mut effects) = (self.now(), Vec::new());
        let host = &mut self.shards[shard];
        if !host.is_alive {
            return None;
        }
        let began = Instant::now();
        let answer = turn(&mut host.shard, now, &mut effects);
        host.thought += began.elapsed();
        for effect in effects {
            match effect {
                shard::Effect::Send { node, message } => {
                    if self.config.checks_slots() {
                        let limit = self.config.limits.slots_per_location;
                        self.shards[shard].slots.record(&node, &message, limit);
                    }
                    let store = self.store_named(&node);
                    self.send_to_store(shard, store, message);
                }
                shard::Effect::Granted { .. } => self.counts.grants += 1,
                shard::Effect::PlaceKeysDiffer { .. } => {}
            }
        }
        let host = &mut self.shards[shard];
        let (run, deadline) = (host.run, host.shard.next_deadline());
        if let Some(due) = next_tick(deadline, &mut host.tick_at, now) {
            self.at_time(due, move |cluster| {
                let host = &mut cluster.shards[shard];
                if host.is_alive && host.run == run && host.tick_at == Some(due) {
                    host.tick_at = None;
                    cluster.shard_event(shard, shard::Event::Tick);
                }
            });
        }
        Some(answer)
    }

    pub(crate) fn store_event(&mut self, store: usize, event: node::Event) {
        let (now, mut effects) = (self.now(), Vec::new());
        let host = &mut self.stores[store];
        if !host.is_alive {
            return;
        }
        let began = Instant::now();
        host.node.apply(now, event, &mut effects);
        host.thought += began.elapsed();
        for effect in effects {
            self.perform(store, effect);
        }
        let host = &mut self.stores[store];
        let (run, deadline) = (host.run, host.node.next_deadline());
        if let Some(due) = next_tick(deadline, &mut host.tick_at, now) {
            self.at_time(due, move |cluster| {
                let host = &mut cluster.stores[store];
                if host.is_running(run) && host.tick_at == Some(due) {
                    host.tick_at = None;
                    cluster.store_event(store, node::Event::Tick);
                }
            });
        }
    }

    pub(super) fn at_time(&mut self, time: Time, action: impl FnOnce(&mut Self) + 'static) {
        let at = time.since(Time::ZERO).max(self.elapsed());
        self.at(at, action);
    }

    pub(super) fn start_time(&mut self) -> Duration {
        match self.config.network {
            Network::Flow { .. } => Duration::ZERO,
            Network::Blocks { .. } => self.random.millis(0..MAX_START_MS),
        }
    }

    pub(crate) fn copy(&mut self, store: usize, copy: CopyId) -> &mut Copy {
        let copies = &mut self.stores[store].copies;
        copies
            .get_mut(&copy)
            .unwrap_or_else(|| panic!("store {store} speaks of {copy:?}, which is not open"))
    }

    pub(super) fn open_copy(
        &mut self,
        store: usize,
        copy: CopyId,
        size_bytes: u64,
        producer: Producer,
    ) {
        let line = Line::flat(self.elapsed(), 0.0);
        let host = &mut self.stores[store];
        let opened = Copy {
            id: host.node.object_of(copy).map(|(id, _)| id.clone()),
            put: host.node.object_of(copy).map(|(_, put)| put),
            producer,
            size_bytes,
            valid_bytes: 0,
            from_bytes: 0,
            tag: None,
            shape: 0,
            is_complete: false,
            completed_at: Time::NEVER,
            failure: None,
            last_sign: Sign::default(),
            references: 0,
            comparisons: 0,
            line,
            readers: BTreeSet::new(),
        };
        let previous = host.copies.insert(copy, opened);
        assert!(previous.is_none(), "{copy:?} is opened once");
        self.note(|cluster| {
            format!("store {store} opens {copy:?}: {:?}", cluster.stores[store].copies[&copy])
        });
    }

    pub(crate) fn fill(&mut self, store: usize, copy: CopyId, valid_bytes: u64) {
        let line = Line::flat(self.elapsed(), valid_bytes as f64);
        let copy = self.copy(store, copy);
        (copy.valid_bytes, copy.line) = (valid_bytes, line);
    }

    pub(super) fn close_copy(&mut self, store: usize, copy: CopyId) {
        self.note(|_| format!("store {store} closes {copy:?}"));
        let host = &mut self.stores[store];
        let closed = host.copies.remove(&copy).unwrap_or_else(|| panic!("{copy:?} is not open"));
        let is_served = host.serves.values().any(|serve| serve.copy() == Some(copy));
        let is_exchanged = host.exchanges.values().any(|exchange| exchange.uses(copy));
        let mut transfers = host.pulls.values().chain(host.combinations.values());
        let user = transfers.find(|key| self.transfers[key].uses(copy));
        assert!(
            user.is_none()
                && !is_served
                && !is_exchanged
                && closed.references == 0
                && closed.comparisons == 0,
            "store {store} closes {copy:?} in use: {closed:?}, transfer {user:?}, served {is_served}"
        );
    }
}

fn next_tick(deadline: Option<Time>, planned: &mut Option<Time>, now: Time) -> Option<Time> {
    let due = deadline.filter(|deadline| *deadline != Time::NEVER)?;
    if planned.is_some_and(|planned| planned <= due && planned > now) {
        return None;
    }
    *planned = Some(due);
    Some(due)
}
