//! The copies of one object, in the order in which the shard offers them to receivers.
//!
//! Each copy has *slots*, the rights of receivers to pull from it. Most objects have one or two
//! copies, without indices. An object with more than [`MAX_UNINDEXED`] copies has indices.

mod indexed;
mod record;

use std::slice;

use self::indexed::IndexedCopies;
use self::record::Rank;
pub(super) use self::record::{Class, LocationRecord};
use super::nodes::NodeIndex;
use crate::id::NodeId;
use crate::time::Time;
use crate::topology::place::{EVERYWHERE, Path, is_in};
use crate::vocabulary::directory::{LocationState, Retention};

/// Most copies in a vector. They take 3 KiB, and a scan is as fast as a search in a tree.
const MAX_UNINDEXED: usize = 32;

#[derive(Debug)]
pub(super) enum Copies {
    Single(LocationRecord),
    /// Sorted by node.
    Unindexed(Vec<LocationRecord>),
    Indexed(Box<IndexedCopies>),
}

impl Default for Copies {
    fn default() -> Self {
        Self::Unindexed(Vec::new())
    }
}

enum View<'a> {
    Unindexed(&'a [LocationRecord]),
    Indexed(&'a IndexedCopies),
}

impl Copies {
    fn view(&self) -> View<'_> {
        match self {
            Self::Single(record) => View::Unindexed(slice::from_ref(record)),
            Self::Unindexed(records) => View::Unindexed(records),
            Self::Indexed(indexed) => View::Indexed(indexed),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self.view() {
            View::Unindexed(records) => records.len(),
            View::Indexed(indexed) => indexed.len(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &LocationRecord> {
        let (unindexed, indexed) = match self.view() {
            View::Unindexed(records) => (Some(records.iter()), None),
            View::Indexed(indexed) => (None, Some(indexed.iter())),
        };
        unindexed.into_iter().flatten().chain(indexed.into_iter().flatten())
    }

    pub(super) fn get(&self, node: NodeIndex) -> Option<&LocationRecord> {
        match self.view() {
            View::Unindexed(records) => {
                let position = records.binary_search_by_key(&node, |record| record.node).ok()?;
                records.get(position)
            }
            View::Indexed(indexed) => indexed.get(node),
        }
    }

    pub(super) fn change<R>(
        &mut self,
        node: NodeIndex,
        change: impl FnOnce(&mut LocationRecord) -> R,
    ) -> Option<R> {
        match self {
            Self::Single(record) => (record.node == node).then(|| change(record)),
            Self::Unindexed(records) => {
                let position = records.binary_search_by_key(&node, |record| record.node).ok()?;
                records.get_mut(position).map(change)
            }
            Self::Indexed(indexed) => indexed.change(node, change),
        }
    }

    pub(super) fn insert(&mut self, record: LocationRecord) {
        if self.is_empty() {
            *self = Self::Single(record);
            return;
        }
        match self {
            Self::Single(_) => {
                if let Self::Single(first) = std::mem::take(self) {
                    let mut records = Vec::with_capacity(2);
                    records.push(first);
                    *self = Self::Unindexed(records);
                    self.insert(record);
                }
            }
            Self::Unindexed(records) => {
                let Err(position) =
                    records.binary_search_by_key(&record.node, |record| record.node)
                else {
                    return;
                };
                records.insert(position, record);
                if records.len() > MAX_UNINDEXED {
                    let mut indexed = IndexedCopies::default();
                    std::mem::take(records).into_iter().for_each(|record| indexed.insert(record));
                    *self = Self::Indexed(Box::new(indexed));
                }
            }
            Self::Indexed(indexed) => indexed.insert(record),
        }
    }

    pub(super) fn remove(&mut self, node: NodeIndex) -> Option<LocationRecord> {
        match self {
            Self::Single(record) if record.node != node => None,
            Self::Single(_) => match std::mem::take(self) {
                Self::Single(record) => Some(record),
                _ => None,
            },
            Self::Unindexed(records) => {
                let position = records.binary_search_by_key(&node, |record| record.node).ok()?;
                Some(records.remove(position))
            }
            Self::Indexed(indexed) => {
                let removed = indexed.remove(node);
                if indexed.len() <= MAX_UNINDEXED / 2 {
                    *self = Self::Unindexed(std::mem::take(&mut **indexed).into_records());
                }
                removed
            }
        }
    }

    /// Returns the copies of `class` with a free slot, at connected nodes in `group`, best first.
    pub(super) fn free(&self, group: Path, class: Class) -> impl Iterator<Item = &LocationRecord> {
        self.free_from(group, (class, Time::ZERO, 0, NodeIndex::FIRST))
    }

    pub(super) fn next_bytes(&self, now: Time) -> Option<Time> {
        let first =
            (Class::Unfinished, now + std::time::Duration::from_micros(1), 0, NodeIndex::FIRST);
        self.free_from(EVERYWHERE, first).next().map(|record| record.since)
    }

    fn free_from(&self, group: Path, first: Rank) -> impl Iterator<Item = &LocationRecord> {
        let (unindexed, indexed) = match self.view() {
            View::Unindexed(records) => {
                let members = records.iter().filter(|record| is_in(record.path, group));
                let ranked = members.filter_map(|record| Some((record.rank()?, record)));
                let mut ranked: Vec<_> =
                    ranked.filter(|(rank, _)| rank.0 == first.0 && *rank >= first).collect();
                ranked.sort_unstable_by_key(|(rank, _)| *rank);
                (ranked, None)
            }
            View::Indexed(indexed) => (Vec::new(), Some(indexed.free_from(group, first))),
        };
        unindexed.into_iter().map(|(_, record)| record).chain(indexed.into_iter().flatten())
    }

    pub(super) fn connected_count(&self, group: Path) -> usize {
        match self.view() {
            View::Unindexed(records) => records
                .iter()
                .filter(|record| !record.is_disconnected && is_in(record.path, group))
                .count(),
            View::Indexed(indexed) => indexed.connected_count(group),
        }
    }

    pub(super) fn rooted(&self) -> impl Iterator<Item = &LocationRecord> {
        let (unindexed, indexed) = match self.view() {
            View::Unindexed(records) => {
                (Some(records.iter().filter(|record| record.is_rooted())), None)
            }
            View::Indexed(indexed) => (None, Some(indexed.rooted())),
        };
        unindexed.into_iter().flatten().chain(indexed.into_iter().flatten())
    }

    pub(super) fn complete(&self) -> usize {
        match self.view() {
            View::Unindexed(records) => {
                records.iter().filter(|record| record.state == LocationState::Complete).count()
            }
            View::Indexed(indexed) => indexed.complete(),
        }
    }

    pub(super) fn complete_connected_count(&self) -> usize {
        match self.view() {
            View::Unindexed(records) => {
                records.iter().filter(|record| record.is_complete_and_connected()).count()
            }
            View::Indexed(indexed) => indexed.complete_connected_count(),
        }
    }

    pub(super) fn is_pinned(&self) -> bool {
        match self.view() {
            View::Unindexed(records) => {
                records.iter().any(|record| record.retention == Retention::Pinned)
            }
            View::Indexed(indexed) => indexed.is_pinned(),
        }
    }

    pub(super) fn is_pulled_from(&self, name: &NodeId) -> bool {
        match self.view() {
            View::Unindexed(records) => {
                records.iter().any(|record| record.pulling_from.as_deref() == Some(name))
            }
            View::Indexed(indexed) => indexed.is_pulled_from(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Insert(u32, u8, bool),
        Remove(u32),
        Complete(u32),
        Grant(u32),
        SetDisconnected(u32, bool),
    }

    fn step() -> impl Strategy<Value = Step> {
        let node = 0..80_u32;
        prop_oneof![
            6 => (node.clone(), 0..3_u8, any::<bool>()).prop_map(|(node, state, pinned)| Step::Insert(node, state, pinned)),
            2 => node.clone().prop_map(Step::Remove),
            2 => node.clone().prop_map(Step::Complete),
            2 => node.clone().prop_map(Step::Grant),
            1 => (node, any::<bool>()).prop_map(|(node, value)| Step::SetDisconnected(node, value)),
        ]
    }

    fn record(node: u32, state: u8, pinned: bool, at: u64) -> LocationRecord {
        let states = [LocationState::Producing, LocationState::Partial, LocationState::Complete];
        LocationRecord {
            node: NodeIndex(node),
            path: [0, node % 3, node % 4, 0],
            state: states[usize::from(state)],
            retention: if pinned { Retention::Pinned } else { Retention::Evictable },
            is_disconnected: false,
            is_published: true,
            leads: false,
            free_slots: 1,
            session: 0,
            last_grant: 0,
            since: Time::from_micros(at / 3),
            pulling_from: (state == 1)
                .then(|| Box::new(NodeId::new(&format!("n{}", node / 2)).unwrap())),
            has_slow_source: false,
        }
    }

    proptest! {
        #[test]
        fn indices_agree_with_the_copies(steps in prop::collection::vec(step(), 0..300)) {
            let mut copies = Copies::default();
            for (at, step) in (0_u64..).zip(steps) {
                match step {
                    Step::Insert(node, state, pinned) => {
                        if copies.get(NodeIndex(node)).is_none() {
                            copies.insert(record(node, state, pinned, at));
                        }
                    }
                    Step::Remove(node) => drop(copies.remove(NodeIndex(node))),
                    Step::Complete(node) => drop(copies.change(NodeIndex(node), |record| {
                        record.state = LocationState::Complete;
                        record.pulling_from = None;
                    })),
                    Step::Grant(node) => drop(copies.change(NodeIndex(node), |record| {
                        record.free_slots = 1 - record.free_slots;
                        record.last_grant = at;
                    })),
                    Step::SetDisconnected(node, disconnected) => {
                        copies.change(NodeIndex(node), |record| record.is_disconnected = disconnected);
                    }
                }
                let all: Vec<&LocationRecord> = copies.iter().collect();
                prop_assert!(all.is_sorted_by_key(|record| record.node) && all.len() == copies.len());
                prop_assert_eq!(copies.complete(), all.iter().filter(|r| r.state == LocationState::Complete).count());
                let connected = all.iter().filter(|r| r.state == LocationState::Complete && !r.is_disconnected);
                prop_assert_eq!(copies.complete_connected_count(), connected.count());
                prop_assert_eq!(copies.is_pinned(), all.iter().any(|r| r.retention == Retention::Pinned));
                let rooted: Vec<NodeIndex> = copies.rooted().map(|r| r.node).collect();
                prop_assert_eq!(rooted, all.iter().filter(|r| r.is_rooted()).map(|r| r.node).collect::<Vec<_>>());
                for number in 0..40 {
                    let name = NodeId::new(&format!("n{number}")).unwrap();
                    let is_pulled = all.iter().any(|r| r.pulling_from.as_deref() == Some(&name));
                    prop_assert_eq!(copies.is_pulled_from(&name), is_pulled);
                }
                for group in [EVERYWHERE, [0, 1, 0, 0], [0, 0, 2, 0], [0, 2, 3, 0], [0, 9, 0, 0]] {
                    let members = || all.iter().filter(|r| is_in(r.path, group));
                    for class in [Class::Complete, Class::Unfinished] {
                        let mut free: Vec<Rank> =
                            members().filter_map(|r| r.rank()).filter(|r| r.0 == class).collect();
                        free.sort_unstable();
                        let found: Vec<Rank> = copies.free(group, class).filter_map(LocationRecord::rank).collect();
                        prop_assert_eq!(&found, &free);
                    }
                    prop_assert_eq!(copies.connected_count(group), members().filter(|r| !r.is_disconnected).count());
                }
                let now = Time::from_micros(20);
                let later = all.iter().filter(|r| r.class() == Class::Unfinished && r.rank().is_some() && r.since > now);
                prop_assert_eq!(copies.next_bytes(now), later.map(|r| r.since).min());
            }
        }
    }
}
