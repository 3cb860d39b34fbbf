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

use std::time::Duration;

use super::blocks::BLOCK_TIME;
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
    /// The sum of these times along a chain is that of the whole chain, also if publications come in batches.
    pub fn observe(&mut self, sample: Duration) {
        self.mean = (self.mean * (WEIGHT - 1) + sample.min(MAX_HOP)) / WEIGHT;
    }

    /// The time of one hop.
    pub fn hop(&self) -> Duration {
        self.mean.clamp(MIN_HOP, MAX_HOP)
    }

    /// How far ahead of the bytes a chain is extended.
    pub fn lead(&self) -> Duration {
        self.hop() * LEAD_HOPS
    }

    /// When a copy has bytes to pass on that is pulled, from `now` on, from one that has some at `sender_has`.
    pub fn bytes_at(&self, now: Time, sender_has: Time) -> Time {
        now.max(sender_has) + self.hop()
    }

    /// Whether somebody may be sent now to a copy that has bytes at `bytes_at`, while there are `transfers` of the object.
    pub fn may_extend(&self, now: Time, bytes_at: Time, transfers: usize) -> bool {
        transfers < MAX_UNPACED || bytes_at <= now + self.lead()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_long_chain_is_extended_when_its_bytes_are_near() {
        let time = HopTime::default();
        let at = Time::from_micros;
        assert_eq!(time.bytes_at(at(500), at(0)), at(1500));
        assert_eq!(time.bytes_at(at(500), at(9000)), at(10_000));
        assert!(time.may_extend(at(0), at(90_000), MAX_UNPACED - 1));
        assert!(!time.may_extend(at(86_999), at(90_000), MAX_UNPACED));
        assert!(time.may_extend(at(87_000), at(90_000), MAX_UNPACED));
    }
}
