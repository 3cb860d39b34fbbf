//! Measured properties of links and connections.

use std::time::Duration;

use super::place::{MAX_LEVELS, Path};

/// Capacity of the links that lead out of groups such as racks, by level, in thousandths of a
/// host's link; zero if unmeasured. Without any measurement, an uplink counts as one host's link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Uplink {
    permille: [u32; MAX_LEVELS],
}

impl Uplink {
    /// Makes uplinks with one capacity at all levels.
    pub const fn measured(permille: u32) -> Self {
        Self::of_levels([permille; MAX_LEVELS])
    }

    /// Makes uplinks with these capacities, outermost first.
    pub const fn of_levels(permille: [u32; MAX_LEVELS]) -> Self {
        Self { permille }
    }

    /// Capacity at each level, outermost first.
    pub const fn levels(self) -> [u32; MAX_LEVELS] {
        self.permille
    }

    /// Least measured capacity; zero if unmeasured.
    pub fn permille(self) -> u32 {
        self.permille.into_iter().filter(|permille| *permille > 0).min().unwrap_or(0)
    }

    /// Returns `true` if any level was measured.
    pub fn is_measured(self) -> bool {
        self.permille() > 0
    }

    /// Returns a group's uplink capacity as a multiple of a host's link. An unmeasured level counts
    /// as the slowest measured one.
    pub fn links(self, group: Path) -> f64 {
        let level = group.iter().rposition(|number| *number != 0);
        let measured = level.map(|level| self.permille[level]).filter(|permille| *permille > 0);
        match measured.unwrap_or_else(|| self.permille()) {
            0 => 1.0,
            permille => f64::from(permille) / 1000.0,
        }
    }
}

/// Acknowledged bytes of a connection, measured by the sender's kernel: buffered bytes do not
/// count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Delivery {
    /// Bytes acknowledged so far.
    pub acknowledged_bytes: u64,
    /// Kernel's latest rate of acknowledged bytes. While the application sends too little, only a
    /// higher rate replaces it, possibly of a burst.
    pub bytes_per_second: u64,
    /// `true` if the application sent too little to fill the link.
    pub is_application_limited: bool,
    /// Shortest recent round trip, in microseconds.
    pub round_trip_us: u32,
    /// Microseconds in which the receiver's window stopped the sender.
    pub receiver_limited_us: u64,
}

/// Kernel's statistics of bytes that a connection's peer has not acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unacknowledged {
    /// Number of retransmissions in a row without an acknowledgement.
    pub retransmissions: u32,
    /// Time since the peer's last acknowledgement, including time in which nothing was sent.
    pub silent_for: Duration,
}
