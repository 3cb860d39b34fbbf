use crate::vocabulary::agreement::Collective;

/// Largest allreduce, in bytes of all sources, that rank 0's store performs alone. A schedule with
/// more steps would only add latency.
pub const MAX_STAR_BYTES: u64 = 64 << 10;
/// Largest reduce_scatter or allgather, in bytes of all sources, whose participants get all sources
/// themselves. An exchange soon costs less than these n(n-1) gets for n ranks.
const MAX_GOT_BYTES: u64 = 8 << 10;

/// Properties of a kind of collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Properties {
    /// `true` if every member makes the target. Otherwise members exchange parts, and an empty
    /// target announces the end.
    pub makes_target: bool,
    /// `true` if members' copies are complete only after the coordinator's commit. Otherwise the
    /// coordinator commits when all members have reported.
    pub awaits_commit: bool,
    /// `true` if elements of several sources are combined.
    pub combines: bool,
    /// `true` if an exchange waits for the last source, however late. A reduce would move more
    /// bytes over the late rank's link. In an all-to-all, the last rank gets its parts in any case.
    pub awaits_sources: bool,
    /// `true` if each source has one part per rank.
    pub divides_sources: bool,
    /// `true` if the result concatenates all sources by rank.
    pub joins_sources: bool,
    /// `true` if each pair of members exchanges separate parts. The coordinator then plans an
    /// exchange even for small parts, or for a single member.
    pub is_paired: bool,
    /// Largest size of all sources, in bytes, without an exchange: a reduce makes the target, or
    /// participants get the sources.
    pub max_general_bytes: u64,
}

const ALLREDUCE: Properties = Properties {
    makes_target: true,
    awaits_commit: true,
    combines: true,
    awaits_sources: true,
    divides_sources: false,
    joins_sources: false,
    is_paired: false,
    max_general_bytes: MAX_STAR_BYTES,
};
const REDUCE_SCATTER: Properties = Properties {
    makes_target: false,
    awaits_commit: false,
    awaits_sources: false,
    divides_sources: true,
    max_general_bytes: MAX_GOT_BYTES,
    ..ALLREDUCE
};
const ALLGATHER: Properties =
    Properties { combines: false, divides_sources: false, joins_sources: true, ..REDUCE_SCATTER };
const ALL_TO_ALL: Properties = Properties {
    makes_target: false,
    awaits_commit: true,
    combines: false,
    awaits_sources: true,
    divides_sources: true,
    joins_sources: false,
    is_paired: true,
    max_general_bytes: 0,
};

impl Properties {
    /// Returns `true` if participants return, and delete their sources, only when all participants
    /// have their parts.
    pub const fn ends_together(self) -> bool {
        self.awaits_commit && !self.makes_target
    }
}

impl Collective {
    /// Returns this kind's properties.
    pub const fn properties(self) -> Properties {
        match self {
            Self::Allreduce => ALLREDUCE,
            Self::ReduceScatter => REDUCE_SCATTER,
            Self::Allgather => ALLGATHER,
            Self::AllToAll => ALL_TO_ALL,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_their_defined_properties() {
        for kind in [
            Collective::Allreduce,
            Collective::ReduceScatter,
            Collective::Allgather,
            Collective::AllToAll,
        ] {
            let properties = kind.properties();
            assert_eq!(properties.makes_target, kind == Collective::Allreduce);
            assert_eq!(properties.is_paired, kind == Collective::AllToAll);
            assert_eq!(properties.joins_sources, kind == Collective::Allgather);
            assert!(!properties.makes_target || properties.awaits_commit, "a target is committed");
            assert_eq!(properties.awaits_commit, properties.awaits_sources, "{kind:?}");
        }
    }
}
