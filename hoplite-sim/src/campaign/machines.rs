//! Stores and shards, and what their effects do to the simulated world.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use bytes::Bytes;
use hoplite_core::id::Incarnation;
use hoplite_core::node::{self, CombineId, CopyId, Node, NodeConfig, Producer, PullId, ServeId};
use hoplite_core::placement::ShardMap;
use hoplite_core::shard::{self, NodeInfo, PullOutcome, Shard, ShardConfig, ToShard, UnpublishReason};
use hoplite_core::{Limits, NodeId, ObjectId, Time};

use super::Simulation;
use super::combine::Combination;
use super::network::Place;
use super::transfer::{Pull, Serve};

/// A machine with a store.
pub(super) struct StoreHost {
    pub(super) node: Node,
    pub(super) info: NodeInfo,
    pub(super) is_alive: bool,
    /// Counts its runs; what was meant for an earlier one is void.
    pub(super) run: u64,
    pub(super) sessions: Vec<Option<u64>>,
    pub(super) copies: BTreeMap<CopyId, Copy>,
    pub(super) pulls: BTreeMap<PullId, Pull>,
    pub(super) serves: BTreeMap<ServeId, Serve>,
    pub(super) combinations: BTreeMap<CombineId, Combination>,
    /// When it last had to evict a copy or refuse a slot.
    pub(super) lacked_space_at: Time,
    /// When it last ended a hop that it directed.
    pub(super) ended_hop_at: Time,
    tick_at: Option<Time>,
}

/// A copy as the arena has it.
#[derive(Debug, Clone)]
pub(super) struct Copy {
    pub(super) id: Option<ObjectId>,
    pub(super) producer: Producer,
    pub(super) size_bytes: u64,
    pub(super) valid_bytes: u64,
    /// Before this byte there are none, though they count as valid: a hop begins where it is needed.
    pub(super) from_bytes: u64,
    /// What its bytes are.
    pub(super) tag: Option<u64>,
    /// In which order and by which steps they were combined.
    pub(super) shape: u64,
    pub(super) is_complete: bool,
    /// When it was completed.
    pub(super) completed_at: Time,
    pub(super) has_failed: bool,
    /// References that clients have, comparisons that read it.
    pub(super) references: u32,
    pub(super) comparisons: u32,
}

impl Copy {
    fn new(id: Option<ObjectId>, producer: Producer, size_bytes: u64) -> Self {
        Self {
            id,
            producer,
            size_bytes,
            valid_bytes: 0,
            from_bytes: 0,
            tag: None,
            shape: 0,
            is_complete: false,
            completed_at: Time::NEVER,
            has_failed: false,
            references: 0,
            comparisons: 0,
        }
    }

    /// Whether it is the output of a hop.
    pub(super) fn is_of_hop(&self) -> bool {
        self.id.as_ref().is_some_and(|id| id.as_bytes().starts_with(b"\0hop-"))
    }
}

/// A machine with a shard.
pub(super) struct ShardHost {
    pub(super) shard: Shard,
    pub(super) is_alive: bool,
    pub(super) run: u64,
    /// The session of each store.
    pub(super) sessions: Vec<Option<u64>>,
    /// How each store introduced itself.
    known: Vec<Option<(NodeId, Incarnation)>>,
    tick_at: Option<Time>,
}

impl StoreHost {
    pub(super) fn is_running(&self, run: u64) -> bool {
        self.is_alive && self.run == run
    }
}

impl ShardHost {
    /// Under which name and run the shard knows the store that has a session.
    pub(super) fn known_as(&self, store: usize) -> (NodeId, Incarnation) {
        self.known[store].clone().expect("a store with a session has introduced itself")
    }
}

/// The limits of all simulated machines.
pub(super) fn limits() -> Limits {
    Limits { inline_below_bytes: 4096, ..Limits::default() }
}

fn data_address(store: usize) -> SocketAddr {
    let port = 7000 + u16::try_from(store).expect("there are a few stores");
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// The bytes of a small object: its tag, and zeros.
fn bytes_of(tag: Option<u64>, size_bytes: u64) -> Bytes {
    let size = usize::try_from(size_bytes).expect("small objects are small");
    let mut bytes = tag.unwrap_or(0).to_le_bytes().to_vec();
    bytes.resize(size, 0);
    bytes.into()
}

/// The tag that [`bytes_of`] wrote.
fn tag_of(bytes: &Bytes) -> u64 {
    bytes.first_chunk().map_or(0, |tag| u64::from_le_bytes(*tag))
}

/// The name of a store.
pub(super) fn node_id(store: usize) -> NodeId {
    NodeId::new(&format!("node-{store}")).expect("the name is valid")
}

/// The name of a shard.
pub(super) fn shard_name(shard: usize) -> String {
    format!("shard-{shard}")
}

impl Simulation {
    fn new_node(&mut self, store: usize) -> Node {
        let mut node = Node::new(NodeConfig {
            node: node_id(store),
            topology: self.scenario.topology.clone(),
            capacity_bytes: self.scenario.capacity_bytes,
            limits: limits(),
            shards: ShardMap::new((0..self.scenario.shards).map(shard_name)),
            seed: self.random.next_number(),
        });
        node.measured(self.scenario.link);
        node
    }

    pub(super) fn add_store(&mut self, store: usize) {
        let info = NodeInfo {
            node: node_id(store),
            incarnation: Incarnation(1),
            data_address: data_address(store),
            labels: Vec::new(),
        };
        let node = self.new_node(store);
        self.stores.push(StoreHost {
            node,
            info,
            is_alive: true,
            run: 1,
            sessions: vec![None; self.scenario.shards],
            copies: BTreeMap::new(),
            pulls: BTreeMap::new(),
            serves: BTreeMap::new(),
            combinations: BTreeMap::new(),
            lacked_space_at: Time::ZERO,
            ended_hop_at: Time::ZERO,
            tick_at: None,
        });
        self.store_started(store);
    }

    fn store_started(&mut self, store: usize) {
        let run = self.stores[store].run;
        for shard in 0..self.scenario.shards {
            let delay = self.random.millis(0..20);
            self.after(delay, move |sim| sim.connect(store, run, shard));
        }
        for _ in 0..self.scenario.clients_per_store {
            self.spawn_client(store);
        }
    }

    pub(super) fn crash_store(&mut self, store: usize) {
        if !self.stores[store].is_alive {
            return;
        }
        self.note(|_| format!("store {store} crashes"));
        self.summary.evictions += self.stores[store].node.status().evictions;
        let host = &mut self.stores[store];
        host.is_alive = false;
        host.sessions.fill(None);
        host.copies.clear();
        host.pulls.clear();
        host.serves.clear();
        host.tick_at = None;
        self.combinations_of_crashed(store);
        self.break_sessions_of(Place::Store(store));
        self.break_directions(|direction| {
            direction.host.store == store || direction.coordinator.store == store
        });
        self.clients_of_crashed(store);
    }

    pub(super) fn restart_store(&mut self, store: usize) {
        if self.stores[store].is_alive {
            return;
        }
        let node = self.new_node(store);
        let host = &mut self.stores[store];
        host.node = node;
        host.is_alive = true;
        host.run += 1;
        host.info.incarnation = Incarnation(host.run);
        self.note(|_| format!("store {store} restarts"));
        self.store_started(store);
    }

    fn new_shard(&self) -> Shard {
        let limits = limits();
        let config =
            ShardConfig { warm_up: limits.node_grace * 3, limits, topology: self.scenario.topology.clone() };
        Shard::new(config, self.now)
    }

    pub(super) fn add_shard(&mut self, index: usize) {
        debug_assert_eq!(index, self.shards.len());
        let shard = self.new_shard();
        self.shards.push(ShardHost {
            shard,
            is_alive: true,
            run: 1,
            sessions: vec![None; self.scenario.stores],
            known: vec![None; self.scenario.stores],
            tick_at: None,
        });
    }

    pub(super) fn crash_shard(&mut self, shard: usize) {
        if !self.shards[shard].is_alive {
            return;
        }
        self.note(|_| format!("shard {shard} crashes"));
        let host = &mut self.shards[shard];
        host.is_alive = false;
        host.sessions.fill(None);
        host.known.fill(None);
        host.tick_at = None;
        self.break_sessions_of(Place::Shard(shard));
    }

    pub(super) fn restart_shard(&mut self, shard: usize) {
        if self.shards[shard].is_alive {
            return;
        }
        self.note(|_| format!("shard {shard} restarts"));
        let fresh = self.new_shard();
        let host = &mut self.shards[shard];
        host.shard = fresh;
        host.is_alive = true;
        host.run += 1;
    }

    // Shards.

    /// Introduces a store; returns whether its session was refused.
    pub(super) fn shard_connected(&mut self, shard: usize, info: NodeInfo) -> bool {
        let store = self.store_named(&info.node);
        let introduced = (info.node.clone(), info.incarnation);
        let previous = self.shards[shard].known[store].replace(introduced);
        let is_refused = self.shard_event(shard, shard::Event::Connected(info));
        if is_refused {
            self.shards[shard].known[store] = previous;
        }
        is_refused
    }

    pub(super) fn store_named(&self, name: &NodeId) -> usize {
        let position = self.stores.iter().position(|host| host.info.node == *name);
        position.expect("shards know only stores of the simulation")
    }

    /// Feeds a shard; returns whether it refused a session.
    pub(super) fn shard_event(&mut self, shard: usize, event: shard::Event) -> bool {
        if !self.shards[shard].is_alive {
            return false;
        }
        let mut effects = Vec::new();
        self.shards[shard].shard.apply(self.now, event, &mut effects);
        let mut is_refused = false;
        for effect in effects {
            match effect {
                shard::Effect::Send { node, message } => {
                    let store = self.store_named(&node);
                    self.send_to_store(shard, store, message);
                }
                shard::Effect::Refuse { .. } => is_refused = true,
                // The session that is replaced is closed by the caller.
                shard::Effect::Replaced { .. } | shard::Effect::Granted { .. } => {}
            }
        }
        self.schedule_shard_tick(shard);
        is_refused
    }

    fn schedule_shard_tick(&mut self, shard: usize) {
        let host = &mut self.shards[shard];
        let Some(due) = host.shard.next_deadline().filter(|due| *due != Time::NEVER) else { return };
        if host.tick_at.is_some_and(|at| at <= due && at > self.now) {
            return;
        }
        let due = due.max(self.now);
        host.tick_at = Some(due);
        let run = host.run;
        self.at(due, move |sim| {
            let host = &mut sim.shards[shard];
            if host.is_alive && host.run == run && host.tick_at == Some(due) {
                host.tick_at = None;
                sim.shard_event(shard, shard::Event::Tick);
            }
        });
    }

    // Stores.

    pub(super) fn store_event(&mut self, store: usize, event: node::Event) {
        if !self.stores[store].is_alive {
            return;
        }
        let mut effects = Vec::new();
        self.stores[store].node.apply(self.now, event, &mut effects);
        for effect in effects {
            self.perform(store, effect);
        }
        self.schedule_store_tick(store);
    }

    fn schedule_store_tick(&mut self, store: usize) {
        let host = &mut self.stores[store];
        let Some(due) = host.node.next_deadline().filter(|due| *due != Time::NEVER) else { return };
        if host.tick_at.is_some_and(|at| at <= due && at > self.now) {
            return;
        }
        let due = due.max(self.now);
        host.tick_at = Some(due);
        let run = host.run;
        self.at(due, move |sim| {
            let host = &mut sim.stores[store];
            if host.is_running(run) && host.tick_at == Some(due) {
                host.tick_at = None;
                sim.store_event(store, node::Event::Tick);
            }
        });
    }

    /// The copy, which must be open.
    pub(super) fn copy(&mut self, store: usize, copy: CopyId) -> &mut Copy {
        let copies = &mut self.stores[store].copies;
        copies.get_mut(&copy).unwrap_or_else(|| panic!("store {store} speaks of {copy:?}, which is not open"))
    }

    fn perform(&mut self, store: usize, effect: node::Effect) {
        match effect {
            node::Effect::Reply { client, call, response } => self.answered(store, client, call, response),
            node::Effect::ToShard { shard, mut message, inline_from, .. } => {
                if let (ToShard::Publish(publish), Some(copy)) = (&mut message, inline_from) {
                    let copy = self.copy(store, copy);
                    assert!(
                        copy.is_complete && copy.valid_bytes == copy.size_bytes,
                        "inline bytes are there"
                    );
                    publish.inline = Some(bytes_of(copy.tag, copy.size_bytes));
                }
                if matches!(
                    message,
                    ToShard::ReturnSlot { outcome: PullOutcome::Cancelled, .. }
                        | ToShard::Unpublish { reason: UnpublishReason::Evicted, .. }
                ) {
                    self.stores[store].lacked_space_at = self.now;
                }
                self.send_to_shard(store, shard, message);
            }
            node::Effect::CopyOpened { copy, size_bytes, producer, .. } => {
                let host = &mut self.stores[store];
                let id = host.node.object_of(copy).map(|(id, _)| id.clone());
                let opened = Copy::new(id, producer, size_bytes);
                let previous = host.copies.insert(copy, opened.clone());
                self.note(|_| format!("store {store} opens {copy:?}: {opened:?}"));
                assert!(previous.is_none(), "{copy:?} is opened once");
            }
            node::Effect::Fill { copy, bytes } => {
                let copy = self.copy(store, copy);
                assert_eq!(u64::try_from(bytes.len()), Ok(copy.size_bytes), "a fill brings all bytes");
                copy.tag = Some(tag_of(&bytes));
                copy.valid_bytes = copy.size_bytes;
            }
            node::Effect::CopyCompleted { copy } => {
                self.note(|_| format!("store {store} completes {copy:?}"));
                let now = self.now;
                let copy = self.copy(store, copy);
                assert_eq!(copy.valid_bytes, copy.size_bytes, "a complete copy has all bytes: {copy:?}");
                (copy.is_complete, copy.completed_at) = (true, now);
                if copy.producer == Producer::Reduce {
                    let copy = copy.clone();
                    self.reduce_completed(store, &copy);
                }
            }
            node::Effect::CopyFailed { copy, error } => {
                self.note(|_| format!("store {store} fails {copy:?}: {error}"));
                self.copy(store, copy).has_failed = true;
            }
            node::Effect::CopyClosed { copy } => self.copy_closed(store, copy),
            node::Effect::StartPull { pull, copy, id, put, size_bytes, sender, offset_bytes, .. } => {
                let sender = self.store_named(&sender);
                let valid_bytes = self.copy(store, copy).valid_bytes;
                assert_eq!(offset_bytes, valid_bytes, "a pull goes on where the one before it ended");
                self.start_pull(store, pull, Pull::new(copy, id, put, size_bytes, sender));
            }
            node::Effect::CancelPull { pull } => self.cancel_pull(store, pull),
            node::Effect::ServeAccepted { serve, copy, .. } => {
                self.serve_answered(store, serve, Serve::Accepted(copy));
            }
            node::Effect::ServeRefused { serve } => self.serve_answered(store, serve, Serve::Refused),
            node::Effect::Compare { copy, id, winner, holder } => {
                let holder = self.store_named(&holder.0);
                self.start_comparison(store, copy, id, winner, holder);
            }
            node::Effect::StartCombine { combine, copy, op, dtype, offset_bytes, inputs } => {
                self.start_combine(store, combine, copy, (op, dtype), offset_bytes, inputs);
            }
            node::Effect::CancelCombine { combine } => self.cancel_combine(store, combine),
            node::Effect::StartHop { hop, node, spec, .. } => {
                let host = self.store_named(&node);
                self.start_hop(store, hop, host, spec);
            }
            node::Effect::EndHop { hop } => self.end_hop(store, hop),
            node::Effect::HopReport { hosting, report } => self.hop_reported(store, hosting, report),
        }
    }

    fn copy_closed(&mut self, store: usize, copy: CopyId) {
        self.note(|_| format!("store {store} closes {copy:?}"));
        let host = &mut self.stores[store];
        let closed = host.copies.remove(&copy).unwrap_or_else(|| panic!("{copy:?} is not open"));
        let is_pulled = host.pulls.values().any(|pull| pull.copy == copy);
        let is_served =
            host.serves.values().any(|serve| matches!(serve, Serve::Accepted(served) if *served == copy));
        let is_combined =
            host.combinations.values().any(|combination| combination.copy == copy || combination.reads(copy));
        assert!(
            !is_pulled && !is_served && !is_combined && closed.references == 0 && closed.comparisons == 0,
            "store {store} closes {copy:?} in use: {closed:?}, pulled {is_pulled}, served {is_served}, \
             combined {is_combined}"
        );
    }
}
