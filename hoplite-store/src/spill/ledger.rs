//! A later run must not find a retired record, so one thread at a time performs the queued changes
//! of spill files, in the order of the core.

use std::collections::{BTreeMap, VecDeque};

use hoplite_core::node::{SpillFile, SpillRecord, SpilledObject};
use hoplite_core::shard::ShardRun;

/// With more queued changes, some are lost, so no later run recovers the files.
pub(super) const MAX_QUEUED: usize = 100_000;

#[derive(Debug)]
pub(crate) enum Change {
    Index(SpillFile, Vec<SpilledObject>),
    Retire(SpillRecord),
    Remove(SpillFile),
    Shard(ShardRun),
}

#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// At most [`MAX_QUEUED`] changes, and further removals of files.
    pub(super) queue: VecDeque<Change>,
    /// `true` after a change was left out, because of [`MAX_QUEUED`].
    pub(super) has_gap: bool,
    pub(super) is_busy: bool,
    /// Offset of each file's index.
    pub(super) indexed: BTreeMap<SpillFile, u64>,
}

impl Ledger {
    pub(super) fn of_recovered(indexed: BTreeMap<SpillFile, u64>) -> Self {
        Self { indexed, ..Self::default() }
    }
}
