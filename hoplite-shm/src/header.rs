use std::sync::atomic::{AtomicU64, Ordering};

use hoplite_core::extent::HEADER_BYTES;

use crate::progress::{Progress, State};

/// The lowest byte is the layout's version.
const MAGIC_AND_VERSION: u64 = 0x484F_504C_4954_4500 | VERSION;
const VERSION: u64 = 1;

/// An object's header in shared memory.
///
/// All fields are atomics, so a reference is sound while other processes write. The first two
/// fields only help to inspect memory.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Header {
    magic_and_version: AtomicU64,
    size_bytes: AtomicU64,
    progress: Progress,
    reserved: [AtomicU64; 4],
}

const _: () = assert!(size_of::<Header>() as u64 == HEADER_BYTES);
const _: () = assert!(align_of::<Header>() as u64 == HEADER_BYTES);
const _: () = assert!(std::mem::offset_of!(Header, progress.valid_bytes) == 16);
const _: () = assert!(std::mem::offset_of!(Header, progress.wanted) == 24);
const _: () = assert!(std::mem::offset_of!(Header, progress.state) == 28);

#[derive(Debug, Clone, Copy)]
pub(crate) struct HeaderView<'a>(&'a Header);

impl<'a> HeaderView<'a> {
    pub(crate) fn new(header: &'a Header) -> Self {
        Self(header)
    }

    pub(crate) fn valid_bytes(self, size_bytes: u64) -> u64 {
        self.0.progress.valid_bytes().min(size_bytes)
    }

    pub(crate) fn state(self) -> State {
        self.0.progress.state()
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct HeaderHandle<'a>(&'a Header);

impl<'a> HeaderHandle<'a> {
    pub(crate) fn new(header: &'a Header) -> Self {
        Self(header)
    }

    pub(crate) fn initialise(self, size_bytes: u64) {
        self.0.progress.initialise();
        self.0.size_bytes.store(size_bytes, Ordering::Release);
        self.0.magic_and_version.store(MAGIC_AND_VERSION, Ordering::Release);
    }

    pub(crate) fn publish(self, valid_bytes: u64) {
        self.0.progress.publish(valid_bytes);
    }

    pub(crate) fn take_doorbell_request(self) -> bool {
        self.0.progress.take_doorbell_request()
    }

    pub(crate) fn want(self, size_bytes: u64) -> u64 {
        self.0.progress.want().min(size_bytes)
    }

    pub(crate) fn valid_bytes(self, size_bytes: u64) -> u64 {
        HeaderView(self.0).valid_bytes(size_bytes)
    }

    pub(crate) fn state(self) -> State {
        self.0.progress.state()
    }

    pub(crate) fn end(self, state: State) {
        self.0.progress.end(state);
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
        assert!(!handle.take_doorbell_request());
        assert_eq!(handle.want(100), 0);
        assert!(handle.take_doorbell_request());
        assert!(!handle.take_doorbell_request());
    }

    #[test]
    fn the_first_end_is_final() {
        for (first, second) in [(State::Complete, State::Failed), (State::Failed, State::Complete)]
        {
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
    fn an_unknown_state_is_a_failure() {
        assert_eq!(State::of(3), State::Failed);
    }
}
