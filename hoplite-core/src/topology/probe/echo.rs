//! Echoes (requests and replies) of a pair of nodes.
//!
//! If a request follows a reply at once, the answering side measures a round trip, too, and reports
//! it in its next reply.
//!
//! The answering side replies once per request, and only to the address that the coordinator named,
//! so forged requests cause no traffic.

use std::net::SocketAddr;
use std::time::Duration;

use super::{BLOCK, Probes, Samples};

/// Time to wait for a peer's first reply. Each further timeout doubles it.
const FIRST_TIMEOUT_NS: u64 = 100_000_000;
/// Shortest time to wait for a reply, because hosts pause for some milliseconds.
const MIN_TIMEOUT_NS: u64 = 20_000_000;
const TIMEOUT_ROUND_TRIPS: u64 = 8;
const MAX_TIMEOUT_NS: u64 = 800_000_000;
/// After this many requests without reply (1.5 seconds), the peer's port counts as closed.
const MAX_SILENT: u32 = 4;
const MAX_LOST_IN_A_ROW: u32 = 8;
/// A late reply to one of this many latest requests is still valid.
const MAX_REMEMBERED: usize = 8;
/// Shortest time of 64 requests: 10,000 a second.
const BLOCK_NS: u64 = 100_000 * BLOCK as u64;
/// Longest time for which two nodes exchange echoes.
pub const MAX_ECHO_TIME: Duration = Duration::from_secs(5);
const MAX_BURST: u64 = 4 * BLOCK as u64;
/// Shortest mean time between replies: half the interval of requests, so a correct peer always gets
/// replies.
const REPLY_NS: u64 = 50_000;

/// A packet's kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PacketKind {
    /// A request for a reply.
    Ask {
        /// `true` if the request follows the previous reply at once.
        is_prompt: bool,
    },
    /// A reply to a request.
    Reply,
}

/// An echo request or reply. Both have the same length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub struct Packet {
    pub kind: PacketKind,
    /// Pair's random secret in this round.
    pub nonce: u64,
    pub number: u32,
    /// In a reply, the answering side's latest round trip in nanoseconds; otherwise zero.
    pub round_trip_ns: u64,
}

/// Next action of the requesting node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Send this packet.
    Send(Packet),
    /// Wait for packets until this time, then call [`EchoRequester::next_action`] again.
    Wait {
        /// End of the wait.
        until_ns: u64,
    },
    /// The series ends.
    Done,
}

/// Side that sends requests. Times are of a monotonic clock.
#[derive(Debug, Clone)]
pub struct EchoRequester {
    nonce: u64,
    probes: Probes,
    forth: Samples,
    back: Samples,
    next_number: u32,
    sent: [Option<(u32, u64)>; MAX_REMEMBERED],
    awaited_until_ns: Option<u64>,
    is_prompt: bool,
    not_before_ns: u64,
    block_began_ns: u64,
    ends_ns: u64,
    timeout_ns: u64,
    lost_in_a_row: u32,
    lost: u32,
}

/// Measured round trips between two nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Echoes {
    /// 10th percentile of the requester's round trips, in nanoseconds.
    pub forth_ns: u64,
    /// 10th percentile of the responder's round trips, in nanoseconds, or zero.
    pub back_ns: u64,
    /// Number of the requester's round trips.
    pub count: u32,
    /// Number of requests without a timely reply.
    pub lost: u32,
}

impl EchoRequester {
    /// Begins a series of echoes.
    pub fn new(now_ns: u64, nonce: u64, probes: Probes) -> Self {
        Self {
            nonce,
            probes,
            forth: Samples::default(),
            back: Samples::default(),
            next_number: 0,
            sent: [None; MAX_REMEMBERED],
            awaited_until_ns: None,
            is_prompt: false,
            not_before_ns: now_ns,
            block_began_ns: now_ns,
            ends_ns: now_ns
                .saturating_add(u64::try_from(MAX_ECHO_TIME.as_nanos()).unwrap_or(u64::MAX)),
            timeout_ns: FIRST_TIMEOUT_NS,
            lost_in_a_row: 0,
            lost: 0,
        }
    }

    /// Returns the next action.
    pub fn next_action(&mut self, now_ns: u64) -> Action {
        if self.forth.suffice(self.probes) || now_ns >= self.ends_ns {
            return Action::Done;
        }
        if let Some(until_ns) = self.awaited_until_ns {
            if now_ns < until_ns {
                return Action::Wait { until_ns: until_ns.min(self.ends_ns) };
            }
            self.awaited_until_ns = None;
            self.is_prompt = false;
            self.lost += 1;
            self.lost_in_a_row += 1;
            self.timeout_ns = (2 * self.timeout_ns).min(MAX_TIMEOUT_NS);
        }
        let limit = if self.forth.is_empty() { MAX_SILENT } else { MAX_LOST_IN_A_ROW };
        if self.lost_in_a_row >= limit {
            return Action::Done;
        }
        if now_ns < self.not_before_ns {
            return Action::Wait { until_ns: self.not_before_ns.min(self.ends_ns) };
        }
        let number = self.next_number;
        self.next_number += 1;
        self.sent[number as usize % MAX_REMEMBERED] = Some((number, now_ns));
        self.awaited_until_ns = Some(now_ns.saturating_add(self.timeout_ns));
        let kind = PacketKind::Ask { is_prompt: self.is_prompt };
        Action::Send(Packet { kind, nonce: self.nonce, number, round_trip_ns: 0 })
    }

    /// Handles a packet, which anyone may have sent.
    pub fn received(&mut self, now_ns: u64, packet: &Packet) {
        let sent = &mut self.sent[packet.number as usize % MAX_REMEMBERED];
        let is_reply = packet.kind == PacketKind::Reply && packet.nonce == self.nonce;
        let Some((number, sent_ns)) =
            sent.filter(|(number, _)| is_reply && *number == packet.number)
        else {
            return;
        };
        *sent = None;
        let round_trip_ns = now_ns.saturating_sub(sent_ns);
        self.forth.add(round_trip_ns);
        if packet.round_trip_ns > 0 {
            self.back.add(packet.round_trip_ns);
        }
        if number + 1 != self.next_number {
            return;
        }
        (self.awaited_until_ns, self.is_prompt, self.lost_in_a_row) = (None, true, 0);
        self.timeout_ns =
            round_trip_ns.saturating_mul(TIMEOUT_ROUND_TRIPS).clamp(MIN_TIMEOUT_NS, MAX_TIMEOUT_NS);
        if self.forth.len().is_multiple_of(BLOCK) {
            self.not_before_ns = self.block_began_ns.saturating_add(BLOCK_NS);
            self.block_began_ns = self.not_before_ns.max(now_ns);
            self.is_prompt = now_ns >= self.not_before_ns;
        }
    }

    /// Results so far; `None` without a reply.
    pub fn echoes(&self) -> Option<Echoes> {
        Some(Echoes {
            forth_ns: self.forth.round_trip_ns()?,
            back_ns: self.back.round_trip_ns().unwrap_or(0),
            count: u32::try_from(self.forth.len()).unwrap_or(u32::MAX),
            lost: self.lost,
        })
    }
}

/// Side that replies to requests.
#[derive(Debug, Clone)]
pub struct EchoResponder {
    nonce: u64,
    asker: SocketAddr,
    last: Option<(u32, u64)>,
    /// Time up to which past replies use up the reply rate. While it is far ahead, requests get
    /// no reply.
    busy_until_ns: u64,
}

impl EchoResponder {
    /// Makes a side that replies only to requests with `nonce` from `asker`.
    pub const fn new(nonce: u64, asker: SocketAddr) -> Self {
        Self { nonce, asker, last: None, busy_until_ns: 0 }
    }

    /// Returns the reply to a request; `None` for a wrong sender or nonce, a repetition, or above
    /// the reply rate.
    pub fn reply(&mut self, now_ns: u64, from: SocketAddr, packet: &Packet) -> Option<Packet> {
        let PacketKind::Ask { is_prompt } = packet.kind else { return None };
        let is_new = self.last.is_none_or(|(number, _)| packet.number > number);
        let is_directed = packet.nonce == self.nonce && from == self.asker;
        let busy_until_ns = self.busy_until_ns.max(now_ns);
        if !is_directed || !is_new || busy_until_ns - now_ns > MAX_BURST * REPLY_NS {
            return None;
        }
        self.busy_until_ns = busy_until_ns + REPLY_NS;
        let previous = self.last.filter(|(number, _)| is_prompt && packet.number == number + 1);
        let round_trip_ns = previous.map_or(0, |(_, replied_ns)| now_ns.saturating_sub(replied_ns));
        self.last = Some((packet.number, now_ns));
        Some(Packet {
            kind: PacketKind::Reply,
            nonce: self.nonce,
            number: packet.number,
            round_trip_ns,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::topology::random::Random;

    const NONCE: u64 = 7;

    fn requester_address() -> SocketAddr {
        "10.0.0.1:4000".parse().unwrap()
    }

    fn exchange(
        delay_ns: u64,
        lost_percent: u64,
        seed: u64,
        probes: Probes,
    ) -> (Option<Echoes>, u64, usize) {
        let mut random = Random::new(seed);
        let mut asker = EchoRequester::new(0, NONCE, probes);
        let mut answerer = EchoResponder::new(NONCE, requester_address());
        let mut replies = 0;
        let mut now_ns = 0;
        let mut arriving: Vec<(u64, Packet)> = Vec::new();
        loop {
            match asker.next_action(now_ns) {
                Action::Done => return (asker.echoes(), now_ns, replies),
                Action::Send(packet) => {
                    for _ in 0..1 + random.below(2) {
                        let at_ns = now_ns + delay_ns + random.below(delay_ns / 50 + 1);
                        if random.below(100) >= lost_percent
                            && let Some(reply) = answerer.reply(at_ns, requester_address(), &packet)
                            && random.below(100) >= lost_percent
                        {
                            replies += 1;
                            arriving.push((at_ns + delay_ns, reply));
                        }
                    }
                }
                Action::Wait { until_ns } => {
                    arriving.sort_by_key(|(at_ns, _)| *at_ns);
                    if arriving.first().is_some_and(|(at_ns, _)| *at_ns <= until_ns) {
                        let (at_ns, packet) = arriving.remove(0);
                        now_ns = now_ns.max(at_ns);
                        asker.received(now_ns, &packet);
                    } else {
                        now_ns = until_ns;
                    }
                }
            }
        }
    }

    #[test]
    fn both_sides_see_the_round_trip() {
        let (echoes, took_ns, _) = exchange(20_000, 0, 1, Probes::Auto);
        let echoes = echoes.unwrap();
        assert!((40_000..41_000).contains(&echoes.forth_ns), "{echoes:?}");
        assert!((40_000..41_000).contains(&echoes.back_ns), "{echoes:?}");
        assert_eq!((echoes.count, echoes.lost), (4 * BLOCK as u32, 0));
        assert!((3 * BLOCK_NS..4 * BLOCK_NS).contains(&took_ns), "the rate is bounded: {took_ns}");
    }

    #[test]
    fn a_silent_port_ends_the_probe() {
        let (echoes, took_ns, _) = exchange(20_000, 100, 1, Probes::Auto);
        assert_eq!((echoes, took_ns), (None, 1_500_000_000));
    }

    #[test]
    fn a_link_slower_than_the_first_timeout_is_measured() {
        let (echoes, took_ns, _) = exchange(300_000_000, 0, 1, Probes::Count(3));
        let echoes = echoes.unwrap();
        assert!((600_000_000..620_000_000).contains(&echoes.forth_ns), "{echoes:?}");
        assert!(u128::from(took_ns) <= MAX_ECHO_TIME.as_nanos());
    }

    proptest! {
        #[test]
        fn losses_and_duplicates_change_no_round_trip(lost in 0_u64..40, seed in any::<u64>(), probes in 1_u32..300) {
            let (echoes, took_ns, replies) = exchange(50_000, lost, seed, Probes::Count(probes));
            prop_assert!(u128::from(took_ns) <= MAX_ECHO_TIME.as_nanos());
            if let Some(echoes) = echoes {
                prop_assert!((100_000..102_000).contains(&echoes.forth_ns), "{:?}", echoes);
                prop_assert!(echoes.count <= probes && echoes.count as usize <= replies);
                prop_assert!(lost > 0 || echoes.lost == 0 && echoes.count == probes);
            }
        }

        #[test]
        fn forged_packets_are_no_replies(
            nonce in any::<u64>(), number in any::<u32>(), is_reply in any::<bool>(), at_ns in any::<u64>(),
        ) {
            let mut asker = EchoRequester::new(0, NONCE, Probes::Auto);
            let _ = asker.next_action(0);
            let kind = if is_reply { PacketKind::Reply } else { PacketKind::Ask { is_prompt: true } };
            asker.received(at_ns, &Packet { kind, nonce, number, round_trip_ns: 1 });
            prop_assert_eq!(asker.echoes().is_some(), nonce == NONCE && number == 0 && is_reply);
        }
    }

    #[test]
    fn each_expected_request_gets_one_reply() {
        let mut answerer = EchoResponder::new(NONCE, requester_address());
        let request_packet = |number| Packet {
            kind: PacketKind::Ask { is_prompt: true },
            nonce: NONCE,
            number,
            round_trip_ns: 0,
        };
        let elsewhere = "10.0.0.1:4001".parse().unwrap();
        assert_eq!(answerer.reply(0, elsewhere, &request_packet(0)), None);
        assert_eq!(
            answerer.reply(0, requester_address(), &Packet { nonce: 8, ..request_packet(0) }),
            None
        );
        assert_eq!(
            answerer.reply(
                0,
                requester_address(),
                &Packet { kind: PacketKind::Reply, ..request_packet(0) }
            ),
            None
        );
        let reply = answerer.reply(1000, requester_address(), &request_packet(0)).unwrap();
        assert_eq!((reply.kind, reply.number, reply.round_trip_ns), (PacketKind::Reply, 0, 0));
        assert_eq!(
            answerer.reply(2000, requester_address(), &request_packet(0)),
            None,
            "a duplicate"
        );
        assert_eq!(
            answerer.reply(3000, requester_address(), &request_packet(1)).unwrap().round_trip_ns,
            2000
        );
        assert_eq!(
            answerer.reply(3000, requester_address(), &request_packet(0)),
            None,
            "an old request"
        );
    }

    #[test]
    fn replies_are_capped() {
        let mut answerer = EchoResponder::new(NONCE, requester_address());
        let mut replies = |numbers: std::ops::Range<u32>, now_ns| {
            let request_packet = |number| Packet {
                kind: PacketKind::Ask { is_prompt: false },
                nonce: NONCE,
                number,
                round_trip_ns: 0,
            };
            numbers
                .filter(|&number| {
                    answerer.reply(now_ns, requester_address(), &request_packet(number)).is_some()
                })
                .count()
        };
        assert_eq!(replies(0..100_000, 0) as u64, MAX_BURST + 1);
        assert_eq!(replies(100_000..200_000, 1_000_000) as u64, 1_000_000 / REPLY_NS);
    }
}
