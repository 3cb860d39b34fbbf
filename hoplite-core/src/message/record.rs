//! How reduces and collectives went, for those who ask.

use std::time::Duration;

use super::CopyId;
use crate::id::ObjectId;
use crate::plan::link::LinkEstimate;
use crate::reduce::ReduceOp;

/// How a reduce was planned, and how it went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReduceRecord {
    /// The object that it made.
    pub target: ObjectId,
    /// The operation.
    pub op: ReduceOp,
    /// The number of sources that were reduced, of how many.
    pub reduced: (usize, usize),
    /// The number of nodes that combined something, beside the receiver.
    pub hops: usize,
    /// The reason for which it was planned so: the schedule and what it was expected to take, and the best of the others.
    pub plan: String,
    /// What the links were taken for.
    pub link: LinkEstimate,
    /// The time that it took, from the call to the last byte.
    pub elapsed: Duration,
    /// How often it was mended.
    pub mendings: u32,
    /// How often the target had to be begun anew.
    pub restarts: u32,
    /// `true` if it still goes on.
    pub is_running: bool,
    /// How far this store is, if it is a member of a session that makes the target.
    pub position: Option<Position>,
}

impl ReduceRecord {
    /// Returns `true` if this store was a member of a session that has not made the target.
    pub fn has_failed(&self) -> bool {
        let short = |position: &Position| position.final_bytes < position.size_bytes;
        !self.is_running && self.position.as_ref().is_some_and(short)
    }
}

/// How far a member of a session is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
    /// Which member it is, in the order of the schedule, from 0.
    pub member: usize,
    /// Of so many.
    pub members: usize,
    /// What it does, or how it ended.
    pub stage: String,
    /// What it fills. What moves bytes knows how far, as long as that grows.
    pub copy: Option<CopyId>,
    /// How many bytes of what is made are final here.
    pub final_bytes: u64,
    /// The size of what is made.
    pub size_bytes: u64,
}
