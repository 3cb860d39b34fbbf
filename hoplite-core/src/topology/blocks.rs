//! Blocks of nodes. A matrix with blocks has a link for each pair of nodes within a block, and one
//! for each two blocks, so thousands of nodes need few links.

use super::error::TopologyError;

/// Most blocks, with half a million links between them.
pub const MAX_BLOCKS: usize = 1024;

/// Sets of close nodes. In the matrix, links within each block come first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocks {
    positions: Vec<(u32, u32)>,
    members: Vec<Vec<u32>>,
    /// Position of each block's first link, then of the first link between blocks.
    starts: Vec<usize>,
}

/// Two ends of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockLink {
    /// Two nodes of a block, the larger index first.
    Within(u32, u32),
    /// Two blocks, the larger number first.
    Between(u32, u32),
}

impl Blocks {
    /// Puts nodes with equal numbers, counted from zero, into one block.
    ///
    /// # Errors
    /// Fails if a block has no node, or if there are more than [`MAX_BLOCKS`].
    pub fn new(block_of: &[u32]) -> Result<Self, TopologyError> {
        let count = block_of.iter().max().map_or(0, |last| *last as usize + 1);
        if count > MAX_BLOCKS {
            return Err(TopologyError::BadBlocks { count });
        }
        let mut members: Vec<Vec<u32>> = vec![Vec::new(); count];
        let mut positions = Vec::with_capacity(block_of.len());
        for (node, &block) in block_of.iter().enumerate() {
            let members = &mut members[block as usize];
            positions.push((block, members.len() as u32));
            members.push(node as u32);
        }
        if members.iter().any(Vec::is_empty) {
            return Err(TopologyError::BadBlocks { count });
        }
        let mut starts = vec![0];
        let mut end = 0;
        for members in &members {
            end += triangle_len(members.len());
            starts.push(end);
        }
        Ok(Self { positions, members, starts })
    }

    /// Number of blocks.
    pub const fn len(&self) -> usize {
        self.members.len()
    }

    /// Returns `true` if there are no blocks.
    pub const fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Number of nodes.
    pub const fn nodes(&self) -> usize {
        self.positions.len()
    }

    /// Nodes of each block.
    pub fn members(&self) -> &[Vec<u32>] {
        &self.members
    }

    /// Returns the block of `node`.
    pub fn block(&self, node: usize) -> u32 {
        self.positions[node].0
    }

    /// Number of links.
    pub fn count_links(&self) -> usize {
        self.starts[self.len()] + triangle_len(self.len())
    }

    /// Ends of each link, in the order of the matrix.
    pub fn links(&self) -> impl Iterator<Item = BlockLink> {
        let within = self.members.iter().flat_map(|members| {
            (1..members.len())
                .flat_map(|high| (0..high).map(move |low| (high, low)))
                .map(|(high, low)| BlockLink::Within(members[high], members[low]))
        });
        let blocks = self.len() as u32;
        within.chain(
            (1..blocks).flat_map(|high| (0..high).map(move |low| BlockLink::Between(high, low))),
        )
    }

    pub(super) fn index(&self, a: usize, b: usize) -> usize {
        let ((block_a, position_a), (block_b, position_b)) = (self.positions[a], self.positions[b]);
        if block_a == block_b {
            self.starts[block_a as usize] + triangle_index(position_a as usize, position_b as usize)
        } else {
            self.starts[self.len()] + triangle_index(block_a as usize, block_b as usize)
        }
    }
}

pub(super) const fn triangle_len(count: usize) -> usize {
    count * count.saturating_sub(1) / 2
}

pub(super) const fn triangle_index(a: usize, b: usize) -> usize {
    if a > b { a * (a - 1) / 2 + b } else { b * (b - 1) / 2 + a }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pair_has_its_link() {
        let blocks = Blocks::new(&[0, 1, 0, 2, 1, 0]).unwrap();
        assert_eq!((blocks.len(), blocks.nodes(), blocks.count_links()), (3, 6, 3 + 1 + 3));
        let links: Vec<BlockLink> = blocks.links().collect();
        assert_eq!(links.len(), blocks.count_links());
        for a in 0..6_usize {
            for b in (0..6).filter(|b| *b != a) {
                let expected = match (blocks.block(a), blocks.block(b)) {
                    (one, other) if one == other => {
                        BlockLink::Within(a.max(b) as u32, a.min(b) as u32)
                    }
                    (one, other) => BlockLink::Between(one.max(other), one.min(other)),
                };
                assert_eq!(links[blocks.index(a, b)], expected, "{a} and {b}");
            }
        }
    }

    #[test]
    fn empty_and_too_many_blocks_are_refused() {
        assert!(matches!(Blocks::new(&[0, 2]), Err(TopologyError::BadBlocks { count: 3 })));
        assert!(matches!(Blocks::new(&[u32::MAX]), Err(TopologyError::BadBlocks { .. })));
        let most: Vec<u32> = (0..MAX_BLOCKS as u32).collect();
        assert!(Blocks::new(&most).is_ok());
    }
}
