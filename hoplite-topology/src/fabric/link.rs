use hoplite_core::topology::place::Path;

/// One direction of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "most names say it")]
pub enum LinkId {
    FromHost(u32),
    ToHost(u32),
    /// A link from a switch of a BiGraph to a switch of its other half.
    Cross {
        /// Half that has the sending switch: 0 for the upper half.
        half: u8,
        from: u32,
        to: u32,
    },
    /// A link from a leaf switch to a spine switch.
    Up {
        leaf: u32,
        spine: u32,
    },
    /// A link from a spine switch to a leaf switch.
    Down {
        spine: u32,
        leaf: u32,
    },
    /// A link between neighbouring points of a torus.
    Torus {
        point: u32,
        dimension: u8,
        /// `true` if the flow goes towards the higher coordinate.
        is_ahead: bool,
    },
    /// Path from one node of a measured network to another, which no other pair shares.
    Pair(u32, u32),
    /// Uplink that the nodes of a group share in a measured network.
    Uplink {
        group: Path,
        /// `true` for the direction out of the group.
        is_up: bool,
    },
}
