use std::time::Duration;

use hoplite_core::session::Pings;

use super::lanes::FlowCap;
use super::{Application, Cluster};

#[derive(Debug, Clone, Copy)]
pub(crate) enum Network {
    /// Bytes, represented by numbers, move in blocks at random speeds. Latencies are random.
    Blocks { slowness: u32, damages: bool },
    /// Bytes flow at the links' rates. All latencies are equal.
    Flow {
        bytes_per_second: u64,
        latency: Duration,
        block_time: Duration,
        /// `None` if one connection fills a link.
        flow_cap: Option<FlowCap>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Break {
    Reset,
    Silence,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LinkEnd {
    Store(usize),
    Shard(usize),
}

impl<A: Application> Cluster<A> {
    pub(crate) fn latency(&mut self) -> Duration {
        match self.config.network {
            Network::Flow { latency, .. } => latency,
            Network::Blocks { .. } if self.random.chance(2) => self.random.millis(1..30),
            Network::Blocks { .. } => self.random.micros(50..400),
        }
    }

    /// Returns the time until the first request arrives: one and a half round trips.
    pub(super) fn connect_time(&mut self) -> Duration {
        self.latency() + self.latency() + self.latency()
    }

    pub(super) fn local_time(&mut self) -> Duration {
        match self.config.network {
            Network::Flow { .. } => Duration::ZERO,
            Network::Blocks { .. } => self.latency(),
        }
    }

    pub(super) fn notice_time(&mut self, cause: Break, pings: Pings) -> Duration {
        match (cause, self.config.network) {
            (Break::Silence, _) => {
                // The last ping may be as old as the interval.
                let interval_us = u64::try_from(pings.interval.as_micros()).unwrap_or(u64::MAX);
                pings.silence_limit() - self.random.micros(0..interval_us)
            }
            (Break::Reset, Network::Flow { latency, .. }) => latency,
            (Break::Reset, Network::Blocks { .. }) => self.random.millis(0..200),
        }
    }

    pub(super) fn is_linked(&self, one: LinkEnd, other: LinkEnd) -> bool {
        !self.cut.contains(&(one.min(other), one.max(other)))
    }

    pub(crate) fn cut_link(&mut self, one: LinkEnd, other: LinkEnd) {
        self.note(|_| format!("the link {one:?} {other:?} is cut"));
        self.cut.insert((one.min(other), one.max(other)));
        self.break_sessions(Break::Silence, |session| {
            let ends = (LinkEnd::Store(session.store), LinkEnd::Shard(session.shard));
            ends == (one, other) || ends == (other, one)
        });
        self.break_directed(Break::Silence, |connection| {
            let ends = (
                LinkEnd::Store(connection.coordinator.store),
                LinkEnd::Store(connection.host.store),
            );
            ends == (one, other) || ends == (other, one)
        });
    }

    pub(crate) fn restore_link(&mut self, one: LinkEnd, other: LinkEnd) {
        self.note(|_| format!("the link {one:?} {other:?} is restored"));
        self.cut.remove(&(one.min(other), one.max(other)));
    }

    pub(crate) fn restore_all_links(&mut self) {
        self.cut.clear();
    }
}
