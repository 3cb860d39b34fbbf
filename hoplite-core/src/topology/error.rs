//! The errors of this module: what can be wrong with its input.

use thiserror::Error;

/// A matrix of all pairs of so many nodes takes 400 MB. Larger clusters are described by places, not by pairs.
pub const MAX_NODES: usize = 10_000;

/// One of the two numbers of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantity {
    /// Nanoseconds from the sending of a byte to its arrival.
    AlphaNs,
    /// Picoseconds that each byte takes on the link.
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

/// The reason for which a matrix, an order, a model or a system of switches is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// There is nothing to order.
    #[error("there are no nodes")]
    NoNodes,
    /// More than [`MAX_NODES`].
    #[error("{count} nodes are more than the {MAX_NODES} that a matrix may have")]
    TooManyNodes {
        /// The number of nodes that were given.
        count: usize,
    },
    /// A block of a matrix is empty, or there are more than [`MAX_BLOCKS`](super::blocks::MAX_BLOCKS), or not as many links as they need.
    #[error("{count} blocks of nodes that make no matrix")]
    BadBlocks {
        /// The number of blocks.
        count: usize,
    },
    /// Two rows have one name.
    #[error("node {name:?} is named twice")]
    DuplicateNode {
        /// The name that occurs twice.
        name: String,
    },
    /// A name is empty, longer than [`MAX_NAME_BYTES`](super::matrix::MAX_NAME_BYTES), or has control characters.
    #[error("the name of node {index} is empty, too long, or has control characters")]
    BadName {
        /// The index of the node, counted from zero.
        index: usize,
    },
    /// The number of rows is not that of the nodes.
    #[error("{quantity} has {rows} rows for {nodes} nodes")]
    RowCount {
        /// The table.
        quantity: Quantity,
        /// How many rows the table has.
        rows: usize,
        /// The number of nodes.
        nodes: usize,
    },
    /// A row has too few or too many entries.
    #[error("row {row} of {quantity} has {entries} entries for {nodes} nodes")]
    NotSquare {
        /// The table.
        quantity: Quantity,
        /// The row, counted from zero.
        row: usize,
        /// The number of entries that the row has.
        entries: usize,
        /// The number of nodes.
        nodes: usize,
    },
    /// An entry off the diagonal is missing, not a number, negative, or does not fit 32 bits.
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
    /// Sending so much over the slowest link takes more than 2^58 picoseconds.
    #[error("{size_bytes} bytes over the slowest link take more than three days")]
    CostTooLarge {
        /// The size of the message.
        size_bytes: u64,
    },
    /// An order has too few or too many entries.
    #[error("the order has {entries} entries for {nodes} nodes")]
    OrderLength {
        /// The number of entries that the order has.
        entries: usize,
        /// The number of nodes.
        nodes: usize,
    },
    /// An order names a node twice, or one that does not exist.
    #[error("the order is no permutation: entry {rank} is {node}")]
    NotAPermutation {
        /// The rank of the wrong entry.
        rank: usize,
        /// The entry: a node that is there twice or does not exist.
        node: u64,
    },
}

/// The mistake in an entry of a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum BadEntry {
    /// It is not there, or it is NaN.
    #[error("missing or not a number")]
    Missing,
    /// It is below zero.
    #[error("negative")]
    Negative,
    /// It is infinite, or does not fit 32 bits.
    #[error("too large")]
    TooLarge,
}
