//! The state of one object: small, because a shard may have a million objects.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;

use super::copies::Copies;
use super::nodes::NodeIndex;
use crate::id::{NodeId, PutId};
use crate::metadata::BoxedMetadata;
use crate::time::Time;
use crate::topology::place::{EVERYWHERE, Path, groups_of, is_in};
use crate::vocabulary::directory::{GrantId, InlineBytes, Publish};

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) put: PutId,
    /// First node that published the object at this shard. All its objects share this allocation.
    pub(super) creator: Arc<NodeId>,
    pub(super) created: Time,
    /// [`Time::NEVER`] before the first use.
    used: Time,
    pub(super) size_bytes: u64,
    pub(super) metadata: BoxedMetadata,
    /// Bytes and their CRC-32C, in own memory, because a slice of a received frame would keep the
    /// whole frame.
    inline: Option<Box<[u8]>>,
    pub(super) copies: Copies,
    pub(super) transfers: Transfers,
    /// `None` for a live object with a pinned copy, as most are.
    troubles: Option<Box<Troubles>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Troubles {
    state: EntryState,
    pin: Pin,
}

const NO_TROUBLES: Troubles = Troubles { state: EntryState::Live, pin: Pin::Held };

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryState {
    Live,
    /// Only partial copies exist. Without a complete one, the object is lost at `due`.
    Rootless {
        due: Time,
    },
    /// Until `forget_at`, queries for the object fail at once.
    Lost {
        forget_at: Time,
    },
}

/// `Missing` from the loss of the last pinned copy until another copy is pinned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pin {
    Held,
    Missing,
}

/// Running transfers of an object. Most objects have none, and take no memory for them.
#[derive(Debug, Default)]
pub(super) struct Transfers(Option<Box<Links>>);

#[derive(Debug, Default)]
pub(super) struct Links {
    links: BTreeMap<(NodeIndex, GrantId), Transfer>,
    served: BTreeMap<NodeIndex, u32>,
    leaving: BTreeSet<(Path, NodeIndex, GrantId)>,
    slow: BTreeSet<(NodeIndex, GrantId)>,
}

#[derive(Debug, Clone)]
pub(super) struct Transfer {
    pub(super) sender: NodeIndex,
    pub(super) began: Time,
    /// Sender's groups to which the receiver does not belong.
    pub(super) leaves: Vec<Path>,
    /// `true` once the shard has told the receiver to leave the sender to a closer or faster
    /// receiver.
    pub(super) is_recalled: bool,
    /// `true` if the receiver began before its sender had bytes to forward. Then the two
    /// completions are one hop's time apart.
    pub(super) is_timed: bool,
    /// `true` if the transfer's duration measures the link, because the sender has a complete copy
    /// and sends it from the first byte.
    pub(super) is_paced: bool,
    /// `true` if the bytes cross a slow link, here or earlier in the chain of senders.
    pub(super) is_slow: bool,
}

static NO_LINKS: Links = Links {
    links: BTreeMap::new(),
    served: BTreeMap::new(),
    leaving: BTreeSet::new(),
    slow: BTreeSet::new(),
};

impl Deref for Transfers {
    type Target = Links;

    fn deref(&self) -> &Links {
        self.0.as_deref().unwrap_or(&NO_LINKS)
    }
}

impl Transfers {
    pub(super) fn insert(&mut self, receiver: NodeIndex, grant: GrantId, link: Transfer) {
        self.0.get_or_insert_default().insert(receiver, grant, link);
    }

    pub(super) fn remove(&mut self, receiver: NodeIndex, grant: GrantId) -> Option<Transfer> {
        let removed = self.0.as_mut()?.remove(receiver, grant);
        self.0.take_if(|links| links.is_empty());
        removed
    }

    pub(super) fn set_slow(&mut self, receiver: NodeIndex, grant: GrantId, is_slow: bool) {
        if let Some(links) = &mut self.0 {
            links.set_slow(receiver, grant, is_slow);
        }
    }

    pub(super) fn recall(&mut self, receiver: NodeIndex, grant: GrantId) {
        if let Some(links) = &mut self.0 {
            links.recall(receiver, grant);
        }
    }
}

impl Links {
    pub(super) fn len(&self) -> usize {
        self.links.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    fn insert(&mut self, receiver: NodeIndex, grant: GrantId, link: Transfer) {
        *self.served.entry(link.sender).or_default() += 1;
        self.leaving.extend(link.leaves.iter().map(|group| (*group, receiver, grant)));
        self.slow.extend(link.is_slow.then_some((receiver, grant)));
        self.links.insert((receiver, grant), link);
    }

    fn remove(&mut self, receiver: NodeIndex, grant: GrantId) -> Option<Transfer> {
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

    pub(super) fn iter(&self) -> impl Iterator<Item = (NodeIndex, GrantId, &Transfer)> {
        self.links.iter().map(|((receiver, grant), link)| (*receiver, *grant, link))
    }

    pub(super) fn served_by(&self, sender: NodeIndex) -> u32 {
        self.served.get(&sender).copied().unwrap_or(0)
    }

    pub(super) fn leaving(
        &self,
        group: Path,
    ) -> impl Iterator<Item = (NodeIndex, GrantId, &Transfer)> {
        let all =
            (group, NodeIndex::FIRST, GrantId(0))..=(group, NodeIndex(u32::MAX), GrantId(u64::MAX));
        let links = self.leaving.range(all);
        links.filter_map(|(_, receiver, grant)| {
            Some((*receiver, *grant, self.links.get(&(*receiver, *grant))?))
        })
    }

    pub(super) fn slow(&self) -> impl Iterator<Item = (NodeIndex, GrantId, &Transfer)> {
        let links = self.slow.iter();
        links.filter_map(|key| Some((key.0, key.1, self.links.get(key)?)))
    }

    fn set_slow(&mut self, receiver: NodeIndex, grant: GrantId, is_slow: bool) {
        let Some(link) =
            self.links.get_mut(&(receiver, grant)).filter(|link| link.is_slow != is_slow)
        else {
            return;
        };
        link.is_slow = is_slow;
        // Part of the transfer ran at another speed, so its duration measures no link.
        link.is_paced = false;
        if is_slow {
            self.slow.insert((receiver, grant));
        } else {
            self.slow.remove(&(receiver, grant));
        }
    }

    fn recall(&mut self, receiver: NodeIndex, grant: GrantId) {
        if let Some(link) = self.links.get_mut(&(receiver, grant)) {
            link.is_recalled = true;
        }
    }

    pub(super) fn senders_of(&self, receiver: NodeIndex) -> impl Iterator<Item = NodeIndex> {
        let own = (receiver, GrantId(0))..=(receiver, GrantId(u64::MAX));
        self.links.range(own).map(|(_, link)| link.sender)
    }
}

pub(super) fn groups_left(from: Path, to: Path) -> Vec<Path> {
    groups_of(from).filter(|group| *group != EVERYWHERE && !is_in(to, *group)).collect()
}

impl Entry {
    pub(super) fn new(publish: &Publish, creator: Arc<NodeId>, created: Time) -> Self {
        Self {
            put: publish.put,
            creator,
            created,
            used: Time::NEVER,
            size_bytes: publish.size_bytes,
            metadata: publish.metadata.clone().into(),
            inline: None,
            copies: Copies::default(),
            transfers: Transfers::default(),
            troubles: None,
        }
    }

    pub(super) fn agrees_with(&self, publish: &Publish) -> bool {
        self.size_bytes == publish.size_bytes && self.metadata.describes_same(&publish.metadata)
    }

    /// Time at which a receiver last got a sender or bytes of the object.
    pub(super) fn used(&self) -> Option<Time> {
        (self.used != Time::NEVER).then_some(self.used)
    }

    pub(super) const fn set_used(&mut self, now: Time) {
        self.used = now;
    }

    pub(super) const fn is_inline(&self) -> bool {
        self.inline.is_some()
    }

    pub(super) fn inline(&self) -> Option<InlineBytes> {
        let (bytes, crc) = self.inline.as_deref()?.split_last_chunk()?;
        Some(InlineBytes::new(Bytes::copy_from_slice(bytes), u32::from_le_bytes(*crc)))
    }

    pub(super) fn has_inline(&self, inline: &InlineBytes) -> bool {
        self.inline().as_ref() == Some(inline)
    }

    pub(super) fn set_inline(&mut self, inline: &InlineBytes) {
        self.inline = Some([&**inline, &inline.crc().to_le_bytes()].concat().into());
    }

    pub(super) fn state(&self) -> EntryState {
        self.troubles().state
    }

    pub(super) fn set_state(&mut self, state: EntryState) {
        self.set_troubles(Troubles { state, ..self.troubles() });
    }

    pub(super) fn pin(&self) -> Pin {
        self.troubles().pin
    }

    pub(super) fn set_pin(&mut self, pin: Pin) {
        self.set_troubles(Troubles { pin, ..self.troubles() });
    }

    fn troubles(&self) -> Troubles {
        self.troubles.as_deref().copied().unwrap_or(NO_TROUBLES)
    }

    fn set_troubles(&mut self, troubles: Troubles) {
        self.troubles = (troubles != NO_TROUBLES).then(|| Box::new(troubles));
    }

    pub(super) fn is_lost(&self) -> bool {
        matches!(self.state(), EntryState::Lost { .. })
    }

    pub(super) fn has_root(&self) -> bool {
        self.is_inline() || self.copies.rooted().next().is_some()
    }

    pub(super) fn has_followers(&self) -> bool {
        !self.copies.is_empty() || !self.transfers.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_small() {
        assert!(size_of::<Entry>() <= 136, "{}", size_of::<Entry>());
    }
}
