use std::collections::BTreeSet;
use std::time::Duration;

use self::rest::Noise;
use super::trial::TESTED_FOR;
use super::*;

mod rest;

const UNKNOWN: Start = Start { lanes: 1, is_settled: false };
/// Rate of the simulated link, in bytes per millisecond.
const LINK: u64 = 25_000;
const FRAME: u64 = 16 << 10;

/// A simulated store whose connections share the link evenly, unless their cap or source limits
/// them.
struct Sender {
    lanes: HostLanes,
    streams: Vec<Sent>,
    link: u64,
    round_trip_us: u32,
    others: u64,
    millisecond: u64,
    acknowledged_bytes: u64,
    noise: Option<Noise>,
}

struct Sent {
    id: StreamId,
    flow_cap: u64,
    source: u64,
    opens: usize,
    open: BTreeMap<LaneId, Lane>,
    trace: Vec<usize>,
    is_resting: bool,
    rests: usize,
    rested_ms: u64,
}

#[derive(Default)]
struct Lane {
    accepted: u64,
    acknowledged: u64,
    rests_until: u64,
}

impl Lane {
    const fn rests(&self, millisecond: u64) -> bool {
        self.rests_until > millisecond
    }
}

fn peer(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

impl Sender {
    fn new() -> Self {
        Self::starting_with(UNKNOWN)
    }

    fn starting_with(first: Start) -> Self {
        Self {
            lanes: HostLanes::new(first),
            streams: Vec::new(),
            link: LINK,
            round_trip_us: 200,
            others: 0,
            millisecond: 0,
            acknowledged_bytes: 0,
            noise: None,
        }
    }

    fn now(&self) -> Time {
        Time::from_micros(1000 * self.millisecond)
    }

    fn begin(&mut self, peer: &NodeId, flow_cap: u64) -> usize {
        self.begin_from(peer, flow_cap, u64::MAX)
    }

    fn begin_from(&mut self, peer: &NodeId, flow_cap: u64, source: u64) -> usize {
        let supply = if source == u64::MAX { Supply::Whole } else { Supply::Chain };
        let id = self.lanes.begin(self.now(), peer, (1, 16), supply);
        let open = BTreeMap::from([(self.lanes.join(id, None, 0).unwrap(), Lane::default())]);
        self.streams.push(Sent {
            id,
            flow_cap,
            source,
            opens: 64,
            open,
            trace: Vec::new(),
            is_resting: false,
            rests: 0,
            rested_ms: 0,
        });
        self.streams.len() - 1
    }

    fn begin_all(&mut self, streams: usize, peer: impl Fn(usize) -> NodeId, flow_cap: u64) {
        for number in 0..streams {
            self.begin(&peer(number), flow_cap);
        }
    }

    fn end(&mut self) {
        self.streams.drain(..).for_each(|stream| self.lanes.end(stream.id));
    }

    fn carrying(&self, stream: &Sent) -> u64 {
        let is_carrying =
            |lane: &&Lane| !lane.rests(self.millisecond) || lane.accepted > lane.acknowledged;
        stream.open.values().filter(is_carrying).count().max(1) as u64
    }

    fn rates(&self) -> Vec<u64> {
        let demand = |stream: &Sent| stream.flow_cap.min(stream.source / self.carrying(stream));
        let mut waiting: BTreeSet<(u64, usize)> = self
            .streams
            .iter()
            .enumerate()
            .map(|(index, stream)| (demand(stream), index))
            .collect();
        let mut rates = vec![0; self.streams.len()];
        let mut left = self.link;
        let mut connections =
            self.others + self.streams.iter().map(|stream| self.carrying(stream)).sum::<u64>();
        while let Some((demand, index)) = waiting.pop_first() {
            let carrying = self.carrying(&self.streams[index]);
            rates[index] = demand.min(left / connections.max(1));
            left -= rates[index] * carrying;
            connections -= carrying;
        }
        rates
    }

    fn rate(&self) -> u64 {
        self.rates()
            .iter()
            .zip(&self.streams)
            .map(|(rate, stream)| rate * self.carrying(stream))
            .sum()
    }

    fn run(&mut self, millis: u64) {
        for _ in 0..millis {
            let percent = self.noise.as_mut().map_or(100, |noise| noise.percent(self.millisecond));
            let rates = self.rates();
            for (index, rate) in rates.into_iter().enumerate() {
                self.step(index, rate * percent / 100);
            }
            self.millisecond += 1;
        }
    }

    fn step(&mut self, index: usize, rate: u64) {
        let (now, millisecond) = (self.now(), self.millisecond);
        let carrying = self.carrying(&self.streams[index]);
        let stream = &mut self.streams[index];
        let favoured =
            self.noise.as_mut().map(|noise| noise.favoured(millisecond, stream.open.len()));
        let is_starved = rate * carrying >= stream.source / 8 * 7;
        let unsent = if carrying == 1 { 128 << 10 } else { 32 << 10 };
        let (mut asked, mut left) = (0, Vec::new());
        let mut starved = if is_starved { Duration::from_millis(1) } else { Duration::ZERO };
        for (index, (id, lane)) in stream.open.iter_mut().enumerate() {
            let rate = match favoured {
                Some(favoured) if carrying > 1 && favoured == index => rate * 3 / 2,
                Some(_) if carrying > 1 => rate - rate / 2 / (carrying - 1),
                _ => rate,
            };
            let sent = rate.min(lane.accepted - lane.acknowledged);
            lane.acknowledged += sent;
            self.acknowledged_bytes += sent;
            if !stream.is_resting {
                lane.rests_until = 0;
            }
            while lane.accepted - lane.acknowledged < unsent
                && !left.contains(id)
                && !lane.rests(millisecond)
            {
                let delivery = Delivery {
                    acknowledged_bytes: lane.acknowledged,
                    bytes_per_second: 1000 * rate,
                    round_trip_us: self.round_trip_us,
                    ..Delivery::default()
                };
                let progress = super::Progress {
                    delivery: Some(delivery),
                    starved: std::mem::take(&mut starved),
                    left_bytes: u64::MAX,
                    acknowledged_bytes: self.acknowledged_bytes,
                };
                let turn = self.lanes.turn(now, stream.id, *id, &progress);
                let has_rested = std::mem::replace(&mut stream.is_resting, turn.is_resting);
                stream.rests += usize::from(turn.is_resting && !has_rested);
                match turn.action {
                    LaneAction::Send => lane.accepted += FRAME,
                    LaneAction::Ask(count) => asked += count,
                    LaneAction::Leave => left.push(*id),
                    LaneAction::Rest => {
                        lane.rests_until = millisecond + REST_LIMIT.as_millis() as u64;
                    }
                }
            }
        }
        for lane in left {
            stream.open.remove(&lane);
            self.lanes.leave(stream.id, lane, true);
        }
        let room = stream.opens.saturating_sub(stream.open.len());
        for _ in 0..asked.min(room) {
            if let Some(lane) = self.lanes.join(stream.id, None, self.others as usize) {
                stream.open.insert(lane, Lane::default());
            }
        }
        stream.trace.push(stream.open.len());
        stream.rested_ms += u64::from(stream.is_resting);
    }

    fn open(&self) -> Vec<usize> {
        self.streams.iter().map(|stream| stream.open.len()).collect()
    }

    fn known(&self, peer: &NodeId) -> Option<Start> {
        self.lanes.memory.known(self.now(), peer, 1)
    }
}

fn settled(lanes: usize) -> Option<Start> {
    Some(Start { lanes, is_settled: true })
}

#[test]
fn a_link_that_one_connection_fills_keeps_one() {
    for flow_cap in [u64::MAX, 2 * LINK, LINK] {
        let mut sender = Sender::new();
        sender.begin(&peer("a"), flow_cap);
        sender.run(1000);
        assert_eq!(sender.known(&peer("a")), settled(1));
        let trace = &sender.streams[0].trace;
        assert_eq!(trace.iter().max(), Some(&2));
        assert!(trace.iter().filter(|lanes| **lanes > 1).count() < 50, "the trial is short");
    }
}

#[test]
fn concurrent_streams_keep_one_connection_without_a_cap() {
    for streams in [2, 4] {
        let mut sender = Sender::new();
        sender.begin_all(streams, |number| peer(&format!("n{}", number % 2)), u64::MAX);
        sender.run(2000);
        assert!(sender.open().iter().all(|lanes| *lanes == 1), "{:?}", sender.open());
        sender.end();
        sender.begin(&peer("n0"), u64::MAX);
        sender.run(1000);
        assert_eq!((sender.open(), sender.known(&peer("n0"))), (vec![1], settled(1)));
    }
}

#[test]
fn capped_connections_fill_the_link_together() {
    let cases =
        [(2, 2, 100), (3, 4, 150), (4, 4, 150), (8, 8, 250), (16, 16, 650), (100, 16, 6000)];
    for (parts, lanes, millis) in cases {
        let mut sender = Sender::new();
        sender.begin(&peer("a"), LINK / parts);
        sender.run(2 * millis);
        assert_eq!(sender.open(), [lanes], "1/{parts}");
        assert_eq!(sender.known(&peer("a")).unwrap().lanes, lanes);
        assert_eq!(sender.lanes.last_result(&peer("a")), Some(lanes));
        let ready = sender.streams[0].trace.iter().position(|count| *count >= lanes).unwrap();
        assert!(ready < millis as usize, "1/{parts}: {lanes} lanes after {ready} ms");
        let Sent { rests, rested_ms, .. } = sender.streams[0];
        assert_eq!(rests, 1, "1/{parts}");
        assert!(
            rested_ms <= if parts < 100 { 100 } else { 1000 },
            "1/{parts}: rested {rested_ms} ms"
        );
    }
}

#[test]
fn concurrent_streams_fill_the_link_and_share_one_result() {
    for parts in [2, 4, 8] {
        for streams in [2, 4] {
            for peers in [1, 2, 4] {
                let mut sender = Sender::new();
                let name = |number: usize| peer(&format!("n{}", number % peers));
                sender.begin_all(streams, name, LINK / parts);
                sender.run(1000);
                let cell =
                    format!("1/{parts}, {streams} streams, {peers} peers: {:?}", sender.open());
                assert!(sender.rate() >= LINK / 100 * 98, "{cell}");
                let total: usize = sender.open().iter().sum();
                assert!(total <= 2 * streams.max(parts as usize), "{cell}");
                sender.end();
                for streams in [1, 2, 4] {
                    sender.begin_all(streams, name, LINK / parts);
                    sender.run(400);
                    assert!(sender.rate() >= LINK / 100 * 98, "{cell}, then {:?}", sender.open());
                    sender.end();
                }
            }
        }
    }
}

#[test]
fn peers_with_different_caps_have_their_own_numbers() {
    let (near, far) = (peer("near"), peer("far"));
    let mut sender = Sender::new();
    for _ in 0..6 {
        sender.begin(&near, LINK / 2);
        sender.run(1000);
        sender.end();
        sender.begin(&far, LINK / 8);
        sender.run(1000);
        sender.end();
        assert_eq!(sender.known(&far), settled(8));
        sender.millisecond += TESTED_FOR.as_millis() as u64;
    }
    sender.begin(&near, LINK / 2);
    sender.run(1000);
    assert_eq!(sender.known(&near), settled(2));
    sender.begin(&far, LINK / 8);
    sender.run(1000);
    assert!(sender.rate() >= LINK / 100 * 98, "{:?}", sender.open());
}

#[test]
fn a_known_result_costs_nothing() {
    for lanes in [1, 8] {
        let mut sender = Sender::starting_with(Start { lanes, is_settled: true });
        sender.begin(&peer("a"), LINK / 8);
        sender.run(1000);
        assert!(sender.streams[0].trace.iter().all(|count| *count == lanes));
        assert_eq!(sender.known(&peer("a")), None, "nothing new");
    }
}

#[test]
fn too_many_lanes_are_not_kept_after_a_test() {
    let mut sender = Sender::starting_with(Start { lanes: 4, is_settled: false });
    for expected in [4, 2, 1, 1] {
        sender.begin(&peer("a"), u64::MAX);
        sender.run(1000);
        assert_eq!(sender.known(&peer("a")), settled(expected));
        sender.end();
        sender.millisecond += TESTED_FOR.as_millis() as u64;
    }
}

#[test]
fn a_trial_disturbed_by_other_streams_is_repeated() {
    let mut sender = Sender::new();
    sender.begin(&peer("a"), LINK / 8);
    sender.run(20);
    sender.link = LINK / 8;
    sender.run(200);
    assert_eq!(sender.known(&peer("a")), settled(1));
    sender.link = LINK;
    sender.run(1500);
    assert_eq!(sender.open(), [8]);
}

#[test]
fn a_slow_source_gets_no_lanes() {
    let mut sender = Sender::new();
    sender.begin_from(&peer("a"), 10_000, 5_000);
    sender.run(1000);
    assert_eq!(sender.known(&peer("a")), None);
    assert_eq!(sender.streams[0].trace.iter().max(), Some(&1));
    sender.end();
    sender.begin_from(&peer("a"), 5_000, 10_000);
    sender.run(1000);
    assert_eq!(sender.open(), [2]);
}

#[test]
fn a_chain_uses_a_known_number_at_once() {
    let mut sender = Sender::new();
    sender.begin(&peer("a"), LINK / 4);
    sender.run(1000);
    sender.end();
    for name in ["a", "b"] {
        sender.begin_from(&peer(name), LINK / 4, LINK);
        sender.run(3);
        assert_eq!(sender.open(), [4], "{name}");
        sender.run(1000);
        assert_eq!(sender.open(), [4], "{name}");
        sender.end();
    }
}

#[test]
fn a_slow_chain_does_not_take_the_lanes_of_other_streams() {
    let mut sender = Sender::new();
    sender.begin(&peer("a"), LINK / 4);
    sender.run(1000);
    sender.end();
    sender.begin_from(&peer("b"), LINK / 4, LINK / 100);
    sender.run(100);
    sender.begin(&peer("a"), LINK / 4);
    sender.run(100);
    assert_eq!(sender.open()[1], 4);
}

#[test]
fn starting_and_ending_streams_do_not_spoil_a_trial() {
    for cap in [u64::MAX, LINK / 4] {
        let mut sender = Sender::new();
        sender.begin(&peer("a"), cap);
        for _ in 0..20 {
            sender.run(37);
            sender.begin(&peer("b"), cap);
            sender.run(23);
            let short = sender.streams.pop().unwrap();
            sender.lanes.end(short.id);
        }
        sender.end();
        sender.begin(&peer("a"), cap);
        sender.run(1500);
        let lanes = if cap == u64::MAX { 1 } else { 4 };
        assert_eq!(sender.open(), [lanes]);
    }
}

#[test]
fn lanes_do_not_slow_streams_of_other_stores() {
    for others in 1..=4 {
        let mut sender = Sender::new();
        sender.others = others;
        sender.begin(&peer("a"), u64::MAX);
        sender.run(1000);
        assert_eq!(sender.known(&peer("a")), settled(1), "{others}");
    }
    let mut sender = Sender::new();
    sender.others = 2;
    sender.begin(&peer("a"), LINK / 8);
    sender.run(1000);
    assert_eq!(sender.known(&peer("a")), settled(4));
}

#[test]
fn a_receiver_that_opens_no_lane_gets_no_second_request() {
    let mut sender = Sender::new();
    sender.begin(&peer("a"), 1000);
    sender.streams[0].opens = 1;
    sender.run(1400);
    assert!(sender.streams[0].trace.iter().all(|lanes| *lanes == 1));
    assert_eq!(sender.known(&peer("a")), settled(1));
}

#[test]
fn small_streams_get_few_lanes() {
    assert_eq!(
        [0, LANE_BYTES, 4 * LANE_BYTES, u64::MAX].map(|bytes| lane_limit(16, bytes)),
        [1, 1, 4, 16]
    );
    assert_eq!((lane_limit(0, u64::MAX), lane_limit(1000, u64::MAX)), (1, MAX_LANES));
}

#[test]
fn broken_and_surplus_lanes_are_counted() {
    let mut lanes = HostLanes::new(Start { lanes: 3, is_settled: true });
    let stream = lanes.begin(Time::ZERO, &peer("a"), (1, 16), Supply::Whole);
    let progress = super::Progress {
        delivery: None,
        starved: Duration::ZERO,
        left_bytes: u64::MAX,
        acknowledged_bytes: 0,
    };
    let first = lanes.join(stream, None, 0).unwrap();
    assert_eq!(lanes.turn(Time::ZERO, stream, first, &progress).action, LaneAction::Ask(2));
    assert_eq!(
        lanes.turn(Time::ZERO, stream, first, &progress).action,
        LaneAction::Send,
        "asked once"
    );
    let second = lanes.join(stream, None, 0).unwrap();
    assert!(lanes.join(stream, None, 0).is_some());
    assert_eq!(lanes.join(stream, None, 0), None, "one too many");
    lanes.leave(stream, second, false);
    assert_eq!(lanes.turn(Time::ZERO, stream, first, &progress).action, LaneAction::Send);
    lanes.end(stream);
    assert_eq!(lanes.join(stream, None, 0), None, "it has ended");
}
