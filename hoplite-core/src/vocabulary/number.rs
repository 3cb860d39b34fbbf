//! Numbers that a store uses only once.

use super::id::PutId;
use super::placement::mix;

#[derive(Debug)]
pub(crate) struct Numbers {
    last: u64,
    /// Differs between runs and nodes, so that all [`PutId`]s are unique.
    seed: u64,
}

impl Numbers {
    pub(crate) const fn new(seed: u64) -> Self {
        Self { last: 0, seed }
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    pub(crate) fn run(&self) -> u64 {
        mix(self.seed)
    }

    pub(crate) fn next_put(&mut self) -> PutId {
        PutId(mix(self.seed ^ mix(self.next())))
    }
}
