use std::collections::BTreeMap;

use super::notice::SpaceWaiter;
use crate::extent::Extent;
use crate::message::CopyId;

#[derive(Debug)]
pub(crate) struct Gathering {
    pub(crate) room: Extent,
    pub(crate) inputs: Vec<CopyId>,
}

#[derive(Debug, Default)]
pub(crate) struct Gatherings {
    by_waiter: BTreeMap<SpaceWaiter, Gathering>,
}

impl Gatherings {
    pub(crate) fn contains(&self, waiter: &SpaceWaiter) -> bool {
        self.by_waiter.contains_key(waiter)
    }

    pub(crate) fn insert(&mut self, waiter: SpaceWaiter, gathering: Gathering) {
        self.by_waiter.insert(waiter, gathering);
    }

    pub(crate) fn remove(&mut self, waiter: &SpaceWaiter) -> Option<Gathering> {
        self.by_waiter.remove(waiter)
    }
}
