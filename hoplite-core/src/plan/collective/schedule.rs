use crate::vocabulary::agreement::Collective;
use std::fmt;
use std::ops::Range;

use super::program::{Program, ReceiveMode, Step};

/// Most members of a schedule, so that the coordinator's plan fits in a frame.
pub const MAX_MEMBERS: usize = 256;

/// Parts of the data begin at multiples of this: a cache line, which holds whole elements of any
/// type.
pub(super) const ALIGNMENT_BYTES: u64 = 64;

/// Exchange of data between members.
///
/// A member's rank is written in mixed radix, with a digit per stage. In a stage, members that
/// differ only in its digit form a ring: each ends up with the combination of one part. Then the
/// stages run in reverse to distribute the combined parts.
///
/// * One stage is the *ring*: 2(n-1) steps.
/// * Stages of two are *halving-doubling*: 2 log2 n steps. Members beyond the largest power of two
///   give all their data to others first, and get the result afterwards.
/// * Anything between is *hierarchical*: stage 0 within racks, stage 1 across them.
///
/// For S bytes, each of n members sends 2S(n-1)/n bytes in any number of stages, and S more if it
/// serves a member beyond the power of two.
///
/// Source: Patarasuk and Yuan, *Bandwidth optimal all-reduce*, 2009; Thakur et al., *Collective
/// communication in MPICH*, 2005; Cho et al., *BlueConnect*, 2019, section 4.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Schedule {
    members: usize,
    radices: Vec<usize>,
}

impl Schedule {
    /// Returns one ring of all members.
    pub fn ring(members: usize) -> Self {
        Self { members, radices: vec![members.max(1)] }
    }

    /// Returns halving-doubling of all members.
    pub fn halving_doubling(members: usize) -> Self {
        Self { members, radices: vec![2; members.max(1).ilog2() as usize] }
    }

    /// Makes rings of these sizes, the first among adjacent ranks. `None` unless the product of the
    /// sizes is the number of members or at least half of it.
    pub fn hierarchical(members: usize, radices: &[usize]) -> Option<Self> {
        if !(1..=MAX_MEMBERS).contains(&members)
            || radices.iter().any(|radix| *radix < 2 && members > 1)
        {
            return None;
        }
        let core =
            radices.iter().try_fold(1_usize, |product, radix| product.checked_mul(*radix))?;
        let is_whole = core <= members && members - core <= core;
        is_whole.then(|| Self { members, radices: radices.to_vec() })
    }

    /// Number of members.
    pub const fn members(&self) -> usize {
        self.members
    }

    /// Sizes of the stages' rings.
    pub fn radices(&self) -> &[usize] {
        &self.radices
    }

    /// Number of members that take part in the stages.
    pub(super) fn core(&self) -> usize {
        self.radices.iter().product()
    }

    pub(super) fn is_folded(&self) -> bool {
        self.core() < self.members
    }

    pub(super) fn transfers(&self, stage: usize) -> impl Iterator<Item = (usize, usize)> {
        let next =
            move |index: usize| self.stages(index).get(stage).map(|stage| (index, stage.next()));
        (0..self.core()).filter_map(next)
    }

    pub(super) fn folds(&self) -> impl Iterator<Item = (usize, usize)> {
        (self.core()..self.members).map(|index| (index, index - self.core()))
    }

    /// Returns the steps of member `index` in an allreduce.
    pub fn program(&self, index: usize, size_bytes: u64) -> Program {
        let (core, whole) = (self.core(), 0..size_bytes);
        let mut program = Program::default();
        if index >= core {
            let partner = index - core;
            program.push(Step::Send { range: whole.clone(), to: partner });
            program.push(Step::Receive { range: whole, from: partner, mode: ReceiveMode::Replace });
            return program;
        }
        let extra = Some(index + core).filter(|extra| *extra < self.members);
        if let Some(from) = extra {
            program.push(Step::Receive { range: whole.clone(), from, mode: ReceiveMode::Combine });
        }
        let mut held = vec![whole.clone()];
        let stages = self.stages(index);
        for stage in &stages {
            let range = held.last().cloned().unwrap_or_default();
            stage.scatter(&mut program, |digit| [part(&range, stage.size, digit)]);
            held.push(part(&range, stage.size, stage.digit));
        }
        for (stage, range) in stages.iter().zip(&held).rev() {
            stage.gather(&mut program, |digit| [part(range, stage.size, digit)]);
        }
        if let Some(to) = extra {
            program.push(Step::Send { range: whole, to });
        }
        program
    }

    fn stages(&self, index: usize) -> Vec<Stage> {
        let mut stride = 1;
        let stage = |size: &usize| {
            let digit = index / stride % size;
            let stage = Stage { first: index - digit * stride, stride, size: *size, digit };
            stride *= size;
            stage
        };
        self.radices.iter().map(stage).collect()
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.radices.as_slice() {
            [_] if !self.is_folded() => write!(f, "ring of {}", self.members),
            radices if radices.iter().all(|radix| *radix == 2) => {
                write!(f, "halving-doubling of {}", self.members)
            }
            radices => {
                let sizes: Vec<String> = radices.iter().map(usize::to_string).collect();
                write!(f, "hierarchical of {}", sizes.join("x"))
            }
        }
    }
}

/// Returns the steps of member `index` in a ring of parts; member k owns the ranges `parts[k]`.
/// Afterwards the member has its own parts combined (reduce_scatter), or the other members' parts
/// (allgather).
pub fn program_of_parts(kind: Collective, index: usize, parts: &[Vec<Range<u64>>]) -> Program {
    let ring = Stage { first: 0, stride: 1, size: parts.len(), digit: index };
    let of_member = |member: usize| parts[member].iter().cloned();
    let mut program = Program::default();
    if kind != Collective::Allgather {
        ring.scatter(&mut program, of_member);
    }
    if kind != Collective::ReduceScatter {
        ring.gather(&mut program, of_member);
    }
    program
}

/// Returns the rank that receives part `place` of the source of `rank` in an all-to-all. Parts are
/// stored in sending order, so that the first can leave while later ones are written. The part for
/// `rank` itself comes last.
pub const fn rank_of_part(rank: usize, place: usize, ranks: usize) -> usize {
    (rank + 2 * ranks - 1 - place) % ranks
}

/// Returns the steps of store `index` in an all-to-all; `ranks[k]` are the ranks of store k. Its
/// memory holds its ranks' sources one after the other, with parts as in [`rank_of_part`], and in
/// the end a result per rank, with parts ordered by sending rank.
///
/// No step waits for another. Stores begin with different senders.
pub fn program_of_pairs(index: usize, ranks: &[Vec<usize>], part_bytes: u64) -> Program {
    let (members, participants) = (ranks.len(), ranks.iter().map(Vec::len).sum::<usize>());
    let own = &ranks[index];
    let part = |mine: usize, place: usize| {
        let start = (mine * participants + place) as u64 * part_bytes;
        start..start + part_bytes
    };
    let mut program = Program::default();
    for to in (1..=members).map(|distance| (index + members - distance) % members) {
        for (mine, from) in own.iter().enumerate() {
            for rank in ranks[to].iter().filter(|rank| *rank != from) {
                // [`rank_of_part`] is its own inverse.
                let range = part(mine, rank_of_part(*from, *rank, participants));
                program.push(Step::Send { range, to });
            }
        }
    }
    for from in (1..=members).map(|distance| (index + distance) % members) {
        for rank in &ranks[from] {
            for (mine, _) in own.iter().enumerate().filter(|(_, to)| *to != rank) {
                program.push(Step::Receive {
                    range: part(mine, *rank),
                    from,
                    mode: ReceiveMode::Replace,
                });
            }
        }
    }
    program
}

#[derive(Debug, Clone, Copy)]
struct Stage {
    first: usize,
    stride: usize,
    size: usize,
    digit: usize,
}

impl Stage {
    const fn ahead(&self, places: usize) -> usize {
        self.first + (self.digit + places) % self.size * self.stride
    }

    fn next(&self) -> usize {
        self.ahead(1)
    }

    fn previous(&self) -> usize {
        self.ahead(self.size - 1)
    }

    const fn behind(&self, places: usize) -> usize {
        (self.digit + 2 * self.size - places) % self.size
    }

    /// Adds steps that leave this member with its part, combined over the ring.
    fn scatter<I>(&self, program: &mut Program, part: impl Fn(usize) -> I)
    where
        I: IntoIterator<Item = Range<u64>>,
    {
        for step in 1..self.size {
            self.pass(
                program,
                part(self.behind(step)),
                part(self.behind(step + 1)),
                ReceiveMode::Combine,
            );
        }
    }

    /// Adds steps that leave this member with all parts of the ring's members.
    fn gather<I>(&self, program: &mut Program, part: impl Fn(usize) -> I)
    where
        I: IntoIterator<Item = Range<u64>>,
    {
        for step in 0..self.size - 1 {
            self.pass(
                program,
                part(self.behind(step)),
                part(self.behind(step + 1)),
                ReceiveMode::Replace,
            );
        }
    }

    fn pass<I>(&self, program: &mut Program, sent: I, received: I, mode: ReceiveMode)
    where
        I: IntoIterator<Item = Range<u64>>,
    {
        for range in sent {
            program.push(Step::Send { range, to: self.next() });
        }
        for range in received {
            program.push(Step::Receive { range, from: self.previous(), mode });
        }
    }
}

fn part(whole: &Range<u64>, count: usize, index: usize) -> Range<u64> {
    let (count, index) = (count as u64, index as u64);
    let units = (whole.end - whole.start).div_ceil(ALIGNMENT_BYTES);
    let before = |index: u64| index * (units / count) + index.min(units % count);
    let start = |index: u64| whole.end.min(whole.start + before(index) * ALIGNMENT_BYTES);
    start(index)..start(index + 1)
}
