//! Fields of a header that several processes use at once.
//!
//! `tests/memory_model.rs` compiles this file with loom's atomics.

use crate::atomic::{AtomicU32, AtomicU64, Ordering, fence};

const OPEN: u32 = 0;
const COMPLETE: u32 = 1;
const FAILED: u32 = 2;

/// State of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// Some bytes are missing.
    Open,
    /// The store has accepted all bytes.
    Complete,
    /// The copy will never be complete.
    Failed,
}

impl State {
    pub(crate) fn of(word: u32) -> Self {
        match word {
            OPEN => Self::Open,
            COMPLETE => Self::Complete,
            // Only a damaged header has another number.
            _ => Self::Failed,
        }
    }
}

/// An object's number of valid leading bytes, and the store's request for a doorbell message.
///
/// Rust guarantees only relaxed loads on read-only memory, so a fence follows each load.
///
/// # The doorbell
///
/// A writer sends a doorbell message only on request, because it costs more than the copy of a
/// block.
///
/// ```text
/// store                                  writer
///   wanted = 1                (S1)         valid_bytes = v                (W1)
///   fence                                  fence
///   read valid_bytes          (S2)         swap wanted for 0, ring if 1   (W2)
/// ```
///
/// If S2 does not see v, then W2 must see the 1. This needs sequentially consistent fences, because
/// release and acquire let each side's load overtake its store. If the store's fence comes first,
/// W2 sees the 1; if the writer's comes first, S2 sees v. If both happen, one message is in vain.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Progress {
    pub(crate) valid_bytes: AtomicU64,
    pub(crate) wanted: AtomicU32,
    pub(crate) state: AtomicU32,
}

impl Progress {
    pub(crate) fn initialise(&self) {
        self.valid_bytes.store(0, Ordering::Release);
        self.wanted.store(0, Ordering::Release);
        self.state.store(OPEN, Ordering::Release);
    }

    /// Raises the number of valid leading bytes (step W1 of [`Progress`]). A smaller number has no
    /// effect.
    pub(crate) fn publish(&self, valid_bytes: u64) {
        self.valid_bytes.fetch_max(valid_bytes, Ordering::Release);
    }

    /// Returns `true` if the store has requested the doorbell since the last call (step W2 of
    /// [`Progress`]).
    pub(crate) fn take_doorbell_request(&self) -> bool {
        fence(Ordering::SeqCst);
        // The load leaves the cache line shared in the common case.
        self.wanted.load(Ordering::Relaxed) != 0 && self.wanted.swap(0, Ordering::Relaxed) != 0
    }

    /// Requests a doorbell message for more than the returned number of bytes (steps S1 and S2 of
    /// [`Progress`]).
    pub(crate) fn want(&self) -> u64 {
        self.wanted.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.valid_bytes()
    }

    pub(crate) fn valid_bytes(&self) -> u64 {
        let valid_bytes = self.valid_bytes.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        valid_bytes
    }

    pub(crate) fn state(&self) -> State {
        let state = self.state.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        State::of(state)
    }

    /// Sets the final state, at the first call only.
    pub(crate) fn end(&self, state: State) {
        let word = match state {
            State::Open => return,
            State::Complete => COMPLETE,
            State::Failed => FAILED,
        };
        let _ = self.state.compare_exchange(OPEN, word, Ordering::Release, Ordering::Relaxed);
    }
}
