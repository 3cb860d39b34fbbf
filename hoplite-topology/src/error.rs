//! What can go wrong with models and orders.

use hoplite_core::topology::TopologyError;

/// The reason for which a model, an order or an answer of a solver is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A matrix or an order is wrong.
    #[error(transparent)]
    Matrix(#[from] TopologyError),
    /// Halving-doubling pairs all ranks in each step.
    #[error("halving-doubling needs a power of two of nodes, not {nodes}")]
    NotAPowerOfTwo {
        /// The number of nodes.
        nodes: usize,
    },
    /// The nodes cannot be divided into groups of at most so many.
    #[error("{nodes} nodes have no factors of at most {base}, as BCube:{base} needs")]
    NoRadices {
        /// The number of nodes.
        nodes: usize,
        /// The size of the largest group.
        base: u32,
    },
    /// The factors of a hierarchy do not multiply to the number of nodes.
    #[error("levels of {product} nodes are given for {nodes} nodes")]
    LevelsDoNotMatch {
        /// The product of the levels.
        product: u64,
        /// The number of nodes.
        nodes: usize,
    },
    /// A model's name, or its parameter, is none of those known.
    #[error(
        "no model {text:?}; known are ring, halving-doubling, double-binary-tree, nccl-tree, bcube:B, chain, \
         hierarchical:AxB"
    )]
    UnknownModel {
        /// The text that names no model.
        text: String,
    },
    /// More than [`smt::MAX_NODES`](crate::smt::MAX_NODES).
    #[error("{count} nodes are too many for an external solver")]
    TooManyForSolver {
        /// The number of nodes.
        count: usize,
    },
    /// The external solver's answer holds no order.
    #[error("the solver's model gives rank {rank} no node")]
    NoModel {
        /// The first rank that it leaves open.
        rank: usize,
    },
}
