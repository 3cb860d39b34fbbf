//! What the shard keeps per object. Small, since there may be a million of them.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::message::{GrantId, LocationState, Publish, Retention};
use super::nodes::NodeIndex;
use crate::id::{NodeId, PutId};
use crate::metadata::Metadata;
use crate::time::Time;

/// One object, live or lost.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) put: PutId,
    pub(super) size_bytes: u64,
    pub(super) metadata: Metadata,
    /// The bytes, if the object is small.
    pub(super) inline: Option<Bytes>,
    /// The copies, by node index.
    locations: Vec<LocationRecord>,
    /// The slots that are granted now, with who serves whom.
    pub(super) links: BTreeMap<GrantId, Link>,
    pub(super) state: EntryState,
    /// Set when the last pinned copy was lost and no complete copy could be promoted: the next one is.
    pub(super) pin: Pin,
}

/// Whether an object can still be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryState {
    Live,
    /// There was no root, only partial copies, at `due` it is lost.
    Rootless {
        due: Time,
    },
    /// Only a marker is left, so that queries fail at once; it is forgotten at `forget_at`.
    Lost {
        forget_at: Time,
    },
}

/// Whether some copy is pinned, as far as the shard must care.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pin {
    Held,
    Missing,
}

/// One copy of an object.
#[derive(Debug)]
pub(super) struct LocationRecord {
    pub(super) node: NodeIndex,
    pub(super) state: LocationState,
    pub(super) retention: Retention,
    /// Slots taken.
    pub(super) slots: u32,
    /// The session of the node in which it was published last; an older one than the current makes it stale.
    pub(super) session: u32,
    /// The latest grant of this location, zero if there was none.
    pub(super) last_grant: u64,
    /// Kept by name, since the sender may be unknown to this shard yet.
    pub(super) pulling_from: Option<NodeId>,
}

/// A slot in use: `receiver` pulls from `sender`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Link {
    pub(super) receiver: NodeIndex,
    pub(super) sender: NodeIndex,
}

impl Entry {
    pub(super) fn new(publish: &Publish) -> Self {
        // A slice of a received frame would keep the whole frame alive.
        let user = Bytes::copy_from_slice(&publish.metadata.user);
        Self {
            put: publish.put,
            size_bytes: publish.size_bytes,
            metadata: Metadata { user, ..publish.metadata.clone() },
            inline: None,
            locations: Vec::new(),
            links: BTreeMap::new(),
            state: EntryState::Live,
            pin: Pin::Held,
        }
    }

    pub(super) fn agrees_with(&self, publish: &Publish) -> bool {
        self.size_bytes == publish.size_bytes && self.metadata == publish.metadata
    }

    pub(super) fn is_lost(&self) -> bool {
        matches!(self.state, EntryState::Lost { .. })
    }

    /// Whether all bytes are somewhere, or will be.
    pub(super) fn has_root(&self) -> bool {
        self.inline.is_some()
            || self.locations.iter().any(|location| location.state != LocationState::Partial)
    }

    /// Whether somebody has some of the bytes, or was sent to get them.
    pub(super) fn has_followers(&self) -> bool {
        !self.locations.is_empty() || !self.links.is_empty()
    }

    pub(super) fn is_pinned(&self) -> bool {
        self.locations.iter().any(|location| location.retention == Retention::Pinned)
    }

    pub(super) fn locations(&self) -> &[LocationRecord] {
        &self.locations
    }

    fn position(&self, node: NodeIndex) -> Result<usize, usize> {
        self.locations.binary_search_by_key(&node, |location| location.node)
    }

    pub(super) fn location(&self, node: NodeIndex) -> Option<&LocationRecord> {
        self.position(node).ok().map(|position| &self.locations[position])
    }

    pub(super) fn location_mut(&mut self, node: NodeIndex) -> Option<&mut LocationRecord> {
        self.position(node).ok().map(|position| &mut self.locations[position])
    }

    /// Adds a copy of `node`, which has none yet.
    pub(super) fn add_location(&mut self, mut location: LocationRecord) {
        let Err(position) = self.position(location.node) else { return };
        // Slots that an earlier copy at this node had granted may still be in use.
        let taken = self.links.values().filter(|link| link.sender == location.node).count();
        location.slots = u32::try_from(taken).unwrap_or(u32::MAX);
        if self.locations.is_empty() {
            // Most objects have one location: do not reserve four.
            self.locations.reserve_exact(1);
        }
        self.locations.insert(position, location);
    }

    pub(super) fn remove_location(&mut self, node: NodeIndex) -> Option<LocationRecord> {
        self.position(node).ok().map(|position| self.locations.remove(position))
    }

    pub(super) fn take_locations(&mut self) -> Vec<LocationRecord> {
        std::mem::take(&mut self.locations)
    }
}

impl LocationRecord {
    pub(super) fn new(node: NodeIndex, session: u32, state: LocationState, retention: Retention) -> Self {
        Self { node, state, retention, slots: 0, session, last_grant: 0, pulling_from: None }
    }
}
