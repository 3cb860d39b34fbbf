use std::collections::VecDeque;

use crate::id::ObjectId;
use crate::time::Time;

const MAX_LOSSES: usize = 256;

/// An object whose last complete copy is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostObject {
    /// Time of the loss.
    pub at: Time,
    /// Lost object.
    pub id: ObjectId,
}

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
