//! Finds the best order in small cases. Rings use Held and Karp's dynamic program (1962), chains
//! repeat it for each limit of the time per byte. Other models try all orders.

use crate::cost::{Evaluator, Model, chain_cost, hop};
use hoplite_core::topology::matrix::Links;

/// Most nodes of a ring: 2^15 sets of 15 nodes, each with 15 last nodes, take 4 MB and some 10 ms.
pub(super) const MAX_RING: usize = 16;
/// Most nodes of a chain: Held and Karp's program runs for each different time per byte of 55
/// links.
pub(super) const MAX_CHAIN: usize = 11;
/// 8! orders.
pub(super) const MAX_NODES_OF_OTHER_MODELS: usize = 8;

pub(super) fn optimum(
    links: Links<'_>,
    model: &Model,
    evaluator: Evaluator<'_>,
) -> Option<Vec<u32>> {
    match model {
        _ if links.len() <= 2 => Some(evaluator.order().to_vec()),
        // All ranks exchange at once, so all orders cost the same.
        Model::BCube(base) if links.len() <= *base as usize => Some(evaluator.order().to_vec()),
        Model::Ring if links.len() <= MAX_RING => Some(shortest_ring(links)),
        Model::Chain if links.len() <= MAX_CHAIN => Some(cheapest_chain(links)),
        Model::Ring | Model::Chain => None,
        _ if links.len() <= MAX_NODES_OF_OTHER_MODELS => Some(enumerate(evaluator)),
        _ => None,
    }
}

/// Tries all orders with Heap's algorithm (1963): one swap leads to the next order.
fn enumerate(mut evaluator: Evaluator<'_>) -> Vec<u32> {
    let nodes = evaluator.order().len();
    let (mut best, mut best_cost) = (evaluator.order().to_vec(), evaluator.cost());
    let mut counters = vec![0; nodes];
    let mut at = 1;
    while at < nodes {
        if counters[at] < at {
            evaluator.swap(if at.is_multiple_of(2) { 0 } else { counters[at] }, at);
            evaluator.commit();
            if evaluator.cost() < best_cost {
                best_cost = evaluator.cost();
                best = evaluator.order().to_vec();
            }
            counters[at] += 1;
            at = 1;
        } else {
            counters[at] = 0;
            at += 1;
        }
    }
    best
}

const UNREACHABLE: u64 = u64::MAX;

/// Cost of the cheapest path through each set of nodes, for each last node. Sixteen hops of at most
/// 2^58 fit 64 bits.
struct Paths {
    nodes: usize,
    costs: Vec<u64>,
}

impl Paths {
    /// `first` is the cost of a path of one node, and `hop` the cost of a further node;
    /// [`UNREACHABLE`] excludes a hop.
    fn new(nodes: usize, first: impl Fn(usize) -> u64, hop: impl Fn(usize, usize) -> u64) -> Self {
        let mut costs = vec![UNREACHABLE; nodes << nodes];
        for node in 0..nodes {
            costs[(1 << node) * nodes + node] = first(node);
        }
        for set in 1_usize..1 << nodes {
            for last in (0..nodes).filter(|last| set >> last & 1 == 1) {
                let cost = costs[set * nodes + last];
                if cost == UNREACHABLE {
                    continue;
                }
                for next in (0..nodes).filter(|next| set >> next & 1 == 0) {
                    let longer = &mut costs[(set | 1 << next) * nodes + next];
                    *longer = cost.saturating_add(hop(last, next)).min(*longer);
                }
            }
        }
        Self { nodes, costs }
    }

    fn cost(&self, set: usize, last: usize) -> u64 {
        self.costs[set * self.nodes + last]
    }

    fn cheapest(
        &self,
        end: impl Fn(usize) -> u64,
        hop: impl Fn(usize, usize) -> u64,
    ) -> Option<(u64, Vec<usize>)> {
        let mut set = (1 << self.nodes) - 1;
        let total = |last: usize| self.cost(set, last).saturating_add(end(last));
        let mut last = (0..self.nodes).min_by_key(|&last| total(last))?;
        let cost = total(last);
        if cost == UNREACHABLE {
            return None;
        }
        let mut path = vec![last];
        while path.len() < self.nodes {
            let before = set & !(1 << last);
            let is_before = |node: &usize| {
                before >> node & 1 == 1
                    && self.cost(before, *node) != UNREACHABLE
                    && self.cost(before, *node).saturating_add(hop(*node, last))
                        == self.cost(set, last)
            };
            last = (0..self.nodes).find(is_before)?;
            set = before;
            path.push(last);
        }
        Some((cost, path))
    }
}

/// Fixes the highest node; the others form a path whose ends are its neighbours.
fn shortest_ring(links: Links<'_>) -> Vec<u32> {
    let fixed = links.len() - 1;
    let cost = |a: usize, b: usize| links.whole(a as u32, b as u32);
    let paths = Paths::new(fixed, |first| cost(fixed, first), cost);
    let (_, mut ring) =
        paths.cheapest(|last| cost(last, fixed), cost).expect("all nodes are linked");
    ring.push(fixed);
    ring.into_iter().map(|node| node as u32).collect()
}

/// Returns the cheapest of several paths: for each limit of the time per byte, the cheapest path
/// over the links within the limit.
fn cheapest_chain(links: Links<'_>) -> Vec<u32> {
    let nodes = links.len();
    let mut gaps: Vec<u64> =
        links.matrix().links().map(|link| u64::from(link.ps_per_byte)).collect();
    gaps.sort_unstable();
    gaps.dedup();
    let mut best: Option<(u128, Vec<usize>)> = None;
    for limit in gaps {
        let block = |a: usize, b: usize| {
            let (block, gap) = hop(links, a as u32, b as u32);
            if gap <= limit { block } else { UNREACHABLE }
        };
        let Some((blocks, path)) = Paths::new(nodes, |_| 0, block).cheapest(|_| 0, block) else {
            continue;
        };
        let pairs = path.windows(2).map(|pair| hop(links, pair[0] as u32, pair[1] as u32).1);
        let cost = chain_cost(blocks.into(), pairs.max().unwrap_or(0), links.size_bytes());
        if best.as_ref().is_none_or(|(best, _)| cost < *best) {
            best = Some((cost, path));
        }
    }
    let (_, path) = best.expect("the largest limit admits all links");
    path.into_iter().map(|node| node as u32).collect()
}
