//! Clusters close nodes: a dendrogram, an order of its leaves, and groups on several levels.
//!
//! Clustering by latency is from PLink and Cloud Collectives, section II-A. Ours are levels where
//! the distance jumps, and average linkage, with which one fast link does not join two racks.

use super::blocks::{Blocks, triangle_index};
use super::matrix::Links;
use super::place::{MAX_LEVELS, Place};

/// Successive join distances with at least this ratio in percent separate two levels of groups. In
/// figure 2 of Cloud Collectives, distances within a rack differ by up to 20%.
const LEVEL_RATIO_PERCENT: u64 = 150;

/// A step of clustering that joins two groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Join {
    /// Mean cost of a message between the groups in picoseconds, to 32 significant bits of the
    /// largest cost.
    pub distance_ps: u64,
    /// A node of one group.
    pub first: u32,
    /// A node of the other group.
    pub second: u32,
}

/// Tree in which clustering has joined all nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dendrogram {
    nodes: usize,
    joins: Vec<Join>,
}

impl Dendrogram {
    /// Joins the two groups with the smallest mean cost, until one group is left. Takes O(n^2) time
    /// with chains of nearest neighbours (Murtagh, 1983).
    ///
    /// With blocks, joins the nodes of each block first, and needs no memory for each pair of
    /// nodes.
    pub fn new(links: Links<'_>) -> Self {
        let nodes = links.len();
        let joins = match links.matrix().blocks() {
            Some(blocks) => joins_of_blocks(links, blocks),
            None => Groups::new(&vec![1; nodes], |a, b| links.whole(a as u32, b as u32)).join_all(),
        };
        Self { nodes, joins }
    }

    /// Returns all joins; a group comes before it joins another one.
    pub fn joins(&self) -> &[Join] {
        &self.joins
    }

    /// Returns all nodes in the order of the leaves, with groups reversed so that neighbours' links
    /// are cheap: an initial order for rings and chains.
    pub fn leaves_by_ends(&self, links: Links<'_>) -> Vec<u32> {
        let end = |nodes: &[u32], last: bool| if last { nodes[nodes.len() - 1] } else { nodes[0] };
        self.leaves(|left, right| {
            let turns = [(false, false), (false, true), (true, false), (true, true)];
            let joint = |(turn_left, turn_right): (bool, bool)| {
                links.whole(end(left, !turn_left), end(right, turn_right))
            };
            let (turn_left, turn_right) =
                turns.into_iter().min_by_key(|&turns| joint(turns)).unwrap_or_default();
            if turn_left {
                left.reverse();
            }
            if turn_right {
                right.reverse();
            }
        })
    }

    /// Returns all nodes in the order of the leaves, larger groups first, which aligns groups of
    /// 2^k nodes: an initial order for exchanges such as halving-doubling.
    pub fn leaves_by_size(&self) -> Vec<u32> {
        self.leaves(|left, right| {
            if left.len() < right.len() {
                std::mem::swap(left, right);
            }
        })
    }

    fn leaves(&self, mut arrange: impl FnMut(&mut Vec<u32>, &mut Vec<u32>)) -> Vec<u32> {
        let mut groups: Vec<Vec<u32>> = (0..self.nodes as u32).map(|node| vec![node]).collect();
        let mut last = 0;
        let mut union = Union::new(self.nodes);
        for join in &self.joins {
            let (first, second) = (union.find(join.first), union.find(join.second));
            let mut left = std::mem::take(&mut groups[first as usize]);
            let mut right = std::mem::take(&mut groups[second as usize]);
            arrange(&mut left, &mut right);
            left.append(&mut right);
            last = union.join(first, second);
            groups[last as usize] = left;
        }
        std::mem::take(&mut groups[last as usize])
    }

    /// Largest distance within a group of each level, in picoseconds, largest first; at most
    /// [`MAX_LEVELS`].
    pub fn levels(&self) -> Vec<u64> {
        let mut distances: Vec<u64> = self.joins.iter().map(|join| join.distance_ps).collect();
        distances.sort_unstable();
        let jumps = distances.windows(2).filter(|pair| {
            u128::from(pair[1]) * 100 >= u128::from(pair[0]) * u128::from(LEVEL_RATIO_PERCENT)
                && pair[1] > pair[0]
        });
        let mut jumps: Vec<(u128, u64)> = jumps
            .map(|pair| (u128::from(pair[1]) * 1000 / u128::from(pair[0].max(1)), pair[0]))
            .collect();
        jumps.sort_unstable_by(|a, b| b.cmp(a));
        jumps.truncate(MAX_LEVELS);
        let mut levels: Vec<u64> = jumps.into_iter().map(|(_, distance)| distance).collect();
        levels.sort_unstable_by(|a, b| b.cmp(a));
        levels
    }

    /// Returns each node's group after joins up to `distance_ps`. Groups are numbered in the order
    /// of their first nodes.
    pub fn groups(&self, distance_ps: u64) -> Vec<u32> {
        let mut union = Union::new(self.nodes);
        for join in self.joins.iter().filter(|join| join.distance_ps <= distance_ps) {
            union.join(join.first, join.second);
        }
        let mut numbers = vec![None; self.nodes];
        let mut next = 0;
        let number = |node: u32| {
            let root = union.find(node) as usize;
            *numbers[root].get_or_insert_with(|| {
                next += 1;
                next - 1
            })
        };
        (0..self.nodes as u32).map(number).collect()
    }

    /// Returns each node's place: its groups on the [`levels`](Self::levels), and its position in
    /// `order`.
    pub fn places(&self, order: &[u32]) -> Vec<Place> {
        let mut places = vec![Place::default(); self.nodes];
        let levels = self.levels();
        let first = MAX_LEVELS - levels.len();
        for (level, distance_ps) in levels.into_iter().enumerate() {
            for (place, group) in places.iter_mut().zip(self.groups(distance_ps)) {
                place.path[first + level] = group + 1;
            }
        }
        for (position, &node) in order.iter().enumerate() {
            places[node as usize].position = position as u32;
        }
        places
    }
}

fn joins_of_blocks(links: Links<'_>, blocks: &Blocks) -> Vec<Join> {
    let mut joins = Vec::with_capacity(links.len().saturating_sub(1));
    let mut heights = Vec::with_capacity(blocks.len());
    for members in blocks.members() {
        let groups =
            Groups::new(&vec![1; members.len()], |a, b| links.whole(members[a], members[b]));
        let member = |number: u32| members[number as usize];
        let within = groups.join_all().into_iter();
        let first = joins.len();
        joins.extend(within.map(|join| Join {
            first: member(join.first),
            second: member(join.second),
            ..join
        }));
        heights.push(joins[first..].iter().map(|join: &Join| join.distance_ps).max().unwrap_or(0));
    }
    let sizes: Vec<u64> = blocks.members().iter().map(|members| members.len() as u64).collect();
    let first = |block: usize| blocks.members()[block][0];
    let mut union = Union::new(blocks.len());
    let of_blocks = Groups::new(&sizes, |a, b| links.whole(first(a), first(b))).join_all();
    joins.extend(of_blocks.into_iter().map(|join| {
        let [a, b] = [join.first, join.second].map(|block| heights[union.find(block) as usize]);
        let distance_ps = join.distance_ps.max(a).max(b);
        heights[union.join(join.first, join.second) as usize] = distance_ps;
        Join { distance_ps, first: first(join.first as usize), second: first(join.second as usize) }
    }));
    joins
}

/// Groups during clustering, each named by the index of one of its nodes.
struct Groups {
    sizes: Vec<u64>,
    /// Summed costs between the nodes of each two groups, as a packed triangle. With costs of 32
    /// bits, sums over (10,000 / 2)^2 pairs fit 64 bits.
    sums: Vec<u64>,
    shift: u32,
}

impl Groups {
    fn new(sizes: &[u64], cost: impl Fn(usize, usize) -> u64) -> Self {
        let pairs = || (1..sizes.len()).flat_map(|a| (0..a).map(move |b| (a, b)));
        let largest = pairs().map(|(a, b)| cost(a, b)).max().unwrap_or(0);
        let shift = (64 - largest.leading_zeros()).saturating_sub(32);
        let sums = pairs().map(|(a, b)| (cost(a, b) >> shift) * sizes[a] * sizes[b]).collect();
        Self { sizes: sizes.to_vec(), sums, shift }
    }

    fn join_all(mut self) -> Vec<Join> {
        let groups = self.sizes.len();
        let mut joins = Vec::with_capacity(groups.saturating_sub(1));
        let mut chain: Vec<usize> = Vec::new();
        let mut start = 0;
        while joins.len() + 1 < groups {
            if chain.is_empty() {
                while self.sizes[start] == 0 {
                    start += 1;
                }
                chain.push(start);
            }
            let last = chain[chain.len() - 1];
            let before = chain.len().checked_sub(2).map(|index| chain[index]);
            let nearest = self.nearest(last, before);
            if Some(nearest) == before {
                chain.truncate(chain.len() - 2);
                let distance_ps = self.mean(nearest, last);
                joins.push(Join { distance_ps, first: nearest as u32, second: last as u32 });
                self.join(nearest, last);
            } else {
                chain.push(nearest);
            }
        }
        joins
    }

    /// Returns the group with the smallest mean cost to `from`; on ties, `preferred`, then the
    /// smallest number.
    fn nearest(&self, from: usize, preferred: Option<usize>) -> usize {
        let mut best: Option<(u64, u64, usize)> = None;
        let others = preferred.into_iter().chain(0..self.sizes.len());
        for group in others.filter(|&group| group != from && self.sizes[group] > 0) {
            let (sum, size) = (self.sums[triangle_index(from, group)], self.sizes[group]);
            let is_nearer = best.is_none_or(|(best_sum, best_size, _)| {
                u128::from(sum) * u128::from(best_size) < u128::from(best_sum) * u128::from(size)
            });
            if is_nearer {
                best = Some((sum, size, group));
            }
        }
        best.expect("there are at least two groups").2
    }

    fn mean(&self, a: usize, b: usize) -> u64 {
        (self.sums[triangle_index(a, b)] / (self.sizes[a] * self.sizes[b])) << self.shift
    }

    fn join(&mut self, a: usize, b: usize) {
        for other in (0..self.sizes.len()).filter(|&other| other != a && other != b) {
            if self.sizes[other] > 0 {
                self.sums[triangle_index(a, other)] += self.sums[triangle_index(b, other)];
            }
        }
        self.sizes[a] += self.sizes[b];
        self.sizes[b] = 0;
    }
}

pub(crate) struct Union {
    parents: Vec<u32>,
}

impl Union {
    pub(crate) fn new(nodes: usize) -> Self {
        Self { parents: (0..nodes as u32).collect() }
    }

    pub(crate) fn find(&mut self, node: u32) -> u32 {
        let mut at = node;
        while self.parents[at as usize] != at {
            let above = self.parents[self.parents[at as usize] as usize];
            self.parents[at as usize] = above;
            at = above;
        }
        at
    }

    pub(crate) fn join(&mut self, a: u32, b: u32) -> u32 {
        let (a, b) = (self.find(a), self.find(b));
        self.parents[b as usize] = a;
        a
    }
}
