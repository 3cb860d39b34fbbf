//! Adds up objects by prefixes of ids, for the dashboard.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::Shard;
use super::entry::Entry;
use super::inspect::MAX_EXAMINED;
use crate::id::{NodeId, ObjectId};
use crate::time::Time;

/// Most groups of ids. `rest` adds up the others, those with the fewest bytes.
pub const MAX_PREFIXES: usize = 200;
/// Most creators that a [`PrefixSum`] names.
pub const MAX_CREATORS: usize = 4;
const SEPARATOR: u8 = b'/';

/// Sum of the objects in one group of ids.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "the names say it")]
pub struct PrefixSum {
    pub objects: u64,
    pub bytes: u64,
    pub copies: u64,
    pub oldest: Option<Time>,
    pub newest: Option<Time>,
    /// Time of the latest transfer.
    pub used: Option<Time>,
    /// First publishers, at most [`MAX_CREATORS`].
    pub creators: BTreeSet<NodeId>,
    pub has_more_creators: bool,
}

/// Sums of objects by group: ids that begin alike, up to the first `/` after the prefix.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PrefixSums {
    /// At most [`MAX_PREFIXES`] groups. The prefix itself is the group of ids without a further
    /// `/`.
    pub groups: BTreeMap<Vec<u8>, PrefixSum>,
    /// Number of groups that `rest` adds up.
    pub more_groups: usize,
    /// Sum of the groups with the fewest bytes.
    pub rest: PrefixSum,
    prefix: Vec<u8>,
}

impl PrefixSum {
    fn add(&mut self, other: &Self) {
        self.objects += other.objects;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.copies += other.copies;
        self.oldest = [self.oldest, other.oldest].into_iter().flatten().min();
        self.newest = self.newest.max(other.newest);
        self.used = self.used.max(other.used);
        self.has_more_creators |= other.has_more_creators;
        for creator in &other.creators {
            if self.creators.len() < MAX_CREATORS || self.creators.contains(creator) {
                self.creators.insert(creator.clone());
            } else {
                self.has_more_creators = true;
            }
        }
    }

    fn of(entry: &Entry) -> Self {
        Self {
            objects: 1,
            bytes: entry.size_bytes,
            copies: entry.copies.len() as u64,
            oldest: Some(entry.created),
            newest: Some(entry.created),
            used: entry.used(),
            creators: BTreeSet::from([NodeId::clone(&entry.creator)]),
            has_more_creators: false,
        }
    }
}

impl PrefixSums {
    /// Makes empty sums for ids that begin with `prefix`.
    pub fn of(prefix: Vec<u8>) -> Self {
        Self { prefix, ..Self::default() }
    }

    /// Prefix.
    pub fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    /// Adds up all groups.
    pub fn total(&self) -> PrefixSum {
        let mut total = self.rest.clone();
        self.groups.values().for_each(|group| total.add(group));
        total
    }

    fn add(&mut self, id: &[u8], object: PrefixSum) {
        let start = self.prefix.len();
        let end = id[start..]
            .iter()
            .position(|byte| *byte == SEPARATOR)
            .map_or(start, |at| start + at + 1);
        match self.groups.get_mut(&id[..end]) {
            Some(group) => group.add(&object),
            None => {
                // Ids come in order, so all groups but the prefix's own are complete now.
                if self.groups.len() >= 2 * MAX_PREFIXES {
                    self.shrink();
                }
                self.groups.insert(id[..end].to_vec(), object);
            }
        }
    }

    fn shrink(&mut self) {
        let others = self.groups.iter().filter(|(name, _)| **name != self.prefix);
        let mut sizes: Vec<u64> = others.map(|(_, group)| group.bytes).collect();
        sizes.sort_unstable_by(|one, other| other.cmp(one));
        let Some(smallest) = sizes.get(MAX_PREFIXES - 1).copied() else { return };
        let mut free_places =
            MAX_PREFIXES - sizes.iter().filter(|bytes| **bytes > smallest).count();
        let Self { groups, more_groups, rest, prefix } = self;
        groups.retain(|name, group| {
            if name == prefix {
                return true;
            }
            let stays = group.bytes > smallest || group.bytes == smallest && free_places > 0;
            if !stays {
                *more_groups += 1;
                rest.add(group);
            } else if group.bytes == smallest {
                free_places -= 1;
            }
            stays
        });
    }
}

impl Shard {
    /// Adds the objects after `after` to `sums`: at most [`MAX_EXAMINED`], in about two
    /// milliseconds. Returns the last one, for the next call; `None` at the end.
    pub fn sum_prefixes(&self, sums: &mut PrefixSums, after: &[u8]) -> Option<ObjectId> {
        let prefix = sums.prefix.clone();
        let start = if after >= &prefix[..] {
            Bound::Excluded(after)
        } else {
            Bound::Included(&prefix[..])
        };
        let mut range = self
            .entries
            .range::<[u8], _>((start, Bound::Unbounded))
            .take_while(|(id, _)| id.as_bytes().starts_with(&prefix));
        let mut last = None;
        for (id, entry) in range.by_ref().take(MAX_EXAMINED) {
            sums.add(id.as_bytes(), PrefixSum::of(entry));
            last = Some(id);
        }
        let next = range.next().and(last).cloned();
        if next.is_none() && sums.groups.len() > MAX_PREFIXES {
            sums.shrink();
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(bytes: u64, at: u64) -> PrefixSum {
        let (used, at) = (Some(Time::from_micros(10 * at)), Some(Time::from_micros(at)));
        let creators =
            BTreeSet::from([NodeId::new(&format!("n{at:?}").replace(['(', ')'], "")).unwrap()]);
        PrefixSum {
            objects: 1,
            bytes,
            copies: 2,
            oldest: at,
            newest: at,
            used,
            creators,
            ..Default::default()
        }
    }

    #[test]
    fn objects_are_grouped_up_to_the_next_separator() {
        let mut sums = PrefixSums::of(b"a/".to_vec());
        for (id, bytes, at) in
            [("a/b/c", 1, 5), ("a/b/d/e", 2, 3), ("a/f", 4, 9), ("a/g", 8, 7), ("a//x", 16, 1)]
        {
            sums.add(id.as_bytes(), object(bytes, at));
        }
        let group = |name: &str| &sums.groups[name.as_bytes()];
        assert_eq!(sums.groups.len(), 3);
        assert_eq!((group("a/b/").objects, group("a/b/").bytes, group("a/b/").copies), (2, 3, 4));
        assert_eq!(group("a/b/").oldest, Some(Time::from_micros(3)));
        assert_eq!((group("a/").bytes, group("a/").newest), (12, Some(Time::from_micros(9))));
        assert_eq!(group("a/b/").used, Some(Time::from_micros(50)));
        assert_eq!((group("a/").creators.len(), group("a/").has_more_creators), (2, false));
        assert_eq!(group("a//").bytes, 16, "an empty name is a group");
        let total = sums.total();
        assert_eq!((total.objects, total.bytes), (5, 31));
        assert_eq!((total.creators.len(), total.has_more_creators), (MAX_CREATORS, true));
    }

    #[test]
    fn groups_are_bounded_and_the_largest_stay() {
        let mut sums = PrefixSums::of(Vec::new());
        let count = 10 * MAX_PREFIXES as u64;
        for number in 0..count {
            sums.add(format!("{number:05}/x").as_bytes(), object(number % 1000, number));
            assert!(sums.groups.len() <= 2 * MAX_PREFIXES);
        }
        sums.shrink();
        assert_eq!(
            (sums.groups.len(), sums.more_groups as u64),
            (MAX_PREFIXES, count - MAX_PREFIXES as u64)
        );
        assert_eq!(sums.total().objects, count);
        assert!(
            sums.groups.contains_key(&b"01999/"[..]) && !sums.groups.contains_key(&b"01000/"[..])
        );
    }
}
