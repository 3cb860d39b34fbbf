use std::collections::BTreeMap;
use std::time::Duration;

use super::action::{Action, Context, Step, Timer};
use super::attempt::describe_failure;
use super::event::{CollectiveEffect, CollectiveEvent};
use super::member::{MemberStage, Membership};
use super::message::{AttemptId, Decision, Failure, Member, MembershipId, Plan, Report};
use super::outcomes::{MIN_ATTEMPT_TIMEOUT, Outcomes};
use super::records::{ReduceRecord, record_of};
use crate::error::Error;
use crate::id::{ObjectId, PutId};
use crate::plan::link::LinkEstimate;
use crate::time::Time;
use crate::vocabulary::agreement::Agreement;
use crate::vocabulary::local::{ByteRange, CallKey, CombineId, CopyId};

/// Time for which participants of a lost coordinator look for the target at other stores: the
/// longest silence of a live store.
const ORPHAN_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for which a member with all parts waits for this node's participants to fetch them. Later
/// ones make their parts from the sources.
const CALL_TIMEOUT: Duration = Duration::from_secs(1);
/// Participants copy a target above this size as its ranges become valid. A smaller copy takes less
/// time than a message about a range.
const MAX_UNFOLLOWED_BYTES: u64 = 32 << 10;

#[derive(Debug, Default)]
pub(crate) struct Memberships {
    members: BTreeMap<MembershipId, Membership>,
    outcomes: Outcomes,
    /// Targets whose coordinator was lost before a decision. Each has its last attempt, and the
    /// time when its participants fail.
    orphans: BTreeMap<ObjectId, (AttemptId, Time)>,
}

impl Memberships {
    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    fn growing(&self, target: &ObjectId) -> Option<(MembershipId, &Membership)> {
        self.find(|member| member.plan.target == *target && member.growing_copy().is_some())
    }

    fn find(&self, predicate: impl Fn(&Membership) -> bool) -> Option<(MembershipId, &Membership)> {
        self.members.iter().find(|(_, member)| predicate(member)).map(|(id, member)| (*id, member))
    }

    pub(super) fn latest_for(&self, target: &ObjectId) -> Option<(MembershipId, &Membership)> {
        let members = self.members.iter().filter(|(_, member)| member.plan.target == *target);
        let latest = members
            .max_by_key(|(_, member)| (member.stage() != MemberStage::Over, member.enlisted_at));
        latest.map(|(id, member)| (*id, member))
    }

    pub(crate) fn record(
        &self,
        target: &ObjectId,
        link: LinkEstimate,
        now: Time,
    ) -> Option<ReduceRecord> {
        let (id, member) = self.latest_for(target)?;
        matches!(id, MembershipId::Elsewhere(_)).then(|| record_of(id, member, link, now))
    }

    pub(crate) fn members_making(&self, target: &ObjectId) -> Option<(usize, &[Member])> {
        let (_, member) = self.latest_for(target)?;
        Some((member.plan.index, &member.plan.members))
    }

    pub(crate) fn has_ended(&self, put: PutId) -> bool {
        self.outcomes.has_left(put)
            || self.find(|member| member.plan.put == put && member.has_ended()).is_some()
    }

    pub(super) fn enlisted(
        &mut self,
        ctx: &mut Context<'_>,
        membership: MembershipId,
        plan: Box<Plan>,
    ) -> bool {
        // Refused if this store already had the plan: its connection broke, and other members may
        // have overwritten bytes that this store needs. Also refused if a newer plan is known.
        let is_known = |member: &Membership| {
            member.plan.target == plan.target && member.plan.attempt.includes(plan.attempt)
        };
        if self.outcomes.is_over(&plan.target, plan.attempt) || self.find(is_known).is_some() {
            let error = Error::Superseded { id: plan.target.clone() };
            self.report(ctx, membership, Report::Failed(Failure::Refused(error)));
            return false;
        }
        // The earlier attempt's target was deleted, but this store was not told yet.
        if let Some((older, member)) = self.growing(&plan.target)
            && !member.plan.properties().makes_target
        {
            self.supersede(ctx, older);
        }
        self.end_orphan(ctx, &plan.target);
        let deadline = ctx.now + plan.timeout;
        self.members.insert(membership, Membership::new(plan, ctx.now));
        self.wait(ctx, membership, deadline);
        ctx.push(Action::Open(membership));
        true
    }

    fn wait(&mut self, ctx: &mut Context<'_>, membership: MembershipId, deadline: Time) {
        let Some(member) = self.members.get_mut(&membership) else { return };
        member.deadline = Some(deadline);
        ctx.schedule(deadline, Timer::Member(membership));
    }

    pub(crate) fn awaits_space(&self, membership: MembershipId) -> Option<&Plan> {
        let member = self.members.get(&membership)?;
        (member.stage() == MemberStage::AwaitingRoom).then_some(&*member.plan)
    }

    pub(crate) fn exchange_started(
        &mut self,
        ctx: &mut Context<'_>,
        membership: MembershipId,
        copy: CopyId,
        combine: CombineId,
    ) {
        let Some(member) = self.members.get_mut(&membership) else { return };
        if member.stage() == MemberStage::AwaitingRoom {
            end_wait(ctx, membership, member);
            member.begin(copy, combine);
        }
    }

    pub(crate) fn refused(
        &mut self,
        ctx: &mut Context<'_>,
        membership: MembershipId,
        failure: Failure,
    ) {
        let Some(Membership { plan, .. }) = self.members.get(&membership) else { return };
        let error = if let Failure::Disagrees(error) = &failure {
            self.outcomes.reject(ctx.now, &plan.target, plan.attempt, Some(error));
            error.clone()
        } else {
            Error::Superseded { id: plan.target.clone() }
        };
        self.member_failed(ctx, membership, failure, error);
    }

    pub(super) fn member_expired(&mut self, ctx: &mut Context<'_>, membership: MembershipId) {
        let Some(member) = self.members.get_mut(&membership) else { return };
        if member.deadline.take().is_none() {
            return;
        }
        if member.stage() == MemberStage::AwaitingRoom {
            ctx.push(Action::LackRoom(membership));
        } else {
            self.report(ctx, membership, Report::Filled);
        }
    }

    pub(super) fn filled(&mut self, ctx: &mut Context<'_>, combine: CombineId) {
        let mut members = self.members.iter_mut();
        let found = members.find(|(_, member)| {
            matches!(member.stage(), MemberStage::Exchanging { .. })
                && member.running == Some(combine)
        });
        let Some((membership, member)) = found else { return };
        let (membership, completed) = (*membership, member.filled(ctx.now));
        if !member.plan.properties().makes_target {
            ctx.step(Step::HasParts(member.plan.put));
            if !member.has_answered_all() {
                return self.wait(ctx, membership, ctx.now + CALL_TIMEOUT);
            }
            return self.report(ctx, membership, Report::Filled);
        }
        match (membership, completed) {
            (MembershipId::Here(_), _) => self.report(ctx, membership, Report::Filled),
            (MembershipId::Elsewhere(_), Some(copy)) => {
                self.complete_member(ctx, membership, copy, None)
            }
            // The member waits for the coordinator's commit.
            (MembershipId::Elsewhere(_), None) => {}
        }
    }

    fn supersede(&mut self, ctx: &mut Context<'_>, membership: MembershipId) {
        let Some(member) = self.members.get(&membership) else { return };
        let error = Error::Superseded { id: member.plan.target.clone() };
        self.refused(ctx, membership, Failure::Refused(error));
    }

    /// Returns the member that fills `copy`, and the order in which its ranges become valid. `None`
    /// without a member, or for a target that participants copy when complete.
    pub(crate) fn order_of(&self, copy: CopyId) -> Option<(MembershipId, Vec<ByteRange>)> {
        let (membership, member) = self.find(|member| member.growing_copy() == Some(copy))?;
        let plan = &member.plan;
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

    pub(crate) fn answered(&mut self, ctx: &mut Context<'_>, membership: MembershipId) {
        let Some(member) = self.members.get_mut(&membership) else { return };
        member.answered += 1;
        // Only a member with all parts that waits for its participants has a deadline here.
        if member.has_answered_all() && end_wait(ctx, membership, member) {
            self.report(ctx, membership, Report::Filled);
        }
    }

    pub(super) fn commit(
        &mut self,
        ctx: &mut Context<'_>,
        membership: MembershipId,
        call: Option<(CallKey, usize)>,
    ) {
        if let Some(copy) = self.members.get_mut(&membership).and_then(Membership::commit) {
            self.complete_member(ctx, membership, copy, call);
        }
    }

    pub(super) fn decided(
        &mut self,
        ctx: &mut Context<'_>,
        membership: MembershipId,
        decision: Decision,
    ) {
        let Some(member) = self.members.get_mut(&membership) else { return };
        match decision {
            Decision::Commit if !member.plan.properties().awaits_commit => {}
            Decision::Commit => self.commit(ctx, membership, None),
            Decision::Stop(error) => {
                let (target, attempt) = (member.plan.target.clone(), member.plan.attempt);
                match (member.is_committed(), error) {
                    // Participants wait, because the general path makes the target.
                    (false, error @ Error::Superseded { .. }) => {
                        self.end_member(ctx, membership, error)
                    }
                    (false, error) => self.rejected(ctx, &target, attempt, &error),
                    (true, error @ Error::Deleted { .. }) => {
                        self.outcomes.reject(ctx.now, &target, attempt, None);
                        self.end_member(ctx, membership, error);
                    }
                    (true, _) => {}
                }
            }
        }
    }

    fn complete_member(
        &mut self,
        ctx: &mut Context<'_>,
        membership: MembershipId,
        copy: CopyId,
        call: Option<(CallKey, usize)>,
    ) {
        let Some(Membership { plan, .. }) = self.members.get(&membership) else { return };
        if !plan.properties().makes_target {
            return ctx.push(Action::CompleteParts(plan.target.clone(), copy));
        }
        ctx.push(Action::CompleteTarget(copy, call));
        if let MembershipId::Elsewhere(_) = membership {
            self.report_complete(ctx, membership);
        }
    }

    fn report_complete(&mut self, ctx: &mut Context<'_>, membership: MembershipId) {
        let Some(member) = self.members.get(&membership) else { return };
        if member.plan.properties().makes_target {
            let report = if member.running.is_some() { Report::Filled } else { Report::Done };
            self.report(ctx, membership, report);
        }
    }

    pub(super) fn coordinator_left(&mut self, ctx: &mut Context<'_>, membership: MembershipId) {
        let Some(member) = self.members.get_mut(&membership) else { return };
        let plan = &member.plan;
        let (target, attempt, put) = (plan.target.clone(), plan.attempt, plan.put);
        let enlisted_at = member.enlisted_at;
        let has_its_parts = !plan.properties().awaits_commit
            && matches!(member.stage(), MemberStage::Filled { .. });
        let is_orphan =
            !member.is_committed() && !has_its_parts && member.stage() != MemberStage::Over;
        if has_its_parts {
            self.remember(ctx, membership);
        } else if is_orphan {
            member.failure = Some("the store of rank 0 is gone".to_owned());
        }
        // After a commit, other members have the target. Before a commit, the general path may make
        // it.
        self.end_member(ctx, membership, Error::Superseded { id: target.clone() });
        let is_later = |id: MembershipId, other: &Membership| {
            id != membership && other.plan.target == target && other.enlisted_at >= enlisted_at
        };
        if is_orphan && !self.members.iter().any(|(id, other)| is_later(*id, other)) {
            self.end_orphan(ctx, &target);
            let until = ctx.now + ORPHAN_TIMEOUT;
            self.orphans.insert(target.clone(), (attempt, until));
            ctx.schedule(until, Timer::Orphan(target.clone()));
        }
        if !has_its_parts {
            self.remember(ctx, membership);
        }
        self.outcomes.record_left(target, attempt, put);
        if let Some(combine) = self.members.remove(&membership).and_then(|member| member.running) {
            ctx.push(Action::Cancel(combine));
        }
    }

    fn end_orphan(&mut self, ctx: &mut Context<'_>, target: &ObjectId) {
        if let Some((_, until)) = self.orphans.remove(target) {
            ctx.unschedule(until, Timer::Orphan(target.clone()));
        }
    }

    pub(super) fn orphan_expired(&mut self, ctx: &mut Context<'_>, target: ObjectId) {
        if let Some((attempt, _)) = self.orphans.remove(&target) {
            ctx.push(Action::RejectOrphan(target, attempt));
        }
    }

    /// `failure` counts only if the member misses bytes. It is `None` if the copy was dropped.
    pub(crate) fn exchange_ended(
        &mut self,
        ctx: &mut Context<'_>,
        membership: MembershipId,
        failure: Option<Failure>,
    ) {
        let Some(member) = self.members.get_mut(&membership) else { return };
        member.running = None;
        let Some(failure) = failure else { return };
        match member.stage() {
            MemberStage::Exchanging { .. } => self.refused(ctx, membership, failure),
            MemberStage::Complete => self.report_complete(ctx, membership),
            MemberStage::AwaitingRoom | MemberStage::Filled { .. } | MemberStage::Over => {}
        }
    }

    fn member_failed(
        &mut self,
        ctx: &mut Context<'_>,
        membership: MembershipId,
        failure: Failure,
        error: Error,
    ) {
        if let Some(member) = self.members.get_mut(&membership) {
            member.failure = Some(describe_failure(member.plan.index, &failure));
        }
        self.end_member(ctx, membership, error);
        self.report(ctx, membership, Report::Failed(failure));
    }

    fn report(&mut self, ctx: &mut Context<'_>, membership: MembershipId, report: Report) {
        let MembershipId::Here(enlistment) = membership else {
            return ctx.perform(CollectiveEffect::Report { membership, report });
        };
        let is_last = report != Report::Filled;
        ctx.deliver(CollectiveEvent::Reported { enlistment, report });
        if is_last {
            ctx.deliver(CollectiveEvent::Left { membership });
        }
    }

    /// Ends a member whose copy does not become the target. On [`Error::Superseded`], its
    /// participants wait for the target from another store or attempt; otherwise they get `error`.
    fn end_member(&mut self, ctx: &mut Context<'_>, membership: MembershipId, error: Error) {
        let Some(member) = self.members.get_mut(&membership) else { return };
        end_wait(ctx, membership, member);
        let (copy, target, put) =
            (member.fail(ctx.now), member.plan.target.clone(), member.plan.put);
        if !matches!(error, Error::Superseded { .. }) {
            ctx.push(Action::FailParticipants(target.clone(), None, error.clone()));
        }
        ctx.push(Action::EndMember { membership, target, put, copy, error });
    }

    pub(crate) fn shut_down(&mut self, ctx: &mut Context<'_>) {
        let members = self.members.iter().filter(|(_, member)| !member.has_ended());
        for membership in members.map(|(membership, _)| *membership).collect::<Vec<_>>() {
            let error = Error::ShuttingDown;
            match membership {
                MembershipId::Elsewhere(_) => {
                    self.member_failed(ctx, membership, Failure::Refused(error.clone()), error);
                }
                MembershipId::Here(_) => self.end_member(ctx, membership, error),
            }
        }
    }

    fn remember(&self, ctx: &mut Context<'_>, id: MembershipId) {
        if let MembershipId::Elsewhere(_) = id
            && let Some(member) = self.members.get(&id)
        {
            let mut record = record_of(id, member, ctx.link, ctx.now);
            record.is_running = false;
            if let Some(position) = &mut record.position {
                position.copy = None;
            }
            ctx.push(Action::Remember(record));
        }
    }

    pub(super) fn forget_rejections(&mut self, target: &ObjectId) {
        self.outcomes.forget_rejections(target);
    }

    /// Checks that a participant may join. `is_here` returns `true` if this store has the source.
    pub(crate) fn join(
        &mut self,
        ctx: &mut Context<'_>,
        target: &ObjectId,
        (agreement, is_again): (Agreement, bool),
        is_here: impl Fn(&ObjectId, PutId) -> bool,
    ) -> Result<(), Error> {
        if is_again && let Some(error) = self.outcomes.rejection(ctx.now, target) {
            return Err(error.clone());
        }
        let Some((membership, member)) = self.growing(target) else { return Ok(()) };
        let plan = &member.plan;
        // The collective is over without this store's knowledge: its sources are gone, or the
        // member has all parts and the participant requests another operation.
        let is_filled = matches!(member.stage(), MemberStage::Filled { .. });
        let is_stale = plan.sources.iter().any(|(id, put)| !is_here(id, *put))
            || is_filled && agreement != plan.agreement;
        if !plan.properties().makes_target && is_stale {
            self.supersede(ctx, membership);
            return Ok(());
        }
        let checked = agreement.check(target, &plan.agreement);
        if let Err(error) = &checked
            && !member.is_committed()
        {
            self.refused(ctx, membership, Failure::Disagrees(error.clone()));
        }
        checked
    }

    /// Limits a participant's wait after ranks disagreed, because this store may never learn of
    /// their next attempt.
    pub(crate) fn joined(&mut self, ctx: &mut Context<'_>, key: CallKey, target: &ObjectId) {
        if let Some((too_old, _)) = self.outcomes.disagreement(ctx.now, target)
            && ctx.now < too_old
        {
            let until = too_old.max(ctx.now + MIN_ATTEMPT_TIMEOUT);
            ctx.schedule(until, Timer::Join(key, target.clone()));
        }
    }

    pub(super) fn join_expired(&mut self, ctx: &mut Context<'_>, key: CallKey, target: ObjectId) {
        if let Some((_, error)) = self.outcomes.disagreement(ctx.now, &target) {
            let error = error.clone();
            ctx.push(Action::FailParticipants(target, Some(key), error));
        }
    }

    /// Fails this node's participants, because the coordinator gave up `attempt`. Participants that
    /// join later wait for a newer attempt.
    pub(crate) fn rejected(
        &mut self,
        ctx: &mut Context<'_>,
        target: &ObjectId,
        attempt: AttemptId,
        error: &Error,
    ) {
        let is_of_attempt = |member: &Membership| {
            member.plan.target == *target
                && member.plan.attempt == attempt
                && !member.is_committed()
        };
        if let Some((membership, member)) = self.find(is_of_attempt)
            && member.stage() != MemberStage::Over
        {
            self.end_member(ctx, membership, error.clone());
        }
        let is_newer = |member: &Membership| {
            member.plan.target == *target
                && member.plan.attempt != attempt
                && member.plan.attempt.includes(attempt)
        };
        let is_overtaken = self.find(is_newer).is_some();
        if self.outcomes.reject(ctx.now, target, attempt, Some(error)) && !is_overtaken {
            ctx.push(Action::FailParticipants(target.clone(), None, error.clone()));
        }
    }
}

fn end_wait(ctx: &mut Context<'_>, id: MembershipId, member: &mut Membership) -> bool {
    let Some(deadline) = member.deadline.take() else { return false };
    ctx.unschedule(deadline, Timer::Member(id));
    true
}
