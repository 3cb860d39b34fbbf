//! Receivers ask for a sender, are served at once or wait, and return the slot.
//!
//! A get passes six files; this is number 5. Next: `hoplite-store/src/data/pull.rs`.

use std::collections::BTreeSet;
use std::time::Duration;

use super::bursts::SHARED_FROM_BYTES;
use super::entry::{Entry, Link, LocationRecord, Pin};
use super::history::GrantRecord;
use super::message::{Grant, GrantId, LocationState, PullOutcome, Query, RequestId, Retention, ToStore};
use super::nodes::{NodeIndex, OpenRequest, WaitingQuery};
use super::{Effect, Shard, Turn};
use crate::error::{Error, Operation};
use crate::id::ObjectId;
use crate::plan::broadcast::{AGED_AFTER, Candidate, Choice, choose_sender, choose_waiter, descendants};
use crate::time::Time;

/// Most senders that one query may avoid; more are ignored.
const MAX_AVOIDED: usize = 64;

/// How a waiting query can be answered.
pub(super) enum Answer {
    /// With the bytes themselves.
    Inline,
    /// With a slot of this sender.
    Grant(NodeIndex, Choice),
}

impl Shard {
    pub(super) fn query(&mut self, turn: &mut Turn<'_>, node: NodeIndex, query: Query) {
        let Query { request, id, timeout, resume, avoid } = query;
        if !self.admit(turn, node, request) {
            return;
        }
        let entry = self.entries.get(&id);
        let is_lost = entry.is_some_and(Entry::is_lost);
        let is_useless = resume.is_some_and(|put| {
            entry.is_some_and(|entry| entry.put != put) || self.tombstones.contains_key(&(id.clone(), put))
        });
        if is_lost || is_useless {
            return self.send(turn, node, ToStore::Failed { request, error: Error::ObjectLost { id } });
        }
        let avoid = avoid.iter().take(MAX_AVOIDED).filter_map(|name| self.nodes.index(name)).collect();
        let arrival = self.next_arrival;
        self.next_arrival += 1;
        let deadline = turn.now + timeout;
        let query = WaitingQuery { id, arrival, since: turn.now, deadline, timeout, resume, avoid };
        if self.answer_now(turn, node, request, &query) {
            return;
        }
        if deadline <= turn.now {
            return self.send(turn, node, ToStore::Failed { request, error: timed_out(&query) });
        }
        self.join_queue(node, request, query);
    }

    /// Answers a query that has just arrived, if that is possible.
    fn answer_now(
        &mut self,
        turn: &mut Turn<'_>,
        node: NodeIndex,
        request: RequestId,
        query: &WaitingQuery,
    ) -> bool {
        let Some(entry) = self.entries.get(&query.id) else { return false };
        let offered = if entry.inline.is_some() {
            let Some(offered) = self.relief(turn.now, entry, node, query) else {
                self.answer_inline(turn, node, request, &query.id);
                return true;
            };
            Some(offered)
        } else {
            let free = self.free_locations(entry);
            self.offer(turn.now, entry, &free, node, query)
        };
        let Some((sender, choice)) = offered else { return false };
        self.grant(turn, node, request, &query.id, sender, choice);
        // The sender now feeds one more node, which those who wait may have preferred to a sender that they avoid.
        self.mark_servable(&query.id);
        true
    }

    fn join_queue(&mut self, node: NodeIndex, request: RequestId, query: WaitingQuery) {
        let Some(record) = self.nodes.get_mut(node) else { return };
        self.due.queries.insert(query.deadline, (node, request));
        if !query.avoid.is_empty() {
            self.due.patience.insert(query.since + AGED_AFTER, (node, request));
        }
        self.waiting.entry(query.id.clone()).or_default().insert(query.arrival, (node, request));
        record.requests.insert(request, OpenRequest::Query(query));
    }

    pub(super) fn leave_queue(&mut self, node: NodeIndex, request: RequestId, query: &WaitingQuery) {
        self.due.queries.remove(query.deadline, (node, request));
        if !query.avoid.is_empty() {
            self.due.patience.remove(query.since + AGED_AFTER, (node, request));
        }
        if let Some(queue) = self.waiting.get_mut(&query.id) {
            queue.remove(&query.arrival);
            if queue.is_empty() {
                self.waiting.remove(&query.id);
            }
        }
    }

    /// Ends the wait of a query, if this is one.
    pub(super) fn take_query(&mut self, node: NodeIndex, request: RequestId) -> Option<WaitingQuery> {
        self.waiting_query(node, request)?;
        let Some(OpenRequest::Query(query)) = self.nodes.get_mut(node)?.requests.remove(&request) else {
            return None;
        };
        self.leave_queue(node, request, &query);
        Some(query)
    }

    pub(super) fn time_out(&mut self, turn: &mut Turn<'_>, node: NodeIndex, request: RequestId) {
        if let Some(query) = self.take_query(node, request) {
            self.send(turn, node, ToStore::Failed { request, error: timed_out(&query) });
        }
    }

    pub(super) fn patience_ended(&mut self, node: NodeIndex, request: RequestId) {
        if let Some(id) = self.waiting_query(node, request).map(|query| query.id.clone()) {
            self.mark_servable(&id);
        }
    }

    /// Answers as many of the waiting queries of an object as possible.
    pub(super) fn serve(&mut self, turn: &mut Turn<'_>, id: &ObjectId) {
        while let Some((node, request, answer)) = self.next_answer(turn.now, id) {
            self.take_query(node, request);
            match answer {
                Answer::Inline => self.answer_inline(turn, node, request, id),
                Answer::Grant(sender, choice) => self.grant(turn, node, request, id, sender, choice),
            }
        }
    }

    /// Who of the queue of an object is to be answered next: from the inline bytes, or by this sender.
    pub(super) fn next_answer(&self, now: Time, id: &ObjectId) -> Option<(NodeIndex, RequestId, Answer)> {
        let entry = self.entries.get(id).filter(|entry| !entry.is_lost())?;
        let queue = self.waiting.get(id)?;
        if entry.inline.is_some() {
            let (node, request) = *queue.values().next()?;
            let query = self.waiting_query(node, request);
            let relief = query.and_then(|query| self.relief(now, entry, node, query));
            let answer = relief.map_or(Answer::Inline, |(sender, choice)| Answer::Grant(sender, choice));
            return Some((node, request, answer));
        }
        let free = self.free_locations(entry);
        if free.is_empty() {
            return None;
        }
        // The choices are indexed by place in `free`, so that the winner's sender is found again below.
        let offers = queue.values().map(|(node, request)| {
            let Some(query) = self.waiting_query(*node, *request) else { return (Duration::ZERO, None) };
            let choice = self.offer(now, entry, &free, *node, query).and_then(|(sender, choice)| {
                let index = free.iter().position(|(index, _)| *index == sender)?;
                Some(Choice { index, ..choice })
            });
            (now - query.since, choice)
        });
        let (position, choice) = choose_waiter(offers)?;
        let (node, request) = queue.values().nth(position)?;
        let (sender, _) = free.get(choice.index)?;
        Some((*node, *request, Answer::Grant(*sender, choice)))
    }

    /// Who serves a receiver of an inline object in place of this shard, whose link is busy with the same bytes for others
    /// who came at the same time. That halves what goes through it: every other one is served by one that came before.
    /// A receiver that is refused there, because the bytes have not come yet or never will, gets them from the shard.
    fn relief(
        &self,
        now: Time,
        entry: &Entry,
        node: NodeIndex,
        query: &WaitingQuery,
    ) -> Option<(NodeIndex, Choice)> {
        let is_refused = !query.avoid.is_empty();
        if is_refused || entry.size_bytes < SHARED_FROM_BYTES || !self.bursts.is_under_way(now, &query.id) {
            return None;
        }
        let mut free = self.free_locations(entry);
        free.retain(|(_, candidate)| candidate.state == LocationState::Complete);
        self.offer(now, entry, &free, node, query)
    }

    /// The locations of an object that can be granted to somebody.
    fn free_locations<'s>(&'s self, entry: &'s Entry) -> Vec<(NodeIndex, Candidate<'s>)> {
        let slots = self.config.limits.slots_per_location;
        let free = entry.locations().iter().filter(|location| location.slots < slots);
        free.filter_map(|location| self.candidate(location)).collect()
    }

    fn candidate(&self, location: &LocationRecord) -> Option<(NodeIndex, Candidate<'_>)> {
        let record = self.nodes.get(location.node).filter(|record| record.is_connected())?;
        let (state, last_grant) = (location.state, location.last_grant);
        Some((location.node, Candidate { node: &record.info.node, state, last_grant, avoided: false }))
    }

    /// The best of the `free` locations for a receiver.
    fn offer(
        &self,
        now: Time,
        entry: &Entry,
        free: &[(NodeIndex, Candidate<'_>)],
        node: NodeIndex,
        query: &WaitingQuery,
    ) -> Option<(NodeIndex, Choice)> {
        let receiver = &self.nodes.get(node)?.info.node;
        let excluded = self.receivers_behind(entry, node);
        let eligible = free.iter().filter(|(sender, _)| !excluded.contains(sender));
        let (senders, candidates): (Vec<NodeIndex>, Vec<Candidate<'_>>) = eligible
            .map(|(sender, candidate)| {
                (*sender, Candidate { avoided: query.avoid.contains(sender), ..*candidate })
            })
            .unzip();
        let choice = choose_sender(receiver, &candidates, &self.config.topology)?;
        let sender = *senders.get(choice.index)?;
        let is_patient = now - query.since < AGED_AFTER;
        if query.avoid.contains(&sender) && is_patient {
            // Another location that is busy now is worth a short wait.
            let others = entry.locations().iter().filter(|location| !excluded.contains(&location.node));
            let mut others = others.filter(|location| !query.avoid.contains(&location.node));
            if others.any(|location| self.nodes.is_connected(location.node)) {
                return None;
            }
        }
        Some((sender, choice))
    }

    /// The receiver itself and all that pull from it, directly or through others.
    fn receivers_behind(&self, entry: &Entry, node: NodeIndex) -> BTreeSet<NodeIndex> {
        let name = self.nodes.get(node).map(|record| &record.info.node);
        let serves = entry.links.values().any(|link| link.sender == node)
            || entry
                .locations()
                .iter()
                .any(|location| location.pulling_from.as_ref() == name && name.is_some());
        if !serves {
            return BTreeSet::from([node]);
        }
        let granted = entry.links.values().map(|link| (link.receiver, link.sender));
        let published = entry.locations().iter().filter_map(|location| {
            let sender = self.nodes.index(location.pulling_from.as_ref()?)?;
            Some((location.node, sender))
        });
        descendants(node, granted.chain(published))
    }

    /// Gives `sender`'s slot to `node`.
    fn grant(
        &mut self,
        turn: &mut Turn<'_>,
        node: NodeIndex,
        request: RequestId,
        id: &ObjectId,
        sender: NodeIndex,
        choice: Choice,
    ) {
        let Some(sender_info) = self.nodes.get(sender).map(|record| record.info.clone()) else { return };
        let Some(record) = self.nodes.get_mut(node) else { return };
        let Some(entry) = self.entries.get_mut(id) else { return };
        let Some(location) = entry.location_mut(sender) else { return };
        let grant = GrantId(self.next_grant);
        self.next_grant += 1;
        location.slots = location.slots.saturating_add(1);
        location.last_grant = grant.0;
        let sender_state = location.state;
        // The receiver need not say that its copy has started.
        if entry.location(node).is_none() {
            let (partial, evictable) = (LocationState::Partial, Retention::Evictable);
            entry.add_location(LocationRecord::new(node, record.session_number, partial, evictable));
            record.holdings.insert(id.clone());
        }
        let own = entry.location_mut(node).filter(|own| own.state == LocationState::Partial);
        if let Some(own) = own {
            own.session = record.session_number;
            own.pulling_from = Some(sender_info.node.clone());
        }
        entry.links.insert(grant, Link { receiver: node, sender });
        self.grants.insert(grant, id.clone());
        record.receiving.insert(grant, id.clone());
        let grant_record = GrantRecord {
            receiver: record.info.node.clone(),
            sender: sender_info.node.clone(),
            reason: choice.reason,
            at: turn.now,
            outcome: None,
        };
        self.history.record(id, grant, grant_record.clone());
        let message = ToStore::Granted(Grant {
            request,
            grant,
            id: id.clone(),
            put: entry.put,
            size_bytes: entry.size_bytes,
            metadata: entry.metadata.clone(),
            sender: sender_info.node,
            sender_address: sender_info.data_address,
            sender_state,
            reason: choice.reason,
        });
        self.mark_changed(id);
        self.send(turn, node, message);
        turn.effects.push(Effect::Granted { id: id.clone(), record: grant_record });
    }

    /// Answers with the bytes themselves; the receiver is a complete location from now on.
    fn answer_inline(&mut self, turn: &mut Turn<'_>, node: NodeIndex, request: RequestId, id: &ObjectId) {
        let Some(record) = self.nodes.get_mut(node) else { return };
        let Some(entry) = self.entries.get_mut(id) else { return };
        let Some(bytes) = entry.inline.clone() else { return };
        let session = record.session_number;
        self.bursts.note(turn.now, id);
        if let Some(own) = entry.location_mut(node) {
            own.state = LocationState::Complete;
            own.pulling_from = None;
            // It may be left over from an earlier session.
            own.session = session;
        } else {
            entry.add_location(LocationRecord::new(
                node,
                session,
                LocationState::Complete,
                Retention::Evictable,
            ));
            record.holdings.insert(id.clone());
        }
        let (put, metadata, pin) = (entry.put, entry.metadata.clone(), entry.pin);
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
        self.history.conclude(grant, &record.info.node, outcome);
        if !record.receiving.contains_key(&grant) {
            return;
        }
        let Some((id, sender)) = self.release(grant) else { return };
        let sender = self.nodes.get(sender).map(|record| record.info.node.clone());
        let own = self.entries.get_mut(&id).and_then(|entry| entry.location_mut(node));
        if let Some(own) = own.filter(|own| own.pulling_from.is_some() && own.pulling_from == sender) {
            own.pulling_from = None;
            self.mark_changed(&id);
        }
        if outcome == PullOutcome::Cancelled {
            self.remove_declined(turn, node, &id);
        }
    }

    /// A receiver has no copy for a slot that it was granted: it is no location, unless it has another slot.
    fn remove_declined(&mut self, turn: &mut Turn<'_>, node: NodeIndex, id: &ObjectId) {
        let location = self.entries.get(id).and_then(|entry| entry.location(node));
        let is_partial = location.is_some_and(|location| location.state == LocationState::Partial);
        let receives = self.nodes.get(node).is_some_and(|node| node.receiving.values().any(|of| of == id));
        if is_partial && !receives {
            self.remove_location(turn, id, node, turn.now + self.config.limits.node_grace);
        }
    }

    /// Frees a slot; returns of which object and sender.
    pub(super) fn release(&mut self, grant: GrantId) -> Option<(ObjectId, NodeIndex)> {
        let id = self.grants.remove(&grant)?;
        let entry = self.entries.get_mut(&id)?;
        let link = entry.links.remove(&grant)?;
        if let Some(location) = entry.location_mut(link.sender) {
            location.slots = location.slots.saturating_sub(1);
        }
        if let Some(record) = self.nodes.get_mut(link.receiver) {
            record.receiving.remove(&grant);
        }
        self.mark_servable(&id);
        Some((id, link.sender))
    }
}

fn timed_out(query: &WaitingQuery) -> Error {
    Error::Timeout { operation: Operation::Get, waited: query.timeout }
}
