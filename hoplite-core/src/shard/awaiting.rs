//! Deletes that wait until no lost node can have a copy.

use std::collections::BTreeSet;

use super::nodes::NodeIndex;
use super::{DropReason, Shard, Turn};
use crate::id::{NodeId, ObjectId, PutId};
use crate::missing::Named;
use crate::vocabulary::directory::{RequestId, ToStore};

impl Shard {
    pub(super) fn absent_holders(&self, id: &ObjectId) -> Named<NodeId> {
        let live = self.entries.get(id).map(|entry| entry.put);
        let nodes: BTreeSet<&NodeId> =
            self.absent.holders_of(id, live).map(|(_, node)| node).collect();
        Named::of(nodes.into_iter().cloned())
    }

    /// Makes a request wait for lost nodes that may have the object; `false` without any.
    pub(super) fn await_absent(
        &mut self,
        node: NodeIndex,
        request: RequestId,
        id: &ObjectId,
    ) -> bool {
        let live = self.entries.get(id).map(|entry| entry.put);
        let holders = self.absent.holders_of(id, live);
        let awaited: BTreeSet<(PutId, NodeId)> =
            holders.map(|(put, node)| (put, node.clone())).collect();
        if awaited.is_empty() {
            return false;
        }
        let waiting = self.absent.waiting.entry(id.clone()).or_default();
        waiting.awaited.extend(awaited);
        waiting.requesters.insert((node, request));
        true
    }

    pub(super) fn stop_awaiting(&mut self, node: NodeIndex, request: RequestId, id: &ObjectId) {
        if let Some(waiting) = self.absent.waiting.get_mut(id) {
            waiting.requesters.remove(&(node, request));
            if waiting.requesters.is_empty() {
                self.absent.waiting.remove(id);
            }
        }
    }

    pub(super) fn holder_returned(&mut self, turn: &mut Turn<'_>, index: NodeIndex) {
        let Some(info) = self.nodes.get(index).map(|record| &record.info) else { return };
        let (node, incarnation) = (info.node.clone(), info.incarnation);
        let lost = self.absent.nodes.get(&node);
        let is_same_run = lost.is_some_and(|lost| lost.incarnation == incarnation);
        for put in lost.map(|lost| lost.puts.clone()).unwrap_or_default() {
            let ended = self.tombstones.get(&put).map(|tombstone| tombstone.reason);
            if is_same_run && ended == Some(DropReason::Deleted) {
                let (id, put) = put;
                self.send(turn, index, ToStore::Drop { id, put, reason: DropReason::Deleted });
            } else {
                self.absent.forget(&node, &put);
            }
        }
        if !is_same_run {
            let ids: Vec<ObjectId> = self.absent.waiting.keys().cloned().collect();
            for id in ids {
                self.holder_done(turn, &id, |(_, awaited)| *awaited == node);
            }
        }
    }

    pub(super) fn holder_confirmed(
        &mut self,
        turn: &mut Turn<'_>,
        index: NodeIndex,
        id: &ObjectId,
        put: PutId,
    ) {
        let Some(node) = self.nodes.get(index).map(|record| record.info.node.clone()) else {
            return;
        };
        self.absent.forget(&node, &(id.clone(), put));
        self.holder_done(turn, id, |awaited| *awaited == (put, node.clone()));
    }

    fn holder_done(
        &mut self,
        turn: &mut Turn<'_>,
        id: &ObjectId,
        is_done: impl Fn(&(PutId, NodeId)) -> bool,
    ) {
        let Some(waiting) = self.absent.waiting.get_mut(id) else { return };
        waiting.awaited.retain(|holder| !is_done(holder));
        if !waiting.awaited.is_empty() {
            return;
        }
        let waiting = self.absent.waiting.remove(id).unwrap_or_default();
        for (node, request) in waiting.requesters {
            if let Some(record) = self.nodes.get_mut(node) {
                record.requests.remove(&request);
            }
            let absent = Named::of([]);
            self.send(turn, node, ToStore::DeleteDone { request, put: None, absent });
        }
    }
}
