//! Allocation of space in the arena, a store's shared memory. Touches no memory.

/// Range of the arena, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// Offset from the start of the arena.
    pub offset_bytes: u64,
    /// Length of the range.
    pub length_bytes: u64,
}

/// Size of the header before each object's bytes: a cache line.
pub const HEADER_BYTES: u64 = 64;

/// Unit of allocation and alignment in bytes: a cache line, so that headers never share one.
pub const GRANULE_BYTES: u64 = 64;

/// Returns the number of bytes that [`Allocator::allocate`] reserves for `length_bytes`.
pub const fn allocated_bytes(length_bytes: u64) -> u64 {
    granules(length_bytes).saturating_mul(GRANULE_BYTES)
}

const fn granules(length_bytes: u64) -> u64 {
    if length_bytes == 0 { 1 } else { length_bytes.div_ceil(GRANULE_BYTES) }
}

/// Bins (lists of free ranges) per power of two. With 32, lengths in a bin differ by at most 3%.
const COLUMNS: usize = 1 << COLUMNS_LOG2;
const COLUMNS_LOG2: u32 = 5;

/// Rows of bins: one for lengths below `COLUMNS` granules, then one per power of two.
const ROWS: usize = (u64::BITS - COLUMNS_LOG2) as usize + 1;

const NONE: u32 = u32::MAX;
/// Marks ranges in no bin.
const NOT_FREE: u32 = u32::MAX - 1;

/// Allocates extents in constant time: a two-level segregated fit (TLSF; Masmano et al., ECRTS
/// 2004).
///
/// Lists (bins) hold the free ranges by length, and two levels of bitmaps mark the lists in use.
/// Free neighbours are merged at once. The boundary tags live outside of the arena, where clients
/// cannot damage them.
///
/// Unlike TLSF, `allocate` finally searches, not in constant time, the one bin whose ranges may be
/// long enough.
#[derive(Debug, Clone)]
pub struct Allocator {
    capacity: u64,
    free: u64,
    /// All ranges, which together cover the arena without gaps. Some entries are vacant.
    ranges: Vec<Range>,
    vacant: u32,
    /// Bit r is set if row r has a free range.
    rows: u64,
    /// Bit c of entry r is set if bin c of row r has a free range.
    columns: [u32; ROWS],
    /// First free range of each bin, linked by `previous` and `next`.
    bins: Vec<[u32; COLUMNS]>,
    /// Hash table of allocated ranges by offset, linked by `next`. Its length is a power of two.
    buckets: Vec<u32>,
    allocated_ranges: usize,
}

/// Ends where `after` begins, or with the arena.
#[derive(Debug, Clone, Copy)]
struct Range {
    offset: u64,
    before: u32,
    after: u32,
    /// Neighbours in the bin. In no bin, `previous` is [`NOT_FREE`].
    previous: u32,
    next: u32,
}

/// List of free ranges of similar length. Bins are ordered by length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Bin {
    row: usize,
    column: usize,
}

impl Bin {
    fn of(length: u64) -> Self {
        if length < COLUMNS as u64 {
            return Self { row: 0, column: length as usize };
        }
        let log2 = length.ilog2();
        let column = (length >> (log2 - COLUMNS_LOG2)) as usize - COLUMNS;
        Self { row: (log2 - COLUMNS_LOG2) as usize + 1, column }
    }

    fn at_least(length: u64) -> Self {
        if length < COLUMNS as u64 {
            return Self::of(length);
        }
        let width = 1 << (length.ilog2() - COLUMNS_LOG2);
        Self::of(length + (width - 1))
    }
}

impl Allocator {
    /// Makes an allocator in which all whole granules of the capacity are free.
    pub fn new(capacity_bytes: u64) -> Self {
        let capacity = capacity_bytes / GRANULE_BYTES;
        let mut allocator = Self {
            capacity,
            free: 0,
            ranges: Vec::new(),
            vacant: NONE,
            rows: 0,
            columns: [0; ROWS],
            bins: vec![[NONE; COLUMNS]; ROWS],
            buckets: vec![NONE; 64],
            allocated_ranges: 0,
        };
        if capacity > 0 {
            let all = allocator.add_range(0, NONE, NONE);
            allocator.link_free(all);
        }
        allocator
    }

    /// Allocates whole granules, at least one. Returns `None` only if no free range is long enough.
    pub fn allocate(&mut self, length_bytes: u64) -> Option<Extent> {
        let length = granules(length_bytes);
        if length > self.free {
            return None;
        }
        let index = match self.first_bin_from(Bin::at_least(length)) {
            Some(bin) => self.bins[bin.row][bin.column],
            None => self.first_fit_in(Bin::of(length), length)?,
        };
        self.unlink_free(index);
        self.give_back_tail(index, length);
        self.link_allocated(index);
        Some(Extent {
            offset_bytes: self.range(index).offset * GRANULE_BYTES,
            length_bytes: length * GRANULE_BYTES,
        })
    }

    /// Frees an extent in constant time.
    ///
    /// # Panics
    /// Unless [`allocate`](Self::allocate) returned exactly `extent`, because two objects could
    /// then share bytes.
    pub fn free(&mut self, extent: Extent) {
        let index = self.unlink_allocated(extent);
        let Range { before, after, .. } = *self.range(index);
        if self.is_free(after) {
            self.unlink_free(after);
            self.merge_into(index, after);
        }
        if self.is_free(before) {
            self.unlink_free(before);
            self.merge_into(before, index);
            self.link_free(before);
        } else {
            self.link_free(index);
        }
    }

    /// Arena's size in bytes, in whole granules.
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity * GRANULE_BYTES
    }

    /// Size of all free ranges.
    pub fn free_bytes(&self) -> u64 {
        self.free * GRANULE_BYTES
    }

    /// Length of the longest free range, in time linear in the number of ranges of about that
    /// length.
    pub fn largest_free_bytes(&self) -> u64 {
        let Some(row) = self.rows.checked_ilog2() else { return 0 };
        let row = row as usize;
        let column = self.columns[row].ilog2() as usize;
        self.list(Bin { row, column }).map(|index| self.length(index)).max().unwrap_or(0)
            * GRANULE_BYTES
    }

    fn first_bin_from(&self, bin: Bin) -> Option<Bin> {
        let columns = self.columns[bin.row] & (u32::MAX << bin.column);
        if columns != 0 {
            return Some(Bin { row: bin.row, column: columns.trailing_zeros() as usize });
        }
        let rows = self.rows & (u64::MAX << (bin.row + 1));
        if rows == 0 {
            return None;
        }
        let row = rows.trailing_zeros() as usize;
        Some(Bin { row, column: self.columns[row].trailing_zeros() as usize })
    }

    fn first_fit_in(&self, bin: Bin, length: u64) -> Option<u32> {
        self.list(bin).find(|index| self.length(*index) >= length)
    }

    fn list(&self, bin: Bin) -> impl Iterator<Item = u32> {
        let entry = |index| (index != NONE).then_some(index);
        std::iter::successors(entry(self.bins[bin.row][bin.column]), move |index| {
            entry(self.range(*index).next)
        })
    }

    fn give_back_tail(&mut self, index: u32, length: u64) {
        if self.length(index) == length {
            return;
        }
        let range = *self.range(index);
        let tail = self.add_range(range.offset + length, index, range.after);
        if range.after != NONE {
            self.range_mut(range.after).before = tail;
        }
        self.range_mut(index).after = tail;
        self.link_free(tail);
    }

    fn merge_into(&mut self, kept: u32, absorbed: u32) {
        let after = self.range(absorbed).after;
        self.remove_range(absorbed);
        if after != NONE {
            self.range_mut(after).before = kept;
        }
        self.range_mut(kept).after = after;
    }

    fn is_free(&self, index: u32) -> bool {
        index != NONE && self.range(index).previous != NOT_FREE
    }

    fn link_free(&mut self, index: u32) {
        let length = self.length(index);
        let bin = Bin::of(length);
        let next = self.bins[bin.row][bin.column];
        if next != NONE {
            self.range_mut(next).previous = index;
        }
        let range = self.range_mut(index);
        range.previous = NONE;
        range.next = next;
        self.bins[bin.row][bin.column] = index;
        self.columns[bin.row] |= 1 << bin.column;
        self.rows |= 1 << bin.row;
        self.free += length;
    }

    fn unlink_free(&mut self, index: u32) {
        let length = self.length(index);
        let Range { previous, next, .. } = *self.range(index);
        self.free -= length;
        if next != NONE {
            self.range_mut(next).previous = previous;
        }
        if previous != NONE {
            self.range_mut(previous).next = next;
            return;
        }
        let bin = Bin::of(length);
        self.bins[bin.row][bin.column] = next;
        if next == NONE {
            self.columns[bin.row] &= !(1 << bin.column);
            if self.columns[bin.row] == 0 {
                self.rows &= !(1 << bin.row);
            }
        }
    }

    fn link_allocated(&mut self, index: u32) {
        if self.allocated_ranges >= self.buckets.len() {
            self.double_buckets();
        }
        let bucket = self.bucket_of(self.range(index).offset);
        let next = std::mem::replace(&mut self.buckets[bucket], index);
        let range = self.range_mut(index);
        range.previous = NOT_FREE;
        range.next = next;
        self.allocated_ranges += 1;
    }

    fn unlink_allocated(&mut self, extent: Extent) -> u32 {
        let bucket = self.bucket_of(extent.offset_bytes / GRANULE_BYTES);
        let mut previous = NONE;
        let mut index = self.buckets[bucket];
        while index != NONE && self.range(index).offset * GRANULE_BYTES != extent.offset_bytes {
            previous = index;
            index = self.range(index).next;
        }
        assert!(
            index != NONE && self.length(index) * GRANULE_BYTES == extent.length_bytes,
            "{extent:?} is freed but not allocated"
        );
        let next = self.range(index).next;
        if previous == NONE {
            self.buckets[bucket] = next;
        } else {
            self.range_mut(previous).next = next;
        }
        self.allocated_ranges -= 1;
        index
    }

    fn bucket_of(&self, offset: u64) -> usize {
        // Fibonacci hashing, because the low bits of offsets are often equal.
        let hash = offset.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (hash >> (u64::BITS - self.buckets.len().ilog2())) as usize
    }

    fn double_buckets(&mut self) {
        let doubled = vec![NONE; self.buckets.len() * 2];
        for first in std::mem::replace(&mut self.buckets, doubled) {
            let mut index = first;
            while index != NONE {
                let Range { offset, next, .. } = *self.range(index);
                let bucket = self.bucket_of(offset);
                self.range_mut(index).next = std::mem::replace(&mut self.buckets[bucket], index);
                index = next;
            }
        }
    }

    fn add_range(&mut self, offset: u64, before: u32, after: u32) -> u32 {
        let range = Range { offset, before, after, previous: NOT_FREE, next: NONE };
        if self.vacant != NONE {
            let index = self.vacant;
            self.vacant = self.range(index).next;
            *self.range_mut(index) = range;
            return index;
        }
        let index = u32::try_from(self.ranges.len()).ok().filter(|index| *index < NOT_FREE);
        self.ranges.push(range);
        index.expect(
            "an arena is not divided into 2^32 ranges: a store limits its objects to far fewer",
        )
    }

    fn remove_range(&mut self, index: u32) {
        let vacant = std::mem::replace(&mut self.vacant, index);
        let range = self.range_mut(index);
        range.previous = NOT_FREE;
        range.next = vacant;
    }

    fn length(&self, index: u32) -> u64 {
        let range = self.range(index);
        let end = if range.after == NONE { self.capacity } else { self.range(range.after).offset };
        end - range.offset
    }

    fn range(&self, index: u32) -> &Range {
        &self.ranges[index as usize]
    }

    fn range_mut(&mut self, index: u32) -> &mut Range {
        &mut self.ranges[index as usize]
    }
}

#[cfg(test)]
mod tests;
