use std::collections::{BTreeMap, BTreeSet};

use super::record::{LocationRecord, Rank};
use crate::id::NodeId;
use crate::shard::nodes::NodeIndex;
use crate::topology::place::{Path, groups_of};
use crate::vocabulary::directory::{LocationState, Retention};

#[derive(Debug, Default)]
pub(in crate::shard) struct IndexedCopies {
    by_node: BTreeMap<NodeIndex, LocationRecord>,
    indices: Indices,
}

#[derive(Debug, Default)]
struct Indices {
    groups: BTreeMap<Path, Group>,
    rooted: BTreeSet<NodeIndex>,
    complete: usize,
    complete_connected: usize,
    pinned: usize,
    /// Number of copies that pull from each node, as their stores report.
    pulled: BTreeMap<NodeId, usize>,
}

#[derive(Debug, Default)]
struct Group {
    copies: usize,
    free: BTreeSet<Rank>,
}

impl IndexedCopies {
    pub(super) fn len(&self) -> usize {
        self.by_node.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &LocationRecord> {
        self.by_node.values()
    }

    pub(super) fn get(&self, node: NodeIndex) -> Option<&LocationRecord> {
        self.by_node.get(&node)
    }

    pub(super) fn into_records(self) -> Vec<LocationRecord> {
        self.by_node.into_values().collect()
    }

    pub(super) fn insert(&mut self, record: LocationRecord) {
        self.indices.update(None, Some(&record));
        self.by_node.insert(record.node, record);
    }

    pub(super) fn change<R>(
        &mut self,
        node: NodeIndex,
        change: impl FnOnce(&mut LocationRecord) -> R,
    ) -> Option<R> {
        let record = self.by_node.get_mut(&node)?;
        let before = record.clone();
        let result = change(record);
        self.indices.update(Some(&before), Some(record));
        Some(result)
    }

    pub(super) fn remove(&mut self, node: NodeIndex) -> Option<LocationRecord> {
        let record = self.by_node.remove(&node)?;
        self.indices.update(Some(&record), None);
        Some(record)
    }

    pub(super) fn free_from(
        &self,
        group: Path,
        first: Rank,
    ) -> impl Iterator<Item = &LocationRecord> {
        let free = self.indices.groups.get(&group).map(|group| group.free.range(first..));
        let ranks = free.into_iter().flatten().take_while(move |rank| rank.0 == first.0);
        ranks.filter_map(|(_, _, _, node)| self.by_node.get(node))
    }

    pub(super) fn connected_count(&self, group: Path) -> usize {
        self.indices.groups.get(&group).map_or(0, |group| group.copies)
    }

    pub(super) fn rooted(&self) -> impl Iterator<Item = &LocationRecord> {
        self.indices.rooted.iter().filter_map(|node| self.by_node.get(node))
    }

    pub(super) fn complete(&self) -> usize {
        self.indices.complete
    }

    pub(super) fn complete_connected_count(&self) -> usize {
        self.indices.complete_connected
    }

    pub(super) fn is_pinned(&self) -> bool {
        self.indices.pinned > 0
    }

    pub(super) fn is_pulled_from(&self, name: &NodeId) -> bool {
        self.indices.pulled.contains_key(name)
    }
}

impl Indices {
    fn update(&mut self, before: Option<&LocationRecord>, after: Option<&LocationRecord>) {
        let connected_rank =
            |copy: &LocationRecord| (!copy.is_disconnected).then(|| (copy.path, copy.rank()));
        match difference(before, after, connected_rank) {
            (Some((path, old)), Some((to, new))) if path == to => {
                for group in groups_of(path) {
                    if let Some(group) = self.groups.get_mut(&group) {
                        group.change(old, new);
                    }
                }
            }
            (old, new) => {
                if let Some((path, rank)) = old {
                    groups_of(path).for_each(|group| self.leave(group, rank));
                }
                if let Some((path, rank)) = new {
                    groups_of(path).for_each(|group| self.join(group, rank));
                }
            }
        }
        let (old, new) = difference(before, after, |copy| copy.is_rooted().then_some(copy.node));
        if let Some(node) = old {
            self.rooted.remove(&node);
        }
        self.rooted.extend(new);
        let is_complete = |copy: &LocationRecord| copy.state == LocationState::Complete;
        self.complete += usize::from(after.is_some_and(is_complete));
        self.complete -= usize::from(before.is_some_and(is_complete));
        self.complete_connected +=
            usize::from(after.is_some_and(LocationRecord::is_complete_and_connected));
        self.complete_connected -=
            usize::from(before.is_some_and(LocationRecord::is_complete_and_connected));
        let is_pinned = |copy: &LocationRecord| copy.retention == Retention::Pinned;
        self.pinned += usize::from(after.is_some_and(is_pinned));
        self.pinned -= usize::from(before.is_some_and(is_pinned));
        let (old, new) = difference(before, after, |copy| copy.pulling_from.as_deref());
        if let Some(sender) = old {
            self.remove_pull_from(sender);
        }
        if let Some(sender) = new {
            *self.pulled.entry(sender.clone()).or_default() += 1;
        }
    }

    fn join(&mut self, path: Path, rank: Option<Rank>) {
        let group = self.groups.entry(path).or_default();
        group.copies += 1;
        group.change(None, rank);
    }

    fn leave(&mut self, path: Path, rank: Option<Rank>) {
        let Some(group) = self.groups.get_mut(&path) else { return };
        group.copies -= 1;
        group.change(rank, None);
        if group.copies == 0 {
            self.groups.remove(&path);
        }
    }

    fn remove_pull_from(&mut self, sender: &NodeId) {
        let Some(count) = self.pulled.get_mut(sender) else { return };
        *count -= 1;
        if *count == 0 {
            self.pulled.remove(sender);
        }
    }
}

impl Group {
    fn change(&mut self, old: Option<Rank>, new: Option<Rank>) {
        if let Some(rank) = old {
            self.free.remove(&rank);
        }
        self.free.extend(new);
    }
}

/// Returns property `of` of a location before and after a change, or `None` twice if both are
/// equal.
fn difference<'a, T: PartialEq>(
    before: Option<&'a LocationRecord>,
    after: Option<&'a LocationRecord>,
    of: impl Fn(&'a LocationRecord) -> Option<T>,
) -> (Option<T>, Option<T>) {
    let (old, new) = (before.and_then(&of), after.and_then(&of));
    if old == new { (None, None) } else { (old, new) }
}
