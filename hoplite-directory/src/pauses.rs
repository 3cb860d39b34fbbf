//! Detects pauses of this process, such as between SIGSTOP and SIGCONT.
//!
//! During a pause, stores give up their sessions. They may delete an object and put it again with
//! the other shard of its id. The delete may still wait in this process's queues or socket buffers,
//! and would remove the new object. So the [owner](crate::owner) of the shard ends all sessions
//! after a pause. Stores send no messages before the shard has answered their hello, so later
//! sessions carry none from before the pause.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hoplite_core::session::STORE_PINGS;
use tokio::sync::Notify;
use tokio::time::{Instant, interval};
use tokio_util::sync::CancellationToken;

const INTERVAL: Duration = Duration::from_millis(200);
/// A little less than the silence after which stores give up their sessions.
const SHORTEST_PAUSE: Duration = STORE_PINGS.timeout.saturating_sub(Duration::from_millis(100));

#[derive(Debug, Clone)]
pub(crate) struct Pauses(Arc<State>);

#[derive(Debug)]
struct State {
    /// Time of the latest [`Pauses::count`], and the number of pauses.
    counted: Mutex<(Instant, u64)>,
    news: Notify,
}

impl Pauses {
    pub(crate) fn new() -> Self {
        Self(Arc::new(State { counted: Mutex::new((Instant::now(), 0)), news: Notify::new() }))
    }

    /// Returns the number of pauses: long gaps between two calls.
    pub(crate) fn count(&self) -> u64 {
        let mut state = self.0.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let (latest, count) = &mut *state;
        if latest.elapsed() >= SHORTEST_PAUSE {
            *count += 1;
            self.0.news.notify_one();
        }
        *latest = Instant::now();
        *count
    }

    /// Waits for the next pause. Only one task may wait.
    pub(crate) async fn next(&self) {
        self.0.news.notified().await;
    }

    /// Calls [`count`](Self::count) often, so that only a pause of this process makes a long gap.
    pub(crate) async fn watch(self, stop: CancellationToken) {
        let mut ticks = interval(INTERVAL);
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            self.count();
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_long_gaps_are_pauses() {
        let pauses = Pauses::new();
        for (gap, count) in [(0, 0), (899, 0), (900, 1), (0, 1), (60_000, 2)] {
            advance(Duration::from_millis(gap)).await;
            assert_eq!(pauses.count(), count, "after {gap} ms");
        }
    }
}
