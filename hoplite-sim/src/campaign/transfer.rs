//! Transfers between stores: pulls that advance behind their sender, and comparisons.

use std::time::Duration;

use hoplite_core::block::{publishable, publishable_unsealed};
use hoplite_core::node::{CopyId, Event, Producer, PullId, ServeId};
use hoplite_core::shard::PullOutcome;
use hoplite_core::{ObjectId, PutId, Time};

use super::contents::MIXED;
use super::machines::Copy;
use super::network::Place;
use super::{Faults, Simulation};

/// A sender that sends nothing for so long counts as stalled.
const STALLED_AFTER: Duration = Duration::from_secs(5);
/// A connection that does not come about is given up after this.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// How long a comparison waits for the other copy to be complete.
const COMPARE_TIMEOUT: Duration = Duration::from_secs(5);

/// A transfer into a copy, at the receiver.
#[derive(Debug, Clone)]
pub(super) struct Pull {
    pub(super) copy: CopyId,
    id: ObjectId,
    put: PutId,
    size_bytes: u64,
    sender: usize,
    last_progress: Time,
}

impl Pull {
    pub(super) fn new(copy: CopyId, id: ObjectId, put: PutId, size_bytes: u64, sender: usize) -> Self {
        Self { copy, id, put, size_bytes, sender, last_progress: Time::ZERO }
    }
}

/// A transfer from a copy, at the sender.
#[derive(Debug, Clone, Copy, Default)]
pub(super) enum Serve {
    /// The store has not decided yet.
    #[default]
    Awaited,
    Accepted(CopyId),
    Refused,
}

/// The sender's end of a transfer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Source {
    pub(super) store: usize,
    pub(super) run: u64,
    serve: ServeId,
}

/// What can be read from a copy.
#[derive(Debug, Clone)]
pub(super) enum Offer {
    /// Nothing yet: it has not begun.
    Awaited,
    /// Nothing any more.
    Nothing,
    /// So many leading bytes.
    Bytes { copy: Copy, limit_bytes: u64 },
}

/// A comparison under way.
#[derive(Debug, Clone, Copy)]
struct Comparison {
    store: usize,
    run: u64,
    copy: CopyId,
    since: Time,
}

impl Simulation {
    pub(super) fn start_pull(&mut self, store: usize, pull: PullId, mut state: Pull) {
        self.note(|_| {
            format!(
                "store {store} starts {pull:?} of {} into {:?} from {}",
                state.id, state.copy, state.sender
            )
        });
        state.last_progress = self.now;
        let run = self.stores[store].run;
        self.stores[store].pulls.insert(pull, state);
        let delay = self.latency();
        self.after(delay, move |sim| sim.pull_connects(store, run, pull));
    }

    /// The pull, if its store still runs and it was not ended.
    fn pull(&mut self, store: usize, run: u64, pull: PullId) -> Option<&mut Pull> {
        let host = &mut self.stores[store];
        if host.is_running(run) { host.pulls.get_mut(&pull) } else { None }
    }

    fn pull_connects(&mut self, store: usize, run: u64, pull: PullId) {
        let Some(Pull { id, put, sender, .. }) = self.pull(store, run, pull).cloned() else { return };
        match self.request_serve(store, sender, &id, put, false) {
            Ok(source) => self.pull_step(store, run, pull, source),
            Err(delay) => {
                self.after(delay, move |sim| sim.end_pull(store, run, pull, PullOutcome::SenderUnreachable));
            }
        }
    }

    /// Asks a store to serve a put; `Err` says after how long the caller notices that it is not there.
    pub(super) fn request_serve(
        &mut self,
        receiver: usize,
        sender: usize,
        id: &ObjectId,
        put: PutId,
        awaits_hop: bool,
    ) -> Result<Source, Duration> {
        if !self.is_linked(Place::Store(receiver), Place::Store(sender)) {
            return Err(CONNECT_TIMEOUT);
        }
        if !self.stores[sender].is_alive {
            return Err(self.latency());
        }
        let serve = ServeId(self.fresh_number());
        let source = Source { store: sender, run: self.stores[sender].run, serve };
        self.stores[sender].serves.insert(serve, Serve::default());
        self.store_event(sender, Event::ServeRequested { serve, id: id.clone(), put, awaits_hop });
        let is_open = matches!(self.stores[sender].serves.get(&serve), Some(Serve::Awaited));
        assert!(awaits_hop || !is_open, "a serve is decided at once unless it awaits a hop");
        Ok(source)
    }

    /// A store has decided about a serve.
    pub(super) fn serve_answered(&mut self, store: usize, serve: ServeId, answer: Serve) {
        let state = self.stores[store].serves.get_mut(&serve);
        let state = state.unwrap_or_else(|| panic!("{serve:?} was not requested"));
        assert!(matches!(state, Serve::Awaited), "{serve:?} is decided once");
        *state = answer;
    }

    pub(super) fn end_serve(&mut self, source: Source) {
        let delay = self.latency();
        self.after(delay, move |sim| {
            let host = &mut sim.stores[source.store];
            if host.is_running(source.run) && host.serves.remove(&source.serve).is_some() {
                sim.store_event(source.store, Event::ServeEnded { serve: source.serve });
            }
        });
    }

    /// What a serve has to offer of the bytes before `end_bytes`.
    pub(super) fn offered(&self, source: Source, end_bytes: u64) -> Offer {
        match self.stores[source.store].serves.get(&source.serve) {
            Some(Serve::Accepted(copy)) => self.offer_of(source.store, *copy, end_bytes),
            Some(Serve::Awaited) => Offer::Awaited,
            Some(Serve::Refused) | None => Offer::Nothing,
        }
    }

    /// What can be read from a copy. Of one that may yet be aborted, the end is kept back; also that of a part, since whoever
    /// has all of it takes it for a part of a complete object.
    pub(super) fn offer_of(&self, store: usize, copy: CopyId, end_bytes: u64) -> Offer {
        let copy = &self.stores[store].copies[&copy];
        let is_part = end_bytes < copy.size_bytes;
        let limit_bytes = match copy.producer {
            _ if copy.has_failed => return Offer::Nothing,
            _ if copy.is_complete => end_bytes,
            Producer::Store if !is_part => publishable(copy.valid_bytes, end_bytes),
            _ => publishable_unsealed(copy.valid_bytes, end_bytes),
        };
        Offer::Bytes { copy: copy.clone(), limit_bytes }
    }

    /// Moves some blocks, if there are any.
    fn pull_step(&mut self, store: usize, run: u64, pull: PullId, source: Source) {
        let now = self.now;
        let Some(state) = self.pull(store, run, pull).cloned() else {
            return self.end_serve(source);
        };
        let idle = now.since(state.last_progress);
        let is_linked = self.is_linked(Place::Store(store), Place::Store(source.store));
        let ending = if !self.stores[source.store].is_running(source.run) {
            Some(PullOutcome::SenderUnreachable)
        } else if !is_linked {
            (idle > CONNECT_TIMEOUT).then_some(PullOutcome::SenderUnreachable)
        } else if idle > STALLED_AFTER {
            Some(PullOutcome::SenderStalled)
        } else {
            match self.offered(source, state.size_bytes) {
                Offer::Awaited | Offer::Nothing => Some(PullOutcome::SenderHasNoCopy),
                Offer::Bytes { copy, limit_bytes } => {
                    self.move_blocks(store, pull, &state, &copy, limit_bytes)
                }
            }
        };
        if let Some(outcome) = ending {
            self.end_serve(source);
            return self.end_pull(store, run, pull, outcome);
        }
        let moved = self.pull(store, run, pull).is_some_and(|pull| pull.last_progress == now);
        let delay = if moved {
            self.random.micros(50..500) * self.scenario.slowness
        } else {
            self.random.millis(1..10)
        };
        self.after(delay, move |sim| sim.pull_step(store, run, pull, source));
    }

    fn move_blocks(
        &mut self,
        store: usize,
        pull: PullId,
        state: &Pull,
        sender: &Copy,
        limit_bytes: u64,
    ) -> Option<PullOutcome> {
        let size_bytes = state.size_bytes;
        let chunk = self.random.number(4096..65_536);
        let is_damaged = self.scenario.faults == Faults::Many && self.random.number(0..400) == 0;
        let now = self.now;
        let local = self.copy(store, state.copy);
        assert!(!local.is_complete && local.size_bytes == size_bytes, "{local:?} is being received");
        let next = limit_bytes.min(publishable(local.valid_bytes + chunk, size_bytes));
        let has_moved = next > local.valid_bytes;
        if has_moved && is_damaged {
            return Some(PullOutcome::Corrupt);
        }
        if has_moved || (size_bytes == 0 && sender.is_complete) {
            local.tag =
                if local.valid_bytes == 0 || local.tag == sender.tag { sender.tag } else { Some(MIXED) };
            local.valid_bytes = next;
            if let Some(pull) = self.stores[store].pulls.get_mut(&pull) {
                pull.last_progress = now;
            }
        }
        let is_whole = self.copy(store, state.copy).valid_bytes == size_bytes;
        (is_whole && (size_bytes > 0 || sender.is_complete)).then_some(PullOutcome::Complete)
    }

    pub(super) fn cancel_pull(&mut self, store: usize, pull: PullId) {
        let run = self.stores[store].run;
        assert!(self.stores[store].pulls.contains_key(&pull), "{pull:?} runs when it is cancelled");
        let delay = self.latency();
        self.after(delay, move |sim| sim.end_pull(store, run, pull, PullOutcome::Cancelled));
    }

    fn end_pull(&mut self, store: usize, run: u64, pull: PullId, outcome: PullOutcome) {
        if self.pull(store, run, pull).is_none() {
            return;
        }
        let Some(state) = self.stores[store].pulls.remove(&pull) else { return };
        let valid_bytes = self.copy(store, state.copy).valid_bytes;
        self.note(|_| format!("store {store}: {pull:?} of {} ended at {valid_bytes}: {outcome:?}", state.id));
        if outcome == PullOutcome::Complete {
            self.summary.pulls += 1;
        } else {
            self.summary.failed_pulls += 1;
        }
        self.store_event(store, Event::PullEnded { pull, valid_bytes, outcome });
    }

    // Comparisons.

    pub(super) fn start_comparison(
        &mut self,
        store: usize,
        copy: CopyId,
        id: ObjectId,
        winner: PutId,
        holder: usize,
    ) {
        self.note(|_| format!("store {store} compares {copy:?} of {id} with {winner} at {holder}"));
        let local = self.copy(store, copy);
        assert!(local.is_complete, "a copy is compared when it is complete");
        local.comparisons += 1;
        let comparison = Comparison { store, run: self.stores[store].run, copy, since: self.now };
        let delay = self.latency();
        self.after(delay, move |sim| {
            if !sim.stores[store].is_running(comparison.run) {
                return;
            }
            match sim.request_serve(store, holder, &id, winner, false) {
                Ok(source) => sim.comparison_step(comparison, source),
                Err(delay) => sim.after(delay, move |sim| sim.end_comparison(comparison, None)),
            }
        });
    }

    fn comparison_step(&mut self, comparison: Comparison, source: Source) {
        if !self.stores[comparison.store].is_running(comparison.run) {
            return self.end_serve(source);
        }
        let is_late = self.now.since(comparison.since) > COMPARE_TIMEOUT;
        let is_linked = self.is_linked(Place::Store(comparison.store), Place::Store(source.store));
        let is_reachable = is_linked && self.stores[source.store].is_running(source.run);
        let other = if is_reachable && !is_late { self.offered(source, u64::MAX) } else { Offer::Nothing };
        match other {
            Offer::Bytes { copy, .. } if copy.is_complete => {
                let equal = self.copy(comparison.store, comparison.copy).tag == copy.tag;
                self.end_serve(source);
                self.end_comparison(comparison, Some(equal));
            }
            Offer::Bytes { .. } => {
                self.after(Duration::from_millis(5), move |sim| sim.comparison_step(comparison, source));
            }
            Offer::Awaited | Offer::Nothing => {
                self.end_serve(source);
                self.end_comparison(comparison, None);
            }
        }
    }

    fn end_comparison(&mut self, comparison: Comparison, equal: Option<bool>) {
        let Comparison { store, run, copy, .. } = comparison;
        if self.stores[store].is_running(run) {
            self.note(|_| format!("store {store} has compared {copy:?}: {equal:?}"));
            self.copy(store, copy).comparisons -= 1;
            self.store_event(store, Event::Compared { copy, equal });
        }
    }
}
