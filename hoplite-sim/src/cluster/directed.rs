//! Tasks that a coordinator gives to another store: hops, and members of collectives. Each task has
//! a connection, which breaks if either side fails.

use std::time::Duration;

use hoplite_core::Error;
use hoplite_core::collective::{
    CollectiveEvent, Decision, EnlistmentId, Failure, MembershipId, Plan, Report,
};
use hoplite_core::node::{Event, Hop, HopFailure, HopId, HopReport, HostingId};
use hoplite_core::peer::{CONNECT_TIMEOUT, KEEPALIVE_INTERVAL, SILENCE_TIMEOUT};
use hoplite_core::session::Pings;

use super::network::{Break, LinkEnd};
use super::{Application, Cluster, Network};

const KEEPALIVES: Pings = Pings {
    interval: KEEPALIVE_INTERVAL,
    timeout: SILENCE_TIMEOUT
        .checked_sub(KEEPALIVE_INTERVAL)
        .expect("several keepalives fit into the silence"),
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Directed {
    Hop(HopId),
    Member(EnlistmentId),
}

#[derive(Debug, Clone)]
pub(super) enum Order {
    Hop(Hop),
    Member(Box<Plan>),
}

#[derive(Debug)]
pub(super) enum DirectedReport {
    Hop(HopReport),
    Member(Report),
}

impl DirectedReport {
    fn failure(directed: Directed, refusal: Option<Error>) -> Self {
        match (directed, refusal) {
            (Directed::Hop(_), None) => Self::Hop(HopReport::Failed(HopFailure::Unreachable)),
            (Directed::Hop(_), Some(error)) => {
                Self::Hop(HopReport::Failed(HopFailure::Refused(error)))
            }
            (Directed::Member(_), None) => Self::Member(Report::Failed(Failure::Unreachable)),
            (Directed::Member(_), Some(error)) => {
                Self::Member(Report::Failed(Failure::Refused(error)))
            }
        }
    }

    const fn is_last(&self) -> bool {
        matches!(
            self,
            Self::Hop(HopReport::Failed(_)) | Self::Member(Report::Done | Report::Failed(_))
        )
    }
}

#[derive(Debug, Clone)]
pub(super) struct DirectedConnection {
    pub(super) coordinator: End,
    pub(super) host: End,
    directed: Directed,
    to_host: Duration,
    to_coordinator: Duration,
    is_broken: bool,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct End {
    pub(super) store: usize,
    run: u64,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Before,
    Open,
    /// The last report was sent or received.
    Failed,
    Over,
}

impl<A: Application> Cluster<A> {
    pub(super) fn direct(&mut self, store: usize, directed: Directed, host: usize, order: Order) {
        let number = self.fresh_number();
        self.note(|_| {
            format!("store {store} asks store {host} for {directed:?} as {number}: {order:?}")
        });
        match directed {
            Directed::Hop(_) => {
                assert!(store != host, "a hop runs at another store");
                self.counts.hops += 1;
            }
            Directed::Member(_) => self.counts.members += 1,
        }
        let to_host = self.elapsed() + self.connect_time();
        let end = |store: usize, stage: Stage| End { store, run: self.stores[store].run, stage };
        let connection = DirectedConnection {
            coordinator: end(store, Stage::Open),
            host: end(host, Stage::Before),
            directed,
            to_host,
            to_coordinator: self.elapsed(),
            is_broken: false,
        };
        self.directed_connections.insert(number, connection);
        let previous = self.directed_numbers.insert((store, directed), number);
        assert_eq!(previous, None, "store {store} starts {directed:?} once");
        A::interfere(self, store, host);
        self.at(to_host, move |cluster| cluster.order_arrives(number, order));
    }

    fn directed_connection(&mut self, number: u64) -> Option<&mut DirectedConnection> {
        self.directed_connections.get_mut(&number).filter(|connection| !connection.is_broken)
    }

    fn order_arrives(&mut self, number: u64, order: Order) {
        let Some(connection) = self.directed_connection(number) else { return };
        let (store, host, directed) =
            (connection.coordinator.store, connection.host.store, connection.directed);
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
            return self.after(delay, move |cluster| cluster.directed_fails(number));
        }
        if matches!(self.config.network, Network::Blocks { .. }) && self.random.chance(1) {
            let error = Error::StoreFull {
                needed_bytes: 1,
                free_bytes: 0,
                capacity_bytes: 0,
                holders: String::new(),
            };
            return self
                .coordinator_received(number, DirectedReport::failure(directed, Some(error)));
        }
        let run = self.stores[host].run;
        if let Some(connection) = self.directed_connections.get_mut(&number) {
            connection.host = End { store: host, run, stage: Stage::Open };
        }
        let event = match order {
            Order::Hop(hop) => Event::HopRequested { hosting: HostingId(number), hop },
            Order::Member(plan) => {
                let membership = MembershipId::Elsewhere(number);
                Event::Collective(CollectiveEvent::Asked { membership, plan })
            }
        };
        self.store_event(host, event);
    }

    pub(super) fn host_reported(&mut self, host: usize, number: u64, report: DirectedReport) {
        self.note(|_| format!("store {host} says of {number}: {report:?}"));
        let at = self.elapsed() + self.latency();
        let Some(connection) = self.directed_connections.get_mut(&number) else {
            panic!("{number} is not open")
        };
        assert_eq!(connection.host.stage, Stage::Open, "no report follows the last one");
        connection.to_coordinator = connection.to_coordinator.max(at);
        let at = connection.to_coordinator;
        if report.is_last() {
            connection.host.stage = Stage::Failed;
            self.after(Duration::ZERO, move |cluster| cluster.host_released(number));
        }
        self.at(at, move |cluster| {
            if cluster.directed_connection(number).is_some() {
                cluster.coordinator_received(number, report);
            }
        });
    }

    fn coordinator_received(&mut self, number: u64, report: DirectedReport) {
        let Some(connection) = self.directed_connections.get_mut(&number) else { return };
        let (coordinator, host, directed) =
            (connection.coordinator, connection.host.store, connection.directed);
        if coordinator.stage != Stage::Open
            || !self.stores[coordinator.store].is_running(coordinator.run)
        {
            return;
        }
        if report.is_last() {
            connection.coordinator.stage = Stage::Failed;
            match directed {
                Directed::Hop(_) => self.counts.failed_hops += 1,
                Directed::Member(_) => {
                    connection.coordinator.stage = Stage::Over;
                    self.directed_numbers.remove(&(coordinator.store, directed));
                    self.counts.failed_members +=
                        u64::from(!matches!(report, DirectedReport::Member(Report::Done)));
                }
            }
        }
        A::interfere(self, coordinator.store, host);
        self.note(|_| {
            format!("store {} hears of {directed:?} ({number}): {report:?}", coordinator.store)
        });
        let event = match (directed, report) {
            (Directed::Hop(hop), DirectedReport::Hop(report)) => Event::HopReported { hop, report },
            (Directed::Member(enlistment), DirectedReport::Member(report)) => {
                Event::Collective(CollectiveEvent::Reported { enlistment, report })
            }
            (directed, report) => panic!("a report of another kind about {directed:?}: {report:?}"),
        };
        self.store_event(coordinator.store, event);
        self.forget_directed(number);
    }

    fn directed_fails(&mut self, number: u64) {
        let Some(connection) = self.directed_connections.get(&number) else { return };
        self.coordinator_received(number, DirectedReport::failure(connection.directed, None));
    }

    pub(super) fn send_decision(
        &mut self,
        store: usize,
        enlistment: EnlistmentId,
        decision: Decision,
    ) {
        self.note(|_| format!("store {store} tells {enlistment:?}: {decision:?}"));
        let (directed, at) = (Directed::Member(enlistment), self.elapsed() + self.latency());
        let Some(number) = self.directed_numbers.get(&(store, directed)).copied() else {
            panic!("{enlistment:?} is not open")
        };
        let is_last = matches!(decision, Decision::Stop(_));
        let Some(connection) = self.directed_connections.get_mut(&number) else { return };
        connection.to_host = connection.to_host.max(at);
        let at = connection.to_host;
        self.at(at, move |cluster| {
            let Some(connection) = cluster.directed_connection(number) else { return };
            let host = connection.host;
            if host.stage == Stage::Open && cluster.stores[host.store].is_running(host.run) {
                A::interfere(cluster, host.store, store);
                let event =
                    CollectiveEvent::Told { membership: MembershipId::Elsewhere(number), decision };
                cluster.store_event(host.store, Event::Collective(event));
            }
        });
        if is_last {
            self.end_directed(store, directed);
        }
    }

    pub(super) fn end_directed(&mut self, store: usize, directed: Directed) {
        let Some(number) = self.directed_numbers.remove(&(store, directed)) else {
            panic!("{directed:?} is ended twice")
        };
        self.note(|_| format!("store {store} ends {directed:?} ({number})"));
        let at = self.elapsed() + self.latency();
        let run = self.stores[store].run;
        let Some(connection) = self.directed_connections.get_mut(&number) else { return };
        assert_eq!(connection.coordinator.run, run, "{directed:?} is of this run");
        connection.coordinator.stage = Stage::Over;
        connection.to_host = connection.to_host.max(at);
        let at = connection.to_host;
        self.at(at, move |cluster| {
            if cluster.directed_connection(number).is_some() {
                cluster.host_released(number);
            }
            cluster.forget_directed(number);
        });
    }

    fn host_released(&mut self, number: u64) {
        let Some(connection) = self.directed_connections.get_mut(&number) else { return };
        let (host, coordinator, directed) =
            (connection.host, connection.coordinator.store, connection.directed);
        let was_open = matches!(host.stage, Stage::Open | Stage::Failed);
        connection.host.stage = Stage::Over;
        A::interfere(self, host.store, coordinator);
        if was_open && self.stores[host.store].is_running(host.run) {
            self.note(|_| format!("store {} is released of {number}", host.store));
            let event = match directed {
                Directed::Hop(_) => Event::HopReleased { hosting: HostingId(number) },
                Directed::Member(_) => {
                    let membership = MembershipId::Elsewhere(number);
                    Event::Collective(CollectiveEvent::Left { membership })
                }
            };
            self.store_event(host.store, event);
        }
        self.forget_directed(number);
    }

    fn forget_directed(&mut self, number: u64) {
        let Some(connection) = self.directed_connections.get(&number) else { return };
        let is_over = |end: End| {
            matches!(end.stage, Stage::Over | Stage::Before)
                || !self.stores[end.store].is_running(end.run)
        };
        if is_over(connection.coordinator) && is_over(connection.host) {
            let key = (connection.coordinator.store, connection.directed);
            if self.directed_numbers.get(&key) == Some(&number) {
                self.directed_numbers.remove(&key);
            }
            self.directed_connections.remove(&number);
        }
    }

    pub(crate) fn break_directed_at(&mut self, store: usize) {
        self.break_directed(Break::Reset, |connection| connection.host.store == store);
    }

    /// Breaks the matching connections. Each side notices at a separate time.
    pub(super) fn break_directed(
        &mut self,
        cause: Break,
        predicate: impl Fn(&DirectedConnection) -> bool,
    ) {
        let matching =
            self.directed_connections.iter().filter(|(_, connection)| predicate(connection));
        let broken: Vec<u64> = matching.map(|(number, _)| *number).collect();
        for number in broken {
            let Some(connection) = self.directed_connections.get_mut(&number) else { continue };
            if std::mem::replace(&mut connection.is_broken, true) {
                self.forget_directed(number);
                continue;
            }
            let (at_host, at_coordinator) =
                (self.notice_time(cause, KEEPALIVES), self.notice_time(cause, KEEPALIVES));
            self.after(at_host, move |cluster| cluster.host_released(number));
            self.after(at_coordinator, move |cluster| {
                cluster.directed_fails(number);
                cluster.forget_directed(number);
            });
        }
    }
}
