//! Queues the queries of receivers, and chooses a sender for each.

use std::time::Duration;

use super::copies::{Class, LocationRecord};
use super::entry::Entry;
use super::nodes::{NodeIndex, OpenRequest, WaitingQuery};
use super::state::{MAX_AVOIDED, MAX_CONSIDERED, MAX_PASSED};
use super::{Shard, Turn};
use crate::error::{Error, Operation};
use crate::id::{NodeId, ObjectId};
use crate::plan::broadcast::{AGED_AFTER, Candidate, SenderChoice, choose_sender, pulls_from};
use crate::plan::chain::unpaced;
use crate::time::Time;
use crate::topology::place::{EVERYWHERE, Path, groups_of};
use crate::vocabulary::directory::{
    DropReason, GrantReason, LocationState, Publish, Query, RequestId, ToStore,
};

pub(super) enum Answer {
    Inline,
    Grant(NodeIndex, SenderChoice),
}

pub(super) type Answered = (NodeIndex, RequestId, Answer);

impl Shard {
    pub(super) fn query(&mut self, turn: &mut Turn<'_>, node: NodeIndex, query: Query) {
        let Query { request, id, timeout, resume, avoid } = query;
        if !self.admit(turn, node, request) {
            return;
        }
        let entry = self.entries.get(&id).map(Box::as_ref);
        let is_lost = entry.is_some_and(Entry::is_lost);
        let is_other = entry.is_some_and(|entry| resume.is_some_and(|put| entry.put != put));
        let ended = resume.and_then(|put| self.tombstones.get(&(id.clone(), put)));
        let ended = ended.map(|tombstone| tombstone.reason);
        if is_lost || is_other || ended.is_some() {
            let is_deleted = ended == Some(DropReason::Deleted);
            let error = if is_deleted { Error::Deleted { id } } else { Error::ObjectLost { id } };
            return self.send(turn, node, ToStore::Failed { request, error });
        }
        let avoid = avoid.iter().take(MAX_AVOIDED).filter_map(|name| self.nodes.index(name));
        let avoid: Vec<NodeIndex> = avoid.collect();
        let arrival = self.next_arrival;
        self.next_arrival += 1;
        let deadline = turn.now + timeout;
        let is_last_chance = deadline <= turn.now;
        let group = if is_last_chance {
            EVERYWHERE
        } else {
            self.waiting_group(node, entry, resume, &avoid)
        };
        let may_overtake = is_last_chance || !self.waiting.contains_key(&id);
        let since = turn.now;
        let waits_until = since + self.wait_limit(entry, &avoid);
        let query = WaitingQuery {
            id,
            arrival,
            since,
            deadline,
            timeout,
            resume,
            avoid,
            waits_until,
            group,
        };
        if may_overtake && self.answer_now(turn, node, request, &query) {
            return;
        }
        if is_last_chance {
            return self.send(turn, node, ToStore::Failed { request, error: timed_out(&query) });
        }
        let id = query.id.clone();
        self.join_queue(node, request, query);
        self.mark_servable(&id);
    }

    fn answer_now(
        &mut self,
        turn: &mut Turn<'_>,
        node: NodeIndex,
        request: RequestId,
        query: &WaitingQuery,
    ) -> bool {
        let Some(entry) = self.entries.get(&query.id) else { return false };
        if entry.is_inline() {
            self.answer_inline(turn, node, request, &query.id);
            return true;
        }
        let offered = if query.group == EVERYWHERE {
            self.offer(turn.now, entry, &[Class::Complete, Class::Unfinished], node, query)
        } else {
            self.offer_nearby(turn.now, entry, node, query)
        };
        let Some((sender, choice)) = offered else { return false };
        debug_assert!(
            self.is_without_better(&query.id, node, query, &choice),
            "slow, but not the only one"
        );
        self.grant(turn, node, request, &query.id, sender, choice);
        // Waiting queries that avoid a sender may now pull from the new receiver.
        self.mark_servable(&query.id);
        true
    }

    fn join_queue(&mut self, node: NodeIndex, request: RequestId, query: WaitingQuery) {
        let Some(record) = self.nodes.get_mut(node) else { return };
        self.due.queries.insert(query.deadline, (node, request));
        if query.since < query.waits_until {
            self.due.wait_limits.insert(query.waits_until, (node, request));
        }
        let queue = self.waiting.entry(query.id.clone()).or_default();
        queue.insert((query.group, query.arrival), (node, request));
        record.requests.insert(request, OpenRequest::Query(query));
    }

    pub(super) fn remove_from_queue(
        &mut self,
        node: NodeIndex,
        request: RequestId,
        query: &WaitingQuery,
    ) {
        self.due.queries.remove(query.deadline, (node, request));
        self.due.wait_limits.remove(query.waits_until, (node, request));
        if let Some(queue) = self.waiting.get_mut(&query.id) {
            queue.remove(&(query.group, query.arrival));
            if queue.is_empty() {
                self.waiting.remove(&query.id);
            }
            self.end_group_wait_if_unused(&query.id, query.group);
        }
    }

    pub(super) fn remove_query(
        &mut self,
        node: NodeIndex,
        request: RequestId,
    ) -> Option<WaitingQuery> {
        self.waiting_query(node, request)?;
        let Some(OpenRequest::Query(query)) = self.nodes.get_mut(node)?.requests.remove(&request)
        else {
            return None;
        };
        self.remove_from_queue(node, request, &query);
        Some(query)
    }

    pub(super) fn time_out(&mut self, turn: &mut Turn<'_>, node: NodeIndex, request: RequestId) {
        if let Some(query) = self.remove_query(node, request) {
            self.send(turn, node, ToStore::Failed { request, error: timed_out(&query) });
        }
    }

    /// Answers waiting queries. If some are left, looks again when the next copy has bytes to
    /// forward.
    pub(super) fn serve(&mut self, turn: &mut Turn<'_>, id: &ObjectId) {
        while let Some((node, request, answer)) = self.next_answer(turn.now, id) {
            let query = self.remove_query(node, request);
            match answer {
                Answer::Inline => self.answer_inline(turn, node, request, id),
                Answer::Grant(sender, choice) => {
                    let is_better = |query| !self.is_without_better(id, node, query, &choice);
                    debug_assert!(
                        !query.as_ref().is_some_and(is_better),
                        "slow, but not the only one"
                    );
                    self.grant(turn, node, request, id, sender, choice);
                }
            }
        }
        self.hold_queries(turn, id);
        self.recall_slow_transfer(turn, id);
        let waits = self.waiting.contains_key(id);
        let entry = self.entries.get(id).filter(|_| waits);
        let lead = entry.map_or(Duration::ZERO, |entry| self.hop_time.lead(entry.size_bytes));
        let next = entry.and_then(|entry| entry.copies.next_bytes(turn.now + lead));
        if let Some(at) = self.extensions.remove(id) {
            self.due.extensions.remove(at, id.clone());
        }
        if let Some(next) = next {
            let at = turn.now + next.since(turn.now + lead);
            self.extensions.insert(id.clone(), at);
            self.due.extensions.insert(at, id.clone());
        }
    }

    pub(super) fn next_answer(&self, now: Time, id: &ObjectId) -> Option<Answered> {
        let entry = self.entries.get(id).filter(|entry| !entry.is_lost())?;
        let queue = self.waiting.get(id)?;
        if entry.is_inline() {
            let (node, request) = *queue.values().next()?;
            return Some((node, request, Answer::Inline));
        }
        if !self.has_candidate(now, entry) {
            return None;
        }
        let anybody =
            queue.range((EVERYWHERE, 0)..=(EVERYWHERE, u64::MAX)).map(|(_, waiter)| *waiter);
        let answer = |(node, request): (NodeIndex, RequestId)| {
            let query = self.waiting_query(node, request)?;
            let (sender, choice) =
                self.offer(now, entry, &[Class::Complete, Class::Unfinished], node, query)?;
            let yields_to_others = self.yields_to_others(now, entry, query, &choice);
            let waited = if yields_to_others { Duration::ZERO } else { now - query.since };
            Some((yields_to_others, (waited, (node, request, Answer::Grant(sender, choice)))))
        };
        let first = first_that_does_not_yield(anybody.filter_map(answer)).map(|(_, answer)| answer);
        if queue.last_key_value().is_some_and(|((group, _), _)| *group == EVERYWHERE) {
            return first.map(|(_, answer)| answer);
        }
        // Queries that wait in their group use close copies, so they come first, unless a query
        // outside has waited for long.
        let (waited, first) =
            first.map_or((Duration::ZERO, None), |(waited, first)| (waited, Some(first)));
        if waited >= AGED_AFTER {
            return first;
        }
        let is_last_resort = matches!(&first, Some((.., Answer::Grant(_, choice))) if choice.reason.is_last_resort());
        match self.nearest_answer(now, entry, queue) {
            Some((is_in_group, nearest)) if is_in_group || is_last_resort => Some(nearest),
            other => first.or(other.map(|(_, answer)| answer)),
        }
    }

    fn has_candidate(&self, now: Time, entry: &Entry) -> bool {
        let unfinished = entry.copies.free(EVERYWHERE, Class::Unfinished).next();
        entry.copies.free(EVERYWHERE, Class::Complete).next().is_some()
            || unfinished.is_some_and(|record| self.may_extend(now, entry, record))
    }

    /// Returns `true` if a receiver may pull from this unfinished copy, which has bytes now or
    /// soon.
    fn may_extend(&self, now: Time, entry: &Entry, record: &LocationRecord) -> bool {
        self.hop_time.may_extend(now, record.since, entry.transfers.len(), entry.size_bytes)
    }

    /// Chooses the best location with a free slot, in the closest group first. Until the query's
    /// wait limit, returns `None` rather than a slow or failed sender if a better one may become
    /// free.
    fn offer(
        &self,
        now: Time,
        entry: &Entry,
        classes: &[Class],
        node: NodeIndex,
        query: &WaitingQuery,
    ) -> Option<(NodeIndex, SenderChoice)> {
        let path = self.nodes.get(node)?.place.path;
        let offers = groups_of(path)
            .filter_map(|group| self.offer_in(now, entry, group, classes, node, query));
        let (mut slow, mut avoided) = (None, None);
        for (sender, choice) in offers {
            match choice.reason {
                GrantReason::SlowButOnly => slow = slow.or(Some((sender, choice))),
                GrantReason::AvoidedButOnly => avoided = avoided.or(Some((sender, choice))),
                _ => return Some((sender, choice)),
            }
        }
        slow.or(avoided)
            .filter(|(_, choice)| !self.waits_for_better(now, entry, node, query, choice.reason))
    }

    pub(super) fn offer_in(
        &self,
        now: Time,
        entry: &Entry,
        group: Path,
        classes: &[Class],
        node: NodeIndex,
        query: &WaitingQuery,
    ) -> Option<(NodeIndex, SenderChoice)> {
        let path = self.nodes.get(node)?.place.path;
        let serves = self.serves(entry, node);
        let mut senders = Vec::new();
        let mut candidates = Vec::new();
        for class in classes {
            let free = entry.copies.free(group, *class).take(MAX_CONSIDERED);
            let may_be_granted = |record: &&LocationRecord| {
                *class == Class::Complete || self.may_extend(now, entry, record)
            };
            let free = free.take_while(may_be_granted);
            let mut welcome = 0;
            for record in free.filter(|record| !self.is_behind(entry, record, node, serves)) {
                let Some(sender) = self.nodes.get(record.node) else { continue };
                let avoided = query.avoid.contains(&record.node);
                senders.push((record.node, record.path));
                let is_slow = self.is_slow(entry, record, node);
                candidates.push(Candidate {
                    node: &sender.info.node,
                    state: record.state,
                    bytes_at: record.since,
                    last_grant: record.last_grant,
                    avoided,
                    is_slow,
                });
                // Candidates come best first. The second that is neither slow nor avoided proves
                // that there was a choice.
                welcome += usize::from(!avoided && !is_slow);
                if welcome == 2 {
                    break;
                }
            }
        }
        let mut choice = choose_sender(&candidates)?;
        let (sender, sender_path) = *senders.get(choice.index)?;
        let is_unfinished = candidates.get(choice.index)?.state != LocationState::Complete;
        let is_chosen_for_links =
            choice.reason.is_last_resort() || choice.reason == GrantReason::FasterLink;
        if is_unfinished
            && !is_chosen_for_links
            && entry.transfers.len() >= unpaced(entry.size_bytes)
        {
            choice.reason = GrantReason::ChainHasBytes;
        }
        if path != EVERYWHERE && !is_chosen_for_links {
            choice.reason = self.reason_by_place(entry, (path, group), sender_path, choice.reason);
        }
        Some((sender, choice))
    }

    pub(super) fn serves(&self, entry: &Entry, node: NodeIndex) -> bool {
        let name = self.nodes.get(node).map(|record| &record.info.node);
        entry.transfers.served_by(node) > 0
            || name.is_some_and(|name| entry.copies.is_pulled_from(name))
    }

    /// Returns `true` if a copy is at `node`, or gets its bytes from `node`.
    pub(super) fn is_behind(
        &self,
        entry: &Entry,
        record: &LocationRecord,
        node: NodeIndex,
        serves: bool,
    ) -> bool {
        record.node == node || (serves && self.pulls_from(entry, record.node, node))
    }

    /// Returns `true` if `node` pulls from `root`, directly or not. Callers check that `root`
    /// serves some node.
    fn pulls_from(&self, entry: &Entry, node: NodeIndex, root: NodeIndex) -> bool {
        pulls_from(node, root, |node| self.senders_of(entry, node))
    }

    fn senders_of(&self, entry: &Entry, node: NodeIndex) -> impl Iterator<Item = NodeIndex> {
        let published = entry.copies.get(node).and_then(|record| record.pulling_from.as_deref());
        let published = published.and_then(|name| self.nodes.index(name));
        entry.transfers.senders_of(node).chain(published)
    }

    /// Returns the sender of a published copy if it pulls from that copy. Disconnected stores may
    /// have other senders by now.
    pub(super) fn cyclic_sender<'p>(
        &self,
        node: NodeIndex,
        publish: &'p Publish,
    ) -> Option<&'p NodeId> {
        let name = publish.pulling_from.as_ref()?;
        let (sender, entry) = (self.nodes.index(name)?, self.entries.get(&publish.id)?);
        let is_receiving = |node: &NodeIndex| {
            entry
                .copies
                .get(*node)
                .is_some_and(|copy| copy.state == LocationState::Partial && !copy.is_disconnected)
        };
        let is_cyclic = publish.state == LocationState::Partial
            && sender != node
            && self.serves(entry, node)
            && pulls_from(sender, node, |node| {
                let receiving = Some(node).filter(is_receiving).into_iter();
                receiving.flat_map(|node| self.senders_of(entry, node))
            });
        is_cyclic.then_some(name)
    }
}

pub(super) fn first_that_does_not_yield<A>(
    mut answers: impl Iterator<Item = (bool, A)>,
) -> Option<(bool, A)> {
    let first = answers.next()?;
    if !first.0 {
        return Some(first);
    }
    answers.take(MAX_PASSED).find(|(yields_to_others, _)| !yields_to_others).or(Some(first))
}

fn timed_out(query: &WaitingQuery) -> Error {
    Error::timeout(Operation::Get, query.timeout)
}
