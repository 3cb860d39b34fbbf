use crate::id::ObjectId;
use crate::shard::Obstacle;

/// Most objects in [`DrainReport::unmoved`].
pub const MAX_UNMOVED: usize = 1000;

/// State of a store's evacuation (drain).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum DrainState {
    /// Neither draining nor drained.
    #[default]
    None,
    /// Moves pinned copies away, and waits for open calls.
    Draining,
    /// Other stores have enough copies.
    Drained,
    /// Some objects did not move.
    Failed,
}

/// Progress of a drain, or its result.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "the names say it")]
pub struct DrainReport {
    pub state: DrainState,
    /// Objects that other stores got because of the drain.
    pub moved_objects: u64,
    pub moved_bytes: u64,
    /// Objects that other stores already had before the drain.
    pub held_objects: u64,
    /// Objects with fewer copies than their puts want, because too few other stores run.
    pub short_objects: u64,
    pub left_objects: u64,
    pub left_bytes: u64,
    /// Unanswered calls from before the drain.
    pub open_calls: u64,
    /// `true` if the store runs a directory shard that other stores can use.
    pub serves_directory: bool,
    /// Unmoved objects, at most [`MAX_UNMOVED`].
    pub unmoved: Vec<Unmoved>,
}

/// Object that a drain still has to move.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Unmoved {
    pub id: ObjectId,
    pub size_bytes: u64,
    /// Directory's reason, if known.
    pub obstacle: Option<Obstacle>,
}
