//! Distinguishes lost objects from deleted ones when a copy returns.
//!
//! A store that was cut off publishes its copies again. If the shard has listed a copy's put since
//! its start, but does not list it any more, the put was deleted or lost. A lost object may come
//! back, a deleted one not.
//!
//! The shard therefore remembers each loss until the id is deleted. A put given up by its producer
//! or writer leaves no copy that may come back.
//!
//! The memory is bounded. The shard accepts publications of a store that was away during a
//! forgotten loss, because the store may have the last copy.

use std::collections::{BTreeMap, BTreeSet};

use crate::id::{ObjectId, PutId};
use crate::time::Time;

/// Most remembered puts of lost objects: about 20 MiB.
const MAX_REMEMBERED: usize = 1 << 16;

#[derive(Debug, Default)]
pub(super) struct LossMemory {
    by_put: BTreeMap<(ObjectId, PutId), Time>,
    by_time: BTreeSet<(Time, (ObjectId, PutId))>,
    forgotten: Option<Time>,
}

impl LossMemory {
    pub(super) fn remember(&mut self, now: Time, id: &ObjectId, put: PutId) {
        let key = (id.clone(), put);
        self.forget_put(&key);
        if self.by_put.len() >= MAX_REMEMBERED
            && let Some((at, oldest)) = self.by_time.pop_first()
        {
            self.by_put.remove(&oldest);
            self.forgotten = self.forgotten.max(Some(at));
        }
        self.by_time.insert((now, key.clone()));
        self.by_put.insert(key, now);
    }

    pub(super) fn id_deleted(&mut self, id: &ObjectId) {
        let all = (id.clone(), PutId(0))..=(id.clone(), PutId(u64::MAX));
        let lost: Vec<(ObjectId, PutId)> =
            self.by_put.range(all).map(|(key, _)| key.clone()).collect();
        for key in lost {
            self.forget_put(&key);
        }
    }

    pub(super) fn put_deleted(&mut self, id: &ObjectId, put: PutId) {
        self.forget_put(&(id.clone(), put));
    }

    /// Returns `true` if a put that the shard no longer lists was certainly deleted, not lost.
    /// `since` is the time of the last contact with the copy's store.
    pub(super) fn knows_deleted(&self, id: &ObjectId, put: PutId, since: Time) -> bool {
        let is_unbroken = self.forgotten.is_none_or(|forgotten| forgotten < since);
        is_unbroken && !self.by_put.contains_key(&(id.clone(), put))
    }

    fn forget_put(&mut self, key: &(ObjectId, PutId)) {
        if let Some(at) = self.by_put.remove(key) {
            self.by_time.remove(&(at, key.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str) -> ObjectId {
        ObjectId::new(name).unwrap()
    }

    #[test]
    fn a_lost_put_is_not_deleted_until_its_id_is() {
        let mut memory = LossMemory::default();
        assert!(memory.knows_deleted(&id("x"), PutId(1), Time::ZERO));
        memory.remember(Time::from_micros(5), &id("x"), PutId(1));
        memory.remember(Time::from_micros(6), &id("x"), PutId(2));
        assert!(!memory.knows_deleted(&id("x"), PutId(1), Time::ZERO));
        memory.put_deleted(&id("x"), PutId(2));
        assert!(memory.knows_deleted(&id("x"), PutId(2), Time::ZERO));
        memory.id_deleted(&id("x"));
        assert!(memory.knows_deleted(&id("x"), PutId(1), Time::ZERO));
        assert!(memory.by_time.is_empty());
    }

    #[test]
    fn a_forgotten_loss_invalidates_the_memory_for_disconnected_stores() {
        let mut memory = LossMemory::default();
        let lost = |number: usize| id(&format!("x{number}"));
        for number in 0..=MAX_REMEMBERED {
            memory.remember(Time::from_micros(number as u64 + 10), &lost(number), PutId(1));
        }
        assert_eq!(memory.by_put.len(), MAX_REMEMBERED);
        assert!(!memory.knows_deleted(&lost(0), PutId(1), Time::from_micros(10)));
        assert!(!memory.knows_deleted(&id("deleted"), PutId(1), Time::from_micros(9)));
        assert!(memory.knows_deleted(&id("deleted"), PutId(1), Time::from_micros(11)));
    }
}
