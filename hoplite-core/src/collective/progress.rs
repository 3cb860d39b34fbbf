//! The progress of a member with its program: the steps that may go on, the bytes that were given and taken, and the final ones.
//!
//! Whoever runs the program moves the bytes. It asks here before, and tells here after. Nothing is allocated for a block.
//!
//! Nobody checks that a step overwrites no byte which an earlier one has still to give: see the invariants of
//! [`plan::collective`](crate::plan::collective), and the tests here.

use std::ops::Range;

use super::Plan;
use crate::plan::collective::{Program, Step, Taking};

/// The member's own work that others wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// The combination of its own sources in the target.
    Fold,
    /// A step of its program.
    Step(usize),
}

/// What is waited for: that some work has done so many bytes, counted from its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lack {
    /// The work.
    pub work: Work,
    /// How many bytes.
    pub bytes: u64,
}

/// A part of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The step, as an index.
    pub step: usize,
    /// What to do with the bytes, if the step takes them.
    pub taking: Option<Taking>,
    /// Which bytes, of what is made.
    pub range: Range<u64>,
    /// Where the first of them is in the stream.
    pub position_bytes: u64,
    /// The number of bytes that the step has done when this block is done.
    done_bytes: u64,
}

impl Block {
    /// Returns the number of bytes that it has.
    pub const fn length_bytes(&self) -> u64 {
        length(&self.range)
    }
}

/// What a block reads of what its member has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reading {
    /// Nothing: it replaces what is there.
    Nothing,
    /// The same bytes of the target.
    Target,
    /// Bytes of one of the member's own sources.
    Source {
        /// Its index.
        index: usize,
        /// Which of its bytes.
        range: Range<u64>,
        /// Where the part ends to which they belong. The end of a part waits for the seal: who has all of a part takes it for one of
        /// a complete object.
        part_end: u64,
    },
}

/// The reason for which a block is not what the stream goes on with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadBlock {
    /// Bytes are missing before it, or it was there already.
    NotNext,
    /// It is empty, longer than a frame, or goes past its step.
    Length,
    /// It ends in the middle of an element.
    Element,
}

impl BadBlock {
    /// The same, for people.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::NotNext => "a block that is not the next one",
            Self::Length => "a block that is empty, or goes past its step",
            Self::Element => "a block that ends in the middle of an element",
        }
    }
}

/// The steps from one member to another, and how far either of them is.
#[derive(Debug, Clone)]
pub struct Stream {
    steps: Vec<(usize, Step)>,
    /// The position among `steps` of the one that goes on, and how many of its bytes are done.
    current: usize,
    done_bytes: u64,
    position_bytes: u64,
    frame_bytes: u64,
    element_bytes: u64,
}

impl Stream {
    /// How many of its bytes are done.
    pub const fn position_bytes(&self) -> u64 {
        self.position_bytes
    }

    /// How many are not.
    pub fn left_bytes(&self) -> u64 {
        let steps = self.steps.get(self.current..).unwrap_or_default();
        steps.iter().map(|(_, step)| length(step.range())).sum::<u64>() - self.done_bytes
    }

    /// Returns `true` if all are.
    pub const fn is_over(&self) -> bool {
        self.current == self.steps.len()
    }

    /// The next block: as long as a frame may be, but not longer than `max_bytes`. `None` if the stream is over.
    pub fn next(&self, max_bytes: u64) -> Option<Block> {
        let (step, does) = self.steps.get(self.current)?;
        let start = does.range().start + self.done_bytes;
        let length_bytes = max_bytes.min(self.frame_bytes).min(does.range().end - start);
        let taking = match does {
            Step::Give { .. } => None,
            Step::Take { taking, .. } => Some(*taking),
        };
        Some(Block {
            step: *step,
            taking,
            range: start..start + length_bytes,
            position_bytes: self.position_bytes,
            done_bytes: self.done_bytes + length_bytes,
        })
    }

    /// The block that a peer sends.
    ///
    /// # Errors
    /// Why it cannot be the next one.
    pub fn check(&self, position_bytes: u64, length_bytes: u64) -> Result<Block, BadBlock> {
        if position_bytes != self.position_bytes {
            return Err(BadBlock::NotNext);
        }
        let block = self.next(length_bytes).ok_or(BadBlock::NotNext)?;
        if length_bytes == 0 || block.length_bytes() != length_bytes {
            return Err(BadBlock::Length);
        }
        if !length_bytes.is_multiple_of(self.element_bytes) {
            return Err(BadBlock::Element);
        }
        Ok(block)
    }

    /// Goes on by so many bytes, which may be of several steps. Beyond its end it does not go.
    fn pass(&mut self, mut bytes: u64) {
        while let Some((_, step)) = self.steps.get(self.current) {
            let passed_bytes = bytes.min(length(step.range()) - self.done_bytes);
            bytes -= passed_bytes;
            self.done_bytes += passed_bytes;
            self.position_bytes += passed_bytes;
            if self.done_bytes < length(step.range()) {
                return;
            }
            (self.current, self.done_bytes) = (self.current + 1, 0);
        }
    }
}

/// One member's progress.
#[derive(Debug)]
pub struct Progress {
    program: Program,
    /// For each step: the earlier ones that write bytes of it, and how many of its bytes are done.
    steps: Vec<StepProgress>,
    /// After which steps bytes are final, in this order.
    finals: Vec<usize>,
    fold: Option<Fold>,
    frame_bytes: u64,
    element_bytes: u64,
}

#[derive(Debug)]
struct StepProgress {
    writers: Vec<usize>,
    done_bytes: u64,
}

/// The combination of several sources in the target, from its beginning on.
#[derive(Debug)]
struct Fold {
    size_bytes: u64,
    done_bytes: u64,
}

impl Progress {
    /// A member that has done nothing of `plan` yet.
    pub fn new(plan: &Plan) -> Self {
        let program = plan.program();
        let progress = |step| StepProgress { writers: program.writers_before(step), done_bytes: 0 };
        Self {
            steps: (0..program.steps().len()).map(progress).collect(),
            finals: plan.finals(&program),
            fold: plan.is_folded().then_some(Fold { size_bytes: plan.size_bytes, done_bytes: 0 }),
            frame_bytes: plan.frame_bytes,
            element_bytes: plan.metadata.dtype.size_bytes(),
            program,
        }
    }

    /// What it does.
    pub const fn program(&self) -> &Program {
        &self.program
    }

    /// What is taken from a member, from where it is.
    pub fn stream_from(&self, member: usize) -> Stream {
        let mut stream = self.stream(self.program.takes(member));
        let taken_bytes = stream.steps.iter().map(|(step, _)| self.steps[*step].done_bytes).sum();
        stream.pass(taken_bytes);
        stream
    }

    /// What is given to a member that has so many bytes already. They count as given.
    pub fn stream_to(&mut self, member: usize, offset_bytes: u64) -> Stream {
        let mut stream = self.stream(self.program.gives(member));
        stream.pass(offset_bytes);
        for (step, does) in &stream.steps[..stream.current] {
            self.reach(*step, length(does.range()));
        }
        if let Some((step, _)) = stream.steps.get(stream.current) {
            self.reach(*step, stream.done_bytes);
        }
        stream
    }

    fn stream(&self, steps: Vec<usize>) -> Stream {
        let steps = steps.into_iter().map(|step| (step, self.program.steps()[step].clone())).collect();
        let Self { frame_bytes, element_bytes, .. } = *self;
        Stream { steps, current: 0, done_bytes: 0, position_bytes: 0, frame_bytes, element_bytes }
    }

    /// What a block has to wait for first; if there is nothing, for what it reads.
    pub fn lack(&self, block: &Block) -> Option<Lack> {
        let end = block.range.end;
        if let Some(fold) = self.fold.as_ref().filter(|fold| fold.done_bytes < end) {
            return Some(Lack { work: Work::Fold, bytes: end.min(fold.size_bytes) });
        }
        let lack = |writer: &usize| {
            let range = self.program.steps()[*writer].range();
            let bytes = end.min(range.end).saturating_sub(range.start);
            let lack = Lack { work: Work::Step(*writer), bytes };
            (self.steps[*writer].done_bytes < bytes).then_some(lack)
        };
        self.steps[block.step].writers.iter().find_map(lack)
    }

    /// What a block reads: of `plan`, whose progress this is.
    pub fn reading(&self, plan: &Plan, block: &Block) -> Reading {
        if block.taking == Some(Taking::Replace) {
            return Reading::Nothing;
        }
        if self.fold.is_some() || !self.steps[block.step].writers.is_empty() {
            return Reading::Target;
        }
        let Range { start, end } = block.range;
        let (index, base) = plan.source_at(self.program.steps()[block.step].range().start);
        let part_end = plan.part_end(end - 1) - base;
        Reading::Source { index, range: start - base..end - base, part_end }
    }

    /// A block of a stream is done: all its bytes were sent, or are where they belong.
    pub fn done(&mut self, stream: &mut Stream, block: &Block) {
        self.reach(block.step, block.done_bytes);
        stream.pass(block.length_bytes());
    }

    /// A stream that was resumed gives again what was given already: what is done stays done.
    fn reach(&mut self, step: usize, done_bytes: u64) {
        let step = &mut self.steps[step];
        step.done_bytes = step.done_bytes.max(done_bytes);
    }

    /// Which bytes of the own sources to combine into the target next: at most so many, of one part. `None` if there are none, or no
    /// more.
    pub fn next_fold(&self, plan: &Plan, max_bytes: u64) -> Option<Range<u64>> {
        let fold = self.fold.as_ref().filter(|fold| fold.done_bytes < fold.size_bytes)?;
        let start = fold.done_bytes;
        Some(start..plan.part_end(start).min(start.saturating_add(max_bytes)))
    }

    /// The own sources are combined in the target up to here.
    pub fn folded(&mut self, end: u64) {
        if let Some(fold) = &mut self.fold {
            fold.done_bytes = fold.done_bytes.max(end);
        }
    }

    /// How many bytes of the target are final, counted in the order in which they become so.
    pub fn final_bytes(&self) -> u64 {
        let mut final_bytes = 0;
        for step in &self.finals {
            final_bytes += self.steps[*step].done_bytes;
            if !self.is_done(*step) {
                break;
            }
        }
        final_bytes
    }

    /// Returns `true` if all own sources are combined, if they are.
    pub fn is_folded(&self) -> bool {
        self.fold.as_ref().is_none_or(|fold| fold.done_bytes == fold.size_bytes)
    }

    /// Returns `true` if the member has all bytes: it has taken and combined all.
    pub fn is_filled(&self) -> bool {
        let mut steps = self.program.steps().iter().enumerate();
        self.is_folded() && steps.all(|(index, step)| !step.is_take() || self.is_done(index))
    }

    /// What others still need of the member. Given is what was sent: each taker checks it, and says where it is if it comes again.
    pub fn ungiven(&self) -> Option<Lack> {
        let mut steps = self.program.steps().iter().enumerate();
        let (index, step) = steps.find(|(index, step)| !step.is_take() && !self.is_done(*index))?;
        Some(Lack { work: Work::Step(index), bytes: length(step.range()) })
    }

    fn is_done(&self, step: usize) -> bool {
        self.steps[step].done_bytes == length(self.program.steps()[step].range())
    }
}

const fn length(range: &Range<u64>) -> u64 {
    range.end - range.start
}

#[cfg(test)]
mod tests;
