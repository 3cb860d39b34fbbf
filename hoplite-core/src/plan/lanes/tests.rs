use super::*;

const UNKNOWN: Start = Start { lanes: 1, is_settled: false };

/// Rates are in bytes per millisecond.
struct Path {
    link: u64,
    flow_cap: u64,
    source: u64,
    /// Connections that share the link evenly.
    others: u64,
    round_trip_us: u32,
    opens: usize,
}

const PATH: Path =
    Path { link: 25_000, flow_cap: u64::MAX, source: u64::MAX, others: 0, round_trip_us: 200, opens: 64 };

impl Path {
    /// Returns the plan, and the lanes over time.
    fn send(&self, start: Start, millis: u64) -> (LanePlan, Vec<usize>) {
        let mut plan = LanePlan::new(16, start);
        plan.opened(LaneId(0), None);
        let (mut store_bytes, mut trace) = (0, Vec::new());
        let mut sent: BTreeMap<LaneId, u64> = BTreeMap::from([(LaneId(0), 0)]);
        for millisecond in 0..millis {
            let now = Time::from_micros(1000 * millisecond);
            let lanes = sent.len() as u64;
            let share = (self.link / (lanes + self.others)).min(self.flow_cap);
            let rate = share.min(self.source / lanes);
            let other_rate = (self.link / (lanes + self.others)).min(self.flow_cap) * self.others;
            store_bytes += rate * lanes + other_rate;
            if rate < share {
                plan.starved(Duration::from_millis(1));
            }
            for (lane, bytes) in &mut sent {
                *bytes += rate;
                let delivery = Delivery {
                    acknowledged_bytes: *bytes,
                    bytes_per_second: 1000 * rate,
                    round_trip_us: self.round_trip_us,
                    ..Delivery::default()
                };
                plan.frame(now, *lane, Some(delivery), store_bytes, u64::MAX);
            }
            while sent.len() < plan.wanted().min(self.opens) {
                let lane = LaneId(sent.len());
                plan.opened(lane, None);
                sent.insert(lane, 0);
            }
            while sent.len() > plan.wanted() {
                let lane = LaneId(sent.len() - 1);
                plan.closed(lane);
                sent.remove(&lane);
            }
            trace.push(sent.len());
        }
        (plan, trace)
    }
}

#[test]
fn a_link_that_one_connection_fills_keeps_one() {
    let (plan, trace) = PATH.send(UNKNOWN, 1000);
    assert_eq!(plan.result(), Some(Start { lanes: 1, is_settled: true }));
    assert_eq!(trace.iter().max(), Some(&2));
    assert!(trace.iter().filter(|lanes| **lanes > 1).count() < 50, "the trial is short");
}

#[test]
fn capped_connections_fill_the_link_together() {
    for (parts, lanes) in [(2, 2), (3, 4), (4, 4), (8, 8), (16, 16), (100, 16)] {
        let path = Path { flow_cap: PATH.link / parts, ..PATH };
        let (plan, trace) = path.send(UNKNOWN, 1000);
        assert_eq!(plan.result(), Some(Start { lanes, is_settled: true }), "a cap of 1/{parts}");
        let ready = trace.iter().position(|count| *count >= lanes).unwrap();
        assert!(ready < 200, "{lanes} lanes after {ready} ms");
    }
}

#[test]
fn a_known_result_costs_nothing() {
    for lanes in [1, 8] {
        let start = Start { lanes, is_settled: true };
        let (plan, trace) = Path { flow_cap: PATH.link / 8, ..PATH }.send(start, 1000);
        assert!(trace.iter().all(|count| *count == lanes));
        assert_eq!(plan.result(), None, "nothing new");
    }
}

#[test]
fn too_many_lanes_are_not_kept_after_a_test() {
    let (plan, _) = PATH.send(Start { lanes: 4, is_settled: false }, 1000);
    assert_eq!(plan.result(), Some(Start { lanes: 4, is_settled: true }));
    let mut memory = LaneMemory::new(UNKNOWN);
    let peer = NodeId::new("n").unwrap();
    let mut now = Time::ZERO;
    let mut result = plan.result().unwrap();
    for expected in [2, 1, 1] {
        memory.ended(now, &peer, result);
        now = now + TESTED_FOR;
        result = PATH.send(memory.start(now, &peer), 1000).0.result().unwrap();
        assert_eq!(result, Start { lanes: expected, is_settled: true });
    }
}

#[test]
fn a_slow_source_gets_no_lanes() {
    let (plan, trace) = Path { flow_cap: 10_000, source: 5_000, ..PATH }.send(UNKNOWN, 1000);
    assert_eq!((plan.result(), trace.iter().max()), (None, Some(&1)));
    let (plan, _) = Path { flow_cap: 5_000, source: 10_000, ..PATH }.send(UNKNOWN, 1000);
    assert_eq!(plan.wanted(), 2);
}

#[test]
fn lanes_do_not_take_from_other_streams() {
    let (plan, _) = Path { others: 1, ..PATH }.send(UNKNOWN, 1000);
    assert_eq!(plan.result(), Some(Start { lanes: 1, is_settled: true }));
}

#[test]
fn a_receiver_that_opens_none_is_not_asked_again() {
    let path = Path { flow_cap: 1000, opens: 1, ..PATH };
    let (plan, trace) = path.send(UNKNOWN, 2000);
    assert!(trace.iter().all(|lanes| *lanes == 1));
    assert_eq!(plan.result(), Some(Start { lanes: 1, is_settled: true }));
    assert_eq!(plan.wanted(), 1);
}

#[test]
fn small_streams_get_few_lanes() {
    assert_eq!([0, LANE_BYTES, 4 * LANE_BYTES, u64::MAX].map(|bytes| lane_limit(16, bytes)), [1, 1, 4, 16]);
    assert_eq!((lane_limit(0, u64::MAX), lane_limit(1000, u64::MAX)), (1, MAX_LANES));
}

#[test]
fn one_lane_is_never_measured() {
    let mut plan = LanePlan::new(1, Start { lanes: 8, is_settled: true });
    plan.opened(LaneId(0), None);
    assert_eq!((plan.wanted(), plan.is_adaptive()), (1, false));
}

#[test]
fn results_age() {
    let (near, far) = (NodeId::new("a").unwrap(), NodeId::new("b").unwrap());
    let mut memory = LaneMemory::new(UNKNOWN);
    assert_eq!(memory.start(Time::ZERO, &near), UNKNOWN);
    let result = Start { lanes: 8, is_settled: true };
    memory.ended(Time::ZERO, &near, result);
    let half = Start { lanes: 4, is_settled: false };
    let at = |time: Duration| Time::ZERO + time;
    assert_eq!(memory.start(at(TESTED_FOR / 2), &near), result);
    assert_eq!(memory.start(at(TESTED_FOR / 2), &far), half, "a guess from another peer");
    assert_eq!(memory.start(at(TESTED_FOR), &near), half);
    assert_eq!(memory.start(at(KEPT_FOR), &near), UNKNOWN);
}

#[test]
fn the_memory_is_bounded() {
    let mut memory = LaneMemory::new(UNKNOWN);
    for number in 0..MAX_PEERS as u64 + 10 {
        let peer = NodeId::new(&format!("n{number}")).unwrap();
        memory.ended(Time::from_micros(number), &peer, Start { lanes: 2, is_settled: true });
    }
    assert_eq!(memory.peers.len(), MAX_PEERS);
    assert!(memory.peers.keys().all(|peer| peer.as_str() != "n0"));
}
