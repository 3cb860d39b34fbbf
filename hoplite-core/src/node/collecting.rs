//! Collectives as a part of the node: what it knows of them, and those that it coordinates. As a member: `member`.

mod audience;
mod inspect;
mod member;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;

use super::calls::{Call, CallKey, Contents, CreateCall};
use super::context::{Context, Deadline};
use super::inspect::cut;
use super::{
    ByteRange, CallId, ClientId, Confirm, CopyId, Effect, Node, Reduce, ReduceRecord, Response, Until,
};
use crate::collective::{
    Agreement, CollectiveEffect, CollectiveEvent, CollectiveSession, Decision, EnlistmentId, Failure,
    Gathering, MAX_ACCOUNT_BYTES, Member, MemberStage, Membership, MembershipId, Outlook, Plan, Report,
    Roster, Seated, SessionAction, Word, describe_plan,
};
use crate::error::Error;
use crate::id::{ObjectId, PutId};
use crate::metadata::Metadata;
use crate::peer::ROOM_TIMEOUT;
use crate::plan::collective::{Arrangement, Collective, arrange, arrange_parts, frame_bytes};
use crate::shard::{Locations, RequestId, UnpublishReason};
use crate::time::Time;
use crate::topology::place::Path;
use audience::{Audiences, MIN_ATTEMPT_TIMEOUT};

/// How long a store expects to be asked to be a member before it asks the directory for a target that a participant wants: twice as
/// long as it takes until the last of 16 members on 2 cores has its plan, and less than the target takes to be made otherwise.
const INVITATION_TIMEOUT: Duration = Duration::from_millis(10);
/// Targets of sessions that have no more bytes are copied in some microseconds, less than a participant needs to hear of
/// one range: it hears of the whole.
const MAX_UNFOLLOWED_BYTES: u64 = 32 << 10;

/// All collectives that this store coordinates, or has a part in.
#[derive(Debug, Default)]
pub(super) struct Collectives {
    /// By target.
    gatherings: BTreeMap<ObjectId, Gathered>,
    /// By the put of the attempt.
    sessions: BTreeMap<PutId, Coordinated>,
    enlistments: BTreeMap<EnlistmentId, PutId>,
    memberships: BTreeMap<MembershipId, Membership>,
    /// The puts of attempts in which this store was a member lately, oldest first.
    ended: VecDeque<PutId>,
    audiences: Audiences,
    /// Targets without bytes that this store has made, and of which the directory has not said that it knows them: the questions
    /// whether there is one.
    announced: BTreeMap<ObjectId, RequestId>,
    /// Targets of sessions that have lost their coordinator.
    orphans: BTreeMap<MembershipId, ObjectId>,
}

/// A collective whose sources are being looked for.
#[derive(Debug)]
struct Gathered {
    key: CallKey,
    started: Time,
    gathering: Gathering,
    asks: Vec<RequestId>,
    /// The question whether there is a target, and whether it was answered: with no.
    existence: RequestId,
    is_new: bool,
    due: Option<Time>,
}

/// A session that this store coordinates.
#[derive(Debug)]
struct Coordinated {
    /// The call that waits for it.
    key: Option<CallKey>,
    started: Time,
    kind: Collective,
    request: Reduce,
    /// The question whether there is a target, until this session decides that there is.
    existence: Option<RequestId>,
    session: CollectiveSession,
    members: usize,
    plan: String,
}

impl Coordinated {
    /// How it went, now that the target is there.
    fn record(&self, ctx: &Context) -> ReduceRecord {
        record(ctx, &self.request, self.started, self.members, self.plan.clone())
    }
}

/// How a collective went among so many members.
fn record(ctx: &Context, request: &Reduce, started: Time, members: usize, plan: String) -> ReduceRecord {
    let sources = request.sources.len();
    ReduceRecord {
        target: request.target.clone(),
        op: request.op,
        reduced: (sources, sources),
        hops: members,
        plan,
        link: ctx.link(),
        elapsed: ctx.now().since(started),
        mendings: 0,
        restarts: 0,
        is_running: false,
        position: None,
    }
}

impl Collectives {
    /// How many this store coordinates.
    pub(super) fn coordinated(&self) -> usize {
        self.gatherings.len() + self.sessions.len()
    }

    /// What is coordinated here: what was asked for, since when, among how many members by which plan, once there is one.
    pub(super) fn under_way(&self) -> impl Iterator<Item = (&Reduce, Time, usize, &str)> {
        let gathered = self.gatherings.values().map(|one| (one.gathering.request(), one.started, 0, ""));
        let sessions =
            self.sessions.values().map(|one| (&one.request, one.started, one.members, &one.plan[..]));
        gathered.chain(sessions)
    }

    pub(super) fn memberships(&self) -> usize {
        self.memberships.len()
    }

    pub(super) fn enlistments(&self) -> usize {
        self.enlistments.len()
    }

    /// Whether a target is being made here that does not stand yet.
    pub(super) fn contains(&self, target: &ObjectId) -> bool {
        self.gatherings.contains_key(target) || self.open_session(target).is_some()
    }

    fn open_session(&self, target: &ObjectId) -> Option<PutId> {
        let open = |(_, coordinated): &(&PutId, &Coordinated)| {
            coordinated.request.target == *target && coordinated.session.decision() == Decision::Open
        };
        self.sessions.iter().find(open).map(|(put, _)| *put)
    }

    /// Whether this store has been a member of the attempt that makes `put`, and has nothing to give any more.
    pub(super) fn has_ended(&self, put: PutId) -> bool {
        let mut members = self.memberships.values().filter(|member| member.plan().put == put);
        self.ended.contains(&put)
            || members.any(|member| matches!(member.stage(), MemberStage::Complete | MemberStage::Over))
    }

    fn growing(&self, target: &ObjectId) -> Option<MembershipId> {
        let found = self.memberships.iter().find(|(_, membership)| {
            membership.plan().target == *target && membership.growing_copy().is_some()
        });
        found.map(|(membership, _)| *membership)
    }
}

impl Node {
    /// A participant asks for the target of an allreduce.
    pub(super) fn join(
        &mut self,
        key: CallKey,
        target: ObjectId,
        (agreement, is_again): (Agreement, bool),
        source_bytes: u64,
        timeout: Duration,
    ) {
        if is_again && let Some(error) = self.collectives.audiences.denial(&target) {
            return self.ctx.reply(key, Err(error));
        }
        self.end_stale_membership(&target, agreement);
        if let Some(membership) = self.collectives.growing(&target)
            && let Some(member) = self.collectives.memberships.get(&membership)
            && let Err(error) = agreement.check(&target, &member.plan().agreement)
        {
            if !member.is_committed() {
                self.note_disagreement(&target, &error);
                self.member_failed(membership, Failure::Disagrees(error.clone()), error.clone());
            }
            return self.ctx.reply(key, Err(error));
        }
        if !is_again && self.copies.live(&target).is_none() && agreement.promises_session(source_bytes) {
            let until = self.ctx.now() + INVITATION_TIMEOUT;
            self.fetches.expect(&mut self.ctx, &target, until);
        }
        self.get_or_join(key, target.clone(), Until::Started, Some(agreement), timeout);
        // Others may try again: not all attempts are seen here before they have made their target.
        if self.calls.contains(key)
            && let Some((too_old, _)) = self.collectives.audiences.disagreement(&target)
            && self.ctx.now() < too_old
        {
            let until = too_old.max(self.ctx.now() + MIN_ATTEMPT_TIMEOUT);
            self.ctx.schedule(until, Deadline::Join(key));
        }
    }

    /// The session in which a copy grows, and in which order its bytes become valid, if that is of use to a participant.
    pub(super) fn order_of(&self, copy: CopyId) -> Option<(MembershipId, Vec<ByteRange>)> {
        let mut memberships = self.collectives.memberships.iter();
        let (number, membership) =
            memberships.find(|(_, membership)| membership.growing_copy() == Some(copy))?;
        let plan = membership.plan();
        if !plan.is_of_parts() && plan.size_bytes <= MAX_UNFOLLOWED_BYTES {
            return None;
        }
        let program = plan.program();
        let range = |index: usize| {
            let range = program.steps()[index].range();
            ByteRange { offset_bytes: range.start, length_bytes: range.end - range.start }
        };
        Some((*number, plan.finals(&program).into_iter().map(range).collect()))
    }

    /// Coordinates a collective.
    pub(super) fn coordinate(&mut self, key: CallKey, kind: Collective, request: Reduce) {
        if let Err(error) = self.check_reduce(key.client, &request) {
            return self.ctx.reply(key, Err(error));
        }
        self.enter_reduce(key, &request);
        let target = request.target.clone();
        let existence = self.ask_target(&target);
        let ask = |(index, id): (usize, &ObjectId)| self.ask_source(id.clone(), &target, index);
        let asks: Vec<RequestId> = request.sources.iter().enumerate().map(ask).collect();
        let (started, gathering) = (self.ctx.now(), Gathering::new(kind, request));
        let gathered = Gathered { key, started, gathering, asks, existence, is_new: false, due: None };
        self.collectives.gatherings.insert(target.clone(), gathered);
        self.reconsider_gathering(&target);
    }

    /// The directory told what it knows about a source.
    pub(super) fn source_located(&mut self, target: &ObjectId, index: usize, locations: Locations) {
        if let Some(gathered) = self.collectives.gatherings.get_mut(target) {
            gathered.gathering.located(self.ctx.now(), index, locations);
            return self.reconsider_gathering(target);
        }
        if self.deny_late(target, index, &locations) {
            return;
        }
        self.collectives.audiences.note_source(target, index, &locations);
        self.reductions.source_located(&mut self.ctx, &self.copies, target, index, locations);
        self.perform_actions();
    }

    /// The directory told whether there is a target.
    pub(super) fn target_located(&mut self, locations: &Locations) {
        let target = &locations.id;
        if locations.object.is_some()
            && let Some(existence) = self.collectives.announced.remove(target)
        {
            return self.withdraw_ask(existence);
        }
        if self.collectives.contains(target) {
            if locations.object.as_ref().is_some_and(|object| !object.lost) {
                self.fail_collective(target, &Error::AlreadyExists { id: target.clone() });
            } else if let Some(gathered) = self.collectives.gatherings.get_mut(target) {
                gathered.is_new = true;
                self.reconsider_gathering(target);
            }
            return;
        }
        self.reductions.target_located(&mut self.ctx, &self.copies, locations);
        self.perform_actions();
    }

    /// Looks whether a session can begin, or there will be none.
    pub(super) fn reconsider_gathering(&mut self, target: &ObjectId) {
        self.reconsider_late(target);
        let Some(gathered) = self.collectives.gatherings.get_mut(target) else { return };
        match gathered.gathering.outlook(self.ctx.now(), self.ctx.link(), self.ctx.node()) {
            Outlook::Waiting(due) => {
                if due.is_some() && gathered.due != due {
                    gathered.due = due;
                    self.ctx.schedule(due.unwrap_or(Time::NEVER), Deadline::Reduce(target.clone()));
                }
            }
            // Whether there is a target already was asked at the same time, so this is no wait in general.
            Outlook::Ready(_) if !gathered.is_new => {}
            Outlook::Ready(roster) => {
                if let Some(gathered) = self.end_gathering(target) {
                    self.begin_session(gathered, roster);
                }
            }
            Outlook::General(reason) => {
                if let Some(gathered) = self.end_gathering(target) {
                    self.do_without_session(gathered, reason);
                }
            }
        }
    }

    /// What the participants agree about of whose collective this is to be the target.
    pub(super) fn agreement_about(&self, target: &ObjectId) -> Option<Agreement> {
        self.collectives.audiences.agreement(target)
    }

    /// There will be no session. A reduce takes over what was asked of the directory, and what that has said.
    fn do_without_session(&mut self, gathered: Gathered, reason: &str) {
        let Gathered { key, started, gathering, asks, existence, .. } = gathered;
        let kind = gathering.kind();
        if kind.is_of_parts() {
            self.withdraw_asks(&asks);
            let call = (Some(key), started, Some(existence));
            return self.fall_back(call, kind, gathering.into_request(), reason);
        }
        let (mut request, news) = gathering.into_news();
        request.timeout = request.timeout.saturating_sub(self.ctx.now().since(started));
        let target = request.target.clone();
        self.reductions.begin(&mut self.ctx, &self.copies, (key, request), existence, asks);
        self.perform_actions();
        self.reductions.note(&target, reason);
        for (index, news) in news.into_iter().enumerate() {
            if let Some(news) = news {
                self.source_located(&target, index, news);
            }
        }
    }

    fn withdraw_asks(&mut self, asks: &[RequestId]) {
        for ask in asks {
            self.withdraw_ask(*ask);
        }
    }

    /// There will be no session.
    fn drop_gathering(&mut self, target: &ObjectId) -> Option<Gathered> {
        let gathered = self.end_gathering(target)?;
        self.withdraw_asks(&gathered.asks);
        self.withdraw_ask(gathered.existence);
        Some(gathered)
    }

    fn end_gathering(&mut self, target: &ObjectId) -> Option<Gathered> {
        let gathered = self.collectives.gatherings.remove(target)?;
        self.collectives.audiences.open(gathered.key, &gathered.gathering);
        if let Some(due) = gathered.due {
            self.ctx.unschedule(due, Deadline::Reduce(target.clone()));
        }
        Some(gathered)
    }

    /// Does an allreduce as a reduce, whose target all get. The participants of a collective of parts are told to get theirs
    /// each by itself.
    fn fall_back(
        &mut self,
        (key, started, existence): (Option<CallKey>, Time, Option<RequestId>),
        kind: Collective,
        mut request: Reduce,
        reason: &str,
    ) {
        if kind.is_of_parts() {
            let plan = format!("general path: {reason}");
            self.reductions.remember(record(&self.ctx, &request, started, 0, plan));
            return self.announce_end((key, started, existence), kind, request);
        }
        existence.into_iter().for_each(|existence| self.withdraw_ask(existence));
        let Some(key) = key else { return };
        request.timeout = request.timeout.saturating_sub(self.ctx.now().since(started));
        let target = request.target.clone();
        self.begin_reduction(key, request);
        self.reductions.note(&target, reason);
    }

    /// The exchange of parts is over, or there will be none. Makes the target, an object without bytes, of which all participants
    /// hear who have not their parts yet, whenever and wherever they come.
    fn announce_end(
        &mut self,
        (key, started, existence): (Option<CallKey>, Time, Option<RequestId>),
        kind: Collective,
        request: Reduce,
    ) {
        if let Some(existence) = existence {
            // Whoever deletes the target before the directory knows it means this one too.
            self.collectives.announced.insert(request.target.clone(), existence);
        }
        let left = request.timeout.saturating_sub(self.ctx.now().since(started));
        let contents = Contents { bytes: Bytes::new(), confirm: Confirm::No };
        let metadata = Metadata { agreement: Some(Agreement::of(kind, &request)), ..Metadata::default() };
        let id = request.target;
        let create = CreateCall { id, size_bytes: 0, metadata, contents: Some(contents) };
        let call = CallId(self.ctx.next_number());
        self.create(CallKey { client: ClientId::STORE, call }, create, left);
        if let Some(key) = key.filter(|key| self.calls.contains(*key)) {
            self.finish(key, Ok(Response::Reduced { indices: (0..request.sources.len()).collect() }));
        }
    }

    fn begin_session(&mut self, gathered: Gathered, roster: Roster) {
        let Gathered { key, started, gathering, asks, existence, .. } = gathered;
        self.withdraw_asks(&asks);
        let (kind, agreement) = (gathering.kind(), gathering.agreement());
        let request = gathering.into_request();
        let put = self.ctx.next_put();
        let slow = roster.slow_links();
        let Roster { members, size_bytes, metadata } = roster;
        let (link, preference) = (self.ctx.link(), self.ctx.config().allreduce_schedule);
        let paths: Vec<Path> = members.iter().map(|seated| seated.path).collect();
        let Arrangement { order, choice, remark } = match kind {
            Collective::Allreduce => arrange(&paths, &slow, size_bytes, link, preference),
            Collective::ReduceScatter | Collective::Allgather => {
                arrange_parts(&paths, &slow, size_bytes, link)
            }
        };
        let members: Vec<Seated> = order.iter().map(|member| members[*member].clone()).collect();
        let other = choice.runner_up.as_ref().map_or(String::new(), |(schedule, estimate)| {
            format!("; the next best is a {schedule}, {estimate:.1?}")
        });
        let remark = if remark.is_empty() { String::new() } else { format!(" ({remark})") };
        let account = format!(
            "estimated to take {:.1?}{remark}{other}; waited {:.1?}; rank 0 at {}",
            choice.estimate,
            self.ctx.now().since(started),
            self.ctx.node().as_str()
        );
        let account = cut(account, MAX_ACCOUNT_BYTES);
        let seats: Vec<Member> = members.iter().map(|seated| seated.member.clone()).collect();
        let text = describe_plan(&choice.schedule, &account, &seats);
        let ranks: Vec<Vec<usize>> = if kind.is_of_parts() {
            members.iter().map(|seated| seated.ranks.clone()).collect()
        } else {
            Vec::new()
        };
        let time_left = request.timeout.saturating_sub(self.ctx.now().since(started));
        let (mut enlistments, mut own) = (Vec::new(), None);
        for (index, Seated { member, sources, .. }) in members.into_iter().enumerate() {
            let enlistment = EnlistmentId(self.ctx.next_number());
            let plan = Box::new(Plan {
                target: request.target.clone(),
                put,
                agreement,
                size_bytes,
                metadata: metadata.clone(),
                schedule: choice.schedule.clone(),
                frame_bytes: frame_bytes(seats.len(), size_bytes),
                members: seats.clone(),
                index,
                ranks: ranks.clone(),
                sources,
                timeout: ROOM_TIMEOUT.min(time_left),
                account: account.clone(),
            });
            enlistments.push(enlistment);
            self.collectives.enlistments.insert(enlistment, put);
            if member.node == *self.ctx.node() {
                own = Some((enlistment, plan));
            } else {
                self.ctx.push(Effect::Collective(CollectiveEffect::Enlist { enlistment, plan }));
            }
        }
        let own_enlistment = own.as_ref().map(|(enlistment, _)| *enlistment);
        let session = CollectiveSession::new(kind, request.target.clone(), enlistments, own_enlistment);
        let (members, key, existence) = (seats.len(), Some(key), Some(existence));
        let coordinated =
            Coordinated { key, started, kind, request, existence, session, members, plan: text };
        self.collectives.sessions.insert(put, coordinated);
        if let Some((enlistment, plan)) = own {
            self.asked(MembershipId::Here(enlistment), plan);
        }
    }

    /// Takes in what happened in a session.
    pub(super) fn collective(&mut self, event: CollectiveEvent) {
        match event {
            CollectiveEvent::Asked { membership, plan } => self.asked(membership, plan),
            CollectiveEvent::Told { membership, word } => self.told(membership, word),
            CollectiveEvent::Left { membership } => self.left(membership),
            CollectiveEvent::Filled { combine } => self.filled(combine),
            CollectiveEvent::Denied { target, error } => self.denied(&target, &error),
            CollectiveEvent::Reported { enlistment, report } => self.reported(enlistment, report),
        }
    }

    fn reported(&mut self, enlistment: EnlistmentId, report: Report) {
        let Some(put) = self.collectives.enlistments.get(&enlistment).copied() else { return };
        let Some(coordinated) = self.collectives.sessions.get_mut(&put) else { return };
        let is_last = report != Report::Filled;
        let is_of_parts = coordinated.kind.is_of_parts();
        let was_open = coordinated.session.decision() == Decision::Open;
        let actions = coordinated.session.reported(enlistment, report);
        let is_committed = coordinated.session.decision() == Decision::Committed;
        let (key, participants) = (coordinated.key, coordinated.request.sources.len());
        let existence = coordinated.existence.take_if(|_| is_committed && !is_of_parts);
        if let Some(existence) = existence {
            self.withdraw_ask(existence);
        }
        if is_last {
            self.collectives.enlistments.remove(&enlistment);
        }
        if is_committed
            && was_open
            && let Some(key) = key
            && let Some(Call::Reduce { reduced, .. }) = self.calls.get_mut(key)
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
        let is_over = self.collectives.sessions.get(&put).is_some_and(|found| found.session.is_over());
        if !is_over {
            return;
        }
        let Some(coordinated) = self.collectives.sessions.remove(&put) else { return };
        let is_exchanged =
            coordinated.kind.is_of_parts() && coordinated.session.decision() == Decision::Committed;
        if is_exchanged {
            self.reductions.remember(coordinated.record(&self.ctx));
        }
        let Coordinated { key, started, kind, request, existence, .. } = coordinated;
        let falls_back = is_exchanged || matches!(end, Some(SessionAction::FallBack(_)));
        let existence = if falls_back && kind.is_of_parts() {
            existence
        } else {
            existence.into_iter().for_each(|existence| self.withdraw_ask(existence));
            None
        };
        match (end, key) {
            (Some(SessionAction::FallBack(reason)), key) => {
                let target = request.target.clone();
                self.fall_back((key, started, existence), kind, request, &reason);
                self.reductions.expect_sources(&target);
            }
            (Some(SessionAction::Fail(error)), Some(key)) => self.finish(key, Err(error)),
            (None, key) if is_exchanged => self.announce_end((key, started, existence), kind, request),
            // If it was given up, the call was answered. Else its own copy answers it, when the directory knows that.
            _ => {}
        }
    }

    /// Tells a member what was decided.
    fn tell_member(&mut self, enlistment: EnlistmentId, word: Word) {
        let here = MembershipId::Here(enlistment);
        let is_last = matches!(word, Word::Stop(_));
        if is_last {
            self.collectives.enlistments.remove(&enlistment);
        }
        if !self.collectives.memberships.contains_key(&here) {
            return self.ctx.push(Effect::Collective(CollectiveEffect::Tell { enlistment, word }));
        }
        self.told(here, word);
        if is_last {
            self.left(here);
        }
    }

    /// A member is not needed any more.
    fn dismiss_member(&mut self, enlistment: EnlistmentId) {
        let here = MembershipId::Here(enlistment);
        self.collectives.enlistments.remove(&enlistment);
        if self.collectives.memberships.contains_key(&here) {
            self.left(here);
        } else {
            self.ctx.push(Effect::Collective(CollectiveEffect::Dismiss { enlistment }));
        }
    }

    /// The parts of rank 0 are here, and so all sources are complete: the others get theirs without its call.
    pub(super) fn answer_coordinator(&mut self, put: PutId) {
        let Some(coordinated) = self.collectives.sessions.get_mut(&put) else { return };
        let participants = coordinated.request.sources.len();
        if let Some(key) = coordinated.key.take() {
            self.finish(key, Ok(Response::Reduced { indices: (0..participants).collect() }));
        }
    }

    /// The target was deleted before the directory knew it: it is no more.
    pub(super) fn withdraw_announcement(&mut self, target: &ObjectId) {
        let Some(existence) = self.collectives.announced.remove(target) else { return };
        self.withdraw_ask(existence);
        if let Some((copy, local)) = self.copies.live(target)
            && local.is_complete()
            && local.size_bytes == 0
        {
            self.abandon(copy, Error::Deleted { id: target.clone() }, UnpublishReason::Aborted);
            self.wake(target);
        }
    }

    /// Ends what would make `target`, if that is open, and its call.
    pub(super) fn fail_collective(&mut self, target: &ObjectId, error: &Error) {
        if let Some(gathered) = self.drop_gathering(target) {
            self.finish(gathered.key, Err(error.clone()));
        }
        if let Some(put) = self.collectives.open_session(target) {
            let key = self.give_up_session(put, error);
            if let Some(key) = key {
                self.finish(key, Err(error.clone()));
            }
        }
    }

    /// A copy is gone. If it was the target of a session, and was deleted, those who still make it must not have it.
    pub(super) fn collective_target_gone(&mut self, target: &ObjectId, error: &Error) {
        if !matches!(error, Error::Deleted { .. }) {
            return;
        }
        let sessions = self.collectives.sessions.iter();
        let made = sessions.filter(|(_, coordinated)| coordinated.request.target == *target);
        for put in made.map(|(put, _)| *put).collect::<Vec<_>>() {
            let Some(coordinated) = self.collectives.sessions.get_mut(&put) else { continue };
            let actions = coordinated.session.deleted(error);
            if actions.is_empty() {
                continue;
            }
            let key = coordinated.key.take();
            self.perform_session(put, actions);
            // In general the end of the copy has ended the call.
            if let Some(key) = key.filter(|key| self.calls.contains(*key)) {
                self.finish(key, Err(error.clone()));
            }
        }
    }

    fn give_up_session(&mut self, put: PutId, error: &Error) -> Option<CallKey> {
        let coordinated = self.collectives.sessions.get_mut(&put)?;
        let key = coordinated.key.take();
        let actions = coordinated.session.give_up(error);
        self.perform_session(put, actions);
        key
    }

    /// The call has ended that an allreduce is for.
    pub(super) fn collective_unwanted(&mut self, key: CallKey, target: &ObjectId) {
        if self.collectives.gatherings.get(target).is_some_and(|gathered| gathered.key == key) {
            self.drop_gathering(target);
        }
        self.end_audience(key, target, Some(&Error::ObjectLost { id: target.clone() }));
        let sessions = self.collectives.sessions.iter_mut();
        let mut of_call = sessions.filter(|(_, coordinated)| coordinated.key == Some(key));
        let Some((put, coordinated)) = of_call.next() else { return };
        let (put, decision) = (*put, coordinated.session.decision());
        coordinated.key = None;
        if decision == Decision::Open {
            self.give_up_session(put, &Error::ObjectLost { id: target.clone() });
        }
    }
}
