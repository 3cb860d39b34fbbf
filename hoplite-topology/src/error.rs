//! The errors of models and orders.

use hoplite_core::topology::TopologyError;

/// The reason why a model, order or answer is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say it")]
pub enum Error {
    /// An invalid matrix or order.
    #[error(transparent)]
    Matrix(#[from] TopologyError),
    /// Halving-doubling pairs all ranks, so it needs a power of two.
    #[error("halving-doubling needs a power of two of nodes, not {nodes}")]
    NotAPowerOfTwo { nodes: usize },
    /// The number of nodes has a prime factor above `base`.
    #[error("{nodes} nodes have no factors of at most {base}, as BCube:{base} needs")]
    NoRadices {
        nodes: usize,
        /// The largest group.
        base: u32,
    },
    /// The product of the levels' sizes is not the number of nodes.
    #[error("the product of the levels is {product}, not {nodes} nodes")]
    LevelsDoNotMatch {
        /// The product of the levels.
        product: u64,
        nodes: usize,
    },
    /// An unknown model or parameter.
    #[error(
        "unknown model {text:?}; the models are ring, halving-doubling, double-binary-tree, nccl-tree, bcube:B, chain, \
         hierarchical:AxB"
    )]
    UnknownModel { text: String },
    /// More than [`smt::MAX_NODES`](crate::smt::MAX_NODES) nodes.
    #[error("{count} nodes are too many for an external solver")]
    TooManyForSolver {
        /// The number of nodes.
        count: usize,
    },
    /// A solver's answer that contains no complete order.
    #[error("the solver's model gives rank {rank} no node")]
    NoModel {
        /// The lowest rank to which the answer assigns no node.
        rank: usize,
    },
}
