use std::time::Duration;

/// Smaller differences count as zero, because times are rounded to nanoseconds.
pub(super) const ROUNDING_BYTES: f64 = 16.0;

/// Growth along a straight line: a number of bytes at a time, and its growth per nanosecond.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Line {
    pub(super) since: Duration,
    pub(super) bytes: f64,
    pub(super) rate: f64,
}

impl Line {
    pub(super) const fn flat(since: Duration, bytes: f64) -> Self {
        Self { since, bytes, rate: 0.0 }
    }

    pub(super) fn bytes_at(self, now: Duration) -> f64 {
        self.rate.mul_add(nanos(now.saturating_sub(self.since)), self.bytes)
    }

    /// Returns the nanoseconds until this line reaches `other` above it.
    pub(super) fn meets(self, other: Self, now: Duration) -> Option<f64> {
        let (gap, closing) = (other.bytes_at(now) - self.bytes_at(now), self.rate - other.rate);
        // Rates that differ by rounding are equal.
        (closing > self.rate * 1e-9).then(|| gap.max(0.0) / closing)
    }
}

fn nanos(duration: Duration) -> f64 {
    (duration.as_secs() as f64).mul_add(1e9, f64::from(duration.subsec_nanos()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_faster_line_meets_a_slower_one() {
        let at = Duration::from_nanos;
        let slow = Line { since: at(100), bytes: 50.0, rate: 1.0 };
        let fast = Line { since: at(200), bytes: 50.0, rate: 3.0 };
        assert_eq!(slow.bytes_at(at(200)), 150.0);
        assert_eq!(fast.meets(slow, at(200)), Some(50.0));
        assert_eq!(fast.bytes_at(at(250)), slow.bytes_at(at(250)));
        assert_eq!(slow.meets(slow, at(200)), None);
        assert_eq!(Line::flat(at(0), 7.0).meets(slow, at(0)), None);
    }
}
