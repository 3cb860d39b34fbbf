//! The errors of models and orders.

use hoplite_core::topology::TopologyError;

/// The reason why a model, an order or an answer of a solver is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A matrix or an order is invalid.
    #[error(transparent)]
    Matrix(#[from] TopologyError),
    /// Halving-doubling pairs all ranks in each step, and therefore needs a power of two.
    #[error("halving-doubling needs a power of two of nodes, not {nodes}")]
    NotAPowerOfTwo {
        /// The number of nodes.
        nodes: usize,
    },
    /// The nodes cannot be divided into groups of at most `base`.
    #[error("{nodes} nodes have no factors of at most {base}, as BCube:{base} needs")]
    NoRadices {
        /// The number of nodes.
        nodes: usize,
        /// The size of the largest group.
        base: u32,
    },
    /// The product of the levels differs from the number of nodes.
    #[error("the product of the levels is {product}, not {nodes} nodes")]
    LevelsDoNotMatch {
        /// The product of the levels.
        product: u64,
        /// The number of nodes.
        nodes: usize,
    },
    /// The name or the parameter of a model is unknown.
    #[error(
        "unknown model {text:?}; the models are ring, halving-doubling, double-binary-tree, nccl-tree, bcube:B, chain, \
         hierarchical:AxB"
    )]
    UnknownModel {
        /// The text that is not a model.
        text: String,
    },
    /// There are more than [`smt::MAX_NODES`](crate::smt::MAX_NODES) nodes.
    #[error("{count} nodes are too many for an external solver")]
    TooManyForSolver {
        /// The number of nodes.
        count: usize,
    },
    /// The answer of the external solver has no order.
    #[error("the solver's model gives rank {rank} no node")]
    NoModel {
        /// The first rank without a node.
        rank: usize,
    },
}
