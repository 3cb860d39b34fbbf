//! Assigns ids to directory shards by rendezvous hashing: each id ranks the shards by the hash of
//! the shard's name and the id.
//!
//! When a shard joins or leaves, only the ids that rank it among their first [`REPLICAS`] move
//! (Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998).

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fmt;

use crate::vocabulary::id::ObjectId;

/// The number of shards that know each id, so that the loss of one shard loses no location.
pub const REPLICAS: usize = 2;

/// Most shards of a cluster. 16 shards handle a million messages per second.
pub const MAX_SHARDS: usize = 256;
/// Longest name of a shard: a DNS host name, a colon and a port.
pub const MAX_SHARD_NAME_BYTES: usize = 260;
const MAX_SHOWN_BYTES: usize = 480;

/// The addresses of the configured shards. Their spelling, but not their order, decides to which
/// shards an id belongs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ShardList(BTreeSet<String>);

impl ShardList {
    /// Makes the list from configured addresses.
    pub fn new<S: Into<String>>(names: impl IntoIterator<Item = S>) -> Self {
        Self(names.into_iter().map(Into::into).collect())
    }

    /// The names, sorted.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// Returns `true` if both lists assign each id to the same shards: equal spelling, or only one
    /// shard.
    pub fn agrees_with(&self, other: &Self) -> bool {
        self == other || (self.0.len() == 1 && other.0.len() == 1)
    }
}

impl fmt::Display for ShardList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut taken_bytes = 0;
        for (index, name) in self.0.iter().enumerate() {
            taken_bytes += name.len() + 2;
            if taken_bytes > MAX_SHOWN_BYTES {
                return write!(f, ", ... {} in all", self.0.len());
            }
            write!(f, "{}{name}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// The shards of a cluster, ranked for each id. All stores need the same list, in any order.
#[derive(Debug, Clone)]
pub struct ShardMap {
    names: Vec<String>,
    seeds: Vec<u64>,
}

impl ShardMap {
    /// Makes the map from configured addresses.
    pub fn new<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> Self {
        let names: Vec<String> = names.into_iter().map(|name| name.as_ref().to_owned()).collect();
        Self { seeds: names.iter().map(|name| fnv1a(name.as_bytes())).collect(), names }
    }

    /// Returns a shard's configured address; empty if unknown.
    pub fn name(&self, shard: usize) -> &str {
        self.names.get(shard).map_or("", String::as_str)
    }

    /// The number of shards.
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
        let mut ranked: Vec<usize> = (0..self.seeds.len()).collect();
        ranked.sort_by_key(|&shard| Reverse(self.rank(hash, shard)));
        ranked
    }

    fn rank(&self, hash: u64, shard: usize) -> (u64, Reverse<usize>) {
        (mix(hash ^ self.seeds[shard]), Reverse(shard))
    }

    /// Returns the first [`REPLICAS`] usable shards for `id`, in O(K) without allocating.
    pub fn replicas(&self, id: &ObjectId, is_usable: impl Fn(usize) -> bool) -> impl Iterator<Item = usize> {
        let hash = fnv1a(id.as_bytes());
        let mut first = [const { None }; REPLICAS];
        for shard in (0..self.seeds.len()).filter(|&shard| is_usable(shard)) {
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
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
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
        let map = ShardMap::new(["10.0.0.1:7401", "10.0.0.2:7401", "10.0.0.3:7401", "10.0.0.4:7401"]);
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
                let first = map.ranked(&id).into_iter().filter(|&shard| is_usable(shard)).take(REPLICAS);
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
