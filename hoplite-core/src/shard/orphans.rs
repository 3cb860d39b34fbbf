//! Inline objects whose bytes only the shard has, because the last node with a copy is gone.
//!
//! A shard that restarts knows only what stores publish again, so what nobody has but the other shard of the id would be
//! known there alone, and those who ask the first one would wait in vain. Therefore a store is asked to keep a copy. If it
//! does not publish one within the grace of nodes, another store is asked.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::entry::Pin;
use super::message::ToStore;
use super::nodes::NodeIndex;
use super::{Shard, Turn};
use crate::id::ObjectId;
use crate::placement::mix;
use crate::time::Time;

/// How long lies between two objects that are handed over, beside [`BYTES_PER_MICROSECOND`]: a node that dies may leave a
/// hundred thousand, and the session of another one must not be flooded.
const INTERVAL: Duration = Duration::from_micros(20);
/// The rate at which they are handed over: 200 MB/s, a sixth of a link of 10 Gbit/s.
const BYTES_PER_MICROSECOND: u64 = 200;

/// The objects that need a store to keep them.
#[derive(Debug, Default)]
pub(super) struct Orphans {
    objects: BTreeMap<ObjectId, Orphan>,
    /// When the next one may be handed over.
    next: Time,
}

#[derive(Debug, Default)]
struct Orphan {
    /// When a store is asked; `None` until another one connects.
    due: Option<Time>,
    asked: BTreeSet<NodeIndex>,
}

impl Orphans {
    #[cfg(test)]
    pub(super) fn ids(&self) -> impl Iterator<Item = &ObjectId> {
        self.objects.keys()
    }
}

impl Shard {
    /// Notes that an inline object has no copy at a store.
    pub(super) fn add_orphan(&mut self, now: Time, id: &ObjectId) {
        if !self.orphans.objects.contains_key(id) {
            self.orphans.objects.insert(id.clone(), Orphan::default());
            self.schedule_orphan(now, id);
        }
    }

    fn schedule_orphan(&mut self, now: Time, id: &ObjectId) {
        let Some(orphan) = self.orphans.objects.get_mut(id) else { return };
        let size_bytes = self.entries.get(id).map_or(0, |entry| entry.size_bytes);
        let due = self.orphans.next.max(now);
        self.orphans.next = due + INTERVAL + Duration::from_micros(size_bytes / BYTES_PER_MICROSECOND);
        orphan.due = Some(due);
        self.due.orphans.insert(due, id.clone());
    }

    /// A store does not keep the object: others are asked.
    pub(super) fn decline_orphan(&mut self, id: &ObjectId, node: NodeIndex) {
        if let Some(orphan) = self.orphans.objects.get_mut(id) {
            orphan.asked.insert(node);
        }
    }

    /// A store keeps the object, or it is gone.
    pub(super) fn remove_orphan(&mut self, id: &ObjectId) {
        if let Some(Orphan { due: Some(due), .. }) = self.orphans.objects.remove(id) {
            self.due.orphans.remove(due, id.clone());
        }
    }

    /// A store has connected: those that no other store could keep may find room there.
    pub(super) fn reconsider_orphans(&mut self, now: Time) {
        let idle = self.orphans.objects.iter().filter(|(_, orphan)| orphan.due.is_none());
        for id in idle.map(|(id, _)| id.clone()).collect::<Vec<_>>() {
            self.schedule_orphan(now, &id);
        }
    }

    /// Asks a store that was not asked yet to keep an object, whose deadline was taken out already.
    pub(super) fn hand_over(&mut self, turn: &mut Turn<'_>, id: &ObjectId) {
        let Some(orphan) = self.orphans.objects.get_mut(id) else { return };
        orphan.due = None;
        let Some(entry) = self.entries.get(id).filter(|entry| entry.pin == Pin::Missing) else { return };
        let Some(bytes) = entry.inline.clone() else { return };
        // Both shards of the id choose the same one, and different objects go to different ones.
        let others = self.nodes.iter().filter(|record| record.is_connected());
        let others = others.filter_map(|record| Some((record, self.nodes.index(&record.info.node)?)));
        let untried = others.filter(|(_, index)| !orphan.asked.contains(index));
        let Some((_, chosen)) = untried.max_by_key(|(record, _)| mix(record.seed ^ entry.put.0)) else {
            return;
        };
        orphan.asked.insert(chosen);
        let again = turn.now + self.config.limits.node_grace;
        orphan.due = Some(again);
        self.due.orphans.insert(again, id.clone());
        let (put, metadata) = (entry.put, entry.metadata.clone());
        self.send(turn, chosen, ToStore::TakeOver { id: id.clone(), put, metadata, bytes });
    }
}
