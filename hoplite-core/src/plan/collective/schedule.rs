//! The family of schedules: stages of rings.

use crate::vocabulary::agreement::Collective;
use std::fmt;
use std::ops::Range;

use super::program::{Program, Step, Taking};

/// Most members of an attempt. A plan with more members does not fit in a frame.
pub const MAX_MEMBERS: usize = 256;

/// The alignment of ranges: a cache line, which holds a whole number of elements of any type.
pub(super) const ALIGNMENT_BYTES: u64 = 64;

/// The exchange of data between the members of an attempt.
///
/// The rank of a member is written in mixed radix, one digit for each stage. In each stage, the
/// members that differ only in that digit form a ring: they divide their data, and each ends up
/// with the combination of one part. Then the stages are repeated in reverse order, and parts
/// become wholes.
///
/// * One stage is the *ring*: 2(n-1) steps.
/// * Stages of two are *halving-doubling*: 2 log2 n steps. If n is not a power of two, the members
///   beyond the largest power give all their data to others before the stages, and get the result
///   from them afterwards.
/// * Anything between is *hierarchical*: stage 0 within racks, stage 1 across them.
///
/// Each member sends 2S(n-1)/n bytes, in any number of stages. A member that serves another one
/// beyond the power of two sends S more.
///
/// Source: Patarasuk and Yuan, *Bandwidth optimal all-reduce algorithms for clusters of
/// workstations*, 2009; Thakur et al., *Optimization of collective communication operations in
/// MPICH*, 2005; Cho et al., *BlueConnect*, 2019, section 4.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Schedule {
    members: usize,
    radices: Vec<usize>,
}

impl Schedule {
    /// Returns the ring of all members.
    pub fn ring(members: usize) -> Self {
        Self { members, radices: vec![members.max(1)] }
    }

    /// Returns halving-doubling among all members.
    pub fn halving_doubling(members: usize) -> Self {
        Self { members, radices: vec![2; members.max(1).ilog2() as usize] }
    }

    /// Returns rings in stages; the first is among members with adjacent ranks. `None` if the
    /// product of the sizes is neither the number of members nor a smaller number of at least half
    /// of it, or if there is no such attempt.
    pub fn hierarchical(members: usize, radices: &[usize]) -> Option<Self> {
        if !(1..=MAX_MEMBERS).contains(&members) || radices.iter().any(|radix| *radix < 2 && members > 1) {
            return None;
        }
        let core = radices.iter().try_fold(1_usize, |product, radix| product.checked_mul(*radix))?;
        let is_whole = core <= members && members - core <= core;
        is_whole.then(|| Self { members, radices: radices.to_vec() })
    }

    /// Returns the number of members.
    pub const fn members(&self) -> usize {
        self.members
    }

    /// Returns the sizes of the rings of each stage.
    pub fn radices(&self) -> &[usize] {
        &self.radices
    }

    /// Returns the number of members that take part in the stages.
    pub(super) fn core(&self) -> usize {
        self.radices.iter().product()
    }

    /// Returns `true` if some members take no part in the stages.
    pub(super) fn is_folded(&self) -> bool {
        self.core() < self.members
    }

    /// Returns the pairs of a stage in which the first gives to the second.
    pub(super) fn gives(&self, stage: usize) -> impl Iterator<Item = (usize, usize)> {
        let next = move |index: usize| self.stages(index).get(stage).map(|stage| (index, stage.next()));
        (0..self.core()).filter_map(next)
    }

    /// Returns the pairs in which the first gives its data to the second before the stages, and
    /// gets the result afterwards.
    pub(super) fn folds(&self) -> impl Iterator<Item = (usize, usize)> {
        (self.core()..self.members).map(|index| (index, index - self.core()))
    }

    /// Returns the program of member `index` in an allreduce of `size_bytes`.
    pub fn program(&self, index: usize, size_bytes: u64) -> Program {
        let (core, whole) = (self.core(), 0..size_bytes);
        let mut program = Program::default();
        if index >= core {
            let partner = index - core;
            program.push(Step::Give { range: whole.clone(), to: partner });
            program.push(Step::Take { range: whole, from: partner, taking: Taking::Replace });
            return program;
        }
        let extra = Some(index + core).filter(|extra| *extra < self.members);
        if let Some(from) = extra {
            program.push(Step::Take { range: whole.clone(), from, taking: Taking::Combine });
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
            program.push(Step::Give { range: whole, to });
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

/// Returns the program of member `index` in a ring after which each member has its parts of the
/// combination (reduce_scatter), or all parts (allgather). Member k has `parts[k]`. In an
/// allgather, the member's own parts are not in its target.
///
/// Each member sends and receives all parts but one member's.
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

/// Returns the rank whose part stands at this place in the source of `rank` in an all-to-all. The
/// part that is given first comes first, so that it can be given while the others are still
/// written. The rank's own part comes last.
pub const fn rank_of_part(rank: usize, place: usize, ranks: usize) -> usize {
    (rank + 2 * ranks - 1 - place) % ranks
}

/// Returns the program of member `index` in an all-to-all with these ranks at each member. The
/// sources of a member stand one after the other, with parts in the order of [`rank_of_part`]. Its
/// result has one place for each of its ranks, with parts in the order of the giving ranks.
///
/// Each pair of members exchanges its parts directly, and no step waits for another one. Each
/// member begins with another giver, so no link is the first of all.
pub fn program_of_pairs(index: usize, ranks: &[Vec<usize>], part_bytes: u64) -> Program {
    let (members, participants) = (ranks.len(), ranks.iter().map(Vec::len).sum::<usize>());
    let own = &ranks[index];
    let part = |mine: usize, place: usize| {
        let start = (mine * participants + place) as u64 * part_bytes;
        start..start + part_bytes
    };
    let mut program = Program::default();
    // Takes need not precede gives, which touch other memory. Ranks of one member give to each
    // other.
    for to in (1..=members).map(|distance| (index + members - distance) % members) {
        for (mine, from) in own.iter().enumerate() {
            for rank in ranks[to].iter().filter(|rank| *rank != from) {
                // The function is its own inverse.
                let range = part(mine, rank_of_part(*from, *rank, participants));
                program.push(Step::Give { range, to });
            }
        }
    }
    for from in (1..=members).map(|distance| (index + distance) % members) {
        for rank in &ranks[from] {
            for (mine, _) in own.iter().enumerate().filter(|(_, to)| *to != rank) {
                program.push(Step::Take { range: part(mine, *rank), from, taking: Taking::Replace });
            }
        }
    }
    program
}

/// A member's place in the ring of one stage.
#[derive(Debug, Clone, Copy)]
struct Stage {
    first: usize,
    stride: usize,
    size: usize,
    digit: usize,
}

impl Stage {
    /// Returns the member so many places ahead.
    const fn ahead(&self, places: usize) -> usize {
        self.first + (self.digit + places) % self.size * self.stride
    }

    fn next(&self) -> usize {
        self.ahead(1)
    }

    fn previous(&self) -> usize {
        self.ahead(self.size - 1)
    }

    /// Returns the digit of the member so many places behind.
    const fn behind(&self, places: usize) -> usize {
        (self.digit + 2 * self.size - places) % self.size
    }

    /// Reduce-scatter: the member ends up with the combination of its part. `part` returns the part
    /// of a digit.
    fn scatter<I>(&self, program: &mut Program, part: impl Fn(usize) -> I)
    where
        I: IntoIterator<Item = Range<u64>>,
    {
        for step in 1..self.size {
            self.pass(program, part(self.behind(step)), part(self.behind(step + 1)), Taking::Combine);
        }
    }

    /// Allgather: the member ends up with all parts.
    fn gather<I>(&self, program: &mut Program, part: impl Fn(usize) -> I)
    where
        I: IntoIterator<Item = Range<u64>>,
    {
        for step in 0..self.size - 1 {
            self.pass(program, part(self.behind(step)), part(self.behind(step + 1)), Taking::Replace);
        }
    }

    fn pass<I>(&self, program: &mut Program, given: I, taken: I, taking: Taking)
    where
        I: IntoIterator<Item = Range<u64>>,
    {
        for range in given {
            program.push(Step::Give { range, to: self.next() });
        }
        for range in taken {
            program.push(Step::Take { range, from: self.previous(), taking });
        }
    }
}

/// Returns part `index` of `count` of a range. The first parts are longer if the range does not
/// divide evenly.
fn part(whole: &Range<u64>, count: usize, index: usize) -> Range<u64> {
    let (count, index) = (count as u64, index as u64);
    let units = (whole.end - whole.start).div_ceil(ALIGNMENT_BYTES);
    let before = |index: u64| index * (units / count) + index.min(units % count);
    let start = |index: u64| whole.end.min(whole.start + before(index) * ALIGNMENT_BYTES);
    start(index)..start(index + 1)
}
