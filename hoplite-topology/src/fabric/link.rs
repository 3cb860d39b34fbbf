//! The links of a network.

use hoplite_core::topology::place::Path;

/// One direction of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkId {
    /// From a host to its switch.
    FromHost(u32),
    /// From its switch to a host.
    ToHost(u32),
    /// Between the halves of a BiGraph: from a switch of a half to one of the other.
    Cross {
        /// The half that the switch is in: 0 for upper.
        half: u8,
        /// The switch.
        from: u32,
        /// The switch of the other half.
        to: u32,
    },
    /// From a leaf to a spine.
    Up {
        /// The leaf.
        leaf: u32,
        /// The spine.
        spine: u32,
    },
    /// From a spine to a leaf.
    Down {
        /// The spine.
        spine: u32,
        /// The leaf.
        leaf: u32,
    },
    /// From a point of a torus to the next one.
    Torus {
        /// The point.
        point: u32,
        /// In which dimension.
        dimension: u8,
        /// `true` if to the next higher coordinate.
        is_ahead: bool,
    },
    /// The whole way between two nodes whose links were measured.
    Pair(u32, u32),
    /// What all nodes of a measured group share.
    Uplink {
        /// The group.
        group: Path,
        /// `true` if it is out of the group.
        is_up: bool,
    },
}
