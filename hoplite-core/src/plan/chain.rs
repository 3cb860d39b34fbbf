//! Limits the chains of a broadcast.
//!
//! Each receiver of a chain pulls from the one before, and delays bytes by a hop of h: the latency
//! of a link and one block. With S bytes and bandwidth B, n receivers take S/B + n h. This is best
//! while n h is less than S/B: in a longer chain, the first nodes are complete early, and could
//! have started chains.
//!
//! Therefore, beyond [`MAX_UNPACED`] transfers of an object, the shard extends a chain only when
//! bytes are about to reach its end, which costs the new receiver no time. A waiting receiver pulls
//! from the first complete copy, or from the end of a chain that has bytes. So chains end after S/B
//! without knowledge of S, B or n, and n receivers take about S/B + min(n h, S/B + sqrt(2 n) h).
//!
//! Receivers of a small object, with few blocks, wait for copies that are complete or about to have
//! bytes. They form a tree, which takes about log2(n) (S/B + h).

use std::time::Duration;

use super::blocks::{BLOCK_TIME, MIN_BLOCK_BYTES};
use crate::time::Time;

/// With at most this many transfers, an object's receivers always form chains: 64 hops take 70 ms,
/// less than 64 MiB at 5 Gbit/s.
pub const MAX_UNPACED: usize = 64;
/// Number of hops by which a chain may extend ahead of its bytes, because a grant takes a round
/// trip and timers are late by up to a millisecond.
const LEAD_HOPS: u32 = 3;
/// Shortest estimate of a hop's time: a block of 1 MiB at 100 Gbit/s, and 10 us.
const MIN_HOP: Duration = Duration::from_micros(100);
/// Longest estimate of a hop's time: a block of 16 KiB at 10 Mbit/s, and 10 ms. A longer sample
/// means a stall.
const MAX_HOP: Duration = Duration::from_millis(25);
/// Shortest accepted sample. Shorter samples occur while the shard processes a backlog.
const MIN_SAMPLE: Duration = Duration::from_micros(50);
/// Inverse weight of the newest sample in the mean.
const WEIGHT: u32 = 16;

/// Returns the number of transfers below which receivers always form chains.
pub fn unpaced(size_bytes: u64) -> usize {
    let blocks = usize::try_from(size_bytes / MIN_BLOCK_BYTES).unwrap_or(MAX_UNPACED);
    blocks.clamp(1, MAX_UNPACED)
}

/// Estimates a hop's time (the delay by one more receiver) from copies that completed in turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HopTime {
    mean: Duration,
}

impl Default for HopTime {
    fn default() -> Self {
        Self { mean: BLOCK_TIME }
    }
}

impl HopTime {
    /// Adds a sample: the time between the completions of the sender's and the receiver's copies,
    /// which began together.
    pub fn observe(&mut self, sample: Duration) {
        if sample >= MIN_SAMPLE {
            self.mean = (self.mean * (WEIGHT - 1) + sample.min(MAX_HOP)) / WEIGHT;
        }
    }

    /// Estimated time of a hop.
    pub fn hop(&self) -> Duration {
        self.mean.clamp(MIN_HOP, MAX_HOP)
    }

    /// Returns the time at which a receiver that begins at `now` can forward bytes.
    pub fn bytes_at(&self, now: Time, sender_has: Time) -> Time {
        now.max(sender_has) + self.hop()
    }

    /// Returns the time by which a chain may extend ahead of its bytes: at most a hop per block.
    pub fn lead(&self, size_bytes: u64) -> Duration {
        let hops = u32::try_from(unpaced(size_bytes)).unwrap_or(LEAD_HOPS);
        self.hop() * hops.min(LEAD_HOPS)
    }

    /// Returns `true` if a receiver may extend a chain now: the incomplete copy at its end has
    /// bytes soon (`bytes_at`), or few `transfers` of the object run.
    pub fn may_extend(&self, now: Time, bytes_at: Time, transfers: usize, size_bytes: u64) -> bool {
        transfers < unpaced(size_bytes) || bytes_at <= now + self.lead(size_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: u64 = 1 << 20;

    #[test]
    fn the_mean_follows_what_is_observed_within_bounds() {
        let mut time = HopTime::default();
        assert_eq!(time.hop(), BLOCK_TIME);
        for _ in 0..200 {
            time.observe(Duration::from_micros(300));
        }
        assert!((290..320).contains(&time.hop().as_micros()), "{time:?}");
        let before = time.clone();
        time.observe(MIN_SAMPLE - Duration::from_nanos(1));
        assert_eq!(time, before, "the shard was late");
        (0..300).for_each(|_| time.observe(Duration::from_secs(5)));
        assert!(time.hop() <= MAX_HOP);
        (0..300).for_each(|_| time.observe(MIN_SAMPLE));
        assert_eq!(time.hop(), MIN_HOP);
    }

    #[test]
    fn small_objects_go_along_short_chains() {
        let (time, at) = (HopTime::default(), Time::from_micros);
        assert_eq!([0, 1, 32 << 10, 64 << 10, LARGE, u64::MAX].map(unpaced), [1, 1, 2, 4, 64, 64]);
        let leads = [1, 32 << 10, 48 << 10, LARGE].map(|size| time.lead(size));
        assert_eq!(leads.map(|lead| lead.as_millis()), [1, 2, 3, 3]);
        assert!(
            time.may_extend(at(0), at(2000), 2, 32 << 10)
                && !time.may_extend(at(0), at(2001), 2, 32 << 10)
        );
    }

    #[test]
    fn a_long_chain_is_extended_when_its_bytes_are_near() {
        let time = HopTime::default();
        let at = Time::from_micros;
        assert_eq!(time.bytes_at(at(500), at(0)), at(1500));
        assert_eq!(time.bytes_at(at(500), at(9000)), at(10_000));
        assert!(time.may_extend(at(0), at(90_000), MAX_UNPACED - 1, LARGE));
        assert!(!time.may_extend(at(86_999), at(90_000), MAX_UNPACED, LARGE));
        assert!(time.may_extend(at(87_000), at(90_000), MAX_UNPACED, LARGE));
    }
}
