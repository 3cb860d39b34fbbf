//! The request for a reduce.

use std::collections::BTreeSet;
use std::time::Duration;

use super::error::Error;
use super::id::ObjectId;
use super::local::ByteRange;
use super::op::ReduceOp;

/// A request for a reduce.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reduce {
    /// The object to make.
    pub target: ObjectId,
    /// The objects to combine, without duplicates. They need not exist yet.
    pub sources: Vec<ObjectId>,
    /// The number of sources to combine, as they become ready.
    pub count: usize,
    /// The operation.
    pub op: ReduceOp,
    /// The operands' order.
    pub order: ReduceOrder,
    /// The part of each source to combine, aligned to elements; `None` for all. The plan assumes
    /// that the other parts are reduced at the same time.
    pub range: Option<ByteRange>,
    /// The timeout.
    pub timeout: Duration,
}

impl Reduce {
    /// Checks a reduce before any source exists.
    ///
    /// # Errors
    /// [`Error::DuplicateId`], which names the id; [`Error::InvalidRequest`].
    pub fn check(&self) -> Result<(), Error> {
        if self.sources.is_empty() {
            return Err(Error::invalid_request("a reduce of no objects"));
        }
        if !(1..=self.sources.len()).contains(&self.count) {
            return Err(Error::invalid_request("cannot reduce no objects, or more than there are sources"));
        }
        let mut named = BTreeSet::from([&self.target]);
        if let Some(id) = self.sources.iter().find(|id| !named.insert(id)) {
            return Err(Error::DuplicateId { id: id.clone() });
        }
        match self.range {
            Some(range) if range.offset_bytes.checked_add(range.length_bytes).is_none() => {
                Err(Error::invalid_request("the range ends beyond the largest offset"))
            }
            _ => Ok(()),
        }
    }
}

/// The order of combining sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ReduceOrder {
    /// Combine in the order of readiness and topology. Sums and products of floats may differ by
    /// rounding.
    #[default]
    Any,
    /// Combine in the order of the request, from left to right: the same bits in every run.
    Fixed,
}
