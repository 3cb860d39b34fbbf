use crate::id::NodeId;
use crate::shard::nodes::NodeIndex;
use crate::time::Time;
use crate::topology::place::Path;
use crate::vocabulary::directory::{LocationState, Retention};

#[derive(Debug, Clone)]
pub(in crate::shard) struct LocationRecord {
    pub(in crate::shard) node: NodeIndex,
    pub(in crate::shard) path: Path,
    pub(in crate::shard) state: LocationState,
    pub(in crate::shard) retention: Retention,
    /// `true` without a session of the node.
    pub(in crate::shard) is_away: bool,
    /// `false` if only a grant of the shard implies the copy.
    pub(in crate::shard) is_published: bool,
    /// `true` if the store regards this shard as the first connected one of the object.
    pub(in crate::shard) leads: bool,
    /// Further receivers that the copy may serve now.
    pub(in crate::shard) free_slots: u32,
    /// The node's session of the last publication. The copy is stale if the node has a newer one.
    pub(in crate::shard) session: u32,
    pub(in crate::shard) last_grant: u64,
    /// The time of completion, or of the first bytes to forward.
    pub(in crate::shard) since: Time,
    /// A name, because this shard may not know the sender yet.
    pub(in crate::shard) pulling_from: Option<NodeId>,
    /// `true` if the bytes come over a slow link, here or further up the chain.
    pub(super) comes_slowly: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::shard) enum Class {
    Complete,
    Unfinished,
}

/// Ranks copies with a free slot: by class, time and latest grant. Only unfinished copies have a
/// time, when they get their first bytes.
pub(super) type Rank = (Class, Time, u64, NodeIndex);

impl LocationRecord {
    pub(in crate::shard) const fn new(
        (node, path): (NodeIndex, Path),
        state: LocationState,
        retention: Retention,
        session: u32,
    ) -> Self {
        Self {
            node,
            path,
            state,
            retention,
            is_away: false,
            is_published: false,
            leads: false,
            free_slots: 0,
            session,
            last_grant: 0,
            since: Time::ZERO,
            pulling_from: None,
            comes_slowly: false,
        }
    }

    pub(in crate::shard) const fn set_comes_slowly(&mut self, comes_slowly: bool) {
        self.comes_slowly = comes_slowly;
    }

    pub(in crate::shard) const fn comes_slowly(&self) -> bool {
        self.comes_slowly
    }

    /// Returns `true` if receivers behind this copy wait for bytes over a slow link.
    pub(in crate::shard) fn is_held_up(&self) -> bool {
        self.comes_slowly && self.state == LocationState::Partial
    }

    pub(in crate::shard) fn class(&self) -> Class {
        if self.state == LocationState::Complete { Class::Complete } else { Class::Unfinished }
    }

    /// Returns `true` if the copy is complete, or becomes complete without another copy.
    pub(in crate::shard) fn is_rooted(&self) -> bool {
        self.state != LocationState::Partial
    }

    pub(super) fn is_complete_at_hand(&self) -> bool {
        self.state == LocationState::Complete && !self.is_away
    }

    pub(super) fn rank(&self) -> Option<Rank> {
        let class = self.class();
        let since = if class == Class::Complete { Time::ZERO } else { self.since };
        let is_free = self.free_slots > 0 && !self.is_away;
        is_free.then_some((class, since, self.last_grant, self.node))
    }
}
