//! How much of a timeout is left to a call that takes several steps.

use std::time::{Duration, Instant};

/// A timeout that runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    started: Instant,
    timeout: Duration,
}

impl Deadline {
    pub(crate) fn after(timeout: Duration) -> Self {
        Self { started: Instant::now(), timeout }
    }

    /// The whole timeout.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// What is left of it; zero if it has passed.
    pub(crate) fn left(&self) -> Duration {
        self.timeout.saturating_sub(self.started.elapsed())
    }
}
