use std::collections::{BTreeMap, VecDeque};

use crate::collective::MembershipId;
use crate::id::ObjectId;
use crate::load::{CombinationLoad, MAX_COMBINATIONS, Sender};
use crate::message::{CombineId, CopyId, HopOwner};
use crate::reduce::ReduceOp;
use crate::time::Time;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CombineUser {
    Target(ObjectId),
    Hop(HopOwner),
    Membership(MembershipId),
}

#[derive(Debug)]
pub(crate) struct Combination {
    pub(super) copy: CopyId,
    pub(super) held: Vec<CopyId>,
    pub(super) user: CombineUser,
    pub(super) story: Story,
}

/// Facts of a combination for reports.
#[derive(Debug)]
pub(super) struct Story {
    pub(super) op: ReduceOp,
    pub(super) plan: String,
    pub(super) senders: Vec<Sender>,
    pub(super) all_senders: usize,
    pub(super) began: Time,
}

pub(crate) type Combinations = BTreeMap<CombineId, Combination>;

/// The latest combinations that have ended.
#[derive(Debug, Default)]
pub(super) struct Ended(VecDeque<(Time, CombinationLoad)>);

impl Ended {
    pub(super) fn push(&mut self, now: Time, combination: CombinationLoad) {
        if self.0.len() >= MAX_COMBINATIONS {
            self.0.pop_front();
        }
        self.0.push_back((now, combination));
    }

    pub(super) fn all(&self, now: Time) -> impl Iterator<Item = CombinationLoad> {
        let load = move |(ended, combination): &(Time, CombinationLoad)| CombinationLoad {
            age: now.since(*ended),
            ..combination.clone()
        };
        self.0.iter().map(load)
    }
}
