use std::net::SocketAddr;
use std::time::Duration;

use super::CopyId;
use crate::dtype::Dtype;
use crate::error::Error;
use crate::id::{NodeId, ObjectId, PutId};
use crate::reduce::ReduceOp;
use crate::shard::PullOutcome;

/// Step of a reduce: combines its inputs, element by element, into a new object, and serves it
/// while it grows.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Hop {
    /// Output's id, which only the hop's consumer pulls.
    pub output: ObjectId,
    pub put: PutId,
    pub op: ReduceOp,
    pub dtype: Dtype,
    /// Size of the output and of each input's range.
    pub size_bytes: u64,
    /// First byte to compute.
    pub offset_bytes: u64,
    /// At most [`MAX_HOP_INPUTS`], combined in this order.
    pub inputs: Vec<HopInput>,
    /// Time to wait for memory.
    pub timeout: Duration,
}

/// Most inputs of a hop: their ids must fit in one message.
pub const MAX_HOP_INPUTS: usize = 64;

/// Input: a range of an object at some node, from byte `base_bytes` on.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct HopInput {
    pub id: ObjectId,
    pub put: PutId,
    /// Size of the whole object.
    pub size_bytes: u64,
    pub base_bytes: u64,
    pub node: NodeId,
    pub address: SocketAddr,
    /// `true` for another hop's output, which may not have begun.
    pub is_hop: bool,
}

/// Report to the coordinator of a [`Hop`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum HopReport {
    Complete,
    Failed(HopFailure),
}

/// Reason why a [`Hop`] failed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum HopFailure {
    /// The node is unreachable, or has been silent for too long.
    Unreachable,
    Input {
        index: usize,
        outcome: PullOutcome,
    },
    Refused(Error),
}

#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum CombineInput {
    /// Copy that may still grow.
    Local {
        copy: CopyId,
        base_bytes: u64,
    },
    Remote(HopInput),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum CombineOutcome {
    Complete,
    Cancelled,
    /// An input ended before its last byte.
    InputFailed {
        index: usize,
        outcome: PullOutcome,
    },
}
