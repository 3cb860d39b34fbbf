//! Combines several inputs, element by element, into a local copy, as their bytes arrive.

use std::sync::Arc;

use futures::future::{join_all, try_join_all};
use hoplite_core::dtype::Dtype;
use hoplite_core::node::{CombineOutcome, HopInput};
use hoplite_core::peer::LAST_WORD_TIMEOUT;
use hoplite_core::plan::link::RateSample;
use hoplite_core::reduce::{ReduceOp, combine};
use hoplite_core::shard::PullOutcome;
use hoplite_core::trace::TraceContext;
use tokio::task::yield_now;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::config::{PIECE_BYTES, STEP_BYTES};
use super::input::Input;
use super::puller::Puller;
use crate::copies::LiveCopy;

/// What to combine.
#[derive(Debug)]
pub(crate) struct CombineRequest {
    /// The operation.
    pub(crate) op: ReduceOp,
    /// The element type.
    pub(crate) dtype: Dtype,
    /// From which byte of the output on, which is where an element begins.
    pub(crate) offset_bytes: u64,
    /// The inputs, in this order.
    pub(crate) inputs: Vec<CombineSource>,
    /// The span that has caused this.
    pub(crate) trace: Option<TraceContext>,
}

impl CombineRequest {
    /// Returns `true` if all inputs are local copies.
    pub(crate) fn is_local(&self) -> bool {
        self.inputs.iter().all(|input| matches!(input, CombineSource::Local { .. }))
    }
}

/// One input: from its `base_bytes` on as many bytes as the output has.
#[derive(Debug)]
pub(crate) enum CombineSource {
    /// A local copy, as it grows.
    Local {
        /// The copy that is read.
        live: Arc<LiveCopy>,
        /// Where the range begins, which is where an element begins.
        base_bytes: u64,
    },
    /// An object at another node.
    Remote(HopInput),
}

impl Puller {
    /// Fills `out` with the combination of the inputs and advances it, until all bytes are there or it has to end.
    ///
    /// Answers how many leading bytes are computed then, those before the offset counted, and how it ended. `out` shows
    /// all but the last block of them: it is complete when the node says so. Nothing touches the memory of any copy
    /// afterwards, nor when the future is dropped.
    ///
    /// Each input at another node is received once: S bytes on the wire for an input of S bytes.
    pub(crate) async fn combine(
        &self,
        request: &CombineRequest,
        out: &LiveCopy,
        cancel: &CancellationToken,
    ) -> (u64, CombineOutcome) {
        let mut done_bytes = request.offset_bytes;
        let ended = cancel.run_until_cancelled(self.run(request, out, &mut done_bytes)).await;
        let outcome = match ended {
            None => CombineOutcome::Cancelled,
            Some(Ok(())) => CombineOutcome::Complete,
            Some(Err((index, outcome))) => CombineOutcome::InputFailed { index, outcome },
        };
        (done_bytes, outcome)
    }

    /// Advances `done_bytes`; the error is which input failed, and how.
    async fn run(
        &self,
        request: &CombineRequest,
        out: &LiveCopy,
        done_bytes: &mut u64,
    ) -> Result<(), (usize, PullOutcome)> {
        let size_bytes = out.size_bytes();
        let element_bytes = request.dtype.size_bytes();
        debug_assert!(done_bytes.is_multiple_of(element_bytes), "an offset inside of an element");
        let destination = match request.inputs.as_slice() {
            // What needs no combining needs no detour either.
            [CombineSource::Remote(_)] => Some(out.buffer()),
            _ => None,
        };
        let open = |source| match source {
            &CombineSource::Local { ref live, base_bytes } => {
                Input::local(Arc::clone(live), base_bytes, size_bytes, *done_bytes)
            }
            CombineSource::Remote(source) => {
                Input::remote(self, source, size_bytes, *done_bytes, destination, request.trace)
            }
        };
        let mut inputs: Vec<Input<'_>> = request.inputs.iter().map(open).collect();
        let is_local = inputs.iter().all(Input::is_local);
        let mut combiner = Combiner::new(request.op, request.dtype, size_bytes);
        let mut sample = RateSample::default();
        let mut arrived_bytes = 0;
        while *done_bytes < size_bytes {
            self.all_reach(&mut inputs, *done_bytes + element_bytes).await?;
            // All of them together: they share the way into this node.
            let remote_bytes =
                inputs.iter().filter(|input| !input.is_local()).map(Input::at_hand_bytes).sum();
            if remote_bytes > arrived_bytes {
                sample.arrived(self.now(), remote_bytes - arrived_bytes);
                arrived_bytes = remote_bytes;
            }
            let at_hand_bytes = inputs.iter().map(Input::at_hand_bytes).min().unwrap_or(size_bytes);
            let end_bytes = at_hand_bytes.min(size_bytes).min(*done_bytes + STEP_BYTES);
            let end_bytes = end_bytes / element_bytes * element_bytes;
            if destination.is_none() {
                combiner.combine(&mut inputs, out, *done_bytes, end_bytes);
            }
            for input in &mut inputs {
                input.release(end_bytes);
            }
            *done_bytes = end_bytes;
            out.advance(end_bytes);
            if is_local && end_bytes < size_bytes {
                // Sockets make others have their turn.
                yield_now().await;
            }
        }
        self.transferred(sample);
        let _ = timeout(LAST_WORD_TIMEOUT, join_all(inputs.into_iter().map(Input::finish))).await;
        Ok(())
    }

    /// Waits until all inputs have their bytes before `needed_bytes`.
    ///
    /// An input that has them is not read from meanwhile, and its sender would give us up. So if that takes long, its
    /// connection is closed and its bytes are asked for again later.
    async fn all_reach(
        &self,
        inputs: &mut [Input<'_>],
        needed_bytes: u64,
    ) -> Result<(), (usize, PullOutcome)> {
        if let [input] = inputs {
            return input.reach(needed_bytes).await.map_err(|outcome| (0, outcome));
        }
        // Well before the sender gives up, and longer than it takes to connect.
        let limit = self.config.write_stall_timeout / 3;
        loop {
            let reached = inputs.iter_mut().enumerate().map(|(index, input)| async move {
                input.reach(needed_bytes).await.map_err(|outcome| (index, outcome))
            });
            if let Ok(reached) = timeout(limit, try_join_all(reached)).await {
                return reached.map(|_| ());
            }
            inputs.iter_mut().filter(|input| input.at_hand_bytes() >= needed_bytes).for_each(Input::park);
        }
    }
}

/// Combines what is at hand.
struct Combiner {
    op: ReduceOp,
    dtype: Dtype,
    sum: Vec<u8>,
    operand: Vec<u8>,
}

impl Combiner {
    fn new(op: ReduceOp, dtype: Dtype, size_bytes: u64) -> Self {
        // No longer than a piece.
        let piece = vec![0; size_bytes.min(PIECE_BYTES as u64) as usize];
        Self { op, dtype, sum: piece.clone(), operand: piece }
    }

    /// Writes the combination of all inputs from `start_bytes` to `end_bytes` into `out`.
    fn combine(&mut self, inputs: &mut [Input<'_>], out: &LiveCopy, start_bytes: u64, end_bytes: u64) {
        let Some((first, others)) = inputs.split_first_mut() else { return };
        for piece_bytes in (start_bytes..end_bytes).step_by(PIECE_BYTES) {
            // No longer than a piece.
            let length = (end_bytes - piece_bytes).min(PIECE_BYTES as u64) as usize;
            let sum = first.bytes(piece_bytes, &mut self.sum[..length]);
            for input in &mut *others {
                combine(self.op, self.dtype, sum, input.bytes(piece_bytes, &mut self.operand[..length]));
            }
            out.buffer().write(piece_bytes, sum);
        }
    }
}
