//! Recent events, for the dashboard. New events replace the oldest.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hoplite_core::id::NodeId;
use tokio::time::Instant;

const MAX_EVENTS: usize = 512;
/// Events about unauthenticated peers: few, because such a peer can cause any number.
const MAX_STRANGER_EVENTS: usize = 64;
const MAX_TEXT_BYTES: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventKind {
    Connected,
    Disconnected,
    Refused,
    TransferFailed,
    Trouble,
    /// A peer without a store's name was refused.
    Stranger,
    Incompatible,
}

#[derive(Debug, Clone)]
pub(crate) struct RecordedEvent {
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
    log: Mutex<EventLog>,
}

#[derive(Debug, Default)]
struct EventLog {
    next: u64,
    store_events: VecDeque<RecordedEvent>,
    stranger_events: VecDeque<RecordedEvent>,
}

impl Events {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Shared { started: Instant::now(), log: Mutex::default() }))
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
        let mut log = self.lock();
        log.next += 1;
        let event = RecordedEvent { number: log.next, at, kind, node, text };
        let (ring, limit) = match kind {
            EventKind::Stranger | EventKind::Incompatible => {
                (&mut log.stranger_events, MAX_STRANGER_EVENTS)
            }
            _ => (&mut log.store_events, MAX_EVENTS),
        };
        if ring.len() >= limit {
            ring.pop_front();
        }
        ring.push_back(event);
    }

    pub(crate) fn latest(&self) -> Vec<RecordedEvent> {
        let log = self.lock();
        let mut events: Vec<RecordedEvent> =
            log.store_events.iter().chain(&log.stranger_events).cloned().collect();
        events.sort_by_key(|event| std::cmp::Reverse(event.number));
        events
    }

    fn lock(&self) -> MutexGuard<'_, EventLog> {
        self.0.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn old_events_are_dropped_and_strangers_evict_no_event_of_a_store() {
        let events = Events::new();
        let node = NodeId::new("n").unwrap();
        for number in 0..MAX_EVENTS + 10 {
            events.push(EventKind::Connected, &node, number.to_string());
        }
        for _ in 0..1000 {
            events.push_stranger(EventKind::Stranger, "\u{e4}".repeat(1000));
        }
        let latest = events.latest();
        assert_eq!(latest.len(), MAX_EVENTS + MAX_STRANGER_EVENTS);
        assert!(latest.is_sorted_by_key(|event| std::cmp::Reverse(event.number)));
        assert_eq!(latest.last().unwrap().text, "10");
        assert!(latest.iter().all(|event| event.text.len() <= MAX_TEXT_BYTES));
    }
}
