//! The latest objects that were lost, for those who look at the shard.

use std::collections::VecDeque;

use crate::id::ObjectId;
use crate::time::Time;

/// Most losses that are remembered: what a person looks back on.
const MAX_LOSSES: usize = 256;

/// An object whose last complete copy was gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostObject {
    /// The time at which it was declared lost.
    pub at: Time,
    /// The object.
    pub id: ObjectId,
}

/// Oldest first.
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
