//! A client's writer of an object that it has created.

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

/// Bytes that are copied between two publications. At 15 GB/s this takes 70 us, so that a receiver
/// on another node starts early. Steps of 2 to 8 MiB are no faster.
const STEP_BYTES: u64 = 1 << 20;

/// Smallest object that is copied past the caches, because it would not stay in them. It is half of
/// the last-level cache of a small server. The C library's `memcpy` switches at about the same
/// length.
const LARGE_OBJECT_BYTES: u64 = 16 << 20;

/// Tells whether the store waits for progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use = "the store waits until the doorbell rings, if it has asked for that"]
pub enum Doorbell {
    /// The store waits: the caller must send it a doorbell message.
    Ring,
    /// The store does not wait.
    Silent,
}

/// Writes one object from start to end, and publishes the progress in whole blocks.
///
/// The writer never publishes the last block. The store publishes it when it seals the object.
/// Until then no node has all bytes, so an object whose writer dies is complete nowhere.
///
/// An object has one writer, so a writer cannot be cloned. A writer that is dropped early leaves
/// the object open, and the caller must tell the store to abort it.
#[derive(Debug)]
pub struct Writer {
    mapping: Arc<Mapping>,
    span: Span,
    written_bytes: u64,
    published_bytes: u64,
}

impl Mapping {
    /// Creates the writer of the object of `size_bytes` in `extent`, which the store has just
    /// created for this client.
    ///
    /// An object must have only one writer.
    ///
    /// # Errors
    ///
    /// The errors of [`reader`](Self::reader), and [`Error::ReadOnly`] for a read-only mapping.
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

    /// Returns the size of the object in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.span.size_bytes()
    }

    /// Returns the number of bytes that the caller has written so far.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// Returns the state of the copy: open, complete or failed. The writer of a failed copy can
    /// stop.
    pub fn state(&self) -> State {
        self.header().state()
    }

    /// Appends `bytes` to the written bytes, and publishes them on the way.
    ///
    /// Calls `ring` each time the caller must send the store a doorbell message; `ring` should not
    /// block. Blocks for the time of the copy, which is milliseconds for large objects.
    ///
    /// # Errors
    ///
    /// [`Error::PastEnd`] if the bytes do not fit into the object. Nothing is written then.
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

    /// Returns the address of the object's first byte in this process, for callers that fill it
    /// without [`write`](Self::write).
    ///
    /// The address is valid as long as the writer, or a reader made from it, lives. Callers may
    /// write only bytes from [`written_bytes`](Self::written_bytes) up to the size. After
    /// [`advance`](Self::advance), other processes read the bytes, and no reference to them may be
    /// formed.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.mapping.region().pointer(&self.span.locate(0..self.size_bytes()))
    }

    /// Fills the page tables of the next `length_bytes`, which makes writes through
    /// [`as_mut_ptr`](Self::as_mut_ptr) fast. The call is optional. Call it for a few MiB at a
    /// time, right before writing them.
    pub fn prepare(&self, length_bytes: u64) {
        let length_bytes = length_bytes.min(self.size_bytes() - self.written_bytes);
        self.mapping.prepare(self.span.locate(self.written_bytes..self.written_bytes + length_bytes));
    }

    /// Notes that the next `length_bytes` were written through [`as_mut_ptr`](Self::as_mut_ptr),
    /// and publishes all bytes before the last block.
    ///
    /// # Errors
    ///
    /// [`Error::PastEnd`] if the object is too short.
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

    /// Ends the writing and returns a reader. The caller tells the store to seal the object, which
    /// makes all bytes valid.
    ///
    /// # Errors
    ///
    /// [`Error::Unfinished`] if bytes are missing. The writer is gone, and the caller must abort
    /// the object.
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
