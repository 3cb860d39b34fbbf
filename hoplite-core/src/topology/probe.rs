//! The statistics of probes: percentiles, and the end of a series.
//!
//! [`survey`] coordinates: pairs of nodes exchange echoes ([`echo`]) and trains of bytes
//! ([`train`]), and a matrix results.
//!
//! Source: Cloud Collectives, section IV-B, which sends 10,000 probes per pair and takes the 10th
//! percentile. The earlier end is ours.

pub mod echo;
pub mod survey;
pub mod train;

/// The percentile of round trips that measures a link without other traffic.
pub const PERCENTILE: u32 = 10;
/// Probes between checks of the percentile.
pub const BLOCK: usize = 64;
const STEADY_PERCENT: u64 = 2;
const STEADY_BLOCKS: u32 = 3;
const MAX_AUTO_PROBES: usize = 16 * BLOCK;
/// Most requested probes per pair, as in Cloud Collectives.
pub const MAX_PROBES: u32 = 10_000;

/// A pair's number of probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Probes {
    /// Until the percentile is steady.
    #[default]
    Auto,
    /// This many, up to [`MAX_PROBES`].
    Count(u32),
}

/// Returns the nearest-rank percentile; `None` without samples.
pub fn percentile(samples: &[u64], percent: u32) -> Option<u64> {
    let mut sorted = samples.to_vec();
    let rank = (sorted.len() * percent as usize).div_ceil(100).max(1);
    if rank > sorted.len() {
        return None;
    }
    Some(*sorted.select_nth_unstable(rank - 1).1)
}

/// A pair's round trips.
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

    /// Returns `true` after enough steady blocks.
    pub const fn is_enough(&self) -> bool {
        self.steady >= STEADY_BLOCKS
    }

    /// Returns `true` if there are enough samples.
    pub fn suffice(&self, probes: Probes) -> bool {
        match probes {
            Probes::Auto => self.is_enough() || self.len() >= MAX_AUTO_PROBES,
            Probes::Count(count) => self.len() >= count.min(MAX_PROBES) as usize,
        }
    }

    /// The number of round trips.
    pub const fn len(&self) -> usize {
        self.round_trips_ns.len()
    }

    /// Returns `true` without round trips.
    pub const fn is_empty(&self) -> bool {
        self.round_trips_ns.is_empty()
    }

    /// The percentile of the round trips: twice the link's latency.
    pub fn round_trip_ns(&self) -> Option<u64> {
        percentile(&self.round_trips_ns, PERCENTILE)
    }
}
