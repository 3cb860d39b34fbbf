//! Notices when a connection has stood still for too long.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// The time at which bytes last moved.
///
/// A beat is one store, cheap enough for each system call; the timer is only looked at when it fires.
#[derive(Debug)]
pub(super) struct Pulse {
    origin: Instant,
    /// Microseconds since `origin`.
    last: AtomicU64,
}

impl Pulse {
    /// A pulse that beats now.
    pub(super) fn new() -> Self {
        Self { origin: Instant::now(), last: AtomicU64::new(0) }
    }

    /// Bytes have moved.
    pub(super) fn beat(&self) {
        let micros = self.origin.elapsed().as_micros();
        self.last.store(u64::try_from(micros).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Waits until there was no beat for `limit`.
    pub(super) async fn silent_for(&self, limit: Duration) {
        loop {
            let last = self.last.load(Ordering::Relaxed);
            let deadline = self.origin + Duration::from_micros(last) + limit;
            sleep_until(deadline).await;
            if self.last.load(Ordering::Relaxed) == last {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn silence_is_counted_from_the_last_beat() {
        let pulse = Pulse::new();
        let limit = Duration::from_secs(5);
        let beats = async {
            for _ in 0..3 {
                tokio::time::sleep(Duration::from_secs(4)).await;
                pulse.beat();
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = pulse.silent_for(limit) => {}
            () = beats => {}
        }
        // The timer wheel counts in milliseconds, and rounds up.
        let waited = pulse.origin.elapsed();
        assert!((Duration::from_secs(17)..Duration::from_millis(17_010)).contains(&waited), "{waited:?}");
    }
}
