//! Shards that know the puts of killed stores.

use std::collections::BTreeSet;

use crate::id::ObjectId;
use crate::shard::ShardRun;

#[derive(Debug, Default)]
pub(crate) struct Witnesses {
    /// The shard runs with which the killed stores had sessions.
    pub(super) runs: BTreeSet<ShardRun>,
    /// Ids with several puts in the files; empty after the recovery.
    pub(super) ambiguous: BTreeSet<ObjectId>,
}
