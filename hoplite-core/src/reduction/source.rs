use std::collections::BTreeMap;
use std::net::SocketAddr;

use bytes::Bytes;

use crate::dtype::Dtype;
use crate::id::{NodeId, ObjectId, PutId};
use crate::message::{CallId, CopyId};
use crate::metadata::Metadata;
use crate::shard::{Location, Locations, RequestId};
use crate::time::Time;

#[derive(Debug)]
pub(super) struct Source {
    pub(super) query: Option<RequestId>,
    pub(super) news: Option<Locations>,
    pub(super) place: SourcePlace,
    pub(super) avoided: BTreeMap<NodeId, Time>,
    pub(super) joined_put: Option<PutId>,
    pub(super) is_expected: bool,
    pub(super) missing_since: Option<Time>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SourcePlace {
    Apart,
    /// This store fetches the source. It counts towards `request.count`.
    Fetching(CallId),
    Here {
        copy: CopyId,
        /// This store's address, if a shard listed it. A spilled copy is streamed from it.
        address: Option<SocketAddr>,
    },
    Elsewhere,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Common {
    pub(super) first: ObjectId,
    pub(super) size_bytes: u64,
    pub(super) dtype: Dtype,
    pub(super) shape: Option<Vec<u64>>,
    pub(super) user: Bytes,
    pub(super) base_bytes: u64,
    /// Length of the reduced part, i.e. of the target.
    pub(super) length_bytes: u64,
    /// `true` if this store fetches all sources, so that a requested order holds.
    pub(super) is_fetched: bool,
}

impl Common {
    /// Sources' metadata, without the shape if only a part is reduced.
    pub(super) fn target_metadata(&self) -> Metadata {
        let is_whole = self.length_bytes == self.size_bytes;
        let shape = if is_whole { self.shape.clone() } else { None };
        Metadata {
            dtype: self.dtype,
            shape,
            user: self.user.clone(),
            agreement: None,
            ..Metadata::default()
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Readiness {
    Here(CopyId),
    Small,
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
            is_expected: false,
            missing_since: None,
        }
    }

    pub(super) const fn expect(&mut self) {
        self.is_expected = true;
    }

    pub(super) fn address_at(&self, node: &NodeId) -> Option<SocketAddr> {
        let mut locations = self.news.as_ref()?.locations.iter();
        locations.find(|location| location.node == *node).map(|location| location.data_address)
    }

    pub(super) const fn is_apart(&self) -> bool {
        matches!(self.place, SourcePlace::Apart)
    }

    pub(super) fn avoid(&mut self, node: NodeId, until: Time) {
        self.avoided.insert(node, until);
    }

    pub(super) fn is_avoided(&self, node: &NodeId, now: Time) -> bool {
        self.avoided.get(node).is_some_and(|until| now < *until)
    }

    pub(super) fn has_failed_at(&self, node: &NodeId) -> bool {
        self.avoided.contains_key(node)
    }

    pub(super) fn join_elsewhere(&mut self) {
        self.set_place(SourcePlace::Elsewhere);
        self.joined_put = self.known_put();
    }

    pub(super) fn set_place(&mut self, place: SourcePlace) {
        self.place = place;
        self.is_expected = true;
        self.missing_since = None;
    }

    pub(super) fn avoided(&self) -> impl Iterator<Item = &NodeId> {
        self.avoided.keys()
    }

    pub(super) fn known_put(&self) -> Option<PutId> {
        self.news.as_ref()?.object.as_ref().map(|object| object.put)
    }

    pub(super) fn is_lost(&self) -> bool {
        self.news.as_ref().and_then(|news| news.object.as_ref()).is_some_and(|object| object.lost)
    }

    pub(super) fn has_changed(&self) -> bool {
        self.is_lost() || self.known_put() != self.joined_put
    }

    pub(super) fn is_known(&self) -> bool {
        self.news.as_ref().is_some_and(|news| news.object.is_some())
    }
}
