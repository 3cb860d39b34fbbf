//! How far a member is, as its streams see it.
//!
//! Partial results live in the target. What bytes a step reads and which steps it has to wait for follows from the program;
//! see `hoplite_core::plan::collective`.

use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hoplite_core::collective::Plan;
use hoplite_core::plan::collective::{Program, Step};
use hoplite_core::reduce::combine;
use hoplite_core::trace::TraceContext;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::super::combine::{PIECE_BYTES, STEP_BYTES};
use crate::copies::LiveCopy;

/// One member's part of a session, shared by its streams.
#[derive(Debug)]
pub(crate) struct Exchange {
    plan: Box<Plan>,
    program: Program,
    /// The member's own data.
    sources: Vec<Arc<LiveCopy>>,
    /// The span of it.
    trace: Option<TraceContext>,
    /// For each step: the earlier ones that write bytes of it, and how many of its bytes are done.
    steps: Vec<Progress>,
    /// How many leading bytes of the target have the combination of the own sources, if there are several.
    folded: Counter,
    /// After which steps bytes are final, in this order.
    finals: Vec<usize>,
    /// Those who give.
    givers: TaskTracker,
    /// Set when nobody may start to give any more.
    ended: CancellationToken,
}

#[derive(Debug)]
struct Progress {
    writers: Vec<usize>,
    done: Counter,
}

/// A number of bytes that grows. Each has its own waiters, so that a block wakes only the stream that it is for.
#[derive(Debug, Default)]
struct Counter {
    bytes: AtomicU64,
    progressed: Notify,
}

impl Counter {
    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    fn advance(&self, bytes: u64) {
        self.bytes.fetch_max(bytes, Ordering::AcqRel);
        self.progressed.notify_waiters();
    }

    /// Waits until it is at least so many.
    async fn reaches(&self, bytes: u64) {
        while self.bytes() < bytes {
            let mut progressed = pin!(self.progressed.notified());
            // From here on no notification is missed, so what is read below is not stale when we sleep.
            progressed.as_mut().enable();
            if self.bytes() < bytes {
                progressed.await;
            }
        }
    }
}

/// The own data of a member cannot be had.
#[derive(Debug, Clone, Copy)]
pub(super) struct SourceLost;

impl Exchange {
    /// A member that follows `plan`, with these sources.
    pub(crate) fn new(plan: Box<Plan>, sources: Vec<Arc<LiveCopy>>, trace: Option<TraceContext>) -> Self {
        let program = plan.program();
        let progress = |step| Progress { writers: program.writers_before(step), done: Counter::default() };
        Self {
            steps: (0..program.steps().len()).map(progress).collect(),
            finals: plan.finals(&program),
            plan,
            program,
            sources,
            trace,
            folded: Counter::default(),
            givers: TaskTracker::new(),
            ended: CancellationToken::new(),
        }
    }

    pub(super) const fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What others that do something for it name as their parent.
    pub(super) const fn trace(&self) -> Option<TraceContext> {
        self.trace
    }

    pub(super) const fn program(&self) -> &Program {
        &self.program
    }

    pub(super) fn step(&self, step: usize) -> &Step {
        &self.program.steps()[step]
    }

    /// Lets somebody give, unless the exchange has ended. While it holds what is returned, the memory of the sources stays.
    pub(super) fn begin_giving(&self) -> Option<TaskTrackerToken> {
        let token = self.givers.token();
        (!self.ended.is_cancelled()).then_some(token)
    }

    /// Waits until the exchange ends for those who give.
    pub(super) async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// Waits until all have been given what they need, or `cancel`; then nobody reads the sources any more.
    pub(super) async fn finish(&self, cancel: &CancellationToken) {
        // Given by then is what was taken: each taker says so by taking no more.
        cancel.run_until_cancelled(self.all_given()).await;
        self.ended.cancel();
        self.givers.close();
        self.givers.wait().await;
    }

    async fn all_given(&self) {
        for (step, progress) in self.program.steps().iter().zip(&self.steps) {
            if !step.is_take() {
                progress.done.reaches(length(step.range())).await;
            }
        }
    }

    /// How many of its bytes a step has done.
    pub(super) fn done_bytes(&self, step: usize) -> u64 {
        self.steps[step].done.bytes()
    }

    /// More bytes of a step are done.
    pub(super) fn advance(&self, step: usize, done_bytes: u64) {
        self.steps[step].done.advance(done_bytes);
    }

    /// How many bytes of the target are final, counted in the order in which they become so.
    pub(super) fn final_bytes(&self) -> u64 {
        let mut final_bytes = 0;
        for step in &self.finals {
            let done_bytes = self.done_bytes(*step);
            final_bytes += done_bytes;
            if done_bytes < length(self.step(*step).range()) {
                break;
            }
        }
        final_bytes
    }

    /// Whether the bytes of a step are in the target when it reads them; if not, they are in a source.
    fn reads_target(&self, step: usize) -> bool {
        self.plan.is_folded() || !self.steps[step].writers.is_empty()
    }

    /// Waits until a step may write its bytes before `end_bytes`, counted from its beginning, which reads nothing.
    pub(super) async fn may_write(&self, step: usize, end_bytes: u64) {
        self.reached(step, self.step(step).range().start + end_bytes).await;
    }

    /// Waits until a step may do its bytes before `end_bytes`, counted from its beginning.
    pub(super) async fn may_reach(&self, step: usize, end_bytes: u64) -> Result<(), SourceLost> {
        let start_bytes = self.step(step).range().start;
        let end = start_bytes + end_bytes;
        self.reached(step, end).await;
        if self.reads_target(step) {
            return Ok(());
        }
        let (source, base) = self.source_of(step);
        // The end of a part waits for the seal: who has all of a part takes it for one of a complete object.
        let part_end = self.plan.part_end(end - 1) - base;
        // Even if there are enough: a source that has failed is of no use any more.
        match source.beyond_within(end - base - 1, part_end).await {
            Ok(valid_bytes) if valid_bytes >= end - base => Ok(()),
            _ => Err(SourceLost),
        }
    }

    /// The source that has the bytes of a step, and where its first byte is in what is made.
    fn source_of(&self, step: usize) -> (&LiveCopy, u64) {
        let (index, base) = self.plan.source_at(self.step(step).range().start);
        (&self.sources[index], base)
    }

    /// Waits until all that writes before a step has done its bytes before `end`.
    async fn reached(&self, step: usize, end: u64) {
        if self.plan.is_folded() {
            self.folded.reaches(end).await;
        }
        for writer in &self.steps[step].writers {
            let range = self.step(*writer).range();
            let needed_bytes = end.min(range.end).saturating_sub(range.start);
            self.steps[*writer].done.reaches(needed_bytes).await;
        }
    }

    /// The copy that has the bytes of a step when it reads them, and where its first byte is in what is made.
    pub(super) fn origin<'a>(&'a self, step: usize, target: &'a LiveCopy) -> (&'a LiveCopy, u64) {
        if self.reads_target(step) { (target, 0) } else { self.source_of(step) }
    }

    /// Combines what was taken with what is there, into the target from `start` on.
    pub(super) fn combine_into(&self, step: usize, target: &LiveCopy, start: u64, taken: &mut [u8]) {
        let (own, base) = self.origin(step, target);
        let (op, dtype) = (self.plan.agreement.op, self.plan.metadata.dtype);
        let mut sum = [0; PIECE_BYTES];
        let mut at = start;
        for piece in taken.chunks_mut(PIECE_BYTES) {
            let sum = &mut sum[..piece.len()];
            own.buffer().read(at - base, sum);
            combine(op, dtype, sum, piece);
            target.buffer().write(at, sum);
            at += piece.len() as u64;
        }
    }

    /// Combines the member's own sources into the target, if they lie there.
    pub(super) async fn fold(&self, target: &LiveCopy) -> Result<(), SourceLost> {
        let Some((first, others)) = self.sources.split_first().filter(|_| self.plan.is_folded()) else {
            return Ok(());
        };
        let (op, dtype) = (self.plan.agreement.op, self.plan.metadata.dtype);
        let size_bytes = self.plan.size_bytes;
        let (mut sum, mut operand) = (vec![0; PIECE_BYTES], vec![0; PIECE_BYTES]);
        let mut done_bytes = 0;
        while done_bytes < size_bytes {
            let part_end = self.plan.part_end(done_bytes);
            let end_bytes = part_end.min(done_bytes + STEP_BYTES);
            for source in &self.sources {
                match source.beyond_within(end_bytes - 1, part_end).await {
                    Ok(valid_bytes) if valid_bytes >= end_bytes => {}
                    _ => return Err(SourceLost),
                }
            }
            for at in (done_bytes..end_bytes).step_by(PIECE_BYTES) {
                // No longer than a piece.
                let length = (end_bytes - at).min(PIECE_BYTES as u64) as usize;
                let sum = &mut sum[..length];
                first.buffer().read(at, sum);
                for other in others {
                    let operand = &mut operand[..length];
                    other.buffer().read(at, operand);
                    combine(op, dtype, sum, operand);
                }
                target.buffer().write(at, sum);
            }
            done_bytes = end_bytes;
            self.folded.advance(done_bytes);
            yield_now().await;
        }
        Ok(())
    }
}

pub(super) const fn length(range: &Range<u64>) -> u64 {
    range.end - range.start
}
