//! Sessions that this store coordinates: it asks the members, hears how they fare, and says what follows.

use std::collections::BTreeMap;

use super::super::{Effect, Node, Reduce, ReduceRecord, Response};
use super::CoordinatedCall;
use crate::collective::{
    Agreement, CollectiveEffect, CollectiveSession, Decision, EnlistmentId, MAX_ACCOUNT_BYTES, Member,
    MembershipId, Plan, Report, Roster, Seated, SessionAction, Word, describe_plan,
};
use crate::error::Error;
use crate::id::{NodeId, ObjectId, PutId};
use crate::message::CallKey;
use crate::objects::calls::Call;
use crate::objects::context::Context;
use crate::peer::ROOM_TIMEOUT;
use crate::plan::Choice;
use crate::plan::collective::{Arrangement, Collective, Schedule, arrange, arrange_parts, frame_bytes};
use crate::text::cut;
use crate::time::Time;
use crate::topology::place::Path;

/// The sessions that this store coordinates.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    /// By the put of the attempt.
    coordinated: BTreeMap<PutId, Coordinated>,
    enlistments: BTreeMap<EnlistmentId, PutId>,
}

/// A session that this store coordinates.
#[derive(Debug)]
pub(super) struct Coordinated {
    call: CoordinatedCall,
    session: CollectiveSession,
    /// The nodes of the members, in their order.
    nodes: Vec<NodeId>,
    plan: String,
}

impl Sessions {
    pub(super) fn len(&self) -> usize {
        self.coordinated.len()
    }

    /// Returns the number of members that are still to be heard.
    pub(super) fn enlistments(&self) -> usize {
        self.enlistments.len()
    }

    /// What was asked for, since when, among how many members by which plan.
    pub(super) fn under_way(&self) -> impl Iterator<Item = (&Reduce, Time, usize, &str)> {
        let coordinated = self.coordinated.values();
        coordinated.map(|one| (&one.call.request, one.call.started, one.nodes.len(), &one.plan[..]))
    }

    pub(super) fn get(&self, put: PutId) -> Option<&Coordinated> {
        self.coordinated.get(&put)
    }

    /// The session that makes `target`, if it is not decided.
    pub(super) fn open_for(&self, target: &ObjectId) -> Option<PutId> {
        let open = |(_, coordinated): &(&PutId, &Coordinated)| {
            coordinated.call.request.target == *target && coordinated.session.decision() == Decision::Open
        };
        self.coordinated.iter().find(open).map(|(put, _)| *put)
    }

    /// Returns `true` if it is decided that a session for this call makes the target.
    pub(super) fn is_committed_for(&self, key: CallKey) -> bool {
        let stands = |coordinated: &Coordinated| {
            coordinated.call.key == Some(key) && coordinated.session.decision() == Decision::Committed
        };
        self.coordinated.values().any(stands)
    }
}

impl Coordinated {
    /// The call that waits for it.
    pub(super) fn key(&self) -> Option<CallKey> {
        self.call.key
    }

    /// How it went, now that the target is there.
    pub(super) fn record(&self, ctx: &Context) -> ReduceRecord {
        self.call.record(ctx, self.nodes.len(), self.plan.clone())
    }

    /// The stores that have not done their part.
    pub(super) fn unfinished_stores(&self) -> Vec<NodeId> {
        self.session.unfinished().filter_map(|index| self.nodes.get(index).cloned()).collect()
    }

    /// How it goes.
    pub(super) fn record_running(&self, ctx: &Context, now: Time) -> ReduceRecord {
        ReduceRecord { elapsed: now.since(self.call.started), is_running: true, ..self.record(ctx) }
    }
}

/// What members and those who ask are told about a choice.
fn account(ctx: &Context, choice: &Choice<Schedule>, remark: &str, started: Time) -> String {
    let other = choice.runner_up.as_ref().map_or(String::new(), |(schedule, estimate)| {
        format!("; the next best is a {schedule}, {estimate:.1?}")
    });
    let remark = if remark.is_empty() { String::new() } else { format!(" ({remark})") };
    let account = format!(
        "estimated to take {:.1?}{remark}{other}; waited {:.1?}; rank 0 at {}",
        choice.estimate,
        ctx.now().since(started),
        ctx.node().as_str()
    );
    cut(account, MAX_ACCOUNT_BYTES)
}

impl Node {
    /// Asks those who have the sources to be members.
    pub(super) fn begin_session(&mut self, call: CoordinatedCall, roster: Roster) {
        let CoordinatedCall { started, kind, ref request, .. } = call;
        let put = self.objects.ctx.next_put();
        self.collectives.audiences.note_session(&request.target, Some(put));
        let slow = roster.slow_links();
        let Roster { members, size_bytes, metadata } = roster;
        let (link, preference) = (self.objects.ctx.link(), self.objects.ctx.config().allreduce_schedule);
        let paths: Vec<Path> = members.iter().map(|seated| seated.path).collect();
        let Arrangement { order, choice, remark } = match kind {
            Collective::Allreduce => arrange(&paths, &slow, size_bytes, link, preference),
            Collective::ReduceScatter | Collective::Allgather | Collective::AllToAll => {
                arrange_parts(&paths, &slow, size_bytes, link)
            }
        };
        let members: Vec<Seated> = order.iter().map(|member| members[*member].clone()).collect();
        let seats: Vec<Member> = members.iter().map(|seated| seated.member.clone()).collect();
        let ranks = members.iter().filter(|_| kind.is_of_parts()).map(|seated| seated.ranks.clone());
        let common = Plan {
            target: request.target.clone(),
            put,
            agreement: Agreement::of(kind, request),
            size_bytes,
            metadata,
            account: account(&self.objects.ctx, &choice, &remark, started),
            schedule: choice.schedule,
            frame_bytes: frame_bytes(seats.len(), size_bytes),
            members: seats,
            index: 0,
            ranks: ranks.collect(),
            sources: Vec::new(),
            timeout: ROOM_TIMEOUT.min(request.timeout.saturating_sub(self.objects.ctx.now().since(started))),
        };
        let (mut enlistments, mut own) = (Vec::new(), None);
        for (index, Seated { member, sources, .. }) in members.into_iter().enumerate() {
            let enlistment = EnlistmentId(self.objects.ctx.next_number());
            let plan = Box::new(Plan { index, sources, ..common.clone() });
            enlistments.push(enlistment);
            self.collectives.sessions.enlistments.insert(enlistment, put);
            if member.node == *self.objects.ctx.node() {
                own = Some((enlistment, plan));
            } else {
                self.objects.ctx.push(Effect::Collective(CollectiveEffect::Enlist { enlistment, plan }));
            }
        }
        let own_enlistment = own.as_ref().map(|(enlistment, _)| *enlistment);
        let session = CollectiveSession::new(kind, common.target, enlistments, own_enlistment);
        let plan = describe_plan(kind, &common.schedule, &common.account, &common.members);
        let nodes = common.members.iter().map(|member| member.node.clone()).collect();
        let coordinated = Coordinated { call, session, nodes, plan };
        self.collectives.sessions.coordinated.insert(put, coordinated);
        if let Some((enlistment, plan)) = own {
            self.asked(MembershipId::Here(enlistment), plan);
        }
    }

    /// A member has said how far it is.
    pub(super) fn reported(&mut self, enlistment: EnlistmentId, report: Report) {
        let Some(put) = self.collectives.sessions.enlistments.get(&enlistment).copied() else { return };
        let Some(coordinated) = self.collectives.sessions.coordinated.get_mut(&put) else { return };
        let is_last = report != Report::Filled;
        let is_of_parts = coordinated.call.kind.is_of_parts();
        let was_open = coordinated.session.decision() == Decision::Open;
        let actions = coordinated.session.reported(enlistment, report);
        let is_committed = coordinated.session.decision() == Decision::Committed;
        let (key, participants) = (coordinated.call.key, coordinated.call.request.sources.len());
        let existence = coordinated.call.existence.take_if(|_| is_committed && !is_of_parts);
        if let Some(existence) = existence {
            self.objects.withdraw_query(existence);
        }
        if is_last {
            self.collectives.sessions.enlistments.remove(&enlistment);
        }
        if is_committed
            && was_open
            && let Some(key) = key
            && let Some(Call::Reduce { reduced, .. }) = self.objects.calls.get_mut(key)
        {
            *reduced = (0..participants).collect();
        }
        self.perform_session(put, actions);
    }

    fn perform_session(&mut self, put: PutId, actions: Vec<SessionAction>) {
        let mut end = None;
        for action in actions {
            match action {
                SessionAction::Tell(enlistment, word) => self.tell_member(enlistment, word),
                SessionAction::Dismiss(enlistment) => self.dismiss_member(enlistment),
                action => end = Some(action),
            }
        }
        let sessions = &mut self.collectives.sessions.coordinated;
        if !sessions.get(&put).is_some_and(|found| found.session.is_over()) {
            return;
        }
        let Some(coordinated) = sessions.remove(&put) else { return };
        let is_of_parts = coordinated.call.kind.is_of_parts();
        let is_exchanged = is_of_parts && coordinated.session.decision() == Decision::Committed;
        if is_exchanged {
            self.reductions.remember(coordinated.record(&self.objects.ctx));
        }
        let mut call = coordinated.call;
        let falls_back = is_exchanged || matches!(end, Some(SessionAction::FallBack(_)));
        let ends_together = is_exchanged && call.kind.ends_together();
        if !(falls_back && is_of_parts && !ends_together)
            && let Some(existence) = call.existence.take()
        {
            self.objects.withdraw_query(existence);
        }
        match (end, call.key) {
            (Some(SessionAction::FallBack(reason)), _) => {
                let target = call.request.target.clone();
                self.collectives.audiences.note_session(&target, None);
                self.fall_back(call, &reason);
                self.reductions.expect_sources(&target);
            }
            (Some(SessionAction::Fail(error)), Some(key)) => self.objects.finish(key, Err(error)),
            // All are told, and nobody looks for the target.
            (None, key) if ends_together => self.finish_coordinated(key, call.request.sources.len()),
            (None, _) if is_exchanged => self.announce_end(call),
            // If it was given up, the call was answered. Else its own copy answers it, when the directory knows that.
            _ => {}
        }
    }

    /// Tells a member what was decided.
    fn tell_member(&mut self, enlistment: EnlistmentId, word: Word) {
        let here = MembershipId::Here(enlistment);
        let is_last = matches!(word, Word::Stop(_));
        if is_last {
            self.collectives.sessions.enlistments.remove(&enlistment);
        }
        if !self.collectives.memberships.contains(here) {
            return self.objects.ctx.push(Effect::Collective(CollectiveEffect::Tell { enlistment, word }));
        }
        self.told(here, word);
        if is_last {
            self.left(here);
        }
    }

    /// A member is not needed any more.
    fn dismiss_member(&mut self, enlistment: EnlistmentId) {
        let here = MembershipId::Here(enlistment);
        self.collectives.sessions.enlistments.remove(&enlistment);
        if self.collectives.memberships.contains(here) {
            self.left(here);
        } else {
            self.objects.ctx.push(Effect::Collective(CollectiveEffect::Dismiss { enlistment }));
        }
    }

    /// The parts of rank 0 are here, and so all sources are complete: the others get theirs without its call.
    pub(super) fn answer_coordinator(&mut self, put: PutId) {
        let Some(coordinated) = self.collectives.sessions.coordinated.get_mut(&put) else { return };
        if coordinated.call.kind.ends_together() {
            return;
        }
        let (participants, key) = (coordinated.call.request.sources.len(), coordinated.call.key.take());
        self.finish_coordinated(key, participants);
    }

    /// Answers the call that a collective of so many participants was for, unless it has ended.
    pub(super) fn finish_coordinated(&mut self, key: Option<CallKey>, participants: usize) {
        if let Some(key) = key.filter(|key| self.objects.calls.contains(*key)) {
            self.objects.finish(key, Ok(Response::Reduced { indices: (0..participants).collect() }));
        }
    }

    /// A copy is gone. If it was the target of a session, and was deleted, those who still make it must not have it.
    pub(in super::super) fn collective_target_gone(&mut self, target: &ObjectId, error: &Error) {
        if !matches!(error, Error::Deleted { .. }) {
            return;
        }
        let sessions = self.collectives.sessions.coordinated.iter();
        let made = sessions.filter(|(_, coordinated)| coordinated.call.request.target == *target);
        for put in made.map(|(put, _)| *put).collect::<Vec<_>>() {
            let Some(coordinated) = self.collectives.sessions.coordinated.get_mut(&put) else { continue };
            let actions = coordinated.session.deleted(error);
            if actions.is_empty() {
                continue;
            }
            let key = coordinated.call.key.take();
            self.perform_session(put, actions);
            // In general the end of the copy has ended the call.
            if let Some(key) = key.filter(|key| self.objects.calls.contains(*key)) {
                self.objects.finish(key, Err(error.clone()));
            }
        }
    }

    /// The call has ended that a session is for.
    pub(super) fn session_unwanted(&mut self, key: CallKey, error: &Error) {
        let mut sessions = self.collectives.sessions.coordinated.iter_mut();
        let Some((put, coordinated)) = sessions.find(|(_, one)| one.call.key == Some(key)) else { return };
        let (put, decision) = (*put, coordinated.session.decision());
        coordinated.call.key = None;
        if decision == Decision::Open {
            self.give_up_session(put, error);
        }
    }

    /// Has all members drop what they have. Answers with the call that waits.
    pub(super) fn give_up_session(&mut self, put: PutId, error: &Error) -> Option<CallKey> {
        let coordinated = self.collectives.sessions.coordinated.get_mut(&put)?;
        let key = coordinated.call.key.take();
        let actions = coordinated.session.give_up(error);
        self.perform_session(put, actions);
        key
    }
}
