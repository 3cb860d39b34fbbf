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
    /// The groups of the node.
    pub(in crate::shard) path: Path,
    pub(in crate::shard) state: LocationState,
    pub(in crate::shard) retention: Retention,
    /// `true` if the session of its node is gone.
    pub(in crate::shard) is_away: bool,
    /// `true` if the store has published the copy; `false` if only a grant of the shard implies it.
    pub(in crate::shard) is_published: bool,
    /// `true` if the store regards this shard as the first connected shard of the object.
    pub(in crate::shard) leads: bool,
    /// The number of further receivers that the copy may serve now.
    pub(in crate::shard) free_slots: u32,
    /// The session of the node in which the copy was last published. The copy is stale if the node
    /// has a newer session.
    pub(in crate::shard) session: u32,
    /// The latest grant of this location, or zero.
    pub(in crate::shard) last_grant: u64,
    /// For a complete copy: when it became complete. For another copy: when it has, or will have,
    /// bytes to forward.
    pub(in crate::shard) since: Time,
    /// The sender's name, because this shard may not know the sender's node yet.
    pub(in crate::shard) pulling_from: Option<NodeId>,
    /// `true` if the copy's bytes come over a slow link: its own link, or one further up the chain.
    pub(super) comes_slowly: bool,
}

/// Tells complete copies from unfinished ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::shard) enum Class {
    Complete,
    Unfinished,
}

/// The order of copies with a free slot: by class, then by time, then by latest grant. The time
/// counts only for unfinished copies, and says when they have bytes.
pub(super) type Rank = (Class, Time, u64, NodeIndex);

impl LocationRecord {
    /// Returns a copy that serves no receiver and that its store has not published.
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

    /// Sets whether the copy's bytes come over a slow link.
    pub(in crate::shard) const fn set_comes_slowly(&mut self, comes_slowly: bool) {
        self.comes_slowly = comes_slowly;
    }

    /// Returns `true` if the copy's bytes come over a slow link.
    pub(in crate::shard) const fn comes_slowly(&self) -> bool {
        self.comes_slowly
    }

    /// Returns `true` if receivers behind this copy wait for bytes that come over a slow link.
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

    pub(super) fn rank(&self) -> Option<Rank> {
        let class = self.class();
        let since = if class == Class::Complete { Time::ZERO } else { self.since };
        let is_free = self.free_slots > 0 && !self.is_away;
        is_free.then_some((class, since, self.last_grant, self.node))
    }
}
