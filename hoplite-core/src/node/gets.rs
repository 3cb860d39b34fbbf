//! Gets: answered by a copy that is here, or by fetching the object from one sender after another.

use std::time::Duration;

use bytes::Bytes;

use super::calls::{Call, CallKey};
use super::fetch::FetchStep;
use super::table::{ActivePull, LocalCopy, Phase, SpaceWaiter};
use super::{CopyId, Effect, MAX_CONTENTS_BYTES, Node, PullId, Response, ServeId, Until};
use crate::collective::Agreement;
use crate::error::{Error, Operation};
use crate::id::{NodeId, ObjectId, PutId};
use crate::metadata::Metadata;
use crate::shard::{Grant, PullOutcome, UnpublishReason};

/// While a client has more open calls than this, it gets references instead of bytes: the bytes wait in the store until the
/// client reads its answers.
const MAX_CALLS_FOR_CONTENTS: usize = 64;

impl Node {
    pub(super) fn get(&mut self, key: CallKey, id: ObjectId, until: Until, timeout: Duration) {
        self.get_or_join(key, id, until, None, timeout);
    }

    /// A get, maybe by a participant of an allreduce whose target it is.
    pub(super) fn get_or_join(
        &mut self,
        key: CallKey,
        id: ObjectId,
        until: Until,
        join: Option<Agreement>,
        timeout: Duration,
    ) {
        if let Some(response) = self.ready_copy(key, &id, until, join) {
            return self.ctx.reply(key, response);
        }
        let call = Call::Get { id: id.clone(), until, join };
        self.calls.enter(&mut self.ctx, key, call, Operation::Get, timeout);
        self.calls.wait_for_copy(&id, key);
        self.retry_get(key, &id, until, join);
    }

    /// Answers a get if there is a copy that can. The start of an object without bytes is its end. A copy that a member of a
    /// collective fills is only for participants that join.
    fn ready_copy(
        &mut self,
        key: CallKey,
        id: &ObjectId,
        until: Until,
        join: Option<Agreement>,
    ) -> Option<Result<Response, Error>> {
        let (copy, local) = self.copies.live(id)?;
        let has_begun = until == Until::Started && local.size_bytes > 0;
        if !local.is_complete() && !local.is_public() {
            join?;
            let (membership, order) = self.order_of(copy)?;
            let view = self.refer(key.client, copy);
            self.answered(membership);
            return Some(view.map(|view| Response::Ranges { view, order }));
        }
        let is_ready = local.is_complete() || has_begun;
        if !is_ready {
            return None;
        }
        // On the general path nobody has compared that before.
        let checked = join.map_or(Ok(()), |agreement| local.metadata.check_made_by(id, &agreement));
        let is_small = until == Until::Contents && local.size_bytes <= MAX_CONTENTS_BYTES;
        if is_small && self.calls.open_calls(key.client) <= MAX_CALLS_FOR_CONTENTS {
            self.copies.touch(copy);
            return Some(Ok(Response::Contents { view: self.copies.view(copy), bytes: Bytes::new() }));
        }
        Some(checked.and_then(|()| self.refer(key.client, copy).map(Response::Object)))
    }

    /// Answers a get if it can be answered, and else sees to it that the object is on its way.
    pub(super) fn retry_get(&mut self, key: CallKey, id: &ObjectId, until: Until, join: Option<Agreement>) {
        if let Some(response) = self.ready_copy(key, id, until, join) {
            self.finish(key, response);
        } else if !self.copies.live(id).is_some_and(|(_, local)| local.is_produced_here()) {
            self.fetch(id);
        }
    }

    fn fetch(&mut self, id: &ObjectId) {
        if !self.fetches.contains(id) {
            let request = self.ask_for_sender(id);
            self.fetches.ask(id, request);
        }
    }

    fn ask_again(&mut self, id: &ObjectId) {
        if self.fetches.contains(id) {
            let request = self.ask_for_sender(id);
            self.fetches.ask(id, request);
        }
    }

    /// Ends whatever a fetch waits for and forgets it.
    pub(super) fn end_fetch(&mut self, id: &ObjectId) {
        if self.stop_fetch(id) {
            self.copies.refuse_awaiting_of(&mut self.ctx, id);
        }
    }

    /// As [`Node::end_fetch`], when those who wait for this store to have the object are about to be served; whether there was
    /// a fetch.
    pub(super) fn stop_fetch(&mut self, id: &ObjectId) -> bool {
        let Some(step) = self.fetches.remove(&mut self.ctx, id) else { return false };
        match step {
            FetchStep::Asking(request) => self.withdraw_ask(request),
            FetchStep::WaitingForSpace { .. } => {
                self.copies.stop_waiting_for_space(&SpaceWaiter::Fetch(id.clone()));
            }
            FetchStep::Pulling | FetchStep::BackingOff { .. } => {}
        }
        true
    }

    /// Ends a fetch that nobody waits for any more, unless a pull runs: others may stream from what it brings.
    pub(super) fn reconsider_fetch(&mut self, id: &ObjectId) {
        let is_pending = self.fetches.step(id).is_some_and(|step| step != FetchStep::Pulling);
        if !is_pending || self.is_wanted(id) {
            return;
        }
        self.end_fetch(id);
        if let Some((copy, _)) = self.copies.live(id) {
            self.abandon(copy, Error::ObjectLost { id: id.clone() }, UnpublishReason::PullEnded);
        }
        // A create may have waited for the copy.
        self.wake(id);
    }

    /// Another node asks for a copy. It may be the one from which this store pulls it: two shards that know different things have
    /// sent each to the other then, and neither gets a byte that the other does not have. So the store that is asked leaves
    /// such a sender, and serves it. A store that does not want the copy itself would not ask for another sender, so it
    /// refuses instead.
    ///
    /// If two stores ask each other at once, both leave. If their shards know of nobody else, they come back to each other,
    /// after pauses that grow as those of all fetches do. Only who closes a cycle of two is seen here: longer ones end
    /// because they stall ([`stall`](crate::stall)).
    ///
    /// The name of the peer is only believed for this: if it is false, this store asks for another sender without need.
    pub(super) fn serve_receiver(&mut self, serve: ServeId, peer: &NodeId, id: &ObjectId, put: PutId) {
        if let Some(copy) = self.copies.live_put(id, put)
            && self.copies[&copy].sender() == Some(peer)
        {
            if !self.is_wanted(id) {
                return self.ctx.push(Effect::ServeRefused { serve });
            }
            self.copies.leave_sender(&mut self.ctx, copy);
        }
        // A receiver may hear of its grant before this store hears of the one before it in the chain.
        let is_expected = self.is_asking(id);
        self.copies.serve(&mut self.ctx, serve, id, put, is_expected);
    }

    /// Returns `true` if the directory was asked for a sender and has not answered: it may have sent somebody here by now.
    fn is_asking(&self, id: &ObjectId) -> bool {
        matches!(self.fetches.step(id), Some(FetchStep::Asking(_)))
    }

    pub(super) fn is_wanted(&self, id: &ObjectId) -> bool {
        self.calls.last_get_deadline(id).is_some()
            || self.copies.live(id).is_some_and(|(_, copy)| copy.is_referenced())
    }

    /// Room has appeared: asks again, since the sender that was granted before serves somebody else now.
    pub(super) fn fetch_has_space(&mut self, id: &ObjectId) {
        let Some(FetchStep::WaitingForSpace { size_bytes }) = self.fetches.step(id) else { return };
        if self.copies.may_fit(size_bytes) {
            self.ask_again(id);
        } else {
            self.copies.wait_for_space(SpaceWaiter::Fetch(id.clone()));
        }
    }

    /// Opens a copy to receive into, or finds the one that was begun. `None`: the fetch waits for room, or has failed.
    fn receiving_copy(
        &mut self,
        id: &ObjectId,
        put: PutId,
        size_bytes: u64,
        metadata: &Metadata,
    ) -> Option<CopyId> {
        if let Some((copy, local)) = self.copies.live(id) {
            if local.awaits_sender() && local.put == put && local.size_bytes == size_bytes {
                return Some(copy);
            }
            // The directory speaks of another put now: what was received is of no use. The fetch itself goes on.
            self.abandon_received(copy, Error::ObjectLost { id: id.clone() });
        }
        if let Err(error) = self.check_incoming(id, size_bytes, metadata) {
            self.fetch_failed(id, error);
            return None;
        }
        let Some(extent) = self.allocate(size_bytes) else {
            self.fetches.lack_space(id, size_bytes);
            self.copies.wait_for_space(SpaceWaiter::Fetch(id.clone()));
            self.copies.refuse_awaiting_of(&mut self.ctx, id);
            return None;
        };
        let phase = Phase::Receiving { pull: None, valid_bytes: 0 };
        Some(self.copies.open(
            &mut self.ctx,
            LocalCopy::begin(id.clone(), put, size_bytes, metadata.clone(), extent, phase),
        ))
    }

    pub(super) fn granted(&mut self, shard: usize, grant: Grant) {
        let is_wanted = self.fetches.contains(&grant.id);
        let copy = if is_wanted {
            self.receiving_copy(&grant.id, grant.put, grant.size_bytes, &grant.metadata)
        } else {
            None
        };
        let Some(copy) = copy else {
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
            put: grant.put,
            size_bytes: grant.size_bytes,
            sender: grant.sender,
            sender_address: grant.sender_address,
            offset_bytes,
        });
        self.publish_elsewhere(copy, shard);
        self.wake(&grant.id);
    }

    pub(super) fn pull_ended(&mut self, pull: PullId, valid_bytes: u64, outcome: PullOutcome) {
        let ended = self.copies.end_pull(&mut self.ctx, pull, valid_bytes, outcome);
        let Some((copy, active)) = ended else { return };
        let outcome = active.ends_as.filter(|_| outcome == PullOutcome::Cancelled).unwrap_or(outcome);
        if self.copies.is_live(copy) {
            if outcome == PullOutcome::Complete {
                let id = self.copies[&copy].id.clone();
                self.end_fetch(&id);
                self.complete(copy);
                return self.publish_and_return(copy, active.grant.map(|slot| (active.shard, slot)));
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
            return self.ask_again(&id);
        }
        let is_sender_bad = !matches!(outcome, PullOutcome::Cancelled | PullOutcome::Complete);
        let bad_sender = is_sender_bad.then_some(&active.sender);
        if self.fetches.failed(&mut self.ctx, &id, bad_sender, brought_bytes) {
            self.ask_again(&id);
        }
    }

    pub(super) fn retry_fetch(&mut self, id: &ObjectId) {
        if matches!(self.fetches.step(id), Some(FetchStep::BackingOff { .. })) {
            self.ask_again(id);
        }
    }

    /// The directory cannot name a sender.
    pub(super) fn fetch_failed(&mut self, id: &ObjectId, error: Error) {
        if matches!(error, Error::Timeout { .. }) && self.is_wanted(id) {
            // A call with a later deadline joined after the question was asked.
            return self.ask_again(id);
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

    /// The shard answered with the bytes themselves.
    pub(super) fn inline_came(
        &mut self,
        shard: usize,
        id: &ObjectId,
        put: PutId,
        metadata: Metadata,
        bytes: Bytes,
    ) {
        let copy = if self.fetches.contains(id) {
            self.receiving_copy(id, put, bytes.len() as u64, &metadata)
        } else {
            None
        };
        let Some(copy) = copy else { return self.decline_inline(shard, id, put) };
        let has_declined = self.fetches.has_declined(id);
        self.copies.accept_awaiting(&mut self.ctx, copy);
        self.end_fetch(id);
        self.fill(copy, bytes);
        self.complete(copy);
        if has_declined {
            self.publish(copy);
        } else {
            // The shard that answered counts the copy already.
            self.publish_elsewhere(copy, shard);
        }
    }

    /// The shard brought the bytes of an object that was only asked about: keeps them if there is room, as a get would.
    pub(super) fn source_came(
        &mut self,
        shard: usize,
        id: &ObjectId,
        put: PutId,
        metadata: Metadata,
        bytes: Bytes,
    ) {
        if self.fetches.contains(id) {
            return self.inline_came(shard, id, put, metadata, bytes);
        }
        let copy = match self.copies.live(id) {
            Some(_) => None,
            None => self.copy_to_fill(id, put, bytes.len() as u64, metadata),
        };
        let Some(copy) = copy else { return self.decline_inline(shard, id, put) };
        self.fill(copy, bytes);
        self.complete(copy);
        self.publish_elsewhere(copy, shard);
    }

    /// Opens a copy of an object whose bytes are at hand; `None` if there is no room, or it exceeds a limit.
    fn copy_to_fill(
        &mut self,
        id: &ObjectId,
        put: PutId,
        size_bytes: u64,
        metadata: Metadata,
    ) -> Option<CopyId> {
        self.check_incoming(id, size_bytes, &metadata).ok()?;
        let room = self.allocate(size_bytes)?;
        let phase = Phase::Receiving { pull: None, valid_bytes: 0 };
        let copy = LocalCopy::begin(id.clone(), put, size_bytes, metadata, room, phase);
        Some(self.copies.open(&mut self.ctx, copy))
    }

    /// The last copy of an inline object elsewhere is gone: keeps one here, if there is room.
    pub(super) fn take_over(
        &mut self,
        shard: usize,
        id: &ObjectId,
        put: PutId,
        metadata: Metadata,
        bytes: Bytes,
    ) {
        if self.copies.live(id).is_some() {
            // It is here already, or another put is.
            return self.promoted(shard, id, put);
        }
        let Some(copy) = self.copy_to_fill(id, put, bytes.len() as u64, metadata) else { return };
        self.copies.pin(copy);
        self.copies.accept_awaiting(&mut self.ctx, copy);
        self.end_fetch(id);
        self.fill(copy, bytes);
        self.complete(copy);
        self.publish_as_kept(shard, copy);
    }
}
