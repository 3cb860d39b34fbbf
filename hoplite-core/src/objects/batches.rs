use std::collections::BTreeMap;

use crate::error::Result;
use crate::message::{CallId, CallKey, ClientId, Response};

#[derive(Debug, Default)]
pub(crate) struct Batches(BTreeMap<CallKey, Batch>);

#[derive(Debug)]
struct Batch {
    answers: Vec<Option<Result<Response>>>,
    open_items: usize,
}

impl Batches {
    pub(super) fn open(&mut self, key: CallKey, items: usize) {
        let answers = (0..items).map(|_| None).collect();
        self.0.insert(key, Batch { answers, open_items: items });
    }

    pub(crate) fn contains(&self, key: CallKey) -> bool {
        self.0.contains_key(&key)
    }

    pub(super) fn items(&self, client: ClientId) -> usize {
        self.range(client).map(|(_, batch)| batch.answers.len()).sum()
    }

    pub(crate) fn answered(&mut self, item: CallKey, response: Result<Response>) -> bool {
        let Some(batch) = self.0.get_mut(&item.whole()) else { return false };
        let answer =
            (item.item as usize).checked_sub(1).and_then(|index| batch.answers.get_mut(index));
        let Some(answer @ None) = answer else { return false };
        *answer = Some(response);
        batch.open_items -= 1;
        batch.open_items == 0
    }

    pub(super) fn remove(&mut self, key: CallKey) -> Option<Vec<Result<Response>>> {
        self.0.remove(&key).map(|batch| batch.answers.into_iter().flatten().collect())
    }

    pub(super) fn of_client(&self, client: ClientId) -> Vec<CallKey> {
        self.range(client).map(|(key, _)| *key).collect()
    }

    fn range(&self, client: ClientId) -> impl Iterator<Item = (&CallKey, &Batch)> {
        self.0.range(CallKey::of(client, CallId(0))..=CallKey::of(client, CallId(u64::MAX)))
    }
}
