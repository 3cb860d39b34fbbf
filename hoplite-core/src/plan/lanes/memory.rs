//! Remembers, for each peer, the lanes that earlier trials found.

use std::collections::BTreeMap;
use std::time::Duration;

use super::trial::{Start, TESTED_FOR, Verdict, retry_after};
use crate::id::NodeId;
use crate::time::Time;

pub(super) const KEPT_FOR: Duration = Duration::from_secs(600);
pub(super) const MAX_PEERS: usize = 1024;

#[derive(Debug, Clone, Copy)]
struct Known {
    /// Best tested number of lanes, for all streams to the peer together.
    lanes: usize,
    /// Number of streams that the network limited in the test.
    streams: usize,
    is_settled: bool,
    /// Number of successive tests with this result.
    trials: u32,
    at: Time,
}

impl Known {
    fn share(&self, now: Time, streams: usize) -> Start {
        // If several streams filled the link with one lane each, one stream alone may need more.
        let is_settled = self.is_settled && (self.lanes > 1 || streams >= self.streams);
        let is_settled = is_settled && now.since(self.at) < retry_after(self.trials);
        Start { lanes: self.lanes.div_ceil(streams), is_settled }
    }
}

#[derive(Debug)]
pub(super) struct LaneMemory {
    first: Start,
    peers: BTreeMap<NodeId, Known>,
    /// Latest test's result, for peers without a test.
    latest: Option<Known>,
}

impl LaneMemory {
    pub(super) const fn new(first: Start) -> Self {
        Self { first, peers: BTreeMap::new(), latest: None }
    }

    /// Number of connections for the next stream to a peer, while the network limits
    /// `streams` streams.
    ///
    /// A stream that may test starts with half of an old or guessed number, which its first
    /// doubling tests.
    pub(super) fn start(&self, now: Time, peer: &NodeId, streams: usize, is_tester: bool) -> Start {
        if let Some(known) = self.known(now, peer, streams) {
            return known;
        }
        let of_peer = self.peers.get(peer).filter(|known| now.since(known.at) < KEPT_FOR);
        let guess = of_peer.or(self.latest.as_ref()).filter(|known| now.since(known.at) < KEPT_FOR);
        guess.map_or(self.first, |known| {
            let Start { lanes, .. } = known.share(now, streams);
            let lanes = if is_tester { lanes.div_ceil(2) } else { lanes };
            Start { lanes, is_settled: false }
        })
    }

    /// Number of lanes for one of `streams` streams, from a recent test.
    pub(super) fn known(&self, now: Time, peer: &NodeId, streams: usize) -> Option<Start> {
        let known = self.peers.get(peer).filter(|known| now.since(known.at) < TESTED_FOR)?;
        Some(known.share(now, streams))
    }

    pub(super) fn last(&self, peer: &NodeId) -> Option<usize> {
        self.peers.get(peer).map(|known| known.lanes)
    }

    pub(super) fn learnt(&mut self, now: Time, peer: &NodeId, streams: usize, verdict: Verdict) {
        let Verdict { lanes, is_settled } = verdict;
        let before = self.peers.get(peer).filter(|known| now.since(known.at) < KEPT_FOR);
        let confirmed =
            before.filter(|known| known.share(now, streams).lanes == lanes && known.lanes > 1);
        let total =
            confirmed.map_or(if lanes > 1 { lanes * streams } else { 1 }, |known| known.lanes);
        let is_repeated =
            before.is_some_and(|known| known.lanes == total && known.is_settled && is_settled);
        let trials = if is_repeated { before.map_or(0, |known| known.trials) } else { 0 };
        let known =
            Known { lanes: total, streams, is_settled, trials: trials.saturating_add(1), at: now };
        if !self.peers.contains_key(peer) && self.peers.len() >= MAX_PEERS {
            let oldest =
                self.peers.iter().min_by_key(|(_, known)| known.at).map(|(peer, _)| peer.clone());
            oldest.and_then(|oldest| self.peers.remove(&oldest));
        }
        self.peers.insert(peer.clone(), known);
        self.latest = Some(known);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNKNOWN: Start = Start { lanes: 1, is_settled: false };

    fn node(name: &str) -> NodeId {
        NodeId::new(name).unwrap()
    }

    fn at(time: Duration) -> Time {
        Time::ZERO + time
    }

    #[test]
    fn results_age() {
        let (near, far) = (node("a"), node("b"));
        let mut memory = LaneMemory::new(UNKNOWN);
        assert_eq!(memory.start(Time::ZERO, &near, 1, true), UNKNOWN);
        memory.learnt(Time::ZERO, &near, 1, Verdict { lanes: 8, is_settled: true });
        let half = Start { lanes: 4, is_settled: false };
        let known = Start { lanes: 8, is_settled: true };
        assert_eq!(memory.start(at(retry_after(1) / 2), &near, 1, true), known);
        let retried = Start { lanes: 8, is_settled: false };
        assert_eq!(memory.start(at(retry_after(1)), &near, 1, true), retried);
        assert_eq!(
            memory.start(at(TESTED_FOR / 2), &far, 1, true),
            half,
            "a guess from another peer"
        );
        let whole = Start { lanes: 8, is_settled: false };
        assert_eq!(
            memory.start(at(TESTED_FOR / 2), &far, 1, false),
            whole,
            "a chain loses no time"
        );
        assert_eq!(memory.start(at(TESTED_FOR), &near, 1, true), half);
        assert_eq!(memory.start(at(TESTED_FOR), &near, 1, false), whole);
        assert_eq!(memory.start(at(KEPT_FOR), &near, 1, true), UNKNOWN);
    }

    #[test]
    fn a_result_stands_for_longer_each_time() {
        let peer = node("a");
        let (mut memory, mut now) = (LaneMemory::new(UNKNOWN), Time::ZERO);
        for seconds in [1, 4, 16, 60, 60] {
            memory.learnt(now, &peer, 1, Verdict { lanes: 2, is_settled: true });
            let settled = |time| memory.start(now + time, &peer, 1, true).is_settled;
            let length = Duration::from_secs(seconds);
            assert!(settled(length - Duration::from_millis(1)) && !settled(length), "{seconds} s");
            now = now + length;
        }
        memory.learnt(now, &peer, 1, Verdict { lanes: 4, is_settled: true });
        assert!(
            !memory.start(now + Duration::from_secs(1), &peer, 1, true).is_settled,
            "another result"
        );
    }

    #[test]
    fn streams_divide_the_lanes() {
        let peer = node("a");
        let mut memory = LaneMemory::new(UNKNOWN);
        memory.learnt(Time::ZERO, &peer, 2, Verdict { lanes: 4, is_settled: true });
        assert_eq!((memory.last(&peer), memory.last(&node("b"))), (Some(8), None));
        for (streams, lanes) in [(1, 8), (2, 4), (3, 3), (8, 1), (20, 1)] {
            let start = Start { lanes, is_settled: true };
            assert_eq!(memory.start(Time::ZERO, &peer, streams, true), start);
        }
        memory.learnt(at(TESTED_FOR), &peer, 8, Verdict { lanes: 1, is_settled: true });
        assert_eq!(
            memory.start(at(TESTED_FOR), &peer, 1, true),
            Start { lanes: 8, is_settled: true }
        );
    }

    #[test]
    fn one_lane_per_stream_does_not_predict_a_single_stream() {
        let peer = node("a");
        let mut memory = LaneMemory::new(UNKNOWN);
        memory.learnt(Time::ZERO, &peer, 4, Verdict { lanes: 1, is_settled: true });
        assert_eq!(memory.start(Time::ZERO, &peer, 4, true), Start { lanes: 1, is_settled: true });
        assert_eq!(memory.start(Time::ZERO, &peer, 3, true), UNKNOWN);
    }

    #[test]
    fn the_memory_is_bounded() {
        let mut memory = LaneMemory::new(UNKNOWN);
        for number in 0..MAX_PEERS as u64 + 10 {
            let verdict = Verdict { lanes: 2, is_settled: true };
            memory.learnt(Time::from_micros(number), &node(&format!("n{number}")), 1, verdict);
        }
        assert_eq!(memory.peers.len(), MAX_PEERS);
        assert!(memory.peers.keys().all(|peer| peer.as_str() != "n0"));
    }
}
