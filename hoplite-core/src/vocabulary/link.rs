//! Measured properties of links and connections.

use super::place::{MAX_LEVELS, Path};

/// The capacity of groups' uplinks by level, in thousandths of a host's link.
///
/// An unmeasured uplink counts as one host's link: pessimistic for faster uplinks, and optimistic
/// for slower ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Uplink {
    permille: [u32; MAX_LEVELS],
}

impl Uplink {
    /// Makes an uplink of equal capacity at all levels.
    pub const fn measured(permille: u32) -> Self {
        Self::of_levels([permille; MAX_LEVELS])
    }

    /// Makes an uplink from the capacity at each level, outermost first; zero if unmeasured.
    pub const fn of_levels(permille: [u32; MAX_LEVELS]) -> Self {
        Self { permille }
    }

    /// Capacities in thousandths, outermost first; zero if unmeasured.
    pub const fn levels(self) -> [u32; MAX_LEVELS] {
        self.permille
    }

    /// The least measured capacity in thousandths, or zero.
    pub fn permille(self) -> u32 {
        self.permille.into_iter().filter(|permille| *permille > 0).min().unwrap_or(0)
    }

    /// Returns `true` if any level was measured.
    pub fn is_measured(self) -> bool {
        self.permille() > 0
    }

    /// Returns the capacity of a group's uplink in links of hosts. An unmeasured level counts as
    /// the slowest other one, because a label may use another key for it.
    pub fn links(self, group: Path) -> f64 {
        let level = group.iter().rposition(|number| *number != 0);
        let measured = level.map(|level| self.permille[level]).filter(|permille| *permille > 0);
        match measured.unwrap_or_else(|| self.permille()) {
            0 => 1.0,
            permille => f64::from(permille) / 1000.0,
        }
    }
}

/// A connection's acknowledgements, measured by the kernel: buffered bytes do not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Delivery {
    /// All bytes so far.
    pub acknowledged_bytes: u64,
    /// The recent rate; if the application limited it, the highest rate seen, possibly of a burst.
    pub bytes_per_second: u64,
    /// `true` if the link could carry more.
    pub is_application_limited: bool,
    /// The shortest recent round trip, in microseconds.
    pub round_trip_us: u32,
    /// Microseconds in which the receiver's window stopped the sender.
    pub receiver_limited_us: u64,
}
