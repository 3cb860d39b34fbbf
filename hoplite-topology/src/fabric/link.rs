//! The links of a network.

use hoplite_core::topology::place::Path;

/// One direction of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkId {
    /// From a host to its switch.
    FromHost(u32),
    /// From the host's switch to the host.
    ToHost(u32),
    /// From a switch of one half of a BiGraph to a switch of the other half.
    Cross {
        /// The half of the sending switch: 0 for upper.
        half: u8,
        /// The sending switch.
        from: u32,
        /// The receiving switch in the other half.
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
        /// The dimension.
        dimension: u8,
        /// `true` if the link goes to the next higher coordinate.
        is_ahead: bool,
    },
    /// The whole path between two nodes of a measured network.
    Pair(u32, u32),
    /// The uplink that all nodes of a measured group share.
    Uplink {
        /// The group.
        group: Path,
        /// `true` if the direction is out of the group.
        is_up: bool,
    },
}
