//! Connects, disconnects and loses nodes.
//!
//! The shard keeps a disconnected node's locations for
//! [`Limits::node_grace`](crate::Limits::node_grace), but sends it no receivers. If the shard ended
//! the session, it keeps them at least for a [`LEASE`](crate::session::LEASE).
//!
//! If the same process comes back, its locations count again at once, and it publishes all its
//! copies again. Once it has published nothing for the grace period, the shard removes the
//! locations that were not published again.
//!
//! If another process of the node connects, the old copies are gone.

use std::time::Duration;

use super::copies::LocationRecord;
use super::nodes::{MAX_NODES, NodeIndex, OpenRequest, Presence};
use super::{DropReason, Effect, Reception, Shard, Turn};
use crate::error::Error;
use crate::id::{Incarnation, NodeId, ObjectId};
use crate::vocabulary::directory::{NodeInfo, RequestId, ToStore};

impl Shard {
    pub(super) fn connected(&mut self, turn: &mut Turn<'_>, info: NodeInfo) -> Reception {
        if let Some(error) = self.list_mismatch(&info) {
            return Reception::Refused(error);
        }
        self.begin_to_fill(turn.now, &info.shards);
        let (node, list) = (info.node.clone(), info.shards.clone());
        let reception = self.open_session(turn, info);
        if !matches!(reception, Reception::Refused(_))
            && let Some(index) = self.nodes.connected(&node)
        {
            self.list_learnt(turn, index, list);
        }
        reception
    }

    fn open_session(&mut self, turn: &mut Turn<'_>, info: NodeInfo) -> Reception {
        let known = self.nodes.index(&info.node);
        let known = known.and_then(|index| Some((index, self.nodes.get(index)?)));
        let Some((index, record)) = known else { return self.connect_new(turn, info) };
        let (connected, same_run) =
            (record.is_connected(), record.info.incarnation == info.incarnation);
        match (connected, same_run) {
            (true, true) => {
                self.begin_grace(turn, index, Duration::ZERO);
                self.reconnect(turn, index, info);
                Reception::Replaces
            }
            (false, true) => {
                self.reconnect(turn, index, info);
                Reception::Accepted
            }
            (true, false) => Reception::Refused(Error::NodeIdInUse { node: info.node }),
            (false, false) => {
                self.lose_node(turn, index);
                self.connect_new(turn, info)
            }
        }
    }

    fn compare_keys(&mut self, turn: &mut Turn<'_>) {
        let counts = self.nodes.keys();
        if counts.differ() && counts.iter().any(|(keys, _)| !self.reported_keys.contains(&keys)) {
            self.reported_keys.extend(counts.iter().map(|(keys, _)| keys));
            turn.effects.push(Effect::PlaceKeysDiffer { counts: counts.clone() });
        }
    }

    fn connect_new(&mut self, turn: &mut Turn<'_>, info: NodeInfo) -> Reception {
        let Some(index) = self.nodes.add(info, turn.now) else {
            let limit = u64::try_from(MAX_NODES).unwrap_or(u64::MAX);
            return Reception::Refused(Error::limit_exceeded("nodes", limit));
        };
        self.compare_keys(turn);
        self.place_newcomer(turn, index);
        self.reconsider_orphans(turn.now);
        self.store_came(turn.now);
        self.holder_returned(turn, index);
        Reception::Accepted
    }

    fn reconnect(&mut self, turn: &mut Turn<'_>, index: NodeIndex, info: NodeInfo) {
        let Some(record) = self.nodes.get_mut(index) else { return };
        if let Presence::Away { until, .. } = record.presence {
            self.due.nodes.remove(until, index);
        }
        let sweep_at = turn.now + self.config.limits.node_grace;
        self.due.nodes.insert(sweep_at, index);
        record.presence = Presence::Connected { sweep_at: Some(sweep_at) };
        record.session_number = record.session_number.wrapping_add(1);
        record.refreshed = turn.now;
        let path_before = record.place.path;
        self.nodes.renew(index, info);
        self.set_slow_peers(turn.now, index, Vec::new());
        self.compare_keys(turn);
        let Some(path) = self.nodes.get(index).map(|record| record.place.path) else { return };
        self.mark_copies(index, |copy| {
            copy.is_disconnected = false;
            copy.path = path;
            copy.leads = false;
        });
        self.set_draining(turn, index, false);
        self.store_came(turn.now);
        if path != path_before {
            self.reconsider_places();
        }
        self.place_newcomer(turn, index);
        self.resend_drops(turn, index);
        self.mark_holdings_servable(index);
    }

    pub(super) fn disconnected(
        &mut self,
        turn: &mut Turn<'_>,
        node: &NodeId,
        incarnation: Incarnation,
        lease: Duration,
    ) {
        let Some(index) = self.nodes.connected(node) else { return };
        if self.nodes.get(index).is_some_and(|record| record.info.incarnation == incarnation) {
            self.begin_grace(turn, index, lease);
        }
    }

    fn begin_grace(&mut self, turn: &mut Turn<'_>, index: NodeIndex, lease: Duration) {
        let Some(record) = self.nodes.get_mut(index) else { return };
        let Presence::Connected { sweep_at } = record.presence else { return };
        if let Some(sweep_at) = sweep_at {
            self.due.nodes.remove(sweep_at, index);
        }
        let until = turn.now + self.config.limits.node_grace.max(lease);
        record.presence = Presence::Away { since: turn.now, until };
        self.due.nodes.insert(until, index);
        let made = record.requests.values().filter_map(|request| match request {
            OpenRequest::Subscription(id, true) => Some(id.clone()),
            _ => None,
        });
        record.making.extend(made);
        let requests: Vec<RequestId> = record.requests.keys().copied().collect();
        let receiving: Vec<_> = record.receiving.keys().copied().collect();
        for request in requests {
            self.close_request(index, request);
        }
        for grant in receiving {
            self.release(index, grant);
        }
        self.mark_copies(index, |copy| copy.is_disconnected = true);
        self.end_assignments(turn.now, index);
        self.reconsider_replicas_at(turn.now, index);
        // Queries that waited for this node may now have to accept a slow or avoided sender.
        self.mark_holdings_servable(index);
    }

    pub(super) fn mark_copies(&mut self, index: NodeIndex, change: impl Fn(&mut LocationRecord)) {
        let Some(record) = self.nodes.get(index) else { return };
        for id in &record.holdings {
            if let Some(entry) = self.entries.get_mut(id) {
                entry.copies.change(index, &change);
            }
        }
    }

    pub(super) fn close_request(&mut self, node: NodeIndex, request: RequestId) {
        let requests = self.nodes.get_mut(node).map(|record| &mut record.requests);
        match requests.and_then(|requests| requests.remove(&request)) {
            Some(OpenRequest::Query(query)) => self.remove_from_queue(node, request, &query),
            Some(OpenRequest::Subscription(id, _)) => self.remove_subscriber(node, request, &id),
            Some(OpenRequest::Delete(id, put)) => {
                if let Some(deletion) = self.deletions.get_mut(&(id, put)) {
                    deletion.requesters.remove(&(node, request));
                }
            }
            Some(OpenRequest::HeldDelete(id)) => self.drop_held(node, request, &id),
            Some(OpenRequest::AwaitingDelete(id)) => self.stop_awaiting(node, request, &id),
            None => {}
        }
    }

    pub(super) fn node_due(&mut self, turn: &mut Turn<'_>, index: NodeIndex) {
        match self.nodes.get(index).map(|record| record.presence) {
            Some(Presence::Away { .. }) => self.lose_node(turn, index),
            Some(Presence::Connected { .. }) => self.sweep(turn, index),
            None => {}
        }
    }

    fn sweep(&mut self, turn: &mut Turn<'_>, index: NodeIndex) {
        let grace = self.config.limits.node_grace;
        let Some(record) = self.nodes.get_mut(index) else { return };
        let quiet_at = record.refreshed + grace;
        if quiet_at > turn.now {
            record.presence = Presence::Connected { sweep_at: Some(quiet_at) };
            self.due.nodes.insert(quiet_at, index);
            return;
        }
        record.presence = Presence::Connected { sweep_at: None };
        record.making.clear();
        let current = record.session_number;
        let is_stale = |id: &&ObjectId| {
            let copy = self.entries.get(*id).and_then(|entry| entry.copies.get(index));
            copy.is_some_and(|copy| copy.session != current)
        };
        let stale: Vec<ObjectId> = record.holdings.iter().filter(is_stale).cloned().collect();
        for id in stale {
            self.remove_location(turn, &id, index, turn.now);
        }
    }

    fn lose_node(&mut self, turn: &mut Turn<'_>, index: NodeIndex) {
        self.set_slow_peers(turn.now, index, Vec::new());
        let Some(record) = self.nodes.remove(index) else { return };
        let mut rootless_since = turn.now;
        if let Presence::Away { since, until } = record.presence {
            self.due.nodes.remove(until, index);
            rootless_since = since;
        }
        let lost = (&record.info.node, record.info.incarnation);
        let held =
            record.holdings.iter().filter_map(|id| Some((id.clone(), self.entries.get(id)?.put)));
        self.absent.note(turn.now, lost, held);
        for id in &record.holdings {
            self.remove_location(turn, id, index, rootless_since + self.config.limits.node_grace);
        }
        for id in record.making {
            self.lose_unpublished(turn, id, turn.now);
        }
        self.node_left_deletions(turn, index, lost);
        self.store_lost(turn.now);
    }

    pub(super) fn mark_holdings_servable(&mut self, index: NodeIndex) {
        let Some(record) = self.nodes.get(index) else { return };
        let wanted = self.waiting.keys().filter(|id| record.holdings.contains(*id));
        self.to_serve.extend(wanted.cloned());
    }

    fn resend_drops(&mut self, turn: &mut Turn<'_>, index: NodeIndex) {
        for ((id, put), deletion) in &self.deletions {
            if deletion.pending.contains(&index) {
                let message =
                    ToStore::Drop { id: id.clone(), put: *put, reason: DropReason::Deleted };
                self.send(turn, index, message);
            }
        }
    }
}
