//! What machines set deadlines for, what they tell machines of higher levels, and what waits for room.

use crate::collective::MembershipId;
use crate::error::Error;
use crate::id::ObjectId;
use crate::message::{CallId, CallKey, CopyId, HopId, HopOwner, HopReport, Response};

/// What is due at a deadline.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Deadline {
    Call(CallKey),
    Retry(ObjectId),
    Republish(CopyId),
    Hop(HopOwner),
    Reduce(ObjectId),
    Membership(MembershipId),
    Join(CallKey),
}

/// What one part of the node tells another. It is delivered when the part that tells it is done with the present event, so
/// that nobody is found in the middle of a change.
#[derive(Debug)]
pub(crate) enum Notice {
    /// The answer to a call of [`ClientId::STORE`](crate::message::ClientId::STORE).
    Answer(CallId, Result<Response, Error>),
    /// How a hop goes that this store both directs and performs.
    Report(HopId, HopReport),
    /// The copies of an object have changed; calls may wait for that.
    Changed(ObjectId),
    /// The target of a reduce was in this copy, which was deleted, or given up.
    TargetGone(ObjectId, CopyId, Error),
    /// The call has ended that a reduce is for.
    ReduceUnwanted(CallKey, ObjectId),
}

/// A call or a transfer that waits for room.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SpaceWaiter {
    Create(CallKey),
    Fetch(ObjectId),
    Hop(HopOwner),
    Target(ObjectId),
    Membership(MembershipId),
}
