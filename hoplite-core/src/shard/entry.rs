//! The state of one object in a shard. It is small, because a shard may have a million objects.

use std::collections::{BTreeMap, BTreeSet};

use super::copies::Copies;
use super::nodes::NodeIndex;
use crate::id::{NodeId, PutId};
use crate::metadata::Metadata;
use crate::time::Time;
use crate::topology::place::{EVERYWHERE, Path, groups_of, is_in};
use crate::vocabulary::directory::{GrantId, InlineBytes, Publish};

/// One object, live or lost.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) put: PutId,
    /// The node that published the object first, as far as this shard knows.
    pub(super) creator: NodeId,
    /// The time of the first publication.
    pub(super) created: Time,
    /// The time of the latest grant or inline answer.
    pub(super) used: Option<Time>,
    pub(super) size_bytes: u64,
    pub(super) metadata: Metadata,
    /// The object's bytes, if the shard keeps them.
    pub(super) inline: Option<InlineBytes>,
    pub(super) copies: Copies,
    pub(super) transfers: Transfers,
    pub(super) state: EntryState,
    /// [`Pin::Missing`] after the last pinned copy was lost without a complete copy to promote. The
    /// shard promotes the next complete copy.
    pub(super) pin: Pin,
}

/// The availability of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryState {
    Live,
    /// The object has only partial copies. It is lost at `due`.
    Rootless {
        due: Time,
    },
    /// Only a marker is left, which makes queries fail at once. The shard forgets it at
    /// `forget_at`.
    Lost {
        forget_at: Time,
    },
}

/// Tells whether some copy is pinned, as far as the shard must act on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pin {
    Held,
    Missing,
}

/// The slots of an object in use, with their senders and receivers.
#[derive(Debug, Default)]
pub(super) struct Transfers {
    links: BTreeMap<(NodeIndex, GrantId), Transfer>,
    /// The number of receivers that each node serves.
    served: BTreeMap<NodeIndex, u32>,
    /// The transfers from a node of a group to a node outside it, by group.
    leaving: BTreeSet<(Path, NodeIndex, GrantId)>,
    /// The transfers over a slow link, or behind one.
    slow: BTreeSet<(NodeIndex, GrantId)>,
}

/// A slot in use. Its receiver is the key in [`Transfers`].
#[derive(Debug, Clone)]
pub(super) struct Transfer {
    pub(super) sender: NodeIndex,
    /// The time of the grant.
    pub(super) began: Time,
    /// The groups that the transfer leaves: groups of the sender that do not contain the receiver.
    pub(super) leaves: Vec<Path>,
    /// `true` if the shard has asked the receiver to give way to another one.
    pub(super) is_recalled: bool,
    /// `true` if the receiver began before its sender had bytes to forward. The time between the
    /// two ends is then the time of one hop.
    pub(super) is_timed: bool,
    /// `true` if the transfer copies a complete object from the start. Its duration is then the
    /// transfer time of the link.
    pub(super) is_paced: bool,
    /// `true` if the transfer goes over a slow link, or is behind one.
    pub(super) is_slow: bool,
}

impl Transfers {
    pub(super) fn len(&self) -> usize {
        self.links.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    pub(super) fn insert(&mut self, receiver: NodeIndex, grant: GrantId, link: Transfer) {
        *self.served.entry(link.sender).or_default() += 1;
        self.leaving.extend(link.leaves.iter().map(|group| (*group, receiver, grant)));
        self.slow.extend(link.is_slow.then_some((receiver, grant)));
        self.links.insert((receiver, grant), link);
    }

    pub(super) fn remove(&mut self, receiver: NodeIndex, grant: GrantId) -> Option<Transfer> {
        let link = self.links.remove(&(receiver, grant))?;
        for group in &link.leaves {
            self.leaving.remove(&(*group, receiver, grant));
        }
        self.slow.remove(&(receiver, grant));
        if let Some(count) = self.served.get_mut(&link.sender) {
            *count -= 1;
            if *count == 0 {
                self.served.remove(&link.sender);
            }
        }
        Some(link)
    }

    /// All transfers: receiver, slot, transfer.
    pub(super) fn iter(&self) -> impl Iterator<Item = (NodeIndex, GrantId, &Transfer)> {
        self.links.iter().map(|((receiver, grant), link)| (*receiver, *grant, link))
    }

    /// Returns the number of receivers that a node serves.
    pub(super) fn served_by(&self, sender: NodeIndex) -> u32 {
        self.served.get(&sender).copied().unwrap_or(0)
    }

    /// The transfers that leave a group: receiver, slot, transfer.
    pub(super) fn leaving(&self, group: Path) -> impl Iterator<Item = (NodeIndex, GrantId, &Transfer)> {
        let all = (group, NodeIndex::FIRST, GrantId(0))..=(group, NodeIndex(u32::MAX), GrantId(u64::MAX));
        let links = self.leaving.range(all);
        links.filter_map(|(_, receiver, grant)| {
            Some((*receiver, *grant, self.links.get(&(*receiver, *grant))?))
        })
    }

    /// The transfers over slow links, or behind one: receiver, slot, transfer.
    pub(super) fn slow(&self) -> impl Iterator<Item = (NodeIndex, GrantId, &Transfer)> {
        let links = self.slow.iter();
        links.filter_map(|key| Some((key.0, key.1, self.links.get(key)?)))
    }

    /// Sets whether a transfer goes over a slow link, or is behind one.
    pub(super) fn set_slow(&mut self, receiver: NodeIndex, grant: GrantId, is_slow: bool) {
        let Some(link) = self.links.get_mut(&(receiver, grant)).filter(|link| link.is_slow != is_slow) else {
            return;
        };
        link.is_slow = is_slow;
        // Part of the transfer's time passed while its speed was another one.
        link.is_paced = false;
        if is_slow {
            self.slow.insert((receiver, grant));
        } else {
            self.slow.remove(&(receiver, grant));
        }
    }

    /// Notes that the shard asked a receiver to give way.
    pub(super) fn recall(&mut self, receiver: NodeIndex, grant: GrantId) {
        if let Some(link) = self.links.get_mut(&(receiver, grant)) {
            link.is_recalled = true;
        }
    }

    /// The nodes that serve `receiver`.
    pub(super) fn senders_of(&self, receiver: NodeIndex) -> impl Iterator<Item = NodeIndex> {
        let own = (receiver, GrantId(0))..=(receiver, GrantId(u64::MAX));
        self.links.range(own).map(|(_, link)| link.sender)
    }
}

/// Returns the groups of a node with the path `from` that do not contain a node with the path `to`.
pub(super) fn groups_left(from: Path, to: Path) -> Vec<Path> {
    groups_of(from).filter(|group| *group != EVERYWHERE && !is_in(to, *group)).collect()
}

impl Entry {
    pub(super) fn new(publish: &Publish, creator: NodeId, created: Time) -> Self {
        Self {
            put: publish.put,
            creator,
            created,
            used: None,
            size_bytes: publish.size_bytes,
            metadata: publish.metadata.clone(),
            inline: None,
            copies: Copies::default(),
            transfers: Transfers::default(),
            state: EntryState::Live,
            pin: Pin::Held,
        }
    }

    pub(super) fn agrees_with(&self, publish: &Publish) -> bool {
        self.size_bytes == publish.size_bytes && self.metadata.describes_same(&publish.metadata)
    }

    pub(super) fn is_lost(&self) -> bool {
        matches!(self.state, EntryState::Lost { .. })
    }

    /// Returns `true` if the object is complete somewhere, or becomes complete without another
    /// copy.
    pub(super) fn has_root(&self) -> bool {
        self.inline.is_some() || self.copies.rooted().next().is_some()
    }

    /// Returns `true` if some node has some of the bytes, or has a grant to pull them.
    pub(super) fn has_followers(&self) -> bool {
        !self.copies.is_empty() || !self.transfers.is_empty()
    }
}
