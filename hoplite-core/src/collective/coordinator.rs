use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::action::{Action, Context, Found, Step, Timer};
use super::arrange::plan_attempt;
use super::attempt::{Attempt, AttemptAction, AttemptState};
use super::event::{CollectiveEffect, CollectiveEvent};
use super::message::{
    AttemptId, Decision, EnlistmentId, MembershipId, Plan, Report, describe_plan,
};
use super::participants::{Disagreements, Participants};
use super::records::ReduceRecord;
use super::search::{CoordinatedCall, Members, Search, SearchState, SourceMember};
use crate::error::Error;
use crate::id::{NodeId, ObjectId, PutId};
use crate::metadata::Metadata;
use crate::plan::collective::Collective;
use crate::plan::link::LinkEstimate;
use crate::shard::{Locations, RequestId};
use crate::time::Time;
use crate::vocabulary::agreement::Agreement;
use crate::vocabulary::local::CallKey;
use crate::vocabulary::reduce::Reduce;

#[derive(Debug)]
pub(super) struct Coordinated {
    call: CoordinatedCall,
    attempt: Attempt,
    nodes: Vec<NodeId>,
    plan: String,
}

#[derive(Debug, Default)]
pub(crate) struct Coordinator {
    searches: BTreeMap<ObjectId, Search>,
    attempts: BTreeMap<PutId, Coordinated>,
    /// Empty targets that end an exchange, with queries that stay open until the directory knows
    /// the target.
    announcements: BTreeMap<ObjectId, RequestId>,
    /// Participants by target, from the end of the search to the end of rank 0's call.
    participants: BTreeMap<ObjectId, Participants>,
    pub(crate) disagreements: Disagreements,
}

impl Coordinated {
    pub(super) fn record(&self, link: LinkEstimate, now: Time) -> ReduceRecord {
        self.call.record(link, now, self.nodes.len(), self.plan.clone())
    }

    fn send_decision(
        &self,
        ctx: &mut Context<'_>,
        enlistment: EnlistmentId,
        decision: Option<Decision>,
    ) {
        if self.attempt.own() != Some(enlistment) {
            return ctx.perform(match decision {
                Some(decision) => CollectiveEffect::Tell { enlistment, decision },
                None => CollectiveEffect::Dismiss { enlistment },
            });
        }
        let membership = MembershipId::Here(enlistment);
        let is_last = !matches!(decision, Some(Decision::Commit));
        match decision {
            Some(Decision::Commit) if self.call.kind.properties().makes_target => {
                let sources = self.call.request.sources.len();
                ctx.push(Action::Remember(self.record(ctx.link, ctx.now)));
                ctx.step(Step::Commit(membership, self.call.key.map(|key| (key, sources))));
            }
            Some(decision) => ctx.deliver(CollectiveEvent::Told { membership, decision }),
            None => {}
        }
        if is_last {
            ctx.deliver(CollectiveEvent::Left { membership });
        }
    }
}

impl Coordinator {
    pub(crate) fn len(&self) -> usize {
        self.searches.len() + self.attempts.len()
    }

    pub(crate) fn enlistments(&self) -> usize {
        self.attempts.values().map(|one| one.attempt.present()).sum()
    }

    pub(super) fn search_for(&self, target: &ObjectId) -> Option<&Search> {
        self.searches.get(target)
    }

    pub(crate) fn absent_sources(&self, target: &ObjectId) -> Option<BTreeMap<usize, ObjectId>> {
        self.searches.get(target).map(Search::missing_sources)
    }

    pub(super) fn open_for(&self, target: &ObjectId) -> Option<(PutId, &Coordinated)> {
        let is_open = |(_, one): &(&PutId, &Coordinated)| {
            one.call.request.target == *target && one.attempt.state() == AttemptState::Open
        };
        self.attempts.iter().find(is_open).map(|(put, one)| (*put, one))
    }

    pub(crate) fn unfinished_stores(&self, target: &ObjectId) -> Option<Vec<NodeId>> {
        let (_, Coordinated { attempt, nodes, .. }) = self.open_for(target)?;
        Some(attempt.unfinished().filter_map(|index| nodes.get(index).cloned()).collect())
    }

    pub(crate) fn contains(&self, target: &ObjectId) -> bool {
        self.searches.contains_key(target) || self.open_for(target).is_some()
    }

    pub(crate) fn participants(&self, target: &ObjectId) -> Option<&Participants> {
        self.participants.get(target)
    }

    pub(crate) fn participants_mut(&mut self, target: &ObjectId) -> Option<&mut Participants> {
        self.participants.get_mut(target)
    }

    pub(crate) fn under_way(&self) -> impl Iterator<Item = (&Reduce, Time, usize, &str)> {
        let searches = self.searches.values().map(|one| (&one.call, 0, ""));
        let attempts =
            self.attempts.values().map(|one| (&one.call, one.nodes.len(), one.plan.as_str()));
        searches
            .chain(attempts)
            .map(|(call, members, plan)| (&call.request, call.started, members, plan))
    }

    /// Begins a collective. `key` is rank 0's call, `existence` the query for the target.
    pub(crate) fn coordinate(
        &mut self,
        ctx: &mut Context<'_>,
        key: CallKey,
        (kind, request): (Collective, Reduce),
        existence: RequestId,
        source_queries: Vec<RequestId>,
    ) {
        let target = request.target.clone();
        let (key, existence) = (Some(key), Some(existence));
        let call = CoordinatedCall { key, started: ctx.now, kind, request, existence };
        self.searches.insert(target.clone(), Search::new(call, ctx.next_attempt(), source_queries));
        self.reconsider(ctx, &target);
    }

    /// Passes a source's locations to the search, or reports ranks' disagreement to the source's
    /// store. Returns the locations if neither is under way.
    pub(crate) fn source_located(
        &mut self,
        ctx: &mut Context<'_>,
        target: &ObjectId,
        index: usize,
        locations: Locations,
    ) -> Option<Locations> {
        if let Some(search) = self.searches.get_mut(target) {
            search.located(ctx.now, index, locations);
            self.reconsider(ctx, target);
            return None;
        }
        if self.disagreements.located(ctx, target, index, &locations) {
            return None;
        }
        if let Some(participants) = self.participants.get_mut(target) {
            participants.note_source(index, &locations);
        }
        Some(locations)
    }

    pub(crate) fn target_located(&mut self, ctx: &mut Context<'_>, locations: &Locations) -> bool {
        let target = &locations.id;
        if locations.object.is_some() && self.withdraw_announcement(ctx, target) {
            return true;
        }
        if !self.contains(target) {
            return false;
        }
        if locations.object.as_ref().is_some_and(|object| !object.lost) {
            self.fail(ctx, target, &Error::AlreadyExists { id: target.clone() });
        } else if let Some(search) = self.searches.get_mut(target) {
            search.is_new = true;
            self.reconsider(ctx, target);
        }
        true
    }

    pub(super) fn reconsider(&mut self, ctx: &mut Context<'_>, target: &ObjectId) {
        let Some(search) = self.searches.get_mut(target) else { return };
        let state = search.state(ctx.now, ctx.link, ctx.node);
        match state {
            SearchState::Waiting(due) => {
                if let Some(time) = due.filter(|_| search.due != due) {
                    search.due = due;
                    ctx.schedule(time, Timer::Search(target.clone()));
                }
            }
            SearchState::Ready(_) if !search.is_new => {}
            SearchState::Ready(members) => {
                let Some(Search { call, source_queries, .. }) = self.end_search(ctx, target) else {
                    return;
                };
                ctx.withdraw(source_queries);
                self.begin_attempt(ctx, call, members);
            }
            SearchState::General(reason) => {
                let Some(Search { call, source_queries, news, .. }) = self.end_search(ctx, target)
                else {
                    return;
                };
                self.fall_back(ctx, call, reason, Some((source_queries, news)));
            }
        }
    }

    /// Ends the search. If the collective fails later, its participants get the error.
    fn end_search(&mut self, ctx: &mut Context<'_>, target: &ObjectId) -> Option<Search> {
        let search = self.searches.remove(target)?;
        if let Some(due) = search.due {
            ctx.unschedule(due, Timer::Search(target.clone()));
        }
        self.participants.insert(target.clone(), Participants::new(&search));
        Some(search)
    }

    fn drop_search(&mut self, ctx: &mut Context<'_>, target: &ObjectId) -> Option<CallKey> {
        let Search { call, source_queries, .. } = self.end_search(ctx, target)?;
        ctx.withdraw(source_queries.into_iter().chain(call.existence));
        call.key
    }

    fn begin_attempt(&mut self, ctx: &mut Context<'_>, call: CoordinatedCall, members: Members) {
        let put = ctx.numbers.next_put();
        let attempt = self.next_attempt(ctx, &call.request.target);
        let (common, members) = plan_attempt(ctx, &call, (attempt, put), members);
        let (mut enlistments, mut own) = (Vec::new(), None);
        for (index, SourceMember { member, sources, .. }) in members.into_iter().enumerate() {
            let enlistment = EnlistmentId(ctx.numbers.next());
            let plan = Box::new(Plan { index, sources, ..common.clone() });
            enlistments.push(enlistment);
            if member.node == *ctx.node {
                own = Some((enlistment, plan));
            } else {
                ctx.perform(CollectiveEffect::Enlist { enlistment, plan });
            }
        }
        let own_enlistment = own.as_ref().map(|(enlistment, _)| *enlistment);
        let attempt = Attempt::new(call.kind, common.target, enlistments, own_enlistment);
        let plan = describe_plan(call.kind, &common.schedule, &common.explanation, &common.members);
        let nodes = common.members.into_iter().map(|member| member.node).collect();
        self.attempts.insert(put, Coordinated { call, attempt, nodes, plan });
        if let Some((enlistment, plan)) = own {
            let membership = MembershipId::Here(enlistment);
            ctx.deliver(CollectiveEvent::Asked { membership, plan });
        }
    }

    fn next_attempt(&mut self, ctx: &mut Context<'_>, target: &ObjectId) -> AttemptId {
        let attempt = ctx.next_attempt();
        if let Some(participants) = self.participants.get_mut(target) {
            participants.attempt = attempt;
        }
        attempt
    }

    pub(super) fn reported(
        &mut self,
        ctx: &mut Context<'_>,
        enlistment: EnlistmentId,
        report: Report,
    ) {
        let mut attempts = self.attempts.iter_mut();
        let Some((put, coordinated)) = attempts.find(|(_, one)| one.attempt.awaits(enlistment))
        else {
            return;
        };
        let put = *put;
        let actions = coordinated.attempt.reported(enlistment, report);
        if coordinated.attempt.state() == AttemptState::Committed
            && coordinated.call.kind.properties().makes_target
        {
            ctx.withdraw(coordinated.call.existence.take());
        }
        self.perform_attempt(ctx, put, actions);
    }

    fn perform_attempt(&mut self, ctx: &mut Context<'_>, put: PutId, actions: Vec<AttemptAction>) {
        let Entry::Occupied(attempt) = self.attempts.entry(put) else { return };
        let mut end = None;
        for action in actions {
            match action {
                AttemptAction::Tell(enlistment, decision) => {
                    attempt.get().send_decision(ctx, enlistment, Some(decision));
                }
                AttemptAction::Dismiss(enlistment) => {
                    attempt.get().send_decision(ctx, enlistment, None)
                }
                action => end = Some(action),
            }
        }
        if !attempt.get().attempt.is_over() {
            return;
        }
        let coordinated = attempt.remove();
        let kind = coordinated.call.kind.properties();
        let is_exchanged =
            !kind.makes_target && coordinated.attempt.state() == AttemptState::Committed;
        if is_exchanged {
            ctx.push(Action::Remember(coordinated.record(ctx.link, ctx.now)));
        }
        let mut call = coordinated.call;
        match end {
            Some(AttemptAction::FallBack(reason)) => {
                self.next_attempt(ctx, &call.request.target);
                self.fall_back(ctx, call, &reason, None);
            }
            // Without commits, participants learn of the end from the target.
            None if is_exchanged && !kind.awaits_commit => self.announce(ctx, call),
            end => {
                ctx.withdraw(call.existence.take());
                match end {
                    Some(AttemptAction::Fail(error)) => ctx.answer(call.key, Err(error)),
                    None if is_exchanged => ctx.answer(call.key, Ok(call.request.sources.len())),
                    // The call has its answer, or gets it once the directory accepts the target.
                    _ => {}
                }
            }
        }
    }

    /// Answers rank 0's call once rank 0 has its parts, unless members wait for the coordinator's
    /// commit.
    pub(super) fn answer_rank_0(&mut self, ctx: &mut Context<'_>, put: PutId) {
        let Some(Coordinated { call, .. }) = self.attempts.get_mut(&put) else { return };
        if !call.kind.properties().awaits_commit {
            ctx.answer(call.key.take(), Ok(call.request.sources.len()));
        }
    }

    /// Makes an allreduce's target with a reduce, which takes over the open queries for sources.
    /// For a collective of parts, makes an empty target: participants then make their parts.
    fn fall_back(
        &mut self,
        ctx: &mut Context<'_>,
        call: CoordinatedCall,
        reason: &str,
        found: Option<(Vec<RequestId>, Vec<Option<Locations>>)>,
    ) {
        if !call.kind.properties().makes_target {
            ctx.withdraw(found.map(|(source_queries, _)| source_queries).into_iter().flatten());
            let plan = format!("general path: {reason}");
            ctx.push(Action::Remember(call.record(ctx.link, ctx.now, 0, plan)));
            return self.announce(ctx, call);
        }
        let found = match (found, call.existence) {
            (Some((source_queries, locations)), Some(existence)) => {
                Some(Found { existence, source_queries, locations })
            }
            (_, existence) => {
                ctx.withdraw(existence);
                None
            }
        };
        let Some(key) = call.key else { return };
        let request = Reduce { timeout: call.time_left(ctx.now), ..call.request };
        ctx.push(Action::Reduce { key, request, reason: reason.to_owned(), found });
    }

    fn announce(&mut self, ctx: &mut Context<'_>, call: CoordinatedCall) {
        let timeout = call.time_left(ctx.now);
        let CoordinatedCall { key, kind, request, existence, .. } = call;
        let metadata =
            Metadata { agreement: Some(Agreement::of(kind, &request)), ..Metadata::default() };
        if let Some(existence) = existence {
            // With its query, a delete finds the target even before the directory knows it.
            self.announcements.insert(request.target.clone(), existence);
        }
        ctx.push(Action::Announce(request.target, metadata, timeout));
        ctx.answer(key, Ok(request.sources.len()));
    }

    pub(crate) fn fail(&mut self, ctx: &mut Context<'_>, target: &ObjectId, error: &Error) {
        let mut key = self.drop_search(ctx, target);
        if let Some((put, _)) = self.open_for(target) {
            key = self.attempts.get_mut(&put).and_then(|one| one.call.key.take());
            self.abort(ctx, put, error);
        }
        ctx.answer(key, Err(error.clone()));
    }

    fn abort(&mut self, ctx: &mut Context<'_>, put: PutId, error: &Error) {
        if let Some(coordinated) = self.attempts.get_mut(&put) {
            let actions = coordinated.attempt.give_up(error);
            self.perform_attempt(ctx, put, actions);
        }
    }

    /// Handles the end of rank 0's call. If it failed, participants at other stores get its error.
    pub(crate) fn call_ended(
        &mut self,
        ctx: &mut Context<'_>,
        key: CallKey,
        target: &ObjectId,
        error: Option<&Error>,
    ) {
        if self.searches.get(target).is_some_and(|search| search.call.key == Some(key)) {
            self.drop_search(ctx, target);
        }
        let is_of_call = self.participants.get(target).is_some_and(|known| known.key == Some(key));
        let participants = if is_of_call { self.participants.remove(target) } else { None };
        let mut is_committed = false;
        let mut attempts = self.attempts.iter_mut();
        let of_call = attempts.find(|(_, coordinated)| coordinated.call.key == Some(key));
        if let Some((put, coordinated)) = of_call {
            let put = *put;
            coordinated.call.key = None;
            is_committed = coordinated.attempt.state() == AttemptState::Committed;
            if let Some(error) = error {
                self.abort(ctx, put, error);
            }
        }
        // After a commit, the target stays even if the call has failed.
        if let Some(participants) = participants
            && let Some(error) = error.filter(|_| !is_committed)
        {
            self.disagreements.reject(ctx, target, participants, error);
        }
    }

    pub(crate) fn target_deleted(&mut self, ctx: &mut Context<'_>, target: &ObjectId) {
        let error = &Error::Deleted { id: target.clone() };
        let attempts = self.attempts.iter();
        let made =
            attempts.filter(|(_, one)| one.call.request.target == *target).map(|(put, _)| *put);
        for put in made.collect::<Vec<_>>() {
            let Some(coordinated) = self.attempts.get_mut(&put) else { continue };
            let actions = coordinated.attempt.deleted(error);
            if actions.is_empty() {
                continue;
            }
            let key = coordinated.call.key.take();
            self.perform_attempt(ctx, put, actions);
            ctx.answer(key, Err(error.clone()));
        }
    }

    pub(crate) fn withdraw_announcement(
        &mut self,
        ctx: &mut Context<'_>,
        target: &ObjectId,
    ) -> bool {
        let existence = self.announcements.remove(target);
        ctx.withdraw(existence);
        existence.is_some()
    }
}
