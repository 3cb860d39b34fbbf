//! Records of reduces and collectives, for people and tools.

use std::time::Duration;

use super::CopyId;
use crate::id::ObjectId;
use crate::plan::link::LinkEstimate;
use crate::reduce::ReduceOp;

/// The plan and the course of a reduce.
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
    /// The plan in words: the schedule, its estimated time, and the runner-up.
    pub plan: String,
    /// The estimate for links.
    pub link: LinkEstimate,
    /// The time that it took, from the call to the last byte.
    pub elapsed: Duration,
    /// The number of repairs.
    pub mendings: u32,
    /// The number of times that the target was superseded.
    pub restarts: u32,
    /// `true` if it still goes on.
    pub is_running: bool,
    /// The progress of this store, if it is a member of the session that makes the target.
    pub position: Option<Position>,
}

impl ReduceRecord {
    /// Returns `true` if this store was a member of a session that has not made the target.
    pub fn has_failed(&self) -> bool {
        let short = |position: &Position| position.final_bytes < position.size_bytes;
        !self.is_running && self.position.as_ref().is_some_and(short)
    }
}

/// The progress of a member of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
    /// The index of the member in the order of the schedule.
    pub member: usize,
    /// The number of members.
    pub members: usize,
    /// The stage of the member, in words.
    pub stage: String,
    /// The copy that it fills. The data plane knows the progress of the copy while it grows.
    pub copy: Option<CopyId>,
    /// The number of bytes of the result that are final here.
    pub final_bytes: u64,
    /// The size of the result.
    pub size_bytes: u64,
}
