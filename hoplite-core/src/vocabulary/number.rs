//! Numbers that one run of a store uses once.

use super::id::PutId;
use super::placement::mix;

/// The source of numbers of one run.
#[derive(Debug)]
pub(crate) struct Numbers {
    last: u64,
    /// Makes the [`PutId`]s of this run unique among runs and nodes.
    seed: u64,
}

impl Numbers {
    /// The numbers of a run with this random seed.
    pub(crate) const fn new(seed: u64) -> Self {
        Self { last: 0, seed }
    }

    /// Returns a number larger than all before.
    pub(crate) const fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Returns a number that differs from that of every other run and node.
    pub(crate) fn run(&self) -> u64 {
        mix(self.seed)
    }

    pub(crate) fn next_put(&mut self) -> PutId {
        PutId(mix(self.seed ^ mix(self.next())))
    }
}
