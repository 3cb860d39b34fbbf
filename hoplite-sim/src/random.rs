use std::ops::Range;
use std::time::Duration;

use hoplite_core::topology::random;

#[derive(Debug, Clone)]
pub(crate) struct Random(random::Random);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(random::Random::new(seed))
    }

    pub(crate) const fn next_number(&mut self) -> u64 {
        self.0.next_number()
    }

    pub(crate) fn number(&mut self, range: Range<u64>) -> u64 {
        range.start + self.0.below(range.end - range.start)
    }

    pub(crate) fn index(&mut self, length: usize) -> usize {
        self.0.index(length)
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.number(0..100) < percent
    }

    pub(crate) fn micros(&mut self, range: Range<u64>) -> Duration {
        Duration::from_micros(self.number(range))
    }

    pub(crate) fn millis(&mut self, range: Range<u64>) -> Duration {
        self.micros(range.start * 1000..range.end * 1000)
    }

    pub(crate) fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.index(items.len())]
    }
}
