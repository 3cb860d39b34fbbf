use std::collections::{BTreeMap, BTreeSet};

use super::nodes::NodeIndex;
use crate::id::ObjectId;
use crate::time::Time;
use crate::vocabulary::directory::Obstacle;

/// Most copies that a store fetches at once for repairs and drains, which leaves it bandwidth.
const MAX_ASSIGNED: usize = 8;
/// Most copies that a store fetches at once, including copies for which puts wait.
pub(super) const MAX_ASSIGNED_WITH_NEW: usize = 1024;

/// Order in which objects get further copies: objects whose puts wait, then objects with few
/// copies, then the oldest shortage.
pub(super) type Rank = (bool, usize, u64);

#[derive(Debug, Default)]
pub(super) struct Replicas {
    pub(super) objects: BTreeMap<ObjectId, Shortage>,
    pub(super) queue: BTreeSet<(Rank, ObjectId)>,
    pub(super) assigned: BTreeMap<NodeIndex, BTreeSet<ObjectId>>,
    /// Objects with too few stores for the wanted copies, until the shard tells the stores
    /// concerned.
    pub(super) unreported: BTreeSet<ObjectId>,
    pub(super) next_arrival: u64,
    pub(super) next_repair: Time,
    pub(super) is_paced: bool,
    pub(super) is_dirty: bool,
}

#[derive(Debug)]
pub(super) struct Shortage {
    pub(super) arrival: u64,
    pub(super) is_new: bool,
    pub(super) is_drain: bool,
    pub(super) rank: Option<Rank>,
    /// Stores that must fetch a copy, and the time limit of each store.
    pub(super) targets: BTreeMap<NodeIndex, Time>,
    pub(super) refused: BTreeMap<NodeIndex, Obstacle>,
    pub(super) obstacle: Option<Obstacle>,
    pub(super) again_at: Option<Time>,
    /// Earliest time in `targets` and `again_at` (the next search for stores).
    pub(super) due: Option<Time>,
}

impl Replicas {
    pub(super) fn len(&self) -> usize {
        self.objects.len()
    }

    pub(super) fn next_repair(&self) -> Option<Time> {
        self.is_paced.then_some(self.next_repair)
    }

    pub(super) fn tick(&mut self, now: Time) {
        if self.is_paced && now >= self.next_repair {
            (self.is_paced, self.is_dirty) = (false, true);
        }
    }

    pub(super) fn set_rank(&mut self, id: &ObjectId, rank: Option<Rank>) {
        let Some(shortage) = self.objects.get_mut(id).filter(|shortage| shortage.rank != rank)
        else {
            return;
        };
        if let Some(earlier) = std::mem::replace(&mut shortage.rank, rank) {
            self.queue.remove(&(earlier, id.clone()));
        }
        if let Some(rank) = rank {
            self.queue.insert((rank, id.clone()));
            self.is_dirty = true;
        }
    }

    pub(super) fn release(&mut self, node: NodeIndex, id: &ObjectId) -> bool {
        let Some(shortage) = self.objects.get_mut(id) else { return false };
        if shortage.targets.remove(&node).is_none() {
            return false;
        }
        self.free(node, id);
        true
    }

    pub(super) fn free(&mut self, node: NodeIndex, id: &ObjectId) {
        if let Some(assigned) = self.assigned.get_mut(&node) {
            assigned.remove(id);
            if assigned.is_empty() {
                self.assigned.remove(&node);
            }
        }
        self.is_dirty = true;
    }

    pub(super) fn is_busy(&self, node: NodeIndex, is_new: bool) -> bool {
        let limit = if is_new { MAX_ASSIGNED_WITH_NEW } else { MAX_ASSIGNED };
        self.assigned.get(&node).is_some_and(|assigned| assigned.len() >= limit)
    }
}

impl Shortage {
    pub(super) const fn new(arrival: u64) -> Self {
        Self {
            arrival,
            is_new: false,
            is_drain: false,
            rank: None,
            targets: BTreeMap::new(),
            refused: BTreeMap::new(),
            obstacle: None,
            again_at: None,
            due: None,
        }
    }
}
