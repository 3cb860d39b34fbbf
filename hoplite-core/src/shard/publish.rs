//! Adds and removes copies. The first put of an id wins.

use std::cmp::Reverse;
use std::sync::Arc;

use super::copies::LocationRecord;
use super::entry::{Entry, EntryState, Pin};
use super::nodes::NodeIndex;
use super::{MAX_INLINE_BYTES, Shard, Turn};
use crate::error::Error;
use crate::id::{ObjectId, PutId};
use crate::plan::broadcast::choose_survivor;
use crate::time::Time;
use crate::vocabulary::directory::{
    DropReason, Equality, LocationState, Publish, PullOutcome, Retention, ToStore, UnpublishReason,
    Verdict,
};

const MAX_COMPARED: usize = 64;

enum Relation {
    New,
    /// The put belongs to an object that counts as lost.
    Returned,
    Known,
    Refused(Verdict),
}

impl Shard {
    pub(super) fn publish(&mut self, turn: &mut Turn<'_>, node: NodeIndex, publish: Publish) {
        if let Some(slot) = publish.slot {
            self.return_slot(turn, node, slot, PullOutcome::Complete);
        }
        let ended = self
            .tombstones
            .get(&(publish.id.clone(), publish.put))
            .map(|tombstone| tombstone.reason);
        if let Some(reason @ (DropReason::Superseded | DropReason::Lost)) = ended
            && publish.state == LocationState::Partial
        {
            // The put was not deleted, so the receiver's gets continue with the next put, or end as
            // lost.
            let (id, put) = (publish.id, publish.put);
            return self.send(turn, node, ToStore::Drop { id, put, reason });
        }
        let relation = self.relation(turn.now, node, &publish);
        let is_recorded = match &relation {
            Relation::Refused(_) => false,
            Relation::New => self.make_space(&publish.id),
            // A partial copy cannot bring a lost object back.
            Relation::Returned => publish.state != LocationState::Partial,
            Relation::Known => true,
        };
        let verdict = match relation {
            Relation::Refused(verdict) => verdict,
            Relation::New if !is_recorded => Verdict::ShardFull,
            Relation::Known => self
                .cyclic_sender(node, &publish)
                .map_or(Verdict::Accepted, |sender| Verdict::Cyclic { sender: sender.clone() }),
            _ => Verdict::Accepted,
        };
        let (id, put) = (publish.id.clone(), publish.put);
        let is_useless = verdict == Verdict::Accepted && !is_recorded;
        if publish.wants_answer || verdict != Verdict::Accepted {
            self.send(turn, node, ToStore::Published { id: id.clone(), put, verdict });
        }
        if is_useless {
            self.send(turn, node, ToStore::Drop { id, put, reason: DropReason::Lost });
        } else if is_recorded {
            self.record(turn, node, publish);
            self.perform_held_delete(turn, &id);
        }
    }

    fn relation(&self, now: Time, node: NodeIndex, publish: &Publish) -> Relation {
        if self.tombstones.contains_key(&(publish.id.clone(), publish.put)) {
            return Relation::Refused(Verdict::Deleted);
        }
        let is_listed = self.entries.get(&publish.id).is_some_and(|entry| entry.put == publish.put);
        if !is_listed
            && let Some(absence) = publish.returning
            && self.loss_memory.knows_deleted(&publish.id, publish.put, now.before(absence))
        {
            return Relation::Refused(Verdict::Deleted);
        }
        let Some(entry) = self.entries.get(&publish.id) else { return Relation::New };
        let is_same = entry.put == publish.put && entry.agrees_with(publish);
        match (is_same, entry.is_lost()) {
            (true, false) => Relation::Known,
            (true, true) => Relation::Returned,
            (false, true) => Relation::New,
            (false, false) => {
                let equality = self.compare(node, entry, publish);
                Relation::Refused(Verdict::Conflict { winner: entry.put, equality })
            }
        }
    }

    fn compare(&self, node: NodeIndex, entry: &Entry, publish: &Publish) -> Equality {
        if !entry.agrees_with(publish) {
            return Equality::Different;
        }
        if let Some(inline) = &publish.inline
            && entry.is_inline()
        {
            let is_equal = entry.has_inline(inline);
            return if is_equal { Equality::Equal } else { Equality::Different };
        }
        let others =
            entry.copies.rooted().filter(|copy| copy.node != node && !copy.is_disconnected);
        let usable = others.take(MAX_COMPARED).filter_map(|copy| {
            let record = self.nodes.get(copy.node)?;
            Some((copy.state, &record.info))
        });
        let holder = usable.max_by_key(|(state, info)| (*state, Reverse(&info.node)));
        Equality::Unknown { holder: holder.map(|(_, info)| (info.node.clone(), info.data_address)) }
    }

    /// At the limit, forgets the oldest lost object. Returns `false` if the shard is full.
    fn make_space(&mut self, id: &ObjectId) -> bool {
        // If the id of a new put has an entry, it is the marker of a lost object.
        self.dismantle(id);
        if self.entries.len() < self.config.limits.max_objects {
            return true;
        }
        let Some(oldest) = self.due.markers.pop_first() else { return false };
        self.forget_marker(&oldest);
        self.entries.len() < self.config.limits.max_objects
    }

    fn record(&mut self, turn: &mut Turn<'_>, node: NodeIndex, publish: Publish) {
        let id = publish.id.clone();
        if !self.entries.contains_key(&id) {
            let Some(record) = self.nodes.get(node) else { return };
            let creator = Arc::clone(&record.name);
            let entry = Entry::new(&publish, creator, turn.now);
            self.entries.insert(id.clone(), Box::new(entry));
            self.renew_wait_limits(turn.now, &id);
            let lost = Error::ObjectLost { id: id.clone() };
            self.fail_waiting(turn, &id, &lost, |query| {
                query.resume.is_some_and(|put| put != publish.put)
            });
        }
        self.keep_inline(&publish);
        let was_behind_slow_link = self.is_behind_slow_link(&id, node);
        let own = self.entries.get(&id).and_then(|entry| entry.copies.get(node));
        let was_pinned = own.is_some_and(|copy| copy.retention == Retention::Pinned);
        let must_promote_again = self.update_location(turn.now, node, &publish);
        if self.is_behind_slow_link(&id, node) != was_behind_slow_link {
            self.mark_slow_transfers(&id);
        }
        self.accept_all_senders(node, &id);
        if let Some(sender) = publish.pulling_from.as_ref().and_then(|name| self.nodes.index(name))
        {
            self.accept_all_senders(sender, &id);
        }
        if must_promote_again {
            self.send(turn, node, ToStore::Promote { id: id.clone(), put: publish.put });
        }
        // A draining store has given its pin up, and the other pinned copies may be lost by now.
        let lost_its_pin =
            was_pinned && self.entries.get(&id).is_some_and(|entry| !entry.copies.is_pinned());
        let pin = self.entries.get(&id).map(|entry| entry.pin());
        match pin {
            _ if lost_its_pin => self.ensure_pinned(turn, &id),
            Some(Pin::Missing) => self.ensure_pinned(turn, &id),
            Some(Pin::Held) => self.remove_orphan(&id),
            None => {}
        }
        self.check_root_returned(turn.now, &id);
        if publish.retention == Retention::Pinned || was_pinned {
            self.pinned_copies_changed(turn, &id);
        }
        self.mark_servable(&id);
        self.mark_changed(&id);
    }

    fn keep_inline(&mut self, publish: &Publish) {
        let Some(entry) = self.entries.get_mut(&publish.id) else { return };
        let Some(bytes) = &publish.inline else { return };
        let size_bytes = publish.size_bytes;
        let is_whole = publish.state == LocationState::Complete
            && u64::try_from(bytes.len()) == Ok(size_bytes);
        if is_whole && !entry.is_inline() && self.inline_bytes + size_bytes <= MAX_INLINE_BYTES {
            entry.set_inline(bytes);
            self.inline_bytes += size_bytes;
        }
    }

    /// Records a copy. Returns `true` if the store missed the order to pin it.
    fn update_location(&mut self, now: Time, node: NodeIndex, publish: &Publish) -> bool {
        let pulling_from = publish.pulling_from.as_ref().map(|name| {
            let known = self.nodes.index(name).and_then(|index| self.nodes.get(index));
            known.map_or_else(|| name.clone(), |record| record.info.node.clone())
        });
        let is_draining = self.nodes.is_draining(node);
        let Some(record) = self.nodes.get_mut(node) else { return false };
        let Some(entry) = self.entries.get_mut(&publish.id) else { return false };
        if publish.retention == Retention::Pinned {
            let wanted = publish.metadata.replicas.wanted;
            if wanted > entry.metadata.replicas.wanted {
                entry.metadata.replicas.wanted = wanted;
            }
        }
        let session = record.session_number;
        if entry.copies.get(node).is_none() {
            let mut copy = LocationRecord::new(
                (node, record.place.path),
                publish.state,
                publish.retention,
                session,
            );
            copy.since = now;
            let slots = self.config.limits.slots_per_location;
            copy.set_free_slots(slots.saturating_sub(entry.transfers.served_by(node)));
            entry.copies.insert(copy);
            record.holdings.insert(publish.id.clone());
        }
        let was_promoted = entry.copies.change(node, |location| {
            location.is_published = true;
            if location.session != session {
                location.session = session;
                record.refreshed = now;
            }
            if location.state != LocationState::Complete {
                if publish.state != location.state {
                    location.since = now;
                }
                location.state = publish.state;
            }
            let is_partial = location.state == LocationState::Partial;
            let sender = pulling_from.filter(|name| is_partial && *name != record.info.node);
            location.pulling_from = sender.map(Box::new);
            let is_complete = location.state == LocationState::Complete;
            let was_promoted = is_complete
                && location.retention == Retention::Pinned
                && publish.retention == Retention::Evictable;
            let was_promoted = was_promoted && !is_draining;
            if !was_promoted {
                location.retention = publish.retention;
            }
            was_promoted
        });
        if entry.copies.is_pinned() {
            entry.set_pin(Pin::Held);
        }
        was_promoted.unwrap_or(false)
    }

    /// Promotes (pins) a complete copy at a connected node, or notes that none exists yet.
    pub(super) fn ensure_pinned(&mut self, turn: &mut Turn<'_>, id: &ObjectId) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        entry.set_pin(Pin::Missing);
        let complete = entry.copies.rooted().filter(|copy| copy.state == LocationState::Complete);
        let connected = complete.filter(|copy| !copy.is_disconnected);
        let (leaving, staying): (Vec<_>, Vec<_>) =
            connected.partition(|copy| self.nodes.is_draining(copy.node));
        let best = if staying.is_empty() { leaving } else { staying };
        let connected =
            best.into_iter().filter_map(|copy| Some(&self.nodes.get(copy.node)?.info.node));
        let survivor = choose_survivor(connected).and_then(|name| self.nodes.index(name));
        let Some(survivor) = survivor else {
            if entry.is_inline() {
                self.add_orphan(turn.now, id);
            }
            return;
        };
        entry.copies.change(survivor, |copy| {
            copy.retention = Retention::Pinned;
            // The pin counts once the store confirms it.
            copy.is_published = false;
        });
        entry.set_pin(Pin::Held);
        let put = entry.put;
        self.remove_orphan(id);
        self.send(turn, survivor, ToStore::Promote { id: id.clone(), put });
        self.mark_changed(id);
    }

    pub(super) fn unpublish(
        &mut self,
        turn: &mut Turn<'_>,
        node: NodeIndex,
        id: &ObjectId,
        put: PutId,
        reason: UnpublishReason,
    ) {
        if reason == UnpublishReason::Deleted {
            return self.drop_confirmed(turn, node, id, put);
        }
        let Some(entry) = self.entries.get(id).filter(|entry| entry.put == put) else { return };
        // A new shard may know the put only from receivers. Only the put's producer ends it.
        let own = entry.copies.get(node);
        let is_producing = own.is_none_or(|copy| copy.state == LocationState::Producing);
        let ends_the_put = is_producing && entry.copies.complete() == 0;
        if reason == UnpublishReason::Aborted && ends_the_put {
            self.abort(turn, node, id, DropReason::Lost);
            self.fail_waiting(turn, id, &Error::ObjectLost { id: id.clone() }, |_| true);
        } else if reason == UnpublishReason::Superseded && ends_the_put {
            self.abort(turn, node, id, DropReason::Superseded);
        } else {
            // Receivers may be complete by now, with their publications under way.
            self.remove_location(turn, id, node, turn.now + self.config.limits.node_grace);
            if reason == UnpublishReason::Conceded {
                // A store that takes over the orphan would revive this put once the winning put is
                // deleted.
                self.remove_orphan(id);
                if self
                    .entries
                    .get(id)
                    .is_some_and(|entry| !entry.is_lost() && !entry.has_followers())
                {
                    // Otherwise the inline bytes would be listed and served.
                    self.dismantle(id);
                }
            } else {
                self.decline_orphan(id, node);
            }
        }
    }

    /// Removes a location. With only partial copies left, the object is lost at `lost_at`.
    pub(super) fn remove_location(
        &mut self,
        turn: &mut Turn<'_>,
        id: &ObjectId,
        node: NodeIndex,
        lost_at: Time,
    ) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        let Some(removed) = entry.copies.remove(node) else { return };
        let has_followers = entry.transfers.served_by(node) > 0;
        let lost_its_pin = removed.retention == Retention::Pinned && !entry.copies.is_pinned();
        if let Some(record) = self.nodes.get_mut(node) {
            record.holdings.remove(id);
        }
        if has_followers && self.nodes.has_slow_links() {
            self.mark_slow_transfers(id);
        }
        if lost_its_pin {
            self.ensure_pinned(turn, id);
        }
        if removed.retention == Retention::Pinned {
            self.pinned_copies_changed(turn, id);
        }
        self.check_root_lost(turn, id, lost_at);
        self.mark_servable(id);
        self.mark_changed(id);
    }

    /// Removes an object. Returns its entry, and the nodes that have or pull a copy.
    pub(super) fn dismantle(&mut self, id: &ObjectId) -> Option<(Box<Entry>, Vec<NodeIndex>)> {
        let mut entry = self.entries.remove(id)?;
        self.remove_orphan(id);
        self.end_shortage(id);
        match entry.state() {
            EntryState::Live => {}
            EntryState::Rootless { due } => self.due.rootless.remove(due, id.clone()),
            EntryState::Lost { forget_at } => self.due.markers.remove(forget_at, id.clone()),
        }
        let inline_bytes = if entry.is_inline() { entry.size_bytes } else { 0 };
        self.inline_bytes = self.inline_bytes.saturating_sub(inline_bytes);
        let mut holders = Vec::new();
        for copy in std::mem::take(&mut entry.copies).iter() {
            if let Some(record) = self.nodes.get_mut(copy.node) {
                record.holdings.remove(id);
                holders.push(copy.node);
            }
        }
        for (receiver, grant, _) in std::mem::take(&mut entry.transfers).iter() {
            self.grants.remove(&grant);
            if let Some(record) = self.nodes.get_mut(receiver) {
                record.receiving.remove(&grant);
                holders.push(receiver);
            }
        }
        holders.sort_unstable();
        holders.dedup();
        self.mark_changed(id);
        Some((entry, holders))
    }
}
