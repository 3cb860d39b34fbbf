//! Counts a shard's granted slots (permissions to read) from its messages alone.

use std::collections::BTreeMap;

use hoplite_core::shard::{Event, GrantId, Publish, ToShard, ToStore};
use hoplite_core::{NodeId, ObjectId, PutId};

#[derive(Debug, Default)]
pub(super) struct Slots {
    granted: BTreeMap<GrantId, Slot>,
}

#[derive(Debug)]
struct Slot {
    id: ObjectId,
    put: PutId,
    sender: NodeId,
    receiver: NodeId,
}

impl Slots {
    pub(super) fn before(&mut self, event: &Event) {
        match event {
            Event::Message {
                message:
                    ToShard::ReturnSlot { grant, .. }
                    | ToShard::Publish(Publish { slot: Some(grant), .. }),
                ..
            } => {
                self.granted.remove(grant);
            }
            Event::Disconnected { node, .. } | Event::Ended { node, .. } => self.forget_node(node),
            _ => {}
        }
    }

    /// Records the slots that a shard's message grants to `receiver` or ends.
    ///
    /// # Panics
    /// If the shard grants more than `limit` slots of a copy at once.
    pub(super) fn record(&mut self, receiver: &NodeId, message: &ToStore, limit: u32) {
        match message {
            ToStore::Granted(grant) => {
                let is_of_copy = |slot: &&Slot| {
                    (&slot.id, slot.put, &slot.sender) == (&grant.id, grant.put, &grant.sender)
                };
                let used: Vec<&Slot> = self.granted.values().filter(is_of_copy).collect();
                assert!(
                    used.len() < limit as usize,
                    "{receiver} is granted {grant:?}, which is in use: {used:?}"
                );
                let (id, put, sender) = (grant.id.clone(), grant.put, grant.sender.clone());
                self.granted
                    .insert(grant.grant, Slot { id, put, sender, receiver: receiver.clone() });
            }
            ToStore::Drop { id, put, .. } => {
                self.granted.retain(|_, slot| (&slot.id, slot.put) != (id, *put));
            }
            _ => {}
        }
    }

    pub(super) fn forget_node(&mut self, node: &NodeId) {
        self.granted.retain(|_, slot| slot.sender != *node && slot.receiver != *node);
    }
}
