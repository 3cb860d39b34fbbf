//! Last hour of the cluster and of each node, for the dashboard.
//!
//! A point has a node's state at the end of a step of ten seconds, and the step's rates. A node's
//! points (series) stay for an hour after the node has left.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use hoplite_core::id::NodeId;
use hoplite_core::load::Load;
use hoplite_core::tally::Tally;
use hoplite_core::time::Time;
use serde::Serialize;

pub(crate) const STEP: Duration = Duration::from_secs(10);
/// Steps in one hour.
pub(crate) const STEPS: usize = 360;
pub(crate) const MAX_BYTES: usize = 32 << 20;
/// Memory of a series besides its points: map entry, name, and spare capacity.
const SERIES_BYTES: usize = size_of::<Series>() + size_of::<Point>() * GROWTH + 256;
/// Most nodes with a history. The cluster's rates are sums over these nodes.
pub(crate) const MAX_NODES: usize = MAX_BYTES / (STEPS * size_of::<Point>() + SERIES_BYTES) - 1;
const GROWTH: usize = 30;

/// State and rates of a node or the cluster in one [`STEP`]. Unknown numbers are NaN.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Point {
    pub(crate) received: f32,
    pub(crate) sent: f32,
    pub(crate) used: f32,
    pub(crate) gets: f32,
    pub(crate) failures: f32,
    /// Median wait of successful gets, in seconds.
    pub(crate) median: f32,
    /// 99th percentile of the waits of successful gets, in seconds.
    pub(crate) slowest: f32,
}

impl Point {
    const UNKNOWN: Self = Self {
        received: f32::NAN,
        sent: f32::NAN,
        used: f32::NAN,
        gets: f32::NAN,
        failures: f32::NAN,
        median: f32::NAN,
        slowest: f32::NAN,
    };
}

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    received_bytes: f64,
    sent_bytes: f64,
    used_bytes: u64,
    tally: Tally,
    seconds: f64,
}

impl Counts {
    fn point(&self) -> Point {
        #[expect(clippy::cast_possible_truncation, reason = "six digits are enough for a chart")]
        let rate =
            |count: f64| if self.seconds > 0.0 { (count / self.seconds) as f32 } else { 0.0 };
        #[expect(clippy::cast_precision_loss, reason = "six digits are enough for a chart")]
        let count = |count: u64| count as f64;
        let quantile =
            |share| self.tally.waits.quantile(share).map_or(f32::NAN, |time| time.as_secs_f32());
        #[expect(clippy::cast_precision_loss, reason = "six digits are enough for a chart")]
        let used = self.used_bytes as f32;
        Point {
            received: rate(self.received_bytes),
            sent: rate(self.sent_bytes),
            used,
            gets: rate(count(self.tally.gets)),
            failures: rate(count(self.tally.failures)),
            median: quantile(0.5),
            slowest: quantile(0.99),
        }
    }

    fn add(&mut self, node: &Self) {
        self.received_bytes += node.received_bytes;
        self.sent_bytes += node.sent_bytes;
        self.used_bytes = self.used_bytes.saturating_add(node.used_bytes);
        self.tally.gets = self.tally.gets.saturating_add(node.tally.gets);
        self.tally.failures = self.tally.failures.saturating_add(node.tally.failures);
        self.tally.waits.merge(&node.tally.waits);
    }
}

#[derive(Debug, Clone, Copy)]
struct LastReport {
    at: Time,
    received_bytes: u64,
    sent_bytes: u64,
    tally: Tally,
}

#[derive(Debug, Default)]
struct Series {
    points: VecDeque<Point>,
    last_report: Option<LastReport>,
    last_known: u64,
}

impl Series {
    fn push(&mut self, point: Point) {
        if self.points.len() == STEPS {
            self.points.pop_front();
        }
        if self.points.len() == self.points.capacity() {
            self.points.reserve_exact(GROWTH.min(STEPS - self.points.len()));
        }
        self.points.push_back(point);
    }

    /// Returns the bytes and calls since the store's previous report. An unchanged store sends no
    /// report.
    fn counts(&mut self, at: Time, load: &Load) -> Counts {
        let now = LastReport {
            at,
            received_bytes: load.received_bytes,
            sent_bytes: load.sent_bytes,
            tally: load.tally,
        };
        let used_bytes = load.used_bytes();
        let Some(before) = self.last_report.replace(now).filter(|before| before.at < at) else {
            return Counts { used_bytes, ..Counts::default() };
        };
        #[expect(clippy::cast_precision_loss, reason = "six digits are enough for a chart")]
        let moved = |now: u64, then: u64| now.saturating_sub(then) as f64;
        Counts {
            received_bytes: moved(now.received_bytes, before.received_bytes),
            sent_bytes: moved(now.sent_bytes, before.sent_bytes),
            used_bytes,
            tally: now.tally.since(&before.tally),
            seconds: at.since(before.at).as_secs_f64(),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct History {
    /// Number of ten-second steps so far.
    last: u64,
    all: Series,
    nodes: BTreeMap<NodeId, Series>,
}

#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Slice {
    pub(crate) last: u64,
    pub(crate) points: Vec<Point>,
}

impl History {
    /// `loads` has each node's latest report and its time.
    pub(crate) fn sample<'a>(
        &mut self,
        loads: impl IntoIterator<Item = (&'a NodeId, Time, &'a Load)>,
    ) {
        self.last += 1;
        let mut sum = Counts { seconds: STEP.as_secs_f64(), ..Counts::default() };
        for (node, at, load) in loads {
            if !self.nodes.contains_key(node) {
                if self.nodes.len() >= MAX_NODES {
                    sum.used_bytes += load.used_bytes();
                    continue;
                }
                self.nodes.insert(node.clone(), Series::default());
            }
            let Some(series) = self.nodes.get_mut(node) else { continue };
            let counts = series.counts(at, load);
            series.last_known = self.last;
            series.push(counts.point());
            sum.add(&counts);
        }
        self.all.push(sum.point());
        let oldest = self.last.saturating_sub(STEPS as u64);
        self.nodes.retain(|_, series| series.last_known > oldest);
        for series in self.nodes.values_mut().filter(|series| series.last_known < self.last) {
            series.last_report = None;
            series.push(Point::UNKNOWN);
        }
    }

    /// Returns the points after step `after`, or all if a restarted shard has not reached it;
    /// `None` without a history.
    pub(crate) fn since(&self, node: Option<&NodeId>, after: u64) -> Option<Slice> {
        let series = node.map_or(Some(&self.all), |node| self.nodes.get(node))?;
        let wanted = match self.last.checked_sub(after) {
            Some(newer) => usize::try_from(newer).unwrap_or(usize::MAX),
            None => usize::MAX,
        };
        let known = series.points.len();
        let points = series.points.range(known - wanted.min(known)..).copied().collect();
        Some(Slice { last: self.last, points })
    }

    pub(crate) fn failing(&self) -> impl Iterator<Item = (&NodeId, f32)> {
        let last = self
            .nodes
            .iter()
            .filter_map(|(node, series)| Some((node, series.points.back()?.failures)));
        last.filter(|(_, failures)| *failures > 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: usize) -> NodeId {
        NodeId::new(&format!("a-node-with-a-name-of-usual-length-{number}")).unwrap()
    }

    fn at(seconds: u64) -> Time {
        Time::from_micros(seconds * 1_000_000)
    }

    fn load(received_bytes: u64, gets: u64) -> Load {
        let mut tally = Tally::default();
        (0..gets).for_each(|_| tally.got(Duration::from_millis(1)));
        Load { capacity_bytes: 100, free_bytes: 40, received_bytes, tally, ..Load::default() }
    }

    #[test]
    fn rates_cover_the_time_between_two_reports() {
        let mut history = History::default();
        let (one, other) = (node(1), node(2));
        history.sample([(&one, at(3), &load(1_000, 5)), (&other, at(3), &load(0, 0))]);
        let later = load(21_000, 25);
        history.sample([(&one, at(13), &later), (&other, at(3), &load(0, 0))]);
        let all = history.since(None, 0).unwrap();
        assert_eq!((all.last, all.points.len()), (2, 2));
        assert_eq!(
            (all.points[0].received, all.points[0].used),
            (0.0, 120.0),
            "no rate of one report"
        );
        assert!(all.points[0].median.is_nan());
        assert_eq!((all.points[1].received, all.points[1].gets), (2_000.0, 2.0));
        assert_eq!(all.points[1].slowest, 0.001_024);
        let own = history.since(Some(&one), 1).unwrap().points;
        assert_eq!((own.len(), own[0].received, own[0].used), (1, 2_000.0, 60.0));
        history.sample([(&one, at(13), &later)]);
        assert_eq!(history.since(Some(&one), 2).unwrap().points[0].received, 0.0);
        assert!(
            history.since(Some(&other), 2).unwrap().points[0].received.is_nan(),
            "the node has left"
        );
        assert_eq!(history.since(None, 3).unwrap().points, []);
        assert_eq!(history.since(None, 77).unwrap().points.len(), 3, "of another run of the shard");
        assert_eq!(history.since(Some(&node(3)), 0), None);
    }

    #[test]
    fn a_restarted_store_and_failures_appear_in_the_history() {
        let mut history = History::default();
        let one = node(1);
        history.sample([(&one, at(1), &load(1_000_000, 9))]);
        let mut again = load(10, 0);
        again.tally.failures = 20;
        history.sample([(&one, at(11), &again)]);
        let point = history.since(Some(&one), 1).unwrap().points[0];
        assert_eq!((point.received, point.gets, point.failures), (0.0, 0.0, 2.0));
        assert_eq!(history.failing().collect::<Vec<_>>(), [(&one, 2.0)]);
    }

    #[test]
    fn an_hour_of_a_thousand_nodes_takes_less_memory_than_the_limit() {
        const { assert!(MAX_NODES >= 2000) };
        let mut history = History::default();
        let nodes: Vec<NodeId> = (0..1000).map(node).collect();
        for step in 0..STEPS as u64 + 50 {
            let loads: Vec<Load> = (0..10).map(|_| load(step, 0)).collect();
            history.sample(
                nodes.iter().enumerate().map(|(index, node)| (node, at(step), &loads[index % 10])),
            );
        }
        let bytes: usize = history
            .nodes
            .iter()
            .map(|(node, series)| {
                let points = series.points.capacity() * size_of::<Point>();
                points + size_of::<Series>() + 2 * size_of::<NodeId>() + node.as_str().len()
            })
            .sum();
        assert!(history.nodes.values().all(|series| series.points.len() == STEPS));
        println!("history of 1,000 nodes: {bytes} bytes; at most {MAX_NODES} nodes");
        assert!(bytes <= MAX_BYTES * 1000 / MAX_NODES, "{bytes}");
    }

    #[test]
    fn nodes_that_come_and_go_are_bounded() {
        let mut history = History::default();
        let report = load(0, 0);
        for generation in 0..3 {
            let nodes: Vec<NodeId> =
                (0..MAX_NODES).map(|number| node(generation * MAX_NODES + number)).collect();
            history.sample(nodes.iter().map(|node| (node, at(1), &report)));
            assert_eq!(history.nodes.len(), MAX_NODES);
        }
        for _ in 0..STEPS {
            history.sample([]);
        }
        assert!(history.nodes.is_empty(), "the hour is over");
        assert_eq!(history.since(None, 0).unwrap().points.len(), STEPS);
    }
}
