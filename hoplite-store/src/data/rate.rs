//! How long a block to send next, given how fast the last ones went.

use std::time::Duration;

use hoplite_core::block::BLOCK_BYTES;

use super::frame::MAX_BLOCK_BYTES;

/// A relay forwards a block only after it has checked all of it, so each hop of a chain delays by one block. One
/// millisecond is about what a busy host's scheduler adds anyway.
const TARGET: Duration = Duration::from_millis(1);
/// Below this the system calls and headers of both sides begin to show.
const MIN_BYTES: u64 = 16 << 10;
/// Before anything is measured.
const FIRST_BYTES: u64 = 64 << 10;
/// Of the past, this much counts after one more block: a mean over about eight blocks.
const MEMORY: f64 = 7.0 / 8.0;

/// An average of the rate at which a socket accepts bytes, weighted by time: blocks that had to wait count in full,
/// those that only filled the socket's buffer hardly count.
#[derive(Debug)]
pub(super) struct Rate {
    bytes: f64,
    seconds: f64,
}

impl Rate {
    /// Nothing measured yet.
    pub(super) fn new() -> Self {
        // One block as if it had taken as long as it should.
        Self { bytes: to_float(FIRST_BYTES), seconds: TARGET.as_secs_f64() }
    }

    /// A block of `bytes` was accepted within `elapsed`.
    pub(super) fn observe(&mut self, bytes: u64, elapsed: Duration) {
        self.bytes = self.bytes * MEMORY + to_float(bytes);
        self.seconds = self.seconds * MEMORY + elapsed.as_secs_f64();
    }

    /// How many bytes take about a millisecond: whole blocks of the object, no more than fit in a frame.
    pub(super) fn block_bytes(&self) -> u64 {
        let wanted = self.bytes / self.seconds.max(1e-9) * TARGET.as_secs_f64();
        let limit = u64::from(MAX_BLOCK_BYTES);
        if wanted >= to_float(limit) {
            return limit;
        }
        // Positive and below the limit, so the cast only drops the fraction.
        (wanted as u64 / BLOCK_BYTES * BLOCK_BYTES).max(MIN_BYTES)
    }
}

const fn to_float(bytes: u64) -> f64 {
    bytes as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_take_about_a_millisecond() {
        let settled = |bytes_per_second: f64| {
            let mut rate = Rate::new();
            for _ in 0..200 {
                let bytes = rate.block_bytes();
                rate.observe(bytes, Duration::from_secs_f64(bytes as f64 / bytes_per_second));
            }
            rate.block_bytes()
        };
        assert_eq!(Rate::new().block_bytes(), 64 << 10);
        assert_eq!(settled(1e6), MIN_BYTES);
        assert_eq!(settled(100e6), 100_000 / BLOCK_BYTES * BLOCK_BYTES);
        assert_eq!(settled(5e9), 1 << 20);
    }

    #[test]
    fn a_block_that_only_filled_the_socket_buffer_hardly_counts() {
        let mut rate = Rate::new();
        for _ in 0..8 {
            rate.observe(64 << 10, Duration::from_millis(5));
        }
        let before = rate.block_bytes();
        rate.observe(64 << 10, Duration::from_micros(10));
        assert!(rate.block_bytes() <= before * 5 / 4, "{} after {before}", rate.block_bytes());
    }

    #[test]
    fn no_observation_breaks_the_bounds() {
        let mut rate = Rate::new();
        rate.observe(0, Duration::ZERO);
        rate.observe(u64::MAX, Duration::ZERO);
        assert_eq!(rate.block_bytes(), u64::from(MAX_BLOCK_BYTES));
        rate.observe(0, Duration::MAX);
        assert_eq!(rate.block_bytes(), MIN_BYTES);
    }
}
