//! The lanes of one stream, and the trial of more.

mod measure;

use std::collections::BTreeMap;
use std::time::Duration;

use super::rates::{Rates, Totals, Window, gained, total};
use crate::link::Delivery;
use crate::merge::LaneId;
use crate::time::Time;

pub use measure::REST_LIMIT;

/// Largest limit for a stream's lanes.
pub const MAX_LANES: usize = 64;
/// Fewest bytes that a stream must have left for each lane. With fewer, lanes end before TCP
/// opens their window.
pub const LANE_BYTES: u64 = 256 << 10;

/// Age at which a test's result is tested again, starting from half of the lanes.
pub(super) const TESTED_FOR: Duration = Duration::from_secs(60);
/// Time after which a failed test, perhaps disturbed by other traffic, is repeated. Each further
/// failure quadruples the time.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Most measurement windows in a test, during which TCP's congestion window opens.
const MAX_WINDOWS: usize = 8;
/// Shortest rest of added connections. Disturbances last for tens of milliseconds.
const REST_TIME: Duration = Duration::from_millis(50);
/// Most aborted tests in a stream, because each opens connections.
const MAX_ABORTED: usize = 4;
/// Tenths of the earlier rate that a test must reach if the receiver has other streams or the
/// source may become faster. Beside four other streams, a second connection gains 67% by slowing
/// them down.
const CONTENDED_TENTHS: u64 = 17;
const OPEN_TIMEOUT: Duration = Duration::from_millis(500);

/// Number of lanes with which a stream starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start {
    /// First number of lanes.
    pub lanes: usize,
    /// `true` if a recent test found the number, so the stream first tests no other.
    pub is_settled: bool,
}

/// Largest number of lanes for a stream with `left_bytes` left.
pub fn lane_limit(max_lanes: usize, left_bytes: u64) -> usize {
    let lanes = usize::try_from(left_bytes / LANE_BYTES).unwrap_or(usize::MAX);
    lanes.clamp(1, max_lanes.clamp(1, MAX_LANES))
}

/// Origin of a stream's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Supply {
    /// The sender has all bytes at the beginning.
    Whole,
    /// The bytes arrive or are made while the stream sends them.
    Chain,
}

/// State of a stream before its next frame.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// Kernel's measurement of the lane.
    pub delivery: Option<Delivery>,
    /// Time for which the lane has waited for bytes.
    pub starved: Duration,
    /// Bytes that the stream has left.
    pub left_bytes: u64,
    /// Bytes that receivers of all the store's streams have acknowledged.
    pub acknowledged_bytes: u64,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Host {
    pub(super) acknowledged_bytes: u64,
    /// Changes when a stream of the store begins or ends.
    pub(super) changes: u64,
    pub(super) may_test: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Verdict {
    /// Largest number of connections that raised the rate.
    pub(super) lanes: usize,
    /// `true` if more connections gain nothing, or cannot be opened.
    pub(super) is_settled: bool,
}

#[derive(Debug)]
pub(super) struct LanePlan {
    max_lanes: usize,
    wanted: usize,
    lanes: BTreeMap<LaneId, Delivery>,
    phase: Phase,
    totals: Totals,
    window: Option<Window>,
    supply: Supply,
    is_limited: bool,
    /// `true` if the receiver has other streams, which added connections may slow down.
    is_contended: bool,
    aborted: usize,
    rejected: u32,
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    /// The receiver opens connections until this time.
    Opening { until: Option<Time>, then: Then },
    /// The rate is measured. `last` is the previous measurement.
    Steady { last: Option<u64> },
    /// The rate with added connections is measured, `windows` times so far.
    Trial { trial: Trial, last: Option<Rates>, windows: usize },
    /// The added connections rest, to confirm that the rate falls without them.
    Resting(Rest),
    /// The number of lanes stays for [`retry_after`], counted from `since`, or if unset from the
    /// next frame.
    Settled { since: Option<Time> },
}

#[derive(Debug, Clone, Copy)]
enum Then {
    Trial(Trial),
    Steady,
    Settled,
}

/// State before a test; rates in bytes per second.
#[derive(Debug, Clone, Copy)]
struct Trial {
    lanes: usize,
    rate: u64,
    host_rate: u64,
    changes: u64,
}

#[derive(Debug, Clone, Copy)]
struct Rest {
    trial: Trial,
    gained: Rates,
    /// End of the rest's first measurement, in which the resting lanes' last bytes arrive.
    drained: Option<Time>,
}

impl LanePlan {
    pub(super) fn new(max_lanes: usize, start: Start, supply: Supply) -> Self {
        let max_lanes = max_lanes.max(1);
        let wanted = start.lanes.clamp(1, max_lanes);
        let then = if start.is_settled { Then::Settled } else { Then::Steady };
        Self {
            max_lanes,
            wanted,
            lanes: BTreeMap::new(),
            phase: if wanted > 1 {
                Phase::Opening { until: None, then }
            } else {
                after(then, None)
            },
            totals: Totals::default(),
            window: None,
            supply,
            is_limited: supply == Supply::Whole,
            is_contended: false,
            aborted: 0,
            rejected: 0,
        }
    }

    pub(super) fn opened(&mut self, lane: LaneId, delivery: Option<Delivery>, is_contended: bool) {
        self.is_contended |= is_contended;
        let delivery = Delivery { bytes_per_second: 0, ..delivery.unwrap_or_default() };
        self.lanes.insert(lane, delivery);
        self.window = None;
    }

    pub(super) fn closed(&mut self, lane: LaneId) {
        self.lanes.remove(&lane);
        self.window = None;
    }

    pub(super) fn lost(&mut self, lane: LaneId) {
        self.closed(lane);
        self.wanted = self.wanted.min(self.lanes.len()).max(1);
        if self.has_resting() {
            self.phase = after(Then::Steady, None);
        }
    }

    pub(super) fn is_superfluous(&self, lane: LaneId) -> bool {
        self.lanes.len() > self.wanted && self.lanes.keys().next() != Some(&lane)
    }

    pub(super) const fn wanted(&self) -> usize {
        self.wanted
    }

    pub(super) fn open(&self) -> usize {
        self.lanes.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.lanes.len() >= self.wanted
    }

    /// Returns `true` if the network limits the stream, not its source or receiver.
    pub(super) const fn is_limited(&self) -> bool {
        self.is_limited
    }

    pub(super) const fn is_testing(&self) -> bool {
        let is_open = matches!(self.phase, Phase::Trial { .. } | Phase::Resting(_));
        is_open || matches!(self.phase, Phase::Opening { then: Then::Trial(_), .. })
    }

    pub(super) const fn has_resting(&self) -> bool {
        matches!(self.phase, Phase::Resting(_))
    }

    pub(super) fn active(&self) -> usize {
        if let Phase::Resting(rest) = self.phase {
            rest.trial.lanes
        } else {
            self.open().max(self.wanted)
        }
    }

    pub(super) fn is_resting(&self, lane: LaneId) -> bool {
        let Phase::Resting(rest) = self.phase else { return false };
        self.lanes.keys().take(rest.trial.lanes).all(|active| *active != lane)
    }

    pub(super) fn delivery(&self) -> Option<Delivery> {
        let active = self.lanes.iter().filter(|(lane, _)| !self.is_resting(**lane));
        total(active.map(|(_, delivery)| delivery))
    }

    pub(super) fn follow(&mut self, now: Time, known: Start) {
        let lanes = known.lanes.min(self.max_lanes);
        let then = if known.is_settled { Then::Settled } else { Then::Steady };
        if lanes > self.wanted && self.is_limited {
            self.wanted = lanes;
            self.phase = Phase::Opening { until: Some(now + OPEN_TIMEOUT), then };
        } else if let (Phase::Steady { .. }, Then::Settled) = (self.phase, then)
            && self.wanted >= lanes
        {
            self.phase = after(then, Some(now));
        }
    }

    /// Updates the plan before `lane` sends a frame. Returns the result if a test ends.
    pub(super) fn frame(
        &mut self,
        now: Time,
        lane: LaneId,
        progress: &Progress,
        host: Host,
    ) -> Option<Verdict> {
        self.count(now, lane, progress, host);
        match &mut self.phase {
            Phase::Opening { until, then } => {
                let (until, then) = (*until.get_or_insert(now + OPEN_TIMEOUT), *then);
                let is_open = self.lanes.len() >= self.wanted;
                if is_open || now >= until { self.have_opened(now, then, is_open) } else { None }
            }
            Phase::Settled { since } => {
                let since = *since.get_or_insert(now);
                if now.since(since) >= retry_after(self.rejected) {
                    (self.phase, self.window) = (Phase::Steady { last: None }, None);
                }
                self.measure(now, host.changes);
                None
            }
            Phase::Steady { last } => {
                let last = *last;
                let rates = self.measure(now, host.changes)?;
                let steady = last.filter(|last| self.is_limited && !gained(rates.stream, *last, 8));
                self.phase = Phase::Steady { last: self.is_limited.then_some(rates.stream) };
                if let Some(last) = steady.filter(|_| host.may_test) {
                    // The larger of two windows' rates, so that a trial has to gain on both.
                    let rates = Rates { stream: rates.stream.max(last), ..rates };
                    self.try_more(now, rates, progress.left_bytes);
                }
                None
            }
            Phase::Trial { trial, .. } | Phase::Resting(Rest { trial, .. })
                if trial.changes != host.changes =>
            {
                let lanes = trial.lanes;
                self.abort(now, lanes);
                None
            }
            Phase::Trial { trial, last, windows } => {
                let (trial, last, windows) = (*trial, *last, *windows);
                let rates = self.measure(now, host.changes)?;
                self.judge(now, &trial, (last, windows), rates, progress.left_bytes)
            }
            Phase::Resting(rest) => {
                let rest = *rest;
                let rates = self.measure(now, host.changes)?;
                self.judge_rest(now, &rest, rates, progress.left_bytes)
            }
        }
    }

    fn have_opened(&mut self, now: Time, then: Then, is_open: bool) -> Option<Verdict> {
        let open = self.lanes.len();
        self.wanted = open.clamp(1, self.wanted);
        self.window = None;
        if let Then::Trial(trial) = then
            && open > trial.lanes
        {
            self.phase = Phase::Trial { trial, last: None, windows: 0 };
            return None;
        }
        let then = if is_open { then } else { Then::Settled };
        self.phase = after(then, Some(now));
        (!is_open).then_some(Verdict { lanes: self.wanted, is_settled: true })
    }

    fn judge(
        &mut self,
        now: Time,
        trial: &Trial,
        (last, windows): (Option<Rates>, usize),
        rates: Rates,
        left_bytes: u64,
    ) -> Option<Verdict> {
        let is_growing = last.is_none_or(|last| gained(rates.stream, last.stream, 16));
        let best = last.filter(|last| last.stream > rates.stream).unwrap_or(rates);
        if is_growing && windows < MAX_WINDOWS && self.is_limited {
            let last = Some(rates);
            self.phase = Phase::Trial { trial: *trial, last, windows: windows + 1 };
            None
        } else if self.is_worth_it(&best, trial) {
            // A chain or a ring is fast only if all nodes add lanes, so a rest proves nothing.
            if trial.lanes > 1 || self.supply == Supply::Chain {
                return self.keep(now, best, left_bytes);
            }
            self.window = None;
            self.phase = Phase::Resting(Rest { trial: *trial, gained: best, drained: None });
            None
        } else if self.is_limited {
            self.reject(now, trial.lanes)
        } else {
            // The source or the receiver is the limit for now.
            self.abort(now, trial.lanes);
            None
        }
    }

    fn judge_rest(
        &mut self,
        now: Time,
        rest: &Rest,
        rates: Rates,
        left_bytes: u64,
    ) -> Option<Verdict> {
        let Some(drained) = rest.drained else {
            self.phase = Phase::Resting(Rest { drained: Some(now), ..*rest });
            return None;
        };
        let Rest { trial, gained, .. } = *rest;
        let without = Trial { rate: rates.stream, host_rate: rates.host, ..trial };
        if !self.is_limited {
            self.abort(now, trial.lanes);
            None
        } else if !self.is_worth_it(&gained, &without) {
            self.reject(now, trial.lanes)
        } else if now.since(drained) < REST_TIME {
            None
        } else {
            self.keep(now, gained, left_bytes)
        }
    }

    fn keep(&mut self, now: Time, rates: Rates, left_bytes: u64) -> Option<Verdict> {
        (self.phase, self.window) = (Phase::Steady { last: Some(rates.stream) }, None);
        let lanes = self.wanted;
        // A chain's rate may still grow, because its sender adds lanes too.
        if self.supply == Supply::Whole {
            self.try_more(now, rates, left_bytes);
        }
        Some(Verdict { lanes, is_settled: false })
    }

    fn reject(&mut self, now: Time, lanes: usize) -> Option<Verdict> {
        self.wanted = lanes;
        self.rejected += 1;
        self.phase = after(Then::Settled, Some(now));
        Some(Verdict { lanes, is_settled: true })
    }

    fn is_worth_it(&self, rates: &Rates, trial: &Trial) -> bool {
        let has_gained = if self.needs_more() {
            rates.stream >= (trial.rate / 10).saturating_mul(CONTENDED_TENTHS)
        } else {
            gained(rates.stream, trial.rate, 8)
        };
        has_gained && gained_in_total(rates, trial)
    }

    fn needs_more(&self) -> bool {
        self.is_contended || self.supply == Supply::Chain
    }

    fn abort(&mut self, now: Time, lanes: usize) {
        (self.wanted, self.window) = (lanes, None);
        self.aborted += 1;
        let then = if self.aborted < MAX_ABORTED { Then::Steady } else { Then::Settled };
        self.phase = after(then, Some(now));
    }

    fn try_more(&mut self, now: Time, rates: Rates, left_bytes: u64) {
        let Rates { stream: rate, host: host_rate, changes } = rates;
        let lanes = self.wanted;
        let wanted = (2 * lanes).min(lane_limit(self.max_lanes, left_bytes));
        if wanted > lanes {
            (self.wanted, self.is_contended) = (wanted, false);
            let then = Then::Trial(Trial { lanes, rate, host_rate, changes });
            self.phase = Phase::Opening { until: Some(now + OPEN_TIMEOUT), then };
        } else if lanes >= self.max_lanes {
            self.phase = after(Then::Settled, Some(now));
        }
    }
}

const fn after(then: Then, since: Option<Time>) -> Phase {
    match then {
        Then::Settled => Phase::Settled { since },
        Then::Trial(_) | Then::Steady => Phase::Steady { last: None },
    }
}

/// Time after which a number of lanes that `trials` tests have found is tested again.
pub(super) fn retry_after(trials: u32) -> Duration {
    match trials {
        0 => TESTED_FOR,
        _ => RETRY_AFTER.saturating_mul(4_u32.saturating_pow(trials - 1)).min(TESTED_FOR),
    }
}

const fn gained_in_total(rates: &Rates, trial: &Trial) -> bool {
    rates.host.saturating_sub(trial.host_rate) >= rates.stream.saturating_sub(trial.rate) / 2
}
