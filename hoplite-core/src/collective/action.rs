//! The edges of the machine: what it sees of its store, what it has the store do, and its deadlines.

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

/// The part of the store's context that the machine reads.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    /// The time of the event.
    pub(crate) now: Time,
    /// The name of this node.
    pub(crate) node: &'a NodeId,
    /// The estimate of the links between nodes.
    pub(crate) link: LinkEstimate,
    /// The schedules that this store may choose.
    pub(crate) preference: SchedulePreference,
    /// The source of numbers that this run has not used.
    pub(crate) numbers: &'a mut Numbers,
}

/// What the store does for the machine. The store performs actions in order, when the present event is complete.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Have the shell perform an effect.
    Perform(CollectiveEffect),
    /// Withdraw a query.
    Withdraw(RequestId),
    /// Ask the directory where these sources of a target are, by their ranks. The requests go to
    /// `Collectives::follows`.
    Follow(ObjectId, BTreeMap<usize, ObjectId>),
    /// Answer rank 0's call: with the number of sources, or an error. The call may have ended.
    Answer(CallKey, Result<usize>),
    /// Make the target with a reduce and a broadcast.
    Reduce {
        /// Rank 0's call, which may have ended.
        key: CallKey,
        /// The request, with the time that is left.
        request: Reduce,
        /// The reason, for people.
        reason: String,
        /// The queries that were made before; `None` after a failed attempt, for which all sources were there.
        found: Option<Found>,
    },
    /// Make the target as an object without bytes, which tells participants that the exchange is over.
    Announce(ObjectId, Metadata, Duration),
    /// Remember how a collective went.
    Remember(ReduceRecord),
    /// Find room for a member's copy and start its exchange. The result goes to `Collectives::began` or
    /// `Collectives::refused`.
    Open(MembershipId),
    /// Refuse a member that has waited for room for too long.
    LackRoom(MembershipId),
    /// Declare a copy the complete target. The call waits for the directory's verdict and then returns so many sources.
    CompleteTarget(CopyId, Option<(CallKey, usize)>),
    /// Declare complete a copy of parts, which only the participants of this node read.
    CompleteParts(ObjectId, CopyId),
    /// Fail the participants of this node that wait for a target.
    FailParticipants(ObjectId, Error),
    /// Fail a participant that still waits for a target.
    FailParticipant(CallKey, ObjectId, Error),
    /// End a member: it needs no room, serves nobody, and its copy is of no use.
    EndMember {
        /// The member.
        membership: MembershipId,
        /// The target.
        target: ObjectId,
        /// The put of the attempt.
        put: PutId,
        /// The copy, if it was begun.
        copy: Option<CopyId>,
        /// What readers of the copy are told.
        error: Error,
    },
    /// Reject a target whose coordinator is lost, unless a copy of it is here by now.
    RejectOrphan(ObjectId, AttemptId),
    /// Cancel an exchange.
    Cancel(CombineId),
}

/// What a search has asked of the directory, and has found.
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
    /// Late sources were awaited long enough.
    Search(ObjectId),
    /// A disagreement is too old to tell participants that come now.
    Disagreement(ObjectId),
    /// A member has waited long enough for room, or for participants of its node.
    Member(MembershipId),
    /// The target of a lost coordinator could have been found by now.
    Orphan(ObjectId, AttemptId),
    /// A participant that came after a disagreement has waited long enough for another attempt.
    Join(CallKey, ObjectId),
}

/// What follows from an event.
#[derive(Debug)]
pub(super) enum Step {
    /// The store performs it.
    Act(Action),
    /// The machine takes it in. The coordinator and the member of one store talk in this way.
    Deliver(CollectiveEvent),
    /// The member at the coordinator's own store is about to be told that its copy is the target, for which this call waits.
    Seal(MembershipId, Option<(CallKey, usize)>),
    /// The member at the coordinator's own store has all its parts of this put.
    HasParts(PutId),
    /// An attempt to make a target begins here.
    Begins(ObjectId),
}

/// The actions and deadlines of the machine.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// What follows from the present event or step. It comes before `steps`.
    fresh: Vec<Step>,
    steps: VecDeque<Step>,
    timers: BTreeSet<(Time, Timer)>,
}

impl Outbox {
    /// Takes the next step. What follows from a step comes before the steps after it.
    pub(super) fn next(&mut self) -> Option<Step> {
        for step in self.fresh.drain(..).rev() {
            self.steps.push_front(step);
        }
        self.steps.pop_front()
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.timers.first().map(|(time, _)| *time)
    }

    /// Takes the first timer that is due.
    pub(super) fn next_due(&mut self, now: Time) -> Option<Timer> {
        self.next_deadline().filter(|time| *time <= now)?;
        self.timers.pop_first().map(|(_, timer)| timer)
    }
}

/// What the parts of the machine see of the store, and act on.
#[derive(Debug)]
pub(super) struct World<'a> {
    pub(super) now: Time,
    pub(super) node: &'a NodeId,
    pub(super) link: LinkEstimate,
    pub(super) preference: SchedulePreference,
    pub(super) numbers: &'a mut Numbers,
    outbox: &'a mut Outbox,
}

impl<'a> Context<'a> {
    /// The same context, once more.
    pub(super) const fn again(&mut self) -> Context<'_> {
        Context { numbers: self.numbers, ..*self }
    }

    pub(super) const fn world(self, outbox: &'a mut Outbox) -> World<'a> {
        let Self { now, node, link, preference, numbers } = self;
        World { now, node, link, preference, numbers, outbox }
    }
}

impl World<'_> {
    /// Returns the number of another attempt of this coordinator.
    pub(super) fn next_attempt(&mut self) -> AttemptId {
        AttemptId { run: self.numbers.run(), number: self.numbers.next() }
    }

    pub(super) fn step(&mut self, step: Step) {
        self.outbox.fresh.push(step);
    }

    pub(super) fn push(&mut self, action: Action) {
        self.step(Step::Act(action));
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
