//! Collectives in stages of exchanges within groups: halving-doubling, BCube, hierarchical.
//!
//! In a stage, each group consists of `group` ranks `stride` apart. The cost is the sum of the
//! slowest messages of all stages.

use super::{Model, max_tree::MaxTree};
use crate::error::Error;
use hoplite_core::topology::matrix::Links;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peers {
    All,
    Ring,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stage {
    pub(crate) group: usize,
    pub(crate) stride: usize,
    /// A message carries 1 / `parts` of the collective's bytes.
    pub(crate) parts: u64,
    /// Number of messages that a rank sends in sequence.
    pub(crate) steps: u64,
    pub(crate) peers: Peers,
}

impl Stage {
    fn group_of(&self, rank: usize) -> (usize, usize) {
        let base = rank - rank / self.stride % self.group * self.stride;
        (base, base / (self.stride * self.group) * self.stride + base % self.stride)
    }

    pub(crate) fn are_peers(&self, a: usize, b: usize) -> bool {
        let digit = |rank: usize| rank / self.stride % self.group;
        let apart = digit(a).abs_diff(digit(b));
        let are_beside = self.peers == Peers::All || apart == 1 || apart + 1 == self.group;
        a != b && self.group_of(a) == self.group_of(b) && are_beside
    }

    fn base(&self, group: usize) -> usize {
        group / self.stride * self.stride * self.group + group % self.stride
    }

    /// Returns `parts` times the cost of the slowest message in the group whose lowest rank is
    /// `base`. The factor avoids rounding.
    fn slowest(&self, links: Links<'_>, order: &[u32], base: usize) -> u64 {
        let member = |index: usize| order[base + index * self.stride];
        let mut slowest = 0;
        match self.peers {
            Peers::All => {
                for a in 1..self.group {
                    for b in 0..a {
                        slowest = slowest.max(links.all_parts(member(a), member(b), self.parts));
                    }
                }
            }
            Peers::Ring => {
                for a in 0..self.group {
                    slowest = slowest.max(links.all_parts(
                        member(a),
                        member((a + 1) % self.group),
                        self.parts,
                    ));
                }
            }
        }
        slowest
    }
}

/// Returns the group sizes of BCube's stages: `base`, `base`, ..., then smaller sizes for the
/// remaining factor of `nodes`.
///
/// # Errors
/// Fails if the remaining factor has no divisor from 2 to `base`.
pub fn radices(nodes: usize, base: u32) -> Result<Vec<usize>, Error> {
    let mut radices = Vec::new();
    let mut left = nodes;
    while left > 1 {
        let radix = (2..=left.min(base as usize)).rev().find(|radix| left.is_multiple_of(*radix));
        let radix = radix.ok_or(Error::NoRadices { nodes, base })?;
        radices.push(radix);
        left /= radix;
    }
    Ok(radices)
}

/// Returns the stages of a model; none for models without stages.
pub(crate) fn stages(model: &Model, nodes: usize) -> Result<Vec<Stage>, Error> {
    let (groups, peers) = match model {
        Model::HalvingDoubling if nodes.is_power_of_two() => (radices(nodes, 2)?, Peers::All),
        Model::HalvingDoubling => return Err(Error::NotAPowerOfTwo { nodes }),
        Model::BCube(base) => (radices(nodes, *base)?, Peers::All),
        Model::Hierarchical(levels) => {
            let product =
                levels.iter().fold(1_u64, |product, &level| product.saturating_mul(level.into()));
            if product != nodes as u64 {
                return Err(Error::LevelsDoNotMatch { product, nodes });
            }
            (
                levels.iter().map(|&level| level as usize).filter(|&level| level > 1).collect(),
                Peers::Ring,
            )
        }
        Model::Ring | Model::DoubleBinaryTree | Model::NcclTree | Model::Chain => {
            (Vec::new(), Peers::All)
        }
    };
    let mut stride = 1;
    let stages = groups.into_iter().map(|group| {
        let stage = Stage {
            group,
            stride,
            parts: (stride * group) as u64,
            steps: if peers == Peers::Ring { 2 * (group as u64 - 1) } else { 1 },
            peers,
        };
        stride *= group;
        stage
    });
    Ok(stages.collect())
}

/// Returns the sum of the costs. Each stage comes with `parts` times the cost of its slowest
/// message. The last stage's `parts` must be a multiple of all others.
pub(crate) fn total(costs: impl IntoIterator<Item = (Stage, u128)>) -> u128 {
    let (sum, parts) = costs.into_iter().fold((0, 1), |(sum, parts), (stage, cost)| {
        let stage_parts = u128::from(stage.parts);
        (sum * (stage_parts / parts) + u128::from(stage.steps) * cost, stage_parts)
    });
    sum / parts
}

#[derive(Debug, Clone)]
pub(super) struct Exchange {
    stages: Vec<(Stage, MaxTree)>,
    sums: Vec<u128>,
}

impl Exchange {
    pub(super) fn new(links: Links<'_>, order: &[u32], stages: Vec<Stage>) -> Self {
        let mut sums = Vec::new();
        let stages = stages.into_iter().map(|stage| {
            let groups = 0..order.len() / stage.group;
            let slowest: Vec<u64> =
                groups.map(|group| stage.slowest(links, order, stage.base(group))).collect();
            sums.push(slowest.iter().map(|&slowest| u128::from(slowest)).sum());
            (stage, MaxTree::new(&slowest))
        });
        Self { stages: stages.collect(), sums }
    }

    pub(super) fn cost(&self) -> u128 {
        total(self.stages.iter().map(|(stage, slowest)| (*stage, slowest.largest().into())))
    }

    pub(super) fn mean(&self) -> u128 {
        let stages = self.stages.iter().zip(&self.sums);
        total(stages.map(|((stage, groups), sum)| (*stage, sum / groups.len() as u128)))
    }

    pub(super) fn moved(&mut self, links: Links<'_>, order: &[u32], rank: usize) {
        for ((stage, groups), sum) in self.stages.iter_mut().zip(&mut self.sums) {
            let (base, group) = stage.group_of(rank);
            let slowest = stage.slowest(links, order, base);
            *sum = *sum - u128::from(groups.get(group)) + u128::from(slowest);
            groups.set(group, slowest);
        }
    }
}
