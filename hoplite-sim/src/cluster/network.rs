//! The latencies between machines, and cut links.

use std::time::Duration;

use hoplite_core::session::Pings;

use super::{Application, Cluster};

/// The model of messages and bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Network {
    /// Bytes have known contents, move by blocks at random speeds, and may be damaged. Message
    /// times are random.
    Blocks {
        /// Factor by which transfers are slower than usual.
        slowness: u32,
        /// `true` if frames are damaged now and then.
        damages: bool,
    },
    /// Bytes flow at the rates that links allow. Every message takes the same time.
    Flow {
        /// The rate of a link in each direction.
        bytes_per_second: u64,
        /// The time from the sending of a byte to its arrival.
        latency: Duration,
        /// The time that a relay needs to receive a block, before it verifies and forwards it.
        block_time: Duration,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Break {
    /// A process has died, or the connection was reset. Both ends notice.
    Reset,
    /// Nothing arrives any more. Each end notices separately.
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

    /// Returns the time from the decision to connect to the first request: one and a half round
    /// trips.
    pub(super) fn connect_time(&mut self) -> Duration {
        self.latency() + self.latency() + self.latency()
    }

    /// Returns the time until a machine handles its own message.
    pub(super) fn local_time(&mut self) -> Duration {
        match self.config.network {
            Network::Flow { .. } => Duration::ZERO,
            Network::Blocks { .. } => self.latency(),
        }
    }

    /// Returns the time until an end of a connection with these pings notices that it broke.
    pub(super) fn notice_time(&mut self, cause: Break, pings: Pings) -> Duration {
        match (cause, self.config.network) {
            (Break::Silence, _) => {
                // The last answered ping may be as old as the interval.
                let interval_us = u64::try_from(pings.interval.as_micros()).unwrap_or(u64::MAX);
                pings.silence_limit() - self.random.micros(0..interval_us)
            }
            (Break::Reset, Network::Flow { latency, .. }) => latency,
            (Break::Reset, Network::Blocks { .. }) => self.random.millis(0..200),
        }
    }

    /// Returns `true` if messages pass between two ends.
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
            let ends = (LinkEnd::Store(connection.coordinator.store), LinkEnd::Store(connection.host.store));
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
