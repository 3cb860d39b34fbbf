//! Repeated failures of peers: decides which are logged and shown.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::vocabulary::error::{Error, ErrorCode};
use crate::vocabulary::id::NodeId;
use crate::vocabulary::time::Time;

/// Shortest time between log lines about one kind of failure.
const REPEAT_PAUSE: Duration = Duration::from_secs(10);
const MAX_KINDS: usize = 8;
/// Most peers with remembered failures.
pub const MAX_FAULTY_PEERS: usize = 64;
/// Time for which a failure is shown as the cause of a wait.
pub const FAULT_TTL: Duration = Duration::from_secs(60);

/// A failure's code, and its text without numbers, which differ between attempts.
type Kind = (ErrorCode, String);

fn kind(error: &Error) -> Kind {
    let text = error.to_string().chars().filter(|character| !character.is_ascii_digit()).collect();
    (error.code(), text)
}

/// Recently logged failures of a peer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LoggedFailures {
    kinds: VecDeque<(Kind, Time)>,
}

impl LoggedFailures {
    /// Records a failure. Returns `true` if it should be logged.
    pub fn is_news(&mut self, now: Time, error: &Error) -> bool {
        let kind = kind(error);
        let is_last = self.kinds.back().is_some_and(|(last, _)| *last == kind);
        let is_recent =
            |(logged, at): &(Kind, Time)| *logged == kind && now.since(*at) < REPEAT_PAUSE;
        if is_last || self.kinds.iter().any(is_recent) {
            return false;
        }
        self.kinds.retain(|(logged, _)| *logged != kind);
        if self.kinds.len() >= MAX_KINDS {
            self.kinds.pop_front();
        }
        self.kinds.push_back((kind, now));
        true
    }
}

/// A peer's last failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Failure.
    pub error: Error,
    /// Time of the first failure after the last success.
    pub since: Time,
    /// Time of the last failure.
    pub at: Time,
}

/// Peers unreachable at the last attempt.
#[derive(Debug, Default)]
pub struct PeerFaults {
    faults: BTreeMap<NodeId, (Fault, LoggedFailures)>,
}

impl PeerFaults {
    /// Records a failed attempt to reach `peer`. Returns `true` if it should be logged.
    pub fn failed(&mut self, now: Time, peer: &NodeId, error: Error) -> bool {
        if let Some((fault, logged)) = self.faults.get_mut(peer) {
            *fault = Fault { error, at: now, since: fault.since };
            return logged.is_news(now, &fault.error);
        }
        if self.faults.len() >= MAX_FAULTY_PEERS {
            let oldest = self.faults.iter().min_by_key(|(_, (fault, _))| fault.at);
            if let Some(oldest) = oldest.map(|(peer, _)| peer.clone()) {
                self.faults.remove(&oldest);
            }
        }
        let mut logged = LoggedFailures::default();
        let is_news = logged.is_news(now, &error);
        self.faults.insert(peer.clone(), (Fault { error, since: now, at: now }, logged));
        is_news
    }

    /// Records that `peer` was reached. Returns `true` if the previous attempt had failed.
    pub fn reached(&mut self, peer: &NodeId) -> bool {
        self.faults.remove(peer).is_some()
    }

    /// A peer's last failure, if at most [`FAULT_TTL`] old.
    pub fn of(&self, now: Time, peer: &NodeId) -> Option<&Fault> {
        let (fault, _) = self.faults.get(peer)?;
        (now.since(fault.at) <= FAULT_TTL).then_some(fault)
    }

    /// All failures at most [`FAULT_TTL`] old.
    pub fn recent(&self, now: Time) -> impl Iterator<Item = (&NodeId, &Fault)> {
        let faults = self.faults.iter().map(|(peer, (fault, _))| (peer, fault));
        faults.filter(move |(_, fault)| now.since(fault.at) <= FAULT_TTL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    fn away(port: u16) -> Error {
        Error::Unavailable { what: format!("127.0.0.1:{port}").into() }
    }

    #[test]
    fn a_kind_of_failure_is_news_when_it_changes() {
        let mut logged = LoggedFailures::default();
        let refused = Error::permission_denied("another token");
        assert!(logged.is_news(at(0), &away(1)));
        assert!(!logged.is_news(at(1), &away(2)), "only a number differs");
        assert!(logged.is_news(at(2), &refused));
        assert!(!logged.is_news(at(60_000), &refused), "it goes on");
        assert!(logged.is_news(at(60_001), &away(1)), "it is news again");
    }

    #[test]
    fn alternating_failures_are_logged_at_intervals() {
        let mut logged = LoggedFailures::default();
        let refused = Error::permission_denied("another token");
        let mut count = 0;
        for second in 0..60_u64 {
            let error = if second % 2 == 0 { &refused } else { &away(1) };
            count += usize::from(logged.is_news(at(second * 1000), error));
        }
        assert!((10..=13).contains(&count), "{count}");
    }

    #[test]
    fn remembered_kinds_and_peers_are_bounded() {
        let mut logged = LoggedFailures::default();
        let mut faults = PeerFaults::default();
        for number in 0..200_u32 {
            let text: String = std::iter::repeat_n('x', number as usize).collect();
            let error = Error::Unavailable { what: text.into() };
            logged.is_news(at(0), &error);
            let peer = NodeId::new(&format!("n{number}")).unwrap();
            assert!(faults.failed(at(number.into()), &peer, error));
        }
        assert_eq!(logged.kinds.len(), MAX_KINDS);
        assert_eq!(faults.faults.len(), MAX_FAULTY_PEERS);
        let peer = NodeId::new("n199").unwrap();
        assert!(faults.of(at(200), &peer).is_some() && faults.of(at(61_000), &peer).is_none());
        assert!(faults.reached(&peer) && !faults.reached(&peer));
    }
}
