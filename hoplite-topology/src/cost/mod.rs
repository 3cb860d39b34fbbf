//! Cost of collectives for an order of ranks: `order[rank]` is a node.
//!
//! Models compare orders, and do not predict times. Costs are exact integers in picoseconds.
//!
//! Source: Cloud Collectives, section IV-A.

mod chain;
mod exchange;
mod max_tree;
mod ring;
mod tree;

use std::fmt;
use std::str::FromStr;

pub(crate) use chain::{chain_cost, hop};
pub use exchange::radices;
pub(crate) use exchange::{Stage, stages, total};
pub(crate) use tree::{Trees, pair_of_trees};

use crate::error::Error;
use hoplite_core::topology::Links;

/// A collective of n ranks on S bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Model {
    /// Each rank sends to the next: n - 1 steps per phase (reduce-scatter, allgather), and
    /// 2 S (n - 1) / n bytes per node.
    Ring,
    /// In step i, ranks that differ in bit i exchange S / 2^(i + 1) bytes: log2 n steps and
    /// S (n - 1) / n bytes per phase.
    HalvingDoubling,
    /// Two trees that carry half of the bytes each: 2 log2 n steps. In the second tree, all ranks
    /// are decremented.
    DoubleBinaryTree,
    /// NCCL's two trees, whose rank 0 has one child. The second tree is the first one's mirror for
    /// even n, else the first one shifted.
    NcclTree,
    /// In stage i, each node exchanges S / B^(i + 1) bytes with B - 1 peers: log_B n stages. The
    /// last group may be smaller.
    BCube(u32),
    /// One stream in blocks of 4 KiB along the order, as in a broadcast: n - 1 hops, and S bytes
    /// per node.
    Chain,
    /// Rings within the groups of each level, innermost first, on ever smaller parts of the bytes:
    /// 2 sum (p_i - 1) steps, and 2 S (n - 1) / n bytes per node. n is the product of the group
    /// sizes p_i.
    Hierarchical(Vec<u32>),
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ring => f.write_str("ring"),
            Self::HalvingDoubling => f.write_str("halving-doubling"),
            Self::DoubleBinaryTree => f.write_str("double-binary-tree"),
            Self::NcclTree => f.write_str("nccl-tree"),
            Self::BCube(base) => write!(f, "bcube:{base}"),
            Self::Chain => f.write_str("chain"),
            Self::Hierarchical(levels) => {
                let levels: Vec<_> = levels.iter().map(u32::to_string).collect();
                write!(f, "hierarchical:{}", levels.join("x"))
            }
        }
    }
}

impl FromStr for Model {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let unknown = || Error::UnknownModel { text: text.chars().take(64).collect() };
        let (name, parameter) = match text.split_once(':') {
            Some((name, parameter)) => (name, Some(parameter)),
            None => (text, None),
        };
        match (name, parameter) {
            ("ring", None) => Ok(Self::Ring),
            ("halving-doubling" | "hd", None) => Ok(Self::HalvingDoubling),
            ("double-binary-tree", None) => Ok(Self::DoubleBinaryTree),
            ("nccl-tree", None) => Ok(Self::NcclTree),
            ("chain", None) => Ok(Self::Chain),
            ("bcube", Some(base)) => match base.parse() {
                Ok(base) if base >= 2 => Ok(Self::BCube(base)),
                _ => Err(unknown()),
            },
            ("hierarchical", Some(levels)) => {
                let levels: Result<Vec<u32>, _> = levels.split('x').map(str::parse).collect();
                match levels {
                    Ok(levels) if levels.iter().all(|&level| level > 0) => {
                        Ok(Self::Hierarchical(levels))
                    }
                    _ => Err(unknown()),
                }
            }
            _ => Err(unknown()),
        }
    }
}

/// Returns the cost in picoseconds, with rank r at node `order[r]`.
///
/// # Errors
/// As for [`Evaluator::new`].
pub fn cost(links: Links<'_>, model: &Model, order: &[u32]) -> Result<u128, Error> {
    Ok(Evaluator::new(links, model, order)?.cost())
}

/// The cost of an order while ranks are swapped. A swap takes O(1) for ring and chain, O(log^2 n)
/// for halving-doubling, O(B^2 log n) for BCube, and O(log n) for trees.
#[derive(Debug, Clone)]
pub struct Evaluator<'a> {
    links: Links<'a>,
    order: Vec<u32>,
    form: Form,
    swaps: Vec<(u32, u32)>,
}

#[derive(Debug, Clone)]
enum Form {
    Ring(ring::Ring),
    Exchange(exchange::Exchange),
    Trees(Trees),
    Chain(chain::Chain),
}

/// Weight of the cost in [`Evaluator::energy`].
///
/// Only the slowest links change the cost, so a search sees plateaus (Cloud Collectives, section
/// V-C). The cost at mean times, with a weight of one, breaks ties.
const COST_WEIGHT: u128 = 32;

impl<'a> Evaluator<'a> {
    /// Makes an evaluator of `order`.
    ///
    /// # Errors
    /// Fails if the order is no permutation, or the model does not fit the number of nodes.
    pub fn new(links: Links<'a>, model: &Model, order: &[u32]) -> Result<Self, Error> {
        links.matrix().check_order(order)?;
        let nodes = links.len();
        let form = match model {
            Model::Ring => Form::Ring(ring::Ring::new(links, order)),
            Model::Chain => Form::Chain(chain::Chain::new(links, order)),
            Model::HalvingDoubling | Model::BCube(_) | Model::Hierarchical(_) => {
                Form::Exchange(exchange::Exchange::new(links, order, stages(model, nodes)?))
            }
            Model::DoubleBinaryTree | Model::NcclTree => {
                Form::Trees(Trees::new(links, order, pair_of_trees(model, nodes)))
            }
        };
        Ok(Self { links, order: order.to_vec(), form, swaps: Vec::new() })
    }

    /// Current order.
    pub fn order(&self) -> &[u32] {
        &self.order
    }

    /// Cost in picoseconds.
    pub fn cost(&self) -> u128 {
        match &self.form {
            Form::Ring(ring) => ring.cost(),
            Form::Exchange(exchange) => exchange.cost(),
            Form::Trees(trees) => trees.cost(),
            Form::Chain(chain) => chain.cost(self.links),
        }
    }

    /// Number that a search minimises: the weighted cost, plus the cost at mean times of the stages
    /// or trees.
    pub fn energy(&self) -> u128 {
        COST_WEIGHT * self.cost()
            + match &self.form {
                Form::Exchange(exchange) => exchange.mean(),
                Form::Trees(trees) => trees.mean(),
                Form::Ring(_) | Form::Chain(_) => 0,
            }
    }

    /// Swaps two ranks.
    ///
    /// # Panics
    /// If a rank does not exist.
    pub fn swap(&mut self, a: usize, b: usize) {
        if a != b {
            self.swaps.push((a as u32, b as u32));
            self.exchange(a, b);
        }
    }

    /// Reverses the ranks from `start` to `end`.
    pub fn reverse(&mut self, start: usize, end: usize) {
        for step in 0..end.saturating_sub(start) / 2 {
            self.swap(start + step, end - 1 - step);
        }
    }

    /// Swaps two blocks of ranks, which must not overlap.
    pub fn swap_blocks(&mut self, a: usize, b: usize, length: usize) {
        for step in 0..length {
            self.swap(a + step, b + step);
        }
    }

    /// Keeps the swaps since the last commit.
    pub fn commit(&mut self) {
        self.swaps.clear();
    }

    /// Undoes the swaps since the last commit.
    pub fn undo(&mut self) {
        while let Some((a, b)) = self.swaps.pop() {
            self.exchange(a as usize, b as usize);
        }
    }

    fn exchange(&mut self, a: usize, b: usize) {
        self.order.swap(a, b);
        for rank in [a, b] {
            match &mut self.form {
                Form::Ring(ring) => ring.moved(self.links, &self.order, rank),
                Form::Exchange(exchange) => exchange.moved(self.links, &self.order, rank),
                Form::Trees(trees) => trees.moved(self.links, &self.order, rank),
                Form::Chain(chain) => chain.moved(self.links, &self.order, rank),
            }
        }
    }
}
