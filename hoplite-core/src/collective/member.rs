//! A member's view of an attempt.

use super::Plan;
use crate::time::Time;
use crate::vocabulary::local::{CombineId, CopyId};

/// The stage of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberStage {
    /// Waits for room.
    AwaitingRoom,
    /// Gives and takes.
    Exchanging {
        /// The copy.
        copy: CopyId,
    },
    /// Has all bytes, still gives, and waits for the decision.
    Filled {
        /// The copy.
        copy: CopyId,
    },
    /// The copy is the target. Still gives.
    Complete,
    /// Failed or stopped.
    Over,
}

/// An attempt in which this store is a member.
#[derive(Debug)]
pub struct Membership {
    pub(super) plan: Box<Plan>,
    pub(super) asked_at: Time,
    stage: MemberStage,
    /// The end of the wait for room or for this node's participants.
    pub(super) deadline: Option<Time>,
    /// The exchange, while it touches memory.
    pub(super) running: Option<CombineId>,
    is_committed: bool,
    /// Participants with the copy.
    pub(super) answered: usize,
    pub(super) failure: Option<String>,
    /// The time of the last byte or of the failure.
    pub(super) ended_at: Option<Time>,
}

impl Membership {
    /// Makes a member of `plan`.
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

    /// The stage.
    pub const fn stage(&self) -> MemberStage {
        self.stage
    }

    /// The copy, before it is the target.
    pub const fn growing_copy(&self) -> Option<CopyId> {
        match self.stage {
            MemberStage::Exchanging { copy } | MemberStage::Filled { copy } => Some(copy),
            _ => None,
        }
    }

    /// Begins, now that there is room.
    pub fn begin(&mut self, copy: CopyId, combine: CombineId) {
        self.stage = MemberStage::Exchanging { copy };
        self.running = Some(combine);
    }

    /// Returns `true` if the copy is the target or useless.
    pub(super) const fn has_ended(&self) -> bool {
        matches!(self.stage, MemberStage::Complete | MemberStage::Over)
    }

    /// Notes that all bytes are there. Returns the copy if it is now the target.
    pub fn filled(&mut self, now: Time) -> Option<CopyId> {
        self.ended_at.get_or_insert(now);
        if let MemberStage::Exchanging { copy } = self.stage {
            self.stage = MemberStage::Filled { copy };
        }
        self.settle()
    }

    pub(super) fn has_answered_all(&self) -> bool {
        self.plan.ranks.get(self.plan.index).is_none_or(|ranks| self.answered >= ranks.len())
    }

    /// Notes the commit. Returns the copy if it has all bytes.
    pub fn commit(&mut self) -> Option<CopyId> {
        self.is_committed = true;
        self.settle()
    }

    /// Returns `true` after the commit.
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

    /// Gives up. Returns the useless copy.
    pub fn fail(&mut self, now: Time) -> Option<CopyId> {
        self.ended_at.get_or_insert(now);
        let copy = self.growing_copy();
        if self.stage != MemberStage::Complete {
            self.stage = MemberStage::Over;
        }
        copy
    }
}
