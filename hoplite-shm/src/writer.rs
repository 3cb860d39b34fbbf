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

/// Bytes that a writer copies before it publishes them.
const STEP_BYTES: u64 = 1 << 20;

/// Objects from this size on are stored past the caches: half of a small server's last-level cache.
const LARGE_OBJECT_BYTES: u64 = 16 << 20;

/// Result of [`Writer::advance`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use = "the store waits until the doorbell rings, if it has asked for that"]
pub enum Doorbell {
    /// The store waits for these bytes: send a doorbell message.
    Ring,
    /// The store does not wait for these bytes: send nothing.
    Silent,
}

/// Writes an object from start to end, and publishes whole blocks to readers.
///
/// The store publishes the last block when the client seals the object, so no reader sees a
/// complete object whose writer died.
///
/// A dropped writer leaves an unfinished object open: the caller must tell the store to abort it.
#[derive(Debug)]
pub struct Writer {
    mapping: Arc<Mapping>,
    span: Span,
    written_bytes: u64,
    published_bytes: u64,
}

impl Mapping {
    /// Makes the only writer of an object that the store has just created for this client.
    ///
    /// # Errors
    /// As [`reader`](Self::reader), and [`Error::ReadOnly`] for a read-only mapping.
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

    /// Size of the object in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.span.size_bytes()
    }

    /// Number of bytes written so far.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// The copy's state. The writer of a failed copy can stop.
    pub fn state(&self) -> State {
        self.header().state()
    }

    /// Appends `bytes`, and publishes all whole blocks before the last block. Blocks while it
    /// copies: milliseconds for large objects.
    ///
    /// Calls `ring` when the caller must send a doorbell message. It should not block.
    ///
    /// # Errors
    /// [`Error::PastEnd`] if the bytes do not fit; nothing is written then.
    pub fn write(&mut self, bytes: &[u8], ring: impl FnMut()) -> Result<()> {
        self.check_remaining(bytes.len() as u64)?;
        let mapping = Arc::clone(&self.mapping);
        let range = self.span.locate_from(self.written_bytes, bytes.len());
        mapping.while_preparing(range, || self.write_in_steps(bytes, ring))
    }

    fn write_in_steps(&mut self, mut bytes: &[u8], mut ring: impl FnMut()) -> Result<()> {
        while !bytes.is_empty() {
            let step =
                (STEP_BYTES - self.written_bytes % STEP_BYTES).min(bytes.len() as u64) as usize;
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

    /// Address of the first byte, for callers that fill the object without
    /// [`write`](Self::write).
    ///
    /// Valid while the writer, or the reader of [`finish`](Self::finish), lives. Write only from
    /// [`written_bytes`](Self::written_bytes) up to the size. After [`advance`](Self::advance),
    /// other processes read the bytes, so form no references to them.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.mapping.region().pointer(&self.span.locate(0..self.size_bytes()))
    }

    /// Fills page tables for the next `length_bytes`: a few MiB, about to be written through
    /// [`as_mut_ptr`](Self::as_mut_ptr).
    pub fn prepare(&self, length_bytes: u64) {
        let length_bytes = length_bytes.min(self.size_bytes() - self.written_bytes);
        self.mapping
            .prepare(self.span.locate(self.written_bytes..self.written_bytes + length_bytes));
    }

    /// Notes that the next `length_bytes` were written, and publishes all whole blocks before the
    /// last block.
    ///
    /// # Errors
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
        Ok(if header.take_doorbell_request() { Doorbell::Ring } else { Doorbell::Silent })
    }

    /// Returns a reader. The caller then tells the store to seal the object, which makes all bytes
    /// valid.
    ///
    /// # Errors
    /// [`Error::Unfinished`] if bytes are missing: the caller must abort the object.
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
