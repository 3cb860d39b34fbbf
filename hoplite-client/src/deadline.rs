use std::time::{Duration, Instant};

#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    started: Instant,
    timeout: Duration,
}

impl Deadline {
    pub(crate) fn after(timeout: Duration) -> Self {
        Self { started: Instant::now(), timeout }
    }

    pub(crate) fn started(&self) -> Instant {
        self.started
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(crate) fn left(&self) -> Duration {
        self.timeout.saturating_sub(self.started.elapsed())
    }
}
