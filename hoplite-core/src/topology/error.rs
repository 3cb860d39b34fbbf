//! Errors for invalid input.

use thiserror::Error;

/// Most nodes of a matrix, whose links then take 400 MB. Labels or measured places describe larger
/// clusters.
pub const MAX_NODES: usize = 10_000;

/// A quantity that describes a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantity {
    /// Nanoseconds from a byte's sending to its arrival.
    AlphaNs,
    /// Picoseconds per byte.
    PsPerByte,
}

impl std::fmt::Display for Quantity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::AlphaNs => "alpha_ns",
            Self::PsPerByte => "ps_per_byte",
        })
    }
}

/// Reason why a matrix or an order of nodes is invalid.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say it")]
pub enum TopologyError {
    #[error("there are no nodes")]
    NoNodes,
    #[error("{count} nodes are more than the {MAX_NODES} that a matrix may have")]
    TooManyNodes {
        /// Number of nodes.
        count: usize,
    },
    /// A block is empty, there are more than [`MAX_BLOCKS`](super::blocks::MAX_BLOCKS), or the
    /// number of links does not match.
    #[error("{count} blocks of nodes do not form a matrix")]
    BadBlocks {
        /// Number of blocks.
        count: usize,
    },
    #[error("node {name:?} is named twice")]
    DuplicateNode { name: String },
    #[error("the name of node {index} is empty, too long, or has control characters")]
    BadName {
        /// Node's index.
        index: usize,
    },
    #[error("{quantity} has {rows} rows for {nodes} nodes")]
    RowCount { quantity: Quantity, rows: usize, nodes: usize },
    #[error("row {row} of {quantity} has {entries} entries for {nodes} nodes")]
    NotSquare { quantity: Quantity, row: usize, entries: usize, nodes: usize },
    #[error("{quantity} from node {row} to node {column} is {entry}")]
    BadEntry {
        quantity: Quantity,
        /// Sender.
        row: usize,
        /// Receiver.
        column: usize,
        entry: BadEntry,
    },
    /// The cost of a message on some link exceeds 2^58 picoseconds.
    #[error("{size_bytes} bytes over the slowest link take more than three days")]
    CostTooLarge {
        /// Message's size.
        size_bytes: u64,
    },
    #[error("the order has {entries} entries for {nodes} nodes")]
    OrderLength {
        /// Order's length.
        entries: usize,
        nodes: usize,
    },
    #[error("the order is not a permutation: entry {rank} is {node}")]
    NotAPermutation {
        /// Entry's rank.
        rank: usize,
        node: u64,
    },
}

/// Mistake in an entry of a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum BadEntry {
    /// The entry is absent or NaN.
    #[error("missing or not a number")]
    Missing,
    /// The entry is below zero.
    #[error("negative")]
    Negative,
    /// The entry does not fit 32 bits.
    #[error("too large")]
    TooLarge,
}
