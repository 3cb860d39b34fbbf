//! Sessions in which this store is a member.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::super::{CombineId, CombineOutcome, CopyId, Effect, Node};
use crate::collective::{
    Agreement, CollectiveEffect, Failure, MemberStage, Membership, MembershipId, Plan, Report, Word,
    describe_failure,
};
use crate::error::{Error, Result};
use crate::id::{ObjectId, PutId};
use crate::metadata::Metadata;
use crate::objects::calls::Call;
use crate::objects::notice::Deadline;
use crate::objects::notice::SpaceWaiter;
use crate::objects::table::{LocalCopy, Object, Phase};

/// The time that those who wait for the target of a session that has lost its coordinator may find it elsewhere: as long as a store
/// may be silent.
const ORPHAN_TIMEOUT: Duration = Duration::from_secs(5);
/// The time that a member that has its parts lets the others wait for the end of the exchange, if participants of its node have not
/// called yet: those who call later get their parts in a way that costs more. In general they call when their source is put.
const CALL_TIMEOUT: Duration = Duration::from_secs(1);
/// Most sessions that this store remembers to have left: those of some seconds, in which others may ask for them.
const MAX_ENDED: usize = 256;

/// The sessions in which this store is a member, or was.
#[derive(Debug, Default)]
pub(super) struct Memberships {
    members: BTreeMap<MembershipId, Membership>,
    /// The puts of attempts in which this store was a member lately, oldest first.
    ended: VecDeque<PutId>,
    /// Targets of sessions that have lost their coordinator.
    orphans: BTreeMap<MembershipId, ObjectId>,
}

impl Memberships {
    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    pub(super) fn contains(&self, membership: MembershipId) -> bool {
        self.members.contains_key(&membership)
    }

    pub(super) fn get(&self, membership: MembershipId) -> Option<&Membership> {
        self.members.get(&membership)
    }

    /// The membership in whose copy `target` grows.
    pub(super) fn growing(&self, target: &ObjectId) -> Option<(MembershipId, &Membership)> {
        let found = self.members.iter().find(|(_, membership)| {
            membership.plan().target == *target && membership.growing_copy().is_some()
        });
        found.map(|(membership, member)| (*membership, member))
    }

    /// The membership whose copy this is, while it grows.
    pub(super) fn of_copy(&self, copy: CopyId) -> Option<(MembershipId, &Membership)> {
        let found = self.members.iter().find(|(_, membership)| membership.growing_copy() == Some(copy));
        found.map(|(membership, member)| (*membership, member))
    }

    /// The membership in the session that makes a target: of several the one that is not over.
    pub(super) fn latest_for(&self, target: &ObjectId) -> Option<(MembershipId, &Membership)> {
        let members = self.members.iter().filter(|(_, member)| member.plan().target == *target);
        let latest =
            members.max_by_key(|(_, member)| (member.stage() != MemberStage::Over, member.asked_at()));
        latest.map(|(id, member)| (*id, member))
    }

    /// Returns `true` if this store has been a member of the attempt that makes `put`, and has nothing to give any more.
    pub(super) fn has_ended(&self, put: PutId) -> bool {
        let mut members = self.members.values().filter(|member| member.plan().put == put);
        self.ended.contains(&put)
            || members.any(|member| matches!(member.stage(), MemberStage::Complete | MemberStage::Over))
    }

    fn note_failure(&mut self, membership: MembershipId, reason: String) {
        if let Some(member) = self.members.get_mut(&membership) {
            member.note_failure(reason);
        }
    }

    /// Forgets a membership, but for that its attempt must not be gone on with.
    fn end(&mut self, membership: MembershipId) -> Option<Membership> {
        let member = self.members.remove(&membership)?;
        if self.ended.len() == MAX_ENDED {
            self.ended.pop_front();
        }
        self.ended.push_back(member.plan().put);
        Some(member)
    }
}

impl Node {
    /// This store is asked to be a member.
    pub(super) fn asked(&mut self, membership: MembershipId, plan: Box<Plan>) {
        // The coordinator has lost the connection and asks again: this store would read what was overwritten since. Or the session was
        // given up before.
        let memberships = &self.collectives.memberships;
        let is_known = |member: &Membership| member.plan().put == plan.put;
        let is_over =
            memberships.ended.contains(&plan.put) || self.collectives.audiences.is_given_up(plan.put);
        if is_over || memberships.members.values().any(is_known) {
            let error = Error::Superseded { id: plan.target.clone() };
            return self.report_member(membership, Report::Failed(Failure::Refused(error)));
        }
        let deadline = self.objects.ctx.now() + plan.timeout;
        // An attempt that this store has not heard the end of is over: its target was deleted.
        if let Some((older, member)) = memberships.growing(&plan.target)
            && member.plan().is_of_parts()
        {
            self.outdated(older, &plan.target);
        }
        // What was said of an earlier attempt does not hold for this one.
        self.forget_denials(&plan.target);
        let member = Membership::new(plan, self.objects.ctx.now());
        self.collectives.memberships.members.insert(membership, member);
        self.objects.ctx.schedule(deadline, Deadline::Membership(membership));
        self.begin_membership(membership);
    }

    /// Takes part in a session if there is room, and waits for room if not.
    pub(in super::super) fn begin_membership(&mut self, membership: MembershipId) {
        let Some(member) = self.collectives.memberships.get(membership) else { return };
        let MemberStage::AwaitingRoom { deadline } = member.stage() else { return };
        let plan = Box::new(member.plan().clone());
        let sources = match self.check_plan(&plan) {
            Ok(sources) => sources,
            Err(failure) => {
                let error = match &failure {
                    Failure::Disagrees(error) => error.clone(),
                    _ => Error::Superseded { id: plan.target.clone() },
                };
                return self.member_failed(membership, failure, error);
            }
        };
        let size_bytes = plan.copy_bytes();
        let Some(room) = self.objects.allocate_keeping(&sources, size_bytes) else {
            return self.objects.copies.wait_for_space(SpaceWaiter::Membership(membership));
        };
        self.objects.copies.stop_waiting_for_space(&SpaceWaiter::Membership(membership));
        self.objects.ctx.unschedule(deadline, Deadline::Membership(membership));
        // Whoever waits here for the object gets this one.
        self.objects.stop_fetch(&plan.target);
        let phase = Phase::Combining { combine: None };
        let id = plan.target.clone();
        let metadata = Metadata { agreement: Some(plan.agreement), ..plan.metadata.clone() };
        let object = Object { id: id.clone(), put: plan.put, size_bytes, metadata };
        let opening = LocalCopy::begin(object, room, phase).private();
        let stays = !plan.is_of_parts() && self.collectives.sessions.get(plan.put).is_some();
        let opening = if stays { opening } else { opening.evictable() };
        let copy = self.objects.copies.open(&mut self.objects.ctx, opening);
        for source in &sources {
            self.objects.copies.touch(*source);
        }
        let combine = self.objects.start_exchange(copy, sources, plan, membership);
        if let Some(member) = self.collectives.memberships.members.get_mut(&membership) {
            member.begin(copy, combine);
        }
        self.objects.copies.accept_awaiting(&mut self.objects.ctx, copy);
        self.objects.wake(&id);
    }

    /// Checks that this store can follow a plan now; answers the copies of its sources.
    fn check_plan(&mut self, plan: &Plan) -> Result<Vec<CopyId>, Failure> {
        if self.objects.ctx.is_shutting_down() {
            return Err(Failure::Refused(Error::ShuttingDown));
        }
        if self.objects.copies.live(&plan.target).is_some() || self.reductions.contains(&plan.target) {
            return Err(Failure::Refused(Error::AlreadyExists { id: plan.target.clone() }));
        }
        self.objects
            .check_incoming(&plan.target, plan.copy_bytes(), &plan.metadata)
            .map_err(Failure::Refused)?;
        for key in self.objects.calls.gets(&plan.target) {
            if let Some(Call::Get { join: Some(agreement), .. }) = self.objects.calls.get(key)
                && let Err(error) = agreement.check(&plan.target, &plan.agreement)
            {
                self.note_disagreement(&plan.target, &error);
                self.objects.finish(key, Err(error.clone()));
                return Err(Failure::Disagrees(error));
            }
        }
        let find = |(id, put): &(ObjectId, PutId)| {
            let copy = self.objects.copies.live_put(id, *put);
            let copy = copy.filter(|copy| self.objects.copies[copy].size_bytes == plan.source_bytes());
            copy.ok_or_else(|| Failure::Refused(Error::ObjectLost { id: id.clone() }))
        };
        plan.sources.iter().map(find).collect()
    }

    /// There was no room for the target in time.
    pub(in super::super) fn membership_expired(&mut self, membership: MembershipId) {
        if let Some(target) = self.collectives.memberships.orphans.remove(&membership) {
            if self.objects.copies.live(&target).is_none() {
                self.denied(&target.clone(), None, &Error::ObjectLost { id: target });
            }
            return;
        }
        let Some(member) = self.collectives.memberships.members.get_mut(&membership) else { return };
        if member.end_wait_for_calls().is_some() {
            return self.report_member(membership, Report::Filled);
        }
        if let MemberStage::AwaitingRoom { .. } = member.stage() {
            let (id, size_bytes) = (member.plan().target.clone(), member.plan().copy_bytes());
            let refusal =
                Failure::Refused(self.objects.copies.store_full(self.objects.ctx.node(), size_bytes));
            self.member_failed(membership, refusal, Error::Superseded { id });
        }
    }

    pub(super) fn filled(&mut self, combine: CombineId) {
        let mut memberships = self.collectives.memberships.members.iter_mut();
        let found = memberships.find(|(_, member)| {
            matches!(member.stage(), MemberStage::Exchanging { combine: running, .. } if running == combine)
        });
        let Some((membership, member)) = found else { return };
        let (membership, completed) = (*membership, member.filled(self.objects.ctx.now()));
        if member.plan().is_of_parts() {
            let put = member.plan().put;
            if !member.has_answered_all() {
                let until = self.objects.ctx.now() + CALL_TIMEOUT;
                member.await_calls(until);
                self.objects.ctx.schedule(until, Deadline::Membership(membership));
                return self.answer_coordinator(put);
            }
            self.answer_coordinator(put);
            return self.report_member(membership, Report::Filled);
        }
        match (membership, completed) {
            (MembershipId::Here(_), _) => self.report_member(membership, Report::Filled),
            (MembershipId::Elsewhere(_), Some(copy)) => self.complete_member(membership, copy),
            // Its coordinator decides when its own member has all bytes, and needs no other one's word for that.
            (MembershipId::Elsewhere(_), None) => {}
        }
    }

    /// A participant joins. If the parts that are here are those of an earlier collective of that target, whose end this store has not
    /// heard yet, they are of no use: its sources are gone, or others were meant.
    pub(super) fn end_stale_membership(&mut self, target: &ObjectId, agreement: Agreement) {
        let Some((membership, member)) = self.collectives.memberships.growing(target) else { return };
        let plan = member.plan();
        let is_filled = matches!(member.stage(), MemberStage::Filled { .. });
        let is_gone = |(id, put): &(ObjectId, PutId)| self.objects.copies.live_put(id, *put).is_none();
        let is_stale = plan.is_of_parts()
            && (plan.sources.iter().any(is_gone) || is_filled && agreement != plan.agreement);
        if is_stale {
            self.outdated(membership, target);
        }
    }

    fn outdated(&mut self, membership: MembershipId, target: &ObjectId) {
        let error = Error::Superseded { id: target.clone() };
        self.member_failed(membership, Failure::Refused(error.clone()), error);
    }

    /// A participant was referred to the copy of a member.
    pub(in super::super) fn answered(&mut self, membership: MembershipId) {
        let Some(member) = self.collectives.memberships.members.get_mut(&membership) else { return };
        member.answer();
        if member.has_answered_all()
            && let Some(until) = member.end_wait_for_calls()
        {
            self.objects.ctx.unschedule(until, Deadline::Membership(membership));
            self.report_member(membership, Report::Filled);
        }
    }

    pub(super) fn told(&mut self, membership: MembershipId, word: Word) {
        let Some(member) = self.collectives.memberships.members.get_mut(&membership) else { return };
        match word {
            // Nobody says that of parts.
            Word::Commit if member.plan().is_of_parts() && !member.plan().agreement.kind.ends_together() => {}
            Word::Commit => {
                if let Some(copy) = member.commit() {
                    self.complete_member(membership, copy);
                }
            }
            Word::Stop(error) => {
                let (target, put) = (member.plan().target.clone(), member.plan().put);
                match (member.is_committed(), error) {
                    // The coordinator goes on without a session.
                    (false, error @ Error::Superseded { .. }) => self.end_membership(membership, error),
                    (false, error) => self.denied(&target, Some(put), &error),
                    (true, error @ Error::Deleted { .. }) => {
                        self.collectives.audiences.remember_given_up(put);
                        self.end_membership(membership, error);
                    }
                    (true, _) => {}
                }
            }
        }
    }

    /// The session that makes `put` was given up.
    pub(super) fn give_up_membership(&mut self, put: PutId, error: &Error) {
        let mut memberships = self.collectives.memberships.members.iter();
        let found = memberships.find(|(_, member)| {
            member.plan().put == put && !member.is_committed() && member.stage() != MemberStage::Over
        });
        if let Some(membership) = found.map(|(membership, _)| *membership) {
            self.end_membership(membership, error.clone());
        }
    }

    /// What a session has made here is the target.
    fn complete_member(&mut self, membership: MembershipId, copy: CopyId) {
        let Some(member) = self.collectives.memberships.get(membership) else { return };
        if member.plan().is_of_parts() {
            // Only for the participants here, all of whom have been referred to it.
            let error = Error::Superseded { id: member.plan().target.clone() };
            self.objects.complete(copy);
            return self.objects.detach(copy, error);
        }
        let put = member.plan().put;
        self.objects.copies.reveal(copy);
        if let Some(coordinated) = self.collectives.sessions.get(put) {
            self.reductions.remember(coordinated.record(&self.objects.ctx));
            if let Some(key) = coordinated.key() {
                self.objects.copies.publication_mut(copy).sealer = Some(key);
            }
            return self.objects.complete_put(copy);
        }
        self.objects.complete(copy);
        self.objects.publish(copy);
        self.report_complete(membership);
    }

    /// What a session has made here is the target, and others may still need what this member gives.
    fn report_complete(&mut self, membership: MembershipId) {
        let Some(member) = self.collectives.memberships.get(membership) else { return };
        if member.plan().is_of_parts() {
            // Its coordinator has heard that, and is about to dismiss it.
            return;
        }
        let is_giving =
            member.combine().is_some_and(|combine| self.objects.combinations.contains_key(&combine));
        self.report_member(membership, if is_giving { Report::Filled } else { Report::Done });
    }

    /// The coordinator needs this member no longer, or is gone.
    pub(super) fn left(&mut self, membership: MembershipId) {
        let Some(member) = self.collectives.memberships.get(membership) else { return };
        let (id, is_committed) = (member.plan().target.clone(), member.is_committed());
        let plan = member.plan();
        let has_its_parts = plan.is_of_parts()
            && !plan.agreement.kind.ends_together()
            && matches!(member.stage(), MemberStage::Filled { .. });
        let is_orphan = !is_committed && !has_its_parts && member.stage() != MemberStage::Over;
        if has_its_parts {
            self.remember_membership(membership);
        } else if is_orphan {
            let reason = "the store of rank 0 is gone".to_owned();
            self.collectives.memberships.note_failure(membership, reason);
        }
        // Others have what this one has not, if the coordinator has decided so. Else it may still make it in another way, if
        // it is only this store that cannot hear it.
        self.end_membership(membership, Error::Superseded { id: id.clone() });
        if is_orphan {
            self.collectives.memberships.orphans.insert(membership, id);
            self.objects
                .ctx
                .schedule(self.objects.ctx.now() + ORPHAN_TIMEOUT, Deadline::Membership(membership));
        }
        if !has_its_parts {
            self.remember_membership(membership);
        }
        let Some(member) = self.collectives.memberships.end(membership) else { return };
        if let Some(combine) =
            member.combine().filter(|combine| self.objects.combinations.contains_key(combine))
        {
            self.objects.ctx.push(Effect::CancelCombine { combine });
        }
    }

    /// An exchange has ended: of a member that has not all bytes, too early.
    pub(in super::super) fn exchange_ended(&mut self, membership: MembershipId, outcome: CombineOutcome) {
        let Some(member) = self.collectives.memberships.get(membership) else { return };
        match member.stage() {
            MemberStage::Exchanging { .. } => {}
            MemberStage::Complete => return self.report_complete(membership),
            MemberStage::AwaitingRoom { .. } | MemberStage::Filled { .. } | MemberStage::Over => return,
        }
        let error = Error::Superseded { id: member.plan().target.clone() };
        let failure = match outcome {
            CombineOutcome::InputFailed { index, outcome } => Failure::Peer { index, outcome },
            _ => Failure::Refused(Error::ShuttingDown),
        };
        self.member_failed(membership, failure, error);
    }

    pub(super) fn member_failed(&mut self, membership: MembershipId, failure: Failure, error: Error) {
        let index = self.collectives.memberships.get(membership).map_or(0, |member| member.plan().index);
        self.collectives.memberships.note_failure(membership, describe_failure(index, &failure));
        self.end_membership(membership, error);
        self.report_member(membership, Report::Failed(failure));
    }

    fn report_member(&mut self, membership: MembershipId, report: Report) {
        let MembershipId::Here(enlistment) = membership else {
            return self
                .objects
                .ctx
                .push(Effect::Collective(CollectiveEffect::Report { membership, report }));
        };
        let is_last = report != Report::Filled;
        self.reported(enlistment, report);
        if is_last {
            self.left(membership);
        }
    }

    /// This store will not have the target from a session. Those who wait for it are told why, or look elsewhere.
    pub(super) fn end_membership(&mut self, membership: MembershipId, error: Error) {
        let Some(member) = self.collectives.memberships.members.get_mut(&membership) else { return };
        if let MemberStage::AwaitingRoom { deadline } = member.stage() {
            self.objects.ctx.unschedule(deadline, Deadline::Membership(membership));
        }
        if let Some(until) = member.end_wait_for_calls() {
            self.objects.ctx.unschedule(until, Deadline::Membership(membership));
        }
        let (copy, id, put) =
            (member.fail(self.objects.ctx.now()), member.plan().target.clone(), member.plan().put);
        self.objects.copies.stop_waiting_for_space(&SpaceWaiter::Membership(membership));
        self.objects.copies.refuse_awaiting_put(&mut self.objects.ctx, &id, put);
        if !matches!(error, Error::Superseded { .. }) {
            self.fail_joins(&id, &error);
        }
        if let Some(copy) = copy {
            self.objects.detach(copy, error);
        }
        self.objects.wake(&id);
    }

    /// The daemon stops.
    pub(in super::super) fn shut_down_memberships(&mut self) {
        let memberships: Vec<MembershipId> = self.collectives.memberships.members.keys().copied().collect();
        for membership in memberships {
            let is_over =
                |member: &Membership| matches!(member.stage(), MemberStage::Complete | MemberStage::Over);
            if self.collectives.memberships.get(membership).is_none_or(is_over) {
                continue;
            }
            let error = Error::ShuttingDown;
            match membership {
                MembershipId::Elsewhere(_) => {
                    self.member_failed(membership, Failure::Refused(error.clone()), error);
                }
                // Its session ends with its call, or with this store.
                MembershipId::Here(_) => self.end_membership(membership, error),
            }
        }
    }
}
