//! Estimates a node's links from its transfers, for planners.

use std::time::Duration;

use super::blocks::longest_block_bytes;
use crate::link::Uplink;
use crate::time::Time;

/// Shortest time over which a transfer's rate is measured, because TCP first opens its window.
pub const SAMPLE_INTERVAL: Duration = Duration::from_millis(20);
/// Fewest bytes of a rate sample. Fewer bytes measure buffers and schedulers.
const MIN_SAMPLE_BYTES: u64 = 256 << 10;
/// Fewest bytes of a sample of several short transfers, which only shows that a link is slow:
/// buffers make links look faster.
const MIN_INTAKE_BYTES: u64 = 32 << 10;
/// After this pause, a transfer gives no rate sample: its sender lacked bytes.
const PAUSE: Duration = Duration::from_millis(200);
const WEIGHT: f64 = 1.0 / 8.0;
/// Time of a TCP handshake's first retransmission (RFC 6298, section 2.1). A connect this long
/// measures no distance.
const RETRANSMISSION_TIMEOUT: Duration = Duration::from_secs(1);

/// An estimate of the links between nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkEstimate {
    /// Rate of a single stream.
    pub bytes_per_second: u64,
    /// Time from the sending of a byte to its arrival.
    pub latency: Duration,
    /// Capacity of groups' uplinks, relative to nodes' links.
    pub uplink: Uplink,
}

impl Default for LinkEstimate {
    /// Assumes 1 Gbit/s, and 125 us as in section 6.1 of the Hoplite paper. Too low a rate costs a
    /// reduce milliseconds; too high a rate may multiply its time.
    fn default() -> Self {
        Self {
            bytes_per_second: 125_000_000,
            latency: Duration::from_micros(125),
            uplink: Uplink::default(),
        }
    }
}

impl LinkEstimate {
    pub(super) fn transfer_seconds(self, size_bytes: u64) -> f64 {
        size_bytes as f64 / self.bytes_per_second.max(1) as f64
    }

    /// Returns the delay of one more hop, L in the formulas: latency and a block.
    pub(super) fn hop_seconds(self, size_bytes: u64) -> f64 {
        let block_bytes = longest_block_bytes(self.bytes_per_second, size_bytes);
        self.latency.as_secs_f64() + self.transfer_seconds(block_bytes)
    }
}

/// Running means over all of a node's links. Values that the operator set replace the means.
///
/// The latency is half of a TCP connect.
#[derive(Debug, Clone, Default)]
pub struct LinkEstimator {
    set_rate: Option<u64>,
    set_latency: Option<Duration>,
    bytes_per_second: Option<f64>,
    intake_per_second: Option<f64>,
    latency_seconds: Option<f64>,
}

impl LinkEstimator {
    /// Makes an estimator with values that the operator set.
    pub fn new(bytes_per_second: Option<u64>, latency: Option<Duration>) -> Self {
        Self { set_rate: bytes_per_second, set_latency: latency, ..Self::default() }
    }

    /// Adds the time that a TCP connect took.
    pub fn connected(&mut self, elapsed: Duration) {
        if elapsed < RETRANSMISSION_TIMEOUT {
            observe(&mut self.latency_seconds, elapsed.as_secs_f64() / 2.0);
        }
    }

    /// Adds the rate sample of a transfer.
    pub fn transferred(&mut self, sample: RateSample) {
        if let RateSample::Steady { begun, last, bytes } = sample {
            let elapsed = last.since(begun);
            if bytes >= MIN_SAMPLE_BYTES && !elapsed.is_zero() {
                observe(&mut self.bytes_per_second, bytes as f64 / elapsed.as_secs_f64());
            }
        }
    }

    /// Adds a sample of concurrent transfers' total rate. It limits the assumed rate until a single
    /// transfer's rate is measured.
    pub fn took_in(&mut self, sample: RateSample) {
        if let RateSample::Steady { begun, last, bytes } = sample
            && bytes >= MIN_INTAKE_BYTES
            && last > begun
        {
            observe(&mut self.intake_per_second, bytes as f64 / last.since(begun).as_secs_f64());
        }
    }

    /// Measured rate in bytes per second.
    pub fn measured_rate(&self) -> Option<u64> {
        self.bytes_per_second.map(|rate| rate as u64)
    }

    /// Returns rate and latency: each as set, else as measured, else as assumed.
    pub fn link(&self) -> LinkEstimate {
        let assumed = LinkEstimate::default();
        let intake = self.intake_per_second.map_or(u64::MAX, |rate| rate as u64);
        let assumed_rate = assumed.bytes_per_second.min(intake);
        let measured_latency =
            self.latency_seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        LinkEstimate {
            bytes_per_second: self.set_rate.or(self.measured_rate()).unwrap_or(assumed_rate),
            latency: self.set_latency.or(measured_latency).unwrap_or(assumed.latency),
            uplink: assumed.uplink,
        }
    }
}

fn observe(mean: &mut Option<f64>, value: f64) {
    *mean = Some(mean.map_or(value, |mean| mean + WEIGHT * (value - mean)));
}

/// A measurement of the rate at which transfers' bytes arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RateSample {
    /// No block has arrived.
    #[default]
    Empty,
    /// Blocks arrived without a pause so far.
    Steady {
        /// Time at which the first block was complete.
        begun: Time,
        /// Time at which the last block was complete.
        last: Time,
        /// Number of bytes after the first block.
        bytes: u64,
    },
    /// The sender paused, so samples would show its source's rate, not the link's.
    Interrupted,
}

impl RateSample {
    /// Adds an arrived block.
    pub fn arrived(&mut self, now: Time, block_bytes: u64) {
        match self {
            Self::Empty => *self = Self::Steady { begun: now, last: now, bytes: 0 },
            Self::Steady { last, .. } if now.since(*last) >= PAUSE => *self = Self::Interrupted,
            Self::Steady { last, bytes, .. } => {
                *last = now;
                *bytes += block_bytes;
            }
            Self::Interrupted => {}
        }
    }
}

/// Measures the total rate of several concurrent transfers.
#[derive(Debug, Default)]
pub struct Intake {
    transfers: usize,
    sample: RateSample,
}

impl Intake {
    /// Counts a transfer that has received its first block.
    pub const fn begin(&mut self) {
        self.transfers += 1;
    }

    /// Counts a received block while several transfers run.
    pub fn arrived(&mut self, now: Time, block_bytes: u64) {
        if self.transfers > 1 {
            self.sample.arrived(now, block_bytes);
        }
    }

    /// Ends a transfer. Returns the rate sample if one transfer is left.
    pub fn end(&mut self) -> Option<RateSample> {
        self.transfers = self.transfers.saturating_sub(1);
        (self.transfers == 1).then(|| std::mem::take(&mut self.sample))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(blocks: u64, pause: Duration) -> RateSample {
        let (mut sample, mut now) = (RateSample::default(), Time::from_micros(5_000_000));
        for index in 0..=blocks {
            sample.arrived(now, 1_000_000);
            now = now
                + Duration::from_millis(10)
                + if index + 1 == blocks { pause } else { Duration::ZERO };
        }
        sample
    }

    const fn link(bytes_per_second: u64, latency_us: u64) -> LinkEstimate {
        LinkEstimate {
            bytes_per_second,
            latency: Duration::from_micros(latency_us),
            uplink: Uplink::measured(0),
        }
    }

    #[test]
    fn each_level_has_separate_uplinks() {
        let (zone, rack, host) = ([7, 0, 0, 0], [7, 0, 3, 0], [7, 0, 3, 1]);
        let uplink = Uplink::of_levels([250, 0, 4000, 0]);
        assert_eq!([zone, rack, host].map(|group| uplink.links(group)), [0.25, 4.0, 0.25]);
        assert_eq!((uplink.permille(), uplink.is_measured()), (250, true));
        assert_eq!([zone, rack].map(|group| Uplink::default().links(group)), [1.0, 1.0]);
        assert_eq!([zone, rack].map(|group| Uplink::measured(500).links(group)), [0.5, 0.5]);
    }

    #[test]
    fn a_long_transfer_without_pauses_shows_the_rate() {
        let mut estimator = LinkEstimator::default();
        estimator.transferred(sample(50, PAUSE));
        assert_eq!(estimator.link(), LinkEstimate::default());
        estimator.transferred(sample(50, Duration::ZERO));
        assert_eq!(
            estimator.link(),
            LinkEstimate { bytes_per_second: 100_000_000, ..LinkEstimate::default() }
        );
    }

    #[test]
    fn short_transfers_and_repeated_handshakes_give_no_estimate() {
        let mut estimator = LinkEstimator::default();
        let (begun, last) = (Time::ZERO, Time::from_micros(1000));
        estimator.transferred(RateSample::Steady { begun, last, bytes: MIN_SAMPLE_BYTES - 1 });
        estimator.transferred(RateSample::Steady { begun, last: begun, bytes: 1 << 20 });
        estimator.transferred(sample(0, Duration::ZERO));
        estimator.transferred(RateSample::Empty);
        estimator.connected(Duration::from_millis(1001));
        assert_eq!(estimator.link(), LinkEstimate::default());
    }

    #[test]
    fn short_transfers_at_once_show_a_link_that_is_slower_than_assumed() {
        let brought = |transfers: u64, bytes: u64, micros: u64| {
            let mut intake = Intake::default();
            (0..transfers).for_each(|_| intake.begin());
            for number in 0..transfers {
                intake.arrived(Time::from_micros(micros * number / (transfers - 1)), bytes);
            }
            let ends: Vec<_> = (0..transfers).filter_map(|_| intake.end()).collect();
            assert_eq!(ends.len(), 1);
            ends[0]
        };
        let mut estimator = LinkEstimator::default();
        let assumed = estimator.link();
        estimator.took_in(brought(3, 15 << 10, 5_000));
        estimator.took_in(brought(9, 32 << 10, 100));
        estimator.took_in(brought(9, 32 << 10, 0));
        assert_eq!(estimator.link(), assumed);
        let mut estimator = LinkEstimator::default();
        estimator.took_in(brought(9, 25_000, 10_000));
        assert_eq!(estimator.link().bytes_per_second, 20_000_000);
        estimator.transferred(sample(50, Duration::ZERO));
        assert_eq!(estimator.link().bytes_per_second, 100_000_000);
    }

    #[test]
    fn means_follow_slowly() {
        let mut estimator = LinkEstimator::default();
        estimator.connected(Duration::from_millis(2));
        assert_eq!(estimator.link().latency, Duration::from_millis(1));
        estimator.connected(Duration::from_millis(18));
        assert_eq!(estimator.link().latency, Duration::from_millis(2));
        let (begun, last) = (Time::ZERO, Time::from_micros(1_000_000));
        for bytes in [8 << 20, 16 << 20] {
            estimator.transferred(RateSample::Steady { begun, last, bytes });
        }
        assert_eq!(estimator.link().bytes_per_second, 9 << 20);
    }

    #[test]
    fn set_values_are_not_measured() {
        let mut estimator = LinkEstimator::new(Some(7), None);
        estimator.connected(Duration::from_millis(2));
        estimator.transferred(sample(50, Duration::ZERO));
        assert_eq!(estimator.link(), link(7, 1000));
        let mut estimator = LinkEstimator::new(None, Some(Duration::from_micros(3)));
        estimator.connected(Duration::from_millis(2));
        estimator.transferred(sample(50, Duration::ZERO));
        assert_eq!(estimator.link(), link(100_000_000, 3));
    }
}
