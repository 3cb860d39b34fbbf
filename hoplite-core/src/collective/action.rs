//! The edges of the machine: its view of the store, its actions, and its deadlines.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::event::{CollectiveEffect, CollectiveEvent};
use super::message::{AttemptId, MembershipId};
use super::records::ReduceRecord;
use crate::error::{Error, Result};
use crate::id::{NodeId, ObjectId, PutId};
use crate::metadata::Metadata;
use crate::plan::collective::SchedulePreference;
use crate::plan::link::LinkEstimate;
use crate::shard::{Locations, RequestId};
use crate::time::Time;
use crate::vocabulary::local::{CallKey, CombineId, CopyId};
use crate::vocabulary::number::Numbers;
use crate::vocabulary::reduce::Reduce;

/// The part of the store that the machine reads, and the outbox of the machine.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub(crate) now: Time,
    pub(crate) node: &'a NodeId,
    pub(crate) link: LinkEstimate,
    pub(crate) preference: SchedulePreference,
    pub(crate) numbers: &'a mut Numbers,
    pub(crate) outbox: &'a mut Outbox,
}

/// An action that the store performs for the machine, in order, after the current event is
/// complete.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Have the shell perform an effect.
    Perform(CollectiveEffect),
    /// Withdraw a query.
    Withdraw(RequestId),
    /// Ask the directory for these sources of a target, by their ranks. The queries go to
    /// `Disagreements::follows`.
    Follow(ObjectId, BTreeMap<usize, ObjectId>),
    /// Answer rank 0's call with the number of sources, or an error. The call may have ended.
    Answer(CallKey, Result<usize>),
    /// Make the target with a reduce and a broadcast.
    Reduce {
        /// Rank 0's call, which may have ended.
        key: CallKey,
        /// The request, with the time that is left.
        request: Reduce,
        /// The reason, for people.
        reason: String,
        /// The queries and answers of the search. `None` after a failed attempt, for which all
        /// sources were there.
        found: Option<Found>,
    },
    /// Make the target as an object without bytes, which ends the exchange for participants.
    Announce(ObjectId, Metadata, Duration),
    /// Remember the end of a collective.
    Remember(ReduceRecord),
    /// Find room for a member's copy and start its exchange. The result goes to
    /// `Memberships::began` or `Memberships::refused`.
    Open(MembershipId),
    /// Refuse a member that waited too long for room.
    LackRoom(MembershipId),
    /// Declare a copy the complete target. The call waits for the directory's verdict and then
    /// returns this number of sources.
    CompleteTarget(CopyId, Option<(CallKey, usize)>),
    /// Complete a copy of parts, which only the participants of this node read.
    CompleteParts(ObjectId, CopyId),
    /// Fail the participants of this node that wait for a target, or only the one with this call.
    FailParticipants(ObjectId, Option<CallKey>, Error),
    /// End a member: it needs no room and serves no bytes, and its copy is useless.
    EndMember {
        membership: MembershipId,
        target: ObjectId,
        /// The put of the attempt.
        put: PutId,
        /// The copy, if it was begun.
        copy: Option<CopyId>,
        /// The error for readers of the copy.
        error: Error,
    },
    /// Reject a target whose coordinator is lost, unless a copy of it is here.
    RejectOrphan(ObjectId, AttemptId),
    /// Cancel an exchange.
    Cancel(CombineId),
}

/// The queries of a search, and their answers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// The query whether the target exists.
    pub(crate) existence: RequestId,
    /// The queries for the sources.
    pub(crate) asks: Vec<RequestId>,
    /// The answers so far.
    pub(crate) locations: Vec<Option<Locations>>,
}

/// A deadline of the machine.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// The wait for late sources ends.
    Search(ObjectId),
    /// The time to tell late participants of a disagreement is over.
    Disagreement(ObjectId),
    /// The wait of a member for room, or for participants of its node, ends.
    Member(MembershipId),
    /// The search for the target of a lost coordinator ends.
    Orphan(ObjectId, AttemptId),
    /// The wait of a participant that came after a disagreement for another attempt ends.
    Join(CallKey, ObjectId),
}

/// A consequence of an event.
#[derive(Debug)]
pub(super) enum Step {
    /// An action of the store.
    Act(Action),
    /// A message between the coordinator and the member of this store.
    Deliver(CollectiveEvent),
    /// The copy of the member at the coordinator's own store is the target, for which this call
    /// waits.
    Commit(MembershipId, Option<(CallKey, usize)>),
    /// The member at the coordinator's own store has all its parts of this put.
    HasParts(PutId),
}

/// The actions and deadlines of the machine.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// The steps that follow from the current event or step. They come before `steps`.
    fresh: Vec<Step>,
    steps: VecDeque<Step>,
    timers: BTreeSet<(Time, Timer)>,
}

impl Outbox {
    /// Takes the next step. The consequences of a step come before the steps after it.
    pub(super) fn next(&mut self) -> Option<Step> {
        for step in self.fresh.drain(..).rev() {
            self.steps.push_front(step);
        }
        self.steps.pop_front()
    }

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.timers.first().map(|(time, _)| *time)
    }

    /// Takes the first timer that is due.
    pub(super) fn next_due(&mut self, now: Time) -> Option<Timer> {
        self.next_deadline().filter(|time| *time <= now)?;
        self.timers.pop_first().map(|(_, timer)| timer)
    }
}

impl Context<'_> {
    pub(super) fn next_attempt(&mut self) -> AttemptId {
        AttemptId { run: self.numbers.run(), number: self.numbers.next() }
    }

    pub(super) fn step(&mut self, step: Step) {
        self.outbox.fresh.push(step);
    }

    pub(super) fn push(&mut self, action: Action) {
        self.step(Step::Act(action));
    }

    /// Answers a call that has not ended.
    pub(super) fn answer(&mut self, key: Option<CallKey>, answer: Result<usize>) {
        if let Some(key) = key {
            self.push(Action::Answer(key, answer));
        }
    }

    pub(super) fn perform(&mut self, effect: CollectiveEffect) {
        self.push(Action::Perform(effect));
    }

    pub(super) fn deliver(&mut self, event: CollectiveEvent) {
        self.step(Step::Deliver(event));
    }

    pub(super) fn withdraw(&mut self, requests: impl IntoIterator<Item = RequestId>) {
        requests.into_iter().for_each(|request| self.push(Action::Withdraw(request)));
    }

    /// Sets a deadline, unless it is never.
    pub(super) fn schedule(&mut self, time: Time, timer: Timer) {
        if time != Time::NEVER {
            self.outbox.timers.insert((time, timer));
        }
    }

    pub(super) fn unschedule(&mut self, time: Time, timer: Timer) {
        self.outbox.timers.remove(&(time, timer));
    }
}
