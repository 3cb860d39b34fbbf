use std::collections::BTreeSet;

use crate::id::ObjectId;
use crate::shard::ShardRun;

#[derive(Debug, Default)]
pub(crate) struct Witnesses {
    /// Shard runs that may know the killed stores' puts, after sessions with them.
    pub(super) runs: BTreeSet<ShardRun>,
    /// Ids with several puts in the killed stores' spill files; empty after the recovery.
    pub(super) ambiguous: BTreeSet<ObjectId>,
}
