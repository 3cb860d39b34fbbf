use std::collections::{BTreeMap, VecDeque};

use crate::collective::MembershipId;
use crate::id::ObjectId;
use crate::load::{CombinationLoad, MAX_COMBINATIONS, Sender};
use crate::message::{CombineId, CopyId, HopOwner};
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

#[derive(Debug)]
pub(super) struct Story {
    pub(super) op: String,
    pub(super) plan: String,
    pub(super) senders: Vec<Sender>,
    pub(super) all_senders: usize,
    pub(super) began: Time,
}

pub(crate) type Combinations = BTreeMap<CombineId, Combination>;

#[derive(Debug, Default)]
pub(super) struct Ended {
    count: u64,
    latest: VecDeque<(Time, CombinationLoad)>,
}

impl Ended {
    pub(super) fn push(&mut self, now: Time, combination: CombinationLoad) {
        self.count += 1;
        if self.latest.len() >= MAX_COMBINATIONS {
            self.latest.pop_front();
        }
        self.latest.push_back((now, CombinationLoad { number: self.count, ..combination }));
    }

    pub(super) fn all(&self, now: Time) -> impl Iterator<Item = CombinationLoad> {
        let load = move |(ended, combination): &(Time, CombinationLoad)| CombinationLoad {
            age: now.since(*ended),
            ..combination.clone()
        };
        self.latest.iter().map(load)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::id::PutId;

    #[test]
    fn combinations_are_numbered_by_their_ends() {
        let mut ended = Ended::default();
        for size_bytes in 0..MAX_COMBINATIONS as u64 + 3 {
            let combination = CombinationLoad {
                number: 1000 - size_bytes,
                output: ObjectId::of_hop(PutId(1)),
                put: PutId(1),
                op: "sum".to_owned(),
                plan: String::new(),
                senders: Vec::new(),
                all_senders: 0,
                size_bytes,
                age: Duration::ZERO,
                took: Duration::ZERO,
                is_complete: true,
            };
            ended.push(Time::from_micros(size_bytes), combination);
        }
        let latest: Vec<CombinationLoad> = ended.all(Time::from_micros(100)).collect();
        assert_eq!(latest.len(), MAX_COMBINATIONS);
        for one in latest {
            assert_eq!(one.number, one.size_bytes + 1);
            assert_eq!(one.age, Duration::from_micros(100 - one.size_bytes));
        }
    }
}
