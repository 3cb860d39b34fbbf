//! Measured places: where nodes are within what their labels say.

use super::nodes::{NodeIndex, OpenRequest};
use super::{Shard, Turn};
use crate::id::NodeId;
use crate::topology::measured::MeasuredPlaces;
use crate::topology::place::EVERYWHERE;
use crate::vocabulary::directory::{Placed, ToStore};

impl Shard {
    /// What a store is told of its place; nothing if it is not known, or nothing was measured.
    pub fn place_of(&self, node: &NodeId) -> Option<Placed> {
        self.placed(self.nodes.index(node)?)
    }

    /// The measured places that count.
    pub const fn measured_places(&self) -> &MeasuredPlaces {
        self.nodes.measured()
    }

    /// Returns the number of nodes that are where was measured. All others are where their labels say.
    pub fn measured_nodes(&self) -> usize {
        self.nodes.measured_nodes()
    }

    /// Takes measured places, unless those that it has are newer, and tells all stores where they are.
    pub(super) fn take_places(&mut self, turn: &mut Turn<'_>, places: MeasuredPlaces) {
        if !self.nodes.is_news(&places) {
            return;
        }
        let moved = self.nodes.measure(places);
        self.move_nodes(moved);
        self.tell_places(turn);
    }

    /// A store says where it was told that it is. So a shard that was restarted, or was out of reach when all were told, learns of
    /// each store from itself.
    pub(super) fn recall_place(&mut self, turn: &mut Turn<'_>, index: NodeIndex, placed: Placed) {
        let known = (self.nodes.measured().version, self.nodes.uplink());
        let Some(moved) = self.nodes.recall(index, placed) else { return };
        self.move_nodes(moved);
        self.nodes.use_measured(index);
        if (self.nodes.measured().version, self.nodes.uplink()) != known {
            self.tell_places(turn);
        } else if self.placed(index) != Some(placed) {
            self.tell_place(turn, index);
        }
    }

    /// These nodes are elsewhere now.
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

    /// Nodes are in other groups: those who wait may be served from there, and links may be slow that were not, or the other way around.
    pub(super) fn reconsider_places(&mut self) {
        self.to_serve.extend(self.waiting.keys().cloned());
        if self.nodes.has_slow_links() {
            self.mark_all_slow_transfers();
        }
    }

    fn tell_places(&self, turn: &mut Turn<'_>) {
        let all: Vec<NodeIndex> = self.nodes.indices().collect();
        for index in all {
            self.tell_place(turn, index);
        }
    }

    /// Tells a store that has come in which groups it is. The first one that is where was measured makes what uplinks carry count
    /// for all.
    pub(super) fn place_newcomer(&mut self, turn: &mut Turn<'_>, index: NodeIndex) {
        if self.nodes.use_measured(index) {
            self.tell_places(turn);
        } else {
            self.tell_place(turn, index);
        }
    }

    /// Tells a store in which groups it is, if anything was measured.
    fn tell_place(&self, turn: &mut Turn<'_>, index: NodeIndex) {
        if let Some(placed) = self.placed(index) {
            self.send(turn, index, ToStore::Placed(placed));
        }
    }

    fn placed(&self, index: NodeIndex) -> Option<Placed> {
        let (version, uplink) = (self.nodes.measured().version, self.nodes.uplink());
        let record = self.nodes.get(index).filter(|_| version > 0)?;
        Some(Placed { version, path: record.place.path, uplink })
    }

    /// The queries of a node that wait in its group wait anywhere from now on: it is about to be in another.
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
            self.may_let_go(&id, group);
        }
    }
}
