use std::sync::Mutex;
use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_secs(1);

/// Permits one log line a second for one kind of event.
#[derive(Debug)]
pub struct Repeated(Mutex<State>);

#[derive(Debug)]
struct State {
    logged: Option<Instant>,
    unlogged: u64,
}

impl Default for Repeated {
    fn default() -> Self {
        Self::new()
    }
}

impl Repeated {
    /// A limiter that has seen no event.
    pub const fn new() -> Self {
        Self(Mutex::new(State { logged: None, unlogged: 0 }))
    }

    /// Counts an event. Returns the number of events since the last log line; `None` if that line
    /// is less than a second old.
    pub fn notice(&self) -> Option<u64> {
        self.notice_at(Instant::now())
    }

    fn notice_at(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        state.unlogged += 1;
        if state.logged.is_some_and(|logged| now.saturating_duration_since(logged) < INTERVAL) {
            return None;
        }
        state.logged = Some(now);
        Some(std::mem::take(&mut state.unlogged))
    }
}

/// Logs a warning, at most once a second for each place in the code, and further events at the
/// debug level. `times` is the number of events since the last warning.
#[macro_export]
macro_rules! warn_repeated {
    ($($event:tt)+) => {{
        static FAULTS: $crate::Repeated = $crate::Repeated::new();
        match FAULTS.notice() {
            Some(times) => tracing::warn!(times, $($event)+),
            None => tracing::debug!($($event)+),
        }
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_event_a_second_is_logged_with_the_count_of_skipped_events() {
        let (repeated, start) = (Repeated::new(), Instant::now());
        let logged: Vec<Option<u64>> = [0, 1, 999, 1000, 1500, 2500]
            .iter()
            .map(|millis| repeated.notice_at(start + Duration::from_millis(*millis)))
            .collect();
        assert_eq!(logged, [Some(1), None, None, Some(3), None, Some(2)]);
    }
}
