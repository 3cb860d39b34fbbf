//! Hops that one store performs for another: connections between the two, which break when either side does.

use std::time::Duration;

use hoplite_core::Error;
use hoplite_core::node::{Event, Hop, HopFailure, HopId, HopReport, HostingId};
use hoplite_core::peer::{CONNECT_TIMEOUT, KEEPALIVE_INTERVAL, SILENCE_TIMEOUT};
use hoplite_core::session::Pings;

use super::network::{Break, LinkEnd};
use super::{Application, Cluster, Network};

/// How either end of such a connection notices that the other is gone.
const KEEPALIVES: Pings = Pings {
    interval: KEEPALIVE_INTERVAL,
    timeout: SILENCE_TIMEOUT
        .checked_sub(KEEPALIVE_INTERVAL)
        .expect("several keepalives fit into the silence"),
};

/// The connection over which a hop is directed.
#[derive(Debug, Clone)]
pub(super) struct HopConnection {
    pub(super) coordinator: End,
    pub(super) host: End,
    hop: HopId,
    /// When the latest message of each direction arrives.
    to_host: Duration,
    to_coordinator: Duration,
    is_broken: bool,
}

/// One end of a [`HopConnection`].
#[derive(Debug, Clone, Copy)]
pub(super) struct End {
    pub(super) store: usize,
    run: u64,
    stage: Stage,
}

/// How far an end is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It has not heard of the hop.
    Before,
    /// It has, and has not said nor heard that it is over.
    Open,
    /// For the coordinator: it was told that the hop failed. For the host: it has said so.
    Failed,
    /// For the coordinator: it has ended the hop. For the host: it was told that the hop is released.
    Over,
}

impl<A: Application> Cluster<A> {
    pub(super) fn start_hop(&mut self, store: usize, hop: HopId, host: usize, spec: Hop) {
        let number = self.fresh_number();
        self.note(|_| format!("store {store} asks store {host} for {hop:?} as {number}: {spec:?}"));
        assert!(store != host, "a hop of this store is no matter of others");
        self.counts.hops += 1;
        let to_host = self.elapsed() + self.connect_time();
        let end = |store: usize, stage: Stage| End { store, run: self.stores[store].run, stage };
        let connection = HopConnection {
            coordinator: end(store, Stage::Open),
            host: end(host, Stage::Before),
            hop,
            to_host,
            to_coordinator: self.elapsed(),
            is_broken: false,
        };
        self.hop_connections.insert(number, connection);
        let previous = self.hop_numbers.insert((store, hop), number);
        assert_eq!(previous, None, "store {store} starts {hop:?} once");
        A::interfere(self, store, host);
        self.at(to_host, move |cluster| cluster.hop_arrives(number, spec));
    }

    /// A connection, unless it is broken.
    fn hop_connection(&mut self, number: u64) -> Option<&mut HopConnection> {
        self.hop_connections.get_mut(&number).filter(|connection| !connection.is_broken)
    }

    fn hop_arrives(&mut self, number: u64, spec: Hop) {
        let Some(connection) = self.hop_connection(number) else { return };
        let (store, host) = (connection.coordinator.store, connection.host.store);
        if connection.coordinator.stage != Stage::Open {
            return;
        }
        let unreachable_after = if !self.is_linked(LinkEnd::Store(store), LinkEnd::Store(host)) {
            Some(CONNECT_TIMEOUT)
        } else if !self.stores[host].is_alive {
            Some(self.latency())
        } else {
            None
        };
        if let Some(delay) = unreachable_after {
            return self.after(delay, move |cluster| cluster.hop_connection_fails(number));
        }
        if matches!(self.config.network, Network::Blocks { .. }) && self.random.chance(1) {
            let error = Error::StoreFull { needed_bytes: 1, free_bytes: 0, capacity_bytes: 0 };
            return self.hop_heard_of(number, HopReport::Failed(HopFailure::Refused(error)));
        }
        let run = self.stores[host].run;
        if let Some(connection) = self.hop_connections.get_mut(&number) {
            connection.host = End { store: host, run, stage: Stage::Open };
        }
        let hosting = HostingId(number);
        self.store_event(host, Event::HopRequested { hosting, hop: spec });
    }

    /// A host says how its hop goes.
    pub(super) fn hop_reported(&mut self, host: usize, hosting: HostingId, report: HopReport) {
        self.note(|_| format!("store {host} reports of hop {}: {report:?}", hosting.0));
        let (number, at) = (hosting.0, self.elapsed() + self.latency());
        let Some(connection) = self.hop_connections.get_mut(&number) else {
            panic!("{hosting:?} is not open")
        };
        assert_eq!(connection.host.stage, Stage::Open, "nothing is said of a hop after its end");
        connection.to_coordinator = connection.to_coordinator.max(at);
        let at = connection.to_coordinator;
        if matches!(report, HopReport::Failed(_)) {
            connection.host.stage = Stage::Failed;
            self.after(Duration::ZERO, move |cluster| cluster.hop_released(number));
        }
        self.at(at, move |cluster| {
            if cluster.hop_connection(number).is_some() {
                cluster.hop_heard_of(number, report);
            }
        });
    }

    /// The coordinator hears of its hop, unless it has ended it.
    fn hop_heard_of(&mut self, number: u64, report: HopReport) {
        let Some(connection) = self.hop_connections.get_mut(&number) else { return };
        let (coordinator, host, hop) = (connection.coordinator, connection.host.store, connection.hop);
        if coordinator.stage != Stage::Open || !self.stores[coordinator.store].is_running(coordinator.run) {
            return;
        }
        if matches!(report, HopReport::Failed(_)) {
            connection.coordinator.stage = Stage::Failed;
            self.counts.failed_hops += 1;
        }
        A::interfere(self, coordinator.store, host);
        self.note(|_| format!("store {} hears of {hop:?} ({number}): {report:?}", coordinator.store));
        self.store_event(coordinator.store, Event::HopReported { hop, report });
    }

    fn hop_connection_fails(&mut self, number: u64) {
        self.hop_heard_of(number, HopReport::Failed(HopFailure::Unreachable));
    }

    /// A coordinator needs a hop no longer; the host hears so, if it can.
    pub(super) fn end_hop(&mut self, store: usize, hop: HopId) {
        let Some(number) = self.hop_numbers.remove(&(store, hop)) else { panic!("{hop:?} is ended twice") };
        self.note(|_| format!("store {store} ends {hop:?} ({number})"));
        let at = self.elapsed() + self.latency();
        let run = self.stores[store].run;
        let Some(connection) = self.hop_connections.get_mut(&number) else { return };
        assert_eq!(connection.coordinator.run, run, "{hop:?} is of this run");
        connection.coordinator.stage = Stage::Over;
        connection.to_host = connection.to_host.max(at);
        let at = connection.to_host;
        self.at(at, move |cluster| {
            if cluster.hop_connection(number).is_some() {
                cluster.hop_released(number);
            }
            cluster.forget_hop_connection(number);
        });
    }

    fn hop_released(&mut self, number: u64) {
        let Some(connection) = self.hop_connections.get_mut(&number) else { return };
        let (host, coordinator) = (connection.host, connection.coordinator.store);
        let was_open = matches!(host.stage, Stage::Open | Stage::Failed);
        connection.host.stage = Stage::Over;
        A::interfere(self, host.store, coordinator);
        if was_open && self.stores[host.store].is_running(host.run) {
            self.note(|_| format!("store {} releases hop {number}", host.store));
            self.store_event(host.store, Event::HopReleased { hosting: HostingId(number) });
        }
        self.forget_hop_connection(number);
    }

    /// Forgets a connection that neither side has.
    fn forget_hop_connection(&mut self, number: u64) {
        let Some(connection) = self.hop_connections.get(&number) else { return };
        let is_over = |end: End| {
            matches!(end.stage, Stage::Over | Stage::Before) || !self.stores[end.store].is_running(end.run)
        };
        if is_over(connection.coordinator) && is_over(connection.host) {
            let key = (connection.coordinator.store, connection.hop);
            if self.hop_numbers.get(&key) == Some(&number) {
                self.hop_numbers.remove(&key);
            }
            self.hop_connections.remove(&number);
        }
    }

    /// Breaks the connections over which a store performs hops for others.
    pub(crate) fn break_hops_at(&mut self, store: usize) {
        self.break_hop_connections(Break::Reset, |connection| connection.host.store == store);
    }

    /// Breaks the connections for which this holds; both sides notice on their own.
    pub(super) fn break_hop_connections(&mut self, cause: Break, is_meant: impl Fn(&HopConnection) -> bool) {
        let meant = self.hop_connections.iter().filter(|(_, connection)| is_meant(connection));
        let broken: Vec<u64> = meant.map(|(number, _)| *number).collect();
        for number in broken {
            let Some(connection) = self.hop_connections.get_mut(&number) else { continue };
            if std::mem::replace(&mut connection.is_broken, true) {
                // A machine that crashed takes its end along.
                self.forget_hop_connection(number);
                continue;
            }
            let (at_host, at_coordinator) =
                (self.notice_time(cause, KEEPALIVES), self.notice_time(cause, KEEPALIVES));
            self.after(at_host, move |cluster| cluster.hop_released(number));
            self.after(at_coordinator, move |cluster| {
                cluster.hop_connection_fails(number);
                cluster.forget_hop_connection(number);
            });
        }
    }
}
