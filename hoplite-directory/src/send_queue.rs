//! The shard queues messages without waiting; the connection sends them in batches. A store that
//! does not read fills the queue and loses its session. Before that, [`SendQueue::wait_for_space`]
//! slows down a store that sends faster than it reads.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::stream::{self, Stream, StreamExt};
use hoplite_core::Version;
use hoplite_core::batch::{AnswerQueue, Full};
use hoplite_core::error::Error;
use hoplite_core::shard::{ShardRun, ToStore};
use hoplite_proto::directory::{encode_to_store, welcome};
use hoplite_proto::v1::ShardMessages;
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    run: u64,
    newest: Version,
    state: Mutex<State>,
    news: Notify,
    drained: Notify,
    closed: CancellationToken,
}

#[derive(Debug, Default)]
struct State {
    queue: AnswerQueue,
    pings: u64,
    is_pinged: bool,
    /// Reason why the session ended, until it is sent.
    error: Option<Error>,
}

impl SendQueue {
    pub(crate) fn of(run: ShardRun, newest: Version) -> Self {
        Self { run: run.0, newest, ..Self::default() }
    }

    pub(crate) fn push(&self, message: ToStore) -> Result<(), Full> {
        if self.closed.is_cancelled() {
            return Ok(());
        }
        self.lock().queue.push(message)?;
        self.news.notify_one();
        Ok(())
    }

    pub(crate) fn answer_ping(&self) {
        let mut state = self.lock();
        state.pings += 1;
        state.is_pinged = true;
        drop(state);
        self.news.notify_one();
    }

    /// Ends the session after the queued messages.
    pub(crate) fn close(&self) {
        self.closed.cancel();
        self.news.notify_one();
    }

    /// Ends the session immediately, and drops the queued messages.
    pub(crate) fn fail(&self, error: Error) {
        let mut state = self.lock();
        state.queue.clear();
        state.error.get_or_insert(error);
        drop(state);
        self.close();
    }

    pub(crate) async fn closed(&self) {
        self.closed.cancelled().await;
    }

    /// Waits until answers fit into the queue. `Unavailable` if the store takes no message for
    /// `silence_limit`.
    pub(crate) async fn wait_for_space(&self, silence_limit: Duration) -> Result<(), Error> {
        loop {
            let mut drained = pin!(self.drained.notified());
            // Registers before the check, so that a wake-up between them counts.
            drained.as_mut().enable();
            if self.lock().queue.has_space() {
                return Ok(());
            }
            timeout(silence_limit, drained).await.map_err(|_| Error::unavailable("the store"))?;
        }
    }

    /// Returns the frames for the store, first a welcome. Dropping the stream closes the queue.
    /// Call this once.
    pub(crate) fn into_stream(
        self: Arc<Self>,
    ) -> impl Stream<Item = Result<ShardMessages, Error>> + Send + 'static {
        let hello = ShardMessages {
            welcome: Some(welcome(ShardRun(self.run), self.newest)),
            ..Default::default()
        };
        let guard = CloseOnDrop(self);
        let batches =
            stream::unfold(guard, |guard| async move { Some((guard.0.next().await?, guard)) });
        stream::once(std::future::ready(Ok(hello))).chain(batches)
    }

    async fn next(&self) -> Option<Result<ShardMessages, Error>> {
        loop {
            // Read before the queue: messages queued before the end are sent.
            let is_closed = self.closed.is_cancelled();
            let (batch, pings) = {
                let mut state = self.lock();
                if let Some(error) = state.error.take() {
                    return Some(Err(error));
                }
                let is_pinged = std::mem::take(&mut state.is_pinged);
                (state.queue.take_batch(), if is_pinged { state.pings } else { 0 })
            };
            if pings > 0 || !batch.is_empty() {
                return Some(Ok(self.frame(batch, pings)));
            }
            if is_closed {
                return None;
            }
            self.news.notified().await;
        }
    }

    fn frame(&self, batch: Vec<ToStore>, pings: u64) -> ShardMessages {
        self.drained.notify_waiters();
        let messages = batch.into_iter().map(encode_to_store).collect();
        ShardMessages { messages, pings, ..Default::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
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
    async fn queued_messages_are_sent_in_full_batches_before_the_end() {
        let send_queue = Arc::new(SendQueue::default());
        for number in 0..300 {
            send_queue.push(promote(number)).unwrap();
        }
        send_queue.close();
        let frames: Vec<_> = send_queue.into_stream().map(Result::unwrap).collect().await;
        assert!(frames[0].welcome.is_some());
        assert_eq!(
            frames.iter().map(|frame| frame.messages.len()).collect::<Vec<_>>(),
            [0, 256, 44]
        );
    }

    #[tokio::test]
    async fn a_failure_is_sent_at_once_and_ends_the_stream() {
        let send_queue = Arc::new(SendQueue::default());
        send_queue.push(promote(1)).unwrap();
        send_queue.fail(Error::ShuttingDown);
        let frames: Vec<_> = send_queue.into_stream().collect().await;
        assert_eq!(frames.len(), 2);
        assert_eq!(frames[1], Err(Error::ShuttingDown));
    }

    #[tokio::test]
    async fn a_drained_queue_has_space_again() {
        let send_queue = Arc::new(SendQueue::default());
        while send_queue.push(promote(0)).is_ok() {}
        let mut stream = Box::pin(send_queue.clone().into_stream());
        let drain = async {
            while !send_queue.lock().queue.has_space() {
                stream.next().await.unwrap().unwrap();
            }
        };
        let (room, ()) = tokio::join!(send_queue.wait_for_space(Duration::from_secs(300)), drain);
        room.unwrap();
        drop(stream);
        send_queue.closed().await;
    }
}
