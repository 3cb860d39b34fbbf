//! How long a receiver waits for a copy that is close, and for how long another gives its slot up for that.
//!
//! A link between two groups of nodes, such as the uplink of a rack, is shared by all of them. In a broadcast it is enough that
//! the object enters each group once. So a receiver takes it from a copy in its own group, also from one that is not complete.
//! If all of those serve others, it waits; but a receiver of another group that has only begun gives its slot up: it goes on at
//! the end of the chain that grows in between, and all of them are done as if they had come together.
//!
//! Nobody is excluded by that: who waits for longer than [`Pace::patience`] for copies that are all busy takes what there is, and who has received for longer
//! than [`Pace::recall_until`] is left alone.

use std::time::Duration;

use super::broadcast::AGED_AFTER;

/// Smaller objects are over before much can be learned from the time they take.
const MIN_SAMPLE_BYTES: u64 = 1 << 20;
/// By which part of its difference a sample changes the mean.
const WEIGHT: u32 = 4;
/// What is believed before the first sample: 1 Gbit/s, so that a node waits for longer rather than in vain.
const FIRST_NANOS_PER_KIB: u64 = 8192;
/// A receiver waits for 1/16 of the time of a transfer: less than it takes longer when an uplink has another stream to carry.
const PATIENCE: u32 = 16;
/// A transfer is recalled in its first half: its receiver, and those behind it, are done no later than half a transfer after the
/// time at which they would have been.
const RECALL: u32 = 2;
const MIN_PATIENCE: Duration = Duration::from_millis(1);

/// How long transfers take, as far as it is known from those that have ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pace {
    nanos_per_kib: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self { nanos_per_kib: FIRST_NANOS_PER_KIB }
    }
}

impl Pace {
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
    pub fn patience(&self, size_bytes: u64) -> Duration {
        (self.transfer(size_bytes) / PATIENCE).clamp(MIN_PATIENCE, AGED_AFTER)
    }

    /// Up to which age a transfer gives way.
    pub fn recall_until(&self, size_bytes: u64) -> Duration {
        (self.transfer(size_bytes) / RECALL).max(AGED_AFTER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_follows_the_transfers_of_large_objects() {
        let mut pace = Pace::default();
        let size_bytes = 64 << 20;
        assert_eq!(pace.transfer(size_bytes), Duration::from_nanos(65_536 * 8192));
        pace.observe(4096, Duration::from_secs(10));
        assert_eq!(pace, Pace::default());
        (0..40).for_each(|_| pace.observe(size_bytes, Duration::from_millis(2800)));
        let transfer = pace.transfer(size_bytes).as_millis();
        assert!((2790..=2800).contains(&transfer), "{transfer}");
        assert_eq!(pace.patience(size_bytes), AGED_AFTER);
        assert_eq!(pace.patience(1 << 20), MIN_PATIENCE.max(pace.transfer(1 << 20) / 16));
        assert_eq!(pace.recall_until(4096), AGED_AFTER);
        assert!(pace.recall_until(size_bytes) > Duration::from_secs(1));
        pace.observe(1 << 20, Duration::MAX);
        pace.observe(1 << 20, Duration::MAX);
        assert_eq!(pace.patience(u64::MAX), AGED_AFTER);
    }
}
