use super::Plan;
use crate::time::Time;
use crate::vocabulary::local::{CombineId, CopyId};

/// Stage of a store's work in one attempt at a collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberStage {
    /// Waits for memory for its copy.
    AwaitingRoom,
    /// Sends and receives bytes.
    Exchanging {
        /// Copy that the exchange fills.
        copy: CopyId,
    },
    /// Has all bytes in its copy and still sends. Waits for the coordinator's decision.
    Filled {
        /// Filled copy.
        copy: CopyId,
    },
    /// The member's copy is the target. The member still sends.
    Complete,
    /// Failed or stopped.
    Over,
}

/// Attempt at a collective in which this store takes part.
#[derive(Debug)]
pub struct Membership {
    pub(super) plan: Box<Plan>,
    pub(super) enlisted_at: Time,
    stage: MemberStage,
    /// Time limit for the present wait: for memory, or for this node's participants to call.
    pub(super) deadline: Option<Time>,
    pub(super) running: Option<CombineId>,
    is_committed: bool,
    pub(super) answered: usize,
    pub(super) failure: Option<String>,
    pub(super) ended_at: Option<Time>,
}

impl Membership {
    /// Makes a member.
    pub const fn new(plan: Box<Plan>, now: Time) -> Self {
        Self {
            plan,
            enlisted_at: now,
            stage: MemberStage::AwaitingRoom,
            deadline: None,
            running: None,
            is_committed: false,
            answered: 0,
            failure: None,
            ended_at: None,
        }
    }

    /// Member's stage.
    pub const fn stage(&self) -> MemberStage {
        self.stage
    }

    /// Member's copy, unless it is already the target.
    pub const fn growing_copy(&self) -> Option<CopyId> {
        match self.stage {
            MemberStage::Exchanging { copy } | MemberStage::Filled { copy } => Some(copy),
            _ => None,
        }
    }

    /// Begins the exchange into `copy`.
    pub fn begin(&mut self, copy: CopyId, combine: CombineId) {
        self.stage = MemberStage::Exchanging { copy };
        self.running = Some(combine);
    }

    pub(super) const fn has_ended(&self) -> bool {
        matches!(self.stage, MemberStage::Complete | MemberStage::Over)
    }

    /// Notes that the copy has all bytes. Returns the copy if it is now the target.
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

    /// Notes the commit. Returns the copy if it is now the target.
    pub fn commit(&mut self) -> Option<CopyId> {
        self.is_committed = true;
        self.settle()
    }

    /// Returns `true` after the coordinator's commit.
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

    /// Ends the member after a failure. Returns its useless copy.
    pub fn fail(&mut self, now: Time) -> Option<CopyId> {
        self.ended_at.get_or_insert(now);
        let copy = self.growing_copy();
        if self.stage != MemberStage::Complete {
            self.stage = MemberStage::Over;
        }
        copy
    }
}
