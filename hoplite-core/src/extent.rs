//! Space in the arena: extents, and the allocator of extents.
//!
//! The allocator is pure bookkeeping and never touches the arena's memory. Allocation and eviction
//! can therefore be decided, tested and simulated without an arena.

/// A range of bytes of the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// Offset of the first byte from the start of the arena.
    pub offset_bytes: u64,
    /// Length in bytes.
    pub length_bytes: u64,
}

/// Size of the header in front of each object's bytes, in which the writer shares its progress: a
/// cache line.
pub const HEADER_BYTES: u64 = 64;

/// The unit of allocation, and the alignment of every extent: a cache line, so that two headers
/// never share one.
pub const GRANULE_BYTES: u64 = 64;

/// Number of bins for each power of two. With 32, the ranges of a bin differ by at most 3% in
/// length. This bounds the excess length of the range that an allocation splits.
const COLUMNS: usize = 1 << COLUMNS_LOG2;
const COLUMNS_LOG2: u32 = 5;

/// One row for lengths below `COLUMNS` granules, and one for each power of two from there to the
/// end of `u64`.
const ROWS: usize = (u64::BITS - COLUMNS_LOG2) as usize + 1;

/// Marks the end of a linked list.
const NONE: u32 = u32::MAX;

/// Allocates extents of an arena, in constant time.
///
/// This is a two-level segregated fit (TLSF; Masmano et al., ECRTS 2004). Lists hold the free
/// ranges by length. Two levels of bitmaps mark the lists that are not empty. A freed range is
/// merged with free neighbours at once. The boundary tags live in a slab outside of the arena,
/// where clients cannot damage them.
///
/// `allocate` first looks for a bin in which every range is long enough, with two bit scans. If
/// there is none, it searches the one bin whose ranges may be long enough. Thus an allocation fails
/// only if no free range is long enough.
#[derive(Debug, Clone)]
pub struct Allocator {
    capacity: u64,
    free: u64,
    /// Free and allocated ranges, and vacant entries. Together the ranges cover the arena without
    /// gaps.
    ranges: Vec<Range>,
    /// The first vacant entry of `ranges`. Vacant entries are linked through `next`.
    vacant: u32,
    /// Bit r is set if some bin of row r is not empty.
    rows: u64,
    /// Bit c of entry r is set if the bin in row r, column c is not empty.
    columns: [u32; ROWS],
    /// The first range of each bin, linked through `previous` and `next`.
    bins: Vec<[u32; COLUMNS]>,
    /// Hash table that finds an allocated range by its offset. Chains are linked through `next`.
    /// The length is a power of two.
    buckets: Vec<u32>,
    allocated_ranges: usize,
}

/// A range of granules, or a vacant entry of the slab.
#[derive(Debug, Clone, Copy)]
struct Range {
    offset: u64,
    length: u64,
    /// The neighbour that ends at the start of this range.
    before: u32,
    /// The neighbour that starts at the end of this range.
    after: u32,
    /// Links of the list that `state` implies: a bin, a bucket (only `next`), or the vacant entries
    /// (only `next`).
    previous: u32,
    next: u32,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    Allocated,
    Vacant,
}

/// Row and column of a bin. Bins are ordered by the lengths of their ranges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Bin {
    row: usize,
    column: usize,
}

impl Bin {
    /// Returns the bin of ranges of `length` granules.
    fn of(length: u64) -> Self {
        if length < COLUMNS as u64 {
            return Self { row: 0, column: length as usize };
        }
        let log2 = length.ilog2();
        let column = (length >> (log2 - COLUMNS_LOG2)) as usize - COLUMNS;
        Self { row: (log2 - COLUMNS_LOG2) as usize + 1, column }
    }

    /// Returns the first bin whose ranges all have at least `length` granules.
    fn at_least(length: u64) -> Self {
        if length < COLUMNS as u64 {
            return Self::of(length);
        }
        let width = 1 << (length.ilog2() - COLUMNS_LOG2);
        Self::of(length + (width - 1))
    }
}

impl Allocator {
    /// Creates an allocator whose `capacity_bytes`, rounded down to whole granules, are free.
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
            let all = allocator.add_range(0, capacity, NONE, NONE);
            allocator.link_free(all);
        }
        allocator
    }

    /// Allocates an extent of `length_bytes`, rounded up to whole granules and to at least one.
    ///
    /// Returns `None` only if no free range is long enough. Takes constant time, except for the
    /// search of one bin (see [`Allocator`]). That search is linear in the number of free ranges of
    /// about this length.
    pub fn allocate(&mut self, length_bytes: u64) -> Option<Extent> {
        let length = length_bytes.div_ceil(GRANULE_BYTES).max(1);
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

    /// Frees `extent`. Takes constant time.
    ///
    /// # Panics
    ///
    /// Panics unless `extent` is exactly an allocated extent that [`allocate`](Self::allocate)
    /// returned. The caller's bookkeeping is then wrong, and going on would give the bytes of one
    /// object to another.
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

    /// Returns the size of the arena, in bytes of whole granules.
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity * GRANULE_BYTES
    }

    /// Returns the total size of all free ranges.
    pub fn free_bytes(&self) -> u64 {
        self.free * GRANULE_BYTES
    }

    /// Returns the length of the longest extent that could be allocated now. Linear in the number
    /// of free ranges of about that length.
    pub fn largest_free_bytes(&self) -> u64 {
        let Some(row) = self.rows.checked_ilog2() else { return 0 };
        let row = row as usize;
        let column = self.columns[row].ilog2() as usize;
        self.list(Bin { row, column }).map(|index| self.range(index).length).max().unwrap_or(0)
            * GRANULE_BYTES
    }

    /// Returns the first bin that is not empty, from `bin` on.
    fn first_bin_from(&self, bin: Bin) -> Option<Bin> {
        let columns = self.columns[bin.row] & (u32::MAX << bin.column);
        if columns != 0 {
            return Some(Bin { row: bin.row, column: columns.trailing_zeros() as usize });
        }
        // There are fewer than 64 rows, so the shift is in bounds.
        let rows = self.rows & (u64::MAX << (bin.row + 1));
        if rows == 0 {
            return None;
        }
        let row = rows.trailing_zeros() as usize;
        Some(Bin { row, column: self.columns[row].trailing_zeros() as usize })
    }

    fn first_fit_in(&self, bin: Bin, length: u64) -> Option<u32> {
        self.list(bin).find(|index| self.range(*index).length >= length)
    }

    fn list(&self, bin: Bin) -> impl Iterator<Item = u32> {
        let entry = |index| (index != NONE).then_some(index);
        std::iter::successors(entry(self.bins[bin.row][bin.column]), move |index| {
            entry(self.range(*index).next)
        })
    }

    /// Cuts the range down to `length`, and frees the rest. The range must be in no list.
    fn give_back_tail(&mut self, index: u32, length: u64) {
        let range = *self.range(index);
        if range.length == length {
            return;
        }
        // The neighbour after the range is not free, because free neighbours are merged. The tail
        // has nothing to merge with.
        let tail = self.add_range(range.offset + length, range.length - length, index, range.after);
        if range.after != NONE {
            self.range_mut(range.after).before = tail;
        }
        let range = self.range_mut(index);
        range.length = length;
        range.after = tail;
        self.link_free(tail);
    }

    /// Extends the range `kept` by `absorbed`, which follows it. Neither may be in a list.
    fn merge_into(&mut self, kept: u32, absorbed: u32) {
        let Range { length, after, .. } = *self.range(absorbed);
        self.remove_range(absorbed);
        if after != NONE {
            self.range_mut(after).before = kept;
        }
        let kept = self.range_mut(kept);
        kept.length += length;
        kept.after = after;
    }

    fn is_free(&self, index: u32) -> bool {
        index != NONE && self.range(index).state == State::Free
    }

    fn link_free(&mut self, index: u32) {
        let length = self.range(index).length;
        let bin = Bin::of(length);
        let next = self.bins[bin.row][bin.column];
        if next != NONE {
            self.range_mut(next).previous = index;
        }
        let range = self.range_mut(index);
        range.state = State::Free;
        range.previous = NONE;
        range.next = next;
        self.bins[bin.row][bin.column] = index;
        self.columns[bin.row] |= 1 << bin.column;
        self.rows |= 1 << bin.row;
        self.free += length;
    }

    fn unlink_free(&mut self, index: u32) {
        let Range { length, previous, next, .. } = *self.range(index);
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
        range.state = State::Allocated;
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
            index != NONE && self.range(index).length * GRANULE_BYTES == extent.length_bytes,
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
        // Fibonacci hashing: the high bits of the product with 2^64 divided by the golden ratio.
        // Offsets are often multiples of one power of two, which the low bits cannot distinguish.
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

    /// Adds a range to the slab. The caller links it into a list and to its neighbours.
    fn add_range(&mut self, offset: u64, length: u64, before: u32, after: u32) -> u32 {
        let range =
            Range { offset, length, before, after, previous: NONE, next: NONE, state: State::Allocated };
        if self.vacant != NONE {
            let index = self.vacant;
            self.vacant = self.range(index).next;
            *self.range_mut(index) = range;
            return index;
        }
        let index = u32::try_from(self.ranges.len()).ok().filter(|index| *index != NONE);
        self.ranges.push(range);
        index.expect("an arena is not divided into 2^32 ranges: a store limits its objects to far fewer")
    }

    fn remove_range(&mut self, index: u32) {
        let vacant = std::mem::replace(&mut self.vacant, index);
        let range = self.range_mut(index);
        range.state = State::Vacant;
        range.next = vacant;
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
