use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hoplite_core::error::Error;
use hoplite_core::node::{self, CallId, Inspection};
use hoplite_proto::local::Response;
use tokio::sync::Notify;

use crate::copies::LiveCopy;

pub(crate) type Answer = (CallId, Result<Response, Error>);

/// A connection's work for a call, as the node requests.
#[derive(Debug)]
pub(crate) enum CallWork {
    /// Reports when more than `beyond_bytes` of a copy are valid, or the copy has failed.
    Follow {
        call: CallId,
        live: Arc<LiveCopy>,
        beyond_bytes: u64,
    },
    /// Answers a request about the cluster with reports of `shards`, and then ends the call.
    Inspect {
        call: CallId,
        inspection: Inspection,
        shards: Vec<usize>,
    },
    End {
        call: CallId,
    },
}

/// The answers that wait for one client, in order. A newer update of a subscription replaces the
/// older one, so each open call has at most one answer here.
///
/// A suspended client is not dropped: the store would reuse the memory of its views.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// Program and process, for reports about holders of memory.
    client: String,
    waiting: Mutex<Waiting>,
    added: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    last_number: u64,
    answers: BTreeMap<u64, Answer>,
    news: BTreeMap<CallId, u64>,
    /// At most two entries per call since the connection last took the work.
    work: VecDeque<CallWork>,
}

impl Answers {
    pub(crate) fn of(client: String) -> Self {
        Self { client, ..Self::default() }
    }

    pub(crate) fn client(&self) -> &str {
        &self.client
    }

    pub(crate) fn add(&self, answer: Answer) {
        self.lock().add(answer);
        self.added.notify_one();
    }

    pub(crate) fn add_work(&self, work: CallWork) {
        self.lock().work.push_back(work);
        self.added.notify_one();
    }

    pub(super) fn take_work(&self) -> Option<CallWork> {
        self.lock().work.pop_front()
    }

    pub(super) fn take(&self) -> Option<Answer> {
        let mut waiting = self.lock();
        let (number, answer) = waiting.answers.pop_first()?;
        if waiting.news.get(&answer.0) == Some(&number) {
            waiting.news.remove(&answer.0);
        }
        Some(answer)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().answers.is_empty()
    }

    /// Waits until an answer or work was added since the last return; the queues may be empty
    /// again. Cancel safe.
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
        let locations =
            Locations { id: ObjectId::new(id).unwrap(), object: None, locations: Vec::new() };
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
        let expected =
            [news(1, "new"), sealed(), news(2, "other"), (CallId(1), Err(Error::ShuttingDown))];
        assert_eq!(std::iter::from_fn(|| answers.take()).collect::<Vec<_>>(), expected);
        answers.add(news(1, "newer"));
        assert_eq!(answers.take(), Some(news(1, "newer")));
    }
}
