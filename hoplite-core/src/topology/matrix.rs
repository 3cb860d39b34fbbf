//! The matrix of links: exact integer costs of a message of S bytes between each pair of nodes,
//! 1000 alpha_ns + S ps_per_byte picoseconds. Links are symmetric: the worse direction counts.
//!
//! Source: Cloud Collectives, sections IV-A and IV-B; the bandwidth term is ours.

use std::collections::BTreeSet;

use super::blocks::{Blocks, triangle_index, triangle_len};
pub use super::error::MAX_NODES;
use super::error::{BadEntry, Quantity, TopologyError};

/// Largest cost of a message in picoseconds: three days. The sums of `hoplite-topology`'s solver
/// then fit 64 bits.
const MAX_COST_PS: u64 = 1 << 58;
/// Longest node name in bytes. Host names (RFC 1035) are shorter.
pub const MAX_NAME_BYTES: usize = 255;

/// A link's cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Link {
    /// Time from the sending of a byte to its arrival, in nanoseconds.
    pub alpha_ns: u32,
    /// Time per byte in picoseconds.
    pub ps_per_byte: u32,
}

impl Link {
    fn worse(self, other: Self) -> Self {
        Self {
            alpha_ns: self.alpha_ns.max(other.alpha_ns),
            ps_per_byte: self.ps_per_byte.max(other.ps_per_byte),
        }
    }
}

/// Links of all pairs of nodes. With blocks, one link stands for all pairs between two blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Matrix {
    nodes: Vec<String>,
    /// In the order of [`Matrix::links`], a packed triangle without blocks.
    links: Vec<Link>,
    blocks: Option<Box<Blocks>>,
}

impl Matrix {
    /// Makes a matrix from two tables: row i, column j is for messages from node i to j. Rounds
    /// fractions, and ignores diagonals.
    ///
    /// # Errors
    /// Fails for invalid names, tables that are not square, and entries that are NaN or outside 0
    /// to 2^32 - 1.
    pub fn from_rows(
        nodes: Vec<String>,
        alpha_ns: &[Vec<f64>],
        ps_per_byte: &[Vec<f64>],
    ) -> Result<Self, TopologyError> {
        check_names(&nodes)?;
        check_shape(nodes.len(), alpha_ns, Quantity::AlphaNs)?;
        check_shape(nodes.len(), ps_per_byte, Quantity::PsPerByte)?;
        let direction = |row: usize, column: usize| {
            Ok(Link {
                alpha_ns: entry(alpha_ns, row, column, Quantity::AlphaNs)?,
                ps_per_byte: entry(ps_per_byte, row, column, Quantity::PsPerByte)?,
            })
        };
        Self::from_links(nodes, |row, column| {
            Ok(direction(row, column)?.worse(direction(column, row)?))
        })
    }

    /// Makes a matrix by calling `link` once per pair of nodes, the larger index first.
    ///
    /// # Errors
    /// Fails for invalid names, or if `link` fails.
    pub fn from_links(
        nodes: Vec<String>,
        mut link: impl FnMut(usize, usize) -> Result<Link, TopologyError>,
    ) -> Result<Self, TopologyError> {
        check_names(&nodes)?;
        let mut links = Vec::with_capacity(triangle_len(nodes.len()));
        for row in 1..nodes.len() {
            for column in 0..row {
                links.push(link(row, column)?);
            }
        }
        Ok(Self { nodes, links, blocks: None })
    }

    /// Makes a matrix of blocks, with links in the order of [`Blocks::links`].
    ///
    /// # Errors
    /// Fails for invalid names, or if the numbers of nodes or links do not match.
    pub fn from_blocks(
        nodes: Vec<String>,
        blocks: Blocks,
        links: Vec<Link>,
    ) -> Result<Self, TopologyError> {
        check_names(&nodes)?;
        if (nodes.len(), links.len()) != (blocks.nodes(), blocks.count_links()) {
            return Err(TopologyError::BadBlocks { count: blocks.len() });
        }
        Ok(Self { nodes, links, blocks: Some(Box::new(blocks)) })
    }

    /// Number of nodes, at least one.
    pub const fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns `false`: a matrix has nodes.
    pub const fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Nodes' names.
    pub fn nodes(&self) -> &[String] {
        &self.nodes
    }

    /// Returns the link between two nodes. A node's link to itself costs nothing.
    pub fn link(&self, a: usize, b: usize) -> Link {
        match &self.blocks {
            _ if a == b => Link::default(),
            None => self.links[triangle_index(a, b)],
            Some(blocks) => self.links[blocks.index(a, b)],
        }
    }

    /// Blocks of nodes, if the matrix has any.
    pub fn blocks(&self) -> Option<&Blocks> {
        self.blocks.as_deref()
    }

    /// Returns all links. With blocks, their order is that of [`Blocks::links`]. Otherwise, the
    /// link of nodes i and j, i > j, is number i (i - 1) / 2 + j.
    pub fn links(&self) -> impl Iterator<Item = Link> {
        self.links.iter().copied()
    }

    /// Checks that `order` contains each node once.
    ///
    /// # Errors
    /// Returns the first mistake.
    pub fn check_order(&self, order: &[u32]) -> Result<(), TopologyError> {
        if order.len() != self.len() {
            return Err(TopologyError::OrderLength { entries: order.len(), nodes: self.len() });
        }
        let mut is_seen = vec![false; self.len()];
        for (rank, &node) in order.iter().enumerate() {
            match is_seen.get_mut(node as usize) {
                Some(seen) if !*seen => *seen = true,
                _ => return Err(TopologyError::NotAPermutation { rank, node: node.into() }),
            }
        }
        Ok(())
    }
}

/// Costs of links for collectives of one size, each at most 2^58 picoseconds.
#[derive(Debug, Clone, Copy)]
pub struct Links<'a> {
    matrix: &'a Matrix,
    size_bytes: u64,
}

impl<'a> Links<'a> {
    /// Computes the costs for collectives on `size_bytes` bytes.
    ///
    /// # Errors
    /// Fails if a cost exceeds 2^58 picoseconds.
    pub fn new(matrix: &'a Matrix, size_bytes: u64) -> Result<Self, TopologyError> {
        let worst = matrix.links().fold(Link::default(), Link::worse);
        let cost = u64::from(worst.ps_per_byte)
            .checked_mul(size_bytes)
            .and_then(|bytes| bytes.checked_add(1000 * u64::from(worst.alpha_ns)))
            .filter(|&cost| cost <= MAX_COST_PS);
        cost.ok_or(TopologyError::CostTooLarge { size_bytes })?;
        Ok(Self { matrix, size_bytes })
    }

    /// Matrix.
    pub const fn matrix(&self) -> &'a Matrix {
        self.matrix
    }

    /// Collective's bytes at each node.
    pub const fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Number of nodes.
    pub const fn len(&self) -> usize {
        self.matrix.len()
    }

    /// Returns `false`: a matrix has nodes.
    pub const fn is_empty(&self) -> bool {
        self.matrix.is_empty()
    }

    /// Returns the cost in picoseconds of one message with all bytes.
    pub fn whole(&self, a: u32, b: u32) -> u64 {
        let link = self.matrix.link(a as usize, b as usize);
        1000 * u64::from(link.alpha_ns) + self.size_bytes * u64::from(link.ps_per_byte)
    }

    /// Returns the exact cost in picoseconds of `parts` messages that carry all bytes in equal
    /// parts. `parts` is at most the number of nodes.
    pub fn all_parts(&self, a: u32, b: u32, parts: u64) -> u64 {
        let link = self.matrix.link(a as usize, b as usize);
        parts * (1000 * u64::from(link.alpha_ns)) + self.size_bytes * u64::from(link.ps_per_byte)
    }

    /// Returns the cost in picoseconds of one of `parts` equal messages, rounded down.
    pub fn part(&self, a: u32, b: u32, parts: u64) -> u64 {
        self.all_parts(a, b, parts) / parts
    }
}

fn check_names(nodes: &[String]) -> Result<(), TopologyError> {
    match nodes.len() {
        0 => return Err(TopologyError::NoNodes),
        count if count > MAX_NODES => return Err(TopologyError::TooManyNodes { count }),
        _ => {}
    }
    let mut seen = BTreeSet::new();
    for (index, name) in nodes.iter().enumerate() {
        if name.is_empty() || name.len() > MAX_NAME_BYTES || name.contains(char::is_control) {
            return Err(TopologyError::BadName { index });
        }
        if !seen.insert(name) {
            return Err(TopologyError::DuplicateNode { name: name.clone() });
        }
    }
    Ok(())
}

fn check_shape(nodes: usize, rows: &[Vec<f64>], quantity: Quantity) -> Result<(), TopologyError> {
    if rows.len() != nodes {
        return Err(TopologyError::RowCount { quantity, rows: rows.len(), nodes });
    }
    match rows.iter().position(|row| row.len() != nodes) {
        Some(row) => {
            Err(TopologyError::NotSquare { quantity, row, entries: rows[row].len(), nodes })
        }
        None => Ok(()),
    }
}

fn entry(
    rows: &[Vec<f64>],
    row: usize,
    column: usize,
    quantity: Quantity,
) -> Result<u32, TopologyError> {
    let number = rows[row][column];
    let entry = if number.is_nan() {
        BadEntry::Missing
    } else if number < 0.0 {
        BadEntry::Negative
    } else if number.round() > f64::from(u32::MAX) {
        BadEntry::TooLarge
    } else {
        return Ok(number.round() as u32);
    };
    Err(TopologyError::BadEntry { quantity, row, column, entry })
}
