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
    /// Time to end the session with a removed shard.
    Left(usize),
    Hop(HopOwner),
    Reduce(ObjectId),
    Drain,
    Spill,
    /// Time to delete an object after its time to live, or to repeat a failed delete.
    Lifetime(CopyId),
    Owner(Owner),
}

/// Message between the store's state machines, delivered after the current event.
#[derive(Debug)]
pub(crate) enum Notice {
    /// Answer to this store's own call, as [`ClientId::STORE`](crate::message::ClientId::STORE).
    Answer(CallId, Result<Response, Error>),
    BatchAnswered(CallKey),
    Report(HopId, HopReport),
    Changed(ObjectId),
    TargetPublished(ObjectId),
    /// The store has dropped a copy that was deleted, or a reduce's target.
    Gone(ObjectId, CopyId, Error),
    /// The reduce or collective has ended, with an error unless it succeeded.
    ReduceEnded(CallKey, ObjectId, Option<Error>),
    /// The target, the source's index, and the source's locations.
    SourceLocated(ObjectId, usize, Locations),
    /// A target's locations; empty if the directory does not know it.
    TargetLocated(Locations),
    /// A target was deleted before the directory had a put of it.
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
