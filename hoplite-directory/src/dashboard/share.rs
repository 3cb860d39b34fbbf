//! A shard's time for a long dashboard query, which runs in short turns.

use std::time::Duration;

use tokio::time::Instant;

/// Pause after each part of a query, as a multiple of the part's time: nine tenths of the time stay
/// for stores.
const PAUSE: u32 = 9;
/// Assumed time of a part during which the query is cancelled.
const ASSUMED_TURN: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub(super) struct Share {
    next: Instant,
}

impl Share {
    pub(super) fn new(now: Instant) -> Self {
        Self { next: now }
    }

    pub(super) const fn next(&self) -> Instant {
        self.next
    }

    pub(super) fn begin(&mut self, now: Instant) {
        self.next = now + ASSUMED_TURN * (PAUSE + 1);
    }

    pub(super) fn end(&mut self, now: Instant, took: Duration) {
        self.next = now + took.saturating_mul(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_use_at_most_a_tenth_of_the_time() {
        let start = Instant::now();
        let mut share = Share::new(start);
        let mut busy = Duration::ZERO;
        for turn in 0..1000_u64 {
            let begun = share.next();
            let took = Duration::from_micros(turn * turn % 5000);
            share.begin(begun);
            share.end(begun + took, took);
            busy += took;
        }
        assert!(busy > Duration::from_secs(1));
        assert_eq!(share.next() - start, busy * 10);
    }

    #[test]
    fn a_cancelled_turn_is_followed_by_a_pause() {
        let start = Instant::now();
        let mut share = Share::new(start);
        share.begin(start);
        assert_eq!(share.next() - start, 10 * ASSUMED_TURN);
    }
}
