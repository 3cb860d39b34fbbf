//! What a shard has still to say to one store.
//!
//! The task that owns the shard puts messages in without ever waiting; the stream that gRPC drives, or the bypass, takes them out
//! in batches. A store that does not listen runs into the limit and loses its session. One that only asks faster than it
//! listens is slowed down before that: its session reads on when there is [`SendQueue::room`].

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::stream::{self, Stream, StreamExt};
use hoplite_core::batch::{AnswerQueue, Full};
use hoplite_core::error::Error;
use hoplite_core::shard::ToStore;
use hoplite_proto::directory::{BypassKey, encode_to_store, welcome};
use hoplite_proto::status::to_status;
use hoplite_proto::v1::ShardMessages;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tonic::Status;

/// The queue of one session.
#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    state: Mutex<State>,
    /// Wakes the stream that gRPC drives.
    stream: Notify,
    /// Wakes the bypass.
    bypass: Notify,
    drained: Notify,
    closed: CancellationToken,
}

#[derive(Debug, Default)]
struct State {
    queue: AnswerQueue,
    route: Route,
    /// `true` if a ping of the direct connection is to be answered.
    is_pinged: bool,
    /// Why the session ends, until the store was told.
    error: Option<Error>,
}

/// Which way the messages go.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Route {
    #[default]
    Grpc,
    /// Past gRPC, which is yet to say so.
    Diverted,
    /// Past gRPC.
    Bypass,
}

impl SendQueue {
    /// Queues `message`; does nothing once the queue is closed.
    ///
    /// # Errors
    /// [`Full`] if the queue is full.
    pub(crate) fn push(&self, message: ToStore) -> Result<(), Full> {
        if self.closed.is_cancelled() {
            return Ok(());
        }
        let mut state = self.lock();
        state.queue.push(message)?;
        match state.route {
            Route::Grpc => self.stream.notify_one(),
            Route::Diverted | Route::Bypass => self.bypass.notify_one(),
        }
        Ok(())
    }

    /// Sends messages over the direct connection from now on. The stream of gRPC says so.
    pub(crate) fn divert(&self) {
        self.lock().route = Route::Diverted;
        self.stream.notify_one();
        self.bypass.notify_one();
    }

    /// Answers a ping of the direct connection, with messages if there are any.
    pub(crate) fn pinged(&self) {
        self.lock().is_pinged = true;
        self.bypass.notify_one();
    }

    /// Ends the session after what is queued.
    pub(crate) fn close(&self) {
        self.closed.cancel();
        self.stream.notify_one();
        self.bypass.notify_one();
    }

    /// Ends the session at once with `error`; what is queued is not said any more.
    pub(crate) fn fail(&self, error: Error) {
        let mut state = self.lock();
        state.queue.clear();
        state.error.get_or_insert(error);
        drop(state);
        self.close();
    }

    /// Ends when the queue is closed by either side.
    pub(crate) async fn closed(&self) {
        self.closed.cancelled().await;
    }

    /// Ends when few enough messages wait.
    pub(crate) async fn room(&self) {
        loop {
            let mut drained = pin!(self.drained.notified());
            // From here on it is told, so that it does not miss what happens after the look.
            drained.as_mut().enable();
            if self.lock().queue.has_room() {
                return;
            }
            drained.await;
        }
    }

    /// The messages as the frames of a session, a welcome first, which offers `bypass`. There is to be one stream per queue;
    /// when it is dropped the queue is closed.
    pub(crate) fn into_stream(
        self: Arc<Self>,
        bypass: Option<BypassKey>,
    ) -> impl Stream<Item = Result<ShardMessages, Status>> + Send + 'static {
        let hello = ShardMessages { welcome: Some(welcome(bypass)), ..Default::default() };
        let guard = CloseOnDrop(self);
        let batches = stream::unfold(guard, |guard| async move {
            let batch = guard.0.next_of_stream().await?;
            Some((batch.map_err(|error| to_status(&error)), guard))
        });
        stream::once(std::future::ready(Ok(hello))).chain(batches)
    }

    async fn next_of_stream(&self) -> Option<Result<ShardMessages, Error>> {
        loop {
            // Looked at before the queue: what was queued before the end is still said.
            let is_closed = self.closed.is_cancelled();
            let batch = {
                let mut state = self.lock();
                if let Some(error) = state.error.take() {
                    return Some(Err(error));
                }
                match state.route {
                    Route::Grpc => state.queue.take_batch(),
                    Route::Diverted => {
                        state.route = Route::Bypass;
                        return Some(Ok(ShardMessages { bypassed: true, ..Default::default() }));
                    }
                    Route::Bypass => Vec::new(),
                }
            };
            if !batch.is_empty() {
                return Some(Ok(self.frame(batch)));
            }
            if is_closed {
                return None;
            }
            self.stream.notified().await;
        }
    }

    /// Waits for the next frame of the direct connection. Returns `None` at the end of the session; gRPC carries the reason.
    pub(crate) async fn next_of_bypass(&self) -> Option<ShardMessages> {
        loop {
            let is_closed = self.closed.is_cancelled();
            let (batch, is_pinged) = {
                let mut state = self.lock();
                (state.queue.take_batch(), std::mem::take(&mut state.is_pinged))
            };
            if is_pinged || !batch.is_empty() {
                return Some(self.frame(batch));
            }
            if is_closed {
                return None;
            }
            self.bypass.notified().await;
        }
    }

    fn frame(&self, batch: Vec<ToStore>) -> ShardMessages {
        self.drained.notify_waiters();
        let messages = batch.into_iter().map(encode_to_store).collect();
        ShardMessages { messages, ..Default::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that is done under the lock can leave the queue half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct CloseOnDrop(Arc<SendQueue>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

#[cfg(test)]
mod tests {
    use hoplite_core::id::{ObjectId, PutId};

    use super::*;

    fn promote(number: u64) -> ToStore {
        ToStore::Promote { id: ObjectId::new("x").unwrap(), put: PutId(number) }
    }

    #[tokio::test]
    async fn what_is_queued_comes_in_full_batches_and_then_the_end() {
        let send_queue = Arc::new(SendQueue::default());
        for number in 0..300 {
            send_queue.push(promote(number)).unwrap();
        }
        send_queue.close();
        let frames: Vec<_> = send_queue.into_stream(None).map(Result::unwrap).collect().await;
        assert!(frames[0].welcome.is_some());
        assert_eq!(frames.iter().map(|frame| frame.messages.len()).collect::<Vec<_>>(), [0, 256, 44]);
    }

    #[tokio::test]
    async fn a_failure_is_said_at_once_and_ends_the_stream() {
        let send_queue = Arc::new(SendQueue::default());
        send_queue.push(promote(1)).unwrap();
        send_queue.fail(Error::ShuttingDown);
        let frames: Vec<_> = send_queue.into_stream(None).collect().await;
        assert_eq!(frames.len(), 2);
        let status = frames[1].as_ref().unwrap_err();
        assert_eq!(hoplite_proto::status::from_status(status), Error::ShuttingDown);
    }

    #[tokio::test]
    async fn room_returns_when_the_queue_is_drained() {
        let send_queue = Arc::new(SendQueue::default());
        while send_queue.push(promote(0)).is_ok() {}
        let mut stream = Box::pin(send_queue.clone().into_stream(None));
        let drain = async {
            while !send_queue.lock().queue.has_room() {
                stream.next().await.unwrap().unwrap();
            }
        };
        tokio::join!(send_queue.room(), drain);
        drop(stream);
        send_queue.closed().await;
    }

    #[tokio::test]
    async fn a_diverted_queue_says_so_and_then_all_else_past_the_stream() {
        let send_queue = Arc::new(SendQueue::default());
        send_queue.push(promote(1)).unwrap();
        let mut stream = Box::pin(send_queue.clone().into_stream(None));
        assert!(stream.next().await.unwrap().unwrap().welcome.is_some());
        assert_eq!(stream.next().await.unwrap().unwrap().messages.len(), 1);
        send_queue.push(promote(2)).unwrap();
        send_queue.divert();
        assert!(stream.next().await.unwrap().unwrap().bypassed);
        send_queue.push(promote(3)).unwrap();
        assert_eq!(send_queue.next_of_bypass().await.unwrap().messages.len(), 2);
        send_queue.fail(Error::ShuttingDown);
        assert!(send_queue.next_of_bypass().await.is_none());
        assert!(stream.next().await.unwrap().is_err());
        assert!(stream.next().await.is_none());
    }
}
