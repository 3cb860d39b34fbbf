//! Counts of answered calls and their waiting times.

use std::time::Duration;

/// Number of classes of waiting times. Class `n` starts at 2^n microseconds; the last one has no
/// end.
pub const WAIT_CLASSES: usize = 28;

/// Counts of a store's answered calls since its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Calls answered with an object.
    pub gets: u64,
    /// Failed calls.
    pub failures: u64,
    /// Waiting times of the calls in `gets`.
    pub waits: Waits,
}

impl Tally {
    /// Counts an answered call that took `waited`.
    pub fn got(&mut self, waited: Duration) {
        self.gets += 1;
        self.waits.add(waited);
    }

    /// Returns each count's growth since `before`; zero for counts that a restart has reset.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            gets: self.gets.saturating_sub(before.gets),
            failures: self.failures.saturating_sub(before.failures),
            waits: self.waits.since(&before.waits),
        }
    }
}

/// Number of calls in each class of waiting times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Waits(pub [u64; WAIT_CLASSES]);

impl Waits {
    fn add(&mut self, waited: Duration) {
        let micros = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX).max(1);
        let class = usize::try_from(micros.ilog2())
            .map_or(WAIT_CLASSES - 1, |log| log.min(WAIT_CLASSES - 1));
        self.0[class] += 1;
    }

    /// Adds the counts of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.0
            .iter_mut()
            .zip(other.0)
            .for_each(|(count, more)| *count = count.saturating_add(more));
    }

    fn since(&self, before: &Self) -> Self {
        let mut counts = self.0;
        counts
            .iter_mut()
            .zip(before.0)
            .for_each(|(count, then)| *count = count.saturating_sub(then));
        Self(counts)
    }

    /// Returns a quantile of the waiting times, rounded up to at most its double; `None` without
    /// calls.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let all: u64 = self.0.iter().fold(0, |sum, count| sum.saturating_add(*count));
        #[expect(clippy::cast_precision_loss, reason = "a rounded rank is precise enough")]
        let rank = share.clamp(0.0, 1.0) * all as f64;
        let mut below = 0_u64;
        for (class, count) in self.0.iter().enumerate() {
            below = below.saturating_add(*count);
            #[expect(clippy::cast_precision_loss, reason = "a rounded rank is precise enough")]
            if *count > 0 && below as f64 >= rank {
                return Some(Duration::from_micros(2 << class));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_upper_bounds() {
        let mut tally = Tally::default();
        assert_eq!(tally.waits.quantile(0.5), None);
        (0..98).for_each(|_| tally.got(Duration::ZERO));
        let before = tally;
        tally.got(Duration::from_millis(3));
        tally.got(Duration::from_secs(86_400));
        assert_eq!(tally.waits.quantile(0.5), Some(Duration::from_micros(2)));
        assert_eq!(tally.waits.quantile(0.99), Some(Duration::from_micros(4096)));
        assert_eq!(tally.waits.quantile(1.0), Some(Duration::from_micros(1 << WAIT_CLASSES)));
        let since = tally.since(&before);
        assert_eq!((since.gets, since.waits.quantile(0.0)), (2, Some(Duration::from_micros(4096))));
        assert_eq!(before.since(&tally), Tally::default(), "a restarted store counts from zero");
    }
}
