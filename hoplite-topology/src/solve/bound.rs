//! Lower bounds of the cost of any order.
//!
//! For rings, the 1-tree of Held and Karp (1970): a spanning tree of all nodes but one, and two
//! edges to that node, cost no more than a ring. Multipliers, which change all rings equally, drive
//! the degrees to two, and the bound to 96 to 100% of the optimum.
//!
//! For models of stages, a stage costs at least the largest of all nodes' costs to their nearest
//! neighbour. A set of stages connects as many ranks as the product of its group sizes. Unless that
//! product divides the size of each group of close nodes, some messages leave their group.

use crate::cost::{Model, Stage, chain_cost, hop, pair_of_trees, stages, total};
use hoplite_core::topology::cluster::Dendrogram;
use hoplite_core::topology::matrix::Links;

/// Most partitions that [`exchange_bound`] tries: the clusters below the largest jumps of the
/// distance.
const MAX_PARTITIONS: usize = 16;
/// Most changes of [`OneTree`]'s multipliers.
const MAX_STEPS: u32 = 600;

/// Returns a lower bound of the cost of any order; zero for a ring, whose bound is [`OneTree`].
pub(super) fn lower_bound(links: Links<'_>, model: &Model, dendrogram: &Dendrogram) -> u128 {
    match model {
        Model::Ring => 0,
        Model::Chain => chain_bound(links),
        Model::DoubleBinaryTree | Model::NcclTree => tree_bound(links, model),
        Model::HalvingDoubling | Model::BCube(_) | Model::Hierarchical(_) => {
            let stages = stages(model, links.len()).unwrap_or_default();
            exchange_bound(links, &stages, dendrogram)
        }
    }
}

/// Returns a lower bound for a chain, which is a spanning tree.
///
/// The cheapest spanning tree bounds the cost of the first block. The spanning tree whose slowest
/// link is fastest bounds the cost of the other bytes. An object smaller than a block is charged a
/// block, less the missing bytes at the slowest link's rate.
fn chain_bound(links: Links<'_>) -> u128 {
    let nodes = links.len();
    let blocks: u128 = spanning_tree(nodes, |a, b| hop(links, a, b).0).map(u128::from).sum();
    let gap = if links.size_bytes() < hoplite_core::block::BLOCK_BYTES {
        links.matrix().links().map(|link| u64::from(link.ps_per_byte)).max()
    } else {
        spanning_tree(nodes, |a, b| hop(links, a, b).1).max()
    };
    let gap = gap.unwrap_or(0);
    let saved = u128::from(gap) * u128::from(hoplite_core::block::BLOCK_BYTES);
    let carried = blocks + u128::from(gap) * u128::from(links.size_bytes());
    if carried < saved { 0 } else { chain_cost(blocks, gap, links.size_bytes()) }
}

/// Returns the edges' costs of a cheapest spanning tree (Prim, 1957).
fn spanning_tree(nodes: usize, cost: impl Fn(u32, u32) -> u64) -> impl Iterator<Item = u64> {
    let mut nearest: Vec<(u64, u32)> =
        (1..nodes as u32).map(|node| (cost(0, node), node)).collect();
    std::iter::from_fn(move || {
        let index = (0..nearest.len()).min_by_key(|&index| nearest[index])?;
        let (added, node) = nearest.swap_remove(index);
        for (least, other) in &mut nearest {
            *least = (*least).min(cost(node, *other));
        }
        Some(added)
    })
}

/// A longest path costs at least its depth times the cheapest link, and each node needs at least
/// its cheapest link.
fn tree_bound(links: Links<'_>, model: &Model) -> u128 {
    let nodes = links.len() as u32;
    let cheapest: Vec<u64> = (0..nodes).map(|node| nearest(links, node, 2)).collect();
    let least = cheapest.iter().copied().min().unwrap_or(0);
    let most = cheapest.iter().copied().max().unwrap_or(0);
    let depth = |parents: &Vec<Option<u32>>| {
        let above =
            |rank: u32| std::iter::successors(parents[rank as usize], |&at| parents[at as usize]);
        (0..nodes).map(|rank| above(rank).count()).max().unwrap_or(0)
    };
    let depth = pair_of_trees(model, links.len()).iter().map(depth).max().unwrap_or(0);
    (depth as u128 * u128::from(least)).max(most.into()) / 2
}

fn nearest(links: Links<'_>, node: u32, parts: u64) -> u64 {
    let others = (0..links.len() as u32).filter(|&other| other != node);
    others.map(|other| links.all_parts(node, other, parts)).min().unwrap_or(0)
}

fn exchange_bound(links: Links<'_>, stages: &[Stage], dendrogram: &Dendrogram) -> u128 {
    let nodes = links.len() as u32;
    let least: Vec<u64> = stages
        .iter()
        .map(|stage| (0..nodes).map(|node| nearest(links, node, stage.parts)).max().unwrap_or(0))
        .collect();
    let sum =
        |costs: &[u64]| total(stages.iter().zip(costs).map(|(stage, &cost)| (*stage, cost.into())));
    let partitions = partitions(dendrogram).into_iter().map(|groups| {
        let crossing = crossing(links, stages, &groups);
        let outside: Vec<u64> = crossing.iter().zip(&least).map(|(&a, &b)| a.max(b)).collect();
        let common = common_divisor(&groups);
        // The sets of stages (as bits) whose product of group sizes divides the size of each group
        // of close nodes.
        let inside = (0_u32..1 << stages.len()).filter(|inside| {
            let of_set = stages.iter().enumerate().filter(|(index, _)| inside >> index & 1 == 1);
            of_set
                .map(|(_, stage)| stage.group)
                .try_fold(1_usize, usize::checked_mul)
                .is_some_and(|product| common.is_multiple_of(product))
        });
        let costs = inside.map(|inside| {
            let cost =
                |index: usize| if inside >> index & 1 == 1 { least[index] } else { outside[index] };
            sum(&(0..stages.len()).map(cost).collect::<Vec<_>>())
        });
        costs.min().unwrap_or(0)
    });
    partitions.max().unwrap_or(0).max(sum(&least))
}

fn partitions(dendrogram: &Dendrogram) -> Vec<Vec<u32>> {
    let mut distances: Vec<u64> = dendrogram.joins().iter().map(|join| join.distance_ps).collect();
    distances.sort_unstable();
    let mut steps: Vec<(u64, u64)> = distances
        .windows(2)
        .map(|pair| (pair[1] - pair[0], pair[0]))
        .filter(|step| step.0 > 0)
        .collect();
    steps.sort_unstable_by(|a, b| b.cmp(a));
    steps.truncate(MAX_PARTITIONS);
    steps.into_iter().map(|(_, distance)| dendrogram.groups(distance)).collect()
}

fn crossing(links: Links<'_>, stages: &[Stage], groups: &[u32]) -> Vec<u64> {
    let mut least = vec![u64::MAX; stages.len()];
    for a in 1..links.len() {
        for b in (0..a).filter(|&b| groups[a] != groups[b]) {
            for (least, stage) in least.iter_mut().zip(stages) {
                *least = links.all_parts(a as u32, b as u32, stage.parts).min(*least);
            }
        }
    }
    least
}

fn common_divisor(groups: &[u32]) -> usize {
    let mut sizes = vec![0_usize; groups.len()];
    for &group in groups {
        sizes[group as usize] += 1;
    }
    let divisor = |mut a: usize, mut b: usize| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    sizes.into_iter().fold(0, divisor)
}

/// Held and Karp's bound of a ring's cost. Each step changes the multipliers to raise the bound.
#[derive(Debug)]
pub(super) struct OneTree<'a> {
    links: Links<'a>,
    multipliers: Vec<i64>,
    excess: [Vec<i64>; 2],
    best: i128,
    best_multipliers: Vec<i64>,
    limit: i64,
    step: i64,
    steps: u32,
    upper: u128,
}

impl<'a> OneTree<'a> {
    pub(super) fn new(links: Links<'a>, upper: u128) -> Self {
        let nodes = links.len();
        let limit =
            links.matrix().links().map(|link| cost_of(links, link)).max().unwrap_or(0) as i64;
        Self {
            links,
            multipliers: vec![0; nodes],
            excess: [vec![0; nodes], vec![0; nodes]],
            best: 0,
            best_multipliers: vec![0; nodes],
            limit,
            step: (upper / (10 * nodes as u128)).clamp(1, 1 << 58) as i64,
            steps: 0,
            upper,
        }
    }

    pub(super) fn step(&mut self) -> bool {
        self.excess.swap(0, 1);
        let cost = self.tree();
        if cost > self.best {
            self.best = cost;
            self.best_multipliers.clone_from(&self.multipliers);
        }
        let [now, before] = &self.excess;
        if now.iter().all(|&excess| excess == 0) {
            return false;
        }
        // Sources: Held, Wolfe and Crowder (1974); the previous step's share, Volgenant and Jonker
        // (1982).
        for (node, multiplier) in self.multipliers.iter_mut().enumerate() {
            let change = self.step.saturating_mul(7 * now[node] + 3 * before[node]) / 10;
            *multiplier = multiplier.saturating_add(change).clamp(-self.limit, self.limit);
        }
        self.steps += 1;
        self.step = (self.step - self.step / 100).max(1);
        self.steps < MAX_STEPS && self.best < self.upper as i128
    }

    pub(super) const fn bound(&self) -> u128 {
        self.best.unsigned_abs()
    }

    pub(super) fn multipliers(&self) -> Vec<i64> {
        self.best_multipliers.clone()
    }

    /// Builds the cheapest 1-tree, whose spanning tree lacks the last node. Returns its bound.
    fn tree(&mut self) -> i128 {
        let nodes = self.links.len();
        let outside = nodes - 1;
        let multipliers = &self.multipliers;
        let cost = |a: usize, b: usize| {
            self.links.whole(a as u32, b as u32) as i64 + multipliers[a] + multipliers[b]
        };
        let excess = &mut self.excess[0];
        excess.fill(-2);
        let mut sum = 0_i128;
        let mut join = |a: usize, b: usize, cost: i64| {
            excess[a] += 1;
            excess[b] += 1;
            sum += i128::from(cost);
        };
        let mut edges: Vec<(i64, usize, usize)> =
            (1..outside).map(|node| (cost(0, node), node, 0)).collect();
        while let Some(index) = (0..edges.len()).min_by_key(|&index| edges[index].0) {
            let (least, node, parent) = edges.swap_remove(index);
            join(node, parent, least);
            for edge in &mut edges {
                let cost = cost(node, edge.1);
                if cost < edge.0 {
                    (edge.0, edge.2) = (cost, node);
                }
            }
        }
        let mut ends: Vec<(i64, usize)> =
            (0..outside).map(|node| (cost(outside, node), node)).collect();
        ends.sort_unstable();
        for (least, node) in ends.into_iter().take(2) {
            join(outside, node, least);
        }
        sum - 2 * multipliers.iter().map(|&multiplier| i128::from(multiplier)).sum::<i128>()
    }
}

fn cost_of(links: Links<'_>, link: hoplite_core::topology::matrix::Link) -> u64 {
    1000 * u64::from(link.alpha_ns) + links.size_bytes() * u64::from(link.ps_per_byte)
}
