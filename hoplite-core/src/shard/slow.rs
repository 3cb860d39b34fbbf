//! Routes receivers around links that stores report as slow: a receiver takes another sender, or
//! waits for one. After a while it accepts a slow link, so no receiver starves.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::copies::{Class, LocationRecord};
use super::entry::{Entry, Transfer};
use super::nodes::{NodeIndex, OpenRequest, WaitingQuery};
use super::state::{MAX_CONSIDERED, MAX_GROUPS};
use super::{Shard, Turn};
use crate::id::{NodeId, ObjectId};
use crate::plan::broadcast::{AGED_AFTER, SenderChoice};
use crate::time::Time;
use crate::topology::place::EVERYWHERE;
use crate::vocabulary::directory::{GrantId, GrantReason, LocationState, RequestId, ToStore};

/// Smaller objects may use slow links, because they arrive before a receiver could change its
/// sender.
const MIN_ROUTED_BYTES: u64 = 1 << 20;

impl Shard {
    /// Returns the wait before a receiver accepts a slow link or a failed sender.
    pub(super) fn wait_limit(&self, entry: Option<&Entry>, avoid: &[NodeIndex]) -> Duration {
        match entry {
            _ if !avoid.is_empty() => AGED_AFTER,
            _ if !self.nodes.has_slow_links() => Duration::ZERO,
            // A slow link needs at least twice the usual time, so a wait of half the usual time is
            // worthwhile.
            Some(entry) => self.transfer_times.recall_until(entry.size_bytes),
            // The wait begins when the object is put.
            None => Duration::ZERO,
        }
    }

    /// Restarts the time for which an object's queries refuse slow links, when the object is put or
    /// the first slow link is reported.
    pub(super) fn renew_wait_limits(&mut self, now: Time, id: &ObjectId) {
        if !self.nodes.has_slow_links() {
            return;
        }
        let (Some(entry), Some(queue)) = (self.entries.get(id), self.waiting.get(id)) else {
            return;
        };
        if entry.size_bytes < MIN_ROUTED_BYTES {
            return;
        }
        let until = now + self.transfer_times.recall_until(entry.size_bytes);
        for (node, request) in queue.values() {
            let record = self.nodes.get_mut(*node);
            let open = record.and_then(|record| record.requests.get_mut(request));
            if let Some(OpenRequest::Query(query)) = open
                && query.avoid.is_empty()
            {
                self.due.wait_limits.remove(query.waits_until, (*node, *request));
                self.due.wait_limits.insert(until, (*node, *request));
                query.waits_until = until;
            }
        }
    }

    /// Returns `true` if a query with only a slow sender lets other queries go first, to use their
    /// copies later: for at most one transfer's time, or 100 ms if longer.
    pub(super) fn yields_to_others(
        &self,
        now: Time,
        entry: &Entry,
        query: &WaitingQuery,
        choice: &SenderChoice,
    ) -> bool {
        choice.reason == GrantReason::SlowButOnly
            && now < query.waits_until + self.transfer_times.recall_until(entry.size_bytes)
    }

    pub(super) fn wait_limit_ended(&mut self, node: NodeIndex, request: RequestId) {
        if let Some(id) = self.waiting_query(node, request).map(|query| query.id.clone()) {
            self.mark_servable(&id);
        }
    }

    pub(super) fn waits_for_better(
        &self,
        now: Time,
        entry: &Entry,
        node: NodeIndex,
        query: &WaitingQuery,
        reason: GrantReason,
    ) -> bool {
        if !reason.is_last_resort() || now >= query.waits_until {
            return false;
        }
        let serves = self.serves(entry, node);
        let is_slow = |record: &LocationRecord| {
            reason == GrantReason::SlowButOnly && self.is_slow(entry, record, node)
        };
        let is_better = |record: &LocationRecord| {
            !record.is_disconnected
                && !query.avoid.contains(&record.node)
                && !is_slow(record)
                && !self.is_behind(entry, record, node, serves)
        };
        entry.copies.iter().take(MAX_CONSIDERED).any(is_better)
    }

    pub(super) fn is_slow(&self, entry: &Entry, record: &LocationRecord, node: NodeIndex) -> bool {
        if !self.nodes.has_slow_links() || entry.size_bytes < MIN_ROUTED_BYTES {
            return false;
        }
        record.is_behind_slow_link() || self.nodes.is_slow_link(record.node, node)
    }

    pub(super) fn is_without_better(
        &self,
        id: &ObjectId,
        node: NodeIndex,
        query: &WaitingQuery,
        choice: &SenderChoice,
    ) -> bool {
        let Some(entry) =
            self.entries.get(id).filter(|_| choice.reason == GrantReason::SlowButOnly)
        else {
            return true;
        };
        let serves = self.serves(entry, node);
        let is_better = |record: &LocationRecord| {
            !query.avoid.contains(&record.node)
                && !self.is_slow(entry, record, node)
                && !self.is_behind(entry, record, node, serves)
        };
        !entry.copies.free(EVERYWHERE, Class::Complete).take(MAX_CONSIDERED).any(is_better)
    }

    /// Records a node's slow links. With the first ones of any node, queries begin to wait for
    /// better senders.
    pub(super) fn set_slow_peers(&mut self, now: Time, index: NodeIndex, peers: Vec<NodeId>) {
        let had_slow_links = self.nodes.has_slow_links();
        if self.nodes.set_slow_peers(index, peers) {
            self.mark_all_slow_transfers();
            let is_large = |id: &&ObjectId| {
                self.entries.get(*id).is_some_and(|entry| entry.size_bytes >= MIN_ROUTED_BYTES)
            };
            let waited_for: Vec<ObjectId> = self.waiting.keys().filter(is_large).cloned().collect();
            for id in waited_for.iter().filter(|_| !had_slow_links) {
                self.renew_wait_limits(now, id);
            }
            self.to_serve.extend(waited_for);
        }
    }

    pub(super) fn mark_all_slow_transfers(&mut self) {
        let transferred: BTreeSet<ObjectId> = self.grants.values().cloned().collect();
        for id in transferred {
            self.mark_slow_transfers(&id);
        }
    }

    pub(super) fn is_behind_slow_link(&self, id: &ObjectId, node: NodeIndex) -> bool {
        if !self.nodes.has_slow_links() {
            return false;
        }
        let copy = self.entries.get(id).and_then(|entry| entry.copies.get(node));
        copy.is_some_and(LocationRecord::is_behind_slow_link)
    }

    pub(super) fn mark_slow_transfers(&mut self, id: &ObjectId) {
        let Some(entry) = self.entries.get(id) else { return };
        if entry.size_bytes < MIN_ROUTED_BYTES || entry.transfers.is_empty() {
            return;
        }
        // Only a receiver's latest sender counts, so that the transfers form trees.
        let senders: BTreeMap<NodeIndex, NodeIndex> = entry
            .transfers
            .iter()
            .map(|(receiver, _, transfer)| (receiver, transfer.sender))
            .collect();
        let mut receivers: BTreeMap<NodeIndex, Vec<NodeIndex>> = BTreeMap::new();
        for (receiver, sender) in &senders {
            receivers.entry(*sender).or_default().push(*receiver);
        }
        let mut slowly: BTreeMap<NodeIndex, bool> = BTreeMap::new();
        let mut open: Vec<NodeIndex> =
            receivers.keys().filter(|sender| !senders.contains_key(sender)).copied().collect();
        while let Some(sender) = open.pop() {
            for receiver in receivers.remove(&sender).unwrap_or_default() {
                slowly.insert(receiver, self.is_slow_behind(entry, &slowly, sender, receiver));
                open.push(receiver);
            }
        }
        let slow: Vec<(NodeIndex, GrantId, bool)> = entry
            .transfers
            .iter()
            .map(|(receiver, grant, transfer)| {
                (receiver, grant, self.is_slow_behind(entry, &slowly, transfer.sender, receiver))
            })
            .collect();
        let Some(entry) = self.entries.get_mut(id) else { return };
        for (receiver, grant, is_slow) in slow {
            entry.transfers.set_slow(receiver, grant, is_slow);
        }
        for (receiver, has_slow_source) in slowly {
            if entry
                .copies
                .get(receiver)
                .is_some_and(|copy| copy.has_slow_source() != has_slow_source)
            {
                entry.copies.change(receiver, |copy| copy.set_has_slow_source(has_slow_source));
            }
        }
        self.mark_servable(id);
    }

    /// Returns `true` if the receiver's bytes would cross a slow link. `slowly` tells which senders
    /// receive over slow links.
    fn is_slow_behind(
        &self,
        entry: &Entry,
        slowly: &BTreeMap<NodeIndex, bool>,
        sender: NodeIndex,
        receiver: NodeIndex,
    ) -> bool {
        if !self.nodes.has_slow_links() {
            return false;
        }
        let is_behind_slow_link =
            entry.copies.get(sender).is_some_and(|copy| match slowly.get(&sender) {
                Some(has_slow_source) => *has_slow_source && copy.state == LocationState::Partial,
                None => copy.is_behind_slow_link(),
            });
        is_behind_slow_link || self.nodes.is_slow_link(sender, receiver)
    }

    /// Makes a receiver with a slow link give up its sender to a waiting receiver with a better
    /// link, and query again.
    pub(super) fn recall_slow_transfer(&mut self, turn: &mut Turn<'_>, id: &ObjectId) {
        let (Some(entry), Some(queue)) = (self.entries.get(id), self.waiting.get(id)) else {
            return;
        };
        let is_recalled = |(.., transfer): (_, _, &Transfer)| transfer.is_recalled;
        if entry.transfers.slow().next().is_none() || entry.transfers.slow().any(is_recalled) {
            return;
        }
        let waiting = queue.values().take(MAX_GROUPS);
        let waiting = waiting
            .filter_map(|(node, request)| Some((*node, self.waiting_query(*node, *request)?)));
        let waiting: Vec<(NodeIndex, &WaitingQuery)> = waiting.collect();
        let may_have = |transfer: &Transfer, node: NodeIndex, query: &WaitingQuery| {
            let copy = entry.copies.get(transfer.sender);
            copy.is_some_and(|copy| {
                !query.avoid.contains(&copy.node)
                    && !self.is_slow(entry, copy, node)
                    && !self.is_behind(entry, copy, node, self.serves(entry, node))
            })
        };
        let is_slow_still = |receiver: NodeIndex, transfer: &Transfer| {
            entry
                .copies
                .get(transfer.sender)
                .is_some_and(|copy| self.is_slow(entry, copy, receiver))
        };
        let recalled = entry.transfers.slow().find(|(receiver, _, transfer)| {
            is_slow_still(*receiver, transfer)
                && waiting.iter().any(|(node, query)| {
                    // A transfer that began after the query was already given up for it once, and
                    // found no better sender.
                    node != receiver
                        && transfer.began <= query.since
                        && may_have(transfer, *node, query)
                })
        });
        let Some((receiver, grant)) = recalled.map(|(receiver, grant, _)| (receiver, grant)) else {
            return;
        };
        if let Some(entry) = self.entries.get_mut(id) {
            entry.transfers.recall(receiver, grant);
        }
        self.send(turn, receiver, ToStore::GiveWay { grant });
    }
}
