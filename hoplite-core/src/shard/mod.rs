//! One shard of the directory, as a pure state machine.
//!
//! A shard knows which nodes have, or will have, copies of its objects, and decides who may pull from whom. [`Event`]s
//! and the time go into [`Shard::apply`], [`Effect`]s come out, and the shell performs them in their order. All that a
//! shard knows is soft state: stores publish their copies again when they connect to a new shard.
//!
//! * `session`: nodes come and go.
//! * `publish`: copies come and go; the first put of an id wins.
//! * `query`: receivers ask for senders, wait, are served; slots are granted and returned.
//! * `vicinity`: receivers wait for copies that are close, and take slots over from receivers that are not.
//! * `slow`: receivers get around links that stores say are slow.
//! * `places`: within what their labels say, nodes are where measurements say.
//! * `delete`: copies are removed everywhere, and tombstones keep them from coming back.
//! * `loss`: objects whose last complete copy is gone.
//! * `orphans`: inline objects that no store has any more are given to one.
//! * `subscribe`: updates to those who watch an object.
//! * `describe`, `listing`: what tools see; `inspect`, `losses`: what the dashboard does.
//!
//! Nothing that a store sends can make a shard panic or grow without bound; the bounds are [`Limits`] and the constants
//! of this module.

mod copies;
mod deadlines;
mod delete;
mod describe;
mod entry;
mod grant;
mod history;
mod inspect;
mod listing;
mod loss;
mod losses;
mod nodes;
mod orphans;
mod places;
mod publish;
mod query;
mod session;
mod slow;
mod state;
mod subscribe;
#[cfg(test)]
mod tests;
mod vicinity;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub use crate::vocabulary::directory::*;
pub use describe::{Description, KnownNode, ShardStatus};
pub use history::GrantRecord;
pub use inspect::{
    CopyOverview, Found, MAX_LOOKED_AT, MAX_SHOWN_COPIES, NodeOverview, ObjectOverview, ObjectSearch,
    ObjectTree,
};
pub use listing::{MAX_PAGE_BYTES, Page, best_informed};
pub use losses::LostObject;

use self::deadlines::Deadlines;
use self::entry::Entry;
use self::history::GrantHistory;
use self::losses::Losses;
use self::nodes::{NodeIndex, Nodes};
use self::state::{Deletion, Orphans, Queue};
use crate::error::Error;
use crate::id::{Incarnation, NodeId, ObjectId, PutId};
use crate::limits::Limits;
use crate::plan::chain::HopTime;
use crate::plan::vicinity::TransferTimes;
use crate::time::Time;
use crate::topology::keys::{KeyCounts, PlaceKeys};
use crate::topology::measured::MeasuredPlaces;
use crate::topology::place::Path;

/// Most bytes of inline objects that a shard keeps. Beyond, small objects are pulled from stores like large ones.
/// 8192 objects of the largest inline size; next to them the million entries of a full shard take less than 1 GiB.
pub const MAX_INLINE_BYTES: u64 = 512 << 20;

/// How many clients' worth of [`Limits::max_requests_per_client`] one node may have open at one shard: as many ids as two users of the
/// node may have open at most.
const CLIENTS_PER_NODE: usize = 64;

/// What a shard is configured with.
#[derive(Debug, Clone)]
pub struct ShardConfig {
    /// Its limits.
    pub limits: Limits,
    /// For how long after its start no object counts as lost, and none as unknown to those who delete it: the stores that
    /// hold copies may not be connected yet.
    pub warm_up: Duration,
}

impl Default for ShardConfig {
    /// The default limits, and three times the default grace of nodes to come back.
    fn default() -> Self {
        let limits = Limits::default();
        Self { warm_up: limits.node_grace * 3, limits }
    }
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The session of a store is gone. Not said of a session that was refused or replaced.
    Disconnected {
        /// The store that was connected.
        node: NodeId,
        /// The run of the store whose session ended.
        incarnation: Incarnation,
    },
    /// A store says something in its current session.
    Message {
        /// The store that sent it.
        node: NodeId,
        /// The message, already bounded.
        message: ToShard,
    },
    /// It was measured where nodes are. Of no effect if what is known is newer.
    Places(MeasuredPlaces),
    /// Time has passed; see [`Shard::next_deadline`]. Every other event also does what is due.
    Tick,
}

/// What the shell must do, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Say something to a store that is connected.
    Send {
        /// The store to send to.
        node: NodeId,
        /// The message to send.
        message: ToStore,
    },
    /// Log that a slot was granted.
    Granted {
        /// The object that is granted.
        id: ObjectId,
        /// The receiver, the sender and the reason.
        record: GrantRecord,
    },
    /// Log that stores say by different keys where they are. Said once of each set of keys.
    PlaceKeysDiffer {
        /// The number of stores that have which keys.
        counts: KeyCounts,
    },
}

/// How a shard receives a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reception {
    /// It is the session of its node now.
    Accepted,
    /// So it is, and the older one of that node is to be closed. Both are of the same run of the store.
    Replaces,
    /// It is to be closed with this error. An older one stays.
    Refused(Error),
}

/// The state of one shard.
#[derive(Debug)]
pub struct Shard {
    config: ShardConfig,
    /// Before this time nothing is lost, and nothing is unknown to those who delete.
    warm_until: Time,
    nodes: Nodes,
    /// The keys of places of which the log has said that others are in use too.
    keys_said: BTreeSet<PlaceKeys>,
    entries: BTreeMap<ObjectId, Entry>,
    inline_bytes: u64,
    /// Which object each slot in use belongs to.
    grants: BTreeMap<GrantId, ObjectId>,
    next_grant: u64,
    /// How long a hop of a chain takes.
    hop_time: HopTime,
    /// How long transfers take.
    transfer_times: TransferTimes,
    /// When chains are extended for those who wait.
    extensions: BTreeMap<ObjectId, Time>,
    history: GrantHistory,
    losses: Losses,
    /// Queries that wait.
    waiting: BTreeMap<ObjectId, Queue>,
    /// Until when queries of a group wait for a copy that is close, where all of those serve others.
    held_back: BTreeMap<(ObjectId, Path), Time>,
    next_arrival: u64,
    subscribers: BTreeMap<ObjectId, BTreeSet<(NodeIndex, RequestId)>>,
    subscriptions: usize,
    /// Until when subscribers are told nothing of objects that have many copies.
    pauses: BTreeMap<ObjectId, Time>,
    /// Why puts have ended that must not come back.
    tombstones: BTreeMap<(ObjectId, PutId), DropReason>,
    /// Deletes that wait for nodes; each has a tombstone.
    deletions: BTreeMap<(ObjectId, PutId), Deletion>,
    /// Deletes of ids that nobody has published yet, only while the shard warms up. Each is an open request of its node.
    held_deletes: BTreeMap<ObjectId, BTreeSet<(NodeIndex, RequestId)>>,
    orphans: Orphans,
    due: Due,
    /// Objects that have waiting queries and may have a free slot now.
    to_serve: BTreeSet<ObjectId>,
    /// Objects that have subscribers and have changed.
    to_notify: BTreeSet<ObjectId>,
    received_messages: u64,
    sent_messages: u64,
}

/// All that happens by itself when time passes.
#[derive(Debug, Default)]
struct Due {
    /// Waiting queries time out.
    queries: Deadlines<(NodeIndex, RequestId)>,
    /// Waiting queries no longer insist on a sender other than those they avoid, or that are slow.
    patience: Deadlines<(NodeIndex, RequestId)>,
    /// Queries no longer wait for a copy that is close.
    held_back: Deadlines<(ObjectId, Path)>,
    /// Nodes that are away are given up, or copies of connected ones that were not published again.
    nodes: Deadlines<NodeIndex>,
    /// Objects without a root are lost.
    rootless: Deadlines<ObjectId>,
    /// Lost objects are forgotten.
    markers: Deadlines<ObjectId>,
    /// Tombstones expire.
    tombstones: Deadlines<(ObjectId, PutId)>,
    /// Subscribers are told of what has changed during a pause.
    news: Deadlines<ObjectId>,
    /// A chain has bytes at its end.
    extensions: Deadlines<ObjectId>,
    /// A store is asked to keep an inline object.
    orphans: Deadlines<ObjectId>,
}

/// One application of an event.
struct Turn<'a> {
    now: Time,
    effects: &'a mut Vec<Effect>,
}

impl Shard {
    /// A shard that knows nothing yet.
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
            due: Due::default(),
            to_serve: BTreeSet::new(),
            to_notify: BTreeSet::new(),
            received_messages: 0,
            sent_messages: 0,
        }
    }

    /// Receives the session that a store has opened, and appends what the shell must do to `effects`. What is sent to the node
    /// from now on, with these effects, belongs to this session, unless it is refused.
    pub fn connect(&mut self, now: Time, info: NodeInfo, effects: &mut Vec<Effect>) -> Reception {
        self.turn(now, effects, |shard, turn| shard.connected(turn, info))
    }

    /// Does what is due, then what `event` asks for, and appends what the shell must do to `effects`.
    ///
    /// A message of a node that is not connected is ignored.
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

    /// The next time at which [`Event::Tick`] has something to do.
    pub fn next_deadline(&self) -> Option<Time> {
        let due = &self.due;
        let earliest = [
            due.queries.next(),
            due.patience.next(),
            due.held_back.next(),
            due.nodes.next(),
            due.rootless.next(),
            due.markers.next(),
            due.tombstones.next(),
            due.extensions.next(),
            due.news.next(),
            due.orphans.next(),
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
        }
    }

    fn expire(&mut self, turn: &mut Turn<'_>) {
        // Loss comes before the deadlines of queries: it says more than that time is up.
        while let Some(node) = self.due.nodes.pop_due(turn.now) {
            self.node_due(turn, node);
        }
        while let Some(id) = self.due.rootless.pop_due(turn.now) {
            self.lose(turn, &id);
        }
        while let Some((node, request)) = self.due.queries.pop_due(turn.now) {
            self.time_out(turn, node, request);
        }
        while let Some((node, request)) = self.due.patience.pop_due(turn.now) {
            self.patience_ended(node, request);
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
        if turn.now >= self.warm_until {
            self.end_warm_up(turn);
        }
    }

    /// Serves those who wait for what the event made available, and tells subscribers, once per object.
    fn settle(&mut self, turn: &mut Turn<'_>) {
        while let Some(id) = self.to_serve.pop_first() {
            self.serve(turn, &id);
        }
        while let Some(id) = self.to_notify.pop_first() {
            self.notify(turn, &id);
        }
    }

    /// Notes that a query for `id` may be answerable now.
    fn mark_servable(&mut self, id: &ObjectId) {
        if self.waiting.contains_key(id) {
            self.to_serve.insert(id.clone());
        }
    }

    /// Notes that what is known about `id` has changed.
    fn mark_changed(&mut self, id: &ObjectId) {
        if self.subscribers.contains_key(id) {
            self.to_notify.insert(id.clone());
        }
    }

    /// Sends to a node, if it is connected.
    fn send(&self, turn: &mut Turn<'_>, node: NodeIndex, message: ToStore) {
        if let Some(record) = self.nodes.get(node).filter(|record| record.is_connected()) {
            turn.effects.push(Effect::Send { node: record.info.node.clone(), message });
        }
    }

    /// Sends to each of `nodes` that is connected that it must drop its copy.
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

    /// Most requests that one node may have open.
    fn max_open_requests(&self) -> usize {
        self.config.limits.max_requests_per_client.saturating_mul(CLIENTS_PER_NODE)
    }

    /// Returns `true` if `node` may open `request`; if not, it is told why.
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
