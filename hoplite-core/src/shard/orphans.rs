//! Inline objects whose bytes only the shard has, because the last node with a copy is gone.
//!
//! A shard that restarts knows only what stores publish again, so what nobody has but the other shard of the id would be
//! known there alone, and those who ask the first one would wait in vain. Therefore a store is asked to keep a copy. If it
//! does not publish one within the grace of nodes, another store is asked. When several have been asked in vain, all may be
//! asked again after a while: they may have room by then.

use std::time::Duration;

use super::entry::Pin;
use super::nodes::NodeIndex;
use super::state::Orphan;
use super::{Shard, Turn};
use crate::id::ObjectId;
use crate::placement::mix;
use crate::time::Time;
use crate::vocabulary::directory::ToStore;

/// The time that lies between two objects that are handed over, beside [`BYTES_PER_MICROSECOND`]: a node that dies may leave a
/// hundred thousand, and the session of another one must not be flooded.
const INTERVAL: Duration = Duration::from_micros(20);
/// The rate at which they are handed over: 200 MB/s, a sixth of a link of 10 Gbit/s.
const BYTES_PER_MICROSECOND: u64 = 200;

/// The number of stores that are asked to keep an object, one after the other.
const MAX_ASKED: usize = 16;
/// After how long the same ones are asked again.
const ROUND_PAUSE: Duration = Duration::from_secs(30);

impl Shard {
    /// Notes that an inline object has no copy at a store.
    pub(super) fn add_orphan(&mut self, now: Time, id: &ObjectId) {
        if !self.orphans.objects.contains_key(id) {
            self.orphans.objects.insert(id.clone(), Orphan::default());
            self.schedule_orphan(now, id);
        }
    }

    fn schedule_orphan(&mut self, now: Time, id: &ObjectId) {
        let size_bytes = self.entries.get(id).map_or(0, |entry| entry.size_bytes);
        let due = paced(&mut self.orphans.next, now, size_bytes);
        self.set_orphan_due(due, id);
    }

    fn set_orphan_due(&mut self, due: Time, id: &ObjectId) {
        let Some(orphan) = self.orphans.objects.get_mut(id) else { return };
        if let Some(earlier) = orphan.due.replace(due) {
            self.due.orphans.remove(earlier, id.clone());
        }
        self.due.orphans.insert(due, id.clone());
    }

    /// A store does not keep the object: others are asked.
    pub(super) fn decline_orphan(&mut self, id: &ObjectId, node: NodeIndex) {
        let orphan = self.orphans.objects.get_mut(id);
        if let Some(orphan) = orphan.filter(|orphan| orphan.asked.len() < MAX_ASKED) {
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
        let idle = self.orphans.objects.iter().filter(|(_, orphan)| orphan.again_at.is_some());
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
        if orphan.again_at.take().is_some_and(|at| at <= turn.now) {
            orphan.asked.clear();
        }
        // Both shards of the id choose the same one, and different objects go to different ones.
        let place = mix(entry.put.0);
        let is_anybody_there = self.nodes.connected_after(place).next().is_some();
        let untried = self.nodes.connected_after(place).find(|index| !orphan.asked.contains(index));
        let (put, metadata, size_bytes) = (entry.put, entry.metadata.clone(), entry.size_bytes);
        let Some(chosen) = untried.filter(|_| orphan.asked.len() < MAX_ASKED) else {
            let again_at = turn.now + ROUND_PAUSE;
            orphan.again_at = Some(again_at);
            if is_anybody_there {
                self.set_orphan_due(again_at, id);
            }
            return;
        };
        orphan.asked.insert(chosen);
        let again = paced(&mut self.orphans.next_again, turn.now + self.config.limits.node_grace, size_bytes);
        self.set_orphan_due(again, id);
        self.send(turn, chosen, ToStore::TakeOver { id: id.clone(), put, metadata, bytes });
    }
}

/// The first time from `earliest` on at which so many bytes may be sent, after which the `next` ones must wait.
fn paced(next: &mut Time, earliest: Time, size_bytes: u64) -> Time {
    let due = earliest.max(*next);
    *next = due + INTERVAL + Duration::from_micros(size_bytes / BYTES_PER_MICROSECOND);
    due
}
