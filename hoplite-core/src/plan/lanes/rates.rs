use std::collections::BTreeMap;
use std::time::Duration;

use crate::link::Delivery;
use crate::merge::LaneId;
use crate::time::Time;

const MIN_TIME: Duration = Duration::from_millis(1);

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Totals {
    pub(super) acknowledged_bytes: u64,
    pub(super) host_bytes: u64,
    pub(super) starved: Duration,
    pub(super) receiver_limited_us: u64,
}

#[derive(Debug, Clone)]
pub(super) struct Window {
    pub(super) begun: Time,
    pub(super) changes: u64,
    pub(super) totals: Totals,
    lanes: BTreeMap<LaneId, Marks>,
}

/// A lane's first and last frame in a window: times and acknowledged bytes.
#[derive(Debug, Clone, Copy)]
struct Marks {
    first: (Time, u64),
    last: (Time, u64),
    frames: usize,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Rates {
    pub(super) stream: u64,
    pub(super) host: u64,
    pub(super) changes: u64,
}

impl Window {
    pub(super) const fn new(begun: Time, changes: u64, totals: Totals) -> Self {
        Self { begun, changes, totals, lanes: BTreeMap::new() }
    }

    pub(super) fn add(&mut self, lane: LaneId, mark: (Time, u64)) {
        let first = Marks { first: mark, last: mark, frames: 0 };
        let marks = self.lanes.entry(lane).and_modify(|marks| marks.frames += 1).or_insert(first);
        marks.last = mark;
    }

    pub(super) fn frames(&self, lane: LaneId) -> usize {
        self.lanes.get(&lane).map_or(0, |marks| marks.frames)
    }

    /// Returns bytes per second since the window began. With `is_of_busy_times`, times without
    /// frames of a lane do not count. Then, if lanes are fast in turns, the sum exceeds the rate of
    /// the link.
    pub(super) fn rates(&self, now: Time, totals: &Totals, is_of_busy_times: bool) -> Rates {
        let elapsed = now.since(self.begun);
        let own = totals.acknowledged_bytes.saturating_sub(self.totals.acknowledged_bytes);
        let of_host = totals.host_bytes.saturating_sub(self.totals.host_bytes);
        let others = per_second(of_host.saturating_sub(own), elapsed);
        let busy = || self.lanes.values().map(Marks::rate).fold(0, u64::saturating_add);
        let stream = if is_of_busy_times { busy() } else { per_second(own, elapsed) };
        Rates { stream, host: stream.saturating_add(others), changes: self.changes }
    }
}

impl Marks {
    fn rate(&self) -> u64 {
        per_second(
            self.last.1.saturating_sub(self.first.1),
            self.last.0.since(self.first.0).max(MIN_TIME),
        )
    }
}

fn per_second(bytes: u64, time: Duration) -> u64 {
    let rate = u128::from(bytes) * 1_000_000_000 / time.as_nanos().max(1);
    u64::try_from(rate).unwrap_or(u64::MAX)
}

pub(super) const fn gained(rate: u64, before: u64, parts: u64) -> bool {
    rate >= before.saturating_add(before / parts) && rate > before
}

/// Sum of the lanes' measurements; `None` if the kernel reports no rate.
pub(super) fn total<'a>(deliveries: impl Iterator<Item = &'a Delivery>) -> Option<Delivery> {
    let sum = |sum: Delivery, lane: &Delivery| Delivery {
        acknowledged_bytes: sum.acknowledged_bytes + lane.acknowledged_bytes,
        bytes_per_second: sum.bytes_per_second + lane.bytes_per_second,
        is_application_limited: sum.is_application_limited || lane.is_application_limited,
        round_trip_us: sum.round_trip_us.max(lane.round_trip_us),
        receiver_limited_us: sum.receiver_limited_us + lane.receiver_limited_us,
    };
    let delivery = deliveries.fold(Delivery::default(), sum);
    (delivery.bytes_per_second > 0).then_some(delivery)
}
