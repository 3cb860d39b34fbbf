//! Reduces and hops as a part of the node: requests come in, and what a reduction needs done is done.

use super::calls::{Call, CallKey};
use super::combine::{CombineUser, Combined, resolve_input};
use super::context::Deadline;
use super::hop::HopOwner;
use super::reduce::{Action, TargetInput};
use super::table::{LocalCopy, Phase, SpaceWaiter};
use super::{
    CallId, ClientId, CombineId, CombineInput, CombineOutcome, CopyId, Node, Reduce, Response, Until,
};
use crate::error::{Error, Operation, Result};
use crate::extent::Extent;
use crate::id::ObjectId;
use crate::metadata::Metadata;
use crate::peer::ROOM_TIMEOUT;
use crate::shard::{RequestId, UnpublishReason, Wants};

/// With more sources, most of those that the directory has may be combined elsewhere.
const MAX_BROUGHT_SOURCES: usize = 16;

/// What to ask of the directory about the sources of a reduce: small ones are combined here, if all of them are.
pub(super) fn what_to_ask_for(request: &Reduce) -> Wants {
    let are_all_needed = request.count == request.sources.len();
    if are_all_needed && request.sources.len() <= MAX_BROUGHT_SOURCES {
        Wants::Bytes
    } else {
        Wants::Locations
    }
}

impl Node {
    pub(super) fn reduce(&mut self, key: CallKey, request: Reduce) {
        if let Err(error) = self.check_reduce(key.client, &request) {
            return self.ctx.reply(key, Err(error));
        }
        self.enter_reduce(key, &request);
        self.begin_reduction(key, request);
    }

    pub(super) fn enter_reduce(&mut self, key: CallKey, request: &Reduce) {
        let (target, sources) = (request.target.clone(), request.sources.len());
        self.collectives.attempt_begins(self.ctx.of_collectives(), &target);
        let call = Call::Reduce { target, sources, reduced: Vec::new() };
        self.calls.enter(&mut self.ctx, key, call, Operation::Reduce, request.timeout);
    }

    /// Coordinates a reduce for a call that was entered.
    pub(super) fn begin_reduction(&mut self, key: CallKey, request: Reduce) {
        let target = request.target.clone();
        let existence = self.ask_target(&target);
        let wants = what_to_ask_for(&request);
        let ask = |(index, id): (usize, &ObjectId)| self.ask_source(id.clone(), &target, index, wants);
        let asks: Vec<RequestId> = request.sources.iter().enumerate().map(ask).collect();
        self.reductions.begin(&mut self.ctx, &self.copies, (key, request), existence, asks);
        self.perform_actions();
    }

    pub(super) fn check_reduce(&self, client: ClientId, request: &Reduce) -> Result<()> {
        request.check()?;
        self.calls.check_ids(self.ctx.limits(), client, &request.sources)?;
        let target = &request.target;
        let is_being_made = self.reductions.contains(target) || self.collectives.contains(target);
        if self.copies.live(target).is_some() || is_being_made {
            return Err(Error::AlreadyExists { id: target.clone() });
        }
        Ok(())
    }

    /// Looks whether a reduction can go on.
    pub(super) fn reconsider_reduce(&mut self, target: &ObjectId) {
        self.give_up_without_room(target);
        self.reductions.reconsider(&mut self.ctx, &self.copies, target);
        self.perform_actions();
    }

    pub(super) fn fail_reduce(&mut self, target: &ObjectId, error: Error) {
        self.collectives.fail(self.ctx.of_collectives(), target, &error);
        self.reductions.fail(&mut self.ctx, &self.copies, target, error);
        self.perform_actions();
    }

    /// Ends the reduction that would make an object that is being deleted; whether there was one.
    pub(super) fn delete_reduction(&mut self, target: &ObjectId) -> bool {
        let is_under_way = self.reductions.contains(target) || self.collectives.contains(target);
        if self.collectives.withdraw_announcement(self.ctx.of_collectives(), target) {
            self.drop_announced(target);
        }
        self.fail_reduce(target, Error::Deleted { id: target.clone() });
        is_under_way
    }

    /// A source that is fetched has arrived, or cannot.
    pub(super) fn source_fetched(&mut self, call: CallId, response: Result<Response>) {
        let fetched = match response {
            Ok(Response::Object(view)) => Ok(view.copy),
            Ok(_) => return,
            Err(error) => Err(error),
        };
        let copy = fetched.as_ref().ok().copied();
        self.reductions.fetched(&mut self.ctx, &self.copies, call, fetched);
        self.perform_actions();
        if let Some(copy) = copy {
            self.release(ClientId::STORE, copy);
        }
    }

    /// Does what reductions need done, in order. What follows from it comes back as notices, or goes to the end of the list.
    pub(super) fn perform_actions(&mut self) {
        while let Some(action) = self.reductions.next_action() {
            self.perform(action);
        }
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Hold(copy) => self.copies.hold(copy),
            Action::LetGo(copy) => self.let_go(copy),
            Action::Fetch { call, id, timeout } => {
                self.get(CallKey { client: ClientId::STORE, call }, id, Until::Complete, timeout);
            }
            Action::CancelFetch(call) => self.forget_call(CallKey { client: ClientId::STORE, call }),
            Action::Withdraw(request) => self.withdraw_ask(request),
            Action::Host { hop, spec } => {
                self.hostings.accept(&mut self.ctx, HopOwner::Here(hop), spec);
                self.begin_hop(HopOwner::Here(hop));
            }
            Action::Release(hop) => {
                self.hostings.release(&mut self.ctx, &mut self.copies, HopOwner::Here(hop));
            }
            Action::Reserve { target, size_bytes } => self.reserve_target(target, size_bytes),
            Action::Open { target, size_bytes, metadata, extent } => {
                self.open_target(target, size_bytes, metadata, extent);
            }
            Action::Combine { target, copy, op, dtype, offset_bytes, inputs } => {
                let inputs = inputs.into_iter().map(|input| self.resolve(input)).collect();
                let (parts, user) = ((&mut self.ctx, &mut self.copies), CombineUser::Target(target));
                self.combinations.start(parts, copy, (op, dtype), offset_bytes, inputs, user);
            }
            Action::Supersede { target, copy } => {
                self.unpublish(copy, UnpublishReason::Superseded);
                self.detach(copy, Error::Superseded { id: target });
            }
            Action::Complete { key, copy, reduced: indices } => {
                if let Some(Call::Reduce { reduced, .. }) = self.calls.get_mut(key) {
                    *reduced = indices;
                }
                self.copies.publication_mut(copy).set_sealer(key);
                self.complete_put(copy);
            }
            Action::Reconsider(target) => {
                self.reductions.reconsider(&mut self.ctx, &self.copies, &target);
            }
            Action::Abort { target, room, copy } => self.abort_target(&target, room, copy),
            Action::Fail(key, error) => {
                if self.calls.contains(key) {
                    self.finish(key, Err(error));
                }
            }
        }
    }

    fn reserve_target(&mut self, target: ObjectId, size_bytes: u64) {
        let waiter = SpaceWaiter::Target(target.clone());
        let Some(room) = self.allocate(size_bytes) else {
            self.copies.wait_for_space(waiter);
            return self.give_up_without_room(&target);
        };
        self.copies.stop_waiting_for_space(&waiter);
        let left = self.reductions.reserved(&mut self.ctx, &self.copies, &target, room);
        if let Some(room) = left {
            self.copies.give_back(room);
        }
    }

    /// Ends a collective whose target has no room here, and will have none unless objects are deleted. A short wait comes before
    /// that, because the objects of the previous round may be about to be deleted.
    pub(super) fn give_up_without_room(&mut self, target: &ObjectId) {
        let is_waiting = self.copies.is_waiting_for_space(&SpaceWaiter::Target(target.clone()));
        let Some(since) = self.collectives.awaited_since(target).filter(|_| is_waiting) else { return };
        let Some(size_bytes) = self.reductions.target_size(target) else { return };
        let now = self.ctx.now();
        if now < since + ROOM_TIMEOUT {
            return self.ctx.schedule(since + ROOM_TIMEOUT, Deadline::Reduce(target.clone()));
        }
        if self.copies.may_come_to_fit(size_bytes) {
            return self.ctx.schedule(now + ROOM_TIMEOUT, Deadline::Reduce(target.clone()));
        }
        self.fail_reduce(target, self.copies.store_full(self.ctx.node(), size_bytes));
    }

    /// Drops a target that was announced and then deleted before the directory knew it.
    pub(super) fn drop_announced(&mut self, target: &ObjectId) {
        if let Some((copy, local)) = self.copies.live(target)
            && local.is_complete()
            && local.size_bytes == 0
        {
            self.abandon(copy, Error::Deleted { id: target.clone() }, UnpublishReason::Aborted);
            self.wake(target);
        }
    }

    /// Opens the target of a reduce in the room that was made for it, and publishes it as one that is being produced.
    fn open_target(&mut self, id: ObjectId, size_bytes: u64, metadata: Metadata, room: Extent) {
        if self.copies.live(&id).is_some() {
            return self.fail_reduce(&id.clone(), Error::AlreadyExists { id });
        }
        // Calls that wait here for the object get this one.
        self.end_fetch(&id);
        let put = self.ctx.next_put();
        let metadata = Metadata { agreement: self.collectives.agreement(&id), ..metadata };
        let phase = Phase::Combining { combine: None, valid_bytes: 0 };
        let copy = self
            .copies
            .open(&mut self.ctx, LocalCopy::begin(id.clone(), put, size_bytes, metadata, room, phase));
        if !self.ctx.is_small(size_bytes) {
            self.publish(copy);
        }
        self.wake(&id);
        self.reductions.opened(&mut self.ctx, &self.copies, &id, copy);
    }

    /// Where an input of a target is read. One that should be here and is not is waited for, or fails, like any other.
    fn resolve(&self, input: TargetInput) -> CombineInput {
        match input {
            TargetInput::Here { copy, base_bytes } => CombineInput::Local { copy, base_bytes },
            TargetInput::Stream(input) => {
                let resolved = resolve_input(&self.ctx, &self.copies, &input);
                resolved.unwrap_or(CombineInput::Remote(input))
            }
        }
    }

    /// Gives up a target that is not complete, everywhere, or the room for it.
    fn abort_target(&mut self, id: &ObjectId, room: Option<Extent>, copy: Option<CopyId>) {
        self.copies.stop_waiting_for_space(&SpaceWaiter::Target(id.clone()));
        if let Some(room) = room {
            self.copies.give_back(room);
        }
        match copy {
            Some(copy) if self.copies.is_live(copy) => self.abandon_put(copy),
            // It was deleted, and those who waited for it were told.
            Some(_) => {}
            // One that was given up before another was begun has left those who wait for it with nothing.
            None => self.wake(id),
        }
    }

    /// Starts a hop if there is room for its output, and waits for room if not.
    pub(super) fn begin_hop(&mut self, owner: HopOwner) {
        let output = self.hostings.output_of(&mut self.ctx, &mut self.copies, owner);
        let Some((id, size_bytes)) = output else { return };
        let Some(room) = self.allocate(size_bytes) else {
            return self.copies.wait_for_space(SpaceWaiter::Hop(owner));
        };
        // Nobody means the output who looks for an object of its name.
        self.end_fetch(&id);
        self.hostings.begin(&mut self.ctx, &mut self.copies, &mut self.combinations, owner, room);
    }

    pub(super) fn combine_ended(&mut self, combine: CombineId, valid_bytes: u64, outcome: CombineOutcome) {
        let ended = self.combinations.end((&mut self.ctx, &mut self.copies), combine, valid_bytes);
        let Some(Combined { user, valid_bytes, is_live, held }) = ended else { return };
        for input in held {
            self.let_go(input);
        }
        match user {
            CombineUser::Membership(membership) => {
                self.exchange_ended(membership, is_live.then_some(outcome));
            }
            _ if !is_live => {}
            CombineUser::Target(target) => {
                let ended = (valid_bytes, outcome);
                self.reductions.combined(&mut self.ctx, &self.copies, &target, ended);
                self.perform_actions();
            }
            CombineUser::Hop(owner) => {
                self.hostings.combined(&mut self.ctx, &mut self.copies, owner, outcome);
            }
        }
    }
}
