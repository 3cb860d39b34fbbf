//! Lets receivers wait for close copies, and moves slots to closer receivers.
//!
//! A *group* is a set of close nodes, such as a rack. A query gets the closest copy with a free
//! slot, or waits while all copies in a group of its node are busy.
//! [`plan::locality`](crate::plan::locality) explains why.

use std::collections::{BTreeSet, btree_map};
use std::iter::successors;

use super::copies::{Class, LocationRecord};
use super::entry::Entry;
use super::nodes::{NodeIndex, OpenRequest, WaitingQuery};
use super::query::{Answer, Answered, first_that_does_not_yield};
use super::state::{MAX_CONSIDERED, MAX_GROUPS, MAX_PASSED, Queue};
use super::{Shard, Turn};
use crate::id::{ObjectId, PutId};
use crate::plan::broadcast::{AGED_AFTER, SenderChoice};
use crate::time::Time;
use crate::topology::place::{EVERYWHERE, Path, groups_of, is_in};
use crate::vocabulary::directory::{GrantId, GrantReason, RequestId, ToStore};

enum Nearby {
    /// A sender in the `steps`-th of the receiver's groups, counted from the innermost, which is 0.
    /// `is_in_group` is `false` for the group of all nodes.
    Sender {
        steps: usize,
        is_in_group: bool,
        sender: NodeIndex,
        choice: SenderChoice,
    },
    /// A copy in the receiver's group will have bytes soon.
    Soon,
    Busy(Path),
    Nothing,
}

struct Nearest {
    steps: usize,
    is_in_group: bool,
    answer: Answered,
}

impl Shard {
    /// Returns the group in which the node's query waits: the innermost one, or [`EVERYWHERE`] for
    /// a receiver that has begun to pull, or has lost a sender.
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

    /// Lets the node's waiting queries accept senders outside its group, because the node now has a
    /// copy or serves others.
    pub(super) fn accept_all_senders(&mut self, node: NodeIndex, id: &ObjectId) {
        let Some(queue) = self.waiting.get_mut(id) else { return };
        let Some(record) = self.nodes.get_mut(node) else { return };
        let group = groups_of(record.place.path).next().unwrap_or(EVERYWHERE);
        if group == EVERYWHERE {
            return;
        }
        let waiting =
            queue.range((group, 0)..=(group, u64::MAX)).filter(|(_, (waiter, _))| *waiter == node);
        let own: Vec<_> =
            waiting.map(|((_, arrival), (_, request))| (*arrival, *request)).collect();
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
        self.end_group_wait_if_unused(id, group);
    }

    /// Chooses the next query that waits for a copy in its group, and its sender. The flag is
    /// `true` if the sender is in a group of the receiver, or the query has waited for too long.
    ///
    /// Queries that have waited for long without a copy in their group come first, then those with
    /// the closest senders, then those with a slow sender.
    pub(super) fn nearest_answer(
        &self,
        now: Time,
        entry: &Entry,
        queue: &Queue,
    ) -> Option<(bool, Answered)> {
        let aged = self.first_of_groups(queue).filter(|(group, _, query, _)| {
            now - query.since >= AGED_AFTER && entry.copies.connected_count(*group) == 0
        });
        let oldest = aged.min_by_key(|(_, _, query, _)| query.arrival);
        let oldest = oldest.and_then(|(group, ..)| self.nearest_in(now, entry, queue, group));
        let passed = match oldest {
            Some((false, oldest)) => return Some((true, oldest.answer)),
            oldest => oldest.map(|(_, oldest)| (true, oldest.answer)),
        };
        let mut best: Option<(bool, Nearest)> = None;
        for (group, ..) in self.first_of_groups(queue) {
            let Some((yields_to_others, nearest)) = self.nearest_in(now, entry, queue, group)
            else {
                continue;
            };
            let may_be_beaten = yields_to_others || nearest.steps > 0;
            if best.as_ref().is_none_or(|(best_yields, best)| {
                (yields_to_others, nearest.steps) < (*best_yields, best.steps)
            }) {
                best = Some((yields_to_others, nearest));
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

    /// Chooses a group's next query: the first, or a later one if all before it come from nodes
    /// with slow links. The flag is `true` if the query yields to others, because it has only a
    /// slow sender.
    fn nearest_in(
        &self,
        now: Time,
        entry: &Entry,
        queue: &Queue,
        group: Path,
    ) -> Option<(bool, Nearest)> {
        let waiters = queue.range((group, 0)..=(group, u64::MAX)).map(|(_, waiter)| *waiter);
        let mut is_last = false;
        let waiters = waiters.take(MAX_PASSED).take_while(|(node, _)| {
            // Later waiters cannot get a better sender.
            !std::mem::replace(&mut is_last, !self.nodes.is_called_slow(*node))
        });
        let answer = |(node, request): (NodeIndex, RequestId)| {
            let query = self.waiting_query(node, request)?;
            let Nearby::Sender { steps, is_in_group, sender, choice } =
                self.nearby(now, entry, node, query)
            else {
                return None;
            };
            let yields_to_others = self.yields_to_others(now, entry, query, &choice);
            let answer = (node, request, Answer::Grant(sender, choice));
            Some((yields_to_others, Nearest { steps, is_in_group, answer }))
        };
        first_that_does_not_yield(waiters.filter_map(answer))
    }

    /// Returns each group's first waiting query. Later queries get better senders only if the first
    /// one's node has slow links.
    fn first_of_groups<'a>(
        &'a self,
        queue: &'a Queue,
    ) -> impl Iterator<Item = (Path, NodeIndex, &'a WaitingQuery, RequestId)> {
        let after =
            |group: Path| queue.range((group, u64::MAX)..).next().map(|((group, _), _)| *group);
        let groups = successors(after(EVERYWHERE), move |group| after(*group));
        groups.take(MAX_GROUPS).filter_map(move |group| {
            let ((_, _), (node, request)) = queue.range((group, 0)..).next()?;
            let (node, request) = (*node, *request);
            Some((group, node, self.waiting_query(node, request)?, request))
        })
    }

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

    fn nearby(&self, now: Time, entry: &Entry, node: NodeIndex, query: &WaitingQuery) -> Nearby {
        let Some(record) = self.nodes.get(node) else { return Nearby::Nothing };
        let may_wait = || {
            self.held_back.get(&(query.id.clone(), query.group)).is_none_or(|until| now < *until)
        };
        let classes = [Class::Complete, Class::Unfinished];
        let mut slow = None;
        for (steps, group) in groups_of(record.place.path).enumerate() {
            let offered = self.offer_in(now, entry, group, &classes, node, query);
            let waits = |choice: &SenderChoice| {
                self.waits_for_better(now, entry, node, query, choice.reason)
            };
            if let Some((sender, choice)) = offered.filter(|(_, choice)| !waits(choice)) {
                let found =
                    Nearby::Sender { steps, is_in_group: group != EVERYWHERE, sender, choice };
                if choice.reason != GrantReason::SlowButOnly {
                    return found;
                }
                slow = slow.or(Some(found));
            }
            if slow.is_some() {
                // A copy farther away may have a link that is not slow.
                continue;
            }
            if group == EVERYWHERE || entry.copies.connected_count(group) == 0 {
                continue;
            }
            let is_other =
                |copy: &LocationRecord| copy.node != node && !self.is_slow(entry, copy, node);
            if self.nodes.has_slow_links()
                && !entry
                    .copies
                    .iter()
                    .take(MAX_CONSIDERED)
                    .any(|copy| is_in(copy.path, group) && !copy.is_disconnected && is_other(copy))
            {
                continue;
            }
            if entry.copies.free(group, Class::Unfinished).any(is_other) {
                return Nearby::Soon;
            }
            if may_wait() {
                return Nearby::Busy(group);
            }
        }
        slow.unwrap_or(Nearby::Nothing)
    }

    /// Makes queries wait while all copies in their group are busy, and makes receivers outside the
    /// group give up their slots.
    pub(super) fn hold_queries(&mut self, turn: &mut Turn<'_>, id: &ObjectId) {
        let (Some(entry), Some(queue)) = (self.entries.get(id), self.waiting.get(id)) else {
            return;
        };
        if queue.last_key_value().is_none_or(|((group, _), _)| *group == EVERYWHERE) {
            return;
        }
        let until = turn.now + self.transfer_times.max_wait(entry.size_bytes);
        let (mut busy, mut others, mut recalled) = (Vec::new(), Vec::new(), BTreeSet::new());
        for (group, node, query, _) in self.first_of_groups(queue) {
            match self.nearby(turn.now, entry, node, query) {
                Nearby::Busy(around) => {
                    busy.push(group);
                    recalled.extend(self.transfer_to_recall(turn.now, entry, around));
                }
                // The group's wait has ended without a sender. Its entry stays, so that the group
                // does not wait again.
                Nearby::Nothing if self.held_back.contains_key(&(id.clone(), group)) => {}
                _ => others.push(group),
            }
        }
        for group in others {
            self.end_group_wait(id, group);
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

    /// Chooses a transfer out of `group` that must give up its slot for a receiver in the group.
    /// Recalls only one transfer at a time, and none older than `recall_until`.
    fn transfer_to_recall(
        &self,
        now: Time,
        entry: &Entry,
        group: Path,
    ) -> Option<(NodeIndex, GrantId)> {
        let leaving: Vec<_> = entry.transfers.leaving(group).take(MAX_GROUPS).collect();
        if leaving.iter().any(|(.., transfer)| transfer.is_recalled) {
            return None;
        }
        let is_young = |receiver: &NodeIndex, began: Time| {
            // The age counts from the receiver's first transfer of the object, from any sender.
            let began = entry.copies.get(*receiver).map_or(began, |copy| copy.since);
            now - began <= self.transfer_times.recall_until(entry.size_bytes)
        };
        let young =
            leaving.iter().find(|(receiver, _, transfer)| is_young(receiver, transfer.began));
        young.map(|(receiver, grant, _)| (*receiver, *grant))
    }

    pub(super) fn end_group_wait_if_unused(&mut self, id: &ObjectId, group: Path) {
        let queue = self.waiting.get(id);
        let is_left =
            queue.is_some_and(|queue| queue.range((group, 0)..=(group, u64::MAX)).next().is_some());
        if group != EVERYWHERE && !is_left {
            self.end_group_wait(id, group);
        }
    }

    fn end_group_wait(&mut self, id: &ObjectId, group: Path) {
        let key = (id.clone(), group);
        if let Some(until) = self.held_back.remove(&key) {
            self.due.held_back.remove(until, key);
        }
    }

    /// Returns the reason for choosing a sender in `group`: `reason` if locality did not decide.
    pub(super) fn reason_by_place(
        &self,
        entry: &Entry,
        (path, group): (Path, Path),
        sender: Path,
        reason: GrantReason,
    ) -> GrantReason {
        let own = groups_of(path).next().unwrap_or(EVERYWHERE);
        if group != own || !is_in(sender, own) {
            return if entry.copies.connected_count(own) == 0 {
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
