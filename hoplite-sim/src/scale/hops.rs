//! Stores that direct hops of other stores: a connection for each hop, which breaks when its host dies.

use hoplite_core::node::{Event, Hop, HopFailure, HopId, HopReport, HostingId};

use super::line::Nanos;
use super::world::World;

/// The connection over which a hop is directed.
#[derive(Debug)]
pub(super) struct Direction {
    coordinator: usize,
    host: usize,
    hop: HopId,
    /// When the request is there; nothing overtakes it.
    arrives_at: Nanos,
    /// Whether the coordinator still listens.
    is_followed: bool,
    /// Whether the host has heard of the hop, and not of its end.
    is_hosted: bool,
}

impl World {
    pub(super) fn start_hop(&mut self, coordinator: usize, hop: HopId, host: usize, spec: Hop) {
        self.counts.hops += 1;
        let number = self.fresh_number();
        // A connection takes a round trip, and the request half of one.
        let arrives_at = self.now + 3 * self.latency();
        let direction = Direction { coordinator, host, hop, arrives_at, is_followed: true, is_hosted: false };
        self.directions.insert(number, direction);
        self.directed.insert((coordinator, hop), number);
        self.at(arrives_at, move |world| world.hop_arrives(number, spec));
    }

    fn hop_arrives(&mut self, number: u64, hop: Hop) {
        let Some(direction) = self.directions.get_mut(&number) else { return };
        if !self.stores[direction.host].is_alive {
            return self.direction_breaks(number);
        }
        direction.is_hosted = true;
        let host = direction.host;
        self.store_event(host, Event::HopRequested { hosting: HostingId(number), hop });
    }

    /// A host says how its hop goes.
    pub(super) fn hop_reported(&mut self, hosting: HostingId, report: HopReport) {
        let number = hosting.0;
        if matches!(report, HopReport::Failed(_)) {
            self.after(0, move |world| world.hop_released(number));
        }
        self.after(self.latency(), move |world| world.hop_heard_of(number, report));
    }

    fn hop_heard_of(&mut self, number: u64, report: HopReport) {
        let Some(direction) = self.directions.get_mut(&number).filter(|direction| direction.is_followed)
        else {
            return;
        };
        let (coordinator, hop) = (direction.coordinator, direction.hop);
        if matches!(report, HopReport::Failed(_)) {
            direction.is_followed = false;
            self.counts.failed_hops += 1;
        }
        self.store_event(coordinator, Event::HopReported { hop, report });
    }

    /// The coordinator hears that its connection is broken.
    fn direction_breaks(&mut self, number: u64) {
        let report = HopReport::Failed(HopFailure::Unreachable);
        self.after(self.latency(), move |world| world.hop_heard_of(number, report));
    }

    /// A coordinator needs a hop no longer.
    pub(super) fn end_hop(&mut self, coordinator: usize, hop: HopId) {
        let Some(number) = self.directed.remove(&(coordinator, hop)) else { return };
        let now = self.now;
        let Some(direction) = self.directions.get_mut(&number) else { return };
        direction.is_followed = false;
        let at = (now + self.latency()).max(self.directions[&number].arrives_at);
        self.at(at, move |world| {
            world.hop_released(number);
            world.directions.remove(&number);
        });
    }

    fn hop_released(&mut self, number: u64) {
        let Some(direction) = self.directions.get_mut(&number) else { return };
        if std::mem::replace(&mut direction.is_hosted, false) {
            let host = direction.host;
            self.store_event(host, Event::HopReleased { hosting: HostingId(number) });
        }
    }

    pub(super) fn directions_of_crashed(&mut self, store: usize) {
        let broken = self.directions.iter().filter(|(_, direction)| direction.host == store);
        let broken: Vec<u64> = broken.map(|(number, _)| *number).collect();
        for number in broken {
            self.direction_breaks(number);
        }
    }
}
