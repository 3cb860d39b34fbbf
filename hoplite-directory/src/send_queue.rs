//! What a shard has still to say to one store.
//!
//! The task that owns the shard puts messages in without ever waiting; the connection takes them out in batches. A store
//! that does not listen runs into the limit and loses its session. One that only asks faster than it listens is slowed down
//! before that: its session reads on when there is [`SendQueue::room`].

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::stream::{self, Stream, StreamExt};
use hoplite_core::batch::{AnswerQueue, Full};
use hoplite_core::error::Error;
use hoplite_core::shard::ToStore;
use hoplite_proto::directory::{encode_to_store, welcome};
use hoplite_proto::v1::ShardMessages;
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// The queue of one session.
#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    state: Mutex<State>,
    /// Wakes the stream of frames.
    news: Notify,
    drained: Notify,
    closed: CancellationToken,
}

#[derive(Debug, Default)]
struct State {
    queue: AnswerQueue,
    /// `true` if a ping of the store is to be answered.
    is_pinged: bool,
    /// Why the session ends, until the store was told.
    error: Option<Error>,
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
        self.lock().queue.push(message)?;
        self.news.notify_one();
        Ok(())
    }

    /// Answers a ping of the store, with messages if there are any.
    pub(crate) fn pinged(&self) {
        self.lock().is_pinged = true;
        self.news.notify_one();
    }

    /// Ends the session after what is queued.
    pub(crate) fn close(&self) {
        self.closed.cancel();
        self.news.notify_one();
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

    /// Waits until few enough messages wait.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the store takes no message for `silence_limit`.
    pub(crate) async fn room(&self, silence_limit: Duration) -> Result<(), Error> {
        loop {
            let mut drained = pin!(self.drained.notified());
            // From here on it is told, so that it does not miss what happens after the look.
            drained.as_mut().enable();
            if self.lock().queue.has_room() {
                return Ok(());
            }
            timeout(silence_limit, drained).await.map_err(|_| Error::unavailable("the store"))?;
        }
    }

    /// Returns the frames of the session, a welcome first. There is to be one stream for each queue; the queue is closed
    /// when the stream is dropped.
    pub(crate) fn into_stream(
        self: Arc<Self>,
    ) -> impl Stream<Item = Result<ShardMessages, Error>> + Send + 'static {
        let hello = ShardMessages { welcome: Some(welcome()), ..Default::default() };
        let guard = CloseOnDrop(self);
        let batches = stream::unfold(guard, |guard| async move { Some((guard.0.next().await?, guard)) });
        stream::once(std::future::ready(Ok(hello))).chain(batches)
    }

    async fn next(&self) -> Option<Result<ShardMessages, Error>> {
        loop {
            // Looked at before the queue: what was queued before the end is still said.
            let is_closed = self.closed.is_cancelled();
            let (batch, is_pinged) = {
                let mut state = self.lock();
                if let Some(error) = state.error.take() {
                    return Some(Err(error));
                }
                (state.queue.take_batch(), std::mem::take(&mut state.is_pinged))
            };
            if is_pinged || !batch.is_empty() {
                return Some(Ok(self.frame(batch)));
            }
            if is_closed {
                return None;
            }
            self.news.notified().await;
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
        let frames: Vec<_> = send_queue.into_stream().map(Result::unwrap).collect().await;
        assert!(frames[0].welcome.is_some());
        assert_eq!(frames.iter().map(|frame| frame.messages.len()).collect::<Vec<_>>(), [0, 256, 44]);
    }

    #[tokio::test]
    async fn a_failure_is_said_at_once_and_ends_the_stream() {
        let send_queue = Arc::new(SendQueue::default());
        send_queue.push(promote(1)).unwrap();
        send_queue.fail(Error::ShuttingDown);
        let frames: Vec<_> = send_queue.into_stream().collect().await;
        assert_eq!(frames.len(), 2);
        assert_eq!(frames[1], Err(Error::ShuttingDown));
    }

    #[tokio::test]
    async fn room_returns_when_the_queue_is_drained() {
        let send_queue = Arc::new(SendQueue::default());
        while send_queue.push(promote(0)).is_ok() {}
        let mut stream = Box::pin(send_queue.clone().into_stream());
        let drain = async {
            while !send_queue.lock().queue.has_room() {
                stream.next().await.unwrap().unwrap();
            }
        };
        let (room, ()) = tokio::join!(send_queue.room(Duration::from_secs(300)), drain);
        room.unwrap();
        drop(stream);
        send_queue.closed().await;
    }
}
