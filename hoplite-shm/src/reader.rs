use std::mem::MaybeUninit;
use std::sync::Arc;

use hoplite_core::extent::Extent;

use crate::error::{Error, Result};
use crate::header::HeaderView;
use crate::mapping::Mapping;
use crate::progress::State;
use crate::span::Span;

const STEP_BYTES: usize = 2 << 20;

/// A client's view of an object, complete or growing. Cheap to clone.
///
/// The caller must hold a reference to the copy: otherwise the store reuses the memory.
#[derive(Debug, Clone)]
pub struct Reader {
    mapping: Arc<Mapping>,
    span: Span,
    /// Leading bytes that the store has reported as valid. A client may have damaged the header.
    confirmed_bytes: u64,
}

impl Mapping {
    /// Makes a reader of the object at `extent`.
    ///
    /// # Errors
    /// [`Error::OutOfArena`] if the extent is misaligned, out of bounds or too short. The extent
    /// must come from the store, because clients can forge headers.
    pub fn reader(self: &Arc<Self>, extent: Extent, size_bytes: u64) -> Result<Reader> {
        Ok(Reader::new(Arc::clone(self), self.find(extent, size_bytes)?))
    }
}

impl Reader {
    pub(crate) fn new(mapping: Arc<Mapping>, span: Span) -> Self {
        Self { mapping, span, confirmed_bytes: 0 }
    }

    /// Notes that the store has reported these leading bytes as valid.
    pub fn confirm(&mut self, valid_bytes: u64) {
        self.confirmed_bytes = self.confirmed_bytes.max(valid_bytes.min(self.size_bytes()));
    }

    /// Size of the object in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.span.size_bytes()
    }

    /// Number of valid leading bytes: the larger of the header's and the store's number.
    ///
    /// Clients can forge the header, so a caller that waits must query the store.
    pub fn valid_bytes(&self) -> u64 {
        self.header().valid_bytes(self.size_bytes()).max(self.confirmed_bytes)
    }

    /// The copy's state. All bytes may be valid shortly before the state is [`State::Complete`].
    pub fn state(&self) -> State {
        self.header().state()
    }

    /// Fills `out` with bytes from `offset_bytes` on, without blocking.
    ///
    /// # Errors
    /// [`Error::NotValid`] if these bytes are not valid yet, or the object is too short.
    pub fn copy_to(&self, offset_bytes: u64, out: &mut [u8]) -> Result<()> {
        // SAFETY: `MaybeUninit<u8>` has the layout of `u8`, and only initialised bytes are written.
        let out = unsafe { &mut *(std::ptr::from_mut(out) as *mut [MaybeUninit<u8>]) };
        self.copy_to_uninit(offset_bytes, out).map(|_| ())
    }

    /// Acts as [`copy_to`](Self::copy_to) for an object that a collective fills out of order. The
    /// bytes must be among the first `counted_bytes` in that order.
    ///
    /// # Errors
    /// [`Error::NotValid`] if fewer than `counted_bytes` are valid, or the object is too short.
    pub fn copy_counted(
        &self,
        counted_bytes: u64,
        offset_bytes: u64,
        out: &mut [u8],
    ) -> Result<()> {
        let (end_bytes, valid_bytes) =
            (offset_bytes.saturating_add(out.len() as u64), self.valid_bytes());
        if counted_bytes > valid_bytes || end_bytes > self.size_bytes() {
            return Err(Error::NotValid { end_bytes: counted_bytes.max(end_bytes), valid_bytes });
        }
        // SAFETY: `MaybeUninit<u8>` has the layout of `u8`, and only initialised bytes are written.
        let out = unsafe { &mut *(std::ptr::from_mut(out) as *mut [MaybeUninit<u8>]) };
        self.copy_out(offset_bytes, out);
        Ok(())
    }

    /// Acts as [`copy_to`](Self::copy_to) for uninitialised memory, and returns it as initialised.
    ///
    /// # Errors
    /// As [`copy_to`](Self::copy_to); nothing is written then.
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

    /// Lends all bytes; `None` until all are valid. The crate's "Memory model" states the
    /// assumptions.
    pub fn as_slice(&self) -> Option<&[u8]> {
        if self.valid_bytes() < self.size_bytes() {
            return None;
        }
        // SAFETY: valid bytes are never written again. A `Writer` and the store write only beyond
        // the published bytes, and the store does not reuse the memory while the caller holds its
        // reference.
        Some(unsafe { self.mapping.region().slice(self.span.locate(0..self.size_bytes())) })
    }

    /// Address of the first byte, valid while the reader lives. The rules of
    /// [`copy_to`](Self::copy_to) and [`as_slice`](Self::as_slice) apply.
    pub fn as_ptr(&self) -> *const u8 {
        self.mapping.region().pointer(&self.span.locate(0..self.size_bytes()))
    }

    fn header(&self) -> HeaderView<'_> {
        self.mapping.region().header_view(self.span.header_offset())
    }
}
