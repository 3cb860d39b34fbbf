//! The statistics of probes: percentiles, and when enough have been sent.
//!
//! * [`echo`]: the packets of one pair, from the side that asks and from the side that answers.
//! * [`train`]: the bytes of one direction of a pair, whose rate is that of the link.
//! * [`survey`]: the coordinator, who has all pairs meet and makes a matrix of what they say.
//!
//! Source: Cloud Collectives, section IV-B, which sends 10,000 to each pair and takes the 10th percentile. The rule by which to stop
//! earlier is ours.

pub mod echo;
pub mod survey;
pub mod train;

/// The percentile of round trips that stands for a link: it leaves out what other traffic adds.
pub const PERCENTILE: u32 = 10;
/// Probes after which the percentile is looked at.
pub const BLOCK: usize = 64;
/// The percentile must have moved by less than this since the block before ...
const STEADY_PERCENT: u64 = 2;
/// ... for so many blocks.
const STEADY_BLOCKS: u32 = 3;
/// Most probes of a pair whose percentile does not hold still.
const MAX_AUTO_PROBES: usize = 16 * BLOCK;
/// Most probes of a pair that can be asked for: what Cloud Collectives sends.
pub const MAX_PROBES: u32 = 10_000;

/// How many probes a pair sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Probes {
    /// Until the percentile holds still.
    #[default]
    Auto,
    /// So many, up to [`MAX_PROBES`].
    Count(u32),
}

/// The smallest sample with at least `percent` of a hundred at or below it (nearest rank); of no samples there is none.
pub fn percentile(samples: &[u64], percent: u32) -> Option<u64> {
    let mut sorted = samples.to_vec();
    let rank = (sorted.len() * percent as usize).div_ceil(100).max(1);
    if rank > sorted.len() {
        return None;
    }
    Some(*sorted.select_nth_unstable(rank - 1).1)
}

/// The round trips of one pair, until their percentile holds still.
#[derive(Debug, Clone, Default)]
pub struct Samples {
    round_trips_ns: Vec<u64>,
    last: Option<u64>,
    steady: u32,
}

impl Samples {
    /// Takes in one round trip.
    pub fn add(&mut self, round_trip_ns: u64) {
        self.round_trips_ns.push(round_trip_ns);
        if !self.round_trips_ns.len().is_multiple_of(BLOCK) {
            return;
        }
        let now = percentile(&self.round_trips_ns, PERCENTILE);
        let is_steady = match (self.last, now) {
            (Some(last), Some(now)) => {
                u128::from(now.abs_diff(last)) * 100 < u128::from(last) * u128::from(STEADY_PERCENT)
                    || now == last
            }
            _ => false,
        };
        self.steady = if is_steady { self.steady + 1 } else { 0 };
        self.last = now;
    }

    /// Returns `true` if the percentile has held still for long enough.
    pub const fn is_enough(&self) -> bool {
        self.steady >= STEADY_BLOCKS
    }

    /// Returns `true` if these are as many as were asked for.
    pub fn suffice(&self, probes: Probes) -> bool {
        match probes {
            Probes::Auto => self.is_enough() || self.len() >= MAX_AUTO_PROBES,
            Probes::Count(count) => self.len() >= count.min(MAX_PROBES) as usize,
        }
    }

    /// How many round trips there are.
    pub const fn len(&self) -> usize {
        self.round_trips_ns.len()
    }

    /// Returns `true` if there are none.
    pub const fn is_empty(&self) -> bool {
        self.round_trips_ns.is_empty()
    }

    /// The percentile of the round trips; the latency of the link is half of it.
    pub fn round_trip_ns(&self) -> Option<u64> {
        percentile(&self.round_trips_ns, PERCENTILE)
    }
}
