//! Hops of a reduce, and the combinations that perform them.

use std::net::SocketAddr;
use std::time::Duration;

use super::CopyId;
use crate::dtype::Dtype;
use crate::error::Error;
use crate::id::{NodeId, ObjectId, PutId};
use crate::reduce::ReduceOp;
use crate::shard::PullOutcome;

/// One hop of a reduce: combines its inputs, element by element, into a new object, and serves that
/// object while it grows. Coordinator to the node that performs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hop {
    /// The private id of the output.
    pub output: ObjectId,
    /// The put id of the output.
    pub put: PutId,
    /// The operation on two elements.
    pub op: ReduceOp,
    /// The element type.
    pub dtype: Dtype,
    /// The size of the output, and of the range of each input.
    pub size_bytes: u64,
    /// The first byte of the output that is needed.
    pub offset_bytes: u64,
    /// The inputs, combined in this order: at most [`MAX_HOP_INPUTS`].
    pub inputs: Vec<HopInput>,
    /// The time that the hop may wait for room.
    pub timeout: Duration,
}

/// Most inputs of a hop that is performed for another node: their ids must fit in one message.
pub const MAX_HOP_INPUTS: usize = 64;

/// One input of a [`Hop`]: a range of an object somewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HopInput {
    /// The id of the object.
    pub id: ObjectId,
    /// The put of that id.
    pub put: PutId,
    /// The size of the whole object.
    pub size_bytes: u64,
    /// The offset in the object at which the range begins.
    pub base_bytes: u64,
    /// The node that has the object.
    pub node: NodeId,
    /// The address of the data plane of that node.
    pub address: SocketAddr,
    /// `true` if the object is the output of another hop, which may not have begun yet.
    pub is_hop: bool,
}

/// The report of a [`Hop`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HopReport {
    /// All bytes of the output are there.
    Complete,
    /// It ended without them.
    Failed(HopFailure),
}

/// The reason for which a [`Hop`] failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HopFailure {
    /// The node cannot be reached, or has been silent for too long.
    Unreachable,
    /// An input cannot be had.
    Input {
        /// The index of the input.
        index: usize,
        /// The outcome of the attempt to read it.
        outcome: PullOutcome,
    },
    /// The node cannot perform it.
    Refused(Error),
}

/// The place from which an input of a combination is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CombineInput {
    /// A local copy, as it grows.
    Local {
        /// The copy to read.
        copy: CopyId,
        /// The offset in the copy at which the range begins.
        base_bytes: u64,
    },
    /// Another node.
    Remote(HopInput),
}

/// The outcome of a combination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CombineOutcome {
    /// All bytes are there.
    Complete,
    /// It was cancelled.
    Cancelled,
    /// An input ended too soon.
    InputFailed {
        /// The index of the input.
        index: usize,
        /// The outcome of the transfer of the input.
        outcome: PullOutcome,
    },
}
