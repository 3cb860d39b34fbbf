//! How fast the chains of a broadcast grow.
//!
//! Receivers that come together form a chain, to which each adds a hop: the latency of a link, and a block. A chain of n
//! receivers takes S/B + n h. That is the best while n h is less than S/B: every node sends the object once at the full rate
//! of its link. The nodes at the head of a longer chain have all bytes before the first ones reach its end, and could have
//! begun chains of their own meanwhile.
//!
//! So beyond [`MAX_UNPACED`] transfers of an object at once, a chain is extended only when bytes are about to reach its end.
//! That costs the receiver nothing, for it could not have got any before. Those who wait are served by the first copy that
//! is complete, or by the end of a chain that has bytes, whichever comes first. A chain thus ends where S/B is over, without
//! anybody having to know S, B or the number of receivers; n that come together take about
//! S/B + min(n h, S/B + sqrt(2 n) h).
//!
//! A small object has few blocks, so that n h is soon more than S/B: its receivers are sent to copies that are complete, or are
//! about to have bytes. They form a tree, and n of them take about log2(n) (S/B + h).

use std::time::Duration;

use super::blocks::{BLOCK_TIME, MIN_BLOCK_BYTES};
use crate::time::Time;

/// So many transfers of an object form chains at once, whatever is known of hops: 64 of them take 70 ms, less than 64 MiB
/// takes at 5 Gbit/s.
pub const MAX_UNPACED: usize = 64;
/// A chain is extended by so many hops ahead of the bytes: a grant takes a round trip to be followed, and timers are late by
/// up to a millisecond.
const LEAD_HOPS: u32 = 3;
/// The shortest hop that is believed: a block of 1 MiB at 100 Gbit/s, and 10 us.
const MIN_HOP: Duration = Duration::from_micros(100);
/// The longest hop that is believed: a block of 16 KiB at 10 Mbit/s, and 10 ms. What takes longer has stalled.
const MAX_HOP: Duration = Duration::from_millis(25);
/// By which part of its difference a sample changes the mean: some tens of hops of one broadcast are enough.
const WEIGHT: u32 = 16;

/// So many transfers of an object of this size form chains at once, whatever is known of hops: as many as it can have whole blocks.
pub fn unpaced(size_bytes: u64) -> usize {
    let blocks = usize::try_from(size_bytes / MIN_BLOCK_BYTES).unwrap_or(MAX_UNPACED);
    blocks.clamp(1, MAX_UNPACED)
}

/// How long a hop takes, as far as it is known from the copies that were completed one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HopTime {
    mean: Duration,
}

impl Default for HopTime {
    /// What a block is meant to take.
    fn default() -> Self {
        Self { mean: BLOCK_TIME }
    }
}

impl HopTime {
    /// A copy was complete so long after the one that it was pulled from, both of them having begun together.
    ///
    /// The sum of these times along a chain is that of the whole chain, even if publications come in batches.
    pub fn observe(&mut self, sample: Duration) {
        self.mean = (self.mean * (WEIGHT - 1) + sample.min(MAX_HOP)) / WEIGHT;
    }

    /// The time of one hop.
    pub fn hop(&self) -> Duration {
        self.mean.clamp(MIN_HOP, MAX_HOP)
    }

    /// Returns the time at which a copy has bytes to pass on that is pulled, from `now` on, from one that has some at `sender_has`.
    pub fn bytes_at(&self, now: Time, sender_has: Time) -> Time {
        now.max(sender_has) + self.hop()
    }

    /// How far ahead of the bytes a chain of an object of this size is extended: by no more hops than the object has blocks.
    pub fn lead(&self, size_bytes: u64) -> Duration {
        let hops = u32::try_from(unpaced(size_bytes)).unwrap_or(LEAD_HOPS);
        self.hop() * hops.min(LEAD_HOPS)
    }

    /// Returns `true` if somebody may be sent now to a copy that has bytes at `bytes_at`, while there are `transfers` of the object, which
    /// has this size.
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
        // Two publications in one batch: the mean of both counts.
        for _ in 0..100 {
            time.observe(Duration::ZERO);
            time.observe(Duration::from_millis(4));
        }
        assert!((1900..2200).contains(&time.hop().as_micros()), "{time:?}");
        (0..300).for_each(|_| time.observe(Duration::from_secs(5)));
        assert!(time.hop() <= MAX_HOP);
        (0..300).for_each(|_| time.observe(Duration::ZERO));
        assert_eq!(time.hop(), MIN_HOP);
    }

    #[test]
    fn small_objects_go_along_short_chains() {
        let (time, at) = (HopTime::default(), Time::from_micros);
        assert_eq!([0, 1, 32 << 10, 64 << 10, LARGE, u64::MAX].map(unpaced), [1, 1, 2, 4, 64, 64]);
        let leads = [1, 32 << 10, 48 << 10, LARGE].map(|size| time.lead(size));
        assert_eq!(leads.map(|lead| lead.as_millis()), [1, 2, 3, 3]);
        assert!(
            time.may_extend(at(0), at(2000), 2, 32 << 10) && !time.may_extend(at(0), at(2001), 2, 32 << 10)
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
