//! One shard of the directory, as a pure state machine.
//!
//! A shard knows which nodes have, or will have, copies of its objects, and chooses a sender for
//! each receiver. [`Event`]s and the time go into [`Shard::apply`]; [`Effect`]s come out. A shard's
//! state is soft: stores publish their copies again to a new shard.
//!
//! No message of a store can make a shard panic or grow without bound (see [`Limits`]).

mod absent;
mod awaiting;
mod copies;
mod deadlines;
mod delete;
mod describe;
mod entry;
mod grant;
mod history;
mod inspect;
mod list_steps;
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
mod shards;
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
    CopyOverview, Found, MAX_EXAMINED, MAX_SHOWN_COPIES, NodeOverview, NodeTransfer,
    ObjectOverview, ObjectSearch, ObjectTree, RecentObject,
};
pub use list_steps::{COMMIT_LIMIT, KnownShards, ListStep, PROPOSAL_TTL, Proposal, may_commit};
pub use listing::{MAX_PAGE_BYTES, Page, best_informed};
pub use losses::LostObject;
pub use prefixes::{MAX_CREATORS, MAX_PREFIXES, PrefixSum, PrefixSums};

use self::absent::LostNodes;
use self::deadlines::Deadlines;
use self::entry::Entry;
use self::history::GrantHistory;
use self::list_steps::ListState;
use self::losses::Losses;
use self::memory::LossMemory;
use self::nodes::{NodeIndex, Nodes};
use self::shortages::Replicas;
use self::state::{Deletion, HeldDeletes, Orphans, Queue, Requester, Tombstone};
use crate::error::Error;
use crate::id::{Incarnation, NodeId, ObjectId, PutId};
use crate::limits::Limits;
use crate::plan::chain::HopTime;
use crate::plan::locality::TransferTimes;
use crate::session::LEASE;
use crate::time::Time;
use crate::topology::keys::{KeyCounts, PlaceKeys};
use crate::topology::measured::MeasuredPlaces;
use crate::topology::place::Path;

/// Most inline bytes: 8192 objects of the largest inline size. Beyond this limit, receivers pull
/// small objects from stores.
pub const MAX_INLINE_BYTES: u64 = 512 << 20;

const CLIENTS_PER_NODE: usize = 64;

/// Configuration of a shard.
#[derive(Debug, Clone)]
pub struct ShardConfig {
    /// Shard's limits.
    pub limits: Limits,
    /// Time after the start in which no object counts as lost, because stores may not be connected
    /// yet. Deletes of unknown ids wait as long, and at least a [`LEASE`]. Zero disables both.
    pub warm_up: Duration,
}

impl ShardConfig {
    fn warm_up_from(&self, now: Time) -> (Time, Time) {
        let holds_deletes =
            if self.warm_up.is_zero() { self.warm_up } else { self.warm_up.max(LEASE) };
        (now + self.warm_up, now + holds_deletes)
    }
}

impl Default for ShardConfig {
    fn default() -> Self {
        let limits = Limits::default();
        Self { warm_up: limits.node_grace * 3, limits }
    }
}

/// An event for a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of the fields say it")]
pub enum Event {
    /// A store's session ended. Refused and replaced sessions send no event.
    Disconnected { node: NodeId, incarnation: Incarnation },
    /// The shard has ended a store's session. It keeps the store's locations at least for a
    /// [`LEASE`], because an unaware store may still serve copies.
    Ended { node: NodeId, incarnation: Incarnation },
    /// A message of a store's current session. The caller has checked its fields' bounds.
    Message { node: NodeId, message: ToShard },
    /// Measured places of nodes. The shard ignores places that are older than its own.
    Places(MeasuredPlaces),
    /// Time has passed; see [`Shard::next_deadline`]. Every other event also handles due deadlines.
    Tick,
}

/// An action for the shard's caller, to perform in order.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of the fields say it")]
pub enum Effect {
    /// Send a message to a connected store.
    Send { node: NodeId, message: ToStore },
    /// Log a grant.
    Granted { id: ObjectId, record: GrantRecord },
    /// Log that stores use different label keys, such as `rack`, once for each set of keys.
    PlaceKeysDiffer { counts: KeyCounts },
}

/// Result of opening a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reception {
    /// The shard now uses the session.
    Accepted,
    /// The session replaces an older one of the same process, which the caller must close.
    Replaces,
    /// The caller must close the session with this error. The node's older session stays.
    Refused(Error),
}

/// State of one shard.
#[derive(Debug)]
pub struct Shard {
    config: ShardConfig,
    warm_until: Time,
    /// The shard holds deletes of unknown ids until this time.
    deletes_from: Time,
    list: ListState,
    nodes: Nodes,
    reported_keys: BTreeSet<PlaceKeys>,
    /// Boxed, because up to half of the slots in the map's nodes are unused.
    entries: BTreeMap<ObjectId, Box<Entry>>,
    inline_bytes: u64,
    grants: BTreeMap<GrantId, ObjectId>,
    next_grant: u64,
    hop_time: HopTime,
    transfer_times: TransferTimes,
    /// Time at which waiting queries look for a sender again, because an incomplete copy gets
    /// bytes to forward.
    extensions: BTreeMap<ObjectId, Time>,
    history: GrantHistory,
    losses: Losses,
    loss_memory: LossMemory,
    absent: LostNodes,
    waiting: BTreeMap<ObjectId, Queue>,
    /// Time at which a group's queries stop waiting for its copies, which are all busy.
    held_back: BTreeMap<(ObjectId, Path), Time>,
    next_arrival: u64,
    subscribers: BTreeMap<ObjectId, BTreeSet<(NodeIndex, RequestId)>>,
    subscriptions: usize,
    pauses: BTreeMap<ObjectId, Time>,
    tombstones: BTreeMap<(ObjectId, PutId), Tombstone>,
    /// Delete requests that created tombstones. A store repeats an unanswered delete under the
    /// same request id, which it never reuses.
    performed_deletes: BTreeMap<Requester, (ObjectId, PutId)>,
    /// Deletes, each with a tombstone, that wait until nodes have dropped the put.
    deletions: BTreeMap<(ObjectId, PutId), Deletion>,
    /// Deletes of unknown ids during the warm-up, each an open request of its node.
    held_deletes: BTreeMap<ObjectId, HeldDeletes>,
    orphans: Orphans,
    replicas: Replicas,
    due: Due,
    to_serve: BTreeSet<ObjectId>,
    to_notify: BTreeSet<ObjectId>,
    received_messages: u64,
    sent_messages: u64,
}

#[derive(Debug, Default)]
struct Due {
    queries: Deadlines<(NodeIndex, RequestId)>,
    wait_limits: Deadlines<(NodeIndex, RequestId)>,
    held_back: Deadlines<(ObjectId, Path)>,
    /// Loss of a node, or of copies that a reconnected node has not published again.
    nodes: Deadlines<NodeIndex>,
    rootless: Deadlines<ObjectId>,
    /// With the times at which the makers were lost.
    unpublished: Deadlines<(ObjectId, Time)>,
    markers: Deadlines<ObjectId>,
    tombstones: Deadlines<(ObjectId, PutId)>,
    news: Deadlines<ObjectId>,
    extensions: Deadlines<ObjectId>,
    orphans: Deadlines<ObjectId>,
    replicas: Deadlines<ObjectId>,
}

struct Turn<'a> {
    now: Time,
    effects: &'a mut Vec<Effect>,
}

impl Shard {
    /// Makes an empty shard.
    pub fn new(config: ShardConfig, now: Time) -> Self {
        let (warm_until, deletes_from) = config.warm_up_from(now);
        Self {
            warm_until,
            deletes_from,
            config,
            list: ListState::default(),
            nodes: Nodes::default(),
            reported_keys: BTreeSet::new(),
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
            absent: LostNodes::default(),
            waiting: BTreeMap::new(),
            held_back: BTreeMap::new(),
            next_arrival: 0,
            subscribers: BTreeMap::new(),
            subscriptions: 0,
            pauses: BTreeMap::new(),
            tombstones: BTreeMap::new(),
            performed_deletes: BTreeMap::new(),
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

    /// Handles an opened session, and appends the effects.
    ///
    /// Unless refused, the session gets all later messages for the node, including those in
    /// `effects`.
    pub fn connect(&mut self, now: Time, info: NodeInfo, effects: &mut Vec<Effect>) -> Reception {
        self.turn(now, effects, |shard, turn| shard.connected(turn, info))
    }

    /// Handles due deadlines, then `event`, and appends the effects.
    ///
    /// Ignores a message of a node that is not connected.
    pub fn apply(&mut self, now: Time, event: Event, effects: &mut Vec<Effect>) {
        self.turn(now, effects, |shard, turn| match event {
            Event::Disconnected { node, incarnation } => {
                shard.disconnected(turn, &node, incarnation, Duration::ZERO);
            }
            Event::Ended { node, incarnation } => {
                shard.disconnected(turn, &node, incarnation, LEASE)
            }
            Event::Message { node, message } => {
                if let Some(node) = shard.nodes.connected(&node) {
                    shard.received_messages += 1;
                    shard.receive(turn, node, message);
                }
            }
            Event::Places(places) => shard.apply_places(turn, places),
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

    /// Next time for [`Event::Tick`].
    pub fn next_deadline(&self) -> Option<Time> {
        let due = &self.due;
        let earliest = [
            due.queries.next(),
            due.wait_limits.next(),
            due.held_back.next(),
            due.nodes.next(),
            due.rootless.next(),
            due.unpublished.next(),
            due.markers.next(),
            due.tombstones.next(),
            due.extensions.next(),
            due.news.next(),
            due.orphans.next(),
            due.replicas.next(),
            self.replicas.next_repair(),
            (!self.held_deletes.is_empty()).then_some(self.deletes_from),
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
            ToShard::Delete { request, id, terms } => {
                self.delete(turn, (node, request), &id, terms)
            }
            ToShard::Forget { id, put } => self.forget(turn, &id, put),
            ToShard::Subscribe { request, id, wants, makes } => {
                self.subscribe(turn, (node, request), id, wants, makes);
            }
            ToShard::Unsubscribe { request } => self.unsubscribe(node, request),
            ToShard::Placed(placed) => self.restore_place(turn, node, placed),
            ToShard::SlowLinks { peers } => self.set_slow_peers(turn.now, node, peers),
            ToShard::Lead(lead) => self.update_lead(turn, node, lead),
            ToShard::NotReplicated { id, put, reason } => {
                self.replication_failed(turn, node, &id, put, reason)
            }
            ToShard::Drain { is_draining } => self.set_draining(turn, node, is_draining),
            ToShard::Shards(list) => self.list_learnt(turn, node, list),
        }
    }

    fn expire(&mut self, turn: &mut Turn<'_>) {
        // Losses precede the deadlines of queries, because a loss explains more than a timeout.
        while let Some(node) = self.due.nodes.pop_due(turn.now) {
            self.node_due(turn, node);
        }
        while let Some(id) = self.due.rootless.pop_due(turn.now) {
            self.lose(turn, &id);
        }
        while let Some((id, lost_at)) = self.due.unpublished.pop_due(turn.now) {
            self.lose_unpublished(turn, id, lost_at);
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
            self.offer_to_next_store(turn, &id);
        }
        while let Some(id) = self.due.replicas.pop_due(turn.now) {
            self.shortage_due(turn.now, &id);
        }
        self.replicas.tick(turn.now);
        if turn.now >= self.deletes_from {
            self.end_warm_up(turn);
        }
    }

    fn settle(&mut self, turn: &mut Turn<'_>) {
        self.assign_replicas(turn);
        while let Some(id) = self.to_serve.pop_first() {
            self.serve(turn, &id);
        }
        while let Some(id) = self.to_notify.pop_first() {
            self.notify(turn, &id);
        }
    }

    fn mark_servable(&mut self, id: &ObjectId) {
        if self.waiting.contains_key(id) {
            self.to_serve.insert(id.clone());
        }
    }

    fn mark_changed(&mut self, id: &ObjectId) {
        if self.subscribers.contains_key(id) {
            self.to_notify.insert(id.clone());
        }
    }

    fn send(&self, turn: &mut Turn<'_>, node: NodeIndex, message: ToStore) {
        if let Some(record) = self.nodes.get(node).filter(|record| record.is_connected()) {
            turn.effects.push(Effect::Send { node: record.info.node.clone(), message });
        }
    }

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

    fn max_open_requests(&self) -> usize {
        self.config.limits.max_requests_per_client.saturating_mul(CLIENTS_PER_NODE)
    }

    /// Returns `true` if `node` may open `request`. Otherwise answers that its number is in use, or
    /// that too many requests are open.
    fn admit(&self, turn: &mut Turn<'_>, node: NodeIndex, request: RequestId) -> bool {
        let Some(record) = self.nodes.get(node) else { return false };
        let maximum = self.max_open_requests();
        let error = if record.requests.contains_key(&request) {
            Error::invalid_request("the number of an open request was used again")
        } else if record.requests.len() >= maximum {
            Error::limit_exceeded(
                "open requests of one node",
                u64::try_from(maximum).unwrap_or(u64::MAX),
            )
        } else {
            return true;
        };
        self.send(turn, node, ToStore::Failed { request, error });
        false
    }
}
