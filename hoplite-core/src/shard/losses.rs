//! The latest objects that were lost, for the dashboard.

use std::collections::VecDeque;

use crate::id::ObjectId;
use crate::time::Time;

/// Most losses that a shard remembers. A person looks no further back.
const MAX_LOSSES: usize = 256;

/// An object whose last complete copy is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostObject {
    /// The time at which the shard declared the object lost.
    pub at: Time,
    /// The object.
    pub id: ObjectId,
}

/// The latest losses, oldest first.
#[derive(Debug, Default)]
pub(super) struct Losses(VecDeque<LostObject>);

impl Losses {
    pub(super) fn push(&mut self, at: Time, id: &ObjectId) {
        if self.0.len() >= MAX_LOSSES {
            self.0.pop_front();
        }
        self.0.push_back(LostObject { at, id: id.clone() });
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &LostObject> {
        self.0.iter()
    }
}
