//! What a store tells those who watch the cluster: how full it is, what it transfers, and which reduces it coordinates.
//!
//! Nobody decides anything by it. It is told only while somebody looks, see [`Reporter`], and its length is bounded.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::vocabulary::id::{NodeId, ObjectId};
use crate::vocabulary::time::Time;

/// Most transfers and most reduces of a store that it tells of: the pulls of a node that does little else than to receive.
pub const MAX_REPORTED: usize = 16;
/// Most links of a store that it tells of, those that carry least: as many as one picture of them has rows.
pub const MAX_LINKS: usize = 32;
/// Longest description of a plan, in bytes.
pub const MAX_PLAN_BYTES: usize = 256;
/// Most troubles of a store that it tells of.
pub const MAX_TROUBLES: usize = 16;
/// Longest description of a trouble, in bytes.
pub const MAX_TROUBLE_BYTES: usize = 256;
/// The shortest time between two reports of a store.
pub const MIN_INTERVAL: Duration = Duration::from_millis(250);
/// For how long a store reports at most before it must be asked again.
pub const MAX_WATCH: Duration = Duration::from_secs(60);

/// How a store is at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Load {
    /// The size of the arena.
    pub capacity_bytes: u64,
    /// How much of it is free.
    pub free_bytes: u64,
    /// How much of it is taken by copies that stay until they are deleted.
    pub pinned_bytes: u64,
    /// How much of it is taken by copies that go when room is needed.
    pub evictable_bytes: u64,
    /// How much of it is set aside for targets of reduces.
    pub reserved_bytes: u64,
    /// Copies, complete and partial.
    pub copies: u64,
    /// Connected clients.
    pub clients: u64,
    /// Transfers from other stores now.
    pub pulls: u64,
    /// Hops of reduces that it performs now.
    pub hops: u64,
    /// Bytes of objects that were sent to other stores, ever.
    pub sent_bytes: u64,
    /// Bytes of objects that were received from other stores, ever.
    pub received_bytes: u64,
    /// Bytes sent a second, since the report before.
    pub send_rate: u64,
    /// Bytes received a second, since the report before.
    pub receive_rate: u64,
    /// `true` for each shard with which it has a session, in the order of their names.
    pub shards_up: Vec<bool>,
    /// Transfers to it, at most [`MAX_REPORTED`].
    pub transfers: Vec<TransferLoad>,
    /// Reduces and allreduces that it coordinates, at most [`MAX_REPORTED`].
    pub reduces: Vec<ReduceLoad>,
    /// Links to other stores, at most [`MAX_LINKS`], those that carry least first.
    pub links: Vec<LinkLoad>,
    /// What goes wrong at it, in words, at most [`MAX_TROUBLES`]: a full store, peers that refuse it, long waits.
    pub troubles: Vec<String>,
}

/// An object on its way to a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransferLoad {
    /// The object.
    pub id: ObjectId,
    /// Its size.
    pub size_bytes: u64,
    /// How much of it is there.
    pub valid_bytes: u64,
    /// How much comes a second, since the report before.
    pub rate: u64,
}

/// A reduce or an allreduce that a store coordinates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReduceLoad {
    /// The object that it makes.
    pub target: ObjectId,
    /// What is computed, such as `sum`.
    pub op: String,
    /// The number of sources that are in it.
    pub joined: u64,
    /// The number of sources that the call names.
    pub sources: u64,
    /// The schedule, as far as it is known.
    pub plan: String,
    /// For how long it has been running.
    pub elapsed: Duration,
}

/// A link to another store, as transfers have shown it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkLoad {
    /// The other store.
    pub peer: NodeId,
    /// What it carries.
    pub bytes_per_second: u64,
    /// The time that it takes there and back, in nanoseconds.
    pub round_trip_ns: u64,
    /// `true` if it carries much less than most of this store, or takes much longer.
    pub is_slow: bool,
}

impl Load {
    /// Fills in what has happened a second since `before`.
    fn since(mut self, before: &Self, elapsed: Duration) -> Self {
        let rate = |now: u64, then: u64| per_second(now.saturating_sub(then), elapsed);
        self.send_rate = rate(self.sent_bytes, before.sent_bytes);
        self.receive_rate = rate(self.received_bytes, before.received_bytes);
        let earlier: BTreeMap<&ObjectId, u64> =
            before.transfers.iter().map(|transfer| (&transfer.id, transfer.valid_bytes)).collect();
        for transfer in &mut self.transfers {
            // One that was not told of before may have had bytes already.
            transfer.rate = earlier.get(&transfer.id).map_or(0, |then| rate(transfer.valid_bytes, *then));
        }
        self
    }
}

fn per_second(bytes: u64, elapsed: Duration) -> u64 {
    let micros = elapsed.as_micros().max(1);
    u64::try_from(u128::from(bytes) * 1_000_000 / micros).unwrap_or(u64::MAX)
}

/// When a store reports to one shard: while somebody looks, at regular times, and only what has changed.
#[derive(Debug, Clone, Default)]
pub struct Reporter {
    /// Until when, and how often.
    watched: Option<(Time, Duration)>,
    next: Option<Time>,
    /// What was measured last, and when.
    last: Option<(Time, Load)>,
    /// What was told last.
    told: Option<Load>,
}

impl Reporter {
    /// Somebody looks, and will for `duration`; wants to hear every `interval`.
    pub fn watch(&mut self, now: Time, interval: Duration, duration: Duration) {
        let interval = interval.clamp(MIN_INTERVAL, MAX_WATCH);
        if self.next.is_none() {
            // What was told before may be long ago, and forgotten.
            (self.last, self.told, self.next) = (None, None, Some(now));
        }
        self.watched = Some((now + duration.min(MAX_WATCH), interval));
    }

    /// Returns the time to look at the store next; `None` while nobody watches.
    pub fn next(&self) -> Option<Time> {
        self.next
    }

    /// The store is like this now, at the time that [`next`](Self::next) named; what to tell, if it has changed.
    pub fn measured(&mut self, now: Time, load: Load) -> Option<Load> {
        let (until, interval) = self.watched?;
        self.next = (now < until).then(|| now + interval);
        let load = match &self.last {
            Some((then, before)) => load.since(before, now.since(*then)),
            None => load,
        };
        self.last = Some((now, load.clone()));
        if self.told.as_ref() == Some(&load) {
            return None;
        }
        self.told = Some(load.clone());
        Some(load)
    }

    /// What was to be told last could not be: the next one is told whether it has changed or not.
    pub fn was_not_told(&mut self) {
        self.told = None;
    }
}

/// For how long stores are asked to tell.
pub const ASKED_FOR: Duration = Duration::from_secs(15);
/// How often they are asked again while somebody looks.
const RENEWAL: Duration = Duration::from_secs(5);
/// How many reports a second a shard asks for, of all stores together. Each costs some ten microseconds.
const REPORTS_A_SECOND: u64 = 500;

/// When a shard asks its stores to tell: while somebody looks, and not more often than it has time for.
#[derive(Debug, Clone, Default)]
pub struct ReportRequests {
    asked: Option<Time>,
}

/// What a shard does when somebody looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReportRequest {
    /// How often each store is to tell, for [`ASKED_FOR`].
    pub interval: Duration,
    /// `true` if what was told before is too old to be shown. A store may go on for an interval after it was asked, and does not
    /// repeat what has not changed, so that what is not very old still holds.
    pub forget: bool,
}

impl ReportRequests {
    /// Somebody looks, and so many stores can tell: what to ask of them, unless they were asked just now.
    pub fn look(&mut self, now: Time, stores: usize) -> Option<ReportRequest> {
        let since = self.asked.map(|asked| now.since(asked));
        if since.is_some_and(|since| since < RENEWAL) {
            return None;
        }
        self.asked = Some(now);
        let seconds = (stores as u64).div_ceil(REPORTS_A_SECOND).max(1);
        let forget = since.is_none_or(|since| since >= 2 * ASKED_FOR);
        Some(ReportRequest { interval: Duration::from_secs(seconds), forget })
    }

    /// Returns `true` if a store that comes now is to tell as the others do.
    pub fn holds(&self, now: Time) -> bool {
        self.asked.is_some_and(|asked| now.since(asked) < ASKED_FOR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::from_micros(millis * 1000)
    }

    fn receiving(received_bytes: u64, valid_bytes: u64) -> Load {
        let id = ObjectId::new("x").unwrap();
        let transfer = TransferLoad { id, size_bytes: 1 << 30, valid_bytes, rate: 0 };
        Load { received_bytes, transfers: vec![transfer], ..Load::default() }
    }

    #[test]
    fn nothing_is_told_unless_somebody_looks() {
        let mut reporter = Reporter::default();
        assert_eq!(reporter.next(), None);
        assert_eq!(reporter.measured(at(0), Load::default()), None);
        reporter.watch(at(10), Duration::from_secs(1), Duration::from_secs(2));
        assert_eq!(reporter.next(), Some(at(10)));
        assert!(reporter.measured(at(10), Load::default()).is_some());
        assert_eq!(reporter.measured(at(1010), Load::default()), None, "nothing has changed");
        reporter.was_not_told();
        assert!(reporter.measured(at(2010), Load::default()).is_some(), "the shard did not hear it");
        assert_eq!(reporter.next(), None, "nobody looks any more");
        reporter.watch(at(9000), Duration::from_secs(1), Duration::from_secs(2));
        assert!(reporter.measured(at(9000), Load::default()).is_some(), "it may be forgotten by now");
    }

    #[test]
    fn rates_are_those_since_the_report_before() {
        let mut reporter = Reporter::default();
        reporter.watch(at(0), Duration::from_secs(1), Duration::MAX);
        let first = reporter.measured(at(0), receiving(5_000, 1_000)).unwrap();
        assert_eq!((first.receive_rate, first.transfers[0].rate), (0, 0));
        let second = reporter.measured(at(500), receiving(6_000, 1_500)).unwrap();
        assert_eq!((second.receive_rate, second.transfers[0].rate), (2_000, 1_000));
        let stopped = reporter.measured(at(1500), receiving(6_000, 1_500)).unwrap();
        assert_eq!((stopped.receive_rate, stopped.transfers[0].rate), (0, 0));
        assert_eq!(reporter.measured(at(2500), receiving(6_000, 1_500)), None);
    }

    #[test]
    fn stores_are_asked_again_while_somebody_looks_and_not_more_often() {
        let mut report_requests = ReportRequests::default();
        assert!(!report_requests.holds(at(0)));
        let ask = |seconds, forget| Some(ReportRequest { interval: Duration::from_secs(seconds), forget });
        assert_eq!(report_requests.look(at(0), 0), ask(1, true));
        assert_eq!(report_requests.look(at(4999), 500), None);
        assert_eq!(report_requests.look(at(5000), 500), ask(1, false));
        assert!(report_requests.holds(at(19_999)));
        assert!(!report_requests.holds(at(20_000)), "those who were asked have stopped to tell");
        assert_eq!(report_requests.look(at(34_999), 501), ask(2, false));
        assert_eq!(report_requests.look(at(64_999), 65_536), ask(132, true), "what was told may be old");
    }

    #[test]
    fn it_is_not_asked_too_often_nor_for_ever() {
        let mut reporter = Reporter::default();
        reporter.watch(at(0), Duration::ZERO, Duration::MAX);
        reporter.measured(at(0), Load::default());
        assert_eq!(reporter.next(), Some(Time::ZERO + MIN_INTERVAL));
        let late = Time::ZERO + MAX_WATCH;
        reporter.measured(late, Load::default());
        assert_eq!(reporter.next(), None);
        reporter.watch(at(0), Duration::MAX, Duration::MAX);
        reporter.measured(at(0), Load::default());
        assert_eq!(reporter.next(), Some(late), "whoever asks next is told in time");
    }
}
