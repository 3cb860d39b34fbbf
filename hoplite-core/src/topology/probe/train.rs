//! Trains (bursts of bytes) measure a link's rate.

use std::time::Duration;

use super::survey::{Finding, MAX_TRAIN_BYTES};
use crate::time::Time;

/// Each further train has this many times the bytes.
const GROWTH: u64 = 8;
/// The first quarter of a train's bytes is not timed, because TCP opens its window.
const SKIPPED: u64 = 4;

/// Trains that a node requests from its peer, each longer, until one takes long enough.
#[derive(Debug, Clone)]
pub struct Trains {
    bytes: u64,
    at_least: Duration,
    all_bytes: u64,
}

impl Trains {
    /// Begins with a train of `first_bytes`. The last one takes at least `at_least`, or has
    /// [`MAX_TRAIN_BYTES`].
    pub const fn new(first_bytes: u64, at_least: Duration) -> Self {
        Self { bytes: first_bytes, at_least, all_bytes: 0 }
    }

    /// Next train's size in bytes.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds a train: the time since its request, and the picoseconds per byte of its last three
    /// quarters. Returns the measured rate after the last train.
    pub fn arrived(&mut self, took: Duration, ps_per_byte: u128) -> Option<Finding> {
        self.all_bytes += self.bytes;
        if took >= self.at_least || self.bytes >= MAX_TRAIN_BYTES {
            // Zero would mean unmeasured.
            let ps_per_byte = u32::try_from(ps_per_byte.max(1)).unwrap_or(u32::MAX);
            return Some(Finding::Train { ps_per_byte, bytes: self.all_bytes });
        }
        self.bytes = (self.bytes * GROWTH).min(MAX_TRAIN_BYTES);
        None
    }
}

/// Times a train as it arrives.
#[derive(Debug, Clone)]
pub struct ArrivingTrain {
    bytes: u64,
    arrived: u64,
    start: Option<(Time, u64)>,
    end: Time,
}

impl ArrivingTrain {
    /// Begins to time a train of `bytes` bytes.
    pub const fn new(bytes: u64) -> Self {
        Self { bytes, arrived: 0, start: None, end: Time::ZERO }
    }

    /// Number of arrived bytes.
    pub const fn arrived_bytes(&self) -> u64 {
        self.arrived
    }

    /// Number of missing bytes.
    pub const fn missing_bytes(&self) -> u64 {
        self.bytes - self.arrived
    }

    /// Adds bytes that arrived at `now`, at most the missing ones.
    pub fn arrive(&mut self, now: Time, bytes: u64) {
        self.arrived += bytes.min(self.missing_bytes());
        self.end = now;
        if self.start.is_none() && self.arrived >= self.bytes / SKIPPED {
            self.start = Some((now, self.arrived));
        }
    }

    /// Picoseconds per byte after the first quarter, once the train is complete.
    pub fn ps_per_byte(&self) -> Option<u128> {
        let (start, before) = self.start.filter(|_| self.missing_bytes() == 0)?;
        let measured = u128::from(self.arrived - before).max(1);
        Some(self.end.since(start).as_nanos() * 1000 / measured)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn trains_grow_until_one_takes_long_enough() {
        let mut trains = Trains::new(1 << 20, Duration::from_millis(10));
        assert_eq!(trains.arrived(Duration::from_millis(9), 100), None);
        assert_eq!(trains.bytes(), 8 << 20);
        let found = trains.arrived(Duration::from_millis(10), 200);
        assert_eq!(found, Some(Finding::Train { ps_per_byte: 200, bytes: 9 << 20 }));
    }

    #[test]
    fn the_longest_train_is_the_last() {
        let mut trains = Trains::new(MAX_TRAIN_BYTES / 2, Duration::from_secs(1));
        assert_eq!(trains.arrived(Duration::ZERO, 0), None);
        assert_eq!(trains.bytes(), MAX_TRAIN_BYTES);
        let found = trains.arrived(Duration::ZERO, 0);
        assert_eq!(found, Some(Finding::Train { ps_per_byte: 1, bytes: MAX_TRAIN_BYTES / 2 * 3 }));
    }

    #[test]
    fn the_first_quarter_does_not_count() {
        let mut train = ArrivingTrain::new(4000);
        train.arrive(at(100), 500);
        train.arrive(at(200), 500);
        train.arrive(at(203), 2999);
        assert_eq!((train.ps_per_byte(), train.missing_bytes()), (None, 1));
        train.arrive(at(206), 1);
        assert_eq!(train.ps_per_byte(), Some(2_000_000), "3000 bytes in 6 ms");
    }
}
