//! Space in the arena.

/// A range of bytes of the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// Where it starts, in bytes from the start of the arena.
    pub offset_bytes: u64,
    /// How long it is.
    pub length_bytes: u64,
}

/// Bytes in front of each object's bytes: the header through which its progress is shared. A cache line.
pub const HEADER_BYTES: u64 = 64;
