//! The order of a member's sends and receives. The executor checks each block with [`Progress`]
//! before it moves the bytes, and reports it afterwards. The plan guarantees that no received block
//! overwrites bytes that must still be sent (see [`plan::collective`](crate::plan::collective));
//! the tests here check this.

use std::ops::Range;

use super::Plan;
use crate::plan::collective::{Program, ReceiveMode, Step};

/// Work that must produce bytes before a block can use them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Combining own sources in the target.
    Fold,
    /// The send or receive with this index.
    Step(usize),
}

/// Work that must be done before a block may move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dependency {
    /// Work that produces the missing bytes.
    pub work: Work,
    /// Bytes of this work that must be done first.
    pub bytes: u64,
}

/// Piece of one send or receive, moved in one frame.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub struct Block {
    pub step: usize,
    /// Use of the received bytes, if the step receives.
    pub mode: Option<ReceiveMode>,
    /// Range in the member's data.
    pub range: Range<u64>,
    pub position_bytes: u64,
    done_bytes: u64,
}

impl Block {
    /// Length of the range.
    pub const fn length_bytes(&self) -> u64 {
        length(&self.range)
    }
}

/// Bytes to send, or to combine with a received block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reading {
    /// Nothing: a received block replaces the bytes.
    Nothing,
    /// Block's range of the target.
    Target,
    /// Range of one of the member's sources.
    Source {
        /// Source's index.
        index: usize,
        /// Range of the source.
        range: Range<u64>,
        /// End of the part in the source. Its last byte must not be sent before the source is
        /// sealed (see [`forwardable`](crate::transfer::forwardable)).
        part_end: u64,
    },
}

/// Reason to reject a peer's block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadBlock {
    /// The block does not continue the stream.
    NotNext,
    /// The block is empty, or longer than a frame or the rest of its step.
    Length,
    /// The block splits an element.
    Element,
}

impl BadBlock {
    /// Describes the reason.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::NotNext => "a block that is not the next one",
            Self::Length => "a block that is empty, or goes past its step",
            Self::Element => "a block that ends in the middle of an element",
        }
    }
}

/// Steps that send bytes from one member to another, and the position.
#[derive(Debug, Clone)]
pub struct Stream {
    steps: Vec<(usize, Step)>,
    current: usize,
    done_bytes: u64,
    position_bytes: u64,
    frame_bytes: u64,
    element_bytes: u64,
}

impl Stream {
    /// Number of moved bytes.
    pub const fn position_bytes(&self) -> u64 {
        self.position_bytes
    }

    /// Number of remaining bytes.
    pub fn left_bytes(&self) -> u64 {
        let steps = self.steps.get(self.current..).unwrap_or_default();
        steps.iter().map(|(_, step)| length(step.range())).sum::<u64>() - self.done_bytes
    }

    /// Returns `true` if all bytes have moved.
    pub const fn is_over(&self) -> bool {
        self.current == self.steps.len()
    }

    /// Returns the next block, which fits in one frame and in `max_bytes`.
    pub fn next(&self, max_bytes: u64) -> Option<Block> {
        let (step, action) = self.steps.get(self.current)?;
        let start = action.range().start + self.done_bytes;
        let length_bytes = max_bytes.min(self.frame_bytes).min(action.range().end - start);
        let mode = match action {
            Step::Send { .. } => None,
            Step::Receive { mode, .. } => Some(*mode),
        };
        Some(Block {
            step: *step,
            mode,
            range: start..start + length_bytes,
            position_bytes: self.position_bytes,
            done_bytes: self.done_bytes + length_bytes,
        })
    }

    /// Checks that a block is the stream's next one.
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

    /// Advances past the next block, which is being sent.
    pub fn skip(&mut self, block: &Block) {
        self.pass(block.length_bytes());
    }

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

/// A member's progress in its sequence of sends and receives.
#[derive(Debug)]
pub struct Progress {
    program: Program,
    steps: Vec<StepProgress>,
    finals: Vec<usize>,
    fold: Option<Fold>,
    frame_bytes: u64,
    element_bytes: u64,
}

#[derive(Debug)]
struct StepProgress {
    /// Earlier steps that write bytes of this step's range.
    writers: Vec<usize>,
    done_bytes: u64,
}

#[derive(Debug)]
struct Fold {
    size_bytes: u64,
    done_bytes: u64,
}

impl Progress {
    /// Begins the program of `plan`.
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

    /// Program.
    pub const fn program(&self) -> &Program {
        &self.program
    }

    /// Returns the stream from another member, at the reached position.
    pub fn stream_from(&self, member: usize) -> Stream {
        let mut stream = self.stream(self.program.steps_from(member));
        let received_bytes =
            stream.steps.iter().map(|(step, _)| self.steps[*step].done_bytes).sum();
        stream.pass(received_bytes);
        stream
    }

    /// Returns the stream to another member, which has the first `offset_bytes`.
    pub fn stream_to(&mut self, member: usize, offset_bytes: u64) -> Stream {
        let mut stream = self.stream(self.program.steps_to(member));
        stream.pass(offset_bytes);
        for (step, action) in &stream.steps[..stream.current] {
            self.reach(*step, length(action.range()));
        }
        if let Some((step, _)) = stream.steps.get(stream.current) {
            self.reach(*step, stream.done_bytes);
        }
        stream
    }

    fn stream(&self, steps: Vec<usize>) -> Stream {
        let steps =
            steps.into_iter().map(|step| (step, self.program.steps()[step].clone())).collect();
        let Self { frame_bytes, element_bytes, .. } = *self;
        Stream { steps, current: 0, done_bytes: 0, position_bytes: 0, frame_bytes, element_bytes }
    }

    /// Returns the work that must precede the block; `None` if it may move now.
    pub fn blocked_on(&self, block: &Block) -> Option<Dependency> {
        let end = block.range.end;
        if let Some(fold) = self.fold.as_ref().filter(|fold| fold.done_bytes < end) {
            return Some(Dependency { work: Work::Fold, bytes: end.min(fold.size_bytes) });
        }
        let unmet = |writer: &usize| {
            let range = self.program.steps()[*writer].range();
            let bytes = end.min(range.end).saturating_sub(range.start);
            let unmet = Dependency { work: Work::Step(*writer), bytes };
            (self.steps[*writer].done_bytes < bytes).then_some(unmet)
        };
        self.steps[block.step].writers.iter().find_map(unmet)
    }

    /// Returns the bytes to read for sending or combining a block.
    pub fn reading(&self, plan: &Plan, block: &Block) -> Reading {
        if block.mode == Some(ReceiveMode::Replace) {
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

    /// Notes that the next block of `stream` was sent or received.
    pub fn done(&mut self, stream: &mut Stream, block: &Block) {
        self.sent(block);
        stream.skip(block);
    }

    /// Notes that a block passed by [`Stream::skip`], and all blocks before it, were sent.
    pub fn sent(&mut self, block: &Block) {
        self.reach(block.step, block.done_bytes);
    }

    /// Counts bytes only once, even if a resumed stream sends them again.
    fn reach(&mut self, step: usize, done_bytes: u64) {
        let step = &mut self.steps[step];
        step.done_bytes = step.done_bytes.max(done_bytes);
    }

    /// Returns the next range of own sources to combine: at most `max_bytes`, within one part.
    pub fn next_fold(&self, plan: &Plan, max_bytes: u64) -> Option<Range<u64>> {
        let fold = self.fold.as_ref().filter(|fold| fold.done_bytes < fold.size_bytes)?;
        let start = fold.done_bytes;
        Some(start..plan.part_end(start).min(start.saturating_add(max_bytes)))
    }

    /// Notes that own sources are combined up to `end`.
    pub fn folded(&mut self, end: u64) {
        if let Some(fold) = &mut self.fold {
            fold.done_bytes = fold.done_bytes.max(end);
        }
    }

    /// Number of final bytes without a gap, in the order of [`Plan::finals`].
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

    /// Returns `true` if own sources are combined.
    pub fn is_folded(&self) -> bool {
        self.fold.as_ref().is_none_or(|fold| fold.done_bytes == fold.size_bytes)
    }

    /// Returns `true` if all bytes are received and combined.
    pub fn is_filled(&self) -> bool {
        let mut steps = self.program.steps().iter().enumerate();
        self.is_folded() && steps.all(|(index, step)| !step.is_receive() || self.is_done(index))
    }

    /// First step with unsent bytes. Sent bytes count as received: a reconnecting receiver reports
    /// its position.
    pub fn first_unsent(&self) -> Option<Dependency> {
        let mut steps = self.program.steps().iter().enumerate();
        let (index, step) =
            steps.find(|(index, step)| !step.is_receive() && !self.is_done(*index))?;
        Some(Dependency { work: Work::Step(index), bytes: length(step.range()) })
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
