use std::sync::Arc;

use futures::future::{join_all, try_join_all};
use hoplite_core::dtype::Dtype;
use hoplite_core::node::{CombineOutcome, HopInput};
use hoplite_core::peer::FINAL_FRAMES_TIMEOUT;
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

#[derive(Debug)]
pub(crate) struct CombineRequest {
    pub(crate) op: ReduceOp,
    pub(crate) dtype: Dtype,
    /// Position of the first missing element in the output.
    pub(crate) offset_bytes: u64,
    pub(crate) inputs: Vec<CombineSource>,
    pub(crate) trace: Option<TraceContext>,
}

impl CombineRequest {
    pub(crate) fn is_local(&self) -> bool {
        self.inputs.iter().all(|input| matches!(input, CombineSource::Local { .. }))
    }
}

/// One input of a combination: as many bytes as the output, from `base_bytes` on.
#[derive(Debug)]
pub(crate) enum CombineSource {
    Local {
        live: Arc<LiveCopy>,
        /// Start of the input's range, at which an element begins.
        base_bytes: u64,
    },
    Remote(HopInput),
}

impl Puller {
    /// Combines the inputs into `out`.
    ///
    /// Returns the number of valid leading bytes, including those before `request.offset_bytes`,
    /// and the outcome. Readers of `out` miss the last block until the copy is complete. No memory
    /// is touched after the future ends or is dropped.
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

    /// The error has the index of the failed input.
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
            // Adds up all remote inputs, because they share the link into this node.
            let remote_bytes =
                inputs.iter().filter(|input| !input.is_local()).map(Input::available_bytes).sum();
            if remote_bytes > arrived_bytes {
                sample.arrived(self.now(), remote_bytes - arrived_bytes);
                arrived_bytes = remote_bytes;
            }
            let available_bytes =
                inputs.iter().map(Input::available_bytes).min().unwrap_or(size_bytes);
            let end_bytes = available_bytes.min(size_bytes).min(*done_bytes + STEP_BYTES);
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
                // Reads from sockets yield to other tasks, but reads of local copies do not.
                yield_now().await;
            }
        }
        self.transferred(sample);
        let _ =
            timeout(FINAL_FRAMES_TIMEOUT, join_all(inputs.into_iter().map(Input::finish))).await;
        Ok(())
    }

    /// Waits until each input has `needed_bytes`. A long wait closes the connections of inputs with
    /// enough bytes, whose senders would time out. Later requests resume these streams.
    async fn all_reach(
        &self,
        inputs: &mut [Input<'_>],
        needed_bytes: u64,
    ) -> Result<(), (usize, PullOutcome)> {
        if let [input] = inputs {
            return input.wait_for_bytes(needed_bytes).await.map_err(|outcome| (0, outcome));
        }
        let limit = self.config.write_stall_timeout / 3;
        loop {
            let reached = inputs.iter_mut().enumerate().map(|(index, input)| async move {
                input.wait_for_bytes(needed_bytes).await.map_err(|outcome| (index, outcome))
            });
            if let Ok(reached) = timeout(limit, try_join_all(reached)).await {
                return reached.map(|_| ());
            }
            inputs
                .iter_mut()
                .filter(|input| input.available_bytes() >= needed_bytes)
                .for_each(Input::disconnect);
        }
    }
}

struct Combiner {
    op: ReduceOp,
    dtype: Dtype,
    sum: Vec<u8>,
    operand: Vec<u8>,
}

impl Combiner {
    fn new(op: ReduceOp, dtype: Dtype, size_bytes: u64) -> Self {
        let piece = vec![0; size_bytes.min(PIECE_BYTES as u64) as usize];
        Self { op, dtype, sum: piece.clone(), operand: piece }
    }

    fn combine(
        &mut self,
        inputs: &mut [Input<'_>],
        out: &LiveCopy,
        start_bytes: u64,
        end_bytes: u64,
    ) {
        let Some((first, others)) = inputs.split_first_mut() else { return };
        for piece_bytes in (start_bytes..end_bytes).step_by(PIECE_BYTES) {
            let length = (end_bytes - piece_bytes).min(PIECE_BYTES as u64) as usize;
            let sum = first.bytes(piece_bytes, &mut self.sum[..length]);
            for input in &mut *others {
                combine(
                    self.op,
                    self.dtype,
                    sum,
                    input.bytes(piece_bytes, &mut self.operand[..length]),
                );
            }
            out.buffer().write(piece_bytes, sum);
        }
    }
}
