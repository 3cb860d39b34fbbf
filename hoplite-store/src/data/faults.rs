//! Records stores that refuse this store or are unreachable, for the log and the node.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hoplite_core::error::Error;
use hoplite_core::fault::PeerFaults;
use hoplite_core::node::Event;
use hoplite_core::time::Time;

use super::connection::ConnectionError;
use super::pool::Peer;

/// Limit of queued events about other stores, which the node takes before its next event.
const MAX_QUEUED_EVENTS: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct PeerReports {
    has_news: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    faults: PeerFaults,
    news: Vec<Event>,
}

impl PeerReports {
    pub(super) fn failed(&self, now: Time, (node, address): &Peer, error: &ConnectionError) {
        let error = match error {
            ConnectionError::Refused(error) => error.clone(),
            error => {
                Error::Unavailable { what: format!("its data plane at {address} ({error})").into() }
            }
        };
        let mut state = self.lock();
        if state.faults.failed(now, node, error.clone()) {
            tracing::warn!(peer = %node, %address, %error, "cannot connect to a store");
        }
        self.push_event(&mut state, Event::PeerFailed { peer: node.clone(), error });
    }

    pub(super) fn reached(&self, (node, _): &Peer) {
        let mut state = self.lock();
        if state.faults.reached(node) {
            self.push_event(&mut state, Event::PeerReached { peer: node.clone() });
        }
    }

    fn push_event(&self, state: &mut State, event: Event) {
        if state.news.len() < MAX_QUEUED_EVENTS {
            state.news.push(event);
        }
        self.has_news.store(true, Ordering::Release);
    }

    pub(crate) fn take_events(&self) -> Vec<Event> {
        if !self.has_news.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut state = self.lock();
        self.has_news.store(false, Ordering::Release);
        std::mem::take(&mut state.news)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
