//! Keeps as many pinned copies of each object as its put wants, and moves the copies of draining
//! stores.
//!
//! In this file, a *copy* is pinned and complete, at a connected store that does not drain; inline
//! bytes do not count. An object with too few copies has a [`Shortage`]. Only the leading shard of
//! an id, its first connected one, creates copies; stores tell their shards which one leads
//! ([`Lead`]). The shard assigns the object to a store, which fetches it by an ordinary query
//! ([`ToStore::Replicate`]). So several stores receive one object in a chain.
//!
//! If a store lacks memory or cannot fetch the object, the shard assigns it to another one. Once
//! all stores have refused, the shard tells the stores with copies why, and begins again after a
//! pause.

use std::time::Duration;

use super::entry::Entry;
use super::nodes::NodeIndex;
use super::shortages::Shortage;
use super::state::paced;
use super::{Shard, Turn};
use crate::id::{ObjectId, PutId};
use crate::metadata::MAX_REPLICAS;
use crate::placement::mix;
use crate::time::Time;
use crate::topology::place::{MAX_LEVELS, Path, level};
use crate::vocabulary::directory::{
    Lead, LocationState, Obstacle, Replicate, Replication, Retention, ToStore,
};

const MAX_CANDIDATES: usize = 64;
const MAX_PASSED: usize = 64;
/// Time after which the shard replaces an assigned store that has no sender.
const ASSIGNMENT_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause before stores that refused an object are asked again.
const ROUND_PAUSE: Duration = Duration::from_secs(5);
/// Pace of replacing lost copies: 500 MB/s, two fifths of 10 Gbit/s.
const REPAIR_BYTES_PER_MICROSECOND: u64 = 500;

#[derive(Debug, Default)]
struct Count {
    /// Pinned copies at stores that do not drain, including copies in production and at
    /// disconnected stores.
    kept: usize,
    present: usize,
    leads: bool,
    is_drain: bool,
    paths: Vec<Path>,
}

enum Choice {
    Store(NodeIndex),
    /// All suitable stores already fetch as many copies as they may.
    Busy,
    None,
}

impl Shard {
    pub(super) fn update_lead(&mut self, turn: &mut Turn<'_>, node: NodeIndex, lead: Lead) {
        let Lead { id, put, leads, is_new } = lead;
        let Some(entry) = self.entries.get_mut(&id).filter(|entry| entry.put == put) else {
            return;
        };
        if entry.copies.change(node, |copy| copy.leads = leads).is_none() {
            return;
        }
        self.reconsider_replicas(turn.now, &id, is_new);
        if leads {
            self.send_copy_count(turn, node, &id);
        }
    }

    pub(super) fn set_draining(&mut self, turn: &mut Turn<'_>, node: NodeIndex, is_draining: bool) {
        if !self.nodes.set_draining(node, is_draining) {
            return;
        }
        self.end_assignments(turn.now, node);
        if is_draining {
            // The store's [`Lead`]s then tell which copies this shard must replace.
            return;
        }
        self.reconsider_all_replicas(turn.now);
    }

    pub(super) fn replication_failed(
        &mut self,
        turn: &mut Turn<'_>,
        node: NodeIndex,
        id: &ObjectId,
        put: PutId,
        reason: Obstacle,
    ) {
        if self.entries.get(id).is_some_and(|entry| entry.put == put)
            && self.replicas.release(node, id)
        {
            self.refuse(turn.now, node, id, reason);
        }
    }

    fn refuse(&mut self, now: Time, node: NodeIndex, id: &ObjectId, reason: Obstacle) {
        if let Some(shortage) = self.replicas.objects.get_mut(id) {
            shortage.refused.insert(node, reason);
            self.reconsider_replicas(now, id, false);
        }
    }

    pub(super) fn end_assignments(&mut self, now: Time, node: NodeIndex) {
        for id in self.replicas.assigned.get(&node).cloned().unwrap_or_default() {
            self.replicas.release(node, &id);
            self.reconsider_replicas(now, &id, false);
        }
    }

    pub(super) fn reconsider_replicas_at(&mut self, now: Time, node: NodeIndex) {
        let Some(record) = self.nodes.get(node) else { return };
        let (holdings, objects) = (&record.holdings, &self.replicas.objects);
        let held: Vec<ObjectId> = if holdings.len() < objects.len() {
            holdings.iter().filter(|id| objects.contains_key(*id)).cloned().collect()
        } else {
            objects.keys().filter(|id| holdings.contains(*id)).cloned().collect()
        };
        for id in held {
            self.reconsider_replicas(now, &id, false);
        }
    }

    /// Ends the pauses of objects that wait for a store, because a store came.
    pub(super) fn store_came(&mut self, now: Time) {
        self.replicas.is_dirty = true;
        let stalled =
            self.replicas.objects.iter_mut().filter(|(_, shortage)| shortage.rank.is_none());
        let stalled = stalled.map(|(id, shortage)| {
            shortage.again_at = None;
            id.clone()
        });
        for id in stalled.collect::<Vec<_>>() {
            self.reconsider_replicas(now, &id, false);
        }
    }

    /// Tells stores whose puts or drains wait for copies if too few stores are left.
    pub(super) fn store_lost(&mut self, now: Time) {
        let nodes = self.nodes.count_receivers(MAX_REPLICAS.into());
        let wants_more = |id: &&ObjectId| {
            self.entries.get(*id).is_none_or(|entry| entry.metadata.replicas.to_keep() > nodes)
        };
        for id in self.replicas.objects.keys().filter(wants_more).cloned().collect::<Vec<_>>() {
            self.reconsider_replicas(now, &id, false);
        }
    }

    pub(super) fn reconsider_all_replicas(&mut self, now: Time) {
        for id in self.replicas.objects.keys().cloned().collect::<Vec<_>>() {
            if let Some(shortage) = self.replicas.objects.get_mut(&id) {
                shortage.again_at = None;
            }
            self.reconsider_replicas(now, &id, false);
        }
    }

    pub(super) fn pinned_copies_changed(&mut self, turn: &mut Turn<'_>, id: &ObjectId) {
        let Some(entry) = self.entries.get(id) else { return };
        if entry.metadata.replicas.to_keep() > 1 || self.nodes.has_draining() {
            self.reconsider_replicas(turn.now, id, false);
            self.notify_leaders(turn, id);
        }
    }

    /// Begins, updates or ends an object's shortage of copies. `is_new`: a put waits for them.
    fn reconsider_replicas(&mut self, now: Time, id: &ObjectId, is_new: bool) {
        let Some(entry) = self.entries.get(id).filter(|entry| !entry.is_lost()) else {
            return self.end_shortage(id);
        };
        let wanted = entry.metadata.replicas.to_keep();
        if wanted == 1 && !self.nodes.has_draining() {
            return self.end_shortage(id);
        }
        let count = self.count_copies(entry);
        if !count.leads || count.kept >= wanted {
            return self.end_shortage(id);
        }
        let nodes = self.nodes.count_receivers(wanted);
        let connected = self.nodes.receivers_after(0).take(wanted).count();
        let arrived = |node: &NodeIndex| {
            entry.copies.get(*node).is_some_and(|copy| copy.retention == Retention::Pinned)
        };
        let arrival = self.replicas.next_arrival;
        let shortage =
            self.replicas.objects.entry(id.clone()).or_insert_with(|| Shortage::new(arrival));
        if shortage.arrival == arrival {
            self.replicas.next_arrival += 1;
        }
        shortage.is_new |= is_new;
        shortage.is_drain = count.is_drain;
        let ended: Vec<NodeIndex> = shortage.targets.keys().copied().filter(arrived).collect();
        for node in ended {
            self.replicas.release(node, id);
        }
        let Some(shortage) = self.replicas.objects.get_mut(id) else { return };
        if shortage.again_at.is_none() && !shortage.is_new && now < self.warm_until {
            // The stores with further copies may not be connected yet.
            shortage.again_at = Some(self.warm_until);
        }
        let expected = count.kept + shortage.targets.len();
        // A put that wants more copies than there are stores fails.
        let fails = shortage.is_new && nodes < wanted;
        let needs_more = expected < connected && shortage.again_at.is_none() && !fails;
        let rank = needs_more.then_some((!shortage.is_new, count.kept, shortage.arrival));
        if nodes < wanted {
            shortage.obstacle = Some(Obstacle::NoNode);
            if shortage.is_new || shortage.is_drain {
                self.replicas.unreported.insert(id.clone());
            }
        }
        self.replicas.set_rank(id, rank);
        self.schedule_shortage(id);
    }

    fn count_copies(&self, entry: &Entry) -> Count {
        let mut count = Count::default();
        for copy in entry.copies.rooted().filter(|copy| copy.retention == Retention::Pinned) {
            count.leads |= copy.leads && !copy.is_disconnected;
            if self.nodes.is_draining(copy.node) {
                count.is_drain |= !copy.is_disconnected;
                continue;
            }
            count.kept += 1;
            count.paths.push(copy.path);
            let is_present =
                copy.state == LocationState::Complete && !copy.is_disconnected && copy.is_published;
            count.present += usize::from(is_present);
        }
        count
    }

    pub(super) fn end_shortage(&mut self, id: &ObjectId) {
        self.replicas.set_rank(id, None);
        let Some(shortage) = self.replicas.objects.remove(id) else { return };
        if let Some(due) = shortage.due {
            self.due.replicas.remove(due, id.clone());
        }
        for node in shortage.targets.into_keys() {
            self.replicas.free(node, id);
        }
    }

    fn schedule_shortage(&mut self, id: &ObjectId) {
        let Some(shortage) = self.replicas.objects.get_mut(id) else { return };
        let due = shortage.targets.values().copied().chain(shortage.again_at).min();
        if due == shortage.due {
            return;
        }
        if let Some(earlier) = std::mem::replace(&mut shortage.due, due) {
            self.due.replicas.remove(earlier, id.clone());
        }
        if let Some(due) = due {
            self.due.replicas.insert(due, id.clone());
        }
    }

    pub(super) fn shortage_due(&mut self, now: Time, id: &ObjectId) {
        let Some(shortage) = self.replicas.objects.get_mut(id) else { return };
        shortage.due = None;
        if shortage.again_at.is_some_and(|at| at <= now) {
            shortage.again_at = None;
            shortage.refused.clear();
        }
        let expired = shortage.targets.iter().filter(|(_, end)| **end <= now);
        let expired: Vec<NodeIndex> = expired.map(|(node, _)| *node).collect();
        for node in expired {
            let transfers = self.entries.get(id).map(|entry| &entry.transfers);
            let receives = transfers.is_some_and(|all| all.senders_of(node).next().is_some());
            if receives && let Some(shortage) = self.replicas.objects.get_mut(id) {
                shortage.targets.insert(node, now + ASSIGNMENT_TIMEOUT);
            } else if self.replicas.release(node, id) {
                self.refuse(now, node, id, Obstacle::Failed);
            }
        }
        self.reconsider_replicas(now, id, false);
    }

    pub(super) fn assign_replicas(&mut self, turn: &mut Turn<'_>) {
        while let Some(id) = self.replicas.unreported.pop_first() {
            self.notify_leaders(turn, &id);
        }
        if !std::mem::take(&mut self.replicas.is_dirty) {
            return;
        }
        let mut passed = 0;
        let mut next = self.replicas.queue.first().cloned();
        while let Some(place) = next.filter(|_| passed < MAX_PASSED) {
            passed += usize::from(!self.assign_one(turn, &place.1));
            let after = (std::ops::Bound::Excluded(&place), std::ops::Bound::Unbounded);
            // An object that needs several stores keeps its place in the queue.
            let is_again = self.replicas.queue.contains(&place) && passed == 0;
            next = if is_again {
                Some(place)
            } else {
                self.replicas.queue.range(after).next().cloned()
            };
        }
        // Later assignments wait for the next event.
        self.replicas.is_dirty = false;
    }

    /// Orders a store to fetch a copy. Returns `false` if all stores are busy, or it is too early
    /// for a repair.
    fn assign_one(&mut self, turn: &mut Turn<'_>, id: &ObjectId) -> bool {
        let Some(entry) = self.entries.get(id) else { return true };
        let Some(shortage) = self.replicas.objects.get(id) else { return true };
        let is_repair = !shortage.is_new && !shortage.is_drain;
        if is_repair && turn.now < self.replicas.next_repair {
            self.replicas.is_paced = true;
            return false;
        }
        let choice = self.choose_store(entry, shortage);
        let (put, size_bytes, metadata) =
            (entry.put, entry.size_bytes, entry.metadata.to_metadata());
        let Some(shortage) = self.replicas.objects.get_mut(id) else { return true };
        match choice {
            Choice::Busy => return false,
            Choice::None => {
                shortage.obstacle =
                    Some(shortage.refused.values().copied().max().unwrap_or(Obstacle::NoNode));
                shortage.again_at = Some(turn.now + ROUND_PAUSE);
                self.reconsider_replicas(turn.now, id, false);
                self.notify_leaders(turn, id);
            }
            Choice::Store(node) => {
                shortage.obstacle = None;
                shortage.targets.insert(node, turn.now + ASSIGNMENT_TIMEOUT);
                self.replicas.assigned.entry(node).or_default().insert(id.clone());
                if is_repair {
                    let rate = REPAIR_BYTES_PER_MICROSECOND;
                    paced(&mut self.replicas.next_repair, turn.now, size_bytes, rate);
                }
                let order = Replicate { id: id.clone(), put, size_bytes, metadata };
                self.send(turn, node, ToStore::Replicate(order));
                self.reconsider_replicas(turn.now, id, false);
            }
        }
        true
    }

    /// Chooses among the first [`MAX_CANDIDATES`] free stores after the put's hash on the ring:
    /// prefers a store far from other copies, then one with bytes of the object, then the highest
    /// hash of put and store, which spreads puts nearly evenly. Shards with the same knowledge
    /// choose alike.
    fn choose_store(&self, entry: &Entry, shortage: &Shortage) -> Choice {
        let mut paths = self.count_copies(entry).paths;
        let targets = shortage.targets.keys().filter_map(|node| self.nodes.get(*node));
        paths.extend(targets.map(|record| record.place.path));
        let is_free = |node: &NodeIndex| {
            let copy = entry.copies.get(*node);
            let has_copy = copy.is_some_and(|copy| {
                copy.retention == Retention::Pinned || copy.state == LocationState::Producing
            });
            !has_copy
                && !shortage.targets.contains_key(node)
                && !shortage.refused.contains_key(node)
        };
        let candidates = self.nodes.receivers_after(mix(entry.put.0)).filter(is_free);
        let (mut is_any_busy, mut best) = (false, None);
        for node in candidates.take(MAX_CANDIDATES) {
            if self.replicas.is_busy(node, shortage.is_new) {
                is_any_busy = true;
                continue;
            }
            let Some(record) = self.nodes.get(node) else { continue };
            let distances = paths.iter().map(|path| level(*path, record.place.path));
            let distance = distances.min().unwrap_or(MAX_LEVELS);
            let state = entry.copies.get(node).map(|copy| copy.state);
            let score = (distance, state, mix(entry.put.0 ^ record.point));
            if best.as_ref().is_none_or(|(_, highest)| score > *highest) {
                best = Some((node, score));
            }
        }
        match best {
            Some((node, _)) => Choice::Store(node),
            None if is_any_busy => Choice::Busy,
            None => Choice::None,
        }
    }

    fn notify_leaders(&self, turn: &mut Turn<'_>, id: &ObjectId) {
        let Some(entry) = self.entries.get(id) else { return };
        let pinned =
            entry.copies.rooted().filter(|copy| copy.retention == Retention::Pinned && copy.leads);
        let leaders: Vec<NodeIndex> = pinned.map(|copy| copy.node).collect();
        for node in leaders {
            self.send_copy_count(turn, node, id);
        }
    }

    fn send_copy_count(&self, turn: &mut Turn<'_>, node: NodeIndex, id: &ObjectId) {
        let Some(entry) = self.entries.get(id) else { return };
        let bounded = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let message = ToStore::Replication(Replication {
            id: id.clone(),
            put: entry.put,
            copies: bounded(self.count_copies(entry).present),
            nodes: bounded(self.nodes.count_receivers(MAX_REPLICAS.into())),
            is_draining: self.nodes.is_draining(node),
            obstacle: self.replicas.objects.get(id).and_then(|shortage| shortage.obstacle),
        });
        self.send(turn, node, message);
    }
}

#[cfg(test)]
impl Shard {
    pub(super) fn check_replicas(&self) {
        use std::collections::{BTreeMap, BTreeSet};

        use super::shortages::MAX_ASSIGNED_WITH_NEW;

        let mut assigned: BTreeMap<NodeIndex, BTreeSet<ObjectId>> = BTreeMap::new();
        for (id, shortage) in &self.replicas.objects {
            let entry = self.entries.get(id).expect("an object with a shortage is known");
            let count = self.count_copies(entry);
            assert!(
                !entry.is_lost() && count.leads && count.kept < entry.metadata.replicas.to_keep()
            );
            for node in shortage.targets.keys() {
                assert!(self.nodes.is_connected(*node) && !self.nodes.is_draining(*node));
                let copy = entry.copies.get(*node);
                assert!(
                    copy.is_none_or(|copy| copy.retention == Retention::Evictable),
                    "it has a copy"
                );
                assigned.entry(*node).or_default().insert(id.clone());
            }
            assert_eq!(
                shortage.due,
                shortage.targets.values().copied().chain(shortage.again_at).min()
            );
            let is_queued =
                shortage.rank.is_some_and(|rank| self.replicas.queue.contains(&(rank, id.clone())));
            assert_eq!(is_queued, shortage.rank.is_some());
        }
        let ranked = self.replicas.objects.values().filter(|shortage| shortage.rank.is_some());
        assert_eq!(ranked.count(), self.replicas.queue.len());
        assert_eq!(assigned, self.replicas.assigned);
        assert!(assigned.values().all(|objects| objects.len() <= MAX_ASSIGNED_WITH_NEW));
        let timed = self.replicas.objects.values().filter(|shortage| shortage.due.is_some());
        assert_eq!(timed.count(), self.due.replicas.len());
        assert!(!self.replicas.is_dirty, "work is left after the event");
    }
}
