//! The store's side of one object.

use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use hoplite_core::checksum::Checksum;
use hoplite_core::extent::Extent;

use crate::arena::Arena;
use crate::error;
use crate::header::HeaderHandle;
use crate::progress::State;
use crate::span::Span;

/// Bytes that [`Buffer::for_each_chunk`] copies out of the arena at a time.
///
/// The cost of the copy, for CRC-32C: 1 GiB that is not cached takes 44 ms (34 ms with a slice
/// instead of the copy). 1 MiB that is cached takes 39 us (18 us with a slice). Larger chunks do
/// not fit the first-level cache. Measured with `examples/memory_bandwidth.rs` on an EPYC with 2
/// cores.
const CHUNK_BYTES: usize = 4 << 10;

/// The header and the bytes of one object, for the store.
///
/// Cloning is cheap, and clones refer to the same memory. Any thread may use any clone. The caller
/// decides which thread writes which bytes, as described under "Memory model" in the crate's
/// documentation.
///
/// The buffer does not own its extent. The caller must not allocate the extent again while a clone
/// is in use.
///
/// Offsets and ranges are in bytes from the start of the object.
#[derive(Debug, Clone)]
pub struct Buffer {
    arena: Arc<Arena>,
    span: Span,
}

impl Arena {
    /// Returns the buffer of an object of `size_bytes` in `extent`. Does not change the header; see
    /// [`Buffer::initialise`].
    ///
    /// # Errors
    ///
    /// [`Error::OutOfArena`](crate::Error::OutOfArena) if `extent` is misaligned, out of bounds or
    /// too short.
    pub fn buffer(self: &Arc<Self>, extent: Extent, size_bytes: u64) -> error::Result<Buffer> {
        let span = Span::new(extent, size_bytes, self.capacity_bytes())?;
        Ok(Buffer::new(Arc::clone(self), span))
    }
}

impl Buffer {
    pub(crate) fn new(arena: Arc<Arena>, span: Span) -> Self {
        Self { arena, span }
    }

    /// Returns the size of the object in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.span.size_bytes()
    }

    /// Starts a new object in this extent: open, without valid bytes, and with the doorbell off.
    ///
    /// The store must call it before any client learns of the extent.
    pub fn initialise(&self) {
        self.header().initialise(self.size_bytes());
    }

    /// Returns the number of leading bytes that are valid; at most the size of the object.
    pub fn valid_bytes(&self) -> u64 {
        self.header().valid_bytes(self.size_bytes())
    }

    /// Returns the state of the copy: open, complete or failed.
    pub fn state(&self) -> State {
        self.header().state()
    }

    /// Publishes that the leading `valid_bytes` are valid. The caller must have written them.
    /// Progress never falls: a smaller number than before has no effect.
    pub fn publish(&self, valid_bytes: u64) {
        self.header().publish(valid_bytes.min(self.size_bytes()));
    }

    /// Publishes that all bytes are valid and accepted. Has no effect on a failed copy.
    pub fn set_complete(&self) {
        self.publish(self.size_bytes());
        self.header().end(State::Complete);
    }

    /// Publishes that the copy will never be complete. Has no effect on a complete copy.
    pub fn set_failed(&self) {
        self.header().end(State::Failed);
    }

    /// Requests one ring of the doorbell when the writer makes progress beyond the returned number
    /// of valid bytes.
    ///
    /// A task that waits for more than n valid bytes calls this. If it returns more than n, the
    /// wait is over, and the doorbell may ring once in vain. Otherwise the task waits for the
    /// doorbell and repeats the call.
    ///
    /// The doorbell never rings for the last block, which becomes valid with
    /// [`set_complete`](Self::set_complete).
    #[must_use = "progress up to this number rings no doorbell"]
    pub fn want_doorbell(&self) -> u64 {
        self.header().want(self.size_bytes())
    }

    /// Copies `bytes` into the object at `offset_bytes`, without publishing them.
    ///
    /// # Panics
    ///
    /// Panics if they do not fit into the object.
    pub fn write(&self, offset_bytes: u64, bytes: &[u8]) {
        let range = self.span.locate_from(offset_bytes, bytes.len());
        self.arena.region().copy_in(range, bytes);
    }

    /// Fills `out` with bytes of the object from `offset_bytes` on. Bytes beyond
    /// [`valid_bytes`](Self::valid_bytes) have no meaning.
    ///
    /// # Panics
    ///
    /// Panics if the object is too short.
    pub fn read(&self, offset_bytes: u64, out: &mut [u8]) {
        let range = self.span.locate_from(offset_bytes, out.len());
        // SAFETY: initialised bytes are valid as possibly uninitialised ones, and `copy_out`
        // initialises all of them.
        let out = unsafe { &mut *(std::ptr::from_mut(out) as *mut [MaybeUninit<u8>]) };
        self.arena.region().copy_out(range, out);
    }

    /// Calls `look` with the bytes of `range`, one chunk at a time, in order.
    ///
    /// The chunks are private copies, so they do not change while `look` reads them.
    ///
    /// # Panics
    ///
    /// Panics if the range exceeds the object.
    pub fn for_each_chunk(&self, range: Range<u64>, mut look: impl FnMut(&[u8])) {
        let range = self.span.locate(range);
        let mut chunk = [MaybeUninit::uninit(); CHUNK_BYTES];
        for start in range.clone().step_by(CHUNK_BYTES) {
            let length = CHUNK_BYTES.min(range.end - start);
            look(self.arena.region().copy_out(start..start + length, &mut chunk[..length]));
        }
    }

    /// Returns the CRC-32C of the bytes of `range`.
    ///
    /// # Panics
    ///
    /// Panics if the range exceeds the object.
    pub fn crc32c(&self, range: Range<u64>) -> u32 {
        let mut checksum = Checksum::default();
        self.for_each_chunk(range, |chunk| checksum.update(chunk));
        checksum.finish()
    }

    /// Receives bytes from a stream socket straight into `range`, with one non-blocking system
    /// call, and does not publish them. Returns the number of bytes; zero means that the peer has
    /// closed its side.
    ///
    /// # Errors
    ///
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if no bytes are available,
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) if `range` is empty, or the error of the
    /// broken connection.
    ///
    /// # Panics
    ///
    /// Panics if the range exceeds the object.
    pub fn receive(&self, socket: BorrowedFd<'_>, range: Range<u64>) -> io::Result<usize> {
        let range = self.span.locate(range);
        if range.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no room to receive into"));
        }
        self.arena.region().receive(socket, range)
    }

    /// Sends `head` and then the bytes of `range` straight from the arena, with one non-blocking
    /// system call. Returns the number of bytes that the socket took, including bytes of `head`. A
    /// closed connection is an error instead of a signal.
    ///
    /// # Errors
    ///
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if the socket is full, or the error of the broken
    /// connection.
    ///
    /// # Panics
    ///
    /// Panics if the range exceeds the object.
    pub fn send(&self, socket: BorrowedFd<'_>, head: &[u8], range: Range<u64>) -> io::Result<usize> {
        self.arena.region().send(socket, head, self.span.locate(range))
    }

    fn header(&self) -> HeaderHandle<'_> {
        self.arena.region().header_handle(self.span.header_offset())
    }
}
