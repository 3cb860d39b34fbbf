//! Remembers lost nodes that may still have copies of an object.
//!
//! A delete names the lost nodes in its answer, and waits for them only on request. A lost node
//! that returns as the same process drops deleted puts; a new process has no copies.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::nodes::NodeIndex;
use crate::id::{Incarnation, NodeId, ObjectId, PutId};
use crate::time::Time;
use crate::vocabulary::directory::RequestId;

const ABSENCE_TTL: Duration = Duration::from_secs(600);
/// Most remembered copies of lost nodes: about 30 MiB. Beyond this number, the shard forgets the
/// node that was lost first.
const MAX_ABSENT: usize = 1 << 16;

type Put = (ObjectId, PutId);

#[derive(Debug, Default)]
pub(super) struct LostNodes {
    pub(super) nodes: BTreeMap<NodeId, Lost>,
    by_time: BTreeSet<(Time, NodeId)>,
    holders: BTreeMap<Put, BTreeSet<NodeId>>,
    count: usize,
    pub(super) waiting: BTreeMap<ObjectId, Waiting>,
}

#[derive(Debug)]
pub(super) struct Lost {
    pub(super) incarnation: Incarnation,
    at: Time,
    pub(super) puts: BTreeSet<Put>,
}

#[derive(Debug, Default)]
pub(super) struct Waiting {
    pub(super) awaited: BTreeSet<(PutId, NodeId)>,
    pub(super) requesters: BTreeSet<(NodeIndex, RequestId)>,
}

impl LostNodes {
    pub(super) fn note(
        &mut self,
        now: Time,
        (node, incarnation): (&NodeId, Incarnation),
        puts: impl IntoIterator<Item = Put>,
    ) {
        self.forget_expired(now);
        if self.nodes.get(node).is_some_and(|lost| lost.incarnation != incarnation) {
            self.forget_node(node);
        }
        let known = self.nodes.remove(node);
        let mut lost = known.unwrap_or(Lost { incarnation, at: now, puts: BTreeSet::new() });
        self.by_time.remove(&(lost.at, node.clone()));
        for put in puts {
            while self.count >= MAX_ABSENT
                && let Some((_, oldest)) = self.by_time.first().cloned()
            {
                self.forget_node(&oldest);
            }
            if self.count < MAX_ABSENT && lost.puts.insert(put.clone()) {
                self.count += 1;
                self.holders.entry(put).or_default().insert(node.clone());
            }
        }
        if !lost.puts.is_empty() {
            lost.at = now;
            self.by_time.insert((now, node.clone()));
            self.nodes.insert(node.clone(), lost);
        }
    }

    pub(super) fn forget_expired(&mut self, now: Time) {
        while let Some((at, oldest)) = self.by_time.first().cloned()
            && now.since(at) > ABSENCE_TTL
        {
            self.forget_node(&oldest);
        }
    }

    fn forget_node(&mut self, node: &NodeId) {
        let puts = self.nodes.get(node).map(|lost| lost.puts.clone());
        for put in puts.unwrap_or_default() {
            self.forget(node, &put);
        }
    }

    pub(super) fn forget(&mut self, node: &NodeId, put: &Put) {
        let Some(lost) = self.nodes.get_mut(node) else { return };
        if !lost.puts.remove(put) {
            return;
        }
        self.count -= 1;
        if lost.puts.is_empty() {
            self.by_time.remove(&(lost.at, node.clone()));
            self.nodes.remove(node);
        }
        if let Some(holders) = self.holders.get_mut(put) {
            holders.remove(node);
            if holders.is_empty() {
                self.holders.remove(put);
            }
        }
    }

    /// Returns each put of `id` but the live one (`live`), with each lost node that may have a
    /// copy.
    pub(super) fn holders_of(
        &self,
        id: &ObjectId,
        live: Option<PutId>,
    ) -> impl Iterator<Item = (PutId, &NodeId)> {
        let all = (id.clone(), PutId(0))..=(id.clone(), PutId(u64::MAX));
        let holders = self.holders.range(all).filter(move |((_, put), _)| Some(*put) != live);
        holders.flat_map(|((_, put), nodes)| nodes.iter().map(|node| (*put, node)))
    }

    #[cfg(test)]
    pub(super) fn is_awaited_by(&self, id: &ObjectId, requester: &(NodeIndex, RequestId)) -> bool {
        self.waiting.get(id).is_some_and(|waiting| waiting.requesters.contains(requester))
    }

    #[cfg(test)]
    pub(super) fn check(&self, waiting: usize) {
        assert_eq!(
            waiting,
            self.waiting.values().map(|waiting| waiting.requesters.len()).sum::<usize>()
        );
        assert_eq!(self.count, self.nodes.values().map(|lost| lost.puts.len()).sum::<usize>());
        assert_eq!(self.count, self.holders.values().map(BTreeSet::len).sum::<usize>());
        assert!(self.count <= MAX_ABSENT && self.by_time.len() == self.nodes.len());
        assert!(self.nodes.values().all(|lost| !lost.puts.is_empty()));
    }

    pub(super) fn has_holder(&self, put: &Put) -> bool {
        self.holders.contains_key(put)
    }
}
