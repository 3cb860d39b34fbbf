//! The adapter between the machine of collectives and the rest of the store: feeds it and performs its [`Action`]s.
//!
//! The router performs them when the present event is complete, so nothing here is entered while the machine changes its state.

use std::time::Duration;

use bytes::Bytes;

use super::calls::{Call, CallKey, Contents, CreateCall};
use super::reducing::what_to_ask_for;
use super::table::{LocalCopy, Phase, SpaceWaiter};
use super::{
    ByteRange, CallId, ClientId, CombineOutcome, Confirm, CopyId, Effect, Node, Reduce, Response, Until,
};
use crate::collective::{Action, Agreement, Failure, Found, MembershipId, Plan, promises_attempt};
use crate::error::{Error, Result};
use crate::id::{ObjectId, PutId};
use crate::metadata::Metadata;
use crate::plan::collective::Collective;
use crate::shard::{Locations, RequestId, Wants};

/// The time in which a store expects to be asked to be a member before it asks the directory for a target that a participant wants:
/// twice as long as it takes until the last of 16 members on 2 cores has its plan, and less than the target takes otherwise.
const INVITATION_TIMEOUT: Duration = Duration::from_millis(10);

impl Node {
    /// Coordinates a collective.
    pub(super) fn coordinate(&mut self, key: CallKey, kind: Collective, request: Reduce) {
        if let Err(error) = self.check_reduce(key.client, &request) {
            return self.ctx.reply(key, Err(error));
        }
        self.enter_reduce(key, &request);
        let target = request.target.clone();
        let existence = self.ask_target(&target);
        let makes_target = kind.properties().makes_target;
        // A reduce may take over. Parts stay where they are, or are exchanged.
        let wants = if makes_target { what_to_ask_for(&request) } else { Wants::Locations };
        let ask = |(index, id): (usize, &ObjectId)| self.ask_source(id.clone(), &target, index, wants);
        let asks: Vec<RequestId> = request.sources.iter().enumerate().map(ask).collect();
        let ctx = self.ctx.of_collectives();
        self.collectives.coordinate(ctx, key, (kind, request), existence, asks);
    }

    /// A participant asks for the target of a collective.
    pub(super) fn join(
        &mut self,
        key: CallKey,
        target: ObjectId,
        (agreement, is_again): (Agreement, bool),
        source_bytes: u64,
        timeout: Duration,
    ) {
        let is_here = |id: &ObjectId, put: PutId| self.copies.live_put(id, put).is_some();
        let ctx = self.ctx.of_collectives();
        if let Err(error) = self.collectives.join(ctx, &target, (agreement, is_again), is_here) {
            return self.ctx.reply(key, Err(error));
        }
        self.perform_collectives();
        if !is_again && self.copies.live(&target).is_none() && promises_attempt(&agreement, source_bytes) {
            let until = self.ctx.now() + INVITATION_TIMEOUT;
            self.fetches.expect(&mut self.ctx, &target, until);
        }
        self.get_or_join(key, target.clone(), Until::Started, Some(agreement), timeout);
        if self.calls.contains(key) {
            self.collectives.joined(self.ctx.of_collectives(), key, &target);
        }
    }

    /// The directory told what it knows about a source.
    pub(super) fn source_located(&mut self, target: &ObjectId, index: usize, locations: Locations) {
        let ctx = self.ctx.of_collectives();
        if let Some(locations) = self.collectives.source_located(ctx, target, index, locations) {
            self.reductions.source_located(&mut self.ctx, &self.copies, target, index, locations);
            self.perform_actions();
        }
    }

    /// The directory told whether there is a target.
    pub(super) fn target_located(&mut self, locations: &Locations) {
        if !self.collectives.target_located(self.ctx.of_collectives(), locations) {
            self.reductions.target_located(&mut self.ctx, &self.copies, locations);
            self.perform_actions();
        }
    }

    /// Returns the member that fills a copy, and the order in which its bytes become valid, if participants get ranges of it.
    pub(super) fn order_of(&self, copy: CopyId) -> Option<(MembershipId, Vec<ByteRange>)> {
        self.collectives.order_of(copy)
    }

    /// A participant was given the copy of a member.
    pub(super) fn answered(&mut self, membership: MembershipId) {
        self.collectives.answered(self.ctx.of_collectives(), membership);
    }

    /// The exchange of a member has ended; `outcome` is `None` if its copy was given up before.
    pub(super) fn exchange_ended(&mut self, membership: MembershipId, outcome: Option<CombineOutcome>) {
        let failure = outcome.map(|outcome| match outcome {
            CombineOutcome::InputFailed { index, outcome } => Failure::Peer { index, outcome },
            _ => Failure::Refused(Error::ShuttingDown),
        });
        self.collectives.exchange_ended(self.ctx.of_collectives(), membership, failure);
    }

    /// The calls of this node's participants that wait for a target, and their agreements.
    pub(super) fn participants_of(&self, target: &ObjectId) -> impl Iterator<Item = (CallKey, Agreement)> {
        self.calls.gets(target).into_iter().filter_map(|key| match self.calls.get(key) {
            Some(Call::Get { join: Some(agreement), .. }) => Some((key, *agreement)),
            _ => None,
        })
    }

    /// Performs what the machine of collectives has decided, in order.
    pub(super) fn perform_collectives(&mut self) {
        while let Some(action) = self.collectives.next_action(self.ctx.of_collectives()) {
            self.perform_collective(action);
        }
    }

    fn perform_collective(&mut self, action: Action) {
        match action {
            Action::Perform(effect) => self.ctx.push(Effect::Collective(effect)),
            Action::Withdraw(request) => self.withdraw_ask(request),
            Action::Follow(target, sources) => {
                let ask = |(rank, id)| (rank, self.ask_source(id, &target, rank, Wants::Locations));
                let asks = sources.into_iter().map(ask).collect();
                self.collectives.follows(self.ctx.of_collectives(), &target, asks);
            }
            Action::Answer(key, answer) => {
                if self.calls.contains(key) {
                    let indices = |sources| Response::Reduced { indices: (0..sources).collect() };
                    self.finish(key, answer.map(indices));
                }
            }
            Action::Reduce { key, request, reason, found } => {
                self.take_general_path(key, request, &reason, found)
            }
            Action::Announce(id, metadata, timeout) => {
                let contents = Some(Contents { bytes: Bytes::new(), confirm: Confirm::No });
                let key = CallKey { client: ClientId::STORE, call: CallId(self.ctx.next_number()) };
                self.create(key, CreateCall { id, size_bytes: 0, metadata, contents }, timeout);
            }
            Action::Remember(record) => self.reductions.remember(record),
            Action::Open(membership) => self.open_member(membership),
            Action::LackRoom(membership) => {
                if let Some(plan) = self.collectives.awaits_room(membership) {
                    let error = self.copies.store_full(self.ctx.node(), plan.copy_bytes());
                    let ctx = self.ctx.of_collectives();
                    self.collectives.refused(ctx, membership, Failure::Refused(error));
                }
            }
            Action::CompleteTarget(copy, sealer) => self.complete_target(copy, sealer),
            Action::CompleteParts(target, copy) => {
                // All participants of this node were given the copy.
                self.complete(copy);
                self.detach(copy, Error::Superseded { id: target });
            }
            Action::FailParticipants(target, error) => {
                for (key, _) in self.participants_of(&target).collect::<Vec<_>>() {
                    self.finish(key, Err(error.clone()));
                }
            }
            Action::FailParticipant(key, target, error) => {
                if self.participants_of(&target).any(|(waiting, _)| waiting == key) {
                    self.finish(key, Err(error));
                }
            }
            Action::EndMember { membership, target, put, copy, error } => {
                self.copies.stop_waiting_for_space(&SpaceWaiter::Membership(membership));
                self.copies.refuse_awaiting_put(&mut self.ctx, &target, put);
                if let Some(copy) = copy.filter(|copy| self.copies.is_live(*copy)) {
                    self.detach(copy, error);
                }
                self.wake(&target);
            }
            Action::RejectOrphan(target, attempt) => {
                if self.copies.live(&target).is_none() {
                    self.collectives.orphaned(self.ctx.of_collectives(), &target, attempt);
                }
            }
            Action::Cancel(combine) => self.ctx.push(Effect::CancelCombine { combine }),
        }
    }

    /// Declares the copy of a member the complete target.
    fn complete_target(&mut self, copy: CopyId, sealer: Option<(CallKey, usize)>) {
        self.copies.reveal(copy);
        if let Some((key, sources)) = sealer
            && let Some(Call::Reduce { reduced, .. }) = self.calls.get_mut(key)
        {
            *reduced = (0..sources).collect();
            self.copies.publication_mut(copy).set_sealer(key);
        }
        self.complete_put(copy);
    }

    /// Makes the target of an allreduce with a reduce, which takes over the queries that a search has made.
    fn take_general_path(&mut self, key: CallKey, request: Reduce, reason: &str, found: Option<Found>) {
        let target = request.target.clone();
        let Some(Found { existence, asks, locations }) = found else {
            self.begin_reduction(key, request);
            self.reductions.note(&target, reason);
            return self.reductions.expect_sources(&target);
        };
        self.reductions.begin(&mut self.ctx, &self.copies, (key, request), existence, asks);
        self.perform_actions();
        self.reductions.note(&target, reason);
        for (index, locations) in locations.into_iter().enumerate() {
            if let Some(locations) = locations {
                self.reductions.source_located(&mut self.ctx, &self.copies, &target, index, locations);
                self.perform_actions();
            }
        }
    }

    /// Starts the exchange of a member if there is room for its copy, and waits for room if not.
    pub(super) fn open_member(&mut self, membership: MembershipId) {
        let Some(plan) = self.collectives.awaits_room(membership).cloned() else { return };
        let sources = match self.check_plan(&plan) {
            Ok(sources) => sources,
            Err(failure) => {
                return self.collectives.refused(self.ctx.of_collectives(), membership, failure);
            }
        };
        let size_bytes = plan.copy_bytes();
        let Some(room) = self.allocate_keeping(&sources, size_bytes) else {
            return self.copies.wait_for_space(SpaceWaiter::Membership(membership));
        };
        self.copies.stop_waiting_for_space(&SpaceWaiter::Membership(membership));
        // Calls that wait here for the object get this one.
        self.stop_fetch(&plan.target);
        let phase = Phase::Combining { combine: None, valid_bytes: 0 };
        let id = plan.target.clone();
        let metadata = Metadata { agreement: Some(plan.agreement), ..plan.metadata.clone() };
        let opening = LocalCopy::begin(id.clone(), plan.put, size_bytes, metadata, room, phase).private();
        let stays = plan.properties().makes_target && matches!(membership, MembershipId::Here(_));
        let copy = self.copies.open(&mut self.ctx, if stays { opening } else { opening.evictable() });
        for source in &sources {
            self.copies.touch(*source);
        }
        let parts = (&mut self.ctx, &mut self.copies);
        let combine = self.combinations.start_exchange(parts, copy, sources, Box::new(plan), membership);
        self.collectives.began(self.ctx.of_collectives(), membership, copy, combine);
        self.copies.accept_awaiting(&mut self.ctx, copy);
        self.wake(&id);
    }

    /// Checks that this store can follow a plan now. Returns the copies of its sources.
    fn check_plan(&self, plan: &Plan) -> Result<Vec<CopyId>, Failure> {
        if self.ctx.is_shutting_down() {
            return Err(Failure::Refused(Error::ShuttingDown));
        }
        if self.copies.live(&plan.target).is_some() || self.reductions.contains(&plan.target) {
            return Err(Failure::Refused(Error::AlreadyExists { id: plan.target.clone() }));
        }
        self.check_incoming(&plan.target, plan.copy_bytes(), &plan.metadata).map_err(Failure::Refused)?;
        for (_, agreement) in self.participants_of(&plan.target) {
            agreement.check(&plan.target, &plan.agreement).map_err(Failure::Disagrees)?;
        }
        let find = |(id, put): &(ObjectId, PutId)| {
            let copy = self.copies.live_put(id, *put);
            let copy = copy.filter(|copy| self.copies[copy].size_bytes == plan.source_bytes());
            copy.ok_or_else(|| Failure::Refused(Error::ObjectLost { id: id.clone() }))
        };
        plan.sources.iter().map(find).collect()
    }
}
