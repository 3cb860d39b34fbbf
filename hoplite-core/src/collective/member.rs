//! A member's view of an attempt.

use super::Plan;
use crate::time::Time;
use crate::vocabulary::local::{CallKey, CombineId, CopyId};

/// The progress of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberStage {
    /// It waits for room for the target.
    AwaitingRoom {
        /// The time to give up.
        deadline: Time,
    },
    /// It gives and takes, in this copy.
    Exchanging {
        /// The copy.
        copy: CopyId,
        /// What fills it.
        combine: CombineId,
    },
    /// It has all bytes, and waits for the decision. It still gives.
    Filled {
        /// The copy.
        copy: CopyId,
    },
    /// The copy is the target. It still gives.
    Complete,
    /// It has failed, or was stopped.
    Over,
}

/// An attempt in which this store is a member.
#[derive(Debug)]
pub struct Membership {
    plan: Box<Plan>,
    asked_at: Time,
    stage: MemberStage,
    /// The exchange, until it touches no memory any more.
    running: Option<CombineId>,
    is_committed: bool,
    /// The call that waits for the target at the coordinator's own store, and its number of sources.
    sealer: Option<(CallKey, usize)>,
    /// The number of participants that were referred to its copy.
    answered: usize,
    /// The time until which a member that has its parts waits for participants of its node before it reports.
    awaits_calls_until: Option<Time>,
    /// The reason for which it has failed, if it is the one that has.
    failure: Option<String>,
    /// The time at which it had all bytes, or it was clear that it would not get them.
    ended_at: Option<Time>,
}

impl Membership {
    /// A store was asked to follow `plan`.
    pub fn new(plan: Box<Plan>, now: Time) -> Self {
        let stage = MemberStage::AwaitingRoom { deadline: now + plan.timeout };
        Self {
            plan,
            asked_at: now,
            stage,
            running: None,
            is_committed: false,
            sealer: None,
            answered: 0,
            awaits_calls_until: None,
            failure: None,
            ended_at: None,
        }
    }

    /// Returns the time at which the store was asked.
    pub const fn asked_at(&self) -> Time {
        self.asked_at
    }

    /// Returns the time at which it had all bytes, or it was clear that it would not get them.
    pub const fn ended_at(&self) -> Option<Time> {
        self.ended_at
    }

    /// It is about to say that it has failed, for this reason.
    pub fn note_failure(&mut self, reason: String) {
        self.failure = Some(reason);
    }

    /// Returns the reason for which it has failed, if it is the one that has.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Returns the plan.
    pub const fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the progress.
    pub const fn stage(&self) -> MemberStage {
        self.stage
    }

    /// Returns the copy that is not the target yet.
    pub const fn growing_copy(&self) -> Option<CopyId> {
        match self.stage {
            MemberStage::Exchanging { copy, .. } | MemberStage::Filled { copy } => Some(copy),
            _ => None,
        }
    }

    /// There is room, and it begins.
    pub fn begin(&mut self, copy: CopyId, combine: CombineId) {
        self.stage = MemberStage::Exchanging { copy, combine };
        self.running = Some(combine);
    }

    /// Returns the exchange, until it touches no memory any more.
    pub const fn running(&self) -> Option<CombineId> {
        self.running
    }

    /// The exchange touches no memory any more.
    pub const fn exchange_ended(&mut self) {
        self.running = None;
    }

    /// Returns `true` if the member has nothing to give any more, or its copy is the target.
    pub const fn has_ended(&self) -> bool {
        matches!(self.stage, MemberStage::Complete | MemberStage::Over)
    }

    /// Notes the call that waits for the target.
    pub(super) const fn set_sealer(&mut self, sealer: Option<(CallKey, usize)>) {
        self.sealer = sealer;
    }

    /// Takes the call that waits for the target.
    pub(super) const fn take_sealer(&mut self) -> Option<(CallKey, usize)> {
        self.sealer.take()
    }

    /// All bytes are there. Returns the copy if it is the target now.
    pub fn filled(&mut self, now: Time) -> Option<CopyId> {
        self.ended_at.get_or_insert(now);
        if let MemberStage::Exchanging { copy, .. } = self.stage {
            self.stage = MemberStage::Filled { copy };
        }
        self.settle()
    }

    /// A participant was referred to its copy.
    pub const fn answer(&mut self) {
        self.answered += 1;
    }

    /// Returns `true` if all participants of its node have got the copy.
    pub fn has_answered_all(&self) -> bool {
        self.plan.ranks.get(self.plan.index).is_none_or(|ranks| self.answered >= ranks.len())
    }

    /// Waits for participants of its node until then.
    pub const fn await_calls(&mut self, until: Time) {
        self.awaits_calls_until = Some(until);
    }

    /// Ends that wait. Returns the time at which it would have ended, if there was one.
    pub const fn end_wait_for_calls(&mut self) -> Option<Time> {
        self.awaits_calls_until.take()
    }

    /// The coordinator has committed. Returns the copy if it has all bytes.
    pub fn commit(&mut self) -> Option<CopyId> {
        self.is_committed = true;
        self.settle()
    }

    /// Returns `true` if the coordinator has committed.
    pub const fn is_committed(&self) -> bool {
        self.is_committed
    }

    fn settle(&mut self) -> Option<CopyId> {
        let MemberStage::Filled { copy } = self.stage else { return None };
        self.is_committed.then(|| {
            self.stage = MemberStage::Complete;
            copy
        })
    }

    /// The member will not get the target from this attempt. Returns the copy that is of no use any more.
    pub fn fail(&mut self, now: Time) -> Option<CopyId> {
        self.ended_at.get_or_insert(now);
        let copy = self.growing_copy();
        if self.stage != MemberStage::Complete {
            self.stage = MemberStage::Over;
        }
        copy
    }
}
