//! The interface between collectives and their store.

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

#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub(crate) now: Time,
    pub(crate) node: &'a NodeId,
    pub(crate) link: LinkEstimate,
    pub(crate) preference: SchedulePreference,
    pub(crate) numbers: &'a mut Numbers,
    pub(crate) outbox: &'a mut Outbox,
}

/// Action for the store, which performs all actions in order after the current event.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Perform(CollectiveEffect),
    Withdraw(RequestId),
    /// Query the directory for these missing sources, by rank. After a disagreement of ranks,
    /// stores that put these sources later are told.
    Follow(ObjectId, BTreeMap<usize, ObjectId>),
    /// Answer rank 0's call, unless it has ended, with the number of combined sources.
    Answer(CallKey, Result<usize>),
    Reduce {
        /// Rank 0's call, which may already have ended.
        key: CallKey,
        /// Its timeout is the time left for the call.
        request: Reduce,
        reason: String,
        /// Open queries for sources, with their answers. `None` after a failed attempt, because its
        /// queries were withdrawn.
        found: Option<Found>,
    },
    /// Put an empty target, by which participants learn that the exchange is over.
    Announce(ObjectId, Metadata, Duration),
    Remember(ReduceRecord),
    /// Allocate a member's copy and start its exchange. Then call
    /// `Memberships::exchange_started` or `Memberships::refused`.
    Open(MembershipId),
    LackRoom(MembershipId),
    /// Make a member's copy the target. Once the directory accepts it, answer the call, if any,
    /// with the number of sources.
    CompleteTarget(CopyId, Option<(CallKey, usize)>),
    CompleteParts(ObjectId, CopyId),
    /// Fail this node's participants in a target, or only the given call.
    FailParticipants(ObjectId, Option<CallKey>, Error),
    EndMember {
        membership: MembershipId,
        target: ObjectId,
        put: PutId,
        copy: Option<CopyId>,
        error: Error,
    },
    /// Fail the participants that wait for a lost coordinator's target, unless this store has a
    /// copy of the target.
    RejectOrphan(ObjectId, AttemptId),
    Cancel(CombineId),
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) existence: RequestId,
    pub(crate) source_queries: Vec<RequestId>,
    pub(crate) locations: Vec<Option<Locations>>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    Search(ObjectId),
    /// End of the time in which stores of later sources are told that ranks disagreed.
    Disagreement(ObjectId),
    Member(MembershipId),
    Orphan(ObjectId),
    /// A participant that joined after ranks disagreed fails with this error now, unless another
    /// attempt has begun.
    Join(CallKey, ObjectId),
}

#[derive(Debug)]
pub(super) enum Step {
    Act(Action),
    /// Message between the coordinator and the member of the same store.
    Deliver(CollectiveEvent),
    /// Make the copy of the coordinator's own member the target. Then answer the call, if any.
    Commit(MembershipId, Option<(CallKey, usize)>),
    HasParts(PutId),
}

#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// Steps added by the current event or step. They run before the older `steps`.
    fresh: Vec<Step>,
    steps: VecDeque<Step>,
    timers: BTreeSet<(Time, Timer)>,
}

impl Outbox {
    pub(super) fn next(&mut self) -> Option<Step> {
        for step in self.fresh.drain(..).rev() {
            self.steps.push_front(step);
        }
        self.steps.pop_front()
    }

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.timers.first().map(|(time, _)| *time)
    }

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

    pub(super) fn schedule(&mut self, time: Time, timer: Timer) {
        if time != Time::NEVER {
            self.outbox.timers.insert((time, timer));
        }
    }

    pub(super) fn unschedule(&mut self, time: Time, timer: Timer) {
        self.outbox.timers.remove(&(time, timer));
    }
}
