//! The state of deletes: their calls, and how far each id is.

use std::collections::{BTreeMap, BTreeSet};

use super::shard_sessions::ShardSessions;
use crate::id::{NodeId, PutId};
use crate::missing::Named;
use crate::shard::{DeleteTerms, DeleteWait, RequestId};

/// The progress of the delete of one id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeleteStep {
    wait: DeleteWait,
    /// The put that a shard has deleted.
    put: Option<PutId>,
    /// The shard that has carried out the delete, while another one confirms it.
    done_by: Option<usize>,
}

impl DeleteStep {
    /// A delete that no shard has carried out.
    pub(crate) const fn new(wait: DeleteWait) -> Self {
        Self { wait, put: None, done_by: None }
    }

    /// The terms for the next shard.
    pub(crate) const fn terms(self) -> DeleteTerms {
        DeleteTerms { only: self.put, wait: self.wait }
    }

    pub(crate) fn waits_for(self, absent: &Named<NodeId>) -> bool {
        self.wait == DeleteWait::All && !absent.is_empty()
    }

    /// Notes the put that a shard has deleted.
    pub(crate) fn found(&mut self, put: Option<PutId>) {
        self.put = self.put.or(put);
    }

    /// Returns the put that a shard has deleted.
    pub(crate) const fn put(self) -> Option<PutId> {
        self.put
    }

    /// Returns `true` if a shard has deleted a put.
    pub(crate) const fn has_found(self) -> bool {
        self.put.is_some()
    }

    /// A shard has carried out the delete. Another shard confirms it.
    pub(crate) const fn confirm(&mut self, done_by: usize) {
        self.done_by = Some(done_by);
    }

    pub(crate) const fn is_confirmation(self) -> bool {
        self.done_by.is_some()
    }

    /// The shards have changed, so the first one of now carries out the delete.
    pub(crate) const fn begin_again(&mut self) {
        self.done_by = None;
    }

    /// The shards that have carried out the delete, if `last` is the last of them.
    pub(crate) fn done_by(self, last: usize) -> impl Iterator<Item = usize> {
        self.done_by.into_iter().chain([last])
    }
}

/// A delete of several ids.
#[derive(Debug)]
pub(crate) struct DeleteCall {
    pub(crate) queries: BTreeSet<RequestId>,
    /// The number of ids that named an object.
    deleted: usize,
    /// The lost stores that may have copies, by query and shard. Each shard may know others.
    absent: BTreeMap<(RequestId, usize), Named<NodeId>>,
    /// The shards that have carried out a delete without a shard that the store trusted.
    young: BTreeSet<usize>,
}

impl DeleteCall {
    /// A delete with these open queries. So many ids have named an object already.
    pub(crate) const fn new(queries: BTreeSet<RequestId>, deleted: usize) -> Self {
        Self { queries, deleted, absent: BTreeMap::new(), young: BTreeSet::new() }
    }

    /// Notes the lost stores that may have copies, according to the latest answer of a shard.
    pub(crate) fn note_absent(&mut self, query: RequestId, shard: usize, absent: Named<NodeId>) {
        if absent.is_empty() {
            self.absent.remove(&(query, shard));
        } else {
            self.absent.insert((query, shard), absent);
        }
    }

    /// Ends a query: `was_there` if its id named an object. `young` is a shard to wait for.
    pub(crate) fn answered(&mut self, query: RequestId, was_there: bool, young: Option<usize>) {
        self.queries.remove(&query);
        self.deleted += usize::from(was_there);
        self.young.extend(young);
    }

    /// Returns the number of ids that named an object, once all queries are answered.
    pub(crate) fn outcome(&self, sessions: &ShardSessions) -> Option<usize> {
        (self.queries.is_empty() && self.awaited_shard(sessions).is_none()).then_some(self.deleted)
    }

    /// A shard for which the call waits until leases of its previous run have ended.
    pub(crate) fn awaited_shard(&self, sessions: &ShardSessions) -> Option<usize> {
        self.young.iter().copied().find(|shard| !sessions.is_trusted(*shard))
    }

    /// The lost stores that may have copies.
    pub(crate) fn absent(&self) -> Named<NodeId> {
        let names: BTreeSet<&NodeId> = self.absent.values().flat_map(|absent| &absent.first).collect();
        let named = Named::of(names.into_iter().cloned());
        let most = self.absent.values().map(|absent| absent.count).max().unwrap_or(0);
        Named { count: named.count.max(most), ..named }
    }
}
