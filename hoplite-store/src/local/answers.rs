//! What one client is still to be told.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hoplite_core::error::Error;
use hoplite_core::node::{self, CallId, Inspection};
use hoplite_proto::local::Response;
use tokio::sync::Notify;

use crate::copies::LiveCopy;

/// An answer on its way to a client.
pub(crate) type Answer = (CallId, Result<Response, Error>);

/// What the client's connection is to do for one of its calls, as the node has decided.
#[derive(Debug)]
pub(crate) enum CallWork {
    /// Tell the node when more than `beyond_bytes` of a copy are valid, or it fails.
    Follow { call: CallId, live: Arc<LiveCopy>, beyond_bytes: u64 },
    /// Ask these shards, answer, and tell the node so.
    Inspect { call: CallId, inspection: Inspection, shards: Vec<usize> },
    /// The call has ended.
    End { call: CallId },
}

/// The answers that wait for one client, in order; of the news of one subscription only the latest.
///
/// So there is at most one for each open call, however long the client does not read. A client that is stopped must not
/// be dropped for that: it may hold views, whose memory would be given to others.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// The name of the client's program and its process, for those who ask what holds room.
    client: String,
    waiting: Mutex<Waiting>,
    added: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    last_number: u64,
    answers: BTreeMap<u64, Answer>,
    /// Which of them are the latest news of a call.
    news: BTreeMap<CallId, u64>,
    /// At most two for each call of the client that was handled since the connection looked last.
    work: VecDeque<CallWork>,
}

impl Answers {
    /// Makes an empty queue for the client of this name.
    pub(crate) fn of(client: String) -> Self {
        Self { client, ..Self::default() }
    }

    /// The name of the client.
    pub(crate) fn client(&self) -> &str {
        &self.client
    }

    /// Adds an answer. News take the place of older news of the same call.
    pub(crate) fn add(&self, answer: Answer) {
        self.lock().add(answer);
        self.added.notify_one();
    }

    /// Adds something to do.
    pub(crate) fn add_work(&self, work: CallWork) {
        self.lock().work.push_back(work);
        self.added.notify_one();
    }

    /// Takes what was to be done first.
    pub(super) fn take_work(&self) -> Option<CallWork> {
        self.lock().work.pop_front()
    }

    /// Takes the answer that has waited longest.
    pub(super) fn take(&self) -> Option<Answer> {
        let mut waiting = self.lock();
        let (number, answer) = waiting.answers.pop_first()?;
        if waiting.news.get(&answer.0) == Some(&number) {
            waiting.news.remove(&answer.0);
        }
        Some(answer)
    }

    /// Returns `true` if no answer waits.
    pub(super) fn is_empty(&self) -> bool {
        self.lock().answers.is_empty()
    }

    /// Waits until an answer was added since the last call of this; there may be none any more.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(super) async fn added(&self) {
        self.added.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn add(&mut self, answer: Answer) {
        let call = answer.0;
        let is_news = matches!(answer.1, Ok(Response::Node(node::Response::Locations(_))));
        if is_news
            && let Some(number) = self.news.get(&call)
            && let Some(older) = self.answers.get_mut(number)
        {
            *older = answer;
            return;
        }
        self.last_number += 1;
        self.answers.insert(self.last_number, answer);
        if is_news {
            self.news.insert(call, self.last_number);
        }
    }
}

#[cfg(test)]
mod tests {
    use hoplite_core::ObjectId;
    use hoplite_core::shard::Locations;

    use super::*;

    fn news(call: u64, id: &str) -> Answer {
        let locations = Locations { id: ObjectId::new(id).unwrap(), object: None, locations: Vec::new() };
        (CallId(call), Ok(Response::Node(node::Response::Locations(locations))))
    }

    #[test]
    fn a_client_that_does_not_read_is_owed_only_the_latest_news() {
        let sealed = || (CallId(9), Ok(Response::Node(node::Response::Sealed)));
        let answers = Answers::default();
        for _ in 0..1000 {
            answers.add(news(1, "old"));
        }
        answers.add(sealed());
        answers.add(news(2, "other"));
        answers.add(news(1, "new"));
        answers.add((CallId(1), Err(Error::ShuttingDown)));
        let expected = [news(1, "new"), sealed(), news(2, "other"), (CallId(1), Err(Error::ShuttingDown))];
        assert_eq!(std::iter::from_fn(|| answers.take()).collect::<Vec<_>>(), expected);
        answers.add(news(1, "newer"));
        assert_eq!(answers.take(), Some(news(1, "newer")));
    }
}
