use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::{Resource, getrlimit};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

const DESCRIPTORS_PER_SLOT: u64 = 8;

/// Number of descriptors that this process may open.
pub fn descriptor_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Bounded number of slots for half-open connections, whose peer is not authenticated yet.
///
/// A new connection evicts the oldest one if necessary, so silent peers cannot lock out daemons,
/// which authenticate within a moment.
#[derive(Debug)]
pub struct HalfOpen {
    limit: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    slots: BTreeMap<u64, CancellationToken>,
}

/// Slot of one connection, freed when dropped.
#[derive(Debug)]
pub struct HalfOpenSlot {
    half_open: Arc<HalfOpen>,
    number: u64,
    evicted: CancellationToken,
}

impl HalfOpen {
    /// Makes `limit` slots, at most one per eight descriptors of this process.
    pub fn new(limit: usize) -> Arc<Self> {
        let most = usize::try_from(descriptor_limit() / DESCRIPTORS_PER_SLOT).unwrap_or(usize::MAX);
        Arc::new(Self { limit: limit.min(most).max(1), state: Mutex::default() })
    }

    /// Takes a slot. If all are taken, evicts the oldest connection.
    pub fn admit(self: &Arc<Self>) -> HalfOpenSlot {
        let mut state = self.lock();
        if state.slots.len() >= self.limit
            && let Some((_, oldest)) = state.slots.pop_first()
        {
            oldest.cancel();
        }
        let (number, evicted) = (state.next, CancellationToken::new());
        state.next += 1;
        state.slots.insert(number, evicted.clone());
        HalfOpenSlot { half_open: Arc::clone(self), number, evicted }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HalfOpenSlot {
    /// Completes when another connection evicts this one.
    pub fn evicted(&self) -> WaitForCancellationFutureOwned {
        self.evicted.clone().cancelled_owned()
    }
}

impl Drop for HalfOpenSlot {
    fn drop(&mut self) {
        self.half_open.lock().slots.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_connection_is_evicted_and_slots_are_returned() {
        let half_open = HalfOpen::new(2);
        let [first, second] = [(); 2].map(|()| half_open.admit());
        let third = half_open.admit();
        let evicted = |slot: &HalfOpenSlot| slot.evicted.is_cancelled();
        assert_eq!([&first, &second, &third].map(evicted), [true, false, false]);
        drop(first);
        drop(second);
        let fourth = half_open.admit();
        assert_eq!([&third, &fourth].map(evicted), [false, false]);
        drop((third, fourth));
        assert!(half_open.lock().slots.is_empty());
    }
}
