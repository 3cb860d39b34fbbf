//! Feeds collectives, and performs their [`Action`]s after the current event.

use std::time::Duration;

use bytes::Bytes;

use crate::collective::{
    Action, Agreement, Collectives, Failure, Found, MembershipId, Plan, promises_attempt,
};
use crate::error::{Error, Result};
use crate::id::{ObjectId, PutId};
use crate::message::{
    CallId, CallKey, ClientId, CombineOutcome, Confirm, CopyId, Effect, Reduce, Response, Until,
};
use crate::metadata::{Metadata, Replicas};
use crate::objects::Objects;
use crate::objects::calls::{Access, Call, Contents, CreateCall, GetTerms};
use crate::objects::gather::Gathered;
use crate::objects::notice::{Deadline, SpaceWaiter};
use crate::objects::quotas::Payer;
use crate::objects::table::{LocalCopy, Object, Phase};
use crate::peer::ROOM_TIMEOUT;
use crate::plan::collective::Collective;
use crate::reduction::{Fallback, Reductions, query, wanted_content};
use crate::shard::{Locations, UnpublishReason, Wants};

/// Time for which a participant's store waits for a plan before it queries the directory.
const INVITATION_TIMEOUT: Duration = Duration::from_millis(10);

pub(super) struct Adapter<'n> {
    pub(super) objects: &'n mut Objects,
    pub(super) reductions: &'n mut Reductions,
    pub(super) collectives: &'n mut Collectives,
}

impl Adapter<'_> {
    pub(super) fn coordinate(&mut self, key: CallKey, kind: Collective, request: Reduce) {
        // If a reduce takes over, it needs the bytes of small sources.
        let makes_target = kind.properties().makes_target;
        let wants = if makes_target { wanted_content(&request) } else { Wants::Locations };
        let (existence, queries) = query(self.objects, &request, wants);
        let ctx = &mut self.objects.ctx.of_collectives();
        self.collectives.coordinator.coordinate(ctx, key, (kind, request), existence, queries);
    }

    pub(super) fn join(
        &mut self,
        key: CallKey,
        target: ObjectId,
        (agreement, is_again): (Agreement, bool),
        source_bytes: u64,
        timeout: Duration,
    ) {
        let Objects { ctx, copies, .. } = &mut *self.objects;
        let is_here = |id: &ObjectId, put: PutId| copies.live_put(id, put).is_some();
        let joined = self.collectives.members.join(
            &mut ctx.of_collectives(),
            &target,
            (agreement, is_again),
            is_here,
        );
        if let Err(error) = joined {
            return self.objects.ctx.reply(key, Err(error));
        }
        self.perform_all();
        let objects = &mut *self.objects;
        if !is_again
            && objects.copies.live(&target).is_none()
            && promises_attempt(&agreement, source_bytes)
        {
            let until = objects.ctx.now() + INVITATION_TIMEOUT;
            objects.fetches.expect(&mut objects.ctx, &target, until);
        }
        if let Some(response) = self.refer_to_parts(key, &target) {
            return self.objects.ctx.reply(key, response);
        }
        let terms = GetTerms { until: Until::Started, join: Some(agreement), allow_stale: false };
        self.objects.get(key, target.clone(), terms, timeout);
        if self.objects.calls.contains(key) {
            self.collectives.members.joined(&mut self.objects.ctx.of_collectives(), key, &target);
        }
    }

    pub(super) fn refer_participants(&mut self, target: &ObjectId) {
        if self.objects.ctx.is_shutting_down() || self.growing_copy(target).is_none() {
            return;
        }
        for (key, _) in participants_of(self.objects, target) {
            if let Some(response) = self.refer_to_parts(key, target) {
                self.objects.finish(key, response);
            }
        }
    }

    fn refer_to_parts(&mut self, key: CallKey, target: &ObjectId) -> Option<Result<Response>> {
        let copy = self.growing_copy(target)?;
        let (membership, order) = self.collectives.members.order_of(copy)?;
        let view = self.objects.refer(key.client, copy, Access::Read);
        self.collectives.members.answered(&mut self.objects.ctx.of_collectives(), membership);
        Some(view.map(|view| Response::Ranges { view, order }))
    }

    /// Returns the target's copy if it is incomplete, and unknown to the directory.
    fn growing_copy(&self, target: &ObjectId) -> Option<CopyId> {
        let (copy, local) = self.objects.copies.live(target)?;
        (!local.is_complete() && !local.is_public).then_some(copy)
    }

    pub(super) fn source_located(&mut self, target: &ObjectId, index: usize, locations: Locations) {
        let ctx = &mut self.objects.ctx.of_collectives();
        if let Some(locations) =
            self.collectives.coordinator.source_located(ctx, target, index, locations)
        {
            self.reductions.source_located(self.objects, target, index, locations);
        }
    }

    pub(super) fn target_located(&mut self, locations: &Locations) {
        if !self
            .collectives
            .coordinator
            .target_located(&mut self.objects.ctx.of_collectives(), locations)
        {
            self.reductions.target_located(self.objects, locations);
        }
    }

    pub(super) fn exchange_ended(
        &mut self,
        membership: MembershipId,
        outcome: Option<CombineOutcome>,
    ) {
        let failure = outcome.map(|outcome| match outcome {
            CombineOutcome::InputFailed { index, outcome } => Failure::Peer { index, outcome },
            _ => Failure::Refused(Error::ShuttingDown),
        });
        self.collectives.members.exchange_ended(
            &mut self.objects.ctx.of_collectives(),
            membership,
            failure,
        );
    }

    /// Fails a collective that has waited too long for memory or its quota. The wait for memory
    /// continues if objects may soon be deleted.
    pub(super) fn give_up_without_room(&mut self, target: &ObjectId) {
        let objects = &mut *self.objects;
        let waiter = SpaceWaiter::Target(target.clone());
        let lacks_quota = objects.copies.quotas.is_waiting(&waiter);
        let is_waiting = lacks_quota || objects.copies.is_waiting_for_space(&waiter);
        let participants =
            self.collectives.coordinator.participants_mut(target).filter(|_| is_waiting);
        let Some(participants) = participants else { return };
        let Some(size_bytes) = self.reductions.target_size(target) else { return };
        let now = objects.ctx.now();
        let since = *participants.lacks_room_since.get_or_insert(now);
        if now < since + ROOM_TIMEOUT {
            return objects.ctx.schedule(since + ROOM_TIMEOUT, Deadline::Reduce(target.clone()));
        }
        if lacks_quota {
            let checked =
                self.objects.copies.check_quota(self.payer_of(target), target, size_bytes);
            if let Err(excess) = checked {
                self.fail_target(target, Error::QuotaExceeded(Box::new(excess)));
            }
            return;
        }
        if objects.copies.may_come_to_fit(size_bytes) {
            return objects.ctx.schedule(now + ROOM_TIMEOUT, Deadline::Reduce(target.clone()));
        }
        self.fail_target(
            target,
            self.objects.copies.store_full(self.objects.ctx.node(), size_bytes),
        );
    }

    pub(super) fn fail_target(&mut self, target: &ObjectId, error: Error) {
        self.collectives.coordinator.fail(&mut self.objects.ctx.of_collectives(), target, &error);
        self.reductions.fail(self.objects, target, error);
    }

    pub(super) fn withdraw_announcement(&mut self, target: &ObjectId) {
        let objects = &mut *self.objects;
        if self
            .collectives
            .coordinator
            .withdraw_announcement(&mut objects.ctx.of_collectives(), target)
            && let Some((copy, local)) = objects.copies.live(target)
            && local.is_complete()
            && local.size_bytes == 0
        {
            objects.abandon(copy, Error::Deleted { id: target.clone() }, UnpublishReason::Aborted);
            objects.wake(target);
        }
    }

    pub(super) fn perform_all(&mut self) {
        while let Some(action) =
            self.collectives.next_action(&mut self.objects.ctx.of_collectives())
        {
            self.perform(action);
        }
    }

    #[expect(clippy::too_many_lines, reason = "one arm for each action")]
    fn perform(&mut self, action: Action) {
        let Self { objects, reductions, collectives } = self;
        match action {
            Action::Perform(effect) => objects.ctx.push(Effect::Collective(effect)),
            Action::Withdraw(request) => objects.withdraw_query(request),
            Action::Follow(target, sources) => {
                let query =
                    |(rank, id)| (rank, objects.query_source(id, &target, rank, Wants::Locations));
                let queries = sources.into_iter().map(query).collect();
                collectives.coordinator.disagreements.follows(
                    &mut objects.ctx.of_collectives(),
                    &target,
                    queries,
                );
            }
            Action::Answer(key, answer) => {
                if objects.calls.contains(key) {
                    let indices = |sources| Response::Reduced { indices: (0..sources).collect() };
                    objects.finish(key, answer.map(indices));
                }
            }
            Action::Reduce { key, request, reason, found } => {
                self.take_general_path(key, request, reason, found);
            }
            Action::Announce(id, metadata, timeout) => {
                let contents = Some(Contents { bytes: Bytes::new(), confirm: Confirm::No });
                let key = CallKey::of(ClientId::STORE, CallId(objects.ctx.next_number()));
                objects.create(key, CreateCall { id, size_bytes: 0, metadata, contents }, timeout);
            }
            Action::Remember(record) => reductions.remember(record),
            Action::Open(membership) => self.open_member(membership),
            Action::LackRoom(membership) => {
                if let Some(plan) = collectives.members.awaits_space(membership) {
                    let error = objects.copies.store_full(objects.ctx.node(), plan.copy_bytes());
                    let failure = Failure::Refused(error);
                    collectives.members.refused(
                        &mut objects.ctx.of_collectives(),
                        membership,
                        failure,
                    );
                }
            }
            Action::CompleteTarget(copy, sealer) => {
                objects.copies.reveal(copy);
                match sealer {
                    Some((key, sources)) => {
                        objects.complete_target(key, copy, (0..sources).collect())
                    }
                    None => objects.complete_put(copy),
                }
            }
            Action::CompleteParts(target, copy) => {
                // All participants of this node have references to the copy.
                objects.complete(copy);
                objects.detach(copy, Error::Superseded { id: target });
            }
            Action::FailParticipants(target, only, error) => {
                let participants =
                    participants_of(objects, &target).into_iter().map(|(key, _)| key);
                for key in participants.filter(|key| only.is_none_or(|only| only == *key)) {
                    objects.finish(key, Err(error.clone()));
                }
            }
            Action::EndMember { membership, target, put, copy, error } => {
                objects.stop_gathering(&SpaceWaiter::Membership(membership));
                objects.copies.refuse_awaiting_put(&mut objects.ctx, &target, put);
                if let Some(copy) = copy.filter(|copy| objects.copies.is_live(*copy)) {
                    objects.detach(copy, error);
                }
                objects.wake(&target);
            }
            Action::RejectOrphan(target, attempt) => {
                if objects.copies.live(&target).is_none() {
                    let error = Error::ObjectLost { id: target.clone() };
                    collectives.members.rejected(
                        &mut objects.ctx.of_collectives(),
                        &target,
                        attempt,
                        &error,
                    );
                }
            }
            Action::Cancel(combine) => objects.ctx.push(Effect::CancelCombine { combine }),
        }
    }

    fn take_general_path(
        &mut self,
        key: CallKey,
        request: Reduce,
        reason: String,
        found: Option<Found>,
    ) {
        let Self { objects, reductions, .. } = self;
        let target = request.target.clone();
        let fallback =
            Some(Fallback { agreement: Agreement::of(Collective::Allreduce, &request), reason });
        let Some(Found { existence, source_queries, locations }) = found else {
            reductions.start(objects, key, request, fallback);
            return reductions.expect_sources(&target);
        };
        reductions.begin(objects, (key, request, fallback), (existence, source_queries));
        for (index, locations) in locations.into_iter().enumerate() {
            if let Some(locations) = locations {
                reductions.source_located(objects, &target, index, locations);
            }
        }
    }

    pub(super) fn open_member(&mut self, membership: MembershipId) {
        let Some(plan) = self.collectives.members.awaits_space(membership).cloned() else { return };
        let stays = plan.properties().makes_target && matches!(membership, MembershipId::Here(_));
        let payer = if stays { self.payer_of(&plan.target) } else { Payer::Nobody };
        let checked = self.check_plan(&plan, payer);
        let Self { objects, collectives, .. } = self;
        let sources = match checked {
            Ok(sources) => sources,
            Err(failure) => {
                return collectives.members.refused(
                    &mut objects.ctx.of_collectives(),
                    membership,
                    failure,
                );
            }
        };
        let size_bytes = plan.copy_bytes();
        let room = match objects.gather(SpaceWaiter::Membership(membership), &sources, size_bytes) {
            Gathered::Here(room) => room,
            Gathered::Coming => return,
            Gathered::Failed(error) => {
                let failure = Failure::Refused(error);
                return collectives.members.refused(
                    &mut objects.ctx.of_collectives(),
                    membership,
                    failure,
                );
            }
        };
        // Waiting calls get this copy.
        objects.stop_fetch(&plan.target);
        let id = plan.target.clone();
        // The target does not inherit a source's replicas and lifetime.
        let (agreement, replicas) = (Some(plan.agreement), Replicas::default());
        let mut metadata =
            Metadata { agreement, replicas, lifetime: None, ..plan.metadata.clone() };
        objects.set_default_replicas(&mut metadata);
        let object = Object { id: id.clone(), put: plan.put, size_bytes, metadata };
        let opening = LocalCopy::begin(object, room, Phase::Combining { combine: None }).private();
        let opening = if stays { opening.paid_by(payer) } else { opening.evictable() };
        let copy = objects.copies.open(&mut objects.ctx, opening);
        for source in &sources {
            objects.copies.touch(*source);
        }
        let combine = objects.start_exchange(copy, sources, Box::new(plan), membership);
        collectives.members.exchange_started(
            &mut objects.ctx.of_collectives(),
            membership,
            copy,
            combine,
        );
        objects.copies.accept_awaiting(&mut objects.ctx, copy);
        objects.wake(&id);
    }

    fn payer_of(&self, target: &ObjectId) -> Payer {
        let key = self.collectives.coordinator.participants(target).and_then(|known| known.key);
        key.map_or(Payer::Unknown, |key| self.objects.copies.quotas.payer(key.client))
    }

    fn check_plan(&self, plan: &Plan, payer: Payer) -> Result<Vec<CopyId>, Failure> {
        let Self { objects, reductions, .. } = self;
        if objects.ctx.is_shutting_down() {
            return Err(Failure::Refused(Error::ShuttingDown));
        }
        if objects.copies.live(&plan.target).is_some() || reductions.contains(&plan.target) {
            return Err(Failure::Refused(Error::AlreadyExists { id: plan.target.clone() }));
        }
        let checked = objects.check_incoming(&plan.target, plan.copy_bytes(), &plan.metadata);
        checked.map_err(Failure::Refused)?;
        let fits = objects.copies.check_quota(payer, &plan.target, plan.copy_bytes());
        fits.map_err(|excess| Failure::Refused(Error::QuotaExceeded(Box::new(excess))))?;
        for (_, agreement) in participants_of(objects, &plan.target) {
            agreement.check(&plan.target, &plan.agreement).map_err(Failure::Disagrees)?;
        }
        let find = |(id, put): &(ObjectId, PutId)| {
            let copy = objects.copies.live_put(id, *put);
            let copy = copy.filter(|copy| objects.copies[copy].size_bytes == plan.source_bytes());
            copy.ok_or_else(|| Failure::Refused(Error::ObjectLost { id: id.clone() }))
        };
        plan.sources.iter().map(find).collect()
    }
}

pub(super) fn participants_of(objects: &Objects, target: &ObjectId) -> Vec<(CallKey, Agreement)> {
    let agreement = |key| match objects.calls.get(key) {
        Some(Call::Get { terms, .. }) => Some((key, terms.join?)),
        _ => None,
    };
    objects.calls.gets(target).into_iter().filter_map(agreement).collect()
}
