//! Assigns ids to directory shards by rendezvous hashing: each id ranks the shards by the hash of
//! the shard's name and the id.
//!
//! When a shard joins or leaves, only the ids that rank it among their first [`REPLICAS`] move
//! (Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998).

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fmt;

use crate::vocabulary::error::{Error, Result};
use crate::vocabulary::id::ObjectId;
use crate::vocabulary::text::escape;

/// Number of shards that know each id, so that the loss of a shard loses no location.
pub const REPLICAS: usize = 2;

/// Most shards of a cluster.
pub const MAX_SHARDS: usize = 256;
/// Most indices of a [`ShardMap`], including removed shards. To use further ones, a store must
/// restart.
pub const MAX_INDICES: usize = 16 * MAX_SHARDS;
/// Longest name of a shard: a DNS host name, a colon and a port.
pub const MAX_SHARD_NAME_BYTES: usize = 260;
const MAX_SHOWN_BYTES: usize = 480;

/// Addresses of the directory's shards. Their spelling, but not their order, decides to which
/// shards an id belongs.
///
/// Operators add and remove one shard at a time. Each change makes a list of the next version, so
/// an id has at least one shard in common under two successive lists.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ShardList {
    version: u64,
    names: BTreeSet<String>,
}

impl ShardList {
    /// Makes a list of version 0 from configured addresses.
    pub fn new<S: Into<String>>(names: impl IntoIterator<Item = S>) -> Self {
        Self { version: 0, names: names.into_iter().map(Into::into).collect() }
    }

    /// Returns the list with this version.
    #[must_use]
    pub fn with_version(self, version: u64) -> Self {
        Self { version, ..self }
    }

    /// Number of changes since the configured list. The list with the highest version counts.
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// Shards' names, sorted.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// Number of shards.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Returns `true` without shards.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Returns `true` if the list has a shard of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// Returns the list of the next version, after one change.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] if the change adds a listed shard, removes an unlisted one, or
    /// leaves none. [`Error::LimitExceeded`] for more than [`MAX_SHARDS`].
    pub fn changed(&self, change: &ShardChange) -> Result<Self> {
        let mut next = self.clone().with_version(self.version.saturating_add(1));
        let refuse = |reason: String| Err(Error::InvalidRequest { reason: reason.into() });
        match change {
            ShardChange::Add(name) if self.contains(name) => {
                return refuse(format!("{} is a shard of the directory already", escape(name)));
            }
            ShardChange::Add(_) if self.len() >= MAX_SHARDS => {
                return Err(Error::limit_exceeded("directory shards", MAX_SHARDS as u64));
            }
            ShardChange::Remove(name) if !self.contains(name) => {
                return refuse(format!(
                    "{} is no shard of the directory, which has {self}",
                    escape(name)
                ));
            }
            ShardChange::Remove(name) if self.len() == 1 => {
                return refuse(format!("{} is the last shard of the directory", escape(name)));
            }
            ShardChange::Add(name) => next.names.insert(name.clone()),
            ShardChange::Remove(name) => next.names.remove(name),
        };
        Ok(next)
    }

    /// Returns `true` if the lists differ by one shard.
    pub fn is_one_change_from(&self, other: &Self) -> bool {
        self.names.symmetric_difference(&other.names).count() == 1
    }

    /// Returns `true` if both lists assign each id to the same shards: they are equal, or both have
    /// version 0 and only one shard, however it is spelled.
    pub fn agrees_with(&self, other: &Self) -> bool {
        self == other
            || (self.version.max(other.version) == 0 && self.len() == 1 && other.len() == 1)
    }
}

/// A change of the list of shards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShardChange {
    /// Adds the shard at this address.
    Add(String),
    /// Removes the shard at this address.
    Remove(String),
}

impl ShardChange {
    /// Address of the shard that joins or leaves.
    pub fn address(&self) -> &str {
        match self {
            Self::Add(address) | Self::Remove(address) => address,
        }
    }
}

impl fmt::Display for ShardList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut taken_bytes = 0;
        for (index, name) in self.names.iter().enumerate() {
            taken_bytes += name.len() + 2;
            if taken_bytes > MAX_SHOWN_BYTES {
                return write!(f, ", ... {} in all", self.names.len());
            }
            write!(f, "{}{name}", if index == 0 { "" } else { ", " })?;
        }
        if self.version > 0 {
            write!(f, " (version {})", self.version)?;
        }
        Ok(())
    }
}

/// Shards of a cluster, ranked for each id. All stores need the same list, in any order.
///
/// Each shard has an index, which stays when the list changes. Removed shards keep theirs, but are
/// not ranked.
#[derive(Debug, Clone)]
pub struct ShardMap {
    version: u64,
    names: Vec<String>,
    seeds: Vec<u64>,
    are_listed: Vec<bool>,
}

/// Effect of a new list on a [`ShardMap`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardMapChange {
    /// Indices of new shards.
    pub added: Vec<usize>,
    /// Indices of removed shards.
    pub removed: Vec<usize>,
}

impl ShardMap {
    /// Makes the map from configured addresses.
    pub fn new<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> Self {
        let mut map =
            Self { version: 0, names: Vec::new(), seeds: Vec::new(), are_listed: Vec::new() };
        for name in names {
            map.add(name.as_ref());
        }
        map
    }

    fn add(&mut self, name: &str) -> usize {
        self.names.push(name.to_owned());
        self.seeds.push(fnv1a(name.as_bytes()));
        self.are_listed.push(true);
        self.names.len() - 1
    }

    /// Takes over `list` if its version is newer. Returns the changes. Ignores a list that would
    /// need more than [`MAX_INDICES`].
    pub fn adopt(&mut self, list: &ShardList) -> Option<ShardMapChange> {
        if list.version() <= self.version || self.len() + list.len() > MAX_INDICES {
            return None;
        }
        self.version = list.version();
        let removed: Vec<usize> =
            self.listed().filter(|&shard| !list.contains(&self.names[shard])).collect();
        for &shard in &removed {
            self.are_listed[shard] = false;
        }
        let is_new = |name: &&str| !self.listed().any(|shard| self.names[shard] == *name);
        let added: Vec<&str> = list.names().filter(is_new).collect();
        let added = added.into_iter().map(|name| self.add(name)).collect();
        Some(ShardMapChange { added, removed })
    }

    /// Version of the list.
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// List of the shards.
    pub fn list(&self) -> ShardList {
        ShardList::new(self.listed().map(|shard| self.name(shard))).with_version(self.version)
    }

    /// Returns `true` if the shard of this index is in the list.
    pub fn is_listed(&self, shard: usize) -> bool {
        self.are_listed.get(shard).is_some_and(|is_listed| *is_listed)
    }

    /// Indices of listed shards.
    pub fn listed(&self) -> impl Iterator<Item = usize> {
        (0..self.names.len()).filter(|&shard| self.are_listed[shard])
    }

    /// Returns a shard's configured address; empty if unknown.
    pub fn name(&self, shard: usize) -> &str {
        self.names.get(shard).map_or("", String::as_str)
    }

    /// Number of indices of listed and removed shards.
    pub fn len(&self) -> usize {
        self.seeds.len()
    }

    /// Returns `true` without shards.
    pub fn is_empty(&self) -> bool {
        self.seeds.is_empty()
    }

    /// Returns the indices of all K shards, the best ranked for `id` first, in O(K log K).
    pub fn ranked(&self, id: &ObjectId) -> Vec<usize> {
        let hash = fnv1a(id.as_bytes());
        let mut ranked: Vec<usize> = self.listed().collect();
        ranked.sort_by_key(|&shard| Reverse(self.rank(hash, shard)));
        ranked
    }

    fn rank(&self, hash: u64, shard: usize) -> (u64, Reverse<usize>) {
        (mix(hash ^ self.seeds[shard]), Reverse(shard))
    }

    /// Returns the best [`REPLICAS`] shards for `id` that `is_usable` accepts, in O(K) without
    /// allocating.
    pub fn replicas(
        &self,
        id: &ObjectId,
        is_usable: impl Fn(usize) -> bool,
    ) -> impl Iterator<Item = usize> {
        let hash = fnv1a(id.as_bytes());
        let mut first = [const { None }; REPLICAS];
        for shard in self.listed().filter(|&shard| is_usable(shard)) {
            let rank = Some(self.rank(hash, shard));
            let position = first.partition_point(|better| *better > rank);
            if position < REPLICAS {
                first[position..].rotate_right(1);
                first[position] = rank;
            }
        }
        first.into_iter().flatten().map(|(_, Reverse(shard))| shard)
    }
}

/// Returns the FNV-1a hash (Fowler, Noll, Vo).
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Mixes the bits of a number: the finaliser of SplitMix64 (Steele, Lea, Flood, 2014).
pub const fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u32) -> ObjectId {
        ObjectId::new(format!("object-{number}")).unwrap()
    }

    #[test]
    fn ids_spread_evenly() {
        let map =
            ShardMap::new(["10.0.0.1:7401", "10.0.0.2:7401", "10.0.0.3:7401", "10.0.0.4:7401"]);
        let mut counts = [0_u32; 4];
        for number in 0..10_000 {
            counts[map.ranked(&id(number))[0]] += 1;
        }
        // Binomial with mean 2500 and deviation 43: six deviations either way.
        assert!(counts.iter().all(|count| (2240..2760).contains(count)), "{counts:?}");
    }

    #[test]
    fn the_replicas_are_the_first_usable_shards_in_rank_order() {
        // Two shards have one name; the index decides between them.
        let map = ShardMap::new(["a:1", "b:1", "c:1", "c:1", "d:1"]);
        for number in 0..1000 {
            let id = id(number);
            for usable in 0_u32..32 {
                let is_usable = |shard: usize| usable >> shard & 1 == 1;
                let first =
                    map.ranked(&id).into_iter().filter(|&shard| is_usable(shard)).take(REPLICAS);
                assert!(map.replicas(&id, is_usable).eq(first));
            }
        }
    }

    #[test]
    fn removing_a_shard_moves_only_its_ids() {
        let four = ShardMap::new(["a:1", "b:1", "c:1", "d:1"]);
        let three = ShardMap::new(["a:1", "b:1", "c:1"]);
        for number in 0..1000 {
            let before: Vec<usize> =
                four.ranked(&id(number)).into_iter().filter(|&shard| shard != 3).collect();
            assert_eq!(before, three.ranked(&id(number)));
        }
    }

    #[test]
    fn lists_agree_in_any_order_and_in_any_spelling_of_a_single_shard() {
        let list = |names: &[&str]| ShardList::new(names.iter().copied());
        assert!(list(&["a:1", "b:1"]).agrees_with(&list(&["b:1", "a:1"])));
        assert!(list(&["a:1"]).agrees_with(&list(&["127.0.0.1:1"])));
        assert!(!list(&["a:1", "b:1"]).agrees_with(&list(&["a:1", "127.0.0.1:1"])));
        assert!(!list(&["a:1"]).agrees_with(&list(&["a:1", "b:1"])));
    }

    #[test]
    fn a_list_changes_by_one_shard_at_a_time() {
        let one = ShardList::new(["a:1"]);
        let add = |name: &str| ShardChange::Add(name.to_owned());
        let remove = |name: &str| ShardChange::Remove(name.to_owned());
        let two = one.changed(&add("b:1")).unwrap();
        assert_eq!(two.to_string(), "a:1, b:1 (version 1)");
        assert!(two.is_one_change_from(&one) && !two.is_one_change_from(&two));
        let other = two.changed(&remove("a:1")).unwrap();
        assert_eq!(other, ShardList::new(["b:1"]).with_version(2));
        assert!(!other.is_one_change_from(&one) && !other.agrees_with(&one));
        for (list, change) in [(&one, remove("a:1")), (&two, add("b:1")), (&two, remove("c:1"))] {
            assert!(
                matches!(list.changed(&change), Err(Error::InvalidRequest { .. })),
                "{change:?}"
            );
        }
        let full = ShardList::new((0..MAX_SHARDS).map(|number| number.to_string()));
        assert!(matches!(
            full.changed(&add("a:1")),
            Err(Error::LimitExceeded { maximum: 256, .. })
        ));
    }

    #[test]
    fn a_map_keeps_the_index_of_each_shard_and_ranks_only_listed_ones() {
        let mut map = ShardMap::new(["a:1", "b:1"]);
        let list =
            |version, names: &[&str]| ShardList::new(names.iter().copied()).with_version(version);
        let change = |added: &[usize], removed: &[usize]| {
            Some(ShardMapChange { added: added.to_vec(), removed: removed.to_vec() })
        };
        assert_eq!(map.adopt(&list(1, &["c:1", "b:1", "a:1"])), change(&[2], &[]));
        assert_eq!(map.adopt(&list(1, &["a:1"])), None, "the version is not newer");
        assert_eq!(map.adopt(&list(2, &["b:1", "c:1"])), change(&[], &[0]));
        assert_eq!(map.list(), list(2, &["b:1", "c:1"]));
        let fresh = ShardMap::new(["b:1", "c:1"]);
        for number in 0..100 {
            let ranked: Vec<usize> =
                fresh.ranked(&id(number)).into_iter().map(|shard| shard + 1).collect();
            assert_eq!(map.ranked(&id(number)), ranked);
            assert!(map.replicas(&id(number), |_| true).eq(ranked));
        }
        // A shard that comes back is a new one: messages of its earlier session may still arrive.
        assert_eq!(map.adopt(&list(4, &["a:1", "b:1"])), change(&[3], &[2]));
        assert_eq!((map.len(), map.name(3)), (4, "a:1"));
        assert!(map.is_listed(3) && !map.is_listed(2) && !map.is_listed(4));
        let many = (0..MAX_SHARDS).map(|number| format!("{number}:1"));
        let many = ShardList::new(many);
        let version = |round: u64| many.clone().with_version(2 * round);
        let rounds = (3..40).filter(|round| {
            let odd = list(2 * round - 1, &["z:1"]);
            map.adopt(&odd).is_some() && map.adopt(&version(*round)).is_some()
        });
        assert!(rounds.count() < 16, "indices are bounded");
        assert!(map.len() <= MAX_INDICES);
    }

    #[test]
    fn long_lists_are_cut_where_they_are_shown() {
        assert_eq!(ShardList::new(["b:1", "a:1"]).to_string(), "a:1, b:1");
        let long = ShardList::new((0..MAX_SHARDS).map(|number| format!("{number:0>260}")));
        assert!(long.to_string().ends_with("256 in all") && long.to_string().len() < 600);
    }

    #[test]
    fn the_order_of_configuration_does_not_matter() {
        let one = ShardMap::new(["a:1", "b:1"]);
        let other = ShardMap::new(["b:1", "a:1"]);
        for number in 0..100 {
            assert_eq!(one.ranked(&id(number))[0], 1 - other.ranked(&id(number))[0]);
        }
    }
}
