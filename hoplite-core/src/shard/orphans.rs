//! Hands over *orphans* to stores: inline objects whose bytes only shards have, because the last
//! node with a copy is gone.
//!
//! A restarted shard would not know an orphan. Therefore the shard offers it to a store, and to the
//! next one if the first publishes no copy within the nodes' grace period.

use std::time::Duration;

use super::entry::Pin;
use super::nodes::NodeIndex;
use super::state::{Orphan, paced};
use super::{Shard, Turn};
use crate::id::ObjectId;
use crate::placement::mix;
use crate::time::Time;
use crate::vocabulary::directory::ToStore;

/// Pace of sending orphans: 200 MB/s, a sixth of 10 Gbit/s.
const BYTES_PER_MICROSECOND: u64 = 200;

/// Most stores to which a shard offers an orphan before it pauses for [`ROUND_PAUSE`].
const MAX_OFFERS: usize = 16;
/// Pause before the shard offers an orphan to all stores again.
const ROUND_PAUSE: Duration = Duration::from_secs(30);

impl Shard {
    pub(super) fn add_orphan(&mut self, now: Time, id: &ObjectId) {
        if !self.orphans.objects.contains_key(id) {
            self.orphans.objects.insert(id.clone(), Orphan::default());
            self.schedule_orphan(now, id);
        }
    }

    fn schedule_orphan(&mut self, now: Time, id: &ObjectId) {
        let size_bytes = self.entries.get(id).map_or(0, |entry| entry.size_bytes);
        let due = paced(&mut self.orphans.next, now, size_bytes, BYTES_PER_MICROSECOND);
        self.set_orphan_due(due, id);
    }

    fn set_orphan_due(&mut self, due: Time, id: &ObjectId) {
        let Some(orphan) = self.orphans.objects.get_mut(id) else { return };
        if let Some(earlier) = orphan.due.replace(due) {
            self.due.orphans.remove(earlier, id.clone());
        }
        self.due.orphans.insert(due, id.clone());
    }

    pub(super) fn decline_orphan(&mut self, id: &ObjectId, node: NodeIndex) {
        let orphan = self.orphans.objects.get_mut(id);
        if let Some(orphan) = orphan.filter(|orphan| orphan.offered.len() < MAX_OFFERS) {
            orphan.offered.insert(node);
        }
    }

    pub(super) fn remove_orphan(&mut self, id: &ObjectId) {
        if let Some(Orphan { due: Some(due), .. }) = self.orphans.objects.remove(id) {
            self.due.orphans.remove(due, id.clone());
        }
    }

    pub(super) fn reconsider_orphans(&mut self, now: Time) {
        let idle = self.orphans.objects.iter().filter(|(_, orphan)| orphan.again_at.is_some());
        for id in idle.map(|(id, _)| id.clone()).collect::<Vec<_>>() {
            self.schedule_orphan(now, &id);
        }
    }

    /// Sends an orphan to the next store. The caller has removed the orphan's deadline.
    pub(super) fn offer_to_next_store(&mut self, turn: &mut Turn<'_>, id: &ObjectId) {
        let Some(orphan) = self.orphans.objects.get_mut(id) else { return };
        orphan.due = None;
        let Some(entry) = self.entries.get(id).filter(|entry| entry.pin() == Pin::Missing) else {
            return;
        };
        let Some(bytes) = entry.inline() else { return };
        if orphan.again_at.take().is_some_and(|at| at <= turn.now) {
            orphan.offered.clear();
        }
        // Both shards of the id choose the same store, and different objects get different stores.
        let place = mix(entry.put.0);
        let has_connected_store = self.nodes.receivers_after(place).next().is_some();
        let untried =
            self.nodes.receivers_after(place).find(|index| !orphan.offered.contains(index));
        let (put, metadata, size_bytes) =
            (entry.put, entry.metadata.to_metadata(), entry.size_bytes);
        let Some(chosen) = untried.filter(|_| orphan.offered.len() < MAX_OFFERS) else {
            let again_at = turn.now + ROUND_PAUSE;
            orphan.again_at = Some(again_at);
            if has_connected_store {
                self.set_orphan_due(again_at, id);
            }
            return;
        };
        orphan.offered.insert(chosen);
        let earliest = turn.now + self.config.limits.node_grace;
        let again =
            paced(&mut self.orphans.next_again, earliest, size_bytes, BYTES_PER_MICROSECOND);
        self.set_orphan_due(again, id);
        self.send(turn, chosen, ToStore::TakeOver { id: id.clone(), put, metadata, bytes });
    }
}
