//! One source of a reduce, and what all sources have in common.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::dtype::Dtype;
use crate::id::{NodeId, ObjectId, PutId};
use crate::message::{CallId, CopyId};
use crate::metadata::Metadata;
use crate::shard::{Location, Locations, RequestId};
use crate::time::Time;

/// One source.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) query: Option<RequestId>,
    /// The latest answer of the directory.
    pub(super) news: Option<Locations>,
    pub(super) place: SourcePlace,
    /// Nodes from which the source could not be had, and until when the reduce avoids them.
    pub(super) avoided: BTreeMap<NodeId, Time>,
    /// The put of the source that was in the reduce last.
    pub(super) joined_put: Option<PutId>,
    /// `true` if it was in the reduce, or on its way into it, at some time.
    pub(super) was_taken: bool,
    pub(super) missing_since: Option<Time>,
}

/// The place where a source enters the reduce.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SourcePlace {
    /// It has not joined.
    Apart,
    /// It is being fetched to this store, and counts as one that joins.
    Fetching(CallId),
    /// In this copy of this store, which is held.
    Here { copy: CopyId },
    /// At a vertex of the tree.
    Elsewhere,
}

/// The properties that all sources share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Common {
    /// The first one that was known.
    pub(super) first: ObjectId,
    pub(super) size_bytes: u64,
    pub(super) dtype: Dtype,
    pub(super) shape: Option<Vec<u64>>,
    /// The bytes of the application, if they are the same in all that were seen.
    pub(super) user: Bytes,
    /// The offset of the reduced part in each source.
    pub(super) base_bytes: u64,
    /// The length of that part: the size of the target.
    pub(super) length_bytes: u64,
    /// `true` if sources are fetched to the receiver. Decided once, so that an order that is asked for is kept.
    pub(super) is_fetched: bool,
}

impl Common {
    /// The metadata of the target: the metadata of the sources, without the shape if only a part is
    /// reduced.
    pub(super) fn target_metadata(&self) -> Metadata {
        let is_whole = self.length_bytes == self.size_bytes;
        let shape = if is_whole { self.shape.clone() } else { None };
        Metadata { dtype: self.dtype, shape, user: self.user.clone(), agreement: None, ..Metadata::default() }
    }
}

/// The way in which a source can join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Readiness {
    /// It is in this store.
    Here(CopyId),
    /// Its bytes are fetched to this store.
    Small,
    /// It is at this location.
    At(Location),
}

impl Source {
    pub(super) fn new(query: RequestId) -> Self {
        Self {
            query: Some(query),
            news: None,
            place: SourcePlace::Apart,
            avoided: BTreeMap::new(),
            joined_put: None,
            was_taken: false,
            missing_since: None,
        }
    }

    /// Counts the source as lost once the directory knows no copy, because it was there before the
    /// reduce began.
    pub(super) const fn expect(&mut self) {
        self.was_taken = true;
    }

    pub(super) const fn is_apart(&self) -> bool {
        matches!(self.place, SourcePlace::Apart)
    }

    /// Leaves a node alone until then.
    pub(super) fn avoid(&mut self, node: NodeId, until: Time) {
        self.avoided.insert(node, until);
    }

    pub(super) fn is_avoided(&self, node: &NodeId, now: Time) -> bool {
        self.avoided.get(node).is_some_and(|until| now < *until)
    }

    /// Returns `true` if it could not be had there before, lately or long ago.
    pub(super) fn has_failed_at(&self, node: &NodeId) -> bool {
        self.avoided.contains_key(node)
    }

    /// It joins the reduce at a vertex, as the put that the directory knows.
    pub(super) fn join_elsewhere(&mut self) {
        self.take(SourcePlace::Elsewhere);
        self.joined_put = self.known_put();
    }

    pub(super) fn take(&mut self, place: SourcePlace) {
        self.place = place;
        self.was_taken = true;
        self.missing_since = None;
    }

    /// The nodes from which it could not be had.
    pub(super) fn avoided(&self) -> impl Iterator<Item = &NodeId> {
        self.avoided.keys()
    }

    /// Returns the put that the directory knows.
    pub(super) fn known_put(&self) -> Option<PutId> {
        self.news.as_ref()?.object.as_ref().map(|object| object.put)
    }

    pub(super) fn is_lost(&self) -> bool {
        self.news.as_ref().and_then(|news| news.object.as_ref()).is_some_and(|object| object.lost)
    }

    /// Returns `true` if the directory knows no copy of the put that has joined.
    pub(super) fn is_gone(&self) -> bool {
        self.is_lost() || self.known_put() != self.joined_put
    }

    pub(super) fn is_known(&self) -> bool {
        self.news.as_ref().is_some_and(|news| news.object.is_some())
    }
}
