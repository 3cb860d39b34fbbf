//! The part of a header that a writer, the store and readers use at the same time: progress, doorbell, state.
//!
//! `tests/memory_model.rs` compiles this file with the atomics of loom, and tries all orders in which the threads of a
//! small model can see each other's stores.

use crate::atomic::{AtomicU32, AtomicU64, Ordering, fence};

const OPEN: u32 = 0;
const COMPLETE: u32 = 1;
const FAILED: u32 = 2;

/// The state of a copy, as its header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// Bytes are still to come.
    Open,
    /// All bytes are there, and the store has accepted them.
    Complete,
    /// The copy will never be complete.
    Failed,
}

impl State {
    pub(crate) fn of(word: u32) -> Self {
        match word {
            OPEN => Self::Open,
            COMPLETE => Self::Complete,
            // No process writes other numbers. If one is there, the header cannot be trusted.
            _ => Self::Failed,
        }
    }
}

/// How far an object is, and whether the store waits for more of it.
///
/// All loads are relaxed, since Rust promises only of those that they work on memory that is mapped read-only; a fence
/// follows each of them.
///
/// # The doorbell
///
/// A writer tells the store of its progress only when the store has asked for it, because a message costs more than
/// the copy of a block. The two sides, which run at the same time, do
///
/// ```text
/// store                                  writer
///   wanted = 1                (S1)         valid_bytes = v                (W1)
///   fence                                  fence
///   read valid_bytes          (S2)         swap wanted for 0, ring if 1   (W2)
/// ```
///
/// and neither may miss the other: if S2 does not see v, then W2 must see the 1. The fences have sequential consistency
/// for that, since release and acquire let each side's load overtake its own store. If the store's fence is first in
/// their order, W2 sees the 1; if the writer's is first, S2 sees v. Both may see each other: the doorbell then rings once
/// in vain.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Progress {
    pub(crate) valid_bytes: AtomicU64,
    pub(crate) wanted: AtomicU32,
    pub(crate) state: AtomicU32,
}

impl Progress {
    /// Starts a new object: open, nothing valid, nobody waiting.
    pub(crate) fn initialise(&self) {
        self.valid_bytes.store(0, Ordering::Release);
        self.wanted.store(0, Ordering::Release);
        self.state.store(OPEN, Ordering::Release);
    }

    /// Raises the progress to `valid_bytes`. Progress never falls. W1 of the doorbell.
    pub(crate) fn publish(&self, valid_bytes: u64) {
        self.valid_bytes.fetch_max(valid_bytes, Ordering::Release);
    }

    /// Returns `true` if the store has asked for progress since the last call. W2 of the doorbell.
    pub(crate) fn take_wanted(&self) -> bool {
        fence(Ordering::SeqCst);
        // The load alone is enough in the common case, and leaves the cache line shared.
        self.wanted.load(Ordering::Relaxed) != 0 && self.wanted.swap(0, Ordering::Relaxed) != 0
    }

    /// Asks to be told of progress beyond the number returned. S1 and S2 of the doorbell.
    pub(crate) fn want(&self) -> u64 {
        self.wanted.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.valid_bytes()
    }

    /// How many leading bytes are valid. They can be read after this call.
    pub(crate) fn valid_bytes(&self) -> u64 {
        let valid_bytes = self.valid_bytes.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        valid_bytes
    }

    /// How the object stands. All bytes of one that is complete can be read after this call.
    pub(crate) fn state(&self) -> State {
        let state = self.state.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        State::of(state)
    }

    /// Ends an open object as complete or failed; the first end is final.
    pub(crate) fn end(&self, state: State) {
        let word = match state {
            State::Open => return,
            State::Complete => COMPLETE,
            State::Failed => FAILED,
        };
        // An error means that the object had ended before; that end stands.
        let _ = self.state.compare_exchange(OPEN, word, Ordering::Release, Ordering::Relaxed);
    }
}
