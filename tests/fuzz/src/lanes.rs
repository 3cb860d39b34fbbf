//! The lanes of a stream: frames in any order at the receiver, and any measurements at the sender.

use std::collections::BTreeMap;
use std::time::Duration;

use hoplite_core::link::Delivery;
use hoplite_core::merge::{LaneId, Merge, Step};
use hoplite_core::plan::lanes::{HostLanes, LaneAction, Progress, Start, StreamId, Supply};
use hoplite_core::{NodeId, Time};
use libfuzzer_sys::arbitrary::{Result, Unstructured};

const END: u64 = 1 << 16;
const MAX_LANES: usize = 16;

/// Performs events at a receiver or a sender.
pub fn events(bytes: &[u8]) {
    let mut input = Unstructured::new(bytes);
    let _ = match bytes.first() {
        Some(choice) if choice % 2 == 1 => receive(&mut input),
        _ => send(&mut input),
    };
}

/// Checks that the receiver reads each byte at most once and in order.
fn receive(input: &mut Unstructured<'_>) -> Result<()> {
    let mut merge = Merge::default();
    let mut lanes: BTreeMap<LaneId, Option<(u64, u64)>> = BTreeMap::new();
    let (mut next, mut opened) = (0, 0);
    while !input.is_empty() && next < END {
        let lane = LaneId(input.int_in_range(0..=opened)?);
        match input.int_in_range(0..=9)? {
            0 if opened < MAX_LANES => {
                merge.open(LaneId(opened));
                lanes.insert(LaneId(opened), None);
                opened += 1;
            }
            1 => {
                merge.end(lane);
                lanes.remove(&lane);
            }
            2 => {
                merge.lose(lane);
                lanes.remove(&lane);
            }
            // A lane reads its next frame after the turn of its previous frame.
            _ if lanes.get(&lane) == Some(&None) => {
                let start =
                    if input.arbitrary()? { next } else { u64::from(input.arbitrary::<u16>()?) };
                let end = start.saturating_add(input.arbitrary::<u16>()?.into());
                if merge.arrived(lane, start..end, next..END).is_ok() {
                    assert!(
                        start >= next && start < end && end <= END,
                        "{start}..{end} is missing"
                    );
                    let overlaps = |(from, to): &(u64, u64)| *from < end && start < *to;
                    assert!(
                        !lanes.values().flatten().any(overlaps),
                        "{start}..{end} is there already"
                    );
                    lanes.insert(lane, Some((start, end)));
                }
            }
            _ => {}
        }
        match merge.step(next, END, input.arbitrary()?) {
            Ok(Step::Read(lane)) => {
                let frame = lanes.get_mut(&lane).and_then(Option::take);
                let (start, end) = frame.expect("only a lane with a frame has its turn");
                assert_eq!(start, next);
                next = end;
                merge.consumed(lane);
            }
            Ok(Step::Lost(lost)) => {
                assert!(merge.has_lost() && lost.start == next && lost.end <= END, "{lost:?}");
            }
            Ok(Step::Wait) => {}
            Err(_) => return Ok(()),
        }
    }
    Ok(())
}

/// Checks that the number of lanes stays within its limit.
fn send(input: &mut Unstructured<'_>) -> Result<()> {
    let lanes = input.int_in_range(0..=2 * MAX_LANES)?;
    let mut host = HostLanes::new(Start { lanes, is_settled: input.arbitrary()? });
    let peers = ["a", "b"].map(|name| NodeId::new(name).expect("the name is valid"));
    let mut streams: BTreeMap<StreamId, (usize, Vec<LaneId>)> = BTreeMap::new();
    let mut now = Time::ZERO;
    while !input.is_empty() {
        now = now
            + Duration::from_micros(
                u64::from(input.arbitrary::<u16>()?) << input.int_in_range(0..=12)?,
            );
        let at = input.int_in_range(0..=4_usize)?;
        let Some(stream) = streams.keys().nth(at).copied() else {
            let max_lanes = input.int_in_range(0..=MAX_LANES)?;
            let supply = if input.arbitrary()? { Supply::Whole } else { Supply::Chain };
            let stream = host.begin(now, &peers[at % 2], (1, max_lanes), supply);
            let first = host.join(stream, None, 0).expect("each stream has a lane");
            streams.insert(stream, (max_lanes.max(1), vec![first]));
            continue;
        };
        let (max_lanes, lanes) = streams.get_mut(&stream).expect("it is a key");
        let index = input.int_in_range(0..=lanes.len() - 1)?;
        match input.int_in_range(0..=9)? {
            0 => {
                host.end(stream);
                assert_eq!(host.join(stream, None, 0), None, "the stream has ended");
                streams.remove(&stream);
                continue;
            }
            1 if lanes.len() > 1 => host.leave(stream, lanes.remove(index), input.arbitrary()?),
            2 | 3 => lanes.extend(host.join(stream, None, input.arbitrary()?)),
            _ => {
                let turn = host.turn(now, stream, lanes[index], &progress(input)?);
                assert!(
                    (1..=*max_lanes).contains(&turn.lanes) || turn.lanes == lanes.len(),
                    "{turn:?}"
                );
                let rests = turn.action == LaneAction::Rest;
                assert!(!rests || lanes.len() > 1 && turn.is_resting, "the last lane never rests");
                if turn.action == LaneAction::Leave {
                    assert!(lanes.len() > 1, "the last lane never leaves");
                    host.leave(stream, lanes.remove(index), true);
                }
            }
        }
        assert!(lanes.len() <= *max_lanes, "{} lanes of {max_lanes}", lanes.len());
    }
    Ok(())
}

fn progress(input: &mut Unstructured<'_>) -> Result<Progress> {
    let delivery = Delivery {
        acknowledged_bytes: input.arbitrary::<u32>()?.into(),
        bytes_per_second: input.arbitrary::<u32>()?.into(),
        is_application_limited: input.arbitrary()?,
        round_trip_us: input.arbitrary()?,
        receiver_limited_us: input.arbitrary::<u32>()?.into(),
    };
    Ok(Progress {
        delivery: if input.arbitrary()? { Some(delivery) } else { None },
        starved: Duration::from_micros(input.arbitrary::<u16>()?.into()),
        left_bytes: input.arbitrary()?,
        acknowledged_bytes: input.arbitrary()?,
    })
}
