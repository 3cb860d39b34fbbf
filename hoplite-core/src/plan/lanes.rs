//! Chooses the number of connections (lanes) of a stream.
//!
//! Clouds cap the rate of one connection, and on a long path the window does. The sender starts
//! with one lane. While the network limits the stream, the sender doubles the number, and keeps the
//! new lanes if the stream gained an eighth. It closes lanes that gained nothing, so a link that one
//! connection fills keeps one connection. The next stream to the same peer starts from the result.
//!
//! The trial decides, because no counter of the kernel tells a capped connection from a full link.
//! A gain must also show in the total of the store: otherwise the new lanes took their bytes from
//! other streams.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::id::NodeId;
use crate::link::Delivery;
use crate::merge::LaneId;
use crate::time::Time;

/// The default limit of lanes: streams use one connection unless the user allows more.
pub const DEFAULT_MAX_LANES: usize = 1;
/// The largest limit of lanes that can be set.
pub const MAX_LANES: usize = 64;
/// The fewest bytes of a stream for each of its lanes. With fewer, lanes end before their window
/// opens.
pub const LANE_BYTES: u64 = 256 << 10;

/// Shortest time over which a rate is measured.
const MIN_WINDOW: Duration = Duration::from_millis(10);
/// Fewest frames of each lane in a window. The rate is read between frames.
const MIN_FRAMES: usize = 4;
/// Most windows that a trial waits for the rate to settle. TCP opens its window in the meantime.
const MAX_WINDOWS: usize = 8;
/// Time after which lanes that did not open are given up.
const OPEN_TIMEOUT: Duration = Duration::from_millis(500);
/// Round-trip time from which the window of the receiver can be the limit of a connection.
const LONG_ROUND_TRIP_US: u32 = 10_000;
/// Age at which a result is tested again, starting from half of the lanes.
const TESTED_FOR: Duration = Duration::from_secs(60);
/// Age at which a result is forgotten.
const KEPT_FOR: Duration = Duration::from_secs(600);
/// Most peers whose results are kept.
const MAX_PEERS: usize = 1024;

/// The number of lanes with which a stream starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start {
    /// The number of lanes.
    pub lanes: usize,
    /// `true` if the number was tested recently, so that the stream adds none.
    pub is_settled: bool,
}

/// Returns the limit of lanes of a stream with so many bytes.
pub fn lane_limit(max_lanes: usize, left_bytes: u64) -> usize {
    let lanes = usize::try_from(left_bytes / LANE_BYTES).unwrap_or(usize::MAX);
    lanes.clamp(1, max_lanes.clamp(1, MAX_LANES))
}

/// Decides on the lanes of one stream, at its sender.
#[derive(Debug)]
pub struct LanePlan {
    max_lanes: usize,
    wanted: usize,
    lanes: BTreeMap<LaneId, Delivery>,
    phase: Phase,
    totals: Totals,
    window: Option<Window>,
    /// `true` once a trial has shown something.
    has_learnt: bool,
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    /// Lanes are being opened, until this time.
    Opening { until: Option<Time>, trial: Option<Trial> },
    /// The rate with the present lanes is measured. `last` is the rate of the last window.
    Steady { last: Option<u64> },
    /// The rate with the new lanes is measured.
    Trial { trial: Trial, last: Option<u64>, windows: usize },
    /// The number stays for some time.
    Settled { since: Option<Time> },
}

/// The lanes and the rates before a trial.
#[derive(Debug, Clone, Copy)]
struct Trial {
    lanes: usize,
    rate: u64,
    store_rate: u64,
}

/// Totals since the start of the stream.
#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    acknowledged_bytes: u64,
    store_bytes: u64,
    starved: Duration,
    receiver_limited_us: u64,
}

#[derive(Debug, Clone, Copy)]
struct Window {
    begun: Time,
    frames: usize,
    totals: Totals,
}

impl LanePlan {
    /// Starts a stream with one lane, which asks for `start`. At most `max_lanes` are opened.
    pub fn new(max_lanes: usize, start: Start) -> Self {
        let wanted = start.lanes.clamp(1, max_lanes.max(1));
        let phase = match (start.is_settled, wanted) {
            (true, _) => Phase::Settled { since: None },
            (false, 1) => Phase::Steady { last: None },
            (false, _) => Phase::Opening { until: None, trial: None },
        };
        let (lanes, totals) = (BTreeMap::new(), Totals::default());
        Self { max_lanes: max_lanes.max(1), wanted, lanes, phase, totals, window: None, has_learnt: false }
    }

    /// Adds a lane. `delivery` is what its connection delivered for earlier streams.
    pub fn opened(&mut self, lane: LaneId, delivery: Option<Delivery>) {
        let delivery = Delivery { bytes_per_second: 0, ..delivery.unwrap_or_default() };
        self.lanes.insert(lane, delivery);
        self.window = None;
    }

    /// Removes a lane that has ended.
    pub fn closed(&mut self, lane: LaneId) {
        self.lanes.remove(&lane);
        self.window = None;
    }

    /// Removes a lane that broke. The stream goes on with fewer lanes.
    pub fn lost(&mut self, lane: LaneId) {
        self.closed(lane);
        self.wanted = self.wanted.min(self.lanes.len()).max(1);
    }

    /// Returns `true` if this lane should close, because the stream needs fewer.
    pub fn is_superfluous(&self, lane: LaneId) -> bool {
        self.lanes.len() > self.wanted && self.lanes.keys().next() != Some(&lane)
    }

    /// Adds a time for which no lane had bytes to send.
    pub fn starved(&mut self, time: Duration) {
        self.totals.starved += time;
    }

    /// Returns the number of lanes that the stream should have.
    pub const fn wanted(&self) -> usize {
        self.wanted
    }

    /// Returns the number of lanes that are open.
    pub fn open(&self) -> usize {
        self.lanes.len()
    }

    /// Returns `true` if the stream may get more than one lane.
    pub const fn is_adaptive(&self) -> bool {
        self.max_lanes > 1
    }

    /// Returns the result for the next stream to the peer, if this stream has one.
    pub fn result(&self) -> Option<Start> {
        let result = match self.phase {
            Phase::Opening { trial: Some(trial), .. } | Phase::Trial { trial, .. } => {
                Start { lanes: trial.lanes, is_settled: false }
            }
            Phase::Settled { .. } => Start { lanes: self.wanted, is_settled: true },
            _ => Start { lanes: self.wanted, is_settled: false },
        };
        self.has_learnt.then_some(result)
    }

    /// Returns the deliveries of all lanes together.
    pub fn delivery(&self) -> Option<Delivery> {
        let sum = |sum: Delivery, lane: &Delivery| Delivery {
            acknowledged_bytes: sum.acknowledged_bytes + lane.acknowledged_bytes,
            bytes_per_second: sum.bytes_per_second + lane.bytes_per_second,
            is_application_limited: sum.is_application_limited || lane.is_application_limited,
            round_trip_us: sum.round_trip_us.max(lane.round_trip_us),
            receiver_limited_us: sum.receiver_limited_us + lane.receiver_limited_us,
        };
        let delivery = self.lanes.values().fold(Delivery::default(), sum);
        (delivery.bytes_per_second > 0).then_some(delivery)
    }

    /// Decides before the next frame of a lane. `store_bytes` is the number of bytes that the store
    /// has sent on all streams, and `left_bytes` the number of bytes that the stream has left.
    pub fn frame(
        &mut self,
        now: Time,
        lane: LaneId,
        delivery: Option<Delivery>,
        store_bytes: u64,
        left_bytes: u64,
    ) {
        if !self.is_adaptive() {
            return;
        }
        self.count(lane, delivery, store_bytes);
        match &mut self.phase {
            Phase::Opening { until, trial } => {
                let until = *until.get_or_insert(now + OPEN_TIMEOUT);
                let (trial, open) = (*trial, self.lanes.len());
                if open >= self.wanted || now >= until {
                    self.has_learnt |= open < self.wanted;
                    self.wanted = open.clamp(1, self.wanted);
                    self.window = None;
                    self.phase = match trial {
                        Some(trial) if open <= trial.lanes => Phase::Settled { since: Some(now) },
                        Some(trial) => Phase::Trial { trial, last: None, windows: 0 },
                        None => Phase::Steady { last: None },
                    };
                }
            }
            Phase::Settled { since } => {
                let since = *since.get_or_insert(now);
                if now.since(since) >= TESTED_FOR {
                    (self.phase, self.window) = (Phase::Steady { last: None }, None);
                }
            }
            Phase::Steady { .. } | Phase::Trial { .. } => {
                if let Some(window) = self.window_ended(now) {
                    self.judge(now, &window, left_bytes);
                }
            }
        }
    }

    fn count(&mut self, lane: LaneId, delivery: Option<Delivery>, store_bytes: u64) {
        self.totals.store_bytes = store_bytes;
        if let (Some(before), Some(delivery)) = (self.lanes.get_mut(&lane), delivery) {
            let since = |now: u64, before: u64| now.saturating_sub(before);
            self.totals.acknowledged_bytes += since(delivery.acknowledged_bytes, before.acknowledged_bytes);
            self.totals.receiver_limited_us +=
                since(delivery.receiver_limited_us, before.receiver_limited_us);
            *before = delivery;
        }
        if let Some(window) = &mut self.window {
            window.frames += 1;
        }
    }

    /// Returns the window if it is over, and begins the next one.
    fn window_ended(&mut self, now: Time) -> Option<Window> {
        let next = Window { begun: now, frames: 0, totals: self.totals };
        let Some(window) = self.window else {
            self.window = Some(next);
            return None;
        };
        let round_trip = Duration::from_micros(u64::from(self.round_trip_us()));
        let is_over = now.since(window.begun) >= MIN_WINDOW.max(2 * round_trip)
            && window.frames >= MIN_FRAMES * self.lanes.len();
        is_over.then(|| self.window.replace(next)).flatten()
    }

    fn round_trip_us(&self) -> u32 {
        self.lanes.values().map(|lane| lane.round_trip_us).max().unwrap_or(0)
    }

    fn judge(&mut self, now: Time, window: &Window, left_bytes: u64) {
        let elapsed = now.since(window.begun);
        let per_second = |now: u64, before: u64| {
            let rate = u128::from(now - before) * 1_000_000_000 / elapsed.as_nanos().max(1);
            u64::try_from(rate).unwrap_or(u64::MAX)
        };
        let rate = per_second(self.totals.acknowledged_bytes, window.totals.acknowledged_bytes);
        let store_rate = per_second(self.totals.store_bytes, window.totals.store_bytes);
        let is_limited = self.is_limited(window, elapsed);
        match self.phase {
            Phase::Steady { last } => {
                let steady = last.filter(|last| is_limited && !gained(rate, *last, 8));
                self.phase = Phase::Steady { last: is_limited.then_some(rate) };
                if let Some(last) = steady {
                    // The larger one, so that a trial has to gain on both windows.
                    self.try_more(
                        now,
                        Trial { lanes: self.wanted, rate: rate.max(last), store_rate },
                        left_bytes,
                    );
                }
            }
            Phase::Trial { trial, last, windows } => {
                let is_growing = last.is_none_or(|last| gained(rate, last, 16)) && windows < MAX_WINDOWS;
                if is_growing && is_limited {
                    self.phase = Phase::Trial { trial, last: Some(rate), windows: windows + 1 };
                } else if gained(rate, trial.rate, 8) && gained_in_total(rate, store_rate, &trial) {
                    let next = Trial { lanes: self.wanted, rate, store_rate };
                    self.has_learnt = true;
                    self.phase = Phase::Steady { last: Some(rate) };
                    self.try_more(now, next, left_bytes);
                } else {
                    self.wanted = trial.lanes;
                    self.has_learnt |= is_limited;
                    self.phase = if is_limited {
                        Phase::Settled { since: Some(now) }
                    } else {
                        // Something else is the limit for now.
                        Phase::Steady { last: None }
                    };
                }
            }
            Phase::Opening { .. } | Phase::Settled { .. } => {}
        }
    }

    /// Returns `true` if the network limited the stream, instead of its source or its receiver.
    fn is_limited(&self, window: &Window, elapsed: Duration) -> bool {
        let starved = self.totals.starved.saturating_sub(window.totals.starved);
        let receiver_us = self.totals.receiver_limited_us - window.totals.receiver_limited_us;
        let receiver = Duration::from_micros(receiver_us / (self.lanes.len() as u64).max(1));
        starved < elapsed / 4 && (receiver < elapsed / 2 || self.round_trip_us() >= LONG_ROUND_TRIP_US)
    }

    fn try_more(&mut self, now: Time, trial: Trial, left_bytes: u64) {
        let limit = lane_limit(self.max_lanes, left_bytes);
        let wanted = (2 * trial.lanes).min(limit);
        if wanted > trial.lanes {
            self.wanted = wanted;
            self.phase = Phase::Opening { until: Some(now + OPEN_TIMEOUT), trial: Some(trial) };
        } else if trial.lanes >= self.max_lanes {
            self.has_learnt = true;
            self.phase = Phase::Settled { since: Some(now) };
        }
    }
}

/// Returns `true` if `rate` is larger than `before` by one part in `parts`.
const fn gained(rate: u64, before: u64, parts: u64) -> bool {
    rate >= before.saturating_add(before / parts) && rate > before
}

/// Returns `true` if at least half of the stream's gain is a gain of the store.
const fn gained_in_total(rate: u64, store_rate: u64, trial: &Trial) -> bool {
    store_rate.saturating_sub(trial.store_rate) >= (rate - trial.rate) / 2
}

/// The results of earlier streams, by peer.
#[derive(Debug)]
pub struct LaneMemory {
    first: Start,
    peers: BTreeMap<NodeId, (Start, Time)>,
    /// The last result that a trial has confirmed, for peers without one.
    latest: Option<(usize, Time)>,
}

impl LaneMemory {
    /// Creates a memory without results. The first stream to a peer starts with `first`.
    pub const fn new(first: Start) -> Self {
        Self { first, peers: BTreeMap::new(), latest: None }
    }

    /// Returns the number of lanes with which the next stream to a peer starts.
    ///
    /// A peer without a result starts with half of the lanes of the last other peer, because most
    /// peers are in the same network. The first doubling tests the number.
    pub fn start(&self, now: Time, peer: &NodeId) -> Start {
        let tested = |lanes: usize| Start { lanes: lanes.div_ceil(2), is_settled: false };
        match self.peers.get(peer) {
            Some((start, at)) if now.since(*at) < TESTED_FOR => *start,
            Some((start, at)) if now.since(*at) < KEPT_FOR => tested(start.lanes),
            _ => match self.latest {
                Some((lanes, at)) if now.since(at) < KEPT_FOR => tested(lanes),
                _ => self.first,
            },
        }
    }

    /// Keeps the result of a stream.
    pub fn ended(&mut self, now: Time, peer: &NodeId, result: Start) {
        if !self.peers.contains_key(peer) && self.peers.len() >= MAX_PEERS {
            let oldest = self.peers.iter().min_by_key(|(_, (_, at))| *at).map(|(peer, _)| peer.clone());
            oldest.and_then(|oldest| self.peers.remove(&oldest));
        }
        if result.is_settled {
            self.latest = Some((result.lanes, now));
        }
        self.peers.insert(peer.clone(), (result, now));
    }
}

#[cfg(test)]
mod tests;
