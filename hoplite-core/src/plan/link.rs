//! The bandwidth and latency of a node's links, estimated from its transfers, for the planners.

use std::time::Duration;

use super::blocks::longest_block_bytes;
use crate::link::Uplink;
use crate::time::Time;

/// How often a transfer says what the link is like; the first time when TCP has opened its window. Shorter transfers say nothing.
pub const SAMPLE_INTERVAL: Duration = Duration::from_millis(20);
/// A shorter sample says more about buffers and schedulers than about the link.
const MIN_SAMPLE_BYTES: u64 = 256 << 10;
/// So much of several short transfers at once says when a link is slow: what buffers take in makes it look faster.
const MIN_INTAKE_BYTES: u64 = 32 << 10;
/// A sender that sends nothing for so long has nothing to send: blocks are meant to take a millisecond.
const PAUSE: Duration = Duration::from_millis(200);
/// The weight of a new sample: the mean is over about the last eight.
const WEIGHT: f64 = 1.0 / 8.0;
/// A connection that takes this long had to ask twice: it is the first retransmission timeout of a handshake (RFC 6298,
/// section 2.1), and says nothing about distance.
const RETRANSMISSION_TIMEOUT: Duration = Duration::from_secs(1);

/// What a link between two nodes does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkEstimate {
    /// Bytes per second that one stream gets.
    pub bytes_per_second: u64,
    /// From the sending of a byte to its arrival.
    pub latency: Duration,
    /// What the uplinks of groups of nodes carry.
    pub uplink: Uplink,
}

impl Default for LinkEstimate {
    /// What is assumed before anything is measured: 1 Gbit/s, and the 125 us of the paper's evaluation (section 6.1). A link
    /// that is taken for slower than it is gets a chain where a tree would save some milliseconds; one that is taken for
    /// faster gets a star, which takes n times as long.
    fn default() -> Self {
        Self { bytes_per_second: 125_000_000, latency: Duration::from_micros(125), uplink: Uplink::default() }
    }
}

impl LinkEstimate {
    /// S/B.
    pub(super) fn transfer_seconds(self, size_bytes: u64) -> f64 {
        size_bytes as f64 / self.bytes_per_second.max(1) as f64
    }

    /// L: what one more hop adds to the way of a byte. A relay passes a block on when all of it is there.
    pub(super) fn hop_seconds(self, size_bytes: u64) -> f64 {
        let block_bytes = longest_block_bytes(self.bytes_per_second, size_bytes);
        self.latency.as_secs_f64() + self.transfer_seconds(block_bytes)
    }
}

/// Running means over the links to all other nodes. What was set by hand is not measured.
///
/// The latency is half the time that TCP takes to connect. The peer's kernel answers that at once, so it is one round
/// trip and nothing else. The first block of a pull comes after the peer's scheduler, its decision and a checksum, and
/// the receiver cannot tell whether the bytes were there to be sent.
#[derive(Debug, Clone, Default)]
pub struct LinkEstimator {
    set_rate: Option<u64>,
    set_latency: Option<Duration>,
    bytes_per_second: Option<f64>,
    intake_per_second: Option<f64>,
    latency_seconds: Option<f64>,
}

impl LinkEstimator {
    /// An estimator that has seen nothing. What is set here is taken for what the links do.
    pub fn new(bytes_per_second: Option<u64>, latency: Option<Duration>) -> Self {
        Self { set_rate: bytes_per_second, set_latency: latency, ..Self::default() }
    }

    /// Takes in that a TCP connection came about within `elapsed`.
    pub fn connected(&mut self, elapsed: Duration) {
        if elapsed < RETRANSMISSION_TIMEOUT {
            observe(&mut self.latency_seconds, elapsed.as_secs_f64() / 2.0);
        }
    }

    /// Takes in what a transfer has shown.
    pub fn transferred(&mut self, sample: RateSample) {
        if let RateSample::Steady { begun, last, bytes } = sample {
            let elapsed = last.since(begun);
            if bytes >= MIN_SAMPLE_BYTES && !elapsed.is_zero() {
                observe(&mut self.bytes_per_second, bytes as f64 / elapsed.as_secs_f64());
            }
        }
    }

    /// Takes in what transfers have shown that went on at the same time. Until a long one has shown the rate, a link that brought them
    /// slower than is assumed is taken for that slow.
    pub fn took_in(&mut self, sample: RateSample) {
        if let RateSample::Steady { begun, last, bytes } = sample
            && bytes >= MIN_INTAKE_BYTES
            && last > begun
        {
            observe(&mut self.intake_per_second, bytes as f64 / last.since(begun).as_secs_f64());
        }
    }

    /// In bytes per second, as far as transfers have shown it.
    pub fn measured_rate(&self) -> Option<u64> {
        // A rate has no sign, and the fraction does not matter.
        self.bytes_per_second.map(|rate| rate as u64)
    }

    /// What the links do: as set, or as measured, or as one assumes before that.
    pub fn link(&self) -> LinkEstimate {
        let assumed = LinkEstimate::default();
        // As of a rate.
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

/// How fast the blocks of one transfer arrived, or those of several transfers that go together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RateSample {
    /// No block has arrived.
    #[default]
    Empty,
    /// Blocks arrived one after another. The time that passed before the first one is no part of it.
    Steady {
        /// The time at which the first block had arrived.
        begun: Time,
        /// The time at which the last block had arrived.
        last: Time,
        /// How much came after the first block.
        bytes: u64,
    },
    /// There was a pause: the time that the blocks took tells of their source, not of the link.
    Interrupted,
}

impl RateSample {
    /// Takes in a block that has just arrived.
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

/// What transfers bring while there are several: of one alone, its own [`RateSample`] tells.
#[derive(Debug, Default)]
pub struct Intake {
    transfers: usize,
    sample: RateSample,
}

impl Intake {
    /// The first block of a transfer has come.
    pub const fn begin(&mut self) {
        self.transfers += 1;
    }

    /// A block of one of them has arrived.
    pub fn arrived(&mut self, now: Time, block_bytes: u64) {
        if self.transfers > 1 {
            self.sample.arrived(now, block_bytes);
        }
    }

    /// A transfer has ended. Answers what several have brought, if there are no several any more.
    pub fn end(&mut self) -> Option<RateSample> {
        self.transfers = self.transfers.saturating_sub(1);
        (self.transfers == 1).then(|| std::mem::take(&mut self.sample))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A megabyte every 10 ms; it may be that nothing comes for a while before the last one.
    fn sample(blocks: u64, pause: Duration) -> RateSample {
        // The wait for the first block is no part of it.
        let (mut sample, mut now) = (RateSample::default(), Time::from_micros(5_000_000));
        for index in 0..=blocks {
            sample.arrived(now, 1_000_000);
            now = now + Duration::from_millis(10) + if index + 1 == blocks { pause } else { Duration::ZERO };
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
    fn each_level_has_uplinks_of_its_own() {
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
    fn short_transfers_and_repeated_handshakes_show_nothing() {
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
        // Too little to say something, and faster than is assumed.
        estimator.took_in(brought(3, 15 << 10, 5_000));
        estimator.took_in(brought(9, 32 << 10, 100));
        estimator.took_in(brought(9, 32 << 10, 0));
        assert_eq!(estimator.link(), assumed);
        let mut estimator = LinkEstimator::default();
        estimator.took_in(brought(9, 25_000, 10_000));
        assert_eq!(estimator.link().bytes_per_second, 20_000_000);
        // A long transfer knows better.
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
    fn what_is_set_is_not_measured() {
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
