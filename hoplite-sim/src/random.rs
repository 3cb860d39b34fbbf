//! Random numbers of a simulation: everything follows from its seed.

use std::ops::Range;
use std::time::Duration;

/// SplitMix64 (Steele, Lea, Flood, 2014).
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    /// The sequence of `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub(crate) fn next_number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A number in `range`, which must not be empty.
    pub(crate) fn number(&mut self, range: Range<u64>) -> u64 {
        range.start + self.next_number() % (range.end - range.start)
    }

    /// An index below `length`, which must not be zero.
    pub(crate) fn index(&mut self, length: usize) -> usize {
        let length = u64::try_from(length).expect("usize has at most 64 bits");
        usize::try_from(self.next_number() % length).expect("it is less than a usize")
    }

    /// True with a probability of `percent` in a hundred.
    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.number(0..100) < percent
    }

    /// A duration of so many microseconds.
    pub(crate) fn micros(&mut self, range: Range<u64>) -> Duration {
        Duration::from_micros(self.number(range))
    }

    /// A duration of so many milliseconds, to the microsecond.
    pub(crate) fn millis(&mut self, range: Range<u64>) -> Duration {
        self.micros(range.start * 1000..range.end * 1000)
    }

    /// One of `items`, which must not be empty.
    pub(crate) fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.index(items.len())]
    }
}
