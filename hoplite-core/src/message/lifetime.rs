//! Reports about the ends of objects.

use std::time::Duration;

use crate::id::ObjectId;
use crate::lifetime::Owner;

/// Most copies that a store searches for one page of ownerless objects. It bounds the time for which
/// the store serves no client.
pub const MAX_SEARCHED_COPIES: usize = 10_000;

/// The end of an object at the store that ends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LifetimeReport {
    /// `true` if no client holds the owner of the object.
    pub is_owner_gone: bool,
    /// The rest of the time to live, if it runs.
    pub expires_in: Option<Duration>,
    /// The rest of the grace period of an owner that is gone; zero while the object is being deleted.
    pub deleted_in: Option<Duration>,
}

/// An object that was put at the store and has lost its client: the owner is gone, or the object has no
/// lifetime and the client of its put is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ownerless {
    /// The object.
    pub id: ObjectId,
    /// Its size.
    pub size_bytes: u64,
    /// The owner that is gone, if the object has one.
    pub owner: Option<Owner>,
}

/// One page of ownerless objects.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OwnerlessPage {
    /// The objects, in the order of their ids.
    pub objects: Vec<Ownerless>,
    /// The id after which the next page begins; `None` for the last page.
    pub next: Option<ObjectId>,
}
