//! What several parts of a shard keep or count.

use std::collections::{BTreeMap, BTreeSet};

use super::nodes::NodeIndex;
use crate::id::ObjectId;
use crate::time::Time;
use crate::topology::live::MAX_TOLD;
use crate::topology::place::Path;
use crate::vocabulary::directory::RequestId;

/// Most senders that one query may avoid; more are ignored.
pub(super) const MAX_AVOIDED: usize = 64;
/// Most copies of either class that are looked at for one receiver, the best of the free ones first: more than it can avoid.
pub(super) const MAX_CONSIDERED: usize = 2 * MAX_AVOIDED;
/// Most waiting receivers that are looked at for one that can have its sender over a usual link: more than a store calls slow.
pub(super) const MAX_PASSED: usize = 2 * MAX_TOLD;
/// Most groups in which somebody waits that are looked at for one event.
pub(super) const MAX_GROUPS: usize = 64;

/// The queries that wait for an object, by group and arrival.
pub(super) type Queue = BTreeMap<(Path, u64), (NodeIndex, RequestId)>;

/// A put whose copies are being dropped.
#[derive(Debug)]
pub(super) struct Deletion {
    /// Nodes that have not said yet that their copy is gone.
    pub(super) pending: BTreeSet<NodeIndex>,
    /// The nodes that want to know, and their requests.
    pub(super) requesters: BTreeSet<(NodeIndex, RequestId)>,
}

/// The objects that need a store to keep them.
#[derive(Debug, Default)]
pub(super) struct Orphans {
    pub(super) objects: BTreeMap<ObjectId, Orphan>,
    /// The time at which the next one may be handed over for the first time.
    pub(super) next: Time,
    /// The time at which the next one may be handed over again.
    pub(super) next_again: Time,
}

#[derive(Debug, Default)]
pub(super) struct Orphan {
    /// The time at which a store is asked.
    pub(super) due: Option<Time>,
    /// If nobody is left to ask, when all may be asked again.
    pub(super) again_at: Option<Time>,
    /// Those who were asked and have not kept it, at most `MAX_ASKED`.
    pub(super) asked: BTreeSet<NodeIndex>,
}

impl Orphans {
    #[cfg(test)]
    pub(super) fn ids(&self) -> impl Iterator<Item = &ObjectId> {
        self.objects.keys()
    }
}
