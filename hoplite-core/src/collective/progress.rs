//! The progress of a member with its program: the bytes of each step that are done.
//!
//! The executor of the program moves the bytes. It checks each block with [`Progress`] before it,
//! and reports the block afterwards. A block needs no allocation.
//!
//! No check prevents a step from overwriting a byte that an earlier step still has to give: see the
//! invariants of [`plan::collective`](crate::plan::collective), and the tests here.

use std::ops::Range;

use super::Plan;
use crate::plan::collective::{Program, Step, Taking};

/// Work of the member itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// The combination of the member's sources in the target.
    Fold,
    /// A step of its program, by index.
    Step(usize),
}

/// Bytes that a block waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lack {
    /// The work that makes the bytes.
    pub work: Work,
    /// The number of bytes that the work must have done.
    pub bytes: u64,
}

/// A part of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The index of the step.
    pub step: usize,
    /// The use of the bytes, if the step takes them.
    pub taking: Option<Taking>,
    /// The bytes, by their position in the result.
    pub range: Range<u64>,
    /// The position of the first byte in the stream.
    pub position_bytes: u64,
    /// The number of bytes that the step has done after this block.
    done_bytes: u64,
}

impl Block {
    /// Returns the length.
    pub const fn length_bytes(&self) -> u64 {
        length(&self.range)
    }
}

/// The bytes of the member that a block reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reading {
    /// None: the block replaces bytes of the target.
    Nothing,
    /// The same bytes of the target.
    Target,
    /// Bytes of one of the member's own sources.
    Source {
        /// The index of the source.
        index: usize,
        /// The bytes of the source.
        range: Range<u64>,
        /// The end of the part in the source. The last byte of a part is readable only after the
        /// seal, because a receiver takes a whole part for a part of a complete object.
        part_end: u64,
    },
}

/// The reason to reject a block of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadBlock {
    /// It does not begin where the stream continues.
    NotNext,
    /// It is empty, longer than a frame, or longer than the rest of its step.
    Length,
    /// It ends in the middle of an element.
    Element,
}

impl BadBlock {
    /// Describes the reason for people.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::NotNext => "a block that is not the next one",
            Self::Length => "a block that is empty, or goes past its step",
            Self::Element => "a block that ends in the middle of an element",
        }
    }
}

/// The steps from one member to another, and the position in them.
#[derive(Debug, Clone)]
pub struct Stream {
    steps: Vec<(usize, Step)>,
    /// The index in `steps` of the current step, and the number of its bytes that are done.
    current: usize,
    done_bytes: u64,
    position_bytes: u64,
    frame_bytes: u64,
    element_bytes: u64,
}

impl Stream {
    /// Returns the number of bytes that are done.
    pub const fn position_bytes(&self) -> u64 {
        self.position_bytes
    }

    /// Returns the number of bytes that are not done.
    pub fn left_bytes(&self) -> u64 {
        let steps = self.steps.get(self.current..).unwrap_or_default();
        steps.iter().map(|(_, step)| length(step.range())).sum::<u64>() - self.done_bytes
    }

    /// Returns `true` if all bytes are done.
    pub const fn is_over(&self) -> bool {
        self.current == self.steps.len()
    }

    /// Returns the next block, of at most one frame and `max_bytes`. `None` if the stream is over.
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

    /// Checks that a block of a peer is the next one.
    ///
    /// # Errors
    /// The reason to reject the block.
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

    /// Advances by some bytes, through several steps if necessary, but not beyond the end.
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
    /// For each step: the earlier steps that write its bytes, and the number of its bytes that are
    /// done.
    steps: Vec<StepProgress>,
    /// The steps that make bytes final, in this order.
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

/// The combination of several sources in the target, from the beginning.
#[derive(Debug)]
struct Fold {
    size_bytes: u64,
    done_bytes: u64,
}

impl Progress {
    /// Returns the progress of a member that begins with `plan`.
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

    /// Returns the program.
    pub const fn program(&self) -> &Program {
        &self.program
    }

    /// Returns the stream from another member, at its current position.
    pub fn stream_from(&self, member: usize) -> Stream {
        let mut stream = self.stream(self.program.takes(member));
        let taken_bytes = stream.steps.iter().map(|(step, _)| self.steps[*step].done_bytes).sum();
        stream.pass(taken_bytes);
        stream
    }

    /// Returns the stream to another member, which has `offset_bytes` of it already. These count as
    /// given.
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

    /// Returns the work that a block waits for, unless the bytes that it reads are ready.
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

    /// Returns the bytes that a block of `plan` reads.
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

    /// Notes that all bytes of a block were sent, or are in the target.
    pub fn done(&mut self, stream: &mut Stream, block: &Block) {
        self.reach(block.step, block.done_bytes);
        stream.pass(block.length_bytes());
    }

    /// Counts bytes of a step. A resumed stream repeats bytes, which count once.
    fn reach(&mut self, step: usize, done_bytes: u64) {
        let step = &mut self.steps[step];
        step.done_bytes = step.done_bytes.max(done_bytes);
    }

    /// Returns the next bytes of the own sources to combine into the target: at most `max_bytes`,
    /// of one part. `None` if there are no more.
    pub fn next_fold(&self, plan: &Plan, max_bytes: u64) -> Option<Range<u64>> {
        let fold = self.fold.as_ref().filter(|fold| fold.done_bytes < fold.size_bytes)?;
        let start = fold.done_bytes;
        Some(start..plan.part_end(start).min(start.saturating_add(max_bytes)))
    }

    /// Notes that the own sources are combined in the target up to `end`.
    pub fn folded(&mut self, end: u64) {
        if let Some(fold) = &mut self.fold {
            fold.done_bytes = fold.done_bytes.max(end);
        }
    }

    /// Returns the number of final bytes of the target, in the order in which bytes become final.
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

    /// Returns `true` if no own source is left to combine.
    pub fn is_folded(&self) -> bool {
        self.fold.as_ref().is_none_or(|fold| fold.done_bytes == fold.size_bytes)
    }

    /// Returns `true` if the member has taken and combined all bytes.
    pub fn is_filled(&self) -> bool {
        let mut steps = self.program.steps().iter().enumerate();
        self.is_folded() && steps.all(|(index, step)| !step.is_take() || self.is_done(index))
    }

    /// Returns the first bytes that other members still need. Sent bytes count as given: a taker
    /// checks them, and reports its position if it connects again.
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
