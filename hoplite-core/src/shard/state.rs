//! State and bounds that several parts of a shard share.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::nodes::NodeIndex;
use crate::id::ObjectId;
use crate::time::Time;
use crate::topology::live::MAX_SLOW_PEERS;
use crate::topology::place::Path;
use crate::vocabulary::directory::{DeleteTerms, DeleteWait, DropReason, RequestId};

/// Most senders that a query can avoid; further ones are ignored.
pub(super) const MAX_AVOIDED: usize = 64;
/// Most copies examined to choose a receiver's sender: more than the senders that a query avoids.
pub(super) const MAX_CONSIDERED: usize = 2 * MAX_AVOIDED;
/// Most waiting receivers passed over because of slow links: more than the slow links that a store
/// reports.
pub(super) const MAX_PASSED: usize = 2 * MAX_SLOW_PEERS;
pub(super) const MAX_GROUPS: usize = 64;

/// Pause between orders to keep objects, besides the time for their bytes. Otherwise a dead node's
/// many objects would flood another node's session.
const INTERVAL: Duration = Duration::from_micros(20);

pub(super) type Queue = BTreeMap<(Path, u64), (NodeIndex, RequestId)>;

pub(super) type Requester = (NodeIndex, RequestId);

pub(super) type HeldDeletes = BTreeMap<Requester, DeleteTerms>;

#[derive(Debug)]
pub(super) struct Deletion {
    pub(super) pending: BTreeSet<NodeIndex>,
    pub(super) requesters: BTreeMap<Requester, DeleteWait>,
}

#[derive(Debug)]
pub(super) struct Tombstone {
    pub(super) reason: DropReason,
    pub(super) deleted_by: Option<Requester>,
}

#[derive(Debug, Default)]
pub(super) struct Orphans {
    pub(super) objects: BTreeMap<ObjectId, Orphan>,
    /// Earliest time at which an orphan may be offered to its first store.
    pub(super) next: Time,
    /// Earliest time at which an orphan may be offered to a further store.
    pub(super) next_again: Time,
}

#[derive(Debug, Default)]
pub(super) struct Orphan {
    pub(super) due: Option<Time>,
    pub(super) again_at: Option<Time>,
    /// Stores that get no further offer until `again_at`, at most `MAX_OFFERS`.
    pub(super) offered: BTreeSet<NodeIndex>,
}

impl Orphans {
    #[cfg(test)]
    pub(super) fn ids(&self) -> impl Iterator<Item = &ObjectId> {
        self.objects.keys()
    }
}

/// Returns the first time for sending `size_bytes`, not before `earliest` or `next`. Moves `next`
/// to the end of this transfer.
pub(super) fn paced(
    next: &mut Time,
    earliest: Time,
    size_bytes: u64,
    bytes_per_microsecond: u64,
) -> Time {
    let due = earliest.max(*next);
    *next = due + INTERVAL + Duration::from_micros(size_bytes / bytes_per_microsecond);
    due
}
