use std::ops::Range;

use hoplite_core::extent::{Extent, GRANULE_BYTES, HEADER_BYTES};

use crate::error::{Error, Result};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    offset_bytes: u64,
    size_bytes: u64,
}

impl Span {
    pub(crate) fn new(extent: Extent, size_bytes: u64, capacity_bytes: u64) -> Result<Self> {
        let aligned = extent.offset_bytes.is_multiple_of(GRANULE_BYTES);
        let end = extent.offset_bytes.checked_add(extent.length_bytes);
        let inside = end.is_some_and(|end| end <= capacity_bytes);
        let needed = size_bytes.checked_add(HEADER_BYTES);
        let long_enough = needed.is_some_and(|needed| needed <= extent.length_bytes);
        if aligned && inside && long_enough {
            Ok(Self { offset_bytes: extent.offset_bytes, size_bytes })
        } else {
            Err(Error::OutOfArena { extent, size_bytes, capacity_bytes })
        }
    }

    pub(crate) fn header_offset(self) -> usize {
        self.offset_bytes as usize
    }

    pub(crate) fn object_offset(self) -> usize {
        (self.offset_bytes + HEADER_BYTES) as usize
    }

    pub(crate) fn size_bytes(self) -> u64 {
        self.size_bytes
    }

    /// Converts a range of the object to a range of the arena. Panics if it exceeds the object.
    pub(crate) fn locate(self, range: Range<u64>) -> Range<usize> {
        assert!(
            range.start <= range.end && range.end <= self.size_bytes,
            "bytes {range:?} of an object of {} bytes",
            self.size_bytes
        );
        self.object_offset() + range.start as usize..self.object_offset() + range.end as usize
    }

    pub(crate) fn locate_from(self, offset_bytes: u64, length: usize) -> Range<usize> {
        let end = offset_bytes.checked_add(length as u64);
        self.locate(offset_bytes..end.expect("the end of a range of an object fits its type"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_that_do_not_hold_the_object_are_refused() {
        let span = |offset_bytes, length_bytes, size_bytes| {
            Span::new(Extent { offset_bytes, length_bytes }, size_bytes, 4096)
        };
        assert!(span(0, 64, 0).is_ok());
        assert!(span(0, 4096, 4032).is_ok());
        assert!(span(4032, 64, 0).is_ok());
        assert!(span(0, 63, 0).is_err());
        assert!(span(0, 128, 65).is_err());
        assert!(span(32, 128, 0).is_err());
        assert!(span(4096, 64, 0).is_err());
        assert!(span(64, 4096, 0).is_err());
        assert!(span(64, u64::MAX, 0).is_err());
        assert!(span(0, 4096, u64::MAX).is_err());
    }

    #[test]
    #[should_panic(expected = "of an object of 10 bytes")]
    fn a_range_past_the_object_panics() {
        let extent = Extent { offset_bytes: 0, length_bytes: 128 };
        Span::new(extent, 10, 4096).unwrap().locate(5..11);
    }
}
