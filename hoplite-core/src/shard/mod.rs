//! One shard of the directory, as a pure state machine.
//!
//! A shard knows which nodes have copies of its objects, or will have them, and chooses a sender
//! for each receiver. [`Event`]s and the time go into [`Shard::apply`], and [`Effect`]s come out.
//! The shell performs the effects in order. A shard has only soft state, because stores publish
//! their copies again when they connect to a new shard.
//!
//! * `session`: connects, disconnects and loses nodes.
//! * `publish`: adds and removes copies. The first put of an id wins.
//! * `query`: queues the queries of receivers, and chooses senders for them.
//! * `grant`: grants slots of senders to receivers, and frees the slots again.
//! * `locality`: lets receivers wait for close copies, and moves slots to receivers that are
//!   closer.
//! * `slow`: routes receivers around links that stores report as slow.
//! * `places`: refines the places of nodes by measurements, within their labels.
//! * `delete`: removes all copies of an object, and keeps tombstones so that they do not come back.
//! * `loss`: detects objects whose last complete copy is gone.
//! * `memory`: tells deleted objects from lost ones when a copy returns.
//! * `replicas`: keeps as many copies of objects as their puts want, and moves the copies of stores
//!   that drain.
//! * `orphans`: hands inline objects without any copy at a store to a store.
//! * `subscribe`: sends updates to the subscribers of an object.
//! * `describe`, `listing`: describe the shard to tools.
//! * `inspect`, `losses`, `prefixes`: describe the shard to the dashboard.
//!
//! No message of a store can make a shard panic or grow without bound. The bounds are [`Limits`]
//! and the constants of this module.

mod copies;
mod deadlines;
mod delete;
mod describe;
mod entry;
mod grant;
mod history;
mod inspect;
mod listing;
mod locality;
mod loss;
mod losses;
mod memory;
mod nodes;
mod orphans;
mod places;
mod prefixes;
mod publish;
mod query;
mod replicas;
mod session;
mod shortages;
mod slow;
mod state;
mod subscribe;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub use crate::vocabulary::directory::*;
pub use describe::{Description, KnownNode, ShardStatus};
pub use history::GrantRecord;
pub use inspect::{
    CopyOverview, Found, MAX_LOOKED_AT, MAX_SHOWN_COPIES, NodeOverview, NodeTransfer, ObjectOverview,
    ObjectSearch, ObjectTree, RecentObject,
};
pub use listing::{MAX_PAGE_BYTES, Page, best_informed};
pub use losses::LostObject;
pub use prefixes::{MAX_CREATORS, MAX_PREFIXES, PrefixSum, PrefixSums};

use self::deadlines::Deadlines;
use self::entry::Entry;
use self::history::GrantHistory;
use self::losses::Losses;
use self::memory::LossMemory;
use self::nodes::{NodeIndex, Nodes};
use self::shortages::Replicas;
use self::state::{Deletion, Orphans, Queue};
use crate::error::Error;
use crate::id::{Incarnation, NodeId, ObjectId, PutId};
use crate::limits::Limits;
use crate::plan::chain::HopTime;
use crate::plan::locality::TransferTimes;
use crate::time::Time;
use crate::topology::keys::{KeyCounts, PlaceKeys};
use crate::topology::measured::MeasuredPlaces;
use crate::topology::place::Path;

/// Most bytes of inline objects that a shard keeps. Beyond it, receivers pull small objects from
/// stores, like large ones. It fits 8192 objects of the largest inline size. The million entries of
/// a full shard need less than 1 GiB in addition.
pub const MAX_INLINE_BYTES: u64 = 512 << 20;

/// Factor between a node's open requests at one shard and [`Limits::max_requests_per_client`]. It
/// matches the ids that two users of the node may have open.
const CLIENTS_PER_NODE: usize = 64;

/// The configuration of a shard.
#[derive(Debug, Clone)]
pub struct ShardConfig {
    /// The limits of the shard.
    pub limits: Limits,
    /// Time after the start in which no object counts as lost, and no delete finds an id unknown.
    /// The stores with copies may not be connected yet.
    pub warm_up: Duration,
}

impl Default for ShardConfig {
    /// Returns the default limits, and a warm-up of three times the default grace period of nodes.
    fn default() -> Self {
        let limits = Limits::default();
        Self { warm_up: limits.node_grace * 3, limits }
    }
}

/// An event for a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The session of a store ended. The shell does not report the end of a refused or replaced
    /// session.
    Disconnected {
        /// The store that was connected.
        node: NodeId,
        /// The run of the store whose session ended.
        incarnation: Incarnation,
    },
    /// A store sent a message in its current session.
    Message {
        /// The store that sent it.
        node: NodeId,
        /// The message, already bounded.
        message: ToShard,
    },
    /// A survey measured the places of nodes. The shard ignores measurements older than its own.
    Places(MeasuredPlaces),
    /// Time has passed; see [`Shard::next_deadline`]. Every other event also handles due deadlines.
    Tick,
}

/// An action for the shell. The shell performs effects in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Send a message to a connected store.
    Send {
        /// The store to send to.
        node: NodeId,
        /// The message to send.
        message: ToStore,
    },
    /// Log a grant.
    Granted {
        /// The object.
        id: ObjectId,
        /// The receiver, the sender and the reason.
        record: GrantRecord,
    },
    /// Log that stores use different label keys to describe their places. Sent once for each set of
    /// keys.
    PlaceKeysDiffer {
        /// The number of stores with each set of keys.
        counts: KeyCounts,
    },
}

/// The result of opening a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reception {
    /// The session is now the session of its node.
    Accepted,
    /// The session replaces an older one of the same run of the store. The shell must close the
    /// older one.
    Replaces,
    /// The shell must close the session with this error. An older session stays.
    Refused(Error),
}

/// The state of one shard.
#[derive(Debug)]
pub struct Shard {
    config: ShardConfig,
    /// The end of the warm-up. Before it, no object is lost, and no delete finds an id unknown.
    warm_until: Time,
    nodes: Nodes,
    /// The label keys that [`Effect::PlaceKeysDiffer`] has already reported.
    keys_said: BTreeSet<PlaceKeys>,
    entries: BTreeMap<ObjectId, Entry>,
    inline_bytes: u64,
    /// The object of each slot in use.
    grants: BTreeMap<GrantId, ObjectId>,
    next_grant: u64,
    /// Estimates the time of one hop of a chain.
    hop_time: HopTime,
    /// Estimates the time of transfers.
    transfer_times: TransferTimes,
    /// The time at which an object's chain may be extended for waiting receivers.
    extensions: BTreeMap<ObjectId, Time>,
    history: GrantHistory,
    losses: Losses,
    loss_memory: LossMemory,
    /// The waiting queries of each object.
    waiting: BTreeMap<ObjectId, Queue>,
    /// The time until which the queries of a group wait for a close copy, because all close copies
    /// serve others.
    held_back: BTreeMap<(ObjectId, Path), Time>,
    next_arrival: u64,
    subscribers: BTreeMap<ObjectId, BTreeSet<(NodeIndex, RequestId)>>,
    subscriptions: usize,
    /// The time until which subscribers of an object with many copies get no updates.
    pauses: BTreeMap<ObjectId, Time>,
    /// The puts that have ended and must not come back, with the reason.
    tombstones: BTreeMap<(ObjectId, PutId), DropReason>,
    /// Deletes that wait for nodes. Each has a tombstone.
    deletions: BTreeMap<(ObjectId, PutId), Deletion>,
    /// Deletes of unknown ids during the warm-up. Each is an open request of its node.
    held_deletes: BTreeMap<ObjectId, BTreeSet<(NodeIndex, RequestId)>>,
    orphans: Orphans,
    replicas: Replicas,
    due: Due,
    /// Objects with waiting queries that may have a free slot now.
    to_serve: BTreeSet<ObjectId>,
    /// Changed objects with subscribers.
    to_notify: BTreeSet<ObjectId>,
    received_messages: u64,
    sent_messages: u64,
}

/// The deadlines of a shard.
#[derive(Debug, Default)]
struct Due {
    /// A waiting query times out.
    queries: Deadlines<(NodeIndex, RequestId)>,
    /// A waiting query accepts senders that it avoids, or senders over slow links.
    wait_limits: Deadlines<(NodeIndex, RequestId)>,
    /// The queries of a group stop waiting for a close copy.
    held_back: Deadlines<(ObjectId, Path)>,
    /// A node that is away is lost, or a connected node loses the copies that it has not published
    /// again.
    nodes: Deadlines<NodeIndex>,
    /// An object without a root is lost.
    rootless: Deadlines<ObjectId>,
    /// The marker of a lost object expires.
    markers: Deadlines<ObjectId>,
    /// A tombstone expires.
    tombstones: Deadlines<(ObjectId, PutId)>,
    /// Subscribers get the changes of a pause.
    news: Deadlines<ObjectId>,
    /// The last copy of a chain has bytes to forward.
    extensions: Deadlines<ObjectId>,
    /// An inline object is offered to a store.
    orphans: Deadlines<ObjectId>,
    /// An assignment or a pause of an object with too few copies ends.
    replicas: Deadlines<ObjectId>,
}

/// The time and the effects of one event.
struct Turn<'a> {
    now: Time,
    effects: &'a mut Vec<Effect>,
}

impl Shard {
    /// Creates a shard without nodes and objects.
    pub fn new(config: ShardConfig, now: Time) -> Self {
        Self {
            warm_until: now + config.warm_up,
            config,
            nodes: Nodes::default(),
            keys_said: BTreeSet::new(),
            entries: BTreeMap::new(),
            inline_bytes: 0,
            grants: BTreeMap::new(),
            next_grant: 1,
            hop_time: HopTime::default(),
            transfer_times: TransferTimes::default(),
            extensions: BTreeMap::new(),
            history: GrantHistory::default(),
            losses: Losses::default(),
            loss_memory: LossMemory::default(),
            waiting: BTreeMap::new(),
            held_back: BTreeMap::new(),
            next_arrival: 0,
            subscribers: BTreeMap::new(),
            subscriptions: 0,
            pauses: BTreeMap::new(),
            tombstones: BTreeMap::new(),
            deletions: BTreeMap::new(),
            held_deletes: BTreeMap::new(),
            orphans: Orphans::default(),
            replicas: Replicas::default(),
            due: Due::default(),
            to_serve: BTreeSet::new(),
            to_notify: BTreeSet::new(),
            received_messages: 0,
            sent_messages: 0,
        }
    }

    /// Handles a session that a store has opened, and appends the effects.
    ///
    /// Unless the session is refused, all messages for the node from now on belong to it, including
    /// those in `effects`.
    pub fn connect(&mut self, now: Time, info: NodeInfo, effects: &mut Vec<Effect>) -> Reception {
        self.turn(now, effects, |shard, turn| shard.connected(turn, info))
    }

    /// Handles due deadlines, then `event`, and appends the effects.
    ///
    /// Ignores a message of a node that is not connected.
    pub fn apply(&mut self, now: Time, event: Event, effects: &mut Vec<Effect>) {
        self.turn(now, effects, |shard, turn| match event {
            Event::Disconnected { node, incarnation } => shard.disconnected(turn, &node, incarnation),
            Event::Message { node, message } => {
                if let Some(node) = shard.nodes.connected(&node) {
                    shard.received_messages += 1;
                    shard.receive(turn, node, message);
                }
            }
            Event::Places(places) => shard.take_places(turn, places),
            Event::Tick => {}
        });
    }

    fn turn<T>(
        &mut self,
        now: Time,
        effects: &mut Vec<Effect>,
        happen: impl FnOnce(&mut Self, &mut Turn<'_>) -> T,
    ) -> T {
        let earlier = effects.len();
        let turn = &mut Turn { now, effects };
        self.expire(turn);
        let happened = happen(self, turn);
        self.settle(turn);
        let sent = effects[earlier..].iter().filter(|effect| matches!(effect, Effect::Send { .. }));
        self.sent_messages += sent.count() as u64;
        happened
    }

    /// Returns the next time at which [`Event::Tick`] has something to do.
    pub fn next_deadline(&self) -> Option<Time> {
        let due = &self.due;
        let earliest = [
            due.queries.next(),
            due.wait_limits.next(),
            due.held_back.next(),
            due.nodes.next(),
            due.rootless.next(),
            due.markers.next(),
            due.tombstones.next(),
            due.extensions.next(),
            due.news.next(),
            due.orphans.next(),
            due.replicas.next(),
            self.replicas.next_repair(),
            (!self.held_deletes.is_empty()).then_some(self.warm_until),
        ];
        earliest.into_iter().flatten().min()
    }

    fn receive(&mut self, turn: &mut Turn<'_>, node: NodeIndex, message: ToShard) {
        match message {
            ToShard::Publish(publish) => self.publish(turn, node, publish),
            ToShard::Unpublish { id, put, reason } => self.unpublish(turn, node, &id, put, reason),
            ToShard::Query(query) => self.query(turn, node, query),
            ToShard::Cancel { request } => self.close_request(node, request),
            ToShard::ReturnSlot { grant, outcome } => self.return_slot(turn, node, grant, outcome),
            ToShard::Delete { request, id } => self.delete(turn, node, request, &id),
            ToShard::Forget { id, put } => self.forget(turn, &id, put),
            ToShard::Subscribe { request, id, wants } => self.subscribe(turn, node, request, id, wants),
            ToShard::Unsubscribe { request } => self.unsubscribe(node, request),
            ToShard::Placed(placed) => self.recall_place(turn, node, placed),
            ToShard::SlowLinks { peers } => self.set_slow_peers(turn.now, node, peers),
            ToShard::Lead(lead) => self.take_lead(turn, node, lead),
            ToShard::NotReplicated { id, put, reason } => self.not_replicated(turn, node, &id, put, reason),
            ToShard::Drain { is_draining } => self.set_draining(turn, node, is_draining),
        }
    }

    fn expire(&mut self, turn: &mut Turn<'_>) {
        // Losses come before the deadlines of queries, because a loss explains more than a timeout.
        while let Some(node) = self.due.nodes.pop_due(turn.now) {
            self.node_due(turn, node);
        }
        while let Some(id) = self.due.rootless.pop_due(turn.now) {
            self.lose(turn, &id);
        }
        while let Some((node, request)) = self.due.queries.pop_due(turn.now) {
            self.time_out(turn, node, request);
        }
        while let Some((node, request)) = self.due.wait_limits.pop_due(turn.now) {
            self.wait_limit_ended(node, request);
        }
        while let Some((id, _)) = self.due.held_back.pop_due(turn.now) {
            self.mark_servable(&id);
        }
        while let Some(id) = self.due.extensions.pop_due(turn.now) {
            self.extensions.remove(&id);
            self.mark_servable(&id);
        }
        while let Some(id) = self.due.news.pop_due(turn.now) {
            self.mark_changed(&id);
        }
        while let Some(id) = self.due.markers.pop_due(turn.now) {
            self.forget_marker(&id);
        }
        while let Some(key) = self.due.tombstones.pop_due(turn.now) {
            self.tombstone_expired(turn, &key);
        }
        while let Some(id) = self.due.orphans.pop_due(turn.now) {
            self.hand_over(turn, &id);
        }
        while let Some(id) = self.due.replicas.pop_due(turn.now) {
            self.shortage_due(turn.now, &id);
        }
        self.replicas.tick(turn.now);
        if turn.now >= self.warm_until {
            self.end_warm_up(turn);
        }
    }

    /// Serves waiting queries and informs subscribers, once for each object that the event
    /// affected.
    fn settle(&mut self, turn: &mut Turn<'_>) {
        self.assign_replicas(turn);
        while let Some(id) = self.to_serve.pop_first() {
            self.serve(turn, &id);
        }
        while let Some(id) = self.to_notify.pop_first() {
            self.notify(turn, &id);
        }
    }

    /// Notes that the shard may be able to answer a query for `id` now.
    fn mark_servable(&mut self, id: &ObjectId) {
        if self.waiting.contains_key(id) {
            self.to_serve.insert(id.clone());
        }
    }

    /// Notes that the state of `id` has changed.
    fn mark_changed(&mut self, id: &ObjectId) {
        if self.subscribers.contains_key(id) {
            self.to_notify.insert(id.clone());
        }
    }

    /// Sends a message to a node if it is connected.
    fn send(&self, turn: &mut Turn<'_>, node: NodeIndex, message: ToStore) {
        if let Some(record) = self.nodes.get(node).filter(|record| record.is_connected()) {
            turn.effects.push(Effect::Send { node: record.info.node.clone(), message });
        }
    }

    /// Sends [`ToStore::Drop`] to each connected node of `nodes`.
    fn send_drops<'n>(
        &self,
        turn: &mut Turn<'_>,
        nodes: impl IntoIterator<Item = &'n NodeIndex>,
        id: &ObjectId,
        put: PutId,
        reason: DropReason,
    ) {
        for node in nodes {
            self.send(turn, *node, ToStore::Drop { id: id.clone(), put, reason });
        }
    }

    /// Returns the number of requests that one node may have open.
    fn max_open_requests(&self) -> usize {
        self.config.limits.max_requests_per_client.saturating_mul(CLIENTS_PER_NODE)
    }

    /// Returns `true` if `node` may open `request`; otherwise answers the request with the error.
    fn admit(&self, turn: &mut Turn<'_>, node: NodeIndex, request: RequestId) -> bool {
        let Some(record) = self.nodes.get(node) else { return false };
        let maximum = self.max_open_requests();
        let error = if record.requests.contains_key(&request) {
            Error::invalid_request("the number of an open request was used again")
        } else if record.requests.len() >= maximum {
            Error::limit_exceeded("open requests of one node", u64::try_from(maximum).unwrap_or(u64::MAX))
        } else {
            return true;
        };
        self.send(turn, node, ToStore::Failed { request, error });
        false
    }
}
