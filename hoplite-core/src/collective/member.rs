//! A member's view of an attempt.

use super::Plan;
use crate::time::Time;
use crate::vocabulary::local::{CombineId, CopyId};

/// The stage of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberStage {
    /// It waits for room for the target.
    AwaitingRoom,
    /// It gives and takes in this copy.
    Exchanging {
        /// The copy.
        copy: CopyId,
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
    pub(super) plan: Box<Plan>,
    pub(super) asked_at: Time,
    stage: MemberStage,
    /// The time at which the wait for room, or for the participants of its node, ends.
    pub(super) deadline: Option<Time>,
    /// The exchange, until it touches no memory any more.
    pub(super) running: Option<CombineId>,
    is_committed: bool,
    /// The number of participants that have its copy.
    pub(super) answered: usize,
    /// The reason of a failure of this member.
    pub(super) failure: Option<String>,
    /// The time at which it had all bytes or lost the hope for them.
    pub(super) ended_at: Option<Time>,
}

impl Membership {
    /// Returns a member that follows `plan`.
    pub const fn new(plan: Box<Plan>, now: Time) -> Self {
        Self {
            plan,
            asked_at: now,
            stage: MemberStage::AwaitingRoom,
            deadline: None,
            running: None,
            is_committed: false,
            answered: 0,
            failure: None,
            ended_at: None,
        }
    }

    /// Returns the stage.
    pub const fn stage(&self) -> MemberStage {
        self.stage
    }

    /// Returns the copy that is not the target yet.
    pub const fn growing_copy(&self) -> Option<CopyId> {
        match self.stage {
            MemberStage::Exchanging { copy } | MemberStage::Filled { copy } => Some(copy),
            _ => None,
        }
    }

    /// Begins: there is room.
    pub fn begin(&mut self, copy: CopyId, combine: CombineId) {
        self.stage = MemberStage::Exchanging { copy };
        self.running = Some(combine);
    }

    /// Returns `true` if the copy is the target, or the member has nothing to give.
    pub(super) const fn has_ended(&self) -> bool {
        matches!(self.stage, MemberStage::Complete | MemberStage::Over)
    }

    /// Notes that all bytes are there. Returns the copy if it is the target now.
    pub fn filled(&mut self, now: Time) -> Option<CopyId> {
        self.ended_at.get_or_insert(now);
        if let MemberStage::Exchanging { copy } = self.stage {
            self.stage = MemberStage::Filled { copy };
        }
        self.settle()
    }

    /// Returns `true` if all participants of its node have the copy.
    pub(super) fn has_answered_all(&self) -> bool {
        self.plan.ranks.get(self.plan.index).is_none_or(|ranks| self.answered >= ranks.len())
    }

    /// Notes the commit of the coordinator. Returns the copy if it has all bytes.
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

    /// Gives up the target. Returns the copy, which is useless now.
    pub fn fail(&mut self, now: Time) -> Option<CopyId> {
        self.ended_at.get_or_insert(now);
        let copy = self.growing_copy();
        if self.stage != MemberStage::Complete {
            self.stage = MemberStage::Over;
        }
        copy
    }
}
