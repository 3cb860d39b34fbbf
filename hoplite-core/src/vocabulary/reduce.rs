//! Request for a reduce.

use std::collections::BTreeSet;
use std::time::Duration;

use super::error::Error;
use super::id::ObjectId;
use super::local::ByteRange;
use super::op::ReduceOp;

/// A request to combine source objects, element by element, into a target object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reduce {
    /// Object to make.
    pub target: ObjectId,
    /// Objects to combine, without duplicates. They need not exist yet.
    pub sources: Vec<ObjectId>,
    /// Number of sources to combine: the first ones that become ready.
    pub count: usize,
    /// Operation on elements.
    pub op: ReduceOp,
    /// Order in which sources are combined.
    pub order: ReduceOrder,
    /// Range of each source, aligned to elements; `None` for whole sources. The store plans as if
    /// concurrent reduces combined the other ranges.
    pub range: Option<ByteRange>,
    /// Number of pinned copies of the target, each on another node. Zero means the store's
    /// default.
    pub replicas: u8,
    /// Time until the reduce fails.
    pub timeout: Duration,
}

impl Reduce {
    /// Checks the request without looking at its sources.
    ///
    /// # Errors
    /// [`Error::DuplicateId`] if two sources, or a source and the target, have the same id.
    /// [`Error::InvalidRequest`] for a wrong count or range.
    pub fn check(&self) -> Result<(), Error> {
        if self.sources.is_empty() {
            return Err(Error::invalid_request("a reduce of no objects"));
        }
        if !(1..=self.sources.len()).contains(&self.count) {
            return Err(Error::invalid_request(
                "cannot reduce no objects, or more than there are sources",
            ));
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

/// Order in which a reduce combines its sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ReduceOrder {
    /// Order of readiness and topology. Sums and products of floats may differ between runs by
    /// rounding.
    #[default]
    Any,
    /// Order of the request, from left to right: the same bits in every run.
    Fixed,
}
