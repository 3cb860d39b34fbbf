//! Half-open connections: connections whose peer is not authenticated yet.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::{Resource, getrlimit};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

const DESCRIPTORS_PER_PLACE: u64 = 8;

/// Number of descriptors that this process may open.
pub fn descriptor_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// A bounded number of places for half-open connections.
///
/// A new connection replaces the oldest one if necessary. So silent peers cannot lock out daemons,
/// which need a place only for a moment.
#[derive(Debug)]
pub struct HalfOpen {
    limit: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    places: BTreeMap<u64, CancellationToken>,
}

/// Place of a half-open connection, freed when dropped.
#[derive(Debug)]
pub struct HalfOpenPlace {
    half_open: Arc<HalfOpen>,
    number: u64,
    lost: CancellationToken,
}

impl HalfOpen {
    /// Makes `limit` places, at most one per eight descriptors of this process.
    pub fn new(limit: usize) -> Arc<Self> {
        let most = usize::try_from(descriptor_limit() / DESCRIPTORS_PER_PLACE).unwrap_or(usize::MAX);
        Arc::new(Self { limit: limit.min(most).max(1), state: Mutex::default() })
    }

    /// Takes a place for a new connection.
    pub fn enter(self: &Arc<Self>) -> HalfOpenPlace {
        let mut state = self.lock();
        if state.places.len() >= self.limit
            && let Some((_, oldest)) = state.places.pop_first()
        {
            oldest.cancel();
        }
        let (number, lost) = (state.next, CancellationToken::new());
        state.next += 1;
        state.places.insert(number, lost.clone());
        HalfOpenPlace { half_open: Arc::clone(self), number, lost }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HalfOpenPlace {
    /// Completes when another connection takes this place.
    pub fn lost(&self) -> WaitForCancellationFutureOwned {
        self.lost.clone().cancelled_owned()
    }
}

impl Drop for HalfOpenPlace {
    fn drop(&mut self) {
        self.half_open.lock().places.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_gives_way_and_places_are_given_back() {
        let half_open = HalfOpen::new(2);
        let [first, second] = [(); 2].map(|()| half_open.enter());
        let third = half_open.enter();
        let lost = |place: &HalfOpenPlace| place.lost.is_cancelled();
        assert_eq!([&first, &second, &third].map(lost), [true, false, false]);
        drop(first);
        drop(second);
        let fourth = half_open.enter();
        assert_eq!([&third, &fourth].map(lost), [false, false]);
        drop((third, fourth));
        assert!(half_open.lock().places.is_empty());
    }
}
