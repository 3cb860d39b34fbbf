//! Random numbers that depend only on a seed.

use crate::placement::mix;

/// SplitMix64 (Steele, Lea, Flood, 2014).
#[derive(Debug, Clone)]
pub struct Random {
    state: u64,
}

impl Random {
    /// Begins the sequence of `seed`.
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Returns the next 64 bits.
    pub const fn next_number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// Returns a number below `limit`, which is above zero. The remainder's bias is negligible for
    /// limits far below 2^64.
    pub const fn below(&mut self, limit: u64) -> u64 {
        self.next_number() % limit
    }

    /// Returns an index below `limit`, which is above zero.
    pub const fn index(&mut self, limit: usize) -> usize {
        self.below(limit as u64) as usize
    }

    /// Shuffles `items` (Fisher-Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.index(last + 1));
        }
    }
}
