//! Deletes all copies of a put, and keeps a *tombstone*: a record by which the shard refuses copies
//! that come back.
//!
//! Pending deletions are kept apart from live objects, so the shard can accept a new put while
//! nodes drop the old one. A delete times out if nodes have not confirmed when the tombstone ends.
//!
//! After its start, a shard holds a delete of an unknown id until a store publishes the id, or the
//! warm-up ends. For deletes, the warm-up lasts at least a [`LEASE`](crate::session::LEASE),
//! because a store may still serve copies by a lease of the shard's previous process.

use std::collections::BTreeMap;

use super::nodes::{NodeIndex, OpenRequest};
use super::state::{Deletion, Requester, Tombstone};
use super::{Shard, Turn};
use crate::error::Missing;
use crate::error::{Error, Operation};
use crate::id::{Incarnation, NodeId, ObjectId, PutId};
use crate::missing::Named;
use crate::vocabulary::directory::{DeleteTerms, DeleteWait, DropReason, RequestId, ToStore};

impl Shard {
    pub(super) fn delete(
        &mut self,
        turn: &mut Turn<'_>,
        requester: Requester,
        id: &ObjectId,
        terms: DeleteTerms,
    ) {
        let (node, request) = requester;
        if !self.admit(turn, node, request) {
            return;
        }
        let is_known = self.entries.contains_key(id) || self.deletion_of(id).is_some();
        // A delete of one particular put needs no hold: if the put arrives later, the shard refuses
        // it.
        if !is_known && terms.only.is_none() && turn.now < self.deletes_from {
            self.held_deletes.entry(id.clone()).or_default().insert(requester, terms);
            if let Some(record) = self.nodes.get_mut(node) {
                record.requests.insert(request, OpenRequest::HeldDelete(id.clone()));
            }
            return;
        }
        self.perform_delete(turn, requester, id, terms);
    }

    pub(super) fn perform_held_delete(&mut self, turn: &mut Turn<'_>, id: &ObjectId) {
        for (requester, terms) in self.held_deletes.remove(id).unwrap_or_default() {
            if let Some(record) = self.nodes.get_mut(requester.0) {
                record.requests.remove(&requester.1);
            }
            self.perform_delete(turn, requester, id, terms);
        }
    }

    pub(super) fn end_warm_up(&mut self, turn: &mut Turn<'_>) {
        while let Some(id) = self.held_deletes.keys().next().cloned() {
            self.perform_held_delete(turn, &id);
        }
    }

    pub(super) fn drop_held(&mut self, node: NodeIndex, request: RequestId, id: &ObjectId) {
        if let Some(requesters) = self.held_deletes.get_mut(id) {
            requesters.remove(&(node, request));
            if requesters.is_empty() {
                self.held_deletes.remove(id);
            }
        }
    }

    fn perform_delete(
        &mut self,
        turn: &mut Turn<'_>,
        requester: Requester,
        id: &ObjectId,
        terms: DeleteTerms,
    ) {
        // A repeated delete must not end a put that came after the first request.
        let repeated = self.deleted_by(requester, id);
        if terms.only.is_none() && repeated.is_none() {
            self.loss_memory.id_deleted(id);
        }
        let ended = terms.only.or(repeated).or_else(|| self.entries.get(id).map(|entry| entry.put));
        if let Some(put) = ended {
            self.end_put(turn, id, put);
            self.remember_requester(requester, (id.clone(), put));
        }
        let Some(put) = self.deletion_of(id) else {
            if ended.is_none() {
                self.notify_deleted(turn, id);
            }
            return self.answer_delete(turn, (requester, terms.wait), id, repeated);
        };
        let key = (id.clone(), put);
        if let Some(deletion) = self.deletions.get_mut(&key) {
            deletion.requesters.insert(requester, terms.wait);
        }
        let (node, request) = requester;
        if let Some(record) = self.nodes.get_mut(node) {
            record.requests.insert(request, OpenRequest::Delete(id.clone(), put));
        }
        self.finish_if_dropped(turn, &key);
    }

    fn remember_requester(&mut self, requester: Requester, key: (ObjectId, PutId)) {
        let Some(tombstone) = self.tombstones.get_mut(&key) else { return };
        if tombstone.deleted_by.is_none() {
            tombstone.deleted_by = Some(requester);
            self.performed_deletes.insert(requester, key);
        }
    }

    fn deleted_by(&self, requester: Requester, id: &ObjectId) -> Option<PutId> {
        let (deleted, put) = self.performed_deletes.get(&requester)?;
        (deleted == id).then_some(*put)
    }

    fn end_put(&mut self, turn: &mut Turn<'_>, id: &ObjectId, put: PutId) {
        let is_listed = self.entries.get(id).is_some_and(|entry| entry.put == put);
        let dropped = if is_listed { self.drop_everywhere(turn, id) } else { None };
        self.loss_memory.put_deleted(id, put);
        self.remember_end(turn, id, put, DropReason::Deleted);
        if let Some(holders) = dropped {
            let pending = holders.into_iter().collect();
            self.deletions
                .insert((id.clone(), put), Deletion { pending, requesters: BTreeMap::new() });
        }
    }

    /// Removes a put that the other shard of the id has deleted.
    pub(super) fn forget(&mut self, turn: &mut Turn<'_>, id: &ObjectId, put: PutId) {
        self.end_put(turn, id, put);
        self.finish_if_dropped(turn, &(id.clone(), put));
    }

    /// Answers a delete. If the caller waits for lost nodes, the request stays open for a second
    /// answer.
    fn answer_delete(
        &mut self,
        turn: &mut Turn<'_>,
        ((node, request), wait): (Requester, DeleteWait),
        id: &ObjectId,
        put: Option<PutId>,
    ) {
        let absent = self.absent_holders(id);
        if wait == DeleteWait::All
            && self.await_absent(node, request, id)
            && let Some(record) = self.nodes.get_mut(node)
        {
            record.requests.insert(request, OpenRequest::AwaitingDelete(id.clone()));
        }
        self.send(turn, node, ToStore::DeleteDone { request, put, absent });
    }

    pub(super) fn drop_confirmed(
        &mut self,
        turn: &mut Turn<'_>,
        node: NodeIndex,
        id: &ObjectId,
        put: PutId,
    ) {
        let key = (id.clone(), put);
        self.holder_confirmed(turn, node, id, put);
        if let Some(deletion) = self.deletions.get_mut(&key) {
            deletion.pending.remove(&node);
            self.finish_if_dropped(turn, &key);
        } else if !self.tombstones.contains_key(&key) {
            // The other shard of this id made the node drop the put, so it is deleted here, too.
            if self.entries.get(id).is_some_and(|entry| entry.put == put) {
                let lost_at = turn.now + self.config.limits.node_grace;
                self.remove_location(turn, id, node, lost_at);
            }
            self.forget(turn, id, put);
        }
    }

    fn drop_everywhere(&mut self, turn: &mut Turn<'_>, id: &ObjectId) -> Option<Vec<NodeIndex>> {
        let (entry, holders) = self.dismantle(id)?;
        let put = entry.put;
        self.send_drops(turn, &holders, id, put, DropReason::Deleted);
        let deleted = Error::Deleted { id: id.clone() };
        self.fail_waiting(turn, id, &deleted, |query| query.resume == Some(put));
        Some(holders)
    }

    fn deletion_of(&self, id: &ObjectId) -> Option<PutId> {
        let all = (id.clone(), PutId(0))..=(id.clone(), PutId(u64::MAX));
        self.deletions.range(all).next_back().map(|((_, put), _)| *put)
    }

    /// Answers an id's deletes once no node has a copy of any deleted put, so that no later get
    /// finds one.
    fn finish_if_dropped(&mut self, turn: &mut Turn<'_>, key: &(ObjectId, PutId)) {
        let id = &key.0;
        let all = (id.clone(), PutId(0))..=(id.clone(), PutId(u64::MAX));
        if self.deletions.range(all.clone()).any(|(_, deletion)| !deletion.pending.is_empty()) {
            return;
        }
        let dropped: Vec<(ObjectId, PutId)> =
            self.deletions.range(all).map(|(key, _)| key.clone()).collect();
        for key in dropped {
            for requester in self.close_deletion(&key) {
                self.answer_delete(turn, requester, &key.0, Some(key.1));
            }
        }
    }

    fn close_deletion(&mut self, key: &(ObjectId, PutId)) -> BTreeMap<Requester, DeleteWait> {
        let Some(deletion) = self.deletions.remove(key) else { return BTreeMap::new() };
        for (node, request) in deletion.requesters.keys() {
            if let Some(record) = self.nodes.get_mut(*node) {
                record.requests.remove(request);
            }
        }
        deletion.requesters
    }

    pub(super) fn node_left_deletions(
        &mut self,
        turn: &mut Turn<'_>,
        node: NodeIndex,
        lost: (&NodeId, Incarnation),
    ) {
        let affected = self
            .deletions
            .iter_mut()
            .filter_map(|(key, deletion)| deletion.pending.remove(&node).then(|| key.clone()));
        let affected: Vec<(ObjectId, PutId)> = affected.collect();
        self.absent.note(turn.now, lost, affected.iter().cloned());
        for key in affected {
            self.finish_if_dropped(turn, &key);
        }
    }

    pub(super) fn remember_end(
        &mut self,
        turn: &mut Turn<'_>,
        id: &ObjectId,
        put: PutId,
        reason: DropReason,
    ) {
        let key = (id.clone(), put);
        if self.tombstones.contains_key(&key) {
            return;
        }
        if self.tombstones.len() >= self.config.limits.max_objects
            && let Some(oldest) = self.due.tombstones.pop_first()
        {
            self.tombstone_expired(turn, &oldest);
        }
        let until = turn.now + self.config.limits.tombstone_ttl;
        self.tombstones.insert(key.clone(), Tombstone { reason, deleted_by: None });
        self.due.tombstones.insert(until, key);
    }

    /// Ends an expired tombstone, or extends it if a lost node may have the put and fewer than
    /// `max_objects` tombstones exist. The put's waiting deletes time out. The caller has removed
    /// the deadline.
    pub(super) fn tombstone_expired(&mut self, turn: &mut Turn<'_>, key: &(ObjectId, PutId)) {
        let ttl = self.config.limits.tombstone_ttl;
        self.absent.forget_expired(turn.now);
        if self.absent.has_holder(key) && self.tombstones.len() < self.config.limits.max_objects {
            self.due.tombstones.insert(turn.now + ttl, key.clone());
        } else {
            let tombstone = self.tombstones.remove(key);
            if let Some(requester) = tombstone.and_then(|tombstone| tombstone.deleted_by) {
                self.performed_deletes.remove(&requester);
            }
        }
        let waited = ttl;
        let pending = self.deletions.get(key).into_iter().flat_map(|deletion| &deletion.pending);
        let nodes = pending.filter_map(|node| Some(self.nodes.get(*node)?.info.node.clone()));
        let nodes = Named::of(nodes);
        let missing = (!nodes.is_empty()).then(|| Box::new(Missing::Stores { nodes }));
        for (node, request) in self.close_deletion(key).into_keys() {
            let error =
                Error::Timeout { operation: Operation::Delete, waited, missing: missing.clone() };
            self.send(turn, node, ToStore::Failed { request, error });
        }
        self.finish_if_dropped(turn, key);
    }
}
