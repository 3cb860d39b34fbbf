//! Cost of a ring: the sum, over all hops, of the cost of a message with all bytes.

use hoplite_core::topology::matrix::Links;

#[derive(Debug, Clone)]
pub(super) struct Ring {
    hops: Vec<u64>,
    sum: u128,
}

impl Ring {
    pub(super) fn new(links: Links<'_>, order: &[u32]) -> Self {
        let hops: Vec<u64> = (0..order.len()).map(|rank| hop(links, order, rank)).collect();
        let sum = hops.iter().map(|&hop| u128::from(hop)).sum();
        Self { hops, sum }
    }

    pub(super) const fn cost(&self) -> u128 {
        self.sum
    }

    pub(super) fn moved(&mut self, links: Links<'_>, order: &[u32], rank: usize) {
        for rank in [rank, (rank + 1) % order.len()] {
            let hop = hop(links, order, rank);
            self.sum = self.sum - u128::from(self.hops[rank]) + u128::from(hop);
            self.hops[rank] = hop;
        }
    }
}

fn hop(links: Links<'_>, order: &[u32], rank: usize) -> u64 {
    let before = if rank == 0 { order.len() - 1 } else { rank - 1 };
    links.whole(order[before], order[rank])
}
