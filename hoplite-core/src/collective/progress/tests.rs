use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::collective::{Agreement, AttemptId, Member};
use crate::id::{NodeId, ObjectId, PutId};
use crate::plan::collective::{Collective, Schedule, rank_of_part};
use crate::reduce::ReduceOp;
use crate::vocabulary::reduce::ReduceOrder;
use crate::{Dtype, Metadata};

const ELEMENT_BYTES: u64 = 8;

fn plans(kind: Collective, schedule: &Schedule, ranks: &[Vec<usize>], elements: u64) -> Vec<Plan> {
    let participants: usize = ranks.iter().map(Vec::len).sum();
    let elements =
        if kind.properties().makes_target { elements } else { elements * participants as u64 };
    let member = |index| Member {
        node: NodeId::new(&format!("n{index}")).unwrap(),
        address: ([127, 0, 0, 1], 1).into(),
    };
    let source = |rank: &usize| (ObjectId::new([b's', *rank as u8]).unwrap(), PutId(*rank as u64));
    let plan = |index: usize| Plan {
        target: ObjectId::new("target").unwrap(),
        attempt: AttemptId { run: 1, number: 1 },
        put: PutId(1000),
        agreement: Agreement {
            kind,
            op: ReduceOp::Sum,
            order: ReduceOrder::Any,
            participants: participants as u32,
            sources: 0,
        },
        size_bytes: elements * ELEMENT_BYTES,
        metadata: Metadata { dtype: Dtype::F64, ..Metadata::default() },
        schedule: schedule.clone(),
        frame_bytes: 5 * ELEMENT_BYTES,
        members: (0..ranks.len()).map(member).collect(),
        index,
        ranks: if kind.properties().makes_target { Vec::new() } else { ranks.to_vec() },
        sources: ranks[index].iter().map(source).collect(),
        timeout: Duration::from_secs(1),
        explanation: String::new(),
    };
    (0..ranks.len()).map(plan).collect()
}

/// Each element is `None` until written, then counts each rank's contributions in one byte.
struct Machine {
    plan: Plan,
    progress: Progress,
    ranks: Vec<usize>,
    memory: Vec<Option<u64>>,
}

impl Machine {
    fn own(&self, index: usize) -> u64 {
        1 << (8 * self.ranks[index])
    }

    fn own_part(&self, index: usize, at: usize) -> u64 {
        let participants = self.plan.agreement.participants as usize;
        let part = (self.plan.size_bytes / ELEMENT_BYTES) as usize / participants;
        pair(self.ranks[index], rank_of_part(self.ranks[index], at / part, participants))
    }

    fn read(&self, block: &Block) -> Vec<u64> {
        let of_block = elements(&block.range);
        match self.progress.reading(&self.plan, block) {
            Reading::Nothing => panic!("{block:?} reads"),
            Reading::Target => {
                of_block.map(|at| self.memory[at].expect("it was written before")).collect()
            }
            Reading::Source { index, range, part_end } => {
                assert!(range.end <= part_end && part_end <= self.plan.source_bytes());
                if self.plan.agreement.kind == Collective::AllToAll {
                    return elements(&range).map(|at| self.own_part(index, at)).collect();
                }
                of_block.map(|_| self.own(index)).collect()
            }
        }
    }

    fn fold(&mut self) -> bool {
        let Some(range) = self.progress.next_fold(&self.plan, 3 * ELEMENT_BYTES) else {
            return false;
        };
        let sum = (0..self.ranks.len()).map(|index| self.own(index)).sum();
        for at in elements(&range) {
            self.memory[at] = Some(sum);
        }
        self.progress.folded(range.end);
        true
    }
}

const fn pair(from: usize, to: usize) -> u64 {
    (from * 100 + to + 1) as u64
}

fn elements(range: &Range<u64>) -> Range<usize> {
    (range.start / ELEMENT_BYTES) as usize..(range.end / ELEMENT_BYTES) as usize
}

struct Pipe {
    outgoing: Stream,
    incoming: Stream,
    sent: VecDeque<(u64, Vec<u64>)>,
}

struct World {
    members: Vec<Machine>,
    pipes: BTreeMap<(usize, usize), Pipe>,
}

impl World {
    fn new(plans: Vec<Plan>, ranks: &[Vec<usize>]) -> Self {
        let member = |(plan, ranks): (Plan, &Vec<usize>)| Machine {
            progress: Progress::new(&plan),
            memory: vec![None; (plan.copy_bytes() / ELEMENT_BYTES) as usize],
            ranks: ranks.clone(),
            plan,
        };
        let mut members: Vec<Machine> = plans.into_iter().zip(ranks).map(member).collect();
        let mut pipes = BTreeMap::new();
        for to in 0..members.len() {
            for from in members[to].progress.program().sources() {
                let outgoing = members[from].progress.stream_to(to, 0);
                let incoming = members[to].progress.stream_from(from);
                pipes.insert((from, to), Pipe { outgoing, incoming, sent: VecDeque::new() });
            }
        }
        Self { members, pipes }
    }

    fn send(&mut self, pair: (usize, usize), max_bytes: u64) -> bool {
        let (member, pipe) = (&mut self.members[pair.0], self.pipes.get_mut(&pair).unwrap());
        let Some(block) = pipe.outgoing.next(max_bytes) else { return false };
        if member.progress.blocked_on(&block).is_some() || pipe.sent.len() >= 3 {
            return false;
        }
        pipe.sent.push_back((block.position_bytes, member.read(&block)));
        member.progress.done(&mut pipe.outgoing, &block);
        true
    }

    fn receive(&mut self, pair: (usize, usize)) -> bool {
        let (member, pipe) = (&mut self.members[pair.1], self.pipes.get_mut(&pair).unwrap());
        let Some((position_bytes, values)) = pipe.sent.front() else { return false };
        let block =
            pipe.incoming.check(*position_bytes, values.len() as u64 * ELEMENT_BYTES).unwrap();
        if member.progress.blocked_on(&block).is_some() {
            return false;
        }
        let before = match block.mode.expect("it receives") {
            ReceiveMode::Replace => vec![0; values.len()],
            ReceiveMode::Combine => member.read(&block),
        };
        for (at, (value, before)) in elements(&block.range).zip(values.iter().zip(before)) {
            member.memory[at] = Some(value + before);
        }
        pipe.sent.pop_front();
        let final_bytes = member.progress.final_bytes();
        member.progress.done(&mut pipe.incoming, &block);
        assert!(member.progress.final_bytes() >= final_bytes);
        true
    }

    /// Bytes in flight are sent again, from the sender's present memory.
    fn resume(&mut self, pair: (usize, usize)) {
        let incoming = self.members[pair.1].progress.stream_from(pair.0);
        let pipe = self.pipes.get_mut(&pair).unwrap();
        assert_eq!(incoming.position_bytes(), pipe.incoming.position_bytes());
        pipe.outgoing = self.members[pair.0].progress.stream_to(pair.1, incoming.position_bytes());
        pipe.incoming = incoming;
        pipe.sent.clear();
    }

    fn go_on(&mut self) -> bool {
        let pairs: Vec<_> = self.pipes.keys().copied().collect();
        let folded = self.members.iter_mut().filter(|member| !member.progress.is_folded());
        let mut is_moved = folded.map(Machine::fold).fold(false, |any, one| any | one);
        for pair in pairs {
            is_moved |= self.send(pair, u64::MAX);
            is_moved |= self.receive(pair);
        }
        is_moved
    }

    /// Checks that each rank has contributed once to each promised byte.
    fn check_end(&self) {
        for member in &self.members {
            let Machine { plan, progress, memory, .. } = member;
            assert!(progress.is_filled() && progress.first_unsent().is_none(), "{progress:?}");
            let ranks = plan.agreement.participants as usize;
            let all = (0..ranks).map(|rank| 1_u64 << (8 * rank)).sum();
            let size = (plan.size_bytes / ELEMENT_BYTES) as usize;
            let part = size / ranks;
            if plan.agreement.kind == Collective::AllToAll {
                for (own, to) in member.ranks.iter().enumerate() {
                    for from in (0..ranks).filter(|from| from != to) {
                        let start = own * size + from * part;
                        assert_eq!(memory[start..start + part], vec![Some(pair(from, *to)); part]);
                    }
                }
                continue;
            }
            for rank in 0..if plan.properties().makes_target { 0 } else { ranks } {
                let is_own = member.ranks.contains(&rank);
                let expected = match plan.agreement.kind {
                    Collective::ReduceScatter if is_own => all,
                    Collective::Allgather if !is_own => 1 << (8 * rank),
                    _ => continue,
                };
                assert_eq!(memory[rank * part..(rank + 1) * part], vec![Some(expected); part]);
            }
            if plan.properties().makes_target {
                assert_eq!(*memory, vec![Some(all); size]);
                assert_eq!(progress.final_bytes(), plan.size_bytes);
            }
        }
    }
}

fn schedule(members: usize, which: usize) -> Schedule {
    match which {
        0 => Schedule::ring(members),
        1 => Schedule::halving_doubling(members),
        _ => Schedule::hierarchical(members, &[2, members / 2])
            .unwrap_or_else(|| Schedule::ring(members)),
    }
}

proptest! {
    /// No circular wait, each source counts once, and no byte is overwritten before it was sent
    /// again.
    #[test]
    fn each_member_receives_the_bytes_of_its_plan(
        kind in prop_oneof![
            Just(Collective::Allreduce),
            Just(Collective::ReduceScatter),
            Just(Collective::Allgather),
            Just(Collective::AllToAll),
        ],
        members in 2_usize..7,
        which in 0_usize..3,
        doubled in prop::collection::vec(any::<bool>(), 2),
        elements in 1_u64..60,
        choices in prop::collection::vec((0_usize..12, any::<prop::sample::Index>(), 1_u64..6), 0..400),
    ) {
        let mut ranks: Vec<Vec<usize>> = (0..members).map(|rank| vec![rank]).collect();
        for (member, _) in doubled.iter().enumerate().filter(|(_, is_doubled)| **is_doubled) {
            let rank = ranks.iter().map(Vec::len).sum();
            ranks[member].push(rank);
        }
        let mut world = World::new(plans(kind, &schedule(members, which), &ranks, elements), &ranks);
        let pairs: Vec<_> = world.pipes.keys().copied().collect();
        for (action, which, length) in choices {
            let pair = *which.get(&pairs);
            match action {
                0..5 => drop(world.send(pair, length * ELEMENT_BYTES)),
                5..10 => drop(world.receive(pair)),
                10 => drop(world.members[which.index(members)].fold()),
                _ => world.resume(pair),
            }
        }
        while world.go_on() {}
        world.check_end();
    }
}

#[test]
fn only_the_next_block_of_a_step_is_accepted() {
    let ranks = [vec![0], vec![1]];
    let plan = plans(Collective::Allreduce, &Schedule::ring(2), &ranks, 16).swap_remove(0);
    let stream = Progress::new(&plan).stream_from(1);
    assert_eq!(stream.check(8, 8), Err(BadBlock::NotNext));
    assert_eq!(stream.check(0, 0), Err(BadBlock::Length));
    assert_eq!(stream.check(0, 48), Err(BadBlock::Length), "longer than a frame");
    assert_eq!(stream.check(0, 12), Err(BadBlock::Element));
    assert_eq!(stream.check(0, 16).unwrap().length_bytes(), 16);
}

#[test]
fn a_position_past_the_end_receives_no_block() {
    let ranks = [vec![0], vec![1]];
    let plan = plans(Collective::Allreduce, &Schedule::ring(2), &ranks, 16).swap_remove(0);
    let mut progress = Progress::new(&plan);
    let stream = progress.stream_to(1, u64::MAX);
    assert!(stream.is_over() && progress.first_unsent().is_none());
    assert_eq!(stream.position_bytes(), 128);
    assert!(!progress.is_filled());
}
