//! The part of a header that a writer, the store and readers use concurrently: progress, doorbell
//! and state.
//!
//! `tests/memory_model.rs` compiles this file with the atomics of loom. It tries all orders in
//! which the threads of a small model can see each other's stores.

use crate::atomic::{AtomicU32, AtomicU64, Ordering, fence};

const OPEN: u32 = 0;
const COMPLETE: u32 = 1;
const FAILED: u32 = 2;

/// The state of a copy, as in its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// Some bytes are still missing.
    Open,
    /// All bytes are valid, and the store has accepted them.
    Complete,
    /// The copy will never be complete.
    Failed,
}

impl State {
    pub(crate) fn of(word: u32) -> Self {
        match word {
            OPEN => Self::Open,
            COMPLETE => Self::Complete,
            // No process writes other numbers. If one is there, the header is damaged.
            _ => Self::Failed,
        }
    }
}

/// The progress of an object, and the store's request for the doorbell.
///
/// All loads are relaxed, because Rust guarantees only relaxed loads on read-only memory. A fence
/// follows each load.
///
/// # The doorbell
///
/// A writer reports progress to the store only on request, because a message costs more than the
/// copy of a block. The two sides run concurrently:
///
/// ```text
/// store                                  writer
///   wanted = 1                (S1)         valid_bytes = v                (W1)
///   fence                                  fence
///   read valid_bytes          (S2)         swap wanted for 0, ring if 1   (W2)
/// ```
///
/// If S2 does not see v, then W2 must see the 1, so that neither side misses the other. This needs
/// sequentially consistent fences, because release and acquire let each side's load overtake its
/// own store. If the store's fence comes first in their order, W2 sees the 1. If the writer's fence
/// comes first, S2 sees v. If both sides see each other, the doorbell rings once in vain.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Progress {
    pub(crate) valid_bytes: AtomicU64,
    pub(crate) wanted: AtomicU32,
    pub(crate) state: AtomicU32,
}

impl Progress {
    /// Starts a new object: open, without valid bytes, and without a waiting store.
    pub(crate) fn initialise(&self) {
        self.valid_bytes.store(0, Ordering::Release);
        self.wanted.store(0, Ordering::Release);
        self.state.store(OPEN, Ordering::Release);
    }

    /// Raises the progress to `valid_bytes`. Progress never falls. W1 of the doorbell.
    pub(crate) fn publish(&self, valid_bytes: u64) {
        self.valid_bytes.fetch_max(valid_bytes, Ordering::Release);
    }

    /// Returns `true` if the store has requested the doorbell since the last call. W2 of the
    /// doorbell.
    pub(crate) fn take_wanted(&self) -> bool {
        fence(Ordering::SeqCst);
        // The load alone suffices in the common case, and leaves the cache line shared.
        self.wanted.load(Ordering::Relaxed) != 0 && self.wanted.swap(0, Ordering::Relaxed) != 0
    }

    /// Requests the doorbell for progress beyond the returned number. S1 and S2 of the doorbell.
    pub(crate) fn want(&self) -> u64 {
        self.wanted.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.valid_bytes()
    }

    /// Returns the number of leading bytes that are valid. They can be read after this call.
    pub(crate) fn valid_bytes(&self) -> u64 {
        let valid_bytes = self.valid_bytes.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        valid_bytes
    }

    /// Returns the state of the object. After it returned [`State::Complete`], all bytes can be
    /// read.
    pub(crate) fn state(&self) -> State {
        let state = self.state.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        State::of(state)
    }

    /// Ends an open object as complete or failed. The first end is final.
    pub(crate) fn end(&self, state: State) {
        let word = match state {
            State::Open => return,
            State::Complete => COMPLETE,
            State::Failed => FAILED,
        };
        // An error means that the object has already ended, and that end stays.
        let _ = self.state.compare_exchange(OPEN, word, Ordering::Release, Ordering::Relaxed);
    }
}
