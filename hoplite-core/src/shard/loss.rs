//! Detects objects whose last complete copy is gone.
//!
//! An object has a *root* if its bytes need no partial copy: a complete location, a producing
//! location, or the inline bytes.
//!
//! An object without a root is lost. If partial copies are left, the shard first waits for a grace
//! period, because a receiver may have a complete copy that it has not published yet.
//!
//! A lost object leaves a *marker*, so that queries fail at once. The marker ends when the same put
//! comes back, when another put replaces it, or when it expires.

use std::time::Duration;

use super::entry::EntryState;
use super::nodes::{NodeIndex, OpenRequest, WaitingQuery};
use super::{Shard, Turn};
use crate::error::Error;
use crate::id::ObjectId;
use crate::time::Time;
use crate::vocabulary::directory::{DropReason, RequestId, ToStore};

/// Time for which queries for a lost object fail at once. Later queries wait until their deadline.
const MARKER_TTL: Duration = Duration::from_secs(600);
/// Most remembered lost objects: about 13 MiB.
const MAX_MARKERS: usize = 1 << 16;

impl Shard {
    /// Updates the state after a publication: a root may have returned, or a new object may have
    /// none.
    pub(super) fn check_root_returned(&mut self, now: Time, id: &ObjectId) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        match (entry.has_root(), entry.state()) {
            (true, EntryState::Rootless { due }) => self.due.rootless.remove(due, id.clone()),
            (true, EntryState::Lost { forget_at }) => {
                self.due.markers.remove(forget_at, id.clone())
            }
            (false, EntryState::Live) => {
                // A store may publish its complete copy later than a receiver publishes a partial
                // one.
                let due = (now + self.config.limits.node_grace).max(self.warm_until);
                entry.set_state(EntryState::Rootless { due });
                self.due.rootless.insert(due, id.clone());
                return;
            }
            _ => return,
        }
        entry.set_state(EntryState::Live);
    }

    /// Updates the state after a location was removed. With partial copies left, the object is lost
    /// only at `lost_at`.
    pub(super) fn check_root_lost(&mut self, turn: &mut Turn<'_>, id: &ObjectId, lost_at: Time) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        if entry.has_root() || entry.state() != EntryState::Live {
            return;
        }
        let earliest = if entry.has_followers() { lost_at } else { turn.now };
        let due = earliest.max(self.warm_until);
        if due <= turn.now {
            self.lose(turn, id);
        } else {
            entry.set_state(EntryState::Rootless { due });
            self.due.rootless.insert(due, id.clone());
        }
    }

    pub(super) fn lose(&mut self, turn: &mut Turn<'_>, id: &ObjectId) {
        let Some((mut entry, holders)) = self.dismantle(id) else { return };
        self.losses.push(turn.now, id);
        self.loss_memory.remember(turn.now, id, entry.put);
        self.send_drops(turn, &holders, id, entry.put, DropReason::Lost);
        self.fail_waiting(turn, id, &Error::ObjectLost { id: id.clone() }, |_| true);
        let forget_at = turn.now + MARKER_TTL;
        entry.set_state(EntryState::Lost { forget_at });
        self.entries.insert(id.clone(), entry);
        self.due.markers.insert(forget_at, id.clone());
        if self.due.markers.len() > MAX_MARKERS
            && let Some(oldest) = self.due.markers.pop_first()
        {
            self.forget_marker(&oldest);
        }
    }

    /// Fails the queries that waited at `lost_at` for an object whose maker is lost, unless the
    /// object is published or another node makes it. Waits for the end of the warm-up, and for
    /// other makers that are away.
    pub(super) fn lose_unpublished(&mut self, turn: &mut Turn<'_>, id: ObjectId, lost_at: Time) {
        if !self.waiting.contains_key(&id) || self.entries.contains_key(&id) || self.is_made(&id) {
            return;
        }
        let may_return = self.nodes.iter().any(|record| record.making.contains(&id));
        let again_at = if may_return { turn.now + self.config.limits.node_grace } else { turn.now };
        let again_at = again_at.max(self.warm_until);
        if again_at <= turn.now {
            let error = Error::ObjectLost { id: id.clone() };
            self.fail_waiting(turn, &id, &error, |query| query.since <= lost_at);
        } else if self.due.unpublished.len() < MAX_MARKERS {
            self.due.unpublished.insert(again_at, (id, lost_at));
        }
    }

    fn is_made(&self, id: &ObjectId) -> bool {
        let mut subscribers = self.subscribers.get(id).into_iter().flatten();
        subscribers.any(|(node, request)| {
            let requests = self.nodes.get(*node).map(|record| &record.requests);
            let request = requests.and_then(|requests| requests.get(request));
            matches!(request, Some(OpenRequest::Subscription(_, true)))
        })
    }

    pub(super) fn forget_marker(&mut self, id: &ObjectId) {
        self.dismantle(id);
    }

    /// Ends a put whose producer gave up. Sends `reason` to the nodes with partial copies.
    pub(super) fn abort(
        &mut self,
        turn: &mut Turn<'_>,
        producer: NodeIndex,
        id: &ObjectId,
        reason: DropReason,
    ) {
        let Some((entry, holders)) = self.dismantle(id) else { return };
        self.remember_end(turn, id, entry.put, reason);
        let others = holders.iter().filter(|holder| **holder != producer);
        self.send_drops(turn, others, id, entry.put, reason);
    }

    pub(super) fn fail_waiting(
        &mut self,
        turn: &mut Turn<'_>,
        id: &ObjectId,
        error: &Error,
        predicate: impl Fn(&WaitingQuery) -> bool,
    ) {
        let queue = self.waiting.get(id).into_iter().flat_map(|queue| queue.values());
        let matching = queue
            .filter(|(node, request)| self.waiting_query(*node, *request).is_some_and(&predicate));
        let matching: Vec<(NodeIndex, RequestId)> = matching.copied().collect();
        for (node, request) in matching {
            self.remove_query(node, request);
            self.send(turn, node, ToStore::Failed { request, error: error.clone() });
        }
    }

    pub(super) fn waiting_query(
        &self,
        node: NodeIndex,
        request: RequestId,
    ) -> Option<&WaitingQuery> {
        match self.nodes.get(node)?.requests.get(&request)? {
            OpenRequest::Query(query) => Some(query),
            OpenRequest::Subscription(..)
            | OpenRequest::Delete(..)
            | OpenRequest::HeldDelete(_)
            | OpenRequest::AwaitingDelete(_) => None,
        }
    }
}
