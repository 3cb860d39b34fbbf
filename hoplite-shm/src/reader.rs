//! A client's view of one object.

use std::mem::MaybeUninit;
use std::sync::Arc;

use hoplite_core::extent::Extent;

use crate::error::{Error, Result};
use crate::header::HeaderView;
use crate::mapping::Mapping;
use crate::progress::State;
use crate::span::Span;

/// Bytes that are copied between two fillings of page tables.
const STEP_BYTES: usize = 2 << 20;

/// Reads one object, complete or still growing.
///
/// While the reader is in use, the caller must hold a reference to the copy, as the store counts
/// references. Otherwise the store gives the space to another object. Cloning is cheap.
#[derive(Debug, Clone)]
pub struct Reader {
    mapping: Arc<Mapping>,
    span: Span,
    /// The number of leading bytes that the store has called valid. The header may show more, or
    /// less if another client has damaged it.
    confirmed_bytes: u64,
}

impl Mapping {
    /// Creates a reader of the object of `size_bytes` in `extent`.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfArena`] if the extent is outside of the mapping. The extent must come from the
    /// store, because the header in it proves nothing.
    pub fn reader(self: &Arc<Self>, extent: Extent, size_bytes: u64) -> Result<Reader> {
        Ok(Reader::new(Arc::clone(self), self.find(extent, size_bytes)?))
    }
}

impl Reader {
    pub(crate) fn new(mapping: Arc<Mapping>, span: Span) -> Self {
        Self { mapping, span, confirmed_bytes: 0 }
    }

    /// Notes that the store has called the leading `valid_bytes` valid, in an answer over its
    /// connection. They then count as valid, whatever the header shows.
    pub fn confirm(&mut self, valid_bytes: u64) {
        self.confirmed_bytes = self.confirmed_bytes.max(valid_bytes.min(self.size_bytes()));
    }

    /// Returns the size of the object in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.span.size_bytes()
    }

    /// Returns the number of leading bytes that are valid, by the header or by the store; at most
    /// the size of the object.
    ///
    /// Any client can write to the header, so a caller that waits for more must ask the store.
    pub fn valid_bytes(&self) -> u64 {
        self.header().valid_bytes(self.size_bytes()).max(self.confirmed_bytes)
    }

    /// Returns the state of the copy: open, complete or failed. All bytes may be valid a moment
    /// before the store completes the copy.
    pub fn state(&self) -> State {
        self.header().state()
    }

    /// Fills `out` with bytes of the object from `offset_bytes` on. Does not block.
    ///
    /// # Errors
    ///
    /// [`Error::NotValid`] if not all of these bytes are valid yet, or the object is too short.
    pub fn copy_to(&self, offset_bytes: u64, out: &mut [u8]) -> Result<()> {
        // SAFETY: initialised bytes are valid as possibly uninitialised ones, and only initialised
        // ones are written.
        let out = unsafe { &mut *(std::ptr::from_mut(out) as *mut [MaybeUninit<u8>]) };
        self.copy_to_uninit(offset_bytes, out).map(|_| ())
    }

    /// Copies bytes as [`copy_to`](Self::copy_to) does, from an object whose progress counts bytes
    /// in another order than by offset. The copied bytes must be among the first
    /// `counted_bytes` in that order.
    ///
    /// # Errors
    ///
    /// [`Error::NotValid`] if fewer than `counted_bytes` are valid, or the object is too short.
    pub fn copy_counted(&self, counted_bytes: u64, offset_bytes: u64, out: &mut [u8]) -> Result<()> {
        let (end_bytes, valid_bytes) = (offset_bytes.saturating_add(out.len() as u64), self.valid_bytes());
        if counted_bytes > valid_bytes || end_bytes > self.size_bytes() {
            return Err(Error::NotValid { end_bytes: counted_bytes.max(end_bytes), valid_bytes });
        }
        // SAFETY: initialised bytes are valid as possibly uninitialised ones, and only initialised
        // ones are written.
        let out = unsafe { &mut *(std::ptr::from_mut(out) as *mut [MaybeUninit<u8>]) };
        self.copy_out(offset_bytes, out);
        Ok(())
    }

    /// Copies bytes as [`copy_to`](Self::copy_to) does, into memory that may be uninitialised.
    /// Returns the memory as initialised.
    ///
    /// # Errors
    ///
    /// The errors of [`copy_to`](Self::copy_to). Nothing is written then.
    pub fn copy_to_uninit<'a>(
        &self,
        offset_bytes: u64,
        out: &'a mut [MaybeUninit<u8>],
    ) -> Result<&'a mut [u8]> {
        let end_bytes = offset_bytes.saturating_add(out.len() as u64);
        let valid_bytes = self.valid_bytes();
        if end_bytes > valid_bytes {
            return Err(Error::NotValid { end_bytes, valid_bytes });
        }
        self.copy_out(offset_bytes, out);
        // SAFETY: the copy has initialised all of `out`.
        Ok(unsafe { &mut *(std::ptr::from_mut(out) as *mut [u8]) })
    }

    fn copy_out(&self, offset_bytes: u64, out: &mut [MaybeUninit<u8>]) {
        let range = self.span.locate_from(offset_bytes, out.len());
        self.mapping.while_preparing(range.clone(), || {
            for (part, start) in out.chunks_mut(STEP_BYTES).zip(range.step_by(STEP_BYTES)) {
                let range = start..start + part.len();
                self.mapping.prepare(range.clone());
                self.mapping.region().copy_out(range, part);
            }
        });
    }

    /// Lends all bytes of the object without a copy, once they are valid.
    ///
    /// "Memory model" in the crate's documentation states the assumptions.
    pub fn as_slice(&self) -> Option<&[u8]> {
        if self.valid_bytes() < self.size_bytes() {
            return None;
        }
        // SAFETY: valid bytes are never written again. A `Writer` and the store write only beyond
        // the published bytes, and the store does not reuse the space while the caller holds its
        // reference.
        Some(unsafe { self.mapping.region().slice(self.span.locate(0..self.size_bytes())) })
    }

    /// Returns the address of the object's first byte in this process. It is valid as long as the
    /// reader lives. Accesses must follow the rules of [`copy_to`](Self::copy_to) and
    /// [`as_slice`](Self::as_slice).
    pub fn as_ptr(&self) -> *const u8 {
        self.mapping.region().pointer(&self.span.locate(0..self.size_bytes()))
    }

    fn header(&self) -> HeaderView<'_> {
        self.mapping.region().header_view(self.span.header_offset())
    }
}
