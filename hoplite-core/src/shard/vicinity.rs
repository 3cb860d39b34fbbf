//! Receivers wait for copies that are close, and take slots over from receivers that are not.
//!
//! Each query of a node that is in a group is served by the closest copy that may serve it, or waits in its group. See
//! [`plan::vicinity`](crate::plan::vicinity) for the reasons.

use std::collections::{BTreeSet, btree_map};
use std::iter::successors;

use super::copies::{Class, LocationRecord};
use super::entry::Entry;
use super::nodes::{NodeIndex, OpenRequest, WaitingQuery};
use super::query::{Answer, Answered, first_by_precedence};
use super::state::{MAX_CONSIDERED, MAX_GROUPS, MAX_PASSED, Queue};
use super::{Shard, Turn};
use crate::id::{ObjectId, PutId};
use crate::plan::broadcast::{AGED_AFTER, SenderChoice};
use crate::time::Time;
use crate::topology::place::{EVERYWHERE, Path, groups_of, is_in};
use crate::vocabulary::directory::{GrantId, GrantReason, RequestId, ToStore};

/// What there is for a receiver.
enum Nearby {
    /// A sender, found so many groups outwards, and whether it is in a group of the receiver's at all.
    Sender {
        steps: usize,
        is_in_group: bool,
        sender: NodeIndex,
        choice: SenderChoice,
    },
    /// A copy in this group will have bytes.
    Soon,
    /// All copies in this group serve others.
    Busy(Path),
    Nothing,
}

/// The query of a group that is served next, by a sender that was found so many groups outwards.
struct Nearest {
    steps: usize,
    is_in_group: bool,
    answer: Answered,
}

impl Shard {
    /// The group in which a query waits: the innermost one of its node. A receiver that has begun, or has lost a sender, goes
    /// on wherever it can.
    pub(super) fn waiting_group(
        &self,
        node: NodeIndex,
        entry: Option<&Entry>,
        resume: Option<PutId>,
        avoid: &[NodeIndex],
    ) -> Path {
        let has_begun =
            entry.is_some_and(|entry| entry.copies.get(node).is_some() || self.serves(entry, node));
        if has_begun || resume.is_some() || !avoid.is_empty() {
            return EVERYWHERE;
        }
        let path = self.nodes.get(node).map_or(EVERYWHERE, |record| record.place.path);
        groups_of(path).next().unwrap_or(EVERYWHERE)
    }

    /// A node has a copy now, from which others may pull, or they say that they do: queries of it that wait go on wherever they can.
    pub(super) fn has_begun(&mut self, node: NodeIndex, id: &ObjectId) {
        let Some(queue) = self.waiting.get_mut(id) else { return };
        let Some(record) = self.nodes.get_mut(node) else { return };
        let group = groups_of(record.place.path).next().unwrap_or(EVERYWHERE);
        if group == EVERYWHERE {
            return;
        }
        let waiting = queue.range((group, 0)..=(group, u64::MAX)).filter(|(_, (waiter, _))| *waiter == node);
        let own: Vec<_> = waiting.map(|((_, arrival), (_, request))| (*arrival, *request)).collect();
        if own.is_empty() {
            return;
        }
        for (arrival, request) in own {
            queue.remove(&(group, arrival));
            queue.insert((EVERYWHERE, arrival), (node, request));
            if let Some(OpenRequest::Query(query)) = record.requests.get_mut(&request) {
                query.group = EVERYWHERE;
            }
        }
        self.may_let_go(id, group);
    }

    /// Which query of those in groups is served next, and whether it gives precedence to others. First come those that have waited for
    /// long while nobody of their own group had a copy, then those whose sender is closest. A query that would take a slow sender
    /// gives precedence to the others.
    pub(super) fn nearest_answer(&self, now: Time, entry: &Entry, queue: &Queue) -> Option<(bool, Answered)> {
        let aged = self.heads(queue).filter(|(group, _, query, _)| {
            now - query.since >= AGED_AFTER && entry.copies.at_hand(*group) == 0
        });
        let oldest = aged.min_by_key(|(_, _, query, _)| query.arrival);
        let oldest = oldest.and_then(|(group, ..)| self.nearest_in(now, entry, queue, group));
        let passed = match oldest {
            Some((false, oldest)) => return Some((true, oldest.answer)),
            oldest => oldest.map(|(_, oldest)| (true, oldest.answer)),
        };
        let mut best: Option<(bool, Nearest)> = None;
        for (group, ..) in self.heads(queue) {
            let Some((gives_precedence, nearest)) = self.nearest_in(now, entry, queue, group) else {
                continue;
            };
            let may_be_beaten = gives_precedence || nearest.steps > 0;
            if best.as_ref().is_none_or(|(best_gives, best)| {
                (gives_precedence, nearest.steps) < (*best_gives, best.steps)
            }) {
                best = Some((gives_precedence, nearest));
            }
            if !may_be_beaten {
                break;
            }
        }
        match (best, passed) {
            (Some((true, _)) | None, Some(passed)) => Some(passed),
            (best, _) => best.map(|(_, best)| (best.is_in_group, best.answer)),
        }
    }

    /// Which query of a group is served next, and whether it gives precedence to others: the first, or one behind it, as long as those
    /// before it are of receivers with slow links.
    fn nearest_in(&self, now: Time, entry: &Entry, queue: &Queue, group: Path) -> Option<(bool, Nearest)> {
        let waiters = queue.range((group, 0)..=(group, u64::MAX)).map(|(_, waiter)| *waiter);
        let mut is_last = false;
        let waiters = waiters.take(MAX_PASSED).take_while(|(node, _)| {
            // What there is for this one is the best for all behind it.
            !std::mem::replace(&mut is_last, !self.nodes.is_called_slow(*node))
        });
        let answer = |(node, request): (NodeIndex, RequestId)| {
            let query = self.waiting_query(node, request)?;
            let Nearby::Sender { steps, is_in_group, sender, choice } = self.nearby(now, entry, node, query)
            else {
                return None;
            };
            let gives_precedence = self.gives_precedence(now, entry, query, &choice);
            let answer = (node, request, Answer::Grant(sender, choice));
            Some((gives_precedence, Nearest { steps, is_in_group, answer }))
        };
        first_by_precedence(waiters.filter_map(answer))
    }

    /// The receiver that came first in each group in which some wait. What there is for it is the best for all of
    /// them, if no links to it are slow.
    fn heads<'a>(
        &'a self,
        queue: &'a Queue,
    ) -> impl Iterator<Item = (Path, NodeIndex, &'a WaitingQuery, RequestId)> {
        let after = |group: Path| queue.range((group, u64::MAX)..).next().map(|((group, _), _)| *group);
        let groups = successors(after(EVERYWHERE), move |group| after(*group));
        groups.take(MAX_GROUPS).filter_map(move |group| {
            let ((_, _), (node, request)) = queue.range((group, 0)..).next()?;
            let (node, request) = (*node, *request);
            Some((group, node, self.waiting_query(node, request)?, request))
        })
    }

    /// The sender for a receiver that waits in a group, if it need not wait.
    pub(super) fn offer_nearby(
        &self,
        now: Time,
        entry: &Entry,
        node: NodeIndex,
        query: &WaitingQuery,
    ) -> Option<(NodeIndex, SenderChoice)> {
        match self.nearby(now, entry, node, query) {
            Nearby::Sender { sender, choice, .. } => Some((sender, choice)),
            Nearby::Soon | Nearby::Busy(_) | Nearby::Nothing => None,
        }
    }

    /// What there is for a receiver that may wait, the closest first.
    fn nearby(&self, now: Time, entry: &Entry, node: NodeIndex, query: &WaitingQuery) -> Nearby {
        let Some(record) = self.nodes.get(node) else { return Nearby::Nothing };
        let is_patient =
            || self.held_back.get(&(query.id.clone(), query.group)).is_none_or(|until| now < *until);
        let classes = [Class::Complete, Class::Unfinished];
        let mut slow = None;
        for (steps, group) in groups_of(record.place.path).enumerate() {
            let offered = self.offer_in(now, entry, group, &classes, node, query);
            let waits = |choice: &SenderChoice| self.waits_for_better(now, entry, node, query, choice.reason);
            if let Some((sender, choice)) = offered.filter(|(_, choice)| !waits(choice)) {
                let found = Nearby::Sender { steps, is_in_group: group != EVERYWHERE, sender, choice };
                if choice.reason != GrantReason::SlowButOnly {
                    return found;
                }
                slow = slow.or(Some(found));
            }
            if slow.is_some() {
                // There may be a usual link to one that is farther.
                continue;
            }
            if group == EVERYWHERE || entry.copies.at_hand(group) == 0 {
                continue;
            }
            // What is slow is not worth waiting for.
            let is_other = |copy: &LocationRecord| copy.node != node && !self.is_slow(entry, copy, node);
            if self.nodes.has_slow_links()
                && !entry
                    .copies
                    .iter()
                    .take(MAX_CONSIDERED)
                    .any(|copy| is_in(copy.path, group) && !copy.is_away && is_other(copy))
            {
                continue;
            }
            if entry.copies.free(group, Class::Unfinished).any(is_other) {
                return Nearby::Soon;
            }
            if is_patient() {
                return Nearby::Busy(group);
            }
        }
        slow.unwrap_or(Nearby::Nothing)
    }

    /// Has those wait whose group has copies, all of which serve others, and asks receivers of other groups to give way to them.
    pub(super) fn hold_back(&mut self, turn: &mut Turn<'_>, id: &ObjectId) {
        let (Some(entry), Some(queue)) = (self.entries.get(id), self.waiting.get(id)) else { return };
        if queue.last_key_value().is_none_or(|((group, _), _)| *group == EVERYWHERE) {
            return;
        }
        let until = turn.now + self.transfer_times.max_wait(entry.size_bytes);
        let (mut busy, mut others, mut recalled) = (Vec::new(), Vec::new(), BTreeSet::new());
        for (group, node, query, _) in self.heads(queue) {
            match self.nearby(turn.now, entry, node, query) {
                Nearby::Busy(around) => {
                    busy.push(group);
                    recalled.extend(self.transfer_to_recall(turn.now, entry, around));
                }
                // It has waited in vain, and goes on doing so.
                Nearby::Nothing if self.held_back.contains_key(&(id.clone(), group)) => {}
                _ => others.push(group),
            }
        }
        for group in others {
            self.let_go(id, group);
        }
        for group in busy {
            if let btree_map::Entry::Vacant(vacant) = self.held_back.entry((id.clone(), group)) {
                self.due.held_back.insert(until, vacant.key().clone());
                vacant.insert(until);
            }
        }
        for (receiver, grant) in recalled {
            if let Some(entry) = self.entries.get_mut(id) {
                entry.transfers.recall(receiver, grant);
            }
            self.send(turn, receiver, ToStore::GiveWay { grant });
        }
    }

    /// Which transfer out of a group is to be given up for one within it: one that has begun lately, and one at a time.
    fn transfer_to_recall(&self, now: Time, entry: &Entry, group: Path) -> Option<(NodeIndex, GrantId)> {
        let leaving: Vec<_> = entry.transfers.leaving(group).take(MAX_GROUPS).collect();
        if leaving.iter().any(|(.., transfer)| transfer.is_recalled) {
            return None;
        }
        let is_young = |receiver: &NodeIndex, began: Time| {
            // Since when the receiver receives, whoever served it first.
            let began = entry.copies.get(*receiver).map_or(began, |copy| copy.since);
            now - began <= self.transfer_times.recall_until(entry.size_bytes)
        };
        let young = leaving.iter().find(|(receiver, _, transfer)| is_young(receiver, transfer.began));
        young.map(|(receiver, grant, _)| (*receiver, *grant))
    }

    /// A query has left a group, maybe the last one.
    pub(super) fn may_let_go(&mut self, id: &ObjectId, group: Path) {
        let queue = self.waiting.get(id);
        let is_left = queue.is_some_and(|queue| queue.range((group, 0)..=(group, u64::MAX)).next().is_some());
        if group != EVERYWHERE && !is_left {
            self.let_go(id, group);
        }
    }

    /// Nobody of a group waits for a busy copy any more.
    fn let_go(&mut self, id: &ObjectId, group: Path) {
        let key = (id.clone(), group);
        if let Some(until) = self.held_back.remove(&key) {
            self.due.held_back.remove(until, key);
        }
    }

    /// Returns the reason for which a copy at `sender`, found in a group of the receiver's, was chosen, if it was not for the places: `reason`.
    pub(super) fn reason_by_place(
        &self,
        entry: &Entry,
        (path, group): (Path, Path),
        sender: Path,
        reason: GrantReason,
    ) -> GrantReason {
        let own = groups_of(path).next().unwrap_or(EVERYWHERE);
        if group != own || !is_in(sender, own) {
            return if entry.copies.at_hand(own) == 0 {
                GrantReason::FirstOfGroup
            } else {
                GrantReason::CloserAreBusy
            };
        }
        let free = |class| entry.copies.free(EVERYWHERE, class).next();
        let best = free(Class::Complete).or_else(|| free(Class::Unfinished));
        if best.is_some_and(|best| !is_in(best.path, own)) { GrantReason::Closest } else { reason }
    }
}
