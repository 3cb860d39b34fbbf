//! How long a receiver waits for a copy that is close, and for how long another gives its slot up for that.
//!
//! A link between two groups of nodes, such as the uplink of a rack, is shared by all of them. In a broadcast it is enough that
//! the object enters each group once. So a receiver takes it from a copy in its own group, also from one that is not complete.
//! If all of those serve others, it waits; but a receiver of another group that has only begun gives its slot up: it goes on at
//! the end of the chain that grows in between, and all of them are done as if they had come together.
//!
//! Nobody is excluded by that: a receiver that has waited for [`TransferTimes::max_wait`] for copies that are all busy takes what
//! there is, and one that has received for longer than [`TransferTimes::recall_until`] is left alone.

use std::time::Duration;

use super::broadcast::AGED_AFTER;

/// Smaller objects are over before much can be learned from the time they take.
const MIN_SAMPLE_BYTES: u64 = 1 << 20;
/// By which part of its difference a sample changes the mean.
const WEIGHT: u32 = 4;
/// What is believed before the first sample: 1 Gbit/s, so that a node waits for longer rather than in vain.
const FIRST_NANOS_PER_KIB: u64 = 8192;
/// A receiver waits for 1/16 of the time of a transfer: less than it takes longer when an uplink has another stream to carry.
const WAIT_DIVISOR: u32 = 16;
/// A transfer is recalled in its first half: its receiver, and those behind it, are done no later than half a transfer after the
/// time at which they would have been.
const RECALL_DIVISOR: u32 = 2;
const MIN_WAIT: Duration = Duration::from_millis(1);

/// How long transfers take, as far as it is known from those that have ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransferTimes {
    nanos_per_kib: u64,
}

impl Default for TransferTimes {
    fn default() -> Self {
        Self { nanos_per_kib: FIRST_NANOS_PER_KIB }
    }
}

impl TransferTimes {
    /// A transfer of so many bytes has taken so long.
    pub fn observe(&mut self, size_bytes: u64, took: Duration) {
        if size_bytes >= MIN_SAMPLE_BYTES {
            let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
            let sample = nanos / (size_bytes >> 10);
            let weight = u64::from(WEIGHT);
            self.nanos_per_kib = (self.nanos_per_kib / weight).saturating_mul(weight - 1) + sample / weight;
        }
    }

    fn transfer(&self, size_bytes: u64) -> Duration {
        Duration::from_nanos((size_bytes >> 10).saturating_mul(self.nanos_per_kib))
    }

    /// For how long a receiver waits for a copy that is close.
    pub fn max_wait(&self, size_bytes: u64) -> Duration {
        (self.transfer(size_bytes) / WAIT_DIVISOR).clamp(MIN_WAIT, AGED_AFTER)
    }

    /// Up to which age a transfer gives way.
    pub fn recall_until(&self, size_bytes: u64) -> Duration {
        (self.transfer(size_bytes) / RECALL_DIVISOR).max(AGED_AFTER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_follow_the_transfers_of_large_objects() {
        let mut times = TransferTimes::default();
        let size_bytes = 64 << 20;
        assert_eq!(times.transfer(size_bytes), Duration::from_nanos(65_536 * 8192));
        times.observe(4096, Duration::from_secs(10));
        assert_eq!(times, TransferTimes::default());
        (0..40).for_each(|_| times.observe(size_bytes, Duration::from_millis(2800)));
        let transfer = times.transfer(size_bytes).as_millis();
        assert!((2790..=2800).contains(&transfer), "{transfer}");
        assert_eq!(times.max_wait(size_bytes), AGED_AFTER);
        assert_eq!(times.max_wait(1 << 20), MIN_WAIT.max(times.transfer(1 << 20) / 16));
        assert_eq!(times.recall_until(4096), AGED_AFTER);
        assert!(times.recall_until(size_bytes) > Duration::from_secs(1));
        times.observe(1 << 20, Duration::MAX);
        times.observe(1 << 20, Duration::MAX);
        assert_eq!(times.max_wait(u64::MAX), AGED_AFTER);
    }
}
