//! Block sizes of a transfer.
//!
//! A receiver that forwards bytes sends only verified blocks, so each hop delays bytes by one
//! block. A sender therefore sizes blocks by the connection's measured rate.

use std::time::Duration;

use crate::block::BLOCK_BYTES;
use crate::link::Delivery;
use crate::time::Time;

/// Longest time that a block may take on the link: about the delay by a busy host's scheduler.
pub const BLOCK_TIME: Duration = Duration::from_millis(1);
/// Shortest time that a block of more than [`FAST_BLOCK_BYTES`] may take. A block costs both
/// stores 36 us of processor time (docs/dev/log.md).
const FAST_BLOCK_TIME: Duration = Duration::from_micros(250);
/// Smallest block on links that carry more bytes than this in [`BLOCK_TIME`].
const FAST_BLOCK_BYTES: u64 = 256 << 10;
/// Smallest block, with which a transfer begins. Smaller ones waste time on system calls and
/// headers.
pub const MIN_BLOCK_BYTES: u64 = 16 << 10;
/// Largest block. Larger blocks save nothing measurable.
pub const MAX_BLOCK_BYTES: u64 = 1 << 20;

/// Length of a window. The measured rate is the mean over the last one to two windows.
///
/// Over a shorter window, a burst may show any rate. A block that is then too long delays all hops
/// behind it for good, because links of equal rate never catch up.
const WINDOW: Duration = Duration::from_millis(10);
/// Shortest time over which a rate is computed: the first bytes show too high a rate.
const MIN_AGE: Duration = Duration::from_millis(2);

/// Returns the size in bytes of a block that takes [`BLOCK_TIME`] at this rate, or less on links
/// above 2 Gbit/s.
pub fn block_bytes(bytes_per_second: u64) -> u64 {
    let bytes_in = |time: Duration| {
        let bytes = u128::from(bytes_per_second) * time.as_nanos() / 1_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    };
    let bytes = bytes_in(BLOCK_TIME).min(FAST_BLOCK_BYTES).max(bytes_in(FAST_BLOCK_TIME));
    bytes.clamp(MIN_BLOCK_BYTES, MAX_BLOCK_BYTES)
}

/// Returns the largest block of a transfer of `size_bytes` at this rate. Blocks double in size, so
/// a short transfer ends before they reach the full size.
pub fn longest_block_bytes(bytes_per_second: u64, size_bytes: u64) -> u64 {
    // While sizes double, the transfer has this many blocks.
    let doubled = (size_bytes / MIN_BLOCK_BYTES + 1).ilog2();
    let doubled_bytes = MIN_BLOCK_BYTES * ((1 << doubled) - 1);
    let longest_bytes =
        (doubled_bytes / 2 + MIN_BLOCK_BYTES / 2).max(size_bytes - doubled_bytes).min(size_bytes);
    longest_bytes.min(block_bytes(bytes_per_second))
}

/// Block sizes of one transfer: about [`BLOCK_TIME`] at the kernel's recent rate or this
/// transfer's mean rate, the lower of both. Sizes at most double.
#[derive(Debug)]
pub struct BlockSizes {
    last_bytes: u64,
    /// Times and acknowledged bytes at the starts of the last two windows.
    marks: Option<[(Time, u64); 2]>,
}

impl Default for BlockSizes {
    fn default() -> Self {
        Self { last_bytes: MIN_BLOCK_BYTES / 2, marks: None }
    }
}

impl BlockSizes {
    /// Returns the next block's size, a multiple of [`BLOCK_BYTES`]. `delivery` is the kernel's
    /// measurement of the connection; `None` before any acknowledgement.
    pub fn next(&mut self, now: Time, delivery: Option<Delivery>) -> u64 {
        let acknowledged_bytes = delivery.map_or(0, |delivery| delivery.acknowledged_bytes);
        let mean = self.mean(now, acknowledged_bytes);
        let rate = delivery.map_or(0, |delivery| delivery.bytes_per_second.min(mean));
        let bytes = block_bytes(rate).min((2 * self.last_bytes).max(MIN_BLOCK_BYTES));
        self.last_bytes = bytes / BLOCK_BYTES * BLOCK_BYTES;
        self.last_bytes
    }

    fn mean(&mut self, now: Time, acknowledged_bytes: u64) -> u64 {
        let mark = (now, acknowledged_bytes);
        let marks = self.marks.get_or_insert([mark, mark]);
        let [(since, before_bytes), (last, _)] = *marks;
        if now.since(last) >= WINDOW {
            *marks = [marks[1], mark];
        }
        let elapsed = now.since(since).max(MIN_AGE).as_nanos();
        let bytes = u128::from(acknowledged_bytes.saturating_sub(before_bytes));
        u64::try_from(bytes * 1_000_000_000 / elapsed).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(rate: u64, kernels: u64, count: usize) -> Vec<u64> {
        let (mut sizes, mut now, mut acknowledged_bytes) =
            (BlockSizes::default(), Time::ZERO, 5000);
        let send = |_| {
            let delivery =
                Delivery { acknowledged_bytes, bytes_per_second: kernels, ..Delivery::default() };
            let bytes = sizes.next(now, Some(delivery));
            acknowledged_bytes += bytes;
            now = now + Duration::from_secs_f64(bytes as f64 / rate as f64);
            bytes >> 10
        };
        (0..count).map(send).collect()
    }

    const fn at(millis: u64) -> Time {
        Time::from_micros(millis * 1000)
    }

    #[test]
    fn blocks_take_a_millisecond_or_less_on_fast_links() {
        let settled = |rate| *sizes(rate, rate, 100).last().unwrap();
        for rate in [1_000_000, 100_000_000, 5_000_000_000] {
            assert_eq!(settled(rate), block_bytes(rate) / 4096 * 4);
        }
        assert_eq!([1_000_000, 100_000_000, 5_000_000_000].map(settled), [16, 96, 1024]);
        assert_eq!([250_000_000, 1_000_000_000, 1_250_000_000].map(settled), [244, 256, 304]);
        let mut unknown = BlockSizes::default();
        assert!((0..20).all(|_| unknown.next(Time::ZERO, None) == MIN_BLOCK_BYTES));
    }

    #[test]
    fn the_predicted_longest_block_is_the_longest_that_is_sent() {
        for rate in [0, 25_000_000, 125_000_000, u64::MAX] {
            for size_bytes in
                [0, 1, 16 << 10, 32 << 10, 47 << 10, 48 << 10, 100 << 10, 1 << 20, 3 << 20]
            {
                let (mut sizes, mut left_bytes, mut longest_bytes) =
                    (BlockSizes::default(), size_bytes, 0);
                while left_bytes > 0 {
                    let delivery = Delivery {
                        acknowledged_bytes: u64::MAX,
                        bytes_per_second: rate,
                        ..Delivery::default()
                    };
                    sizes.marks = Some([(Time::ZERO, 0); 2]);
                    let block_bytes = sizes.next(Time::ZERO, Some(delivery)).min(left_bytes);
                    longest_bytes = longest_bytes.max(block_bytes);
                    left_bytes -= block_bytes;
                }
                let predicted = longest_block_bytes(rate, size_bytes);
                assert_eq!(
                    predicted / BLOCK_BYTES,
                    longest_bytes / BLOCK_BYTES,
                    "{size_bytes} bytes at {rate}"
                );
            }
        }
        assert_eq!(longest_block_bytes(u64::MAX, u64::MAX), MAX_BLOCK_BYTES);
    }

    #[test]
    fn blocks_grow_step_by_step_and_shrink_at_once() {
        let grown = sizes(5_000_000_000, u64::MAX, 40);
        assert!(grown.is_sorted(), "{grown:?}");
        assert_eq!((grown[0], grown[39]), (16, 1024));
        let fast = 5_000_000_000;
        let mut sizes = BlockSizes::default();
        for millis in 0..20 {
            let delivery = Delivery {
                acknowledged_bytes: millis * fast / 1000,
                bytes_per_second: fast,
                ..Delivery::default()
            };
            sizes.next(at(millis), Some(delivery));
        }
        let slow = Delivery {
            acknowledged_bytes: fast / 50,
            bytes_per_second: 100_000_000,
            ..Delivery::default()
        };
        assert_eq!(sizes.next(at(20), Some(slow)), 96 << 10);
    }

    #[test]
    fn a_burst_does_not_count() {
        assert!(sizes(25_000_000, 1_000_000_000, 50).iter().all(|bytes| *bytes <= 24));
    }

    #[test]
    fn old_samples_do_not_count() {
        let mut sizes = BlockSizes::default();
        let mut next = |millis, acknowledged_bytes| {
            let delivery =
                Delivery { acknowledged_bytes, bytes_per_second: u64::MAX, ..Delivery::default() };
            sizes.next(at(millis), Some(delivery))
        };
        next(0, 0);
        let lately: Vec<u64> =
            (0..40).map(|millis| next(1000 + millis, 20_000 + millis * 100_000)).collect();
        assert_eq!(lately[0], MIN_BLOCK_BYTES);
        assert_eq!(*lately.last().unwrap(), 96 << 10);
    }
}
