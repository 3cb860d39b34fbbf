//! The header in front of each object: its progress, its state, and whether the store waits for more.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use hoplite_core::extent::HEADER_BYTES;

/// "HOPLITE", and the version of the layout in the lowest byte.
const MAGIC_AND_VERSION: u64 = 0x484F_504C_4954_4500 | VERSION;
const VERSION: u64 = 1;

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
    fn of(word: u32) -> Self {
        match word {
            OPEN => Self::Open,
            COMPLETE => Self::Complete,
            // No process writes other numbers. If one is there, the header cannot be trusted.
            _ => Self::Failed,
        }
    }
}

/// The header as it lies in memory.
///
/// All fields are atomics, so that a reference to it is sound whatever other processes store to them.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Header {
    magic_and_version: AtomicU64,
    size_bytes: AtomicU64,
    valid_bytes: AtomicU64,
    wanted: AtomicU32,
    state: AtomicU32,
    reserved: [AtomicU64; 4],
}

const _: () = assert!(size_of::<Header>() as u64 == HEADER_BYTES);
const _: () = assert!(align_of::<Header>() as u64 == HEADER_BYTES);
const _: () = assert!(std::mem::offset_of!(Header, valid_bytes) == 16);
const _: () = assert!(std::mem::offset_of!(Header, wanted) == 24);
const _: () = assert!(std::mem::offset_of!(Header, state) == 28);

/// Access to a header in memory that may be mapped read-only.
///
/// Rust promises only of relaxed loads that they work on read-only memory; hence a fence follows each of them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeaderView<'a>(&'a Header);

impl<'a> HeaderView<'a> {
    pub(crate) fn new(header: &'a Header) -> Self {
        Self(header)
    }

    /// Whether this is the header of an object of `size_bytes`, in the layout that this code knows.
    pub(crate) fn describes(self, size_bytes: u64) -> bool {
        self.0.magic_and_version.load(Ordering::Relaxed) == MAGIC_AND_VERSION
            && self.0.size_bytes.load(Ordering::Relaxed) == size_bytes
    }

    /// How many leading bytes are valid, at most `size_bytes`. They can be read after this call.
    pub(crate) fn valid_bytes(self, size_bytes: u64) -> u64 {
        let valid_bytes = self.0.valid_bytes.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        valid_bytes.min(size_bytes)
    }

    pub(crate) fn state(self) -> State {
        let state = self.0.state.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        State::of(state)
    }
}

/// Access to a header in memory that is mapped writable.
///
/// # The doorbell
///
/// A writer tells the store of its progress only when the store has asked for it, because a message costs more than
/// the copy of a block. The two sides, which run at the same time, do
///
/// ```text
/// store                                  writer
///   wanted = 1                (S1)         valid_bytes = v                (W1)
///   read valid_bytes          (S2)         swap wanted for 0, ring if 1   (W2)
/// ```
///
/// and neither may miss the other: if S2 does not see v, then W2 must see the 1. That is what sequential consistency
/// of all four gives, and acquire and release do not, since those let each side's load overtake its own store. In the
/// single order of all four, S2 not seeing v means S2 before W1, hence S1, S2, W1, W2. Both may see each other: the
/// doorbell then rings once in vain.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeaderHandle<'a>(&'a Header);

impl<'a> HeaderHandle<'a> {
    pub(crate) fn new(header: &'a Header) -> Self {
        Self(header)
    }

    /// Starts a new object: open, nothing valid, nobody waiting.
    pub(crate) fn initialise(self, size_bytes: u64) {
        self.0.valid_bytes.store(0, Ordering::SeqCst);
        self.0.wanted.store(0, Ordering::SeqCst);
        self.0.state.store(OPEN, Ordering::SeqCst);
        self.0.size_bytes.store(size_bytes, Ordering::SeqCst);
        self.0.magic_and_version.store(MAGIC_AND_VERSION, Ordering::SeqCst);
    }

    /// Raises the progress to `valid_bytes`. Progress never falls. W1 of the doorbell.
    pub(crate) fn publish(self, valid_bytes: u64) {
        self.0.valid_bytes.fetch_max(valid_bytes, Ordering::SeqCst);
    }

    /// Whether the store has asked for progress since the last call. W2 of the doorbell.
    pub(crate) fn take_wanted(self) -> bool {
        // The load alone keeps the order that is needed and leaves the cache line shared in the common case.
        self.0.wanted.load(Ordering::SeqCst) != 0 && self.0.wanted.swap(0, Ordering::SeqCst) != 0
    }

    /// Asks to be told of progress beyond the number returned, at most `size_bytes`. S1 and S2 of the doorbell.
    pub(crate) fn want(self, size_bytes: u64) -> u64 {
        self.0.wanted.store(1, Ordering::SeqCst);
        self.valid_bytes(size_bytes)
    }

    /// How many leading bytes are valid, at most `size_bytes`.
    pub(crate) fn valid_bytes(self, size_bytes: u64) -> u64 {
        self.0.valid_bytes.load(Ordering::SeqCst).min(size_bytes)
    }

    pub(crate) fn state(self) -> State {
        State::of(self.0.state.load(Ordering::SeqCst))
    }

    /// Ends an open object as complete or failed; the first end is final.
    pub(crate) fn end(self, state: State) {
        let word = match state {
            State::Open => return,
            State::Complete => COMPLETE,
            State::Failed => FAILED,
        };
        // An error means that the object had ended before; that end stands.
        let _ = self.0.state.compare_exchange(OPEN, word, Ordering::SeqCst, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_never_falls_and_never_passes_the_size() {
        let header = Header::default();
        let handle = HeaderHandle::new(&header);
        handle.initialise(100);
        handle.publish(60);
        handle.publish(40);
        assert_eq!(handle.valid_bytes(100), 60);
        handle.publish(u64::MAX);
        assert_eq!(handle.valid_bytes(100), 100);
        assert_eq!(HeaderView::new(&header).valid_bytes(100), 100);
    }

    #[test]
    fn the_doorbell_is_taken_once() {
        let header = Header::default();
        let handle = HeaderHandle::new(&header);
        handle.initialise(100);
        assert!(!handle.take_wanted());
        assert_eq!(handle.want(100), 0);
        assert!(handle.take_wanted());
        assert!(!handle.take_wanted());
    }

    #[test]
    fn the_first_end_is_final() {
        for (first, second) in [(State::Complete, State::Failed), (State::Failed, State::Complete)] {
            let header = Header::default();
            let handle = HeaderHandle::new(&header);
            handle.initialise(0);
            assert_eq!(handle.state(), State::Open);
            handle.end(first);
            handle.end(second);
            assert_eq!(handle.state(), first);
            assert_eq!(HeaderView::new(&header).state(), first);
        }
    }

    #[test]
    fn a_header_describes_only_the_object_it_was_initialised_for() {
        let header = Header::default();
        assert!(!HeaderView::new(&header).describes(0));
        HeaderHandle::new(&header).initialise(7);
        assert!(HeaderView::new(&header).describes(7));
        assert!(!HeaderView::new(&header).describes(8));
    }

    #[test]
    fn a_number_that_nobody_writes_is_a_failure() {
        assert_eq!(State::of(3), State::Failed);
    }
}
