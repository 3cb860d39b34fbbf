//! How long a block to send next, given how fast the connection is.

use std::time::Duration;

use hoplite_core::block::BLOCK_BYTES;
use hoplite_shm::Delivery;
use tokio::time::Instant;

use super::frame::MAX_BLOCK_BYTES;

/// A relay forwards a block only after it has checked all of it, so each hop of a chain delays by one block. One
/// millisecond is about what a busy host's scheduler adds anyway.
const TARGET: Duration = Duration::from_millis(1);
/// Below this the system calls and headers of both sides begin to show. The first block is as long.
const MIN_BYTES: u64 = 16 << 10;
/// Over how long the rate is averaged, at least, and at most twice as long. A link may carry a burst at any speed, and one
/// block that is too long delays every hop behind it by as much, for the whole transfer: what is lost by waiting is not
/// caught up on links of the same rate.
const WINDOW: Duration = Duration::from_millis(10);
/// What was acknowledged of a transfer in less than this time counts as if it had taken so long.
const BEGINNING: Duration = Duration::from_millis(2);

/// The lengths of the blocks of one transfer.
///
/// They take about a millisecond at the rate that the kernel has seen lately, or at the mean of the last moments of this
/// transfer, whichever is less, and grow by no more than a factor of two.
#[derive(Debug)]
pub(super) struct BlockLength {
    last_bytes: u64,
    /// When how many bytes had been acknowledged: at the beginning of the window before the last, and of the last one. At
    /// first, both are the beginning of the transfer.
    marks: Option<[(Instant, u64); 2]>,
}

impl BlockLength {
    /// For a transfer that begins.
    pub(super) const fn new() -> Self {
        Self { last_bytes: MIN_BYTES / 2, marks: None }
    }

    /// How many bytes take about a millisecond: whole blocks of the object, no more than fit in a frame.
    pub(super) fn next(&mut self, now: Instant, delivery: Option<Delivery>) -> u64 {
        let acknowledged_bytes = delivery.map_or(0, |delivery| delivery.acknowledged_bytes);
        let mean = self.mean(now, acknowledged_bytes);
        let rate = delivery.map_or(0, |delivery| u128::from(delivery.bytes_per_second).min(mean));
        let wanted_bytes = rate * TARGET.as_nanos() / 1_000_000_000;
        let most_bytes = (2 * self.last_bytes).clamp(MIN_BYTES, u64::from(MAX_BLOCK_BYTES));
        let wanted_bytes = u64::try_from(wanted_bytes).unwrap_or(u64::MAX).min(most_bytes);
        self.last_bytes = (wanted_bytes / BLOCK_BYTES * BLOCK_BYTES).max(MIN_BYTES);
        self.last_bytes
    }

    /// The mean rate since the window before the last, in bytes per second.
    fn mean(&mut self, now: Instant, acknowledged_bytes: u64) -> u128 {
        let mark = (now, acknowledged_bytes);
        let marks = self.marks.get_or_insert([mark, mark]);
        let [(since, before_bytes), (last, _)] = *marks;
        if now.duration_since(last) >= WINDOW {
            *marks = [marks[1], mark];
        }
        let elapsed = now.duration_since(since).max(BEGINNING).as_nanos();
        let bytes = u128::from(acknowledged_bytes.saturating_sub(before_bytes));
        bytes * 1_000_000_000 / elapsed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lengths of the blocks of a transfer on a link of a rate, of which the kernel says another one; in KiB.
    fn lengths(rate: u64, kernels: u64, count: usize) -> Vec<u64> {
        let (mut lengths, mut now, mut acknowledged_bytes) = (BlockLength::new(), Instant::now(), 5000);
        let send = |_| {
            let delivery = Delivery { acknowledged_bytes, bytes_per_second: kernels };
            let length = lengths.next(now, Some(delivery));
            acknowledged_bytes += length;
            now += Duration::from_secs_f64(length as f64 / rate as f64);
            length >> 10
        };
        (0..count).map(send).collect()
    }

    #[test]
    fn blocks_take_about_a_millisecond() {
        let settled = |rate| *lengths(rate, rate, 100).last().unwrap();
        assert_eq!(settled(1_000_000), 16);
        assert_eq!(settled(100_000_000), 96);
        assert_eq!(settled(5_000_000_000), 1024);
        let mut unknown = BlockLength::new();
        assert!((0..20).all(|_| unknown.next(Instant::now(), None) == MIN_BYTES));
    }

    #[test]
    fn blocks_grow_step_by_step_and_shrink_at_once() {
        let grown = lengths(5_000_000_000, u64::MAX, 40);
        assert!(grown.is_sorted(), "{grown:?}");
        assert_eq!((grown[0], grown[39]), (16, 1024));
        let fast = 5_000_000_000;
        let (mut lengths, now) = (BlockLength::new(), Instant::now());
        for millis in 0..20 {
            let delivery = Delivery { acknowledged_bytes: millis * fast / 1000, bytes_per_second: fast };
            lengths.next(now + Duration::from_millis(millis), Some(delivery));
        }
        let slow = Delivery { acknowledged_bytes: fast / 50, bytes_per_second: 100_000_000 };
        assert_eq!(lengths.next(now + Duration::from_millis(20), Some(slow)), 96 << 10);
    }

    #[test]
    fn a_burst_does_not_count() {
        assert!(lengths(25_000_000, 1_000_000_000, 50).iter().all(|length| *length <= 24));
    }

    #[test]
    fn what_was_long_ago_does_not_count() {
        let (mut lengths, now) = (BlockLength::new(), Instant::now());
        let mut at = |millis, acknowledged_bytes| {
            let delivery = Delivery { acknowledged_bytes, bytes_per_second: u64::MAX };
            lengths.next(now + Duration::from_millis(millis), Some(delivery))
        };
        // A second for the first block, and then a hundred bytes a microsecond.
        at(0, 0);
        let lately: Vec<u64> = (0..40).map(|millis| at(1000 + millis, 20_000 + millis * 100_000)).collect();
        assert_eq!(lately[0], MIN_BYTES);
        assert_eq!(*lately.last().unwrap(), 96 << 10);
    }
}
