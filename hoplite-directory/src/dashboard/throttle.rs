//! Slows down sources that try wrong tokens.
//!
//! Each wrong token adds to two debts, of its source and of all sources, which decrease with time.
//! While either is at its limit, the source's tokens are refused unchecked.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use tokio::time::Instant;

/// Limit of one source: enough for a person; a program gets 15 tries a minute.
const OF_ONE: Rate = Rate { burst: 8, interval: Duration::from_secs(4) };
/// Limit of all sources, which at least forty of them reach.
const OF_ALL: Rate = Rate { burst: 100, interval: Duration::from_millis(100) };
/// Most sources with their own debt; further ones share one.
const MAX_SOURCES: usize = 1024;

#[derive(Debug, Clone, Copy)]
struct Rate {
    burst: u32,
    /// Time in which the debt decreases by one wrong token.
    interval: Duration,
}

/// An IPv4 address, or the IPv6 network of one customer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Source(IpAddr);

impl From<IpAddr> for Source {
    fn from(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(address) => {
                let network = address.to_bits() & !u128::from(u64::MAX);
                IpAddr::V6(Ipv6Addr::from_bits(network))
            }
            v4 => v4,
        })
    }
}

#[derive(Debug, Default)]
pub(super) struct Throttle {
    all: Debt,
    sources: BTreeMap<Source, Debt>,
    /// Shared debt of all sources beyond [`MAX_SOURCES`].
    others: Debt,
}

/// Time at which the debt is zero again.
#[derive(Debug, Clone, Copy, Default)]
struct Debt(Option<Instant>);

impl Debt {
    fn is_paid(self, now: Instant) -> bool {
        self.0.is_none_or(|paid_at| paid_at <= now)
    }

    fn wait(self, now: Instant, rate: Rate) -> Duration {
        let debt = self.0.map_or(Duration::ZERO, |paid_at| paid_at.saturating_duration_since(now));
        (debt + rate.interval).saturating_sub(rate.interval * rate.burst)
    }

    fn add(&mut self, now: Instant, rate: Rate) {
        let paid_at = self.0.map_or(now, |paid_at| paid_at.max(now)) + rate.interval;
        self.0 = Some(paid_at.min(now + rate.interval * rate.burst));
    }
}

impl Throttle {
    /// Returns the time until the next token of `source` is checked.
    pub(super) fn wait(&self, source: Source, now: Instant) -> Duration {
        let own = match self.sources.get(&source) {
            Some(debt) => *debt,
            None if self.sources.len() >= MAX_SOURCES => self.others,
            None => Debt::default(),
        };
        own.wait(now, OF_ONE).max(self.all.wait(now, OF_ALL))
    }

    pub(super) fn was_wrong(&mut self, source: Source, now: Instant) {
        self.all.add(now, OF_ALL);
        if !self.sources.contains_key(&source) && self.sources.len() >= MAX_SOURCES {
            self.sources.retain(|_, debt| !debt.is_paid(now));
        }
        let is_full = self.sources.len() >= MAX_SOURCES;
        match self.sources.get_mut(&source) {
            Some(debt) => debt.add(now, OF_ONE),
            None if is_full => self.others.add(now, OF_ONE),
            None => self.sources.entry(source).or_default().add(now, OF_ONE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(number: u32) -> Source {
        IpAddr::from(number.to_be_bytes()).into()
    }

    fn looked_at(throttle: &mut Throttle, who: impl Fn(u32) -> Source, tries: u32, pause: Duration) -> u32 {
        let begun = Instant::now();
        let mut looked_at = 0;
        for number in 0..tries {
            let (now, source) = (begun + pause * number, who(number));
            if throttle.wait(source, now).is_zero() {
                throttle.was_wrong(source, now);
                looked_at += 1;
            }
        }
        looked_at
    }

    #[test]
    fn one_source_is_slowed_down_and_never_for_long() {
        let mut throttle = Throttle::default();
        let minute = looked_at(&mut throttle, |_| source(1), 6000, Duration::from_millis(10));
        assert!((15..=8 + 15).contains(&minute), "{minute}");
        let now = Instant::now() + Duration::from_secs(120);
        (0..OF_ONE.burst).for_each(|_| throttle.was_wrong(source(1), now));
        let wait = throttle.wait(source(1), now);
        assert_eq!(wait, OF_ONE.interval);
        assert!(throttle.wait(source(1), now + wait).is_zero());
        assert!(throttle.wait(source(2), now).is_zero());
    }

    #[test]
    fn many_sources_are_slowed_down_together_in_bounded_memory() {
        let mut throttle = Throttle::default();
        let minute = looked_at(&mut throttle, source, 60_000, Duration::from_millis(1));
        assert!((600..=100 + 600).contains(&minute), "{minute}");
        assert!(throttle.sources.len() <= MAX_SOURCES);
        let (mut throttle, now) = (Throttle::default(), Instant::now());
        (0..1000).for_each(|number| throttle.was_wrong(source(number), now));
        assert_eq!(throttle.wait(source(1_000_000), now), OF_ALL.interval);
        let mut throttle = Throttle::default();
        let now = Instant::now();
        (0..5000).for_each(|number| throttle.was_wrong(source(number), now));
        assert_eq!(throttle.sources.len(), MAX_SOURCES);
        assert!(throttle.others.wait(now, OF_ONE) > Duration::ZERO);
        let later = now + Duration::from_secs(3600);
        assert!(throttle.wait(source(4999), later).is_zero());
        throttle.was_wrong(source(9999), later);
        assert_eq!(throttle.sources.len(), 1);
    }

    #[test]
    fn a_network_of_ipv6_is_one_source_and_an_address_of_ipv4_in_it_is_that() {
        let source = |text: &str| Source::from(text.parse::<IpAddr>().unwrap());
        assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:1"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
        assert_eq!(source("::ffff:10.0.0.1"), source("10.0.0.1"));
        assert_ne!(source("10.0.0.1"), source("10.0.0.2"));
    }
}
