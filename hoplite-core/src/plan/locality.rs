//! Limits on waiting for a close copy, and on taking a slot back.
//!
//! All nodes of a group share its uplink, so an object should enter each group once. Therefore a
//! receiver pulls from its own group, even from an incomplete copy.
//!
//! If all copies of the group are busy, the receiver waits, and a remote receiver that has just
//! begun gives up its slot. The remote receiver continues at the end of the new chain.
//!
//! No receiver starves: after [`TransferTimes::max_wait`] it uses any copy, and after
//! [`TransferTimes::recall_until`] it keeps its slot.

use std::time::Duration;

use super::broadcast::AGED_AFTER;

/// Transfers of fewer bytes give no time sample.
const MIN_SAMPLE_BYTES: u64 = 1 << 20;
const WEIGHT: u32 = 4;
/// Time per KiB before the first transfer ends: 1 Gbit/s. If this rate is too low, nodes wait
/// longer, but seldom in vain.
const FIRST_NANOS_PER_KIB: u64 = 8192;
/// A receiver waits for a close copy for at most 1/16 of a transfer's time, less than one more
/// stream on an uplink would cost.
const WAIT_DIVISOR: u32 = 16;
/// The shard takes slots back only in the first half of a transfer.
const RECALL_DIVISOR: u32 = 2;
const MIN_WAIT: Duration = Duration::from_millis(1);

/// Estimates the time of a transfer from finished ones.
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
    /// Adds the time that a transfer took.
    pub fn observe(&mut self, size_bytes: u64, took: Duration) {
        if size_bytes >= MIN_SAMPLE_BYTES {
            let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
            let sample = nanos / (size_bytes >> 10);
            let weight = u64::from(WEIGHT);
            self.nanos_per_kib =
                (self.nanos_per_kib / weight).saturating_mul(weight - 1) + sample / weight;
        }
    }

    fn transfer(&self, size_bytes: u64) -> Duration {
        Duration::from_nanos((size_bytes >> 10).saturating_mul(self.nanos_per_kib))
    }

    /// Returns the longest wait for a close copy of an object of this size.
    pub fn max_wait(&self, size_bytes: u64) -> Duration {
        (self.transfer(size_bytes) / WAIT_DIVISOR).clamp(MIN_WAIT, AGED_AFTER)
    }

    /// Returns the age up to which a transfer of this size may lose its slot to a closer receiver.
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
