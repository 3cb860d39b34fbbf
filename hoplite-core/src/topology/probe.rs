//! Statistics of the probes of a [`survey`].
//!
//! Source: Cloud Collectives, section IV-B, which sends 10,000 probes per pair and takes the 10th
//! percentile. Stopping earlier is ours.

pub mod echo;
pub mod survey;
pub mod train;

/// Percentile of a pair's round trips that stands for the idle link.
pub const PERCENTILE: u32 = 10;
/// Number of round trips between two comparisons of the [`PERCENTILE`].
pub const BLOCK: usize = 64;
const STEADY_PERCENT: u64 = 2;
const STEADY_BLOCKS: u32 = 3;
const MAX_AUTO_PROBES: usize = 16 * BLOCK;
/// Most round trips per pair, as in Cloud Collectives.
pub const MAX_PROBES: u32 = 10_000;

/// Number of round trips that a pair measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Probes {
    /// Measure until the 10th percentile is steady, or 1024 round trips.
    #[default]
    Auto,
    /// Measure this many round trips, up to [`MAX_PROBES`].
    Count(u32),
}

/// Returns the percentile by the nearest-rank method; `None` without samples.
pub fn percentile(samples: &[u64], percent: u32) -> Option<u64> {
    let mut sorted = samples.to_vec();
    let rank = (sorted.len() * percent as usize).div_ceil(100).max(1);
    if rank > sorted.len() {
        return None;
    }
    Some(*sorted.select_nth_unstable(rank - 1).1)
}

/// Measured round trips of a pair of nodes.
#[derive(Debug, Clone, Default)]
pub struct Samples {
    round_trips_ns: Vec<u64>,
    last: Option<u64>,
    steady: u32,
}

impl Samples {
    /// Adds a round trip.
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

    /// Returns `true` if the percentile changed by less than 2% at the last three checks.
    pub const fn is_enough(&self) -> bool {
        self.steady >= STEADY_BLOCKS
    }

    /// Returns `true` after as many round trips as `probes` requests.
    pub fn suffice(&self, probes: Probes) -> bool {
        match probes {
            Probes::Auto => self.is_enough() || self.len() >= MAX_AUTO_PROBES,
            Probes::Count(count) => self.len() >= count.min(MAX_PROBES) as usize,
        }
    }

    /// Number of round trips.
    pub const fn len(&self) -> usize {
        self.round_trips_ns.len()
    }

    /// Returns `true` without round trips.
    pub const fn is_empty(&self) -> bool {
        self.round_trips_ns.is_empty()
    }

    /// Returns [`PERCENTILE`] of the round trips in nanoseconds: twice the link's latency.
    pub fn round_trip_ns(&self) -> Option<u64> {
        percentile(&self.round_trips_ns, PERCENTILE)
    }
}
