use std::io;
use std::ops::{ControlFlow, Range};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hoplite_core::extent::Extent;
use memmap2::Advice;

use crate::error::{Error, Result};
use crate::limits::address_space_limit_bytes;
use crate::region::{Access, Region};
use crate::span::Span;

/// Bytes whose page tables one system call fills.
const PIECE_BYTES: usize = 2 << 20;

/// Smallest copy in bytes for which page tables are filled first: smaller copies' page faults cost
/// less than one piece (0.1 ms).
const POPULATE_FROM_BYTES: usize = 128 << 10;

/// Smallest copy in bytes for which a second thread fills page tables.
const HELP_FROM_BYTES: usize = 64 << 20;

/// Head start over the copying thread, which then never fills the same page tables.
const HEAD_START_BYTES: usize = 4 << 20;

/// A client's mapping of the arena.
///
/// # Page tables
///
/// Each process fills its own page tables, which costs more than a copy, even after the store's
/// prefault.
///
/// Filling them piece by piece ahead of the copy costs less. `MADV_POPULATE_READ` is faster than
/// `MADV_POPULATE_WRITE`, and makes the entries writable.
#[derive(Debug)]
pub struct Mapping {
    region: Region,
    /// One bit for each piece with filled page tables.
    populated: Vec<AtomicU64>,
}

impl Mapping {
    /// Maps the first `capacity_bytes` of `fd` for reading.
    ///
    /// # Errors
    /// [`Error::FileTooShort`], [`Error::CapacityTooSmall`] for zero bytes, else [`Error::System`].
    pub fn read_only(fd: impl AsFd, capacity_bytes: u64) -> Result<Arc<Self>> {
        Self::new(fd, capacity_bytes, Access::ReadOnly)
    }

    /// Maps the first `capacity_bytes` of `fd` for reading and writing.
    ///
    /// # Errors
    /// As [`read_only`](Self::read_only), and [`Error::System`] if `fd` is read-only.
    pub fn writable(fd: impl AsFd, capacity_bytes: u64) -> Result<Arc<Self>> {
        Self::new(fd, capacity_bytes, Access::Writable)
    }

    fn new(fd: impl AsFd, capacity_bytes: u64, access: Access) -> Result<Arc<Self>> {
        if capacity_bytes == 0 {
            return Err(Error::CapacityTooSmall { capacity_bytes, page_bytes: 1 });
        }
        let status =
            rustix::fs::fstat(&fd).map_err(Error::system("find out the size of the arena"))?;
        let actual_bytes = u64::try_from(status.st_size).unwrap_or(0);
        // An access beyond a file's end kills the process.
        if actual_bytes < capacity_bytes {
            return Err(Error::FileTooShort { needed_bytes: capacity_bytes, actual_bytes });
        }
        let region = Region::map(fd.as_fd(), capacity_bytes as usize, access)
            .map_err(|source| cannot_map(source, capacity_bytes))?;
        let words = region.len().div_ceil(PIECE_BYTES).div_ceil(u64::BITS as usize);
        Ok(Arc::new(Self { region, populated: (0..words).map(|_| AtomicU64::new(0)).collect() }))
    }

    /// Number of mapped bytes.
    pub fn capacity_bytes(&self) -> u64 {
        self.region.len() as u64
    }

    pub(crate) fn find(&self, extent: Extent, size_bytes: u64) -> Result<Span> {
        Span::new(extent, size_bytes, self.capacity_bytes())
    }

    /// Fills all page tables, so that first puts and gets are fast. Blocks for 60 ms per GiB after
    /// the store's prefault, else for as long as a prefault.
    ///
    /// Calls `step` with the bytes done after every 2 MiB, and stops if `step` breaks.
    pub fn populate(&self, mut step: impl FnMut(u64) -> ControlFlow<()>) {
        for start in (0..self.region.len()).step_by(PIECE_BYTES) {
            let end = self.region.len().min(start + PIECE_BYTES);
            self.populate_piece(start);
            if step(end as u64).is_break() {
                return;
            }
        }
    }

    pub(crate) fn prepare(&self, range: Range<usize>) {
        if range.len() < POPULATE_FROM_BYTES {
            return;
        }
        for start in (range.start / PIECE_BYTES * PIECE_BYTES..range.end).step_by(PIECE_BYTES) {
            self.populate_piece(start);
        }
    }

    /// Runs `copy`, which accesses `range`. For a long range, a second thread fills page tables
    /// ahead of it.
    pub(crate) fn while_preparing<T>(&self, range: Range<usize>, copy: impl FnOnce() -> T) -> T {
        let ahead = range.start.saturating_add(HEAD_START_BYTES)..range.end;
        if ahead.len() < HELP_FROM_BYTES || ahead.end < ahead.start || self.is_populated(&ahead) {
            return copy();
        }
        std::thread::scope(|scope| {
            let builder = std::thread::Builder::new().name("hoplite-populate".to_owned());
            let _ = builder.spawn_scoped(scope, || self.prepare(ahead));
            copy()
        })
    }

    fn is_populated(&self, range: &Range<usize>) -> bool {
        (range.start / PIECE_BYTES..range.end.div_ceil(PIECE_BYTES)).all(|piece| {
            self.populated[piece / 64].load(Ordering::Relaxed) & (1 << (piece % 64)) != 0
        })
    }

    fn populate_piece(&self, start: usize) {
        let piece = start / PIECE_BYTES;
        let (word, bit) = (&self.populated[piece / 64], 1 << (piece % 64));
        if word.load(Ordering::Relaxed) & bit == 0 {
            let _ = self
                .region
                .advise(Advice::PopulateRead, start..self.region.len().min(start + PIECE_BYTES));
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }
}

fn cannot_map(source: io::Error, needed_bytes: u64) -> Error {
    let limit_bytes = address_space_limit_bytes();
    if source.kind() == io::ErrorKind::OutOfMemory && limit_bytes < u64::MAX {
        return Error::AddressSpaceLimit { needed_bytes, limit_bytes };
    }
    Error::System { operation: "map the arena", source }
}
