//! A member's part of a collective, which its streams share. Partial results lie in the target.
//! `hoplite_core::collective::Progress` decides which block is next.

use std::ops::Range;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hoplite_core::collective::{Block, Dependency, Plan, Progress, Reading, Stream, Work};
use hoplite_core::reduce::combine;
use hoplite_core::trace::TraceContext;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::super::config::{PIECE_BYTES, STEP_BYTES};
use crate::copies::LiveCopy;

#[derive(Debug)]
pub(crate) struct Exchange {
    plan: Box<Plan>,
    sources: Vec<Arc<LiveCopy>>,
    trace: Option<TraceContext>,
    progress: Mutex<Progress>,
    /// One notification for each step, which wakes the streams that wait for the step.
    steps: Vec<Notify>,
    /// Wakes streams that wait until the sources are combined.
    fold: Notify,
    senders: TaskTracker,
    /// Cancelled when no further stream may begin.
    ended: CancellationToken,
}

#[derive(Debug, Clone, Copy)]
pub(in super::super) struct SourceLost;

impl Exchange {
    pub(crate) fn new(
        plan: Box<Plan>,
        sources: Vec<Arc<LiveCopy>>,
        trace: Option<TraceContext>,
    ) -> Self {
        let progress = Progress::new(&plan);
        Self {
            steps: progress.program().steps().iter().map(|_| Notify::new()).collect(),
            fold: Notify::new(),
            progress: Mutex::new(progress),
            plan,
            sources,
            trace,
            senders: TaskTracker::new(),
            ended: CancellationToken::new(),
        }
    }

    pub(crate) const fn plan(&self) -> &Plan {
        &self.plan
    }

    pub(super) const fn trace(&self) -> Option<TraceContext> {
        self.trace
    }

    pub(super) fn senders(&self) -> Vec<usize> {
        self.progress().program().sources()
    }

    /// Admits a stream that sends blocks; `None` after the end of the exchange. The sources stay
    /// until the result is dropped.
    pub(super) fn begin_sending(&self) -> Option<TaskTrackerToken> {
        let token = self.senders.token();
        (!self.ended.is_cancelled()).then_some(token)
    }

    pub(in super::super) async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// Waits until all members have their bytes, or until `cancel`. Afterwards no stream reads the
    /// sources.
    pub(super) async fn finish(&self, cancel: &CancellationToken) {
        if self.plan.properties().ends_together() {
            // The coordinator cancels when all members are complete. Until then, a member may
            // request lost bytes again.
            cancel.cancelled().await;
        } else {
            // Sent bytes count as received, because a receiver that lost some requests them again.
            cancel.run_until_cancelled(self.wait_for(Progress::first_unsent)).await;
        }
        self.ended.cancel();
        self.senders.close();
        self.senders.wait().await;
    }

    pub(super) fn stream_from(&self, member: usize) -> Stream {
        self.progress().stream_from(member)
    }

    pub(super) fn stream_to(&self, member: usize, offset_bytes: u64) -> Stream {
        let stream = self.progress().stream_to(member, offset_bytes);
        // The bytes before `offset_bytes` count as sent now, and may belong to several steps.
        self.steps.iter().for_each(Notify::notify_waiters);
        stream
    }

    pub(super) fn done(&self, stream: &mut Stream, block: &Block) {
        self.progress().done(stream, block);
        self.steps[block.step].notify_waiters();
    }

    /// Records that `block` and all blocks before it in its stream were sent.
    pub(in super::super) fn sent(&self, block: &Block) {
        self.progress().sent(block);
        self.steps[block.step].notify_waiters();
    }

    pub(super) fn final_bytes(&self) -> u64 {
        self.progress().final_bytes()
    }

    /// Waits until the member's program permits `block`, and the sources have its bytes.
    pub(in super::super) async fn wait_until_ready(&self, block: &Block) -> Result<(), SourceLost> {
        self.wait_for(|progress| progress.blocked_on(block)).await;
        let Reading::Source { index, range, part_end } = self.reading(block) else { return Ok(()) };
        match self.sources[index].beyond_within(range.end - 1, part_end).await {
            Ok(valid_bytes) if valid_bytes >= range.end => Ok(()),
            _ => Err(SourceLost),
        }
    }

    async fn wait_for(&self, dependency_of: impl Fn(&Progress) -> Option<Dependency>) {
        let current = || dependency_of(&self.progress());
        while let Some(dependency) = current() {
            let waiters = match dependency.work {
                Work::Fold => &self.fold,
                Work::Step(step) => &self.steps[step],
            };
            let mut progressed = pin!(waiters.notified());
            progressed.as_mut().enable();
            if current() == Some(dependency) {
                progressed.await;
            }
        }
    }

    fn reading(&self, block: &Block) -> Reading {
        self.progress().reading(&self.plan, block)
    }

    pub(in super::super) fn origin<'a>(
        &'a self,
        block: &Block,
        target: &'a LiveCopy,
    ) -> (&'a LiveCopy, Range<u64>) {
        match self.reading(block) {
            Reading::Source { index, range, .. } => (&self.sources[index], range),
            Reading::Target | Reading::Nothing => (target, block.range.clone()),
        }
    }

    pub(super) fn combine_into(&self, block: &Block, target: &LiveCopy, incoming: &mut [u8]) {
        let (own, Range { start: mut own_at, .. }) = self.origin(block, target);
        let (op, dtype) = (self.plan.agreement.op, self.plan.metadata.dtype);
        let mut sum = [0; PIECE_BYTES];
        let mut at = block.range.start;
        for piece in incoming.chunks_mut(PIECE_BYTES) {
            let sum = &mut sum[..piece.len()];
            own.buffer().read(own_at, sum);
            combine(op, dtype, sum, piece);
            target.buffer().write(at, sum);
            at += piece.len() as u64;
            own_at += piece.len() as u64;
        }
    }

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

    pub(super) async fn copy_own(&self, target: &LiveCopy) -> Result<(), SourceLost> {
        let own = self.plan.index;
        let (mut outgoing, mut incoming) = (self.stream_to(own, 0), self.stream_from(own));
        let mut buffer = vec![0; PIECE_BYTES];
        while let (Some(sent), Some(received)) =
            (outgoing.next(STEP_BYTES), incoming.next(STEP_BYTES))
        {
            self.wait_until_ready(&sent).await?;
            let (source, Range { start, end }) = self.origin(&sent, target);
            for at in (start..end).step_by(PIECE_BYTES) {
                let piece = &mut buffer[..(end - at).min(PIECE_BYTES as u64) as usize];
                source.buffer().read(at, piece);
                target.buffer().write(received.range.start + (at - start), piece);
            }
            self.done(&mut outgoing, &sent);
            self.done(&mut incoming, &received);
            target.advance(self.final_bytes());
            yield_now().await;
        }
        Ok(())
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
