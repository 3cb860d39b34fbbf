//! Attempts in which this store is a member.

use std::collections::BTreeMap;
use std::time::Duration;

use super::action::{Action, Step, Timer, World};
use super::attempt::describe_failure;
use super::event::{CollectiveEffect, CollectiveEvent};
use super::member::{MemberStage, Membership};
use super::message::{AttemptId, Decision, Failure, MembershipId, Plan, Report};
use super::outcomes::{MIN_ATTEMPT_TIMEOUT, Outcomes};
use super::records::{ReduceRecord, record_of};
use crate::error::Error;
use crate::id::{ObjectId, PutId};
use crate::vocabulary::agreement::Agreement;
use crate::vocabulary::local::{ByteRange, CallKey, CombineId, CopyId};

/// The time in which participants of a member that has lost its coordinator may find the target elsewhere: as long as a store may be
/// silent.
const ORPHAN_TIMEOUT: Duration = Duration::from_secs(5);
/// The time for which a member that has its parts waits for participants of its node, because participants that come later get their
/// parts in a way that costs more. Most come when their source is put.
const CALL_TIMEOUT: Duration = Duration::from_secs(1);
/// Participants get a larger target in ranges. A smaller one is copied in some microseconds, less than a participant needs to hear of
/// one range.
const MAX_UNFOLLOWED_BYTES: u64 = 32 << 10;

/// The attempts in which this store is a member or was one, and the rejections that its participants have heard.
#[derive(Debug, Default)]
pub(super) struct Memberships {
    members: BTreeMap<MembershipId, Membership>,
    outcomes: Outcomes,
}

impl Memberships {
    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    /// Returns the member in whose copy `target` grows.
    fn growing(&self, target: &ObjectId) -> Option<(MembershipId, &Membership)> {
        self.find(|member| member.plan().target == *target && member.growing_copy().is_some())
    }

    fn find(&self, is_meant: impl Fn(&Membership) -> bool) -> Option<(MembershipId, &Membership)> {
        self.members.iter().find(|(_, member)| is_meant(member)).map(|(id, member)| (*id, member))
    }

    /// Returns the member that makes a target: of several the one that is not over.
    pub(super) fn latest_for(&self, target: &ObjectId) -> Option<(MembershipId, &Membership)> {
        let members = self.members.iter().filter(|(_, member)| member.plan().target == *target);
        let latest =
            members.max_by_key(|(_, member)| (member.stage() != MemberStage::Over, member.asked_at()));
        latest.map(|(id, member)| (*id, member))
    }

    /// Returns `true` if this store was a member of the attempt that makes `put`, and has nothing to give any more.
    pub(super) fn has_ended(&self, put: PutId) -> bool {
        self.outcomes.has_left(put)
            || self.find(|member| member.plan().put == put && member.has_ended()).is_some()
    }

    /// Notes the call that waits for the copy of a member at the coordinator's own store, and its number of sources.
    pub(super) fn set_sealer(&mut self, membership: MembershipId, sealer: Option<(CallKey, usize)>) {
        if let Some(member) = self.members.get_mut(&membership) {
            member.set_sealer(sealer);
        }
    }

    /// A coordinator asks this store to be a member.
    pub(super) fn asked(&mut self, world: &mut World<'_>, membership: MembershipId, plan: Box<Plan>) {
        // A coordinator that asks again has lost the connection: this store would read what was overwritten since. A plan of an
        // older attempt was overtaken.
        let is_known = |member: &Membership| {
            member.plan().target == plan.target && member.plan().attempt.includes(plan.attempt)
        };
        if self.outcomes.is_over(&plan.target, plan.attempt) || self.find(is_known).is_some() {
            let error = Error::Superseded { id: plan.target.clone() };
            return self.report(world, membership, Report::Failed(Failure::Refused(error)));
        }
        // This store has not heard that the earlier attempt is over: its target was deleted.
        if let Some((older, member)) = self.growing(&plan.target)
            && !member.plan().properties().makes_target
        {
            self.outdated(world, older, &plan.target);
        }
        world.step(Step::Begins(plan.target.clone()));
        world.schedule(world.now + plan.timeout, Timer::Member(membership));
        self.members.insert(membership, Membership::new(plan, world.now));
        world.push(Action::Open(membership));
    }

    /// Returns the plan of a member that waits for room.
    pub(super) fn awaits_room(&self, membership: MembershipId) -> Option<&Plan> {
        let member = self.members.get(&membership)?;
        matches!(member.stage(), MemberStage::AwaitingRoom { .. }).then(|| member.plan())
    }

    /// The exchange of a member was started in this copy.
    pub(super) fn began(
        &mut self,
        world: &mut World<'_>,
        membership: MembershipId,
        copy: CopyId,
        combine: CombineId,
    ) {
        let Some(member) = self.members.get_mut(&membership) else { return };
        if let MemberStage::AwaitingRoom { deadline } = member.stage() {
            world.unschedule(deadline, Timer::Member(membership));
            member.begin(copy, combine);
        }
    }

    /// A member cannot begin.
    pub(super) fn refused(&mut self, world: &mut World<'_>, membership: MembershipId, failure: Failure) {
        let Some(member) = self.members.get(&membership) else { return };
        let target = &member.plan().target;
        let error = if let Failure::Disagrees(error) = &failure {
            self.outcomes.reject(world.now, target, member.plan().attempt, Some(error));
            error.clone()
        } else {
            Error::Superseded { id: target.clone() }
        };
        self.member_failed(world, membership, failure, error);
    }

    /// A member has waited long enough for participants, or for room.
    pub(super) fn member_expired(&mut self, world: &mut World<'_>, membership: MembershipId) {
        let Some(member) = self.members.get_mut(&membership) else { return };
        if member.end_wait_for_calls().is_some() {
            self.report(world, membership, Report::Filled);
        } else if self.awaits_room(membership).is_some() {
            world.push(Action::LackRoom(membership));
        }
    }

    /// All bytes of a member's copy are there.
    pub(super) fn filled(&mut self, world: &mut World<'_>, combine: CombineId) {
        let mut members = self.members.iter_mut();
        let found = members.find(|(_, member)| {
            matches!(member.stage(), MemberStage::Exchanging { combine: running, .. } if running == combine)
        });
        let Some((membership, member)) = found else { return };
        let (membership, completed) = (*membership, member.filled(world.now));
        if !member.plan().properties().makes_target {
            let (put, waits) = (member.plan().put, !member.has_answered_all());
            if waits {
                let until = world.now + CALL_TIMEOUT;
                member.await_calls(until);
                world.schedule(until, Timer::Member(membership));
            }
            world.step(Step::HasParts(put));
            if !waits {
                self.report(world, membership, Report::Filled);
            }
            return;
        }
        match (membership, completed) {
            (MembershipId::Here(_), _) => self.report(world, membership, Report::Filled),
            (MembershipId::Elsewhere(_), Some(copy)) => self.complete_member(world, membership, copy),
            // The coordinator decides when its own member has all bytes, without reports of others.
            (MembershipId::Elsewhere(_), None) => {}
        }
    }

    /// Ends a member whose parts are those of an earlier collective of a target that a participant joins: its sources are gone, or
    /// it has all parts and the participant has agreed to something else. This store has not heard of its end yet.
    pub(super) fn end_stale_member(
        &mut self,
        world: &mut World<'_>,
        target: &ObjectId,
        agreement: Agreement,
        is_here: impl Fn(&ObjectId, PutId) -> bool,
    ) {
        let Some((membership, member)) = self.growing(target) else { return };
        let plan = member.plan();
        let is_filled = matches!(member.stage(), MemberStage::Filled { .. });
        let is_stale = !plan.properties().makes_target
            && (plan.sources.iter().any(|(id, put)| !is_here(id, *put))
                || is_filled && agreement != plan.agreement);
        if is_stale {
            self.outdated(world, membership, target);
        }
    }

    fn outdated(&mut self, world: &mut World<'_>, membership: MembershipId, target: &ObjectId) {
        let error = Error::Superseded { id: target.clone() };
        self.member_failed(world, membership, Failure::Refused(error.clone()), error);
    }

    /// Fails the member in whose copy the target grows if a participant has agreed to something else.
    pub(super) fn check_member(
        &mut self,
        world: &mut World<'_>,
        target: &ObjectId,
        agreement: Agreement,
    ) -> Result<(), Error> {
        let Some((membership, member)) = self.growing(target) else { return Ok(()) };
        let checked = agreement.check(target, &member.plan().agreement);
        if let Err(error) = &checked
            && !member.is_committed()
        {
            self.refused(world, membership, Failure::Disagrees(error.clone()));
        }
        checked
    }

    /// Returns the member that fills a copy, and the order in which its bytes become valid, if participants get ranges of it.
    pub(super) fn order_of(&self, copy: CopyId) -> Option<(MembershipId, Vec<ByteRange>)> {
        let (membership, member) = self.find(|member| member.growing_copy() == Some(copy))?;
        let plan = member.plan();
        if plan.properties().makes_target && plan.size_bytes <= MAX_UNFOLLOWED_BYTES {
            return None;
        }
        let program = plan.program();
        let range = |index: usize| {
            let range = program.steps()[index].range();
            ByteRange { offset_bytes: range.start, length_bytes: range.end - range.start }
        };
        Some((membership, plan.finals(&program).into_iter().map(range).collect()))
    }

    /// A participant was given the copy of a member.
    pub(super) fn answered(&mut self, world: &mut World<'_>, membership: MembershipId) {
        let Some(member) = self.members.get_mut(&membership) else { return };
        member.answer();
        if member.has_answered_all()
            && let Some(until) = member.end_wait_for_calls()
        {
            world.unschedule(until, Timer::Member(membership));
            self.report(world, membership, Report::Filled);
        }
    }

    /// The coordinator has decided.
    pub(super) fn told(&mut self, world: &mut World<'_>, membership: MembershipId, decision: Decision) {
        let Some(member) = self.members.get_mut(&membership) else { return };
        match decision {
            // No coordinator commits parts that are for one participant each.
            Decision::Commit if !member.plan().properties().awaits_commit => {}
            Decision::Commit => {
                if let Some(copy) = member.commit() {
                    self.complete_member(world, membership, copy);
                }
            }
            Decision::Stop(error) => {
                let (target, attempt) = (member.plan().target.clone(), member.plan().attempt);
                match (member.is_committed(), error) {
                    // The coordinator takes the general path.
                    (false, error @ Error::Superseded { .. }) => self.end_member(world, membership, error),
                    (false, error) => self.rejected(world, &target, attempt, &error),
                    (true, error @ Error::Deleted { .. }) => {
                        self.outcomes.reject(world.now, &target, attempt, None);
                        self.end_member(world, membership, error);
                    }
                    (true, _) => {}
                }
            }
        }
    }

    /// The copy of a member is the target, or has all parts.
    fn complete_member(&mut self, world: &mut World<'_>, membership: MembershipId, copy: CopyId) {
        let Some(member) = self.members.get_mut(&membership) else { return };
        if !member.plan().properties().makes_target {
            let target = member.plan().target.clone();
            return world.push(Action::CompleteParts(target, copy));
        }
        world.push(Action::CompleteTarget(copy, member.take_sealer()));
        if let MembershipId::Elsewhere(_) = membership {
            self.report_complete(world, membership);
        }
    }

    /// The copy of a member is the target. Others may still need bytes of it.
    fn report_complete(&mut self, world: &mut World<'_>, membership: MembershipId) {
        let Some(member) = self.members.get(&membership) else { return };
        // The coordinator of parts has heard that, and is about to dismiss the member.
        if member.plan().properties().makes_target {
            let report = if member.running().is_some() { Report::Filled } else { Report::Done };
            self.report(world, membership, report);
        }
    }

    /// The coordinator needs this member no longer, or is gone.
    pub(super) fn left(&mut self, world: &mut World<'_>, membership: MembershipId) {
        let Some(member) = self.members.get_mut(&membership) else { return };
        let plan = member.plan();
        let (target, attempt, put) = (plan.target.clone(), plan.attempt, plan.put);
        let has_its_parts =
            !plan.properties().awaits_commit && matches!(member.stage(), MemberStage::Filled { .. });
        let is_orphan = !member.is_committed() && !has_its_parts && member.stage() != MemberStage::Over;
        if has_its_parts {
            self.remember(world, membership);
        } else if is_orphan {
            member.note_failure("the store of rank 0 is gone".to_owned());
        }
        // A committed target can be fetched from others. Else the coordinator may take the general path, if only this store
        // cannot hear it.
        self.end_member(world, membership, Error::Superseded { id: target.clone() });
        if is_orphan {
            world.schedule(world.now + ORPHAN_TIMEOUT, Timer::Orphan(target.clone(), attempt));
        }
        if !has_its_parts {
            self.remember(world, membership);
        }
        self.outcomes.leave(target, attempt, put);
        if let Some(combine) = self.members.remove(&membership).and_then(|member| member.running()) {
            world.push(Action::Cancel(combine));
        }
    }

    /// The exchange of a member has ended. `failure` is the failure if bytes are missing, or `None` if the copy was given up before.
    pub(super) fn exchange_ended(
        &mut self,
        world: &mut World<'_>,
        membership: MembershipId,
        failure: Option<Failure>,
    ) {
        let Some(member) = self.members.get_mut(&membership) else { return };
        member.exchange_ended();
        let Some(failure) = failure else { return };
        match member.stage() {
            // Too early: the member has not all bytes.
            MemberStage::Exchanging { .. } => {
                let error = Error::Superseded { id: member.plan().target.clone() };
                self.member_failed(world, membership, failure, error);
            }
            MemberStage::Complete => self.report_complete(world, membership),
            MemberStage::AwaitingRoom { .. } | MemberStage::Filled { .. } | MemberStage::Over => {}
        }
    }

    fn member_failed(
        &mut self,
        world: &mut World<'_>,
        membership: MembershipId,
        failure: Failure,
        error: Error,
    ) {
        if let Some(member) = self.members.get_mut(&membership) {
            member.note_failure(describe_failure(member.plan().index, &failure));
        }
        self.end_member(world, membership, error);
        self.report(world, membership, Report::Failed(failure));
    }

    fn report(&mut self, world: &mut World<'_>, membership: MembershipId, report: Report) {
        let MembershipId::Here(enlistment) = membership else {
            return world.perform(CollectiveEffect::Report { membership, report });
        };
        let is_last = report != Report::Filled;
        world.deliver(CollectiveEvent::Reported { enlistment, report });
        if is_last {
            world.deliver(CollectiveEvent::Left { membership });
        }
    }

    /// The attempt does not make the target here. Participants are told the reason, or look elsewhere.
    fn end_member(&mut self, world: &mut World<'_>, membership: MembershipId, error: Error) {
        let Some(member) = self.members.get_mut(&membership) else { return };
        if let MemberStage::AwaitingRoom { deadline } = member.stage() {
            world.unschedule(deadline, Timer::Member(membership));
        }
        if let Some(until) = member.end_wait_for_calls() {
            world.unschedule(until, Timer::Member(membership));
        }
        let (copy, target, put) = (member.fail(world.now), member.plan().target.clone(), member.plan().put);
        if !matches!(error, Error::Superseded { .. }) {
            world.push(Action::FailParticipants(target.clone(), error.clone()));
        }
        world.push(Action::EndMember { membership, target, put, copy, error });
    }

    /// The daemon stops.
    pub(super) fn shut_down(&mut self, world: &mut World<'_>) {
        let members = self.members.iter().filter(|(_, member)| !member.has_ended());
        for membership in members.map(|(membership, _)| *membership).collect::<Vec<_>>() {
            let error = Error::ShuttingDown;
            match membership {
                MembershipId::Elsewhere(_) => {
                    self.member_failed(world, membership, Failure::Refused(error.clone()), error);
                }
                // Its attempt ends with the call, or with this store.
                MembershipId::Here(_) => self.end_member(world, membership, error),
            }
        }
    }

    /// Remembers how an attempt went that is over for this store. The coordinator remembers more of its own.
    fn remember(&self, world: &mut World<'_>, id: MembershipId) {
        if let MembershipId::Elsewhere(_) = id
            && let Some(member) = self.members.get(&id)
        {
            let known = record_of(id, member, world.link, world.now);
            world.push(Action::Remember(ReduceRecord { is_running: false, ..known.without_copy() }));
        }
    }

    /// Another attempt to make a target begins. Rejections of earlier ones do not hold for it.
    pub(super) fn forget_rejections(&mut self, target: &ObjectId) {
        self.outcomes.forget_rejections(target);
    }

    /// A participant is about to join. `is_here` looks for the copy of a source.
    ///
    /// # Errors
    /// The reason for which its target will not be made.
    pub(super) fn join(
        &mut self,
        world: &mut World<'_>,
        target: &ObjectId,
        (agreement, is_again): (Agreement, bool),
        is_here: impl Fn(&ObjectId, PutId) -> bool,
    ) -> Result<(), Error> {
        if is_again && let Some(error) = self.outcomes.rejection(world.now, target) {
            return Err(error.clone());
        }
        self.end_stale_member(world, target, agreement, is_here);
        self.check_member(world, target, agreement)
    }

    /// A participant that has joined waits. If participants have disagreed lately, ranks may try again, and this store does not
    /// hear of every attempt before it has made its target.
    pub(super) fn joined(&mut self, world: &mut World<'_>, key: CallKey, target: &ObjectId) {
        if let Some((too_old, _)) = self.outcomes.disagreement(world.now, target)
            && world.now < too_old
        {
            let until = too_old.max(world.now + MIN_ATTEMPT_TIMEOUT);
            world.schedule(until, Timer::Join(key, target.clone()));
        }
    }

    /// No other attempt has begun in time after a disagreement.
    pub(super) fn join_expired(&mut self, world: &mut World<'_>, key: CallKey, target: ObjectId) {
        if let Some((_, error)) = self.outcomes.disagreement(world.now, &target) {
            let error = error.clone();
            world.push(Action::FailParticipant(key, target, error));
        }
    }

    /// An attempt will not make its target, and participants that have joined are told the reason. A participant that has joined
    /// since this store heard that, or of a newer attempt, waits for the newer one.
    pub(super) fn rejected(
        &mut self,
        world: &mut World<'_>,
        target: &ObjectId,
        attempt: AttemptId,
        error: &Error,
    ) {
        let is_of_attempt = |member: &Membership| {
            member.plan().target == *target && member.plan().attempt == attempt && !member.is_committed()
        };
        if let Some((membership, member)) = self.find(is_of_attempt)
            && member.stage() != MemberStage::Over
        {
            self.end_member(world, membership, error.clone());
        }
        let is_newer = |member: &Membership| {
            member.plan().target == *target
                && member.plan().attempt != attempt
                && member.plan().attempt.includes(attempt)
        };
        let is_overtaken = self.find(is_newer).is_some();
        if self.outcomes.reject(world.now, target, attempt, Some(error)) && !is_overtaken {
            world.push(Action::FailParticipants(target.clone(), error.clone()));
        }
    }
}
