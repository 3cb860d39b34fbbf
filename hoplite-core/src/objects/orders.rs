//! The orders of shards to keep objects.

use std::collections::BTreeMap;

use crate::id::{ObjectId, PutId};

/// The order of a shard to keep an object, while the store fetches it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) shard: usize,
    pub(crate) put: PutId,
}

/// The open orders of shards, by object.
pub(crate) type Orders = BTreeMap<ObjectId, Order>;
