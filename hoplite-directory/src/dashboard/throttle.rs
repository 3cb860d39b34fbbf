//! Slows down sources that try wrong tokens.
//!
//! Each wrong token adds to two debts, of its source and of all sources, which decrease with time.
//! While either is at its limit, the source's tokens are refused unchecked.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use tokio::time::Instant;

/// A person who mistypes notices nothing, and a program gets 15 tries a minute.
const SOURCE_RATE: Rate = Rate { burst: 8, interval: Duration::from_secs(4) };
/// Only forty or more sources together reach this limit.
const TOTAL_RATE: Rate = Rate { burst: 100, interval: Duration::from_millis(100) };
/// Sources whose wrong tokens are counted separately; further sources share one count.
const MAX_SOURCES: usize = 1024;

#[derive(Debug, Clone, Copy)]
struct Rate {
    burst: u32,
    /// Time after which one wrong token is forgotten.
    interval: Duration,
}

/// Origin of login attempts: an IPv4 address, or an IPv6 network (/64), usually of one customer.
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
    others: Debt,
}

/// Recent wrong tokens, as the time at which all are forgotten.
#[derive(Debug, Clone, Copy, Default)]
struct Debt(Option<Instant>);

impl Debt {
    fn is_zero_at(self, now: Instant) -> bool {
        self.0.is_none_or(|zero_at| zero_at <= now)
    }

    fn wait(self, now: Instant, rate: Rate) -> Duration {
        let debt = self.0.map_or(Duration::ZERO, |zero_at| zero_at.saturating_duration_since(now));
        (debt + rate.interval).saturating_sub(rate.interval * rate.burst)
    }

    fn add(&mut self, now: Instant, rate: Rate) {
        let zero_at = self.0.map_or(now, |zero_at| zero_at.max(now)) + rate.interval;
        self.0 = Some(zero_at.min(now + rate.interval * rate.burst));
    }
}

impl Throttle {
    pub(super) fn wait(&self, source: Source, now: Instant) -> Duration {
        let own = match self.sources.get(&source) {
            Some(debt) => *debt,
            None if self.sources.len() >= MAX_SOURCES => self.others,
            None => Debt::default(),
        };
        own.wait(now, SOURCE_RATE).max(self.all.wait(now, TOTAL_RATE))
    }

    pub(super) fn record_wrong_token(&mut self, source: Source, now: Instant) {
        self.all.add(now, TOTAL_RATE);
        if !self.sources.contains_key(&source) && self.sources.len() >= MAX_SOURCES {
            self.sources.retain(|_, debt| !debt.is_zero_at(now));
        }
        let is_full = self.sources.len() >= MAX_SOURCES;
        match self.sources.get_mut(&source) {
            Some(debt) => debt.add(now, SOURCE_RATE),
            None if is_full => self.others.add(now, SOURCE_RATE),
            None => self.sources.entry(source).or_default().add(now, SOURCE_RATE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(number: u32) -> Source {
        IpAddr::from(number.to_be_bytes()).into()
    }

    fn checked_tokens(
        throttle: &mut Throttle,
        source_of: impl Fn(u32) -> Source,
        tries: u32,
        pause: Duration,
    ) -> u32 {
        let begun = Instant::now();
        let mut checked_tokens = 0;
        for number in 0..tries {
            let (now, source) = (begun + pause * number, source_of(number));
            if throttle.wait(source, now).is_zero() {
                throttle.record_wrong_token(source, now);
                checked_tokens += 1;
            }
        }
        checked_tokens
    }

    #[test]
    fn one_source_is_throttled_for_a_bounded_time() {
        let mut throttle = Throttle::default();
        let minute = checked_tokens(&mut throttle, |_| source(1), 6000, Duration::from_millis(10));
        assert!((15..=8 + 15).contains(&minute), "{minute}");
        let now = Instant::now() + Duration::from_secs(120);
        (0..SOURCE_RATE.burst).for_each(|_| throttle.record_wrong_token(source(1), now));
        let wait = throttle.wait(source(1), now);
        assert_eq!(wait, SOURCE_RATE.interval);
        assert!(throttle.wait(source(1), now + wait).is_zero());
        assert!(throttle.wait(source(2), now).is_zero());
    }

    #[test]
    fn many_sources_are_throttled_together_in_bounded_memory() {
        let mut throttle = Throttle::default();
        let minute = checked_tokens(&mut throttle, source, 60_000, Duration::from_millis(1));
        assert!((600..=100 + 600).contains(&minute), "{minute}");
        assert!(throttle.sources.len() <= MAX_SOURCES);
        let (mut throttle, now) = (Throttle::default(), Instant::now());
        (0..1000).for_each(|number| throttle.record_wrong_token(source(number), now));
        assert_eq!(throttle.wait(source(1_000_000), now), TOTAL_RATE.interval);
        let mut throttle = Throttle::default();
        let now = Instant::now();
        (0..5000).for_each(|number| throttle.record_wrong_token(source(number), now));
        assert_eq!(throttle.sources.len(), MAX_SOURCES);
        assert!(throttle.others.wait(now, SOURCE_RATE) > Duration::ZERO);
        let later = now + Duration::from_secs(3600);
        assert!(throttle.wait(source(4999), later).is_zero());
        throttle.record_wrong_token(source(9999), later);
        assert_eq!(throttle.sources.len(), 1);
    }

    #[test]
    fn an_ipv6_network_is_one_source_and_a_mapped_ipv4_address_is_its_ipv4_source() {
        let source = |text: &str| Source::from(text.parse::<IpAddr>().unwrap());
        assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:1"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
        assert_eq!(source("::ffff:10.0.0.1"), source("10.0.0.1"));
        assert_ne!(source("10.0.0.1"), source("10.0.0.2"));
    }
}
