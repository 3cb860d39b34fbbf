//! Sends updates to the subscribers of an object.
//!
//! Updates list all copies. So that they do not dominate a large broadcast, updates of an object
//! with many copies cover several changes.

use std::time::Duration;

use super::entry::Entry;
use super::nodes::{NodeIndex, OpenRequest};
use super::{Shard, Turn};
use crate::error::Error;
use crate::id::ObjectId;
use crate::vocabulary::directory::{RequestId, ToStore, Wants};

/// Subscribers get each change at once while an object has at most this many copies.
const MAX_PROMPT_COPIES: usize = 64;
/// Pause between updates to subscribers, per listed copy and subscriber. Listing a copy takes about
/// 0.3 us, a thirtieth of this pause.
const PAUSE_PER_COPY: Duration = Duration::from_micros(10);
const MAX_PAUSE: Duration = Duration::from_secs(1);

impl Shard {
    pub(super) fn subscribe(
        &mut self,
        turn: &mut Turn<'_>,
        (node, request): (NodeIndex, RequestId),
        id: ObjectId,
        wants: Wants,
        makes: bool,
    ) {
        if !self.admit(turn, node, request) {
            return;
        }
        let has_copy = |entry: &Entry| entry.copies.get(node).is_some();
        if wants == Wants::Bytes && self.entries.get(&id).is_some_and(|entry| !has_copy(entry)) {
            self.answer_inline(turn, node, request, &id);
        }
        let Some(record) = self.nodes.get_mut(node) else { return };
        record.requests.insert(request, OpenRequest::Subscription(id.clone(), makes));
        self.subscribers.entry(id.clone()).or_default().insert((node, request));
        self.subscriptions += 1;
        let locations = self.locations(&id);
        self.send(turn, node, ToStore::Locations { request, locations });
    }

    pub(super) fn unsubscribe(&mut self, node: NodeIndex, request: RequestId) {
        let Some(record) = self.nodes.get_mut(node) else { return };
        if let Some(OpenRequest::Subscription(id, makes)) = record.requests.get(&request) {
            let (id, makes) = (id.clone(), *makes);
            record.requests.remove(&request);
            if makes {
                record.making.remove(&id);
            }
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
            self.end_pause(id);
        }
    }

    pub(super) fn notify(&mut self, turn: &mut Turn<'_>, id: &ObjectId) {
        let Some(subscribers) = self.subscribers.get(id) else { return };
        if let Some(until) = self.pauses.get(id).filter(|until| **until > turn.now) {
            return self.due.news.insert(*until, id.clone());
        }
        let copies = self.entries.get(id).map_or(0, |entry| entry.copies.len());
        let listed = u32::try_from(copies.saturating_mul(subscribers.len())).unwrap_or(u32::MAX);
        let locations = self.locations(id);
        for (node, request) in subscribers {
            self.send(
                turn,
                *node,
                ToStore::Locations { request: *request, locations: locations.clone() },
            );
        }
        self.end_pause(id);
        if copies > MAX_PROMPT_COPIES {
            let pause = PAUSE_PER_COPY.saturating_mul(listed).min(MAX_PAUSE);
            self.pauses.insert(id.clone(), turn.now + pause);
        }
    }

    fn end_pause(&mut self, id: &ObjectId) {
        if let Some(until) = self.pauses.remove(id) {
            self.due.news.remove(until, id.clone());
        }
    }

    /// Tells subscribers that an id without a put was deleted: one of them may be about to put it.
    pub(super) fn notify_deleted(&self, turn: &mut Turn<'_>, id: &ObjectId) {
        for (node, request) in self.subscribers.get(id).into_iter().flatten() {
            let error = Error::Deleted { id: id.clone() };
            self.send(turn, *node, ToStore::Failed { request: *request, error });
        }
    }
}
