//! Shards' orders to keep a copy.

use std::collections::BTreeMap;

use crate::id::{ObjectId, PutId};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) shard: usize,
    pub(crate) put: PutId,
}

pub(crate) type Orders = BTreeMap<ObjectId, Order>;
