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

/// Bytes that are copied and then read at a time: they fit into the first-level cache.
const CHUNK_BYTES: usize = 4 << 10;

/// An object's header and bytes in the arena, as its store uses them.
///
/// Clones share the memory. The crate's "Memory model" defines the permitted writers. Do not reuse
/// the extent while a clone is in use. Offsets are from the start of the object. Methods panic for
/// bytes beyond its end.
#[derive(Debug, Clone)]
pub struct Buffer {
    arena: Arc<Arena>,
    span: Span,
}

impl Arena {
    /// Buffer of an object, without writing the header.
    ///
    /// # Errors
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

    /// Size of the object in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.span.size_bytes()
    }

    /// Writes a new object's header. Call it before any client learns of the extent.
    pub fn initialise(&self) {
        self.header().initialise(self.size_bytes());
    }

    /// Number of valid leading bytes.
    pub fn valid_bytes(&self) -> u64 {
        self.header().valid_bytes(self.size_bytes())
    }

    /// The copy's state.
    pub fn state(&self) -> State {
        self.header().state()
    }

    /// Raises the number of valid leading bytes. A smaller number has no effect.
    pub fn publish(&self, valid_bytes: u64) {
        self.header().publish(valid_bytes.min(self.size_bytes()));
    }

    /// Publishes all bytes and completes the copy, unless it has failed.
    pub fn set_complete(&self) {
        self.publish(self.size_bytes());
        self.header().end(State::Complete);
    }

    /// Marks the copy as failed, unless it is complete.
    pub fn set_failed(&self) {
        self.header().end(State::Failed);
    }

    /// Requests a doorbell message from the writing client, sent when more bytes are valid than the
    /// returned number.
    ///
    /// To wait for more than n bytes, repeat this call until it returns more than n, and await a
    /// message after each smaller result. A message may come in vain. None comes for the last
    /// block, which [`set_complete`](Self::set_complete) makes valid.
    #[must_use = "progress up to this number rings no doorbell"]
    pub fn want_doorbell(&self) -> u64 {
        self.header().want(self.size_bytes())
    }

    /// Copies `bytes` into the object. [`publish`](Self::publish) makes them valid.
    pub fn write(&self, offset_bytes: u64, bytes: &[u8]) {
        let range = self.span.locate_from(offset_bytes, bytes.len());
        self.arena.region().copy_in(range, bytes);
    }

    /// Fills `out` with bytes from `offset_bytes` on. Bytes beyond
    /// [`valid_bytes`](Self::valid_bytes) have no meaning.
    pub fn read(&self, offset_bytes: u64, out: &mut [u8]) {
        let range = self.span.locate_from(offset_bytes, out.len());
        // SAFETY: `MaybeUninit<u8>` has the layout of `u8`, and `copy_out` initialises all bytes.
        let out = unsafe { &mut *(std::ptr::from_mut(out) as *mut [MaybeUninit<u8>]) };
        self.arena.region().copy_out(range, out);
    }

    /// Calls `look` with a private copy of each chunk of `range` in turn.
    pub fn for_each_chunk(&self, range: Range<u64>, mut look: impl FnMut(&[u8])) {
        let range = self.span.locate(range);
        let mut chunk = [MaybeUninit::uninit(); CHUNK_BYTES];
        for start in range.clone().step_by(CHUNK_BYTES) {
            let length = CHUNK_BYTES.min(range.end - start);
            look(self.arena.region().copy_out(start..start + length, &mut chunk[..length]));
        }
    }

    /// Computes the CRC-32C of `range`.
    pub fn crc32c(&self, range: Range<u64>) -> u32 {
        let mut checksum = Checksum::default();
        self.for_each_chunk(range, |chunk| checksum.update(chunk));
        checksum.finish()
    }

    /// Receives bytes into `range` with one non-blocking system call. [`publish`](Self::publish)
    /// makes them valid. Returns their number; zero means that the peer has closed.
    ///
    /// # Errors
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if no bytes are available,
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) for an empty `range`, or the connection's
    /// error.
    pub fn receive(&self, socket: BorrowedFd<'_>, range: Range<u64>) -> io::Result<usize> {
        let range = self.span.locate(range);
        if range.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no room to receive into"));
        }
        self.arena.region().receive(socket, range)
    }

    /// Sends `head`, then the bytes `range`, with one non-blocking system call. Returns the number
    /// of sent bytes, `head` included. A closed connection causes no SIGPIPE.
    ///
    /// # Errors
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if the socket is full, or the connection's error.
    pub fn send(
        &self,
        socket: BorrowedFd<'_>,
        head: &[u8],
        range: Range<u64>,
    ) -> io::Result<usize> {
        self.arena.region().send(socket, head, self.span.locate(range))
    }

    fn header(&self) -> HeaderHandle<'_> {
        self.arena.region().header_handle(self.span.header_offset())
    }
}
