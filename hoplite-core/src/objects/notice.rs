//! Deadlines of machines, notices between machines, and waiters for room.

use crate::collective::MembershipId;
use crate::error::Error;
use crate::id::ObjectId;
use crate::lifetime::Owner;
use crate::message::{CallId, CallKey, CopyId, HopId, HopOwner, HopReport, Response};
use crate::shard::Locations;

/// The thing that is due at a deadline.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Deadline {
    Call(CallKey),
    Retry(ObjectId),
    Republish(CopyId),
    Settled,
    Hop(HopOwner),
    Reduce(ObjectId),
    Drain,
    Spill,
    /// The end of a time to live, or the next attempt to delete.
    Lifetime(CopyId),
    /// The end of the grace period of an owner.
    Owner(Owner),
}

/// A message from a machine to machines of the same level or of higher levels. The router delivers
/// notices after the current event is complete, so no machine is entered while its own state is
/// half changed.
#[derive(Debug)]
pub(crate) enum Notice {
    /// The answer to a call of [`ClientId::STORE`](crate::message::ClientId::STORE).
    Answer(CallId, Result<Response, Error>),
    /// Every item of a batch is answered.
    BatchAnswered(CallKey),
    /// The report of a hop that this store both directs and performs.
    Report(HopId, HopReport),
    /// The copies of an object have changed; calls may wait for that.
    Changed(ObjectId),
    /// The directory has accepted a target that is being made.
    TargetPublished(ObjectId),
    /// A copy that was deleted, or was the target of a reduce, has left the index.
    Gone(ObjectId, CopyId, Error),
    /// The call of a reduce or a collective has ended, with an error unless it was answered.
    ReduceEnded(CallKey, ObjectId, Option<Error>),
    /// The directory told where a source is, by its place in the request for the target.
    SourceLocated(ObjectId, usize, Locations),
    /// The directory told where a target is, or that it is unknown.
    TargetLocated(Locations),
    /// A target was deleted that the directory does not know yet.
    TargetDeleted(ObjectId),
    /// The target of a reduce waits for room.
    TargetLacksRoom(ObjectId),
    /// The directory cannot answer a query about a target or one of its sources.
    QueryFailed(ObjectId, Error),
}

/// A call or a transfer that waits for room.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SpaceWaiter {
    Create(CallKey),
    Fetch(ObjectId),
    Hop(HopOwner),
    Target(ObjectId),
    Membership(MembershipId),
    /// A copy in a spill file.
    Load(CopyId),
}
