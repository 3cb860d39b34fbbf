//! The errors of this module: what can be wrong with its input.

use thiserror::Error;

use super::matrix::MAX_NODES;

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

/// Why a matrix, an order, a model or a system of switches is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// There is nothing to order.
    #[error("there are no nodes")]
    NoNodes,
    /// More than [`MAX_NODES`].
    #[error("{count} nodes are more than the {MAX_NODES} that a matrix may have")]
    TooManyNodes {
        /// How many nodes were given.
        count: usize,
    },
    /// A block of a matrix is empty, or there are more than [`MAX_BLOCKS`](super::blocks::MAX_BLOCKS), or not as many links as they need.
    #[error("{count} blocks of nodes that make no matrix")]
    BadBlocks {
        /// How many blocks there are.
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
        /// How many nodes there are.
        nodes: usize,
    },
    /// A row has too few or too many entries.
    #[error("row {row} of {quantity} has {entries} entries for {nodes} nodes")]
    NotSquare {
        /// The table.
        quantity: Quantity,
        /// The row, counted from zero.
        row: usize,
        /// How many entries the row has.
        entries: usize,
        /// How many nodes there are.
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
        /// How many entries the order has.
        entries: usize,
        /// How many nodes there are.
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
    /// Halving-doubling pairs all ranks in each step.
    #[error("halving-doubling needs a power of two of nodes, not {nodes}")]
    NotAPowerOfTwo {
        /// How many nodes there are.
        nodes: usize,
    },
    /// The nodes cannot be divided into groups of at most so many.
    #[error("{nodes} nodes have no factors of at most {base}, as BCube:{base} needs")]
    NoRadices {
        /// How many nodes there are.
        nodes: usize,
        /// The size of the largest group.
        base: u32,
    },
    /// The factors of a hierarchy do not multiply to the number of nodes.
    #[error("levels of {product} nodes are given for {nodes} nodes")]
    LevelsDoNotMatch {
        /// The product of the levels.
        product: u64,
        /// How many nodes there are.
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
    /// More than [`smt::MAX_NODES`](super::smt::MAX_NODES).
    #[error("{count} nodes are too many for an external solver")]
    TooManyForSolver {
        /// How many nodes there are.
        count: usize,
    },
    /// The external solver's answer holds no order.
    #[error("the solver's model gives rank {rank} no node")]
    NoModel {
        /// The first rank that it leaves open.
        rank: usize,
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
