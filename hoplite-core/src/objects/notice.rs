//! Deadlines and notices of a store's state machines, and waiters for memory.

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
    /// The end of the session with a removed shard.
    Left(usize),
    Hop(HopOwner),
    Reduce(ObjectId),
    Drain,
    Spill,
    /// The end of a time to live, or the next attempt to delete.
    Lifetime(CopyId),
    Owner(Owner),
}

/// A message between the store's state machines. The router delivers it after the current event is
/// complete, so no machine is called while its state is half changed.
#[derive(Debug)]
pub(crate) enum Notice {
    /// The answer to this store's own call, as
    /// [`ClientId::STORE`](crate::message::ClientId::STORE).
    Answer(CallId, Result<Response, Error>),
    BatchAnswered(CallKey),
    /// The report on a hop that this store both coordinates and performs.
    Report(HopId, HopReport),
    Changed(ObjectId),
    TargetPublished(ObjectId),
    /// The store has dropped a deleted copy, or a reduce's target.
    Gone(ObjectId, CopyId, Error),
    /// Carries an error unless the reduce or collective succeeded.
    ReduceEnded(CallKey, ObjectId, Option<Error>),
    /// The target, the source's index, and the source's locations.
    SourceLocated(ObjectId, usize, Locations),
    /// Empty for an unknown target.
    TargetLocated(Locations),
    /// A target was deleted before the directory knew it.
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
