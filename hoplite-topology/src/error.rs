use hoplite_core::topology::TopologyError;

/// Reason why a cost model, order of ranks or SMT solver's answer is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say it")]
pub enum Error {
    #[error(transparent)]
    Matrix(#[from] TopologyError),
    #[error("halving-doubling needs a power of two of nodes, not {nodes}")]
    NotAPowerOfTwo { nodes: usize },
    #[error("{nodes} nodes have no factors of at most {base}, as BCube:{base} needs")]
    NoRadices {
        nodes: usize,
        /// Largest group.
        base: u32,
    },
    #[error("the product of the levels is {product}, not {nodes} nodes")]
    LevelsDoNotMatch {
        /// Product of the levels' sizes.
        product: u64,
        nodes: usize,
    },
    #[error(
        "unknown model {text:?}; the models are ring, halving-doubling, double-binary-tree, nccl-tree, bcube:B, chain, \
         hierarchical:AxB"
    )]
    UnknownModel { text: String },
    #[error("{count} nodes are too many for an external solver")]
    TooManyForSolver {
        /// Number of nodes.
        count: usize,
    },
    #[error("the solver's model gives rank {rank} no node")]
    NoModel {
        /// Lowest rank to which the solver's answer assigns no node.
        rank: usize,
    },
}
