use std::time::Duration;

use super::{Host, LanePlan, Progress};
use crate::merge::LaneId;
use crate::plan::lanes::rates::{Rates, Window};
use crate::time::Time;

const MIN_WINDOW: Duration = Duration::from_millis(10);
/// Time after which a window ends even if a lane has sent few frames.
const MAX_WINDOW: Duration = Duration::from_millis(500);
/// Longest rest of a connection. Its next frame then ends the measurement if no other connection
/// makes progress.
pub const REST_LIMIT: Duration = MAX_WINDOW;
/// Fewest intervals between each lane's frames in a rate measurement.
const MIN_FRAMES: usize = 3;
/// Round-trip time from which the receiver's TCP window can limit a connection.
const LONG_ROUND_TRIP_US: u32 = 10_000;

impl LanePlan {
    pub(super) fn count(&mut self, now: Time, lane: LaneId, progress: &Progress, host: Host) {
        self.totals.host_bytes = host.acknowledged_bytes;
        self.totals.starved += progress.starved;
        if let (Some(before), Some(delivery)) = (self.lanes.get_mut(&lane), progress.delivery) {
            let since = |now: u64, before: u64| now.saturating_sub(before);
            self.totals.acknowledged_bytes +=
                since(delivery.acknowledged_bytes, before.acknowledged_bytes);
            self.totals.receiver_limited_us +=
                since(delivery.receiver_limited_us, before.receiver_limited_us);
            *before = delivery;
        }
        if let (Some(window), Some(known)) = (&mut self.window, self.lanes.get(&lane)) {
            window.add(lane, (now, known.acknowledged_bytes));
        }
    }

    /// Rates if a measurement is over, unless the store's streams began or ended in it.
    pub(super) fn measure(&mut self, now: Time, changes: u64) -> Option<Rates> {
        let next = Window::new(now, changes, self.totals);
        let Some(window) = &self.window else {
            self.window = Some(next);
            return None;
        };
        let elapsed = now.since(window.begun);
        let mut active = self.lanes.keys().filter(|lane| !self.is_resting(**lane));
        let has_measured = active.all(|lane| window.frames(*lane) >= MIN_FRAMES);
        let round_trip = Duration::from_micros(u64::from(self.round_trip_us()));
        if elapsed < MIN_WINDOW.max(2 * round_trip) || !(has_measured || elapsed >= MAX_WINDOW) {
            return None;
        }
        let rates = window.rates(now, &self.totals, self.needs_more());
        let is_unchanged = window.changes == changes;
        self.is_limited = self.was_limited(window, elapsed);
        self.window = Some(next);
        is_unchanged.then_some(rates)
    }

    fn round_trip_us(&self) -> u32 {
        self.lanes.values().map(|lane| lane.round_trip_us).max().unwrap_or(0)
    }

    fn was_limited(&self, window: &Window, elapsed: Duration) -> bool {
        let starved = self.totals.starved.saturating_sub(window.totals.starved);
        let receiver_us = self.totals.receiver_limited_us - window.totals.receiver_limited_us;
        let receiver = Duration::from_micros(receiver_us / (self.lanes.len() as u64).max(1));
        starved < elapsed / 4
            && (receiver < elapsed / 2 || self.round_trip_us() >= LONG_ROUND_TRIP_US)
    }
}
