//! Load that a store reports for the dashboard and `hoplite top`. No decision depends on it. Every
//! list is bounded.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use crate::vocabulary::id::{NodeId, ObjectId, PutId};
use crate::vocabulary::tally::Tally;
use crate::vocabulary::time::Time;

/// Most transfers, and most reduces, in a report.
pub const MAX_REPORTED: usize = 16;
/// Most finished combinations in a report.
pub const MAX_COMBINATIONS: usize = 64;
/// Most senders of a combination in a report.
pub const MAX_SENDERS: usize = 16;
/// Most links to other stores.
pub const MAX_LINKS: usize = 32;
/// Longest description of a reduce's plan, in bytes.
pub const MAX_PLAN_BYTES: usize = 256;
/// Most troubles in a report.
pub const MAX_TROUBLES: usize = 16;
/// Longest description of a trouble, in bytes.
pub const MAX_TROUBLE_BYTES: usize = 256;
/// Most clients in a report.
pub const MAX_CLIENTS: usize = 64;
/// Longest name of a client, in bytes.
pub const MAX_CLIENT_BYTES: usize = 256;
/// Most log lines in a report.
pub const MAX_LOG_LINES: usize = 64;
/// Longest log line, in bytes.
pub const MAX_LOG_LINE_BYTES: usize = 512;
/// Shortest time between a store's reports.
pub const MIN_INTERVAL: Duration = Duration::from_millis(250);
/// Longest time for which a shard's request causes reports.
pub const MAX_WATCH: Duration = Duration::from_secs(60);

/// State of a store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "most names say it")]
pub struct Load {
    pub capacity_bytes: u64,
    pub free_bytes: u64,
    pub pinned_bytes: u64,
    pub evictable_bytes: u64,
    /// Bytes reserved for targets of reduces that have not begun.
    pub reserved_bytes: u64,
    pub copies: u64,
    pub clients: u64,
    pub pulls: u64,
    /// Hops (steps of reduces) that the store performs.
    pub hops: u64,
    /// Object bytes since the start.
    pub sent_bytes: u64,
    pub received_bytes: u64,
    /// Object bytes per second since the last report.
    pub send_rate: u64,
    pub receive_rate: u64,
    /// For each shard, ordered by name: `true` if its session is open.
    pub shards_up: Vec<bool>,
    pub transfers: Vec<TransferLoad>,
    /// Reduces and collectives that the store coordinates.
    pub reduces: Vec<ReduceLoad>,
    /// Combinations that ended since the previous report, oldest first.
    pub combinations: Vec<CombinationLoad>,
    /// Measured links, slowest first.
    pub links: Vec<LinkLoad>,
    /// Empty if the store has a single card.
    pub rails: Vec<RailLoad>,
    /// Failed routes between network cards to stores that other routes reach.
    pub failed_routes: u32,
    /// Current troubles, most important first.
    pub troubles: Vec<Trouble>,
    pub tally: Tally,
    /// Details; `None` unless a tool looks at this store alone.
    pub detail: Option<Detail>,
}

impl Load {
    /// Bytes in use of the arena.
    pub const fn used_bytes(&self) -> u64 {
        self.capacity_bytes.saturating_sub(self.free_bytes)
    }
}

/// Kind of a trouble.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TroubleKind {
    /// Calls or transfers wait for memory.
    Full,
    /// The store has no session with a shard.
    Shard,
    /// A store is unreachable or refuses this one.
    Peer,
    /// A client's call waits for long.
    Wait,
    /// A directory of spill files is full or fails.
    Disk,
    /// A kind that this version does not know.
    Other,
}

/// A store's trouble, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub struct Trouble {
    pub kind: TroubleKind,
    /// Description, at most [`MAX_TROUBLE_BYTES`].
    pub text: String,
}

/// Details of one node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "most names say it")]
pub struct Detail {
    pub clients: Vec<ClientLoad>,
    pub log: Vec<String>,
}

/// A client of a store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "most names say it")]
pub struct ClientLoad {
    /// Client's program, and its process id if known.
    pub name: String,
    pub references: u64,
    pub bytes: u64,
    /// Size of the deleted or evictable copies that only the client's references keep.
    pub held_bytes: u64,
    pub calls: u64,
}

/// A transfer of an object to a store.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub struct TransferLoad {
    pub id: ObjectId,
    pub size_bytes: u64,
    pub valid_bytes: u64,
    pub rate: u64,
}

/// A reduce or collective that the store coordinates.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub struct ReduceLoad {
    pub target: ObjectId,
    pub op: String,
    pub joined: u64,
    pub sources: u64,
    pub plan: String,
    pub elapsed: Duration,
}

/// A combination of inputs: a hop, the last step of a reduce, or a member's part of a collective.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub struct CombinationLoad {
    /// Counts the store's combinations in the order of their ends.
    pub number: u64,
    /// Target, or the private id of a hop's output.
    pub output: ObjectId,
    /// Shared by all members of a collective.
    pub put: PutId,
    pub op: String,
    /// Description of the schedule; empty for a hop.
    pub plan: String,
    pub senders: Vec<Sender>,
    pub all_senders: u64,
    pub size_bytes: u64,
    /// Since the end.
    pub age: Duration,
    pub took: Duration,
    pub is_complete: bool,
}

/// A store that sent an input.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub struct Sender {
    pub node: NodeId,
    /// Output of the sending store's hop, if the input is one.
    pub hop: Option<ObjectId>,
}

/// A link as transfers measured it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub struct LinkLoad {
    pub peer: NodeId,
    pub bytes_per_second: u64,
    pub round_trip_ns: u64,
    /// `true` if the link is much slower, or has a much longer round trip, than most.
    pub is_slow: bool,
    /// Number of connections (lanes) that the last trial chose for all transfers to this peer
    /// together; zero before a trial.
    pub lanes: u32,
}

/// Network card (rail); counts and rates as in [`Load`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub struct RailLoad {
    pub address: IpAddr,
    pub sent_bytes: u64,
    pub received_bytes: u64,
    pub send_rate: u64,
    pub receive_rate: u64,
    pub failed_routes: u32,
}

impl Load {
    fn since(mut self, before: &Self, elapsed: Duration) -> Self {
        let rate = |now: u64, then: u64| per_second(now.saturating_sub(then), elapsed);
        self.send_rate = rate(self.sent_bytes, before.sent_bytes);
        self.receive_rate = rate(self.received_bytes, before.received_bytes);
        for (rail, then) in self.rails.iter_mut().zip(&before.rails) {
            rail.send_rate = rate(rail.sent_bytes, then.sent_bytes);
            rail.receive_rate = rate(rail.received_bytes, then.received_bytes);
        }
        let earlier: BTreeMap<&ObjectId, u64> =
            before.transfers.iter().map(|transfer| (&transfer.id, transfer.valid_bytes)).collect();
        for transfer in &mut self.transfers {
            // A transfer that the previous report lacks may have had bytes already.
            transfer.rate =
                earlier.get(&transfer.id).map_or(0, |then| rate(transfer.valid_bytes, *then));
        }
        self
    }
}

fn per_second(bytes: u64, elapsed: Duration) -> u64 {
    let micros = elapsed.as_micros().max(1);
    u64::try_from(u128::from(bytes) * 1_000_000 / micros).unwrap_or(u64::MAX)
}

/// Decides when a store reports its load to a shard: at intervals while the shard requests it, and
/// only after changes.
#[derive(Debug, Clone, Default)]
pub struct Reporter {
    watched: Option<(Time, Duration)>,
    next: Option<Time>,
    last: Option<(Time, Load)>,
    last_sent: Option<Load>,
    /// Newest combinations of the last two reports.
    covered: (u64, u64),
}

impl Reporter {
    /// Starts or extends the load reports that the shard requests.
    pub fn watch(&mut self, now: Time, interval: Duration, duration: Duration) {
        let interval = interval.clamp(MIN_INTERVAL, MAX_WATCH);
        if self.next.is_none() {
            // The shard may have forgotten the last report.
            (self.last, self.last_sent, self.next) = (None, None, Some(now));
            self.covered = (0, 0);
        }
        if self.watched.is_some_and(|(_, known)| interval < known) {
            self.next = Some(now);
        }
        self.watched = Some((now + duration.min(MAX_WATCH), interval));
    }

    /// Time at which the load must be measured next.
    pub fn next(&self) -> Option<Time> {
        self.next
    }

    /// Returns a report if the load has changed.
    pub fn measured(&mut self, now: Time, mut load: Load) -> Option<Load> {
        let (until, interval) = self.watched?;
        let mut combinations = std::mem::take(&mut load.combinations);
        self.next = (now < until).then(|| now + interval);
        let load = match &self.last {
            Some((then, before)) => load.since(before, now.since(*then)),
            None => load,
        };
        self.last = Some((now, load.clone()));
        combinations.retain(|combination| combination.number > self.covered.0);
        if self.last_sent.as_ref() == Some(&load) && combinations.is_empty() {
            return None;
        }
        self.last_sent = Some(load.clone());
        let newest = combinations.last().map_or(self.covered.0, |combination| combination.number);
        self.covered = (newest, self.covered.0);
        Some(Load { combinations, ..load })
    }

    /// Records that the last report was not sent, so the next report is sent in any case.
    pub fn report_failed(&mut self) {
        self.last_sent = None;
        self.covered.0 = self.covered.1;
    }
}

/// Interval of reports for the dashboard's history, without a watching tool.
pub const HISTORY_INTERVAL: Duration = Duration::from_secs(5);
const HISTORY_RENEWAL: Duration = Duration::from_secs(30);
/// Time for which stores report their load after a request for a dashboard or `hoplite top`.
pub const REPORT_DURATION: Duration = Duration::from_secs(15);
const RENEWAL: Duration = Duration::from_secs(5);
/// Most reports per second that a shard requests from all stores. Each costs some ten microseconds.
const REPORTS_A_SECOND: u64 = 500;

/// Decides when a shard requests load reports, for tools and the dashboard's history.
#[derive(Debug, Clone, Default)]
pub struct ReportRequests {
    requested: Option<Time>,
    kept: Option<Time>,
    reporting_until: Option<Time>,
}

/// A shard's request for load reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub struct ReportRequest {
    pub interval: Duration,
    /// Time for which the stores report.
    pub duration: Duration,
    /// `true` if earlier reports are too old, and must be forgotten.
    pub forget: bool,
}

impl ReportRequests {
    /// Records that a tool watches. Returns a request at most every five seconds.
    pub fn note_watcher(&mut self, now: Time, stores: usize) -> Option<ReportRequest> {
        if self.requested.is_some_and(|requested| now.since(requested) < RENEWAL) {
            return None;
        }
        self.requested = Some(now);
        Some(self.request(now, shortest_interval(stores), REPORT_DURATION))
    }

    /// Returns a request for the history, unless stores report already. Call it every few seconds.
    pub fn request_history(&mut self, now: Time, stores: usize) -> Option<ReportRequest> {
        let is_watched =
            self.requested.is_some_and(|requested| now.since(requested) < REPORT_DURATION);
        let is_kept = self.kept.is_some_and(|kept| {
            now.since(kept) < HISTORY_RENEWAL
                && self.requested.is_none_or(|requested| requested < kept)
        });
        if is_watched || is_kept {
            return None;
        }
        self.kept = Some(now);
        Some(self.request(now, shortest_interval(stores).max(HISTORY_INTERVAL), MAX_WATCH))
    }

    fn request(&mut self, now: Time, interval: Duration, duration: Duration) -> ReportRequest {
        let forget = self.reporting_until.is_none_or(|until| now.since(until) >= REPORT_DURATION);
        self.reporting_until = Some(now + duration);
        ReportRequest { interval, duration, forget }
    }

    /// Returns `true` while the last request is in force, also for stores that connect.
    pub fn holds(&self, now: Time) -> bool {
        self.reporting_until.is_some_and(|until| now < until)
    }
}

fn shortest_interval(stores: usize) -> Duration {
    Duration::from_secs((stores as u64).div_ceil(REPORTS_A_SECOND).max(1))
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
        let rail = RailLoad {
            address: [127, 0, 0, 1].into(),
            sent_bytes: received_bytes / 2,
            received_bytes: received_bytes / 2,
            send_rate: 0,
            receive_rate: 0,
            failed_routes: 0,
        };
        Load { received_bytes, transfers: vec![transfer], rails: vec![rail], ..Load::default() }
    }

    #[test]
    fn a_store_reports_only_while_a_tool_watches() {
        let mut reporter = Reporter::default();
        assert_eq!(reporter.next(), None);
        assert_eq!(reporter.measured(at(0), Load::default()), None);
        reporter.watch(at(10), Duration::from_secs(1), Duration::from_secs(2));
        assert_eq!(reporter.next(), Some(at(10)));
        assert!(reporter.measured(at(10), Load::default()).is_some());
        assert_eq!(reporter.measured(at(1010), Load::default()), None, "nothing has changed");
        reporter.report_failed();
        assert!(
            reporter.measured(at(2010), Load::default()).is_some(),
            "the shard did not get the report"
        );
        assert_eq!(reporter.next(), None, "the watch is over");
        reporter.watch(at(9000), Duration::from_secs(1), Duration::from_secs(2));
        assert!(
            reporter.measured(at(9000), Load::default()).is_some(),
            "the shard may have forgotten the last report"
        );
    }

    #[test]
    fn a_combination_is_reported_once_unless_the_report_was_lost() {
        let output = ObjectId::new("x").unwrap();
        let combination = |number| CombinationLoad {
            number,
            output: output.clone(),
            put: PutId(1),
            op: "sum".to_owned(),
            plan: String::new(),
            senders: Vec::new(),
            all_senders: 0,
            size_bytes: 8,
            age: Duration::ZERO,
            took: Duration::ZERO,
            is_complete: true,
        };
        let load = |numbers: &[u64]| Load {
            combinations: numbers.iter().copied().map(combination).collect(),
            ..Load::default()
        };
        let numbers = |report: Option<Load>| {
            report.map(|load| load.combinations.iter().map(|one| one.number).collect::<Vec<_>>())
        };
        let mut reporter = Reporter::default();
        reporter.watch(at(0), Duration::from_secs(1), Duration::from_secs(5));
        assert_eq!(numbers(reporter.measured(at(0), load(&[3, 5]))), Some(vec![3, 5]));
        assert_eq!(numbers(reporter.measured(at(1000), load(&[3, 5]))), None);
        assert_eq!(numbers(reporter.measured(at(2000), load(&[5, 8]))), Some(vec![8]));
        reporter.report_failed();
        assert_eq!(numbers(reporter.measured(at(3000), load(&[5, 8, 9]))), Some(vec![8, 9]));
        assert_eq!(numbers(reporter.measured(at(6000), load(&[9]))), None);
        reporter.watch(at(9000), Duration::from_secs(1), Duration::from_secs(5));
        assert_eq!(
            numbers(reporter.measured(at(9000), load(&[9]))),
            Some(vec![9]),
            "the shard may have forgotten the last report"
        );
    }

    #[test]
    fn rates_cover_the_time_since_the_previous_report() {
        let mut reporter = Reporter::default();
        reporter.watch(at(0), Duration::from_secs(1), Duration::MAX);
        let first = reporter.measured(at(0), receiving(5_000, 1_000)).unwrap();
        assert_eq!((first.receive_rate, first.transfers[0].rate), (0, 0));
        let second = reporter.measured(at(500), receiving(6_000, 1_500)).unwrap();
        assert_eq!((second.receive_rate, second.transfers[0].rate), (2_000, 1_000));
        assert_eq!((second.rails[0].send_rate, second.rails[0].receive_rate), (1_000, 1_000));
        let stopped = reporter.measured(at(1500), receiving(6_000, 1_500)).unwrap();
        assert_eq!((stopped.receive_rate, stopped.transfers[0].rate), (0, 0));
        assert_eq!(reporter.measured(at(2500), receiving(6_000, 1_500)), None);
    }

    #[test]
    fn requests_are_repeated_at_intervals_while_a_tool_watches() {
        let mut report_requests = ReportRequests::default();
        assert!(!report_requests.holds(at(0)));
        let request = |seconds, forget| {
            Some(ReportRequest {
                interval: Duration::from_secs(seconds),
                duration: REPORT_DURATION,
                forget,
            })
        };
        assert_eq!(report_requests.note_watcher(at(0), 0), request(1, true));
        assert_eq!(report_requests.note_watcher(at(4999), 500), None);
        assert_eq!(report_requests.note_watcher(at(5000), 500), request(1, false));
        assert!(report_requests.holds(at(19_999)));
        assert!(!report_requests.holds(at(20_000)), "the stores have stopped reporting");
        assert_eq!(report_requests.note_watcher(at(34_999), 501), request(2, false));
        assert_eq!(
            report_requests.note_watcher(at(64_999), 65_536),
            request(132, true),
            "earlier reports may be old"
        );
    }

    #[test]
    fn a_history_sends_few_requests_and_none_while_a_tool_requests() {
        let mut requests = ReportRequests::default();
        let kept = |forget| {
            Some(ReportRequest { interval: HISTORY_INTERVAL, duration: MAX_WATCH, forget })
        };
        assert_eq!(requests.request_history(at(0), 10), kept(true));
        assert_eq!(requests.request_history(at(29_999), 10), None);
        assert!(requests.holds(at(59_999)), "a store that connects reports, too");
        assert_eq!(requests.request_history(at(30_000), 10), kept(false));
        let tool = ReportRequest {
            interval: Duration::from_secs(1),
            duration: REPORT_DURATION,
            forget: false,
        };
        assert_eq!(requests.note_watcher(at(31_000), 10), Some(tool), "recent reports stay");
        assert_eq!(requests.request_history(at(45_999), 10), None, "the tool requests more");
        assert_eq!(requests.request_history(at(46_000), 10), kept(false));
        assert_eq!(requests.request_history(at(50_000), 10_000), None);
        let slow = requests.request_history(at(80_000), 10_000).unwrap();
        assert_eq!(
            slow.interval,
            Duration::from_secs(20),
            "a shard has little time for many stores"
        );
    }

    #[test]
    fn a_tool_gets_its_first_report_at_once() {
        let mut reporter = Reporter::default();
        reporter.watch(at(0), HISTORY_INTERVAL, MAX_WATCH);
        reporter.measured(at(0), Load::default());
        assert_eq!(reporter.next(), Some(at(5000)));
        reporter.watch(at(100), Duration::from_secs(1), REPORT_DURATION);
        assert_eq!(reporter.next(), Some(at(100)));
        reporter.measured(at(100), Load::default());
        reporter.watch(at(200), Duration::from_secs(1), REPORT_DURATION);
        assert_eq!(reporter.next(), Some(at(1100)));
    }

    #[test]
    fn intervals_and_watches_are_bounded() {
        let mut reporter = Reporter::default();
        reporter.watch(at(0), Duration::ZERO, Duration::MAX);
        reporter.measured(at(0), Load::default());
        assert_eq!(reporter.next(), Some(Time::ZERO + MIN_INTERVAL));
        let late = Time::ZERO + MAX_WATCH;
        reporter.measured(late, Load::default());
        assert_eq!(reporter.next(), None);
        reporter.watch(at(0), Duration::MAX, Duration::MAX);
        reporter.measured(at(0), Load::default());
        assert_eq!(reporter.next(), Some(late), "the next watch gets its report in time");
    }
}
