//! What transfers tell of the links to other stores, for whoever plans transfers.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Shorter stretches say more about buffers and schedulers than about the link.
const MIN_STRETCH_BYTES: u64 = 256 << 10;
/// A sender that sends nothing for so long has nothing to send: blocks are meant to take a millisecond.
const PAUSE: Duration = Duration::from_millis(200);
/// The weight of a new observation: a mean over about the last eight.
const WEIGHT: f64 = 1.0 / 8.0;
/// A connection that takes this long had to ask twice: it is the first retransmission timeout of a handshake (RFC 6298,
/// section 2.1), and says nothing about distance.
const RETRANSMISSION_TIMEOUT: Duration = Duration::from_secs(1);

/// Running means over the links to all other stores.
///
/// The latency is half the time that TCP takes to connect. The peer's kernel answers that at once, so it is one round
/// trip and nothing else. The first block of a pull comes after the peer's scheduler, its decision and a checksum, and
/// the receiver cannot tell whether the bytes were there to be sent.
#[derive(Debug, Default)]
pub(super) struct Link {
    means: Mutex<Means>,
}

#[derive(Debug, Default)]
struct Means {
    bytes_per_second: Option<f64>,
    latency_seconds: Option<f64>,
}

impl Link {
    /// Bytes per second, and the time that a message takes one way; `None` as long as nothing was observed.
    pub(super) fn estimate(&self) -> (Option<f64>, Option<Duration>) {
        let means = self.lock();
        let latency = means.latency_seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        (means.bytes_per_second, latency)
    }

    /// A connection was made within `elapsed`.
    pub(super) fn connected(&self, elapsed: Duration) {
        if elapsed < RETRANSMISSION_TIMEOUT {
            observe(&mut self.lock().latency_seconds, elapsed.as_secs_f64() / 2.0);
        }
    }

    fn transferred(&self, bytes: u64, elapsed: Duration) {
        if bytes >= MIN_STRETCH_BYTES && !elapsed.is_zero() {
            observe(&mut self.lock().bytes_per_second, bytes as f64 / elapsed.as_secs_f64());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Means> {
        // Each change is one store, so a panic elsewhere leaves it whole.
        self.means.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn observe(mean: &mut Option<f64>, value: f64) {
    *mean = Some(mean.map_or(value, |mean| mean + WEIGHT * (value - mean)));
}

/// The blocks of one transfer, or of several that go together, from the first to the last, as long as there is no pause.
#[derive(Debug, Default)]
pub(super) enum Stretch {
    /// No block yet.
    #[default]
    Before,
    /// The first block was all there at `begun`; `bytes` came after it, the last of them at `last`.
    Under {
        /// When it began.
        begun: Instant,
        /// When its last block came.
        last: Instant,
        /// What came after the first block.
        bytes: u64,
    },
    /// There was a pause: how fast the blocks came tells of their source, not of the link.
    Broken,
}

impl Stretch {
    /// `length_bytes` more are there.
    pub(super) fn block(&mut self, length_bytes: u64) {
        let now = Instant::now();
        match self {
            Self::Before => *self = Self::Under { begun: now, last: now, bytes: 0 },
            Self::Under { last, .. } if now.duration_since(*last) >= PAUSE => *self = Self::Broken,
            Self::Under { last, bytes, .. } => {
                *last = now;
                *bytes += length_bytes;
            }
            Self::Broken => {}
        }
    }

    /// The transfer is over: tells `link` what it showed.
    pub(super) fn end(self, link: &Link) {
        if let Self::Under { begun, last, bytes } = self {
            link.transferred(bytes, last.duration_since(begun));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn transfer(link: &Link, blocks: u64, pause: bool) {
        let mut stretch = Stretch::default();
        // Waiting for the first block is no part of it.
        tokio::time::advance(Duration::from_secs(5)).await;
        for _ in 0..=blocks {
            stretch.block(1 << 20);
            tokio::time::advance(Duration::from_millis(10)).await;
        }
        if pause {
            tokio::time::advance(PAUSE).await;
        }
        stretch.block(1 << 20);
        stretch.end(link);
    }

    #[tokio::test(start_paused = true)]
    async fn long_stretches_show_the_rate() {
        let link = Link::default();
        transfer(&link, 50, true).await;
        assert_eq!(link.estimate().0, None);
        transfer(&link, 50, false).await;
        let (rate, _) = link.estimate();
        assert!((rate.unwrap() / (f64::from(1 << 20) / 0.01) - 1.0).abs() < 0.01, "{rate:?}");
    }

    #[test]
    fn short_stretches_and_repeated_handshakes_show_nothing() {
        let link = Link::default();
        link.transferred(MIN_STRETCH_BYTES - 1, Duration::from_millis(1));
        link.transferred(1 << 20, Duration::ZERO);
        link.connected(Duration::from_millis(1001));
        assert_eq!(link.estimate(), (None, None));
        let mut stretch = Stretch::default();
        stretch.block(1 << 20);
        stretch.end(&link);
        assert_eq!(link.estimate(), (None, None));
    }

    #[test]
    fn means_follow_slowly() {
        let link = Link::default();
        link.connected(Duration::from_millis(2));
        assert_eq!(link.estimate().1, Some(Duration::from_millis(1)));
        link.connected(Duration::from_millis(18));
        assert_eq!(link.estimate().1, Some(Duration::from_millis(2)));
        link.transferred(8 << 20, Duration::from_secs(1));
        link.transferred(16 << 20, Duration::from_secs(1));
        assert_eq!(link.estimate().0, Some(f64::from(9 << 20)));
    }
}
