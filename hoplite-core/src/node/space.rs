//! Room in the arena: allocation, eviction of the least recently used, and waiting.

use super::{CallKey, Node, SpaceWaiter};
use crate::error::Error;
use crate::extent::{Extent, HEADER_BYTES};
use crate::id::ObjectId;
use crate::shard::UnpublishReason;

impl Node {
    /// Whether an object of this size can ever be stored here.
    pub(super) fn check_size(&self, id: &ObjectId, size_bytes: u64) -> Result<(), Error> {
        let limit_bytes = self
            .config
            .limits
            .max_object_bytes
            .min(self.allocator.capacity_bytes().saturating_sub(HEADER_BYTES));
        if size_bytes > limit_bytes {
            return Err(Error::ObjectTooLarge { id: id.clone(), size_bytes, limit_bytes });
        }
        Ok(())
    }

    /// Finds room for an object, evicting what may be evicted, least recently used first.
    ///
    /// Nothing is evicted if even all of it would not make enough room in total.
    pub(super) fn allocate(&mut self, size_bytes: u64) -> Option<Extent> {
        let length_bytes = HEADER_BYTES + size_bytes;
        if self.copies.len() >= self.config.limits.max_objects && !self.evict_one() {
            return None;
        }
        loop {
            if let Some(extent) = self.allocator.allocate(length_bytes) {
                return Some(extent);
            }
            if self.allocator.free_bytes() + self.evictable_bytes < length_bytes || !self.evict_one() {
                return None;
            }
        }
    }

    /// Whether an object could be stored now, apart from fragmentation.
    pub(super) fn may_fit(&self, size_bytes: u64) -> bool {
        HEADER_BYTES + size_bytes <= self.allocator.free_bytes() + self.evictable_bytes
    }

    fn evict_one(&mut self) -> bool {
        let Some((copy, bytes)) = self.evictable.pop_lru() else { return false };
        self.evictable_bytes -= bytes;
        self.evictions += 1;
        let id = self.copies[&copy].id.clone();
        self.abandon(copy, Error::ObjectLost { id }, UnpublishReason::Evicted);
        true
    }

    /// The error of a caller for whom there was no room.
    pub(super) fn store_full(&self, size_bytes: u64) -> Error {
        Error::StoreFull {
            needed_bytes: HEADER_BYTES + size_bytes,
            free_bytes: self.allocator.free_bytes(),
            capacity_bytes: self.allocator.capacity_bytes(),
        }
    }

    pub(super) fn wait_for_space(&mut self, waiter: SpaceWaiter) {
        self.space_waiters.push(waiter);
    }

    pub(super) fn is_waiting_for_space(&self, key: CallKey) -> bool {
        self.space_waiters.contains(&SpaceWaiter::Create(key))
    }

    pub(super) fn is_waiting_in_space(&self, waiter: &SpaceWaiter) -> bool {
        self.space_waiters.contains(waiter)
    }

    pub(super) fn stop_waiting_for_space(&mut self, waiter: &SpaceWaiter) {
        self.space_waiters.remove(waiter);
    }

    /// Tries again for those who wait for room, in the order of their arrival. One that still does not fit does not
    /// hold up the others: a huge object that waits must not stop every small one.
    pub(super) fn retry_space(&mut self) {
        while std::mem::take(&mut self.has_new_space) {
            for waiter in self.space_waiters.take() {
                match waiter {
                    SpaceWaiter::Create(key) => self.retry_create(key),
                    SpaceWaiter::Fetch(id) => self.fetch_has_space(&id),
                    SpaceWaiter::Hop(owner) => self.begin_hop(owner),
                    SpaceWaiter::Target(id) => self.reconsider_reduce(&id),
                }
            }
        }
    }
}
