use std::time::Duration;

use crate::id::ObjectId;
use crate::lifetime::Owner;

/// Most copies examined for one page of [`Ownerless`] objects, which bounds the wait of clients.
pub const MAX_SEARCHED_COPIES: usize = 10_000;

/// Rest of an object's lifetime, at the store that will delete it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LifetimeReport {
    /// `true` if no connected client holds the object's owner name.
    pub is_owner_gone: bool,
    /// Rest of the time to live, if it has begun.
    pub expires_in: Option<Duration>,
    /// Rest of the grace period of an ownerless object; zero during its delete.
    pub deleted_in: Option<Duration>,
}

/// Object whose owner is gone or, without a lifetime, whose client has disconnected.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub struct Ownerless {
    /// Object.
    pub id: ObjectId,
    pub size_bytes: u64,
    pub owner: Option<Owner>,
}

/// One page of ownerless objects.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OwnerlessPage {
    /// Sorted by id.
    pub objects: Vec<Ownerless>,
    /// Last id before the next page; `None` at the end.
    pub next: Option<ObjectId>,
}
