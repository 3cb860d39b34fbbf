//! Updates to those who watch an object.

use super::message::{RequestId, ToStore};
use super::nodes::{NodeIndex, OpenRequest};
use super::{Shard, Turn};
use crate::error::Error;
use crate::id::ObjectId;

impl Shard {
    pub(super) fn subscribe(
        &mut self,
        turn: &mut Turn<'_>,
        node: NodeIndex,
        request: RequestId,
        id: ObjectId,
    ) {
        if !self.admit(turn, node, request) {
            return;
        }
        let Some(record) = self.nodes.get_mut(node) else { return };
        record.requests.insert(request, OpenRequest::Subscription(id.clone()));
        self.subscribers.entry(id.clone()).or_default().insert((node, request));
        self.subscriptions += 1;
        let locations = self.locations(&id);
        self.send(turn, node, ToStore::Locations { request, locations });
    }

    pub(super) fn unsubscribe(&mut self, node: NodeIndex, request: RequestId) {
        let Some(record) = self.nodes.get_mut(node) else { return };
        if let Some(OpenRequest::Subscription(id)) = record.requests.get(&request) {
            let id = id.clone();
            record.requests.remove(&request);
            self.remove_subscriber(node, request, &id);
        }
    }

    pub(super) fn remove_subscriber(&mut self, node: NodeIndex, request: RequestId, id: &ObjectId) {
        let Some(subscribers) = self.subscribers.get_mut(id) else { return };
        if subscribers.remove(&(node, request)) {
            self.subscriptions -= 1;
        }
        if subscribers.is_empty() {
            self.subscribers.remove(id);
        }
    }

    /// Tells all subscribers of an object what is known now.
    pub(super) fn notify(&self, turn: &mut Turn<'_>, id: &ObjectId) {
        let Some(subscribers) = self.subscribers.get(id) else { return };
        let locations = self.locations(id);
        for (node, request) in subscribers {
            self.send(turn, *node, ToStore::Locations { request: *request, locations: locations.clone() });
        }
    }

    /// Tells all subscribers that an object was deleted which nobody has put: one of them may be about to make it. The
    /// subscriptions go on.
    pub(super) fn notify_deleted(&self, turn: &mut Turn<'_>, id: &ObjectId) {
        for (node, request) in self.subscribers.get(id).into_iter().flatten() {
            let error = Error::Deleted { id: id.clone() };
            self.send(turn, *node, ToStore::Failed { request: *request, error });
        }
    }
}
