//! Gets: answered with a local copy, or by fetching the object from one sender after another.

use std::time::Duration;

use bytes::Bytes;

use super::Objects;
use super::calls::{Access, Call, GetTerms};
use super::fetch::FetchStep;
use super::notice::SpaceWaiter;
use super::queries::Purpose;
use super::quotas::Payer;
use super::spill::Fetched;
use super::table::{ActivePull, Object, Phase};
use crate::error::{Error, Operation};
use crate::id::{NodeId, ObjectId, PutId};
use crate::message::{
    CallKey, CopyId, Effect, MAX_CONTENTS_BYTES, ObjectView, PullId, Response, ServeId, Until,
};
use crate::shard::{Grant, LocationState, Obstacle, PullOutcome, ToShard, UnpublishReason};

/// After this many failed senders, a fetch waits the full timeout for a silent sender.
const MOST_EARLY_LEAVES: usize = 3;

/// Most open calls of a client that still gets bytes: unread answers hold bytes in the store.
/// Further gets return references.
const MAX_CALLS_FOR_CONTENTS: usize = 64;

impl Objects {
    pub(crate) fn get(&mut self, key: CallKey, id: ObjectId, terms: GetTerms, timeout: Duration) {
        if let Some(response) = self.ready_copy(key, &id, terms) {
            return self.ctx.reply(key, response);
        }
        let call = Call::Get { id: id.clone(), terms };
        self.calls.enter(&mut self.ctx, key, call, Operation::Get, timeout);
        self.calls.wait_for_copy(&id, key);
        self.retry_get(key, &id, terms);
    }

    /// Answers a get from a local copy. An empty copy, or one unknown to the directory, must be
    /// complete. A stale copy, whose object may be deleted elsewhere, answers only gets that allow
    /// it.
    fn ready_copy(
        &mut self,
        key: CallKey,
        id: &ObjectId,
        terms: GetTerms,
    ) -> Option<Result<Response, Error>> {
        let GetTerms { until, join, allow_stale } = terms;
        let (copy, local) = self.copies.live(id)?;
        let has_begun = until == Until::Started && local.size_bytes > 0;
        let is_ready =
            local.is_resident() && (local.is_complete() || (has_begun && local.is_public));
        let is_stale = !self.may_serve(copy);
        if !is_ready || (is_stale && !(allow_stale && local.is_complete())) {
            return None;
        }
        // An object that another store made was not yet compared with this call's agreement.
        let checked = join.map_or(Ok(()), |agreement| local.metadata.check_made_by(id, &agreement));
        // A batch holds references until its other objects are there.
        let is_small =
            until == Until::Contents && !key.is_item() && local.size_bytes <= MAX_CONTENTS_BYTES;
        if is_small && self.calls.open_calls(key.client) <= MAX_CALLS_FOR_CONTENTS {
            self.copies.touch(copy);
            let view = ObjectView { is_stale, ..self.copies.view(copy) };
            return Some(Ok(Response::Contents { view, bytes: Bytes::new() }));
        }
        let view = checked.and_then(|()| self.refer(key.holder(), copy, Access::Read));
        Some(view.map(|view| Response::Object(ObjectView { is_stale, ..view })))
    }

    pub(crate) fn retry_get(&mut self, key: CallKey, id: &ObjectId, terms: GetTerms) {
        if let Some(response) = self.ready_copy(key, id, terms) {
            self.finish(key, response);
            return;
        }
        match self.copies.live(id) {
            Some((copy, local)) if local.is_complete() => {
                let may_answer = terms.allow_stale || self.may_serve(copy);
                if may_answer && let Fetched::Failed(error) = self.bring(copy) {
                    self.finish(key, Err(error));
                }
            }
            Some((_, local)) if local.is_produced_here() => {}
            _ => self.fetch(id),
        }
    }

    pub(crate) fn fetch(&mut self, id: &ObjectId) {
        if !self.fetches.contains(id) {
            let request = self.query(id.clone(), Purpose::Fetch);
            self.fetches.query(id, request);
        }
    }

    fn query_again(&mut self, id: &ObjectId) {
        if self.fetches.contains(id) {
            let request = self.query(id.clone(), Purpose::Fetch);
            self.fetches.query(id, request);
        }
    }

    pub(crate) fn end_fetch(&mut self, id: &ObjectId) {
        if self.stop_fetch(id) {
            self.copies.refuse_awaiting_of(&mut self.ctx, id);
        }
    }

    /// Stops a fetch, but keeps other stores' waiting requests for the copy. Returns `true` if one
    /// ran.
    pub(crate) fn stop_fetch(&mut self, id: &ObjectId) -> bool {
        let Some(step) = self.fetches.remove(&mut self.ctx, id) else { return false };
        self.decline_order(id, Obstacle::Failed);
        match step {
            FetchStep::Querying(request) => self.withdraw_query(request),
            FetchStep::WaitingForSpace { .. } => {
                self.copies.stop_waiting_for_space(&SpaceWaiter::Fetch(id.clone()));
            }
            FetchStep::Pulling | FetchStep::BackingOff { .. } => {}
        }
        true
    }

    /// Ends an unneeded fetch. A running transfer goes on: other nodes may read its bytes.
    pub(crate) fn reconsider_fetch(&mut self, id: &ObjectId) {
        let is_pending = self.fetches.step(id).is_some_and(|step| step != FetchStep::Pulling);
        if !is_pending || self.is_wanted(id) {
            return;
        }
        self.end_fetch(id);
        if let Some((copy, _)) = self.copies.live(id) {
            self.abandon(copy, Error::ObjectLost { id: id.clone() }, UnpublishReason::PullEnded);
        }
        // A create may wait until this copy is gone.
        self.wake(id);
    }

    /// Serves a copy to another node.
    ///
    /// Shards with different knowledge may name two stores as each other's senders. A store that
    /// gets a request from its sender therefore leaves and serves that sender, or refuses if it
    /// does not need the copy.
    ///
    /// If two stores request from each other at once, both leave, and query again after growing
    /// pauses. Shards end longer cycles, or these stall ([`stall`](crate::stall)).
    pub(crate) fn serve_receiver(
        &mut self,
        serve: ServeId,
        peer: &NodeId,
        id: &ObjectId,
        put: PutId,
    ) {
        if let Some(copy) = self.copies.live_put(id, put)
            && self.copies[&copy].sender() == Some(peer)
        {
            if !self.is_wanted(id) {
                return self.ctx.push(Effect::ServeRefused { serve });
            }
            self.copies.leave_sender(&mut self.ctx, copy);
        }
        // A shard may send receivers here before this store knows its sender.
        let is_expected = self.is_querying(id);
        self.copies.serve(&mut self.ctx, serve, id, put, is_expected);
    }

    fn is_querying(&self, id: &ObjectId) -> bool {
        matches!(self.fetches.step(id), Some(FetchStep::Querying(_)))
    }

    pub(crate) fn is_wanted(&self, id: &ObjectId) -> bool {
        self.orders.contains_key(id)
            || self.calls.last_get_deadline(id).is_some()
            || self.copies.live(id).is_some_and(|(_, copy)| copy.is_referenced())
    }

    /// Queries again once memory is free.
    pub(crate) fn fetch_has_space(&mut self, id: &ObjectId) {
        let Some(FetchStep::WaitingForSpace { size_bytes }) = self.fetches.step(id) else { return };
        if self.copies.may_fit(size_bytes) {
            self.query_again(id);
        } else {
            self.copies.wait_for_space(SpaceWaiter::Fetch(id.clone()));
        }
    }

    /// Opens a copy to receive into, or finds the partial one; `None` if the fetch waits for
    /// memory, or has ended.
    fn receiving_copy(&mut self, object: Object) -> Option<CopyId> {
        if !self.fetches.contains(&object.id) {
            return None;
        }
        self.decline_order_of_other(&object.id, object.put);
        let Object { id, put, size_bytes, metadata } = &object;
        if let Some((copy, local)) = self.copies.live(id) {
            if local.awaits_sender() && (local.put, local.size_bytes) == (*put, *size_bytes) {
                return Some(copy);
            }
            // The received bytes belong to another put of the id.
            self.abandon_received(copy, Error::ObjectLost { id: id.clone() });
        }
        if let Err(error) = self.check_incoming(id, *size_bytes, metadata) {
            self.fetch_failed(id, error);
            return None;
        }
        let Some(room) = self.allocate(*size_bytes) else {
            self.fetches.lack_space(id, *size_bytes);
            self.copies.wait_for_space(SpaceWaiter::Fetch(id.clone()));
            self.copies.refuse_awaiting_of(&mut self.ctx, id);
            self.decline_order(id, Obstacle::NoRoom);
            self.reconsider_fetch(id);
            return None;
        };
        Some(self.open(object, room, Phase::awaiting_sender(), Payer::Nobody))
    }

    pub(crate) fn granted(&mut self, shard: usize, grant: Grant) {
        let Grant { size_bytes, put, .. } = grant;
        let is_replaceable = self.is_replaceable(&grant);
        let object = Object { id: grant.id.clone(), put, size_bytes, metadata: grant.metadata };
        let Some(copy) = self.receiving_copy(object) else {
            return self.return_slot(shard, grant.grant, PullOutcome::Cancelled);
        };
        self.copies.accept_awaiting(&mut self.ctx, copy);
        self.copies.refuse_awaiting_of(&mut self.ctx, &grant.id);
        let pull = PullId(self.ctx.next_number());
        let offset_bytes = self.copies[&copy].received_bytes();
        let active = ActivePull {
            pull,
            sender: grant.sender.clone(),
            shard,
            grant: Some(grant.grant),
            ends_as: None,
            offset_bytes,
        };
        self.copies.begin_pull(copy, active);
        self.fetches.pull(&grant.id);
        self.ctx.push(Effect::StartPull {
            pull,
            copy,
            id: grant.id.clone(),
            put,
            size_bytes,
            sender: grant.sender,
            sender_address: grant.sender_address,
            offset_bytes,
            is_replaceable,
        });
        self.publish_elsewhere(copy, shard);
        self.wake(&grant.id);
    }

    /// Returns `true` if a pull may leave a silent sender early: another complete copy exists, and
    /// few pulls failed.
    fn is_replaceable(&self, grant: &Grant) -> bool {
        let failed = self.fetches.avoided(&grant.id).len();
        failed < MOST_EARLY_LEAVES
            && grant.sender_state == LocationState::Complete
            && usize::try_from(grant.complete_copies).is_ok_and(|copies| copies > failed + 1)
    }

    pub(crate) fn pull_ended(&mut self, pull: PullId, valid_bytes: u64, outcome: PullOutcome) {
        let ended = self.copies.end_pull(&mut self.ctx, pull, valid_bytes, outcome);
        let Some((copy, active)) = ended else { return };
        let outcome =
            active.ends_as.filter(|_| outcome == PullOutcome::Cancelled).unwrap_or(outcome);
        if self.copies.is_live(copy) {
            if outcome == PullOutcome::Complete {
                let id = self.copies[&copy].id.clone();
                self.keep_ordered(copy);
                self.end_fetch(&id);
                self.complete(copy);
                return self
                    .publish_and_return(copy, active.grant.map(|slot| (active.shard, slot)));
            }
            self.pull_failed(copy, &active, outcome);
        }
        if let Some(grant) = active.grant {
            self.return_slot(active.shard, grant, outcome);
        }
    }

    fn pull_failed(&mut self, copy: CopyId, active: &ActivePull, outcome: PullOutcome) {
        let local = &self.copies[&copy];
        let id = local.id.clone();
        let brought_bytes = local.received_bytes() > active.offset_bytes;
        if !self.is_wanted(&id) {
            self.abandon(copy, Error::ObjectLost { id: id.clone() }, UnpublishReason::PullEnded);
            return self.wake(&id);
        }
        if outcome == PullOutcome::GaveWay {
            return self.query_again(&id);
        }
        let is_sender_bad = !matches!(outcome, PullOutcome::Cancelled | PullOutcome::Complete);
        let bad_sender = is_sender_bad.then_some(&active.sender);
        if self.fetches.failed(&mut self.ctx, &id, bad_sender, brought_bytes) {
            self.query_again(&id);
        } else if self.copies.has_space_waiters() {
            self.give_up_stalled();
        }
    }

    /// Frees the partial copy of a fetch whose last transfer brought no bytes. Returns `true` if it
    /// freed memory.
    pub(crate) fn give_up_stalled(&mut self) -> bool {
        while let Some(id) = self.fetches.take_stalled() {
            if let Some((copy, local)) = self.copies.live(&id)
                && local.awaits_sender()
                && local.is_idle()
            {
                self.abandon_received(copy, Error::ObjectLost { id });
                return true;
            }
        }
        false
    }

    pub(crate) fn retry_fetch(&mut self, id: &ObjectId) {
        if matches!(self.fetches.step(id), Some(FetchStep::BackingOff { .. })) {
            self.query_again(id);
        }
    }

    pub(crate) fn fetch_failed(&mut self, id: &ObjectId, error: Error) {
        self.decline_order(id, Obstacle::Failed);
        if matches!(error, Error::Timeout { .. }) && self.is_wanted(id) {
            // Another call with a later deadline has begun since the query.
            return self.query_again(id);
        }
        self.fetches.remove(&mut self.ctx, id);
        self.copies.refuse_awaiting_of(&mut self.ctx, id);
        if let Some((copy, local)) = self.copies.live(id)
            && local.awaits_sender()
        {
            self.abandon(copy, error.clone(), UnpublishReason::PullEnded);
        }
        self.fail_gets(id, &error);
        self.wake(id);
    }

    pub(crate) fn inline_came(&mut self, shard: usize, object: Object, bytes: Bytes) {
        let (id, put) = (object.id.clone(), object.put);
        let Some(copy) = self.receiving_copy(object) else {
            return self.decline_inline(shard, &id, put);
        };
        let has_declined = self.fetches.has_declined(&id);
        self.copies.accept_awaiting(&mut self.ctx, copy);
        let is_ordered = self.keep_ordered(copy);
        self.end_fetch(&id);
        self.fill(copy, bytes);
        if has_declined || is_ordered {
            self.publish(copy);
        } else {
            // The shard that sent the bytes already lists this store's copy.
            self.publish_elsewhere(copy, shard);
        }
    }

    pub(crate) fn source_came(&mut self, shard: usize, object: Object, bytes: Bytes) {
        let (id, put) = (object.id.clone(), object.put);
        if self.fetches.contains(&id) {
            return self.inline_came(shard, object, bytes);
        }
        let is_here = self.copies.live(&id).is_some();
        let copy = if is_here { None } else { self.copy_to_fill(object) };
        let Some(copy) = copy else { return self.decline_inline(shard, &id, put) };
        self.fill(copy, bytes);
        self.publish_elsewhere(copy, shard);
    }

    /// Opens a copy for a shard's bytes; `None` without memory, or for an invalid size or metadata.
    fn copy_to_fill(&mut self, object: Object) -> Option<CopyId> {
        self.check_incoming(&object.id, object.size_bytes, &object.metadata).ok()?;
        let room = self.allocate(object.size_bytes)?;
        Some(self.open(object, room, Phase::awaiting_sender(), Payer::Nobody))
    }

    /// Keeps a small object whose bytes only a shard has, if it fits.
    pub(crate) fn take_over(&mut self, shard: usize, object: Object, bytes: Bytes) {
        let id = object.id.clone();
        if self.ctx.sessions.has_just_returned(shard) && self.ctx.reading_shard(&id) != Some(shard)
        {
            // The object may have been deleted in the shard's absence. If not, the shard repeats
            // its offer.
            return;
        }
        if let Some((copy, local)) = self.copies.live(&id) {
            let is_first = self.ctx.first_shard(&id) == Some(shard);
            if local.put != object.put && !is_first && self.is_accepted(copy) {
                // The id's first shard has accepted this store's put. Otherwise the other shard
                // would offer its put again once the id is deleted.
                return self.ctx.tell_shard(shard, ToShard::Forget { id, put: object.put });
            }
            return self.promoted(shard, &id, object.put);
        }
        let Some(copy) = self.copy_to_fill(object) else { return };
        self.pin(copy);
        self.copies.accept_awaiting(&mut self.ctx, copy);
        self.end_fetch(&id);
        self.fill(copy, bytes);
        self.publish_as_kept(shard, copy);
    }

    fn fill(&mut self, copy: CopyId, bytes: Bytes) {
        self.ctx.push(Effect::Fill { copy, bytes });
        self.complete(copy);
    }
}
