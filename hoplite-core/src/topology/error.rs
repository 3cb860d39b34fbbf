//! The errors of this module, for invalid input.

use thiserror::Error;

/// Most nodes of a matrix. All pairs of this many nodes take 400 MB. Places describe larger
/// clusters.
pub const MAX_NODES: usize = 10_000;

/// One of the two numbers of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantity {
    /// Nanoseconds from the sending of a byte to its arrival.
    AlphaNs,
    /// Picoseconds per byte on the link.
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

/// The reason why a matrix, an order, a model or a system of switches is invalid.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// The input has no nodes.
    #[error("there are no nodes")]
    NoNodes,
    /// There are more than [`MAX_NODES`] nodes.
    #[error("{count} nodes are more than the {MAX_NODES} that a matrix may have")]
    TooManyNodes {
        /// The number of nodes.
        count: usize,
    },
    /// A block of a matrix is empty, there are more than [`MAX_BLOCKS`](super::blocks::MAX_BLOCKS)
    /// blocks, or the number of links is wrong.
    #[error("{count} blocks of nodes do not form a matrix")]
    BadBlocks {
        /// The number of blocks.
        count: usize,
    },
    /// Two rows have the same name.
    #[error("node {name:?} is named twice")]
    DuplicateNode {
        /// The duplicate name.
        name: String,
    },
    /// A name is empty, is longer than [`MAX_NAME_BYTES`](super::matrix::MAX_NAME_BYTES), or
    /// contains control characters.
    #[error("the name of node {index} is empty, too long, or has control characters")]
    BadName {
        /// The index of the node, from zero.
        index: usize,
    },
    /// The number of rows differs from the number of nodes.
    #[error("{quantity} has {rows} rows for {nodes} nodes")]
    RowCount {
        /// The table.
        quantity: Quantity,
        /// The number of rows of the table.
        rows: usize,
        /// The number of nodes.
        nodes: usize,
    },
    /// A row has too few or too many entries.
    #[error("row {row} of {quantity} has {entries} entries for {nodes} nodes")]
    NotSquare {
        /// The table.
        quantity: Quantity,
        /// The row, from zero.
        row: usize,
        /// The number of entries of the row.
        entries: usize,
        /// The number of nodes.
        nodes: usize,
    },
    /// An entry outside the diagonal is missing, is not a number, is negative, or does not fit 32
    /// bits.
    #[error("{quantity} from node {row} to node {column} is {entry}")]
    BadEntry {
        /// The table.
        quantity: Quantity,
        /// The sender.
        row: usize,
        /// The receiver.
        column: usize,
        /// The mistake in the entry.
        entry: BadEntry,
    },
    /// A message of this size takes more than 2^58 picoseconds over the slowest link.
    #[error("{size_bytes} bytes over the slowest link take more than three days")]
    CostTooLarge {
        /// The size of the message.
        size_bytes: u64,
    },
    /// An order has too few or too many entries.
    #[error("the order has {entries} entries for {nodes} nodes")]
    OrderLength {
        /// The number of entries of the order.
        entries: usize,
        /// The number of nodes.
        nodes: usize,
    },
    /// An order contains a node twice, or a node that does not exist.
    #[error("the order is not a permutation: entry {rank} is {node}")]
    NotAPermutation {
        /// The rank of the wrong entry.
        rank: usize,
        /// The entry: a duplicate node, or a node that does not exist.
        node: u64,
    },
}

/// The mistake in an entry of a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum BadEntry {
    /// The entry is not there, or is NaN.
    #[error("missing or not a number")]
    Missing,
    /// The entry is below zero.
    #[error("negative")]
    Negative,
    /// The entry is infinite, or does not fit 32 bits.
    #[error("too large")]
    TooLarge,
}
