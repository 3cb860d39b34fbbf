//! The measured properties of links and connections.

use super::place::{MAX_LEVELS, Path};

/// The capacity of the uplink of a group, by the level of the group, in thousandths of one host's
/// link. The default is unmeasured, and counts as one host's link. Faster uplinks only make
/// estimates pessimistic; with slower ones, schedules that cross fewer uplinks are chosen too
/// seldom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Uplink {
    permille: [u32; MAX_LEVELS],
}

impl Uplink {
    /// Creates an uplink with the same measured capacity at all levels; zero if unmeasured.
    pub const fn measured(permille: u32) -> Self {
        Self::of_levels([permille; MAX_LEVELS])
    }

    /// Creates an uplink from the capacity at each level, outermost first; zero if unmeasured.
    pub const fn of_levels(permille: [u32; MAX_LEVELS]) -> Self {
        Self { permille }
    }

    /// Returns the capacity at each level in thousandths, outermost first; zero if unmeasured.
    pub const fn levels(self) -> [u32; MAX_LEVELS] {
        self.permille
    }

    /// Returns the least measured capacity in thousandths; zero without a measurement.
    pub fn permille(self) -> u32 {
        self.permille.into_iter().filter(|permille| *permille > 0).min().unwrap_or(0)
    }

    /// Returns `true` if it was measured at any level.
    pub fn is_measured(self) -> bool {
        self.permille() > 0
    }

    /// Returns the capacity of the uplink of this group in links of hosts. An unmeasured level
    /// counts as the slowest other one, because a label may name the level by another key.
    pub fn links(self, group: Path) -> f64 {
        let level = group.iter().rposition(|number| *number != 0);
        let measured = level.map(|level| self.permille[level]).filter(|permille| *permille > 0);
        match measured.unwrap_or_else(|| self.permille()) {
            0 => 1.0,
            permille => f64::from(permille) / 1000.0,
        }
    }
}

/// The acknowledgements of the peer of a connection. The kernel measures them, so bytes in buffers
/// do not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Delivery {
    /// All bytes so far.
    pub acknowledged_bytes: u64,
    /// The recent rate. With less to send than the link carries, the highest rate seen, possibly of
    /// a burst.
    pub bytes_per_second: u64,
    /// `true` if there was less to send when the rate was measured.
    pub is_application_limited: bool,
    /// The shortest round trip of the last minutes, in microseconds.
    pub round_trip_us: u32,
    /// The time for which the receiver's window stopped the sender, in microseconds.
    pub receiver_limited_us: u64,
}
