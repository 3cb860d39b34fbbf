//! A member's part of an attempt, which its streams share: its progress, and the streams that wait for that.
//!
//! Partial results live in the target. `hoplite_core::collective::Progress` decides which block may be sent or combined next.

use std::ops::Range;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hoplite_core::collective::{Block, Lack, Plan, Progress, Reading, Stream, Work};
use hoplite_core::reduce::combine;
use hoplite_core::trace::TraceContext;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::super::combine::{PIECE_BYTES, STEP_BYTES};
use crate::copies::LiveCopy;

/// One member's part of an attempt, shared by its streams.
#[derive(Debug)]
pub(crate) struct Exchange {
    plan: Box<Plan>,
    /// The member's own data.
    sources: Vec<Arc<LiveCopy>>,
    /// The span of it.
    trace: Option<TraceContext>,
    progress: Mutex<Progress>,
    /// The streams that wait for each step, and for the fold: apart, so that a block wakes only the stream that it is for.
    steps: Vec<Notify>,
    fold: Notify,
    /// Those who give.
    givers: TaskTracker,
    /// Set when nobody may start to give any more.
    ended: CancellationToken,
}

/// The own data of a member cannot be had.
#[derive(Debug, Clone, Copy)]
pub(super) struct SourceLost;

impl Exchange {
    /// A member that follows `plan`, with these sources.
    pub(crate) fn new(plan: Box<Plan>, sources: Vec<Arc<LiveCopy>>, trace: Option<TraceContext>) -> Self {
        let progress = Progress::new(&plan);
        Self {
            steps: progress.program().steps().iter().map(|_| Notify::new()).collect(),
            fold: Notify::new(),
            progress: Mutex::new(progress),
            plan,
            sources,
            trace,
            givers: TaskTracker::new(),
            ended: CancellationToken::new(),
        }
    }

    pub(crate) const fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What others that do something for it name as their parent.
    pub(super) const fn trace(&self) -> Option<TraceContext> {
        self.trace
    }

    /// From whom it takes.
    pub(super) fn givers(&self) -> Vec<usize> {
        self.progress().program().sources()
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
        if self.plan.properties().ends_together() {
            // The coordinator hears when all have theirs. Until then what was lost on its way can be given again.
            cancel.cancelled().await;
        } else {
            // Given by then is what was taken: each taker says so by taking no more.
            cancel.run_until_cancelled(self.supplied(Progress::ungiven)).await;
        }
        self.ended.cancel();
        self.givers.close();
        self.givers.wait().await;
    }

    /// What is taken from a member, from where it is.
    pub(super) fn stream_from(&self, member: usize) -> Stream {
        self.progress().stream_from(member)
    }

    /// What is given to a member that has so many bytes already.
    pub(super) fn stream_to(&self, member: usize, offset_bytes: u64) -> Stream {
        let stream = self.progress().stream_to(member, offset_bytes);
        // What it has may be all of several steps.
        self.steps.iter().for_each(Notify::notify_waiters);
        stream
    }

    /// A block of a stream is done.
    pub(super) fn done(&self, stream: &mut Stream, block: &Block) {
        self.progress().done(stream, block);
        self.steps[block.step].notify_waiters();
    }

    /// How many bytes of the target are final, counted in the order in which they become so.
    pub(super) fn final_bytes(&self) -> u64 {
        self.progress().final_bytes()
    }

    /// Waits until a block may be done, and what it reads of the member's own data is there.
    pub(super) async fn may_do(&self, block: &Block) -> Result<(), SourceLost> {
        self.supplied(|progress| progress.lack(block)).await;
        let Reading::Source { index, range, part_end } = self.reading(block) else { return Ok(()) };
        // Even if there are enough: a source that has failed is of no use any more.
        match self.sources[index].beyond_within(range.end - 1, part_end).await {
            Ok(valid_bytes) if valid_bytes >= range.end => Ok(()),
            _ => Err(SourceLost),
        }
    }

    /// Waits until nothing is lacking.
    async fn supplied(&self, lack: impl Fn(&Progress) -> Option<Lack>) {
        let look = || lack(&self.progress());
        while let Some(lacking) = look() {
            let waiters = match lacking.work {
                Work::Fold => &self.fold,
                Work::Step(step) => &self.steps[step],
            };
            let mut progressed = pin!(waiters.notified());
            // From here on no notification is missed, so what is read below is not stale when we sleep.
            progressed.as_mut().enable();
            if look() == Some(lacking) {
                progressed.await;
            }
        }
    }

    fn reading(&self, block: &Block) -> Reading {
        self.progress().reading(&self.plan, block)
    }

    /// The copy that has what a block reads, and where it is there.
    pub(super) fn origin<'a>(&'a self, block: &Block, target: &'a LiveCopy) -> (&'a LiveCopy, Range<u64>) {
        match self.reading(block) {
            Reading::Source { index, range, .. } => (&self.sources[index], range),
            Reading::Target | Reading::Nothing => (target, block.range.clone()),
        }
    }

    /// Combines what was taken with what is there, into the target.
    pub(super) fn combine_into(&self, block: &Block, target: &LiveCopy, taken: &mut [u8]) {
        let (own, Range { start: mut own_at, .. }) = self.origin(block, target);
        let (op, dtype) = (self.plan.agreement.op, self.plan.metadata.dtype);
        let mut sum = [0; PIECE_BYTES];
        let mut at = block.range.start;
        for piece in taken.chunks_mut(PIECE_BYTES) {
            let sum = &mut sum[..piece.len()];
            own.buffer().read(own_at, sum);
            combine(op, dtype, sum, piece);
            target.buffer().write(at, sum);
            at += piece.len() as u64;
            own_at += piece.len() as u64;
        }
    }

    /// Combines the member's own sources into the target, if they lie there.
    pub(super) async fn fold(&self, target: &LiveCopy) -> Result<(), SourceLost> {
        let Some((first, others)) = self.sources.split_first() else { return Ok(()) };
        let (op, dtype) = (self.plan.agreement.op, self.plan.metadata.dtype);
        let (mut sum, mut operand) = (Vec::new(), Vec::new());
        loop {
            let next = self.progress().next_fold(&self.plan, STEP_BYTES);
            let Some(Range { start, end }) = next else { return Ok(()) };
            for source in &self.sources {
                match source.beyond_within(end - 1, self.plan.part_end(start)).await {
                    Ok(valid_bytes) if valid_bytes >= end => {}
                    _ => return Err(SourceLost),
                }
            }
            sum.resize(PIECE_BYTES, 0);
            operand.resize(PIECE_BYTES, 0);
            for at in (start..end).step_by(PIECE_BYTES) {
                // No longer than a piece.
                let length = (end - at).min(PIECE_BYTES as u64) as usize;
                let sum = &mut sum[..length];
                first.buffer().read(at, sum);
                for other in others {
                    let operand = &mut operand[..length];
                    other.buffer().read(at, operand);
                    combine(op, dtype, sum, operand);
                }
                target.buffer().write(at, sum);
            }
            self.progress().folded(end);
            self.fold.notify_waiters();
            yield_now().await;
        }
    }

    /// Copies what the ranks of this member have for each other.
    pub(super) async fn copy_own(&self, target: &LiveCopy) -> Result<(), SourceLost> {
        let own = self.plan.index;
        let (mut given, mut taken) = (self.stream_to(own, 0), self.stream_from(own));
        let mut buffer = vec![0; PIECE_BYTES];
        while let (Some(give), Some(take)) = (given.next(STEP_BYTES), taken.next(STEP_BYTES)) {
            self.may_do(&give).await?;
            let (source, Range { start, end }) = self.origin(&give, target);
            for at in (start..end).step_by(PIECE_BYTES) {
                // No longer than a piece.
                let piece = &mut buffer[..(end - at).min(PIECE_BYTES as u64) as usize];
                source.buffer().read(at, piece);
                target.buffer().write(take.range.start + (at - start), piece);
            }
            self.done(&mut given, &give);
            self.done(&mut taken, &take);
            target.advance(self.final_bytes());
            yield_now().await;
        }
        Ok(())
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        // Nothing that is done under the lock can leave it half changed.
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
