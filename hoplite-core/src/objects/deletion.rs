use std::collections::{BTreeMap, BTreeSet};

use super::shard_sessions::ShardSessions;
use crate::id::{NodeId, PutId};
use crate::missing::Named;
use crate::shard::{DeleteTerms, DeleteWait, RequestId};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeleteStep {
    wait: DeleteWait,
    put: Option<PutId>,
    /// Shard that has deleted the object; `Some` while the id's other shard repeats the delete.
    done_by: Option<usize>,
}

impl DeleteStep {
    pub(crate) const fn new(wait: DeleteWait) -> Self {
        Self { wait, put: None, done_by: None }
    }

    pub(crate) const fn terms(self) -> DeleteTerms {
        DeleteTerms { only: self.put, wait: self.wait }
    }

    pub(crate) fn waits_for(self, absent: &Named<NodeId>) -> bool {
        self.wait == DeleteWait::All && !absent.is_empty()
    }

    pub(crate) fn found(&mut self, put: Option<PutId>) {
        self.put = self.put.or(put);
    }

    pub(crate) const fn put(self) -> Option<PutId> {
        self.put
    }

    pub(crate) const fn has_found(self) -> bool {
        self.put.is_some()
    }

    pub(crate) const fn confirm(&mut self, done_by: usize) {
        self.done_by = Some(done_by);
    }

    pub(crate) const fn is_confirmation(self) -> bool {
        self.done_by.is_some()
    }

    pub(crate) const fn begin_again(&mut self) {
        self.done_by = None;
    }

    pub(crate) fn done_by(self, last: usize) -> impl Iterator<Item = usize> {
        self.done_by.into_iter().chain([last])
    }
}

#[derive(Debug)]
pub(crate) struct DeleteCall {
    pub(crate) queries: BTreeSet<RequestId>,
    deleted: usize,
    /// Unreachable stores that may have a copy, for each query and the shard that reported them.
    absent: BTreeMap<(RequestId, usize), Named<NodeId>>,
    /// Just restarted shards that performed a delete, if no shard without a restart did. The call
    /// waits until the leases of their previous runs have ended.
    young: BTreeSet<usize>,
}

impl DeleteCall {
    pub(crate) const fn new(queries: BTreeSet<RequestId>, deleted: usize) -> Self {
        Self { queries, deleted, absent: BTreeMap::new(), young: BTreeSet::new() }
    }

    pub(crate) fn note_absent(&mut self, query: RequestId, shard: usize, absent: Named<NodeId>) {
        if absent.is_empty() {
            self.absent.remove(&(query, shard));
        } else {
            self.absent.insert((query, shard), absent);
        }
    }

    pub(crate) fn answered(&mut self, query: RequestId, was_there: bool, young: Option<usize>) {
        self.queries.remove(&query);
        self.deleted += usize::from(was_there);
        self.young.extend(young);
    }

    pub(crate) fn outcome(&self, sessions: &ShardSessions) -> Option<usize> {
        (self.queries.is_empty() && self.awaited_shard(sessions).is_none()).then_some(self.deleted)
    }

    pub(crate) fn awaited_shard(&self, sessions: &ShardSessions) -> Option<usize> {
        self.young.iter().copied().find(|shard| !sessions.is_trusted(*shard))
    }

    pub(crate) fn absent(&self) -> Named<NodeId> {
        let names: BTreeSet<&NodeId> =
            self.absent.values().flat_map(|absent| &absent.first).collect();
        let named = Named::of(names.into_iter().cloned());
        let most = self.absent.values().map(|absent| absent.count).max().unwrap_or(0);
        Named { count: named.count.max(most), ..named }
    }
}
