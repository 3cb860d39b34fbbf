//! The number of connections (lanes) of a stream.
//!
//! Clouds cap the rate of a connection, and on a long path the window does. A stream starts with
//! one lane. While the network limits it, the sender doubles the lanes, and keeps them if the
//! stream gains an eighth. The next stream to the peer starts from the result.
//!
//! The trial decides, because no counter of the kernel tells a capped connection from a full link.
//! The store's total must gain, too: otherwise the lanes took bytes from other streams.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::id::NodeId;
use crate::link::Delivery;
use crate::merge::LaneId;
use crate::time::Time;

/// Streams use one connection unless the user allows more.
pub const DEFAULT_MAX_LANES: usize = 1;
/// The largest settable limit.
pub const MAX_LANES: usize = 64;
/// Fewest bytes per lane. With fewer, lanes end before their window opens.
pub const LANE_BYTES: u64 = 256 << 10;

const MIN_WINDOW: Duration = Duration::from_millis(10);
/// Fewest frames per lane in a window, because the rate is read between frames.
const MIN_FRAMES: usize = 4;
/// Most windows of a trial, in which TCP opens its window.
const MAX_WINDOWS: usize = 8;
const OPEN_TIMEOUT: Duration = Duration::from_millis(500);
/// From here on the receiver's window can limit a connection.
const LONG_ROUND_TRIP_US: u32 = 10_000;
/// Age at which a result is tested again, from half of its lanes.
const TESTED_FOR: Duration = Duration::from_secs(60);
const KEPT_FOR: Duration = Duration::from_secs(600);
const MAX_PEERS: usize = 1024;

/// A stream's first lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start {
    /// The number of lanes.
    pub lanes: usize,
    /// `true` if tested recently: the stream adds none.
    pub is_settled: bool,
}

/// The limit for a stream of so many bytes.
pub fn lane_limit(max_lanes: usize, left_bytes: u64) -> usize {
    let lanes = usize::try_from(left_bytes / LANE_BYTES).unwrap_or(usize::MAX);
    lanes.clamp(1, max_lanes.clamp(1, MAX_LANES))
}

/// Decides on a stream's lanes, at its sender.
#[derive(Debug)]
pub struct LanePlan {
    max_lanes: usize,
    wanted: usize,
    lanes: BTreeMap<LaneId, Delivery>,
    phase: Phase,
    totals: Totals,
    window: Option<Window>,
    /// `true` after a conclusive trial.
    has_learnt: bool,
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    Opening {
        until: Option<Time>,
        trial: Option<Trial>,
    },
    /// Measures the present lanes; `last` is the last window's rate.
    Steady {
        last: Option<u64>,
    },
    Trial {
        trial: Trial,
        last: Option<u64>,
        windows: usize,
    },
    Settled {
        since: Option<Time>,
    },
}

/// The state before a trial.
#[derive(Debug, Clone, Copy)]
struct Trial {
    lanes: usize,
    rate: u64,
    store_rate: u64,
}

/// Since the start of the stream.
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
    /// Starts with one lane and requests `start`, up to `max_lanes`.
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

    /// Adds a lane. `delivery` is from its connection's earlier streams.
    pub fn opened(&mut self, lane: LaneId, delivery: Option<Delivery>) {
        let delivery = Delivery { bytes_per_second: 0, ..delivery.unwrap_or_default() };
        self.lanes.insert(lane, delivery);
        self.window = None;
    }

    /// Removes a finished lane.
    pub fn closed(&mut self, lane: LaneId) {
        self.lanes.remove(&lane);
        self.window = None;
    }

    /// Removes a broken lane. The stream goes on with fewer.
    pub fn lost(&mut self, lane: LaneId) {
        self.closed(lane);
        self.wanted = self.wanted.min(self.lanes.len()).max(1);
    }

    /// Returns `true` if this lane should close.
    pub fn is_superfluous(&self, lane: LaneId) -> bool {
        self.lanes.len() > self.wanted && self.lanes.keys().next() != Some(&lane)
    }

    /// Adds a time without bytes to send.
    pub fn starved(&mut self, time: Duration) {
        self.totals.starved += time;
    }

    /// The lanes that the stream should have.
    pub const fn wanted(&self) -> usize {
        self.wanted
    }

    /// The open lanes.
    pub fn open(&self) -> usize {
        self.lanes.len()
    }

    /// Returns `true` if more lanes are allowed.
    pub const fn is_adaptive(&self) -> bool {
        self.max_lanes > 1
    }

    /// The result for the peer's next stream.
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

    /// The deliveries of all lanes together.
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

    /// Decides before a lane's next frame. `store_bytes` is the store's total on all streams, and
    /// `left_bytes` what the stream has left.
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

    /// Returns a finished window, and begins the next.
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
                    // The larger rate, so that a trial must gain on both windows.
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
                        Phase::Steady { last: None }
                    };
                }
            }
            Phase::Opening { .. } | Phase::Settled { .. } => {}
        }
    }

    /// Returns `true` if neither source nor receiver limited the stream.
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

/// Returns `true` for a gain of one part in `parts`.
const fn gained(rate: u64, before: u64, parts: u64) -> bool {
    rate >= before.saturating_add(before / parts) && rate > before
}

/// Returns `true` if half of the stream's gain is the store's.
const fn gained_in_total(rate: u64, store_rate: u64, trial: &Trial) -> bool {
    store_rate.saturating_sub(trial.store_rate) >= (rate - trial.rate) / 2
}

/// Results of earlier streams.
#[derive(Debug)]
pub struct LaneMemory {
    first: Start,
    peers: BTreeMap<NodeId, (Start, Time)>,
    /// The last confirmed result, for other peers.
    latest: Option<(usize, Time)>,
}

impl LaneMemory {
    /// Makes a memory whose first streams start with `first`.
    pub const fn new(first: Start) -> Self {
        Self { first, peers: BTreeMap::new(), latest: None }
    }

    /// Returns the start of the next stream to a peer.
    ///
    /// An unknown peer gets half of the last other peer's lanes, because most peers share a
    /// network. The first doubling tests the number.
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

    /// Keeps a stream's result.
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
