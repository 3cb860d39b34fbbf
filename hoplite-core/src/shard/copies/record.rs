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
    pub(in crate::shard) is_disconnected: bool,
    /// `false` while the shard only assumes the copy, after granting a sender, or the pin, after
    /// ordering it.
    pub(in crate::shard) is_published: bool,
    /// `true` if the store regards this shard as the object's leading shard, which creates further
    /// copies.
    pub(in crate::shard) leads: bool,
    pub(in crate::shard) free_slots: u16,
    /// Session in which the node last published the copy, which is stale in a newer session.
    pub(in crate::shard) session: u32,
    pub(in crate::shard) last_grant: u64,
    /// Time at which the copy became complete or, if incomplete, has its first bytes to
    /// forward.
    pub(in crate::shard) since: Time,
    /// Node that sends the copy's bytes, by name because this shard may not know the node yet.
    pub(in crate::shard) pulling_from: Option<Box<NodeId>>,
    /// `true` if the copy's bytes cross a slow link, here or earlier in the chain of senders.
    pub(super) has_slow_source: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::shard) enum Class {
    Complete,
    Unfinished,
}

/// Order of copies with a free slot: complete first, then time, latest grant, node. The time is
/// `since` for an unfinished copy, and zero for a complete one.
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
            is_disconnected: false,
            is_published: false,
            leads: false,
            free_slots: 0,
            session,
            last_grant: 0,
            since: Time::ZERO,
            pulling_from: None,
            has_slow_source: false,
        }
    }

    /// Records the sender of a partial copy. Returns `true` if the copy's bytes begin or cease to
    /// cross a slow link.
    pub(in crate::shard) fn begin_pull(
        &mut self,
        sender: &NodeId,
        session: u32,
        is_slow: bool,
    ) -> bool {
        if self.state != LocationState::Partial {
            return false;
        }
        let has_turned = self.has_slow_source != is_slow;
        self.session = session;
        self.pulling_from = Some(Box::new(sender.clone()));
        self.has_slow_source = is_slow;
        has_turned
    }

    pub(in crate::shard) fn set_free_slots(&mut self, slots: u32) {
        self.free_slots = u16::try_from(slots).unwrap_or(u16::MAX);
    }

    pub(in crate::shard) const fn set_has_slow_source(&mut self, has_slow_source: bool) {
        self.has_slow_source = has_slow_source;
    }

    pub(in crate::shard) const fn has_slow_source(&self) -> bool {
        self.has_slow_source
    }

    pub(in crate::shard) fn is_behind_slow_link(&self) -> bool {
        self.has_slow_source && self.state == LocationState::Partial
    }

    pub(in crate::shard) fn class(&self) -> Class {
        if self.state == LocationState::Complete { Class::Complete } else { Class::Unfinished }
    }

    pub(in crate::shard) fn is_rooted(&self) -> bool {
        self.state != LocationState::Partial
    }

    pub(super) fn is_complete_and_connected(&self) -> bool {
        self.state == LocationState::Complete && !self.is_disconnected
    }

    pub(super) fn rank(&self) -> Option<Rank> {
        let class = self.class();
        let since = if class == Class::Complete { Time::ZERO } else { self.since };
        let is_free = self.free_slots > 0 && !self.is_disconnected;
        is_free.then_some((class, since, self.last_grant, self.node))
    }
}
