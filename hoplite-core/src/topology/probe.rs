//! The statistics of probes: percentiles, and the rule that ends a series.
//!
//! * [`echo`]: the packets of one pair, for the asking and the answering side.
//! * [`train`]: the bytes of one direction of a pair, which measure the rate of the link.
//! * [`survey`]: the coordinator, which lets pairs of nodes measure and builds a matrix from their
//!   findings.
//!
//! Source: Cloud Collectives, section IV-B, which sends 10,000 probes to each pair and takes the
//! 10th percentile. The rule for an earlier end is ours.

pub mod echo;
pub mod survey;
pub mod train;

/// The percentile of round trips that measures a link. It leaves out delays by other traffic.
pub const PERCENTILE: u32 = 10;
/// Number of probes after which the percentile is checked.
pub const BLOCK: usize = 64;
/// Largest change of the percentile between two steady blocks, in percent.
const STEADY_PERCENT: u64 = 2;
/// Number of steady blocks that end a series.
const STEADY_BLOCKS: u32 = 3;
/// Most probes of a pair whose percentile does not become steady.
const MAX_AUTO_PROBES: usize = 16 * BLOCK;
/// Most probes of a pair that a caller may request: as many as Cloud Collectives sends.
pub const MAX_PROBES: u32 = 10_000;

/// The number of probes of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Probes {
    /// Probe until the percentile is steady.
    #[default]
    Auto,
    /// Send this many probes, up to [`MAX_PROBES`].
    Count(u32),
}

/// Returns the smallest sample that is at least as large as `percent` percent of the samples
/// (nearest rank). Returns `None` without samples.
pub fn percentile(samples: &[u64], percent: u32) -> Option<u64> {
    let mut sorted = samples.to_vec();
    let rank = (sorted.len() * percent as usize).div_ceil(100).max(1);
    if rank > sorted.len() {
        return None;
    }
    Some(*sorted.select_nth_unstable(rank - 1).1)
}

/// The round trips of one pair, which end when their percentile is steady.
#[derive(Debug, Clone, Default)]
pub struct Samples {
    round_trips_ns: Vec<u64>,
    last: Option<u64>,
    steady: u32,
}

impl Samples {
    /// Adds one round trip.
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

    /// Returns `true` if the percentile has been steady for enough blocks.
    pub const fn is_enough(&self) -> bool {
        self.steady >= STEADY_BLOCKS
    }

    /// Returns `true` if there are as many samples as `probes` requests.
    pub fn suffice(&self, probes: Probes) -> bool {
        match probes {
            Probes::Auto => self.is_enough() || self.len() >= MAX_AUTO_PROBES,
            Probes::Count(count) => self.len() >= count.min(MAX_PROBES) as usize,
        }
    }

    /// Returns the number of round trips.
    pub const fn len(&self) -> usize {
        self.round_trips_ns.len()
    }

    /// Returns `true` if there are no round trips.
    pub const fn is_empty(&self) -> bool {
        self.round_trips_ns.is_empty()
    }

    /// Returns the percentile of the round trips. The latency of the link is half of it.
    pub fn round_trip_ns(&self) -> Option<u64> {
        percentile(&self.round_trips_ns, PERCENTILE)
    }
}
