//! Attempts that this store coordinates: it asks the members, hears their reports, and decides.

use std::collections::BTreeMap;

use super::action::{Action, Step, World};
use super::arrange::plan_attempt;
use super::attempt::{Attempt, AttemptAction, AttemptState};
use super::event::{CollectiveEffect, CollectiveEvent};
use super::message::{AttemptId, Decision, EnlistmentId, MembershipId, Plan, Report, describe_plan};
use super::participants::{Disagreements, Participants};
use super::records::ReduceRecord;
use super::search::{CoordinatedCall, Search, Searches};
use super::sources::{Members, Outlook, SourceMember, Sources};
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

/// An attempt that this store coordinates.
#[derive(Debug)]
pub(super) struct Coordinated {
    call: CoordinatedCall,
    attempt: Attempt,
    /// The nodes of the members, in their order.
    nodes: Vec<NodeId>,
    plan: String,
}

/// The collectives that this store coordinates.
#[derive(Debug, Default)]
pub(super) struct Coordinator {
    searches: Searches,
    /// The attempts, by put.
    attempts: BTreeMap<PutId, Coordinated>,
    enlistments: BTreeMap<EnlistmentId, PutId>,
    /// Targets without bytes that this store has made and the directory does not know yet: the queries whether there is one.
    announcements: BTreeMap<ObjectId, RequestId>,
    /// By target, after a search and until the call ends.
    participants: BTreeMap<ObjectId, Participants>,
    disagreements: Disagreements,
}

impl Coordinated {
    /// Returns the request, its start, the number of members, and the plan.
    pub(super) fn under_way(&self) -> (&Reduce, Time, usize, &str) {
        (&self.call.request, self.call.started, self.nodes.len(), &self.plan)
    }

    /// Describes the attempt for people.
    pub(super) fn record(&self, link: LinkEstimate, now: Time) -> ReduceRecord {
        let (request, started, members, plan) = self.under_way();
        ReduceRecord::of_collective(request, started, link, now, members, plan.to_owned())
    }

    /// Returns the stores that have not completed their part.
    pub(super) fn unfinished_stores(&self) -> Vec<NodeId> {
        self.attempt.unfinished().filter_map(|index| self.nodes.get(index).cloned()).collect()
    }
}

impl Coordinator {
    /// Returns the number of collectives.
    pub(super) fn len(&self) -> usize {
        self.searches.len() + self.attempts.len()
    }

    /// Returns the number of members whose reports are not complete.
    pub(super) fn enlistments(&self) -> usize {
        self.enlistments.len()
    }

    pub(super) fn search_for(&self, target: &ObjectId) -> Option<&Search> {
        self.searches.get(target)
    }

    /// Returns the undecided attempt to make `target`.
    pub(super) fn open_for(&self, target: &ObjectId) -> Option<(PutId, &Coordinated)> {
        let is_open = |(_, one): &(&PutId, &Coordinated)| {
            one.call.request.target == *target && one.attempt.state() == AttemptState::Open
        };
        self.attempts.iter().find(is_open).map(|(put, one)| (*put, one))
    }

    /// Returns `true` if a search or an undecided attempt is to make `target`.
    pub(super) fn contains(&self, target: &ObjectId) -> bool {
        self.searches.get(target).is_some() || self.open_for(target).is_some()
    }

    /// Returns the participants of a target, as long as rank 0's call is open.
    pub(super) fn participants(&self, target: &ObjectId) -> Option<&Participants> {
        self.participants.get(target)
    }

    /// Returns the request, the start, the number of members and the plan of each collective.
    pub(super) fn under_way(&self) -> impl Iterator<Item = (&Reduce, Time, usize, &str)> {
        let searches = self.searches.iter().map(|one| (one.sources.request(), one.started, 0, ""));
        searches.chain(self.attempts.values().map(Coordinated::under_way))
    }

    /// Coordinates a collective for a call. The directory was asked whether the target exists, and where each source is.
    pub(super) fn coordinate(
        &mut self,
        world: &mut World<'_>,
        key: CallKey,
        (kind, request): (Collective, Reduce),
        existence: RequestId,
        asks: Vec<RequestId>,
    ) {
        let target = request.target.clone();
        self.searches.begin(world, key, Sources::new(kind, request), existence, asks);
        self.reconsider(world, &target);
    }

    /// The directory told what it knows about a source. Returns the locations if they are those of a reduce.
    pub(super) fn source_located(
        &mut self,
        world: &mut World<'_>,
        target: &ObjectId,
        index: usize,
        locations: Locations,
    ) -> Option<Locations> {
        let Some(locations) = self.searches.located(world.now, target, index, locations) else {
            self.reconsider(world, target);
            return None;
        };
        if self.disagreements.located(world, target, index, &locations) {
            return None;
        }
        if let Some(participants) = self.participants.get_mut(target) {
            participants.note_source(index, &locations);
        }
        Some(locations)
    }

    /// The directory told whether the target exists. Returns `true` if a collective makes it.
    pub(super) fn target_located(&mut self, world: &mut World<'_>, locations: &Locations) -> bool {
        let target = &locations.id;
        if locations.object.is_some() && self.withdraw_announcement(world, target) {
            return true;
        }
        if !self.contains(target) {
            return false;
        }
        if locations.object.as_ref().is_some_and(|object| !object.lost) {
            self.fail(world, target, &Error::AlreadyExists { id: target.clone() });
        } else {
            self.searches.target_is_new(target);
            self.reconsider(world, target);
        }
        true
    }

    /// Looks whether an attempt can begin, or the general path must.
    pub(super) fn reconsider(&mut self, world: &mut World<'_>, target: &ObjectId) {
        let Some((search, outlook)) = self.searches.reconsider(world, target) else { return };
        let participants = Participants::new(world.now, &search);
        self.participants.insert(target.clone(), participants);
        match outlook {
            Outlook::Ready(members) => {
                let call = search.into_call(world);
                self.begin_attempt(world, call, members);
            }
            Outlook::General(reason) if !search.sources.kind().properties().makes_target => {
                let call = search.into_call(world);
                self.fall_back(world, call, reason);
            }
            Outlook::General(reason) => search.into_reduce(world, reason),
            Outlook::Waiting(_) => {}
        }
    }

    /// Asks the stores that have the sources to be members.
    pub(super) fn begin_attempt(&mut self, world: &mut World<'_>, call: CoordinatedCall, members: Members) {
        let put = world.numbers.next_put();
        let attempt = self.next_attempt(world, &call.request.target);
        let (common, members) = plan_attempt(world, &call, (attempt, put), members);
        let (mut enlistments, mut own) = (Vec::new(), None);
        for (index, SourceMember { member, sources, .. }) in members.into_iter().enumerate() {
            let enlistment = EnlistmentId(world.numbers.next());
            let plan = Box::new(Plan { index, sources, ..common.clone() });
            enlistments.push(enlistment);
            self.enlistments.insert(enlistment, put);
            if member.node == *world.node {
                own = Some((enlistment, plan));
            } else {
                world.perform(CollectiveEffect::Enlist { enlistment, plan });
            }
        }
        let own_enlistment = own.as_ref().map(|(enlistment, _)| *enlistment);
        let attempt = Attempt::new(call.kind, common.target, enlistments, own_enlistment);
        let plan = describe_plan(call.kind, &common.schedule, &common.explanation, &common.members);
        let nodes = common.members.into_iter().map(|member| member.node).collect();
        self.attempts.insert(put, Coordinated { call, attempt, nodes, plan });
        if let Some((enlistment, plan)) = own {
            let membership = MembershipId::Here(enlistment);
            world.deliver(CollectiveEvent::Asked { membership, plan });
        }
    }

    /// Numbers another attempt to make a target.
    fn next_attempt(&mut self, world: &mut World<'_>, target: &ObjectId) -> AttemptId {
        let attempt = world.next_attempt();
        if let Some(participants) = self.participants.get_mut(target) {
            participants.attempt = attempt;
        }
        attempt
    }

    /// A member has reported.
    pub(super) fn reported(&mut self, world: &mut World<'_>, enlistment: EnlistmentId, report: Report) {
        let Some(put) = self.enlistments.get(&enlistment).copied() else { return };
        let Some(coordinated) = self.attempts.get_mut(&put) else { return };
        if report != Report::Filled {
            self.enlistments.remove(&enlistment);
        }
        let actions = coordinated.attempt.reported(enlistment, report);
        if coordinated.attempt.state() == AttemptState::Committed
            && coordinated.call.kind.properties().makes_target
        {
            world.withdraw(coordinated.call.existence.take());
        }
        self.perform_attempt(world, put, actions);
    }

    /// Tells the members what was decided, and goes on without the attempt if it is over.
    fn perform_attempt(&mut self, world: &mut World<'_>, put: PutId, actions: Vec<AttemptAction>) {
        let mut end = None;
        for action in actions {
            match action {
                AttemptAction::Tell(enlistment, decision) => {
                    self.tell_member(world, put, enlistment, decision)
                }
                AttemptAction::Dismiss(enlistment) => self.dismiss_member(world, put, enlistment),
                action => end = Some(action),
            }
        }
        if !self.attempts.get(&put).is_some_and(|one| one.attempt.is_over()) {
            return;
        }
        let Some(coordinated) = self.attempts.remove(&put) else { return };
        let kind = coordinated.call.kind.properties();
        let is_exchanged = !kind.makes_target && coordinated.attempt.state() == AttemptState::Committed;
        if is_exchanged {
            world.push(Action::Remember(coordinated.record(world.link, world.now)));
        }
        let mut call = coordinated.call;
        match end {
            Some(AttemptAction::FallBack(reason)) => {
                self.next_attempt(world, &call.request.target);
                self.fall_back(world, call, &reason);
            }
            // Participants of an exchange that does not end for all at once look for the target.
            None if is_exchanged && !kind.awaits_commit => self.announce(world, call),
            end => {
                world.withdraw(call.existence.take());
                match (end, call.key) {
                    (Some(AttemptAction::Fail(error)), Some(key)) => {
                        world.push(Action::Answer(key, Err(error)));
                    }
                    (None, Some(key)) if is_exchanged => {
                        world.push(Action::Answer(key, Ok(call.request.sources.len())));
                    }
                    // An aborted attempt was answered. The verdict of the directory answers the call for a target.
                    _ => {}
                }
            }
        }
    }

    /// Tells a member what was decided.
    fn tell_member(
        &mut self,
        world: &mut World<'_>,
        put: PutId,
        enlistment: EnlistmentId,
        decision: Decision,
    ) {
        let is_last = matches!(decision, Decision::Stop(_));
        if is_last {
            self.enlistments.remove(&enlistment);
        }
        let Some(coordinated) = self.attempts.get(&put) else { return };
        if coordinated.attempt.own() != Some(enlistment) {
            return world.perform(CollectiveEffect::Tell { enlistment, decision });
        }
        let membership = MembershipId::Here(enlistment);
        if decision == Decision::Commit && coordinated.call.kind.properties().makes_target {
            let sources = coordinated.call.request.sources.len();
            let sealer = coordinated.call.key.map(|key| (key, sources));
            world.step(Step::Seal(membership, sealer));
            world.push(Action::Remember(coordinated.record(world.link, world.now)));
        }
        world.deliver(CollectiveEvent::Told { membership, decision });
        if is_last {
            world.deliver(CollectiveEvent::Left { membership });
        }
    }

    /// A member is not needed any more.
    fn dismiss_member(&mut self, world: &mut World<'_>, put: PutId, enlistment: EnlistmentId) {
        self.enlistments.remove(&enlistment);
        if self.attempts.get(&put).and_then(|one| one.attempt.own()) == Some(enlistment) {
            let membership = MembershipId::Here(enlistment);
            world.deliver(CollectiveEvent::Left { membership });
        } else {
            world.perform(CollectiveEffect::Dismiss { enlistment });
        }
    }

    /// Rank 0 has its parts, so all sources are complete. The other members go on without its call, unless all end together.
    pub(super) fn answer_rank_0(&mut self, world: &mut World<'_>, put: PutId) {
        let Some(coordinated) = self.attempts.get_mut(&put) else { return };
        if !coordinated.call.kind.properties().awaits_commit
            && let Some(key) = coordinated.call.key.take()
        {
            let sources = coordinated.call.request.sources.len();
            world.push(Action::Answer(key, Ok(sources)));
        }
    }

    /// Makes the target of an allreduce with a reduce and a broadcast. Participants of a collective of parts are told to get their
    /// parts by themselves.
    pub(super) fn fall_back(&mut self, world: &mut World<'_>, call: CoordinatedCall, reason: &str) {
        if !call.kind.properties().makes_target {
            let plan = format!("general path: {reason}");
            let record =
                ReduceRecord::of_collective(&call.request, call.started, world.link, world.now, 0, plan);
            world.push(Action::Remember(record));
            return self.announce(world, call);
        }
        let CoordinatedCall { key, started, mut request, existence, .. } = call;
        world.withdraw(existence);
        let Some(key) = key else { return };
        request.timeout = request.timeout.saturating_sub(world.now.since(started));
        world.push(Action::Reduce { key, request, reason: reason.to_owned(), found: None });
    }

    /// Makes the target as an object without bytes. It tells participants that have not got their parts, whenever and wherever they
    /// come, that the exchange is over.
    fn announce(&mut self, world: &mut World<'_>, call: CoordinatedCall) {
        let CoordinatedCall { key, started, kind, request, existence } = call;
        if let Some(existence) = existence {
            // A delete before the directory knows the target means this one, too.
            self.announcements.insert(request.target.clone(), existence);
        }
        let left = request.timeout.saturating_sub(world.now.since(started));
        let metadata = Metadata { agreement: Some(Agreement::of(kind, &request)), ..Metadata::default() };
        let sources = request.sources.len();
        world.push(Action::Announce(request.target, metadata, left));
        if let Some(key) = key {
            world.push(Action::Answer(key, Ok(sources)));
        }
    }

    /// Ends the search or the undecided attempt that would make `target`, and its call.
    pub(super) fn fail(&mut self, world: &mut World<'_>, target: &ObjectId, error: &Error) {
        let mut key = None;
        if let Some(participants) = self.drop_search(world, target) {
            key = Some(participants.key);
            // They are told when the call ends.
            self.participants.insert(target.clone(), participants);
        }
        if let Some((put, _)) = self.open_for(target) {
            key = self.attempts.get_mut(&put).and_then(|one| one.call.key.take());
            self.abort(world, put, error);
        }
        if let Some(key) = key {
            world.push(Action::Answer(key, Err(error.clone())));
        }
    }

    /// Ends a search without a result. Returns the participants that are known.
    fn drop_search(&mut self, world: &mut World<'_>, target: &ObjectId) -> Option<Participants> {
        let search = self.searches.end(world, target)?;
        let participants = Participants::new(world.now, &search);
        search.withdraw(world);
        Some(participants)
    }

    /// The directory was asked where the sources are that were missing when participants disagreed.
    pub(super) fn follows(
        &mut self,
        world: &mut World<'_>,
        target: &ObjectId,
        asks: BTreeMap<usize, RequestId>,
    ) {
        self.disagreements.follows(world, target, asks);
    }

    /// A disagreement does not matter any more: it is too old, or another attempt begins.
    pub(super) fn end_disagreement(&mut self, world: &mut World<'_>, target: &ObjectId) {
        self.disagreements.end(world, target);
    }

    /// Aborts an attempt, unless it is decided.
    fn abort(&mut self, world: &mut World<'_>, put: PutId, error: &Error) {
        if let Some(coordinated) = self.attempts.get_mut(&put) {
            let actions = coordinated.attempt.give_up(error);
            self.perform_attempt(world, put, actions);
        }
    }

    /// The call of a reduce or a collective has ended: with this error, if it has failed. Then the participants that wait
    /// for the target elsewhere are told.
    pub(super) fn call_ended(
        &mut self,
        world: &mut World<'_>,
        key: CallKey,
        target: &ObjectId,
        error: Option<&Error>,
    ) {
        let is_of_call = |participants: &Participants| participants.key == key;
        let participants = if self.searches.get(target).is_some_and(|search| search.key == key) {
            self.drop_search(world, target)
        } else if self.participants.get(target).is_some_and(is_of_call) {
            self.participants.remove(target)
        } else {
            None
        };
        let mut is_committed = false;
        let mut attempts = self.attempts.iter_mut();
        let of_call = attempts.find(|(_, coordinated)| coordinated.call.key == Some(key));
        if let Some((put, coordinated)) = of_call {
            let put = *put;
            coordinated.call.key = None;
            is_committed = coordinated.attempt.state() == AttemptState::Committed;
            if let Some(error) = error {
                self.abort(world, put, error);
            }
        }
        // What was committed does not end with its call.
        if let Some(participants) = participants
            && let Some(error) = error.filter(|_| !is_committed)
        {
            self.disagreements.reject(world, target, participants, error);
        }
    }

    /// The target was deleted. Members that still make it must not have it.
    pub(super) fn target_deleted(&mut self, world: &mut World<'_>, target: &ObjectId) {
        let error = &Error::Deleted { id: target.clone() };
        let attempts = self.attempts.iter();
        let made = attempts.filter(|(_, one)| one.call.request.target == *target).map(|(put, _)| *put);
        for put in made.collect::<Vec<_>>() {
            let Some(coordinated) = self.attempts.get_mut(&put) else { continue };
            let actions = coordinated.attempt.deleted(error);
            if actions.is_empty() {
                continue;
            }
            let key = coordinated.call.key.take();
            self.perform_attempt(world, put, actions);
            // In general the end of the copy has ended the call.
            if let Some(key) = key {
                world.push(Action::Answer(key, Err(error.clone())));
            }
        }
    }

    /// The target is deleted before the directory knows that this store has announced it. Returns `true` if it has.
    pub(super) fn withdraw_announcement(&mut self, world: &mut World<'_>, target: &ObjectId) -> bool {
        let existence = self.announcements.remove(target);
        world.withdraw(existence);
        existence.is_some()
    }
}
