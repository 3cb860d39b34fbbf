//! Answers queries with a *grant*, the right to pull from one sender, or with the bytes of an
//! inline object. The receiver returns the sender's slot after its pull.

use super::copies::LocationRecord;
use super::entry::{Entry, Pin, Transfer, groups_left};
use super::history::GrantRecord;
use super::nodes::{NodeIndex, NodeRecord};
use super::{Effect, Shard, Turn};
use crate::id::ObjectId;
use crate::plan::broadcast::SenderChoice;
use crate::plan::chain::unpaced;
use crate::time::Time;
use crate::vocabulary::directory::{
    Grant, GrantId, LocationState, PullOutcome, RequestId, Retention, ToStore,
};

impl Shard {
    pub(super) fn grant(
        &mut self,
        turn: &mut Turn<'_>,
        node: NodeIndex,
        request: RequestId,
        id: &ObjectId,
        sender: NodeIndex,
        choice: SenderChoice,
    ) {
        let Some(sender_record) = self.nodes.get(sender) else { return };
        let (sender_name, sender_address) =
            (sender_record.info.node.clone(), sender_record.info.data_address);
        let sender_path = sender_record.place.path;
        let sent = self.entries.get(id).and_then(|entry| Some((entry, entry.copies.get(sender)?)));
        let is_slow = sent.is_some_and(|(entry, copy)| self.is_slow(entry, copy, node));
        let slots = self.config.limits.slots_per_location;
        let Some(record) = self.nodes.get_mut(node) else { return };
        let Some(entry) = self.entries.get_mut(id) else { return };
        let grant = GrantId(self.next_grant);
        let taken = entry.copies.change(sender, |location| {
            location.free_slots = location.free_slots.saturating_sub(1);
            location.last_grant = grant.0;
            (location.state, location.since)
        });
        let Some((sender_state, sender_since)) = taken else { return };
        entry.set_used(turn.now);
        self.next_grant += 1;
        let sender_has =
            if sender_state == LocationState::Complete { turn.now } else { sender_since };
        let is_fresh = entry.copies.get(node).is_none();
        // The shard now assumes a partial copy, so the receiver need not publish one.
        if is_fresh {
            let since = self.hop_time.bytes_at(turn.now, sender_has);
            assume_partial(entry, (node, record), since, slots);
            record.holdings.insert(id.clone());
        }
        let session = record.session_number;
        let has_turned =
            entry.copies.change(node, |own| own.begin_pull(&sender_name, session, is_slow));
        let has_followers = entry.transfers.served_by(node) > 0;
        // In a paced chain, the estimated hop's time delayed this receiver, so its sample would
        // only confirm the estimate.
        let is_paced_chain = entry.transfers.len() >= unpaced(entry.size_bytes);
        let is_timed =
            sender_state == LocationState::Partial && turn.now < sender_has && !is_paced_chain;
        let leaves = groups_left(sender_path, record.place.path);
        let is_paced = is_fresh && sender_state == LocationState::Complete;
        let transfer = Transfer {
            sender,
            began: turn.now,
            leaves,
            is_recalled: false,
            is_timed,
            is_paced,
            is_slow,
        };
        entry.transfers.insert(node, grant, transfer);
        self.grants.insert(grant, id.clone());
        record.receiving.insert(grant, id.clone());
        let complete_copies =
            u32::try_from(entry.copies.complete_connected_count()).unwrap_or(u32::MAX);
        let granted = Grant {
            request,
            grant,
            id: id.clone(),
            put: entry.put,
            size_bytes: entry.size_bytes,
            metadata: entry.metadata.to_metadata(),
            sender: sender_name,
            sender_address,
            sender_state,
            reason: choice.reason,
            complete_copies,
        };
        self.accept_all_senders(node, id);
        if has_followers && has_turned == Some(true) {
            self.mark_slow_transfers(id);
        }
        self.send_grant(turn, node, granted);
    }

    fn send_grant(&mut self, turn: &mut Turn<'_>, receiver: NodeIndex, grant: Grant) {
        let Some(node) = self.nodes.get(receiver) else { return };
        let (receiver_name, sender) = (node.info.node.clone(), grant.sender.clone());
        let record = GrantRecord::begun(receiver_name, sender, grant.reason, turn.now);
        let id = grant.id.clone();
        self.history.record(&id, grant.grant, record.clone());
        self.mark_changed(&id);
        self.send(turn, receiver, ToStore::Granted(grant));
        turn.effects.push(Effect::Granted { id, record });
    }

    /// Answers a query with inline bytes. The receiver then counts as a complete location.
    pub(super) fn answer_inline(
        &mut self,
        turn: &mut Turn<'_>,
        node: NodeIndex,
        request: RequestId,
        id: &ObjectId,
    ) {
        let Some(record) = self.nodes.get_mut(node) else { return };
        let Some(entry) = self.entries.get_mut(id) else { return };
        let Some(bytes) = entry.inline() else { return };
        entry.set_used(turn.now);
        let session = record.session_number;
        if entry.copies.get(node).is_none() {
            let at = (node, record.place.path);
            let mut copy =
                LocationRecord::new(at, LocationState::Complete, Retention::Evictable, session);
            let slots = self.config.limits.slots_per_location;
            copy.set_free_slots(slots.saturating_sub(entry.transfers.served_by(node)));
            entry.copies.insert(copy);
            record.holdings.insert(id.clone());
        }
        entry.copies.change(node, |own| {
            own.state = LocationState::Complete;
            own.since = turn.now;
            own.pulling_from = None;
            // The copy may be of an earlier session.
            own.session = session;
        });
        let (put, metadata, pin) = (entry.put, entry.metadata.to_metadata(), entry.pin());
        self.accept_all_senders(node, id);
        self.mark_changed(id);
        self.send(turn, node, ToStore::Inline { request, id: id.clone(), put, metadata, bytes });
        if pin == Pin::Missing {
            self.ensure_pinned(turn, id);
        }
    }

    pub(super) fn return_slot(
        &mut self,
        turn: &mut Turn<'_>,
        node: NodeIndex,
        grant: GrantId,
        outcome: PullOutcome,
    ) {
        let Some(record) = self.nodes.get(node) else { return };
        self.history.conclude(turn.now, grant, &record.info.node, outcome);
        if !record.receiving.contains_key(&grant) {
            return;
        }
        let Some((id, link)) = self.release(node, grant) else { return };
        let sender = self.nodes.get(link.sender).map(|record| &record.info.node);
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let own = entry.copies.get(node);
        let named = own.and_then(|own| own.pulling_from.as_deref());
        if named.is_some() && named == sender {
            entry.copies.change(node, |own| own.pulling_from = None);
        }
        let sender =
            entry.copies.get(link.sender).filter(|sender| sender.state == LocationState::Complete);
        if let Some(sender) = sender.filter(|_| link.is_timed && outcome == PullOutcome::Complete) {
            self.hop_time.observe(turn.now - sender.since);
        }
        if outcome == PullOutcome::Complete && link.is_paced && !link.is_slow {
            self.transfer_times.observe(entry.size_bytes, turn.now - link.began);
        }
        self.mark_changed(&id);
        if outcome == PullOutcome::Cancelled {
            self.remove_declined(turn, node, &id);
        }
    }

    /// Removes the assumed copy of a receiver that declined its grant. The copy stays if the
    /// receiver has another grant, or has published it, perhaps for a grant of the other shard.
    fn remove_declined(&mut self, turn: &mut Turn<'_>, node: NodeIndex, id: &ObjectId) {
        let Some(entry) = self.entries.get(id) else { return };
        let copy = entry.copies.get(node);
        let is_assumed =
            copy.is_some_and(|copy| copy.state == LocationState::Partial && !copy.is_published);
        if is_assumed && entry.transfers.senders_of(node).next().is_none() {
            self.remove_location(turn, id, node, turn.now + self.config.limits.node_grace);
        }
    }

    pub(super) fn release(
        &mut self,
        receiver: NodeIndex,
        grant: GrantId,
    ) -> Option<(ObjectId, Transfer)> {
        let id = self.grants.remove(&grant)?;
        let entry = self.entries.get_mut(&id)?;
        let link = entry.transfers.remove(receiver, grant)?;
        entry
            .copies
            .change(link.sender, |sender| sender.free_slots = sender.free_slots.saturating_add(1));
        if let Some(record) = self.nodes.get_mut(receiver) {
            record.receiving.remove(&grant);
        }
        self.mark_servable(&id);
        Some((id, link))
    }
}

fn assume_partial(
    entry: &mut Entry,
    (node, record): (NodeIndex, &NodeRecord),
    since: Time,
    slots: u32,
) {
    let (at, session) = ((node, record.place.path), record.session_number);
    let mut copy = LocationRecord::new(at, LocationState::Partial, Retention::Evictable, session);
    copy.since = since;
    copy.set_free_slots(slots.saturating_sub(entry.transfers.served_by(node)));
    entry.copies.insert(copy);
}
