//! Reduces and hops as a part of the node: requests come in, and what a reduction needs done is done.

use super::reduce::{Action, TargetInput};
use super::{
    CallId, ClientId, CombineId, CombineInput, CombineOutcome, CopyId, HopId, HopReport, Node, Reduce,
    Response, Until,
};
use crate::error::{Error, Operation, Result};
use crate::extent::Extent;
use crate::id::ObjectId;
use crate::message::CallKey;
use crate::message::HopOwner;
use crate::metadata::Metadata;
use crate::objects::calls::Call;
use crate::objects::combine::{CombineUser, Combined, resolve_input};
use crate::objects::notice::SpaceWaiter;
use crate::objects::table::{LocalCopy, Phase};
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
            return self.objects.ctx.reply(key, Err(error));
        }
        self.enter_reduce(key, &request);
        self.begin_reduction(key, request);
    }

    pub(super) fn enter_reduce(&mut self, key: CallKey, request: &Reduce) {
        let (target, sources) = (request.target.clone(), request.sources.len());
        self.forget_denials(&target);
        let call = Call::Reduce { target, sources, reduced: Vec::new() };
        self.objects.calls.enter(&mut self.objects.ctx, key, call, Operation::Reduce, request.timeout);
    }

    /// Coordinates a reduce for a call that was entered.
    pub(super) fn begin_reduction(&mut self, key: CallKey, request: Reduce) {
        let target = request.target.clone();
        let existence = self.objects.query_target(&target);
        let wants = what_to_ask_for(&request);
        let ask =
            |(index, id): (usize, &ObjectId)| self.objects.query_source(id.clone(), &target, index, wants);
        let asks: Vec<RequestId> = request.sources.iter().enumerate().map(ask).collect();
        self.reductions.begin(&mut self.objects.ctx, &self.objects.copies, (key, request), existence, asks);
        self.perform_actions();
    }

    pub(super) fn check_reduce(&self, client: ClientId, request: &Reduce) -> Result<()> {
        request.check()?;
        self.objects.calls.check_ids(self.objects.ctx.limits(), client, &request.sources)?;
        let target = &request.target;
        let is_being_made = self.reductions.contains(target) || self.collectives.contains(target);
        if self.objects.copies.live(target).is_some() || is_being_made {
            return Err(Error::AlreadyExists { id: target.clone() });
        }
        Ok(())
    }

    /// Looks whether a reduction can go on.
    pub(super) fn reconsider_target(&mut self, target: &ObjectId) {
        self.reconsider_gathering(target);
        self.give_up_without_room(target);
        self.reductions.reconsider(&mut self.objects.ctx, &self.objects.copies, target);
        self.perform_actions();
    }

    pub(super) fn fail_target(&mut self, target: &ObjectId, error: Error) {
        self.fail_collective(target, &error);
        self.reductions.fail(&mut self.objects.ctx, &self.objects.copies, target, error);
        self.perform_actions();
    }

    /// Ends the reduction that would make an object that is being deleted; whether there was one.
    pub(super) fn delete_target(&mut self, target: &ObjectId) -> bool {
        let is_under_way = self.reductions.contains(target) || self.collectives.contains(target);
        self.withdraw_announcement(target);
        self.fail_target(target, Error::Deleted { id: target.clone() });
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
        self.reductions.fetched(&mut self.objects.ctx, &self.objects.copies, call, fetched);
        self.perform_actions();
        if let Some(copy) = copy {
            self.objects.release(ClientId::STORE, copy);
        }
    }

    /// The node of a hop reports how the hop goes.
    pub(super) fn hop_reported(&mut self, hop: HopId, report: HopReport) {
        self.reductions.hop_reported(&mut self.objects.ctx, &self.objects.copies, hop, report);
        self.perform_actions();
    }

    /// The directory has accepted the target of a reduce.
    pub(super) fn target_published(&mut self, target: &ObjectId) {
        self.reductions.target_published(&mut self.objects.ctx, &self.objects.copies, target);
        self.perform_actions();
    }

    /// A copy has left the index that may be the target of a reduce or a collective.
    pub(super) fn target_gone(&mut self, target: &ObjectId, copy: CopyId, error: Error) {
        self.collective_target_gone(target, &error);
        self.reductions.target_gone(&mut self.objects.ctx, &self.objects.copies, target, copy, error);
        self.perform_actions();
    }

    /// The call of a reduce or a collective has ended.
    pub(super) fn reduce_ended(&mut self, key: CallKey, target: &ObjectId, error: Option<Error>) {
        self.end_audience(key, target, error.as_ref());
        self.collective_unwanted(key, target);
        self.reductions.call_ended(&mut self.objects.ctx, &self.objects.copies, key, target);
        self.perform_actions();
    }

    /// Does what reductions need done, in order. What follows from it comes back as notices, or goes to the end of the list.
    pub(super) fn perform_actions(&mut self) {
        while let Some(action) = self.reductions.next_action() {
            self.perform(action);
        }
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Hold(copy) => self.objects.copies.hold(copy),
            Action::LetGo(copy) => self.objects.let_go(copy),
            Action::Fetch { call, id, timeout } => {
                self.objects.get(CallKey { client: ClientId::STORE, call }, id, Until::Complete, timeout);
            }
            Action::CancelFetch(call) => self.objects.forget_call(CallKey { client: ClientId::STORE, call }),
            Action::Withdraw(request) => self.objects.withdraw_query(request),
            Action::Host { hop, spec } => {
                self.hostings.accept(&mut self.objects.ctx, HopOwner::Here(hop), spec);
                self.begin_hop(HopOwner::Here(hop));
            }
            Action::Release(hop) => {
                self.hostings.release(&mut self.objects.ctx, &mut self.objects.copies, HopOwner::Here(hop));
            }
            Action::Reserve { target, size_bytes } => self.reserve_target(target, size_bytes),
            Action::Open { target, size_bytes, metadata, extent } => {
                self.open_target(target, size_bytes, metadata, extent);
            }
            Action::Combine { target, copy, op, dtype, offset_bytes, inputs } => {
                let inputs = inputs.into_iter().map(|input| self.resolve(input)).collect();
                let (parts, user) =
                    ((&mut self.objects.ctx, &mut self.objects.copies), CombineUser::Target(target));
                self.objects.combinations.start(parts, copy, (op, dtype), offset_bytes, inputs, user);
            }
            Action::Supersede { target, copy } => {
                self.objects.unpublish(copy, UnpublishReason::Superseded);
                self.objects.detach(copy, Error::Superseded { id: target });
            }
            Action::Complete { key, copy, reduced: indices } => {
                if let Some(Call::Reduce { reduced, .. }) = self.objects.calls.get_mut(key) {
                    *reduced = indices;
                }
                self.objects.copies.publication_mut(copy).set_sealer(key);
                self.objects.complete_put(copy);
            }
            Action::Reconsider(target) => {
                self.reductions.reconsider(&mut self.objects.ctx, &self.objects.copies, &target);
            }
            Action::Abort { target, room, copy } => self.abort_target(&target, room, copy),
            Action::Fail(key, error) => {
                if self.objects.calls.contains(key) {
                    self.objects.finish(key, Err(error));
                }
            }
        }
    }

    fn reserve_target(&mut self, target: ObjectId, size_bytes: u64) {
        let waiter = SpaceWaiter::Target(target.clone());
        let Some(room) = self.objects.allocate(size_bytes) else {
            self.objects.copies.wait_for_space(waiter);
            return self.give_up_without_room(&target);
        };
        self.objects.copies.stop_waiting_for_space(&waiter);
        let left = self.reductions.reserved(&mut self.objects.ctx, &self.objects.copies, &target, room);
        if let Some(room) = left {
            self.objects.copies.give_back(room);
        }
    }

    /// Opens the target of a reduce in the room that was made for it, and publishes it as one that is being produced.
    fn open_target(&mut self, id: ObjectId, size_bytes: u64, metadata: Metadata, room: Extent) {
        if self.objects.copies.live(&id).is_some() {
            return self.fail_target(&id.clone(), Error::AlreadyExists { id });
        }
        // Calls that wait here for the object get this one.
        self.objects.end_fetch(&id);
        let put = self.objects.ctx.next_put();
        let metadata = Metadata { agreement: self.collectives.agreement_about(&id), ..metadata };
        let phase = Phase::Combining { combine: None, valid_bytes: 0 };
        let copy = self.objects.copies.open(
            &mut self.objects.ctx,
            LocalCopy::begin(id.clone(), put, size_bytes, metadata, room, phase),
        );
        if !self.objects.ctx.is_small(size_bytes) {
            self.objects.publish(copy);
        }
        self.objects.wake(&id);
        self.reductions.opened(&mut self.objects.ctx, &self.objects.copies, &id, copy);
    }

    /// Where an input of a target is read. One that should be here and is not is waited for, or fails, like any other.
    fn resolve(&self, input: TargetInput) -> CombineInput {
        match input {
            TargetInput::Here { copy, base_bytes } => CombineInput::Local { copy, base_bytes },
            TargetInput::Stream(input) => {
                let resolved = resolve_input(&self.objects.ctx, &self.objects.copies, &input);
                resolved.unwrap_or(CombineInput::Remote(input))
            }
        }
    }

    /// Gives up a target that is not complete, everywhere, or the room for it.
    fn abort_target(&mut self, id: &ObjectId, room: Option<Extent>, copy: Option<CopyId>) {
        self.objects.copies.stop_waiting_for_space(&SpaceWaiter::Target(id.clone()));
        if let Some(room) = room {
            self.objects.copies.give_back(room);
        }
        match copy {
            Some(copy) if self.objects.copies.is_live(copy) => self.objects.abandon_put(copy),
            // It was deleted, and those who waited for it were told.
            Some(_) => {}
            // One that was given up before another was begun has left those who wait for it with nothing.
            None => self.objects.wake(id),
        }
    }

    /// Starts a hop if there is room for its output, and waits for room if not.
    pub(super) fn begin_hop(&mut self, owner: HopOwner) {
        let output = self.hostings.output_of(&mut self.objects.ctx, &mut self.objects.copies, owner);
        let Some((id, size_bytes)) = output else { return };
        let Some(room) = self.objects.allocate(size_bytes) else {
            return self.objects.copies.wait_for_space(SpaceWaiter::Hop(owner));
        };
        // Nobody means the output who looks for an object of its name.
        self.objects.end_fetch(&id);
        self.hostings.begin(
            &mut self.objects.ctx,
            &mut self.objects.copies,
            &mut self.objects.combinations,
            owner,
            room,
        );
    }

    pub(super) fn combine_ended(&mut self, combine: CombineId, valid_bytes: u64, outcome: CombineOutcome) {
        let ended = self.objects.combinations.end(
            (&mut self.objects.ctx, &mut self.objects.copies),
            combine,
            valid_bytes,
        );
        let Some(Combined { user, valid_bytes, is_live, held }) = ended else { return };
        for input in held {
            self.objects.let_go(input);
        }
        match user {
            _ if !is_live => {}
            CombineUser::Target(target) => {
                let ended = (valid_bytes, outcome);
                self.reductions.combined(&mut self.objects.ctx, &self.objects.copies, &target, ended);
                self.perform_actions();
            }
            CombineUser::Membership(membership) => self.exchange_ended(membership, outcome),
            CombineUser::Hop(owner) => {
                self.hostings.combined(&mut self.objects.ctx, &mut self.objects.copies, owner, outcome);
            }
        }
    }
}
