//! How long a block to send next, given how fast the connection is.

use std::time::Duration;

use hoplite_core::block::BLOCK_BYTES;

use super::frame::MAX_BLOCK_BYTES;

/// A relay forwards a block only after it has checked all of it, so each hop of a chain delays by one block. One
/// millisecond is about what a busy host's scheduler adds anyway.
const TARGET: Duration = Duration::from_millis(1);
/// Below this the system calls and headers of both sides begin to show. The first block is as long.
const MIN_BYTES: u64 = 16 << 10;

/// The lengths of the blocks of one transfer.
///
/// They grow by no more than a factor of two: the rate that is known when a transfer begins may be that of a burst, and one
/// block that is too long delays every hop behind it by as much, for the whole transfer.
#[derive(Debug)]
pub(super) struct BlockLength {
    last_bytes: u64,
}

impl BlockLength {
    /// For a transfer that begins.
    pub(super) const fn new() -> Self {
        Self { last_bytes: MIN_BYTES / 2 }
    }

    /// How many bytes take about a millisecond at this rate: whole blocks of the object, no more than fit in a frame.
    pub(super) fn next(&mut self, bytes_per_second: Option<u64>) -> u64 {
        let wanted_bytes = u128::from(bytes_per_second.unwrap_or(0)) * TARGET.as_nanos() / 1_000_000_000;
        let most_bytes = (2 * self.last_bytes).clamp(MIN_BYTES, u64::from(MAX_BLOCK_BYTES));
        let wanted_bytes = u64::try_from(wanted_bytes).unwrap_or(u64::MAX).min(most_bytes);
        self.last_bytes = (wanted_bytes / BLOCK_BYTES * BLOCK_BYTES).max(MIN_BYTES);
        self.last_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_take_about_a_millisecond() {
        let settled = |bytes_per_second| {
            let mut lengths = BlockLength::new();
            (0..20).map(|_| lengths.next(bytes_per_second)).last()
        };
        assert_eq!(settled(None), Some(MIN_BYTES));
        assert_eq!(settled(Some(1_000_000)), Some(MIN_BYTES));
        assert_eq!(settled(Some(100_000_000)), Some(100_000 / BLOCK_BYTES * BLOCK_BYTES));
        assert_eq!(settled(Some(5_000_000_000)), Some(1 << 20));
        assert_eq!(settled(Some(u64::MAX)), Some(1 << 20));
    }

    #[test]
    fn blocks_grow_step_by_step_and_shrink_at_once() {
        let mut lengths = BlockLength::new();
        let grown: Vec<u64> = (0..8).map(|_| lengths.next(Some(u64::MAX)) >> 10).collect();
        assert_eq!(grown, [16, 32, 64, 128, 256, 512, 1024, 1024]);
        assert_eq!(lengths.next(Some(100_000_000)), 100_000 / BLOCK_BYTES * BLOCK_BYTES);
    }
}
