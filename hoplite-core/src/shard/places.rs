//! Measured places, which subdivide the groups of nodes' labels.

use super::nodes::{NodeIndex, OpenRequest};
use super::{Shard, Turn};
use crate::id::NodeId;
use crate::topology::measured::MeasuredPlaces;
use crate::topology::place::EVERYWHERE;
use crate::vocabulary::directory::{Placed, ToStore};

impl Shard {
    /// Returns a node's groups; `None` for an unknown node or before the first probe.
    pub fn place_of(&self, node: &NodeId) -> Option<Placed> {
        self.placed(self.nodes.index(node)?)
    }

    /// Measured places in use.
    pub const fn measured_places(&self) -> &MeasuredPlaces {
        self.nodes.measured()
    }

    /// Number of nodes for which a probe found groups.
    pub fn measured_nodes(&self) -> usize {
        self.nodes.measured_nodes()
    }

    pub(super) fn apply_places(&mut self, turn: &mut Turn<'_>, places: MeasuredPlaces) {
        if !self.nodes.is_newer(&places) {
            return;
        }
        let moved = self.nodes.measure(places);
        self.move_nodes(moved);
        self.send_places(turn);
    }

    /// Learns measured groups from a store, after this shard restarted or missed a measurement.
    pub(super) fn restore_place(&mut self, turn: &mut Turn<'_>, index: NodeIndex, placed: Placed) {
        let known = (self.nodes.measured().version, self.nodes.uplink());
        let Some(moved) = self.nodes.recall(index, placed) else { return };
        self.move_nodes(moved);
        self.nodes.use_measured(index);
        if (self.nodes.measured().version, self.nodes.uplink()) != known {
            self.send_places(turn);
        } else if self.placed(index) != Some(placed) {
            self.send_place(turn, index);
        }
    }

    fn move_nodes(&mut self, moved: Vec<NodeIndex>) {
        if moved.is_empty() {
            return;
        }
        for index in moved {
            self.forget_groups(index);
            self.nodes.place(index);
            let path = self.nodes.get(index).map_or(EVERYWHERE, |record| record.place.path);
            self.mark_copies(index, |copy| copy.path = path);
        }
        self.reconsider_places();
    }

    pub(super) fn reconsider_places(&mut self) {
        self.to_serve.extend(self.waiting.keys().cloned());
        if self.nodes.has_slow_links() {
            self.mark_all_slow_transfers();
        }
    }

    fn send_places(&self, turn: &mut Turn<'_>) {
        let all: Vec<NodeIndex> = self.nodes.indices().collect();
        for index in all {
            self.send_place(turn, index);
        }
    }

    /// Tells a connecting store its groups. If this store is the first in a measured group, the
    /// shard begins to use the measured uplinks and tells all stores.
    pub(super) fn place_newcomer(&mut self, turn: &mut Turn<'_>, index: NodeIndex) {
        if self.nodes.use_measured(index) {
            self.send_places(turn);
        } else {
            self.send_place(turn, index);
        }
    }

    fn send_place(&self, turn: &mut Turn<'_>, index: NodeIndex) {
        if let Some(placed) = self.placed(index) {
            self.send(turn, index, ToStore::Placed(placed));
        }
    }

    fn placed(&self, index: NodeIndex) -> Option<Placed> {
        let (version, uplink) = (self.nodes.measured().version, self.nodes.uplink());
        let record = self.nodes.get(index).filter(|_| version > 0)?;
        Some(Placed { version, path: record.place.path, uplink })
    }

    /// Lets the node's queries accept all senders, because its group is about to change.
    fn forget_groups(&mut self, index: NodeIndex) {
        let Some(record) = self.nodes.get_mut(index) else { return };
        let mut left = Vec::new();
        for (request, open) in &mut record.requests {
            if let OpenRequest::Query(query) = open
                && query.group != EVERYWHERE
            {
                left.push((query.id.clone(), query.group, query.arrival, *request));
                query.group = EVERYWHERE;
            }
        }
        for (id, group, arrival, request) in left {
            if let Some(queue) = self.waiting.get_mut(&id) {
                queue.remove(&(group, arrival));
                queue.insert((EVERYWHERE, arrival), (index, request));
            }
            self.end_group_wait_if_unused(&id, group);
        }
    }
}
