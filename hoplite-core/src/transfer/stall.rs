//! Stalled transfers: no live node is known to produce the next byte.
//!
//! Keepalives do not justify waiting for ever, because nodes may pull from each other in a cycle.
//! Missing bytes do not justify giving up, because a client may write slowly. A node leaves a cycle
//! of two when its sender requests bytes from it; shards or signs end longer cycles.
//!
//! A producer makes growing [`Sign`]s, and relays pass on the latest. In a cycle, the greatest sign
//! goes round once, then no new one comes.

use std::time::Duration;

use crate::time::Time;
use crate::vocabulary::local::Producer;

/// A transfer counts as stalled after this time without bytes or the producer's new [`Sign`]: twice
/// a sender's longest silence. Before that, a receiver leaves a frozen sender, and receivers behind
/// it get new signs.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(10);

/// A receiver's longest wait for a complete sender's next bytes, if another node is complete too. A
/// false alarm costs one query.
pub const SHORT_SILENCE: Duration = Duration::from_millis(300);
/// Limit for opening a connection, with several round trips, in place of [`SHORT_SILENCE`].
pub const SHORT_CONNECT: Duration = Duration::from_millis(1200);

/// Number that grows while an object's producer lives; zero at first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Sign(pub u64);

impl Sign {
    /// Returns the sign that a node sends to receivers of its copy. `heard` is the latest sign from
    /// the node's own sender.
    pub fn of(producer: Producer, heard: Self, now: Time) -> Self {
        match producer {
            // A combination makes new signs: it notices stalled inputs itself.
            Producer::Worker | Producer::Reduce => Self(now.as_micros()),
            Producer::Store => heard,
        }
    }
}

/// Result of a keepalive for the stall detection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// New sign of the producer, to forward to receivers.
    News,
    /// No new sign.
    Nothing,
    /// Bytes and new signs are overdue.
    Stalled,
}

/// Detects a stalled transfer.
#[derive(Debug, Clone)]
pub struct StallDetector {
    timeout: Duration,
    latest: Sign,
    news_at: Time,
}

impl StallDetector {
    /// Begins a transfer. `latest` is the latest sign that the receiver knows.
    pub const fn new(now: Time, latest: Sign, timeout: Duration) -> Self {
        Self { timeout, latest, news_at: now }
    }

    /// Notes arrived bytes.
    pub const fn arrived(&mut self, now: Time) {
        self.news_at = now;
    }

    /// Handles a keepalive.
    pub fn heard(&mut self, now: Time, sign: Sign) -> Heard {
        if sign > self.latest {
            (self.latest, self.news_at) = (sign, now);
            Heard::News
        } else if now.since(self.news_at) > self.timeout {
            Heard::Stalled
        } else {
            Heard::Nothing
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Time {
        Time::from_micros(seconds * 1_000_000)
    }

    struct Cluster {
        nodes: Vec<(Option<usize>, StallDetector, Option<u64>)>,
    }

    impl Cluster {
        fn new(senders: &[Option<usize>], heard: &[u64]) -> Self {
            let detector = |heard: &u64| StallDetector::new(at(0), Sign(*heard), STALL_TIMEOUT);
            let nodes =
                senders.iter().zip(heard).map(|(sender, heard)| (*sender, detector(heard), None));
            Self { nodes: nodes.collect() }
        }

        fn said_by(&self, node: usize, second: u64) -> Sign {
            let (sender, detector, _) = &self.nodes[node];
            let producer = if sender.is_none() { Producer::Worker } else { Producer::Store };
            Sign::of(producer, detector.latest, at(second))
        }

        fn run(&mut self, seconds: u64) -> (Vec<Option<u64>>, usize) {
            let mut passed = 0;
            for second in 1..=seconds {
                passed = 0;
                let mut speaking: Vec<usize> = (0..self.nodes.len()).collect();
                while let Some(speaker) = speaking.pop() {
                    let sign = self.said_by(speaker, second);
                    for node in 0..self.nodes.len() {
                        let (sender, detector, stalled) = &mut self.nodes[node];
                        if *sender != Some(speaker) || stalled.is_some() {
                            continue;
                        }
                        match detector.heard(at(second), sign) {
                            Heard::News => {
                                passed += 1;
                                speaking.push(node);
                            }
                            Heard::Nothing => {}
                            Heard::Stalled => *stalled = Some(second),
                        }
                    }
                }
            }
            (self.nodes.iter().map(|(_, _, stalled)| *stalled).collect(), passed)
        }
    }

    #[test]
    fn a_chain_waits_for_its_producer_however_long_it_is() {
        let senders: Vec<Option<usize>> = (0..500_usize).map(|node| node.checked_sub(1)).collect();
        let (stalled, passed) = Cluster::new(&senders, &[0; 500]).run(60);
        assert!(stalled.iter().all(Option::is_none));
        assert_eq!(passed, 499, "each sign goes over each link once");
    }

    #[test]
    fn a_cycle_stalls_whatever_its_nodes_have_heard_before() {
        for heard in [[0, 0, 0], [7, 7, 7], [1, 2, 3], [9, 2, 5], [u64::MAX, 1, 0]] {
            let (stalled, _) = Cluster::new(&[Some(2), Some(0), Some(1)], &heard).run(20);
            assert!(
                stalled.iter().all(|second| second.is_some_and(|second| second <= 13)),
                "{stalled:?}"
            );
        }
    }

    #[test]
    fn what_hangs_on_a_cycle_stalls_too() {
        let (stalled, _) = Cluster::new(&[Some(1), Some(0), Some(1), Some(2)], &[4; 4]).run(20);
        assert_eq!(stalled, [Some(11); 4]);
    }

    #[test]
    fn bytes_are_news() {
        let mut detector = StallDetector::new(at(0), Sign(3), STALL_TIMEOUT);
        assert_eq!(detector.heard(at(9), Sign(3)), Heard::Nothing);
        detector.arrived(at(9));
        assert_eq!(detector.heard(at(19), Sign(3)), Heard::Nothing);
        assert_eq!(detector.heard(at(20), Sign(2)), Heard::Stalled);
        assert_eq!(detector.heard(at(20), Sign(4)), Heard::News);
        assert_eq!(detector.heard(at(30), Sign(4)), Heard::Nothing);
    }

    #[test]
    fn only_a_producer_creates_signs() {
        let heard = Sign(5);
        assert_eq!(Sign::of(Producer::Worker, heard, at(1)), Sign(1_000_000));
        assert_eq!(Sign::of(Producer::Reduce, heard, at(1)), Sign(1_000_000));
        assert_eq!(Sign::of(Producer::Store, heard, at(1)), heard);
    }
}
