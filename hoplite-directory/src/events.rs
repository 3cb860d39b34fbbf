//! Recent events of the shard, for the dashboard. New events replace the oldest.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hoplite_core::id::NodeId;
use tokio::time::Instant;

/// Most kept events of stores: as many as people read.
const MAX_EVENTS: usize = 512;
/// Most kept events of strangers, who can cause any number.
const MAX_OF_STRANGERS: usize = 64;
const MAX_TEXT_BYTES: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventKind {
    Connected,
    Disconnected,
    Refused,
    TransferFailed,
    /// A store's trouble: for example, it is full, or a call waits long.
    Trouble,
    /// A peer without a store's name was refused.
    Stranger,
    /// A peer of an incompatible version was refused.
    Incompatible,
}

#[derive(Debug, Clone)]
pub(crate) struct PastEvent {
    pub(crate) number: u64,
    pub(crate) at: Duration,
    pub(crate) kind: EventKind,
    pub(crate) node: Option<NodeId>,
    pub(crate) text: String,
}

/// Clones share the list.
#[derive(Debug, Clone)]
pub(crate) struct Events(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    started: Instant,
    past: Mutex<Past>,
}

#[derive(Debug, Default)]
struct Past {
    next: u64,
    of_stores: VecDeque<PastEvent>,
    of_strangers: VecDeque<PastEvent>,
}

impl Events {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Shared { started: Instant::now(), past: Mutex::default() }))
    }

    pub(crate) fn push(&self, kind: EventKind, node: &NodeId, text: impl Into<String>) {
        self.add(kind, Some(node.clone()), text.into());
    }

    pub(crate) fn push_stranger(&self, kind: EventKind, text: String) {
        self.add(kind, None, text);
    }

    fn add(&self, kind: EventKind, node: Option<NodeId>, mut text: String) {
        while text.len() > MAX_TEXT_BYTES {
            text.pop();
        }
        let at = self.0.started.elapsed();
        let mut past = self.lock();
        past.next += 1;
        let event = PastEvent { number: past.next, at, kind, node, text };
        let (ring, limit) = match kind {
            EventKind::Stranger | EventKind::Incompatible => (&mut past.of_strangers, MAX_OF_STRANGERS),
            _ => (&mut past.of_stores, MAX_EVENTS),
        };
        if ring.len() >= limit {
            ring.pop_front();
        }
        ring.push_back(event);
    }

    pub(crate) fn latest(&self) -> Vec<PastEvent> {
        let past = self.lock();
        let mut events: Vec<PastEvent> = past.of_stores.iter().chain(&past.of_strangers).cloned().collect();
        events.sort_by_key(|event| std::cmp::Reverse(event.number));
        events
    }

    fn lock(&self) -> MutexGuard<'_, Past> {
        self.0.past.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_oldest_are_forgotten_and_strangers_push_no_store_out() {
        let events = Events::new();
        let node = NodeId::new("n").unwrap();
        for number in 0..MAX_EVENTS + 10 {
            events.push(EventKind::Connected, &node, number.to_string());
        }
        for _ in 0..1000 {
            events.push_stranger(EventKind::Stranger, "\u{e4}".repeat(1000));
        }
        let latest = events.latest();
        assert_eq!(latest.len(), MAX_EVENTS + MAX_OF_STRANGERS);
        assert!(latest.is_sorted_by_key(|event| std::cmp::Reverse(event.number)));
        assert_eq!(latest.last().unwrap().text, "10");
        assert!(latest.iter().all(|event| event.text.len() <= MAX_TEXT_BYTES));
    }
}
