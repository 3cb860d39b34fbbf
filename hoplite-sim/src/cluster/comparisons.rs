use std::time::Duration;

use hoplite_core::node::{CopyId, Event, ServeId};
use hoplite_core::peer::SILENCE_TIMEOUT;
use hoplite_core::{ObjectId, PutId, Time};

use super::network::LinkEnd;
use super::transfers::{Remote, ServeState};
use super::{Application, Cluster};

const COMPARE_INTERVAL: Duration = Duration::from_millis(5);

#[derive(Debug, Clone, Copy)]
struct Comparison {
    store: usize,
    run: u64,
    copy: CopyId,
    holder: usize,
    heard_at: Time,
}

impl<A: Application> Cluster<A> {
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
        let (run, heard_at) = (self.stores[store].run, self.now());
        let comparison = Comparison { store, run, copy, holder, heard_at };
        let remote = Remote { sender: holder, id, put: winner, awaits_hop: false };
        let delay = self.connect_time();
        self.after(delay, move |cluster| {
            if !cluster.stores[store].is_running(run) {
                return;
            }
            match cluster.request_serve(store, &remote, None) {
                Ok(serve) => cluster.comparison_step(comparison, serve),
                Err(delay) => {
                    cluster.after(delay, move |cluster| cluster.end_comparison(comparison, None))
                }
            }
        });
    }

    fn comparison_step(&mut self, mut comparison: Comparison, serve: ServeId) {
        let Comparison { store, run, holder, .. } = comparison;
        if !self.stores[store].is_running(run) {
            return self.end_serve(holder, serve);
        }
        if self.is_linked(LinkEnd::Store(store), LinkEnd::Store(holder)) {
            comparison.heard_at = self.now();
        }
        let is_silent = self.now().since(comparison.heard_at) > SILENCE_TIMEOUT;
        let state = self.stores[holder].serves.get(&serve).map(|serve| serve.state);
        let equal = match state.filter(|_| !is_silent) {
            Some(ServeState::Accepted(copy)) => {
                let other = self.copy(holder, copy);
                let (has_failed, is_complete, tag) =
                    (other.failure.is_some(), other.is_complete, other.tag);
                match (has_failed, is_complete) {
                    (true, _) => Some(None),
                    (false, true) => Some(Some(self.copy(store, comparison.copy).tag == tag)),
                    (false, false) => None,
                }
            }
            Some(ServeState::Awaited) => None,
            Some(ServeState::Refused) | None => Some(None),
        };
        let Some(equal) = equal else {
            return self.after(COMPARE_INTERVAL, move |cluster| {
                cluster.comparison_step(comparison, serve)
            });
        };
        self.end_serve(holder, serve);
        self.end_comparison(comparison, equal);
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
