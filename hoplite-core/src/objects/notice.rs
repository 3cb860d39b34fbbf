//! Deadlines of machines, notices between machines, and waiters for memory.

use crate::collective::MembershipId;
use crate::error::Error;
use crate::id::ObjectId;
use crate::lifetime::Owner;
use crate::message::{CallId, CallKey, CopyId, HopId, HopOwner, HopReport, Response};
use crate::shard::Locations;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Deadline {
    Call(CallKey),
    Retry(ObjectId),
    Republish(CopyId),
    Settled,
    Trusted(usize),
    /// The end of the session with a shard that was removed from the list.
    Left(usize),
    Hop(HopOwner),
    Reduce(ObjectId),
    Drain,
    Spill,
    /// The end of a time to live, or the next attempt to delete.
    Lifetime(CopyId),
    Owner(Owner),
}

/// A message to machines of the same level or of higher levels. The router delivers it after the
/// current event is complete, so no machine is entered while its state is half changed.
#[derive(Debug)]
pub(crate) enum Notice {
    /// The answer to a call of [`ClientId::STORE`](crate::message::ClientId::STORE).
    Answer(CallId, Result<Response, Error>),
    BatchAnswered(CallKey),
    /// The report on a hop that this store both coordinates and performs.
    Report(HopId, HopReport),
    Changed(ObjectId),
    TargetPublished(ObjectId),
    /// A deleted copy or a reduce's target has left the index.
    Gone(ObjectId, CopyId, Error),
    /// A reduce's or collective's call has ended, with an error unless it was answered.
    ReduceEnded(CallKey, ObjectId, Option<Error>),
    /// A source's locations, with the source's index in the request for the target.
    SourceLocated(ObjectId, usize, Locations),
    /// A target's locations; empty if it is unknown.
    TargetLocated(Locations),
    /// A target was deleted that the directory does not know yet.
    TargetDeleted(ObjectId),
    TargetLacksRoom(ObjectId),
    QueryFailed(ObjectId, Error),
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SpaceWaiter {
    Create(CallKey),
    Fetch(ObjectId),
    Hop(HopOwner),
    Target(ObjectId),
    Membership(MembershipId),
    Load(CopyId),
}
