//! One copy of an object, and its rank among the others.

use crate::id::NodeId;
use crate::shard::nodes::NodeIndex;
use crate::time::Time;
use crate::topology::place::Path;
use crate::vocabulary::directory::{LocationState, Retention};

/// One copy of an object.
#[derive(Debug, Clone)]
pub(in crate::shard) struct LocationRecord {
    pub(in crate::shard) node: NodeIndex,
    /// In which groups the node is.
    pub(in crate::shard) path: Path,
    pub(in crate::shard) state: LocationState,
    pub(in crate::shard) retention: Retention,
    /// `true` if the session of its node is gone.
    pub(in crate::shard) is_away: bool,
    /// `true` if its store has said that it has it; if not, the shard has only granted it.
    pub(in crate::shard) is_published: bool,
    /// How many more receivers it may serve now.
    pub(in crate::shard) free_slots: u32,
    /// The session of the node in which it was published last; an older one than the current makes it stale.
    pub(in crate::shard) session: u32,
    /// The latest grant of this location, zero if there was none.
    pub(in crate::shard) last_grant: u64,
    /// The time at which a copy that is not complete has, or will have, bytes to pass on; since when a complete one is that.
    pub(in crate::shard) since: Time,
    /// Kept by name, since the sender may be unknown to this shard yet.
    pub(in crate::shard) pulling_from: Option<NodeId>,
    /// `true` if what it is being pulled over carries little: that link, or one before it.
    pub(super) comes_slowly: bool,
}

/// The class of a copy: complete or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::shard) enum Class {
    Complete,
    Unfinished,
}

/// The place of a copy among those with a free slot: by class, then complete ones by their latest grant, and others by when
/// they have bytes.
pub(super) type Rank = (Class, Time, u64, NodeIndex);

impl LocationRecord {
    /// A copy that nobody is served by yet, and that its store has not spoken of.
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
            free_slots: 0,
            session,
            last_grant: 0,
            since: Time::ZERO,
            pulling_from: None,
            comes_slowly: false,
        }
    }

    /// Notes whether its bytes come over a slow link.
    pub(in crate::shard) const fn set_comes_slowly(&mut self, comes_slowly: bool) {
        self.comes_slowly = comes_slowly;
    }

    /// Returns `true` if its bytes come over a slow link, as was noted.
    pub(in crate::shard) const fn comes_slowly(&self) -> bool {
        self.comes_slowly
    }

    /// Returns `true` if whoever follows it has to wait for bytes that come over a slow link.
    pub(in crate::shard) fn is_held_up(&self) -> bool {
        self.comes_slowly && self.state == LocationState::Partial
    }

    pub(in crate::shard) fn class(&self) -> Class {
        if self.state == LocationState::Complete { Class::Complete } else { Class::Unfinished }
    }

    /// Returns `true` if all bytes are there, or will be.
    pub(in crate::shard) fn is_rooted(&self) -> bool {
        self.state != LocationState::Partial
    }

    pub(super) fn rank(&self) -> Option<Rank> {
        let class = self.class();
        let since = if class == Class::Complete { Time::ZERO } else { self.since };
        let is_free = self.free_slots > 0 && !self.is_away;
        is_free.then_some((class, since, self.last_grant, self.node))
    }
}
