//! Cost of two trees that carry half of the bytes each. The slowest path of the slower tree counts.
//!
//! Sources: Cloud Collectives, section IV-A, with three corrections: the roots of halves are the
//! middles of their ranges, an empty range has no child, and the second tree has ranks decremented.
//! NCCL 2.4 for [`Model::NcclTree`].

use super::Model;
use hoplite_core::topology::matrix::Links;

/// Ranks have at most two children, and the root of NCCL's trees one.
pub(crate) type Parents = Vec<Option<u32>>;

pub(crate) fn pair_of_trees(model: &Model, nodes: usize) -> [Parents; 2] {
    let size = nodes as u32;
    if *model == Model::NcclTree {
        let first = nccl(size);
        let second = if size.is_multiple_of(2) {
            relabelled(&first, |rank| size - 1 - rank)
        } else {
            relabelled(&first, |rank| (rank + 1) % size)
        };
        return [first, second];
    }
    let first = middles(size);
    let second = relabelled(&first, |rank| (rank + size - 1) % size);
    [first, second]
}

fn middles(size: u32) -> Parents {
    let mut parents = vec![None; size as usize];
    let mut ranges = vec![(0, size, None)];
    while let Some((start, end, parent)) = ranges.pop() {
        if start < end {
            let middle = (start + end - 1) / 2;
            parents[middle as usize] = parent;
            ranges.push((start, middle, Some(middle)));
            ranges.push((middle + 1, end, Some(middle)));
        }
    }
    parents
}

/// Makes NCCL's tree with root 0. A rank whose lowest set bit is b lies between two multiples of
/// 2b. Its parent is the multiple with bit 2b, or, if that exceeds the last rank, the other
/// multiple.
fn nccl(size: u32) -> Parents {
    let parent = |rank: u32| {
        let lowest = rank & rank.wrapping_neg();
        let up = (rank ^ lowest) | (lowest << 1);
        if up < size { up } else { rank ^ lowest }
    };
    (0..size).map(|rank| (rank > 0).then(|| parent(rank))).collect()
}

fn relabelled(parents: &Parents, label: impl Fn(u32) -> u32) -> Parents {
    let mut relabelled = vec![None; parents.len()];
    for (rank, parent) in parents.iter().enumerate() {
        relabelled[label(rank as u32) as usize] = parent.map(&label);
    }
    relabelled
}

const PARTS: u64 = 2;

#[derive(Debug, Clone)]
pub(crate) struct Trees {
    trees: [Tree; 2],
}

#[derive(Debug, Clone)]
struct Tree {
    parents: Parents,
    children: Vec<Vec<u32>>,
    root: usize,
    /// For each rank, [`PARTS`] times the time from its receipt to the last receipt below it.
    times: Vec<u128>,
}

impl Trees {
    pub(super) fn new(links: Links<'_>, order: &[u32], pair: [Parents; 2]) -> Self {
        Self { trees: pair.map(|parents| Tree::new(links, order, parents)) }
    }

    pub(super) fn cost(&self) -> u128 {
        self.trees[0].time().max(self.trees[1].time()) / u128::from(PARTS)
    }

    pub(super) fn mean(&self) -> u128 {
        (self.trees[0].time() + self.trees[1].time()) / 2 / u128::from(PARTS)
    }

    pub(super) fn moved(&mut self, links: Links<'_>, order: &[u32], rank: usize) {
        for tree in &mut self.trees {
            tree.moved(links, order, rank);
        }
    }
}

impl Tree {
    fn new(links: Links<'_>, order: &[u32], parents: Parents) -> Self {
        let mut children = vec![Vec::new(); parents.len()];
        let mut root = 0;
        for (rank, parent) in parents.iter().enumerate() {
            match parent {
                Some(parent) => children[*parent as usize].push(rank as u32),
                None => root = rank,
            }
        }
        let mut tree = Self { times: vec![0; parents.len()], parents, children, root };
        let mut ranks = vec![root as u32];
        let mut next = 0;
        while next < ranks.len() {
            ranks.extend_from_slice(&tree.children[ranks[next] as usize]);
            next += 1;
        }
        for &rank in ranks.iter().rev() {
            tree.times[rank as usize] = tree.below(links, order, rank as usize);
        }
        tree
    }

    fn time(&self) -> u128 {
        self.times[self.root]
    }

    fn below(&self, links: Links<'_>, order: &[u32], rank: usize) -> u128 {
        let ways = self.children[rank].iter().map(|&child| {
            u128::from(links.all_parts(order[rank], order[child as usize], PARTS))
                + self.times[child as usize]
        });
        ways.max().unwrap_or(0)
    }

    fn moved(&mut self, links: Links<'_>, order: &[u32], rank: usize) {
        self.times[rank] = self.below(links, order, rank);
        let mut at = rank;
        while let Some(parent) = self.parents[at] {
            at = parent as usize;
            let time = self.below(links, order, at);
            // The times of all ranks above are unchanged, too.
            if time == self.times[at] {
                break;
            }
            self.times[at] = time;
        }
    }
}
