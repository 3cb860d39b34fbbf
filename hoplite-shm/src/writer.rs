//! How a client fills the object that it has created.

use std::sync::Arc;

use hoplite_core::block::publishable_unsealed;
use hoplite_core::extent::Extent;

use crate::error::{Error, Result};
use crate::header::HeaderHandle;
use crate::mapping::Mapping;
use crate::progress::State;
use crate::reader::Reader;
use crate::region::Access;
use crate::span::Span;

/// How much is copied between two publications. At 15 GB/s that is 70 us, so that a receiver on another node starts
/// early, and 2 to 8 MiB are no faster.
const STEP_BYTES: u64 = 1 << 20;

/// Objects from this size on are copied past the caches: they would not stay in them anyway. Half of the last-level cache
/// of a small server; the C library's `memcpy` switches at about the same length.
const LARGE_OBJECT_BYTES: u64 = 16 << 20;

/// Whether the store waits for progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use = "the store waits until the doorbell rings, if it has asked for that"]
pub enum Doorbell {
    /// The store has asked to be told: the caller must send it a doorbell message.
    Ring,
    /// Nobody waits.
    Silent,
}

/// Writes one object from its start to its end, and publishes the progress in whole blocks.
///
/// It never publishes the last block: the store does when it seals the object. Until then nobody has all bytes, so that
/// an object whose writer dies is complete nowhere.
///
/// Not cloneable, since an object has one writer. A writer that is dropped before it is finished leaves the object open:
/// the caller tells the store to abort it.
#[derive(Debug)]
pub struct Writer {
    mapping: Arc<Mapping>,
    span: Span,
    written_bytes: u64,
    published_bytes: u64,
}

impl Mapping {
    /// Writes the object of `size_bytes` in `extent`, which the store has just created for this client.
    ///
    /// There must be only one writer of an object.
    ///
    /// # Errors
    ///
    /// As [`reader`](Self::reader), and [`Error::ReadOnly`] if the mapping is.
    pub fn writer(self: &Arc<Self>, extent: Extent, size_bytes: u64) -> Result<Writer> {
        if self.region().access() == Access::ReadOnly {
            return Err(Error::ReadOnly);
        }
        Ok(Writer::new(Arc::clone(self), self.find(extent, size_bytes)?))
    }
}

impl Writer {
    pub(crate) fn new(mapping: Arc<Mapping>, span: Span) -> Self {
        Self { mapping, span, written_bytes: 0, published_bytes: 0 }
    }

    /// The size of the object.
    pub fn size_bytes(&self) -> u64 {
        self.span.size_bytes()
    }

    /// Returns the number of bytes that the caller has written so far.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// Whether the copy is open, complete or failed. A writer of a failed copy can stop.
    pub fn state(&self) -> State {
        self.header().state()
    }

    /// Copies `bytes` to the end of what was written, publishing them on the way.
    ///
    /// Calls `ring` each time the store is to be sent a doorbell message; it should not wait. Blocks for the time of the
    /// copy, which for large objects is milliseconds.
    ///
    /// # Errors
    ///
    /// [`Error::PastEnd`] if the object has no room for all of them; nothing is written then.
    pub fn write(&mut self, bytes: &[u8], ring: impl FnMut()) -> Result<()> {
        self.check_remaining(bytes.len() as u64)?;
        let mapping = Arc::clone(&self.mapping);
        let range = self.span.locate_from(self.written_bytes, bytes.len());
        mapping.while_preparing(range, || self.write_in_steps(bytes, ring))
    }

    fn write_in_steps(&mut self, mut bytes: &[u8], mut ring: impl FnMut()) -> Result<()> {
        while !bytes.is_empty() {
            let step = (STEP_BYTES - self.written_bytes % STEP_BYTES).min(bytes.len() as u64) as usize;
            let (now, later) = bytes.split_at(step);
            let range = self.span.locate_from(self.written_bytes, step);
            self.mapping.prepare(range.clone());
            if self.size_bytes() >= LARGE_OBJECT_BYTES {
                self.mapping.region().copy_in_past_caches(range, now);
            } else {
                self.mapping.region().copy_in(range, now);
            }
            if self.advance(step as u64)? == Doorbell::Ring {
                ring();
            }
            bytes = later;
        }
        Ok(())
    }

    /// The address of the object's first byte in this process, for callers that fill it without [`write`](Self::write).
    ///
    /// It is good as long as the writer, or a reader made from it, lives. Only bytes from
    /// [`written_bytes`](Self::written_bytes) up to the size may be written through it. Once they were [advanced](Self::advance)
    /// over, others read them, and no reference to them may be formed.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.mapping.region().pointer(&self.span.locate(0..self.size_bytes()))
    }

    /// Makes the next `length_bytes` fast to write through [`as_mut_ptr`](Self::as_mut_ptr), by filling page tables. It is
    /// never necessary. Best called for a few MiB at a time, right before they are written.
    pub fn prepare(&self, length_bytes: u64) {
        let length_bytes = length_bytes.min(self.size_bytes() - self.written_bytes);
        self.mapping.prepare(self.span.locate(self.written_bytes..self.written_bytes + length_bytes));
    }

    /// Says that the next `length_bytes` were written through [`as_mut_ptr`](Self::as_mut_ptr), and publishes what comes
    /// before the last block.
    ///
    /// # Errors
    ///
    /// [`Error::PastEnd`] if the object has not so many.
    pub fn advance(&mut self, length_bytes: u64) -> Result<Doorbell> {
        self.check_remaining(length_bytes)?;
        self.written_bytes += length_bytes;
        let publishable_bytes = publishable_unsealed(self.written_bytes, self.size_bytes());
        if publishable_bytes == self.published_bytes {
            return Ok(Doorbell::Silent);
        }
        self.published_bytes = publishable_bytes;
        let header = self.header();
        header.publish(publishable_bytes);
        Ok(if header.take_wanted() { Doorbell::Ring } else { Doorbell::Silent })
    }

    /// Ends the writing and turns to reading. The caller tells the store to seal the object; all bytes are valid once it
    /// has done so.
    ///
    /// # Errors
    ///
    /// [`Error::Unfinished`] if bytes are missing. The writer is gone; the caller aborts the object.
    pub fn finish(self) -> Result<Reader> {
        if self.written_bytes < self.size_bytes() {
            let Self { written_bytes, span, .. } = self;
            return Err(Error::Unfinished { written_bytes, size_bytes: span.size_bytes() });
        }
        Ok(Reader::new(self.mapping, self.span))
    }

    fn check_remaining(&self, length_bytes: u64) -> Result<()> {
        let remaining_bytes = self.size_bytes() - self.written_bytes;
        if length_bytes > remaining_bytes {
            return Err(Error::PastEnd { length_bytes, remaining_bytes });
        }
        Ok(())
    }

    fn header(&self) -> HeaderHandle<'_> {
        self.mapping.region().header_handle(self.span.header_offset())
    }
}
