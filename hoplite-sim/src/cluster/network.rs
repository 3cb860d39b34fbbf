//! How long things take between machines, and which of them cannot reach each other.

use std::time::Duration;

use hoplite_core::session::Pings;

use super::{Application, Cluster};

/// How messages and bytes travel.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Network {
    /// Bytes move block by block, at random speeds, and may be damaged; what they are is known. Messages take random times.
    Blocks {
        /// How many times as long as usual transfers take.
        slowness: u32,
        /// `true` if frames are damaged now and then.
        damages: bool,
    },
    /// Bytes flow at the rates that links leave them. Every message takes the same time.
    Flow {
        /// What a link carries in each direction.
        bytes_per_second: u64,
        /// From the sending of a byte to its arrival.
        latency: Duration,
        /// The time that a block is on the way: a relay passes it on when it has checked it.
        block_time: Duration,
    },
}

/// How a connection breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Break {
    /// A process has died, or a connection was reset: both ends are told.
    Reset,
    /// Nothing passes any more: each end finds out by itself.
    Silence,
}

/// An end of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LinkEnd {
    Store(usize),
    Shard(usize),
}

impl<A: Application> Cluster<A> {
    /// The time that a message takes.
    pub(crate) fn latency(&mut self) -> Duration {
        match self.config.network {
            Network::Flow { latency, .. } => latency,
            Network::Blocks { .. } if self.random.chance(2) => self.random.millis(1..30),
            Network::Blocks { .. } => self.random.micros(50..400),
        }
    }

    /// From the decision to connect to the arrival of the first request: a round trip, and half of one.
    pub(super) fn connect_time(&mut self) -> Duration {
        self.latency() + self.latency() + self.latency()
    }

    /// Returns the time that a machine takes to hear of what it said itself.
    pub(super) fn local_time(&mut self) -> Duration {
        match self.config.network {
            Network::Flow { .. } => Duration::ZERO,
            Network::Blocks { .. } => self.latency(),
        }
    }

    /// Returns the time that an end of a connection, which pings the other so, takes to notice that it broke.
    pub(super) fn notice_time(&mut self, cause: Break, pings: Pings) -> Duration {
        match (cause, self.config.network) {
            (Break::Silence, _) => {
                // The last ping that was answered may be as old as the interval.
                let interval_us = u64::try_from(pings.interval.as_micros()).unwrap_or(u64::MAX);
                pings.silence_limit() - self.random.micros(0..interval_us)
            }
            (Break::Reset, Network::Flow { latency, .. }) => latency,
            (Break::Reset, Network::Blocks { .. }) => self.random.millis(0..200),
        }
    }

    /// Returns `true` if messages pass between two places.
    pub(super) fn is_linked(&self, one: LinkEnd, other: LinkEnd) -> bool {
        !self.cut.contains(&(one.min(other), one.max(other)))
    }

    /// Cuts a link, until it is mended.
    pub(crate) fn cut_link(&mut self, one: LinkEnd, other: LinkEnd) {
        self.note(|_| format!("the link {one:?} {other:?} is cut"));
        self.cut.insert((one.min(other), one.max(other)));
        self.break_sessions(Break::Silence, |session| {
            let ends = (LinkEnd::Store(session.store), LinkEnd::Shard(session.shard));
            ends == (one, other) || ends == (other, one)
        });
        self.break_directed(Break::Silence, |connection| {
            let ends = (LinkEnd::Store(connection.coordinator.store), LinkEnd::Store(connection.host.store));
            ends == (one, other) || ends == (other, one)
        });
    }

    /// Mends a link.
    pub(crate) fn mend_link(&mut self, one: LinkEnd, other: LinkEnd) {
        self.note(|_| format!("the link {one:?} {other:?} is mended"));
        self.cut.remove(&(one.min(other), one.max(other)));
    }

    /// Mends all links.
    pub(crate) fn mend_all_links(&mut self) {
        self.cut.clear();
    }
}
