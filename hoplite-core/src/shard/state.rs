//! State and bounds that several parts of a shard share.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::nodes::NodeIndex;
use crate::id::ObjectId;
use crate::time::Time;
use crate::topology::live::MAX_TOLD;
use crate::topology::place::Path;
use crate::vocabulary::directory::RequestId;

/// Most senders that one query may avoid. The shard ignores more.
pub(super) const MAX_AVOIDED: usize = 64;
/// Most free copies of either class that the shard considers for one receiver, best first. It
/// exceeds the number that a query can avoid.
pub(super) const MAX_CONSIDERED: usize = 2 * MAX_AVOIDED;
/// Most waiting receivers that the shard examines to find one with a usual link to its sender. It
/// exceeds the number of slow peers that a store reports.
pub(super) const MAX_PASSED: usize = 2 * MAX_TOLD;
/// Most groups with waiting queries that the shard examines for one event.
pub(super) const MAX_GROUPS: usize = 64;

/// Pause between two objects that are given to stores, in addition to the time for their bytes. A
/// dead node may leave a hundred thousand objects, which must not flood the session of another node.
const INTERVAL: Duration = Duration::from_micros(20);

/// The queries that wait for an object, by group and arrival.
pub(super) type Queue = BTreeMap<(Path, u64), (NodeIndex, RequestId)>;

/// A put whose copies nodes are dropping.
#[derive(Debug)]
pub(super) struct Deletion {
    /// The nodes that have not confirmed the drop yet.
    pub(super) pending: BTreeSet<NodeIndex>,
    /// The delete requests that wait for the end, with their nodes.
    pub(super) requesters: BTreeSet<(NodeIndex, RequestId)>,
}

/// The inline objects that need a store to keep them.
#[derive(Debug, Default)]
pub(super) struct Orphans {
    pub(super) objects: BTreeMap<ObjectId, Orphan>,
    /// The earliest time at which another object may be handed over for the first time.
    pub(super) next: Time,
    /// The earliest time at which another object may be handed over again.
    pub(super) next_again: Time,
}

#[derive(Debug, Default)]
pub(super) struct Orphan {
    /// The time of the offer to the next store.
    pub(super) due: Option<Time>,
    /// The time of the next offers to all stores, once all of them had an offer.
    pub(super) again_at: Option<Time>,
    /// The stores that had an offer and have not kept the object, at most `MAX_OFFERS`.
    pub(super) offered: BTreeSet<NodeIndex>,
}

impl Orphans {
    #[cfg(test)]
    pub(super) fn ids(&self) -> impl Iterator<Item = &ObjectId> {
        self.objects.keys()
    }
}

/// Returns the first time, from `earliest` on, at which `size_bytes` may be sent. Moves `next`
/// behind it.
pub(super) fn paced(next: &mut Time, earliest: Time, size_bytes: u64, bytes_per_microsecond: u64) -> Time {
    let due = earliest.max(*next);
    *next = due + INTERVAL + Duration::from_micros(size_bytes / bytes_per_microsecond);
    due
}
