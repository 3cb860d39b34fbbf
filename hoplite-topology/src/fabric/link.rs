//! The links of a network.

use hoplite_core::topology::place::Path;

/// One direction of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkId {
    /// Host to switch.
    FromHost(u32),
    /// Switch to host.
    ToHost(u32),
    /// A link between the halves of a BiGraph.
    Cross {
        /// The half of the sending switch: 0 for upper.
        half: u8,
        /// The sender.
        from: u32,
        /// The receiver.
        to: u32,
    },
    /// Leaf to spine.
    Up {
        /// The leaf.
        leaf: u32,
        /// The spine.
        spine: u32,
    },
    /// Spine to leaf.
    Down {
        /// The spine.
        spine: u32,
        /// The leaf.
        leaf: u32,
    },
    /// A link between neighbouring points of a torus.
    Torus {
        /// The point.
        point: u32,
        /// The dimension.
        dimension: u8,
        /// `true` if the flow goes towards the higher coordinate.
        is_ahead: bool,
    },
    /// A measured pair's path.
    Pair(u32, u32),
    /// A measured group's shared uplink.
    Uplink {
        /// The group.
        group: Path,
        /// `true` for the direction out of the group.
        is_up: bool,
    },
}
