//! The queue of changes to spill files that exist.
//!
//! A later run must not find a record that was retired before, so one thread at a time performs the
//! changes, in the order of the core.

use std::collections::{BTreeMap, VecDeque};

use hoplite_core::node::{SpillFile, SpillRecord, SpilledObject};
use hoplite_core::shard::ShardRun;

#[derive(Debug)]
pub(crate) enum Change {
    Index(SpillFile, Vec<SpilledObject>),
    Retire(SpillRecord),
    Remove(SpillFile),
    Shard(ShardRun),
}

#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// One entry for each change of a record or file that exists.
    pub(super) queue: VecDeque<Change>,
    pub(super) is_busy: bool,
    /// The files with an index, and the offsets of the indices.
    pub(super) indexed: BTreeMap<SpillFile, u64>,
}

impl Ledger {
    pub(super) fn of_recovered(indexed: BTreeMap<SpillFile, u64>) -> Self {
        Self { indexed, ..Self::default() }
    }
}
