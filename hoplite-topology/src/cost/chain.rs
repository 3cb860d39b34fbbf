//! Cost of a chain, which streams blocks from rank to rank.

use super::max_tree::MaxTree;
use hoplite_core::block::BLOCK_BYTES;
use hoplite_core::topology::matrix::Links;

#[derive(Debug, Clone)]
pub(super) struct Chain {
    blocks: Vec<u64>,
    sum: u128,
    gaps: MaxTree,
}

impl Chain {
    pub(super) fn new(links: Links<'_>, order: &[u32]) -> Self {
        let hops: Vec<(u64, u64)> =
            order.windows(2).map(|pair| hop(links, pair[0], pair[1])).collect();
        let blocks: Vec<u64> = hops.iter().map(|hop| hop.0).collect();
        let gaps: Vec<u64> = hops.iter().map(|hop| hop.1).collect();
        let sum = blocks.iter().map(|&block| u128::from(block)).sum();
        Self { blocks, sum, gaps: MaxTree::new(&gaps) }
    }

    /// Returns the time of the first block over all links, plus the time of the other bytes over
    /// the slowest link. Each hop but the slowest is charged for a whole block, even for a smaller
    /// object.
    pub(super) fn cost(&self, links: Links<'_>) -> u128 {
        chain_cost(self.sum, self.gaps.largest(), links.size_bytes())
    }

    pub(super) fn moved(&mut self, links: Links<'_>, order: &[u32], rank: usize) {
        for rank in [rank.wrapping_sub(1), rank] {
            if rank < self.blocks.len() {
                let (block, gap) = hop(links, order[rank], order[rank + 1]);
                self.sum = self.sum - u128::from(self.blocks[rank]) + u128::from(block);
                self.blocks[rank] = block;
                self.gaps.set(rank, gap);
            }
        }
    }
}

/// `blocks` is the cost of one block over all hops, and `largest_gap` the slowest link's time per
/// byte.
pub(crate) fn chain_cost(blocks: u128, largest_gap: u64, size_bytes: u64) -> u128 {
    blocks + u128::from(largest_gap) * u128::from(size_bytes)
        - u128::from(largest_gap) * u128::from(BLOCK_BYTES)
}

pub(crate) fn hop(links: Links<'_>, a: u32, b: u32) -> (u64, u64) {
    let link = links.matrix().link(a as usize, b as usize);
    let gap = u64::from(link.ps_per_byte);
    (1000 * u64::from(link.alpha_ns) + BLOCK_BYTES * gap, gap)
}
