//! The progress of a drain.

use crate::id::ObjectId;
use crate::shard::Obstacle;

/// Most objects that a report of a drain lists.
pub const MAX_UNMOVED: usize = 1000;

/// The state of a drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum DrainState {
    /// The store does not drain, and has not drained.
    #[default]
    None,
    /// The store moves its pinned copies, and waits for calls.
    Draining,
    /// Every object has enough copies at other stores.
    Drained,
    /// Some objects could not be moved.
    Failed,
}

/// The progress of a drain, or its result.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DrainReport {
    /// The state of the drain.
    pub state: DrainState,
    /// The number of objects that other stores have now.
    pub moved_objects: u64,
    /// The size of these objects.
    pub moved_bytes: u64,
    /// The number of objects that have to move.
    pub left_objects: u64,
    /// The size of these objects.
    pub left_bytes: u64,
    /// The number of calls from before the drain that are not answered yet.
    pub open_calls: u64,
    /// The objects that have to move, at most [`MAX_UNMOVED`].
    pub unmoved: Vec<Unmoved>,
}

/// An object that a store has not moved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unmoved {
    /// The object.
    pub id: ObjectId,
    /// The size of the object.
    pub size_bytes: u64,
    /// The reason, if the directory has told one.
    pub obstacle: Option<Obstacle>,
}
