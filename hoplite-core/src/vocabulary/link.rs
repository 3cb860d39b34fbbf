//! The measured properties of links and connections.

use super::place::{MAX_LEVELS, Path};

/// What the uplink of a group of nodes carries, by the level of the group and in thousandths of what the link of one host does. By default
/// nobody has measured it, and it is taken for as fast as one host's. If it is more, what is chosen is no slower than it is
/// estimated; if it is less, schedules that cross uplinks less are chosen too seldom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Uplink {
    permille: [u32; MAX_LEVELS],
}

impl Uplink {
    /// As was measured, the same at all levels; zero if it was not.
    pub const fn measured(permille: u32) -> Self {
        Self::of_levels([permille; MAX_LEVELS])
    }

    /// As was measured at each level, outermost first; zero where it was not.
    pub const fn of_levels(permille: [u32; MAX_LEVELS]) -> Self {
        Self { permille }
    }

    /// In thousandths at each level, outermost first; zero where it was not measured.
    pub const fn levels(self) -> [u32; MAX_LEVELS] {
        self.permille
    }

    /// That of the level at which it is least, in thousandths; zero if it was measured at none.
    pub fn permille(self) -> u32 {
        self.permille.into_iter().filter(|permille| *permille > 0).min().unwrap_or(0)
    }

    /// Returns `true` if it was measured at any level.
    pub fn is_measured(self) -> bool {
        self.permille() > 0
    }

    /// How many hosts' links the uplink of this group carries as much as. At a level at which nothing was measured it is taken for as
    /// slow as the slowest of the others: labels may say the level of a group by another key.
    pub fn links(self, group: Path) -> f64 {
        let level = group.iter().rposition(|number| *number != 0);
        let measured = level.map(|level| self.permille[level]).filter(|permille| *permille > 0);
        match measured.unwrap_or_else(|| self.permille()) {
            0 => 1.0,
            permille => f64::from(permille) / 1000.0,
        }
    }
}

/// What the peer of a connection has acknowledged of what this side sent. Measured by the kernel from acknowledgements, so
/// bytes that only filled a buffer do not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Delivery {
    /// All bytes so far.
    pub acknowledged_bytes: u64,
    /// How fast it was lately. While there was less to send than the link would carry, that is the most that was seen, which
    /// may have been a burst.
    pub bytes_per_second: u64,
    /// `true` if there was less to send when the rate was measured.
    pub is_application_limited: bool,
    /// The shortest round trip of the last minutes, in microseconds.
    pub round_trip_us: u32,
}
