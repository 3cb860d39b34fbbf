//! Hops that one store performs for another: connections between the two, which break when either side does.

use std::time::Duration;

use hoplite_core::node::{Event, Hop, HopFailure, HopId, HopReport, HostingId};
use hoplite_core::{Error, Time};

use super::Simulation;
use super::network::Place;
use super::transfer::CONNECT_TIMEOUT;

/// The time that a store takes to hear of what it said itself.
const LOCAL_DELAY: Duration = Duration::from_micros(5);

/// The connection over which a hop is directed.
#[derive(Debug, Clone)]
pub(super) struct Direction {
    pub(super) coordinator: End,
    pub(super) host: End,
    hop: HopId,
    /// When the latest message of each direction arrives.
    to_host: Time,
    to_coordinator: Time,
    is_broken: bool,
}

/// One end of a [`Direction`].
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

impl Simulation {
    pub(super) fn start_hop(&mut self, store: usize, hop: HopId, host: usize, spec: Hop) {
        let number = self.fresh_number();
        self.note(|_| format!("store {store} asks store {host} for {hop:?} as {number}: {spec:?}"));
        assert!(store != host, "a hop of this store is no matter of others");
        let end = |store: usize, stage: Stage, sim: &Self| End { store, run: sim.stores[store].run, stage };
        let direction = Direction {
            coordinator: end(store, Stage::Open, self),
            host: end(host, Stage::Before, self),
            hop,
            to_host: self.now,
            to_coordinator: self.now,
            is_broken: false,
        };
        self.directions.insert(number, direction);
        self.summary.hops += 1;
        self.fail_at_step(store, host);
        let at = self.now + self.latency();
        self.directions.entry(number).and_modify(|direction| direction.to_host = at);
        self.at(at, move |sim| sim.hop_arrives(number, spec));
    }

    fn hop_arrives(&mut self, number: u64, spec: Hop) {
        let Some(direction) = self.directions.get_mut(&number).filter(|direction| !direction.is_broken)
        else {
            return;
        };
        let (store, host) = (direction.coordinator.store, direction.host.store);
        if direction.coordinator.stage != Stage::Open {
            return;
        }
        if !self.is_linked(Place::Store(store), Place::Store(host)) {
            return self.after(CONNECT_TIMEOUT, move |sim| sim.direction_fails(number));
        }
        if !self.stores[host].is_alive {
            return self.direction_fails(number);
        }
        if self.random.chance(1) {
            let error = Error::StoreFull { needed_bytes: 1, free_bytes: 0, capacity_bytes: 0 };
            return self.hop_heard_of(number, HopReport::Failed(HopFailure::Refused(error)));
        }
        let run = self.stores[host].run;
        if let Some(direction) = self.directions.get_mut(&number) {
            direction.host = End { store: host, run, stage: Stage::Open };
        }
        let hosting = HostingId(number);
        self.store_event(host, Event::HopRequested { hosting, hop: spec });
    }

    /// A host says how its hop goes.
    pub(super) fn hop_reported(&mut self, host: usize, hosting: HostingId, report: HopReport) {
        self.note(|_| format!("store {host} reports of hop {}: {report:?}", hosting.0));
        let number = hosting.0;
        let delay = self.latency();
        let now = self.now;
        let Some(direction) = self.directions.get_mut(&number) else { panic!("{hosting:?} is not open") };
        assert_eq!(direction.host.stage, Stage::Open, "nothing is said of a hop after its end");
        direction.to_coordinator = direction.to_coordinator.max(now + delay);
        let at = direction.to_coordinator;
        if matches!(report, HopReport::Failed(_)) {
            direction.host.stage = Stage::Failed;
            self.after(LOCAL_DELAY, move |sim| sim.hop_released(number));
        }
        self.at(at, move |sim| {
            if sim.directions.get(&number).is_some_and(|direction| !direction.is_broken) {
                sim.hop_heard_of(number, report);
            }
        });
    }

    /// The coordinator hears of its hop, unless it has ended it.
    fn hop_heard_of(&mut self, number: u64, report: HopReport) {
        let Some(direction) = self.directions.get_mut(&number) else { return };
        let (coordinator, hop) = (direction.coordinator, direction.hop);
        if coordinator.stage != Stage::Open || !self.stores[coordinator.store].is_running(coordinator.run) {
            return;
        }
        if matches!(report, HopReport::Failed(_)) {
            direction.coordinator.stage = Stage::Failed;
            self.summary.failed_hops += 1;
        }
        let host = direction.host.store;
        self.fail_at_step(coordinator.store, host);
        self.note(|_| format!("store {} hears of {hop:?} ({number}): {report:?}", coordinator.store));
        self.store_event(coordinator.store, Event::HopReported { hop, report });
    }

    fn direction_fails(&mut self, number: u64) {
        self.hop_heard_of(number, HopReport::Failed(HopFailure::Unreachable));
    }

    /// A coordinator needs a hop no longer.
    pub(super) fn end_hop(&mut self, store: usize, hop: HopId) {
        let found = self.directions.iter_mut().find(|(_, direction)| {
            direction.hop == hop
                && direction.coordinator.store == store
                && direction.coordinator.stage != Stage::Over
        });
        let Some((&number, direction)) = found else { panic!("store {store} ends {hop:?} twice") };
        assert_eq!(direction.coordinator.run, self.stores[store].run, "{hop:?} is of this run");
        direction.coordinator.stage = Stage::Over;
        self.stores[store].ended_hop_at = self.now;
        self.note(|_| format!("store {store} ends {hop:?} ({number})"));
        self.release_hop(number);
    }

    /// The host hears that its hop is needed no longer, if it can.
    fn release_hop(&mut self, number: u64) {
        let delay = self.latency();
        let now = self.now;
        let Some(direction) = self.directions.get_mut(&number) else { return };
        direction.to_host = direction.to_host.max(now + delay);
        let at = direction.to_host;
        self.at(at, move |sim| {
            if sim.directions.get(&number).is_some_and(|direction| !direction.is_broken) {
                sim.hop_released(number);
            }
            sim.forget_direction(number);
        });
    }

    fn hop_released(&mut self, number: u64) {
        let Some(direction) = self.directions.get_mut(&number) else { return };
        let (host, coordinator) = (direction.host, direction.coordinator.store);
        let was_open = matches!(host.stage, Stage::Open | Stage::Failed);
        direction.host.stage = Stage::Over;
        self.fail_at_step(host.store, coordinator);
        if was_open && self.stores[host.store].is_running(host.run) {
            self.note(|_| format!("store {} releases hop {number}", host.store));
            self.store_event(host.store, Event::HopReleased { hosting: HostingId(number) });
        }
        self.forget_direction(number);
    }

    /// Forgets a connection that neither side has.
    fn forget_direction(&mut self, number: u64) {
        let Some(direction) = self.directions.get(&number) else { return };
        let is_over = |end: End| {
            end.stage == Stage::Over
                || end.stage == Stage::Before
                || !self.stores[end.store].is_running(end.run)
        };
        if is_over(direction.coordinator) && is_over(direction.host) {
            self.directions.remove(&number);
        }
    }

    /// Breaks the connections for which this holds; both sides notice on their own.
    pub(super) fn break_directions(&mut self, is_meant: impl Fn(&Direction) -> bool) {
        let meant = self.directions.iter().filter(|(_, direction)| is_meant(direction));
        let broken: Vec<u64> = meant.map(|(number, _)| *number).collect();
        for number in broken {
            let Some(direction) = self.directions.get_mut(&number) else { continue };
            if std::mem::replace(&mut direction.is_broken, true) {
                // A machine that crashed takes its end along.
                self.forget_direction(number);
                continue;
            }
            let (at_host, at_coordinator) = (self.random.millis(0..200), self.random.millis(0..200));
            self.after(at_host, move |sim| sim.hop_released(number));
            self.after(at_coordinator, move |sim| {
                sim.direction_fails(number);
                sim.forget_direction(number);
            });
        }
    }
}
