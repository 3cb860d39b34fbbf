//! Objects whose last complete copy is gone.
//!
//! An object has a *root* if somebody has all its bytes, or will have: a complete or producing location, or the inline
//! bytes. An object that loses its last root is lost; at once if nothing else of it is left, otherwise after a grace, in
//! which a receiver that has all bytes by now says so. What stays is a marker, so that queries fail at once instead of
//! waiting, until the same put comes back, another one replaces it, or the marker is forgotten.

use std::time::Duration;

use super::entry::EntryState;
use super::nodes::{NodeIndex, OpenRequest, WaitingQuery};
use super::{Shard, Turn};
use crate::error::Error;
use crate::id::ObjectId;
use crate::time::Time;
use crate::vocabulary::directory::{DropReason, RequestId, ToStore};

/// For how long queries for a lost object fail at once. Later ones wait until their deadline.
const MARKER_TTL: Duration = Duration::from_secs(600);
/// Most lost objects that are remembered: at some 200 bytes each, 13 MiB.
const MAX_MARKERS: usize = 1 << 16;

impl Shard {
    /// After a publication: the object is no longer about to be lost, or it is new and has no root yet.
    pub(super) fn root_may_be_back(&mut self, now: Time, id: &ObjectId) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        match (entry.has_root(), entry.state) {
            (true, EntryState::Rootless { due }) => self.due.rootless.remove(due, id.clone()),
            (true, EntryState::Lost { forget_at }) => self.due.markers.remove(forget_at, id.clone()),
            (false, EntryState::Live) => {
                // The one who has all of it publishes to this shard later than the one who has some of it.
                let due = (now + self.config.limits.node_grace).max(self.warm_until);
                entry.state = EntryState::Rootless { due };
                self.due.rootless.insert(due, id.clone());
                return;
            }
            _ => return,
        }
        entry.state = EntryState::Live;
    }

    /// After a location was removed: if it was the last root, the object is lost, at `lost_at` if somebody still has
    /// part of it.
    pub(super) fn root_may_be_gone(&mut self, turn: &mut Turn<'_>, id: &ObjectId, lost_at: Time) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        if entry.has_root() || entry.state != EntryState::Live {
            return;
        }
        let earliest = if entry.has_followers() { lost_at } else { turn.now };
        let due = earliest.max(self.warm_until);
        if due <= turn.now {
            self.lose(turn, id);
        } else {
            entry.state = EntryState::Rootless { due };
            self.due.rootless.insert(due, id.clone());
        }
    }

    /// Declares an object lost.
    pub(super) fn lose(&mut self, turn: &mut Turn<'_>, id: &ObjectId) {
        let Some((mut entry, holders)) = self.dismantle(id) else { return };
        self.losses.push(turn.now, id);
        self.send_drops(turn, &holders, id, entry.put, DropReason::Lost);
        self.fail_waiting(turn, id, &Error::ObjectLost { id: id.clone() }, |_| true);
        let forget_at = turn.now + MARKER_TTL;
        entry.state = EntryState::Lost { forget_at };
        self.entries.insert(id.clone(), entry);
        self.due.markers.insert(forget_at, id.clone());
        if self.due.markers.len() > MAX_MARKERS
            && let Some(oldest) = self.due.markers.pop_first()
        {
            self.forget_marker(&oldest);
        }
    }

    /// Forgets a lost object, whose deadline was taken out already.
    pub(super) fn forget_marker(&mut self, id: &ObjectId) {
        self.dismantle(id);
    }

    /// The producer of an object, which nobody else has all of, gave up: no copy of this put can ever be complete. Those who
    /// hold a part are told for what `reason`.
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

    /// Answers an error to the waiting queries of an object that `are_meant`.
    pub(super) fn fail_waiting(
        &mut self,
        turn: &mut Turn<'_>,
        id: &ObjectId,
        error: &Error,
        are_meant: impl Fn(&WaitingQuery) -> bool,
    ) {
        let queue = self.waiting.get(id).into_iter().flat_map(|queue| queue.values());
        let meant =
            queue.filter(|(node, request)| self.waiting_query(*node, *request).is_some_and(&are_meant));
        let meant: Vec<(NodeIndex, RequestId)> = meant.copied().collect();
        for (node, request) in meant {
            self.take_query(node, request);
            self.send(turn, node, ToStore::Failed { request, error: error.clone() });
        }
    }

    /// The query that waits under this number, if it is one.
    pub(super) fn waiting_query(&self, node: NodeIndex, request: RequestId) -> Option<&WaitingQuery> {
        match self.nodes.get(node)?.requests.get(&request)? {
            OpenRequest::Query(query) => Some(query),
            OpenRequest::Subscription(_) | OpenRequest::Delete(..) | OpenRequest::HeldDelete(_) => None,
        }
    }
}
