//! The arena's memory: allocation, eviction, and waiters.
//!
//! Waiters try again when memory is freed or given back, or a spill file is complete.

use super::super::notice::SpaceWaiter;
use super::{LocalCopy, Room, Table};
use crate::error::{Error, Missing};
use crate::extent::{Extent, HEADER_BYTES};
use crate::id::{NodeId, ObjectId};
use crate::limits::Limits;

impl Table {
    pub(crate) fn check_size(
        &self,
        limits: &Limits,
        id: &ObjectId,
        size_bytes: u64,
    ) -> Result<(), Error> {
        let limit_bytes = limits
            .max_object_bytes
            .min(self.allocator.capacity_bytes().saturating_sub(HEADER_BYTES));
        if size_bytes > limit_bytes {
            return Err(Error::ObjectTooLarge { id: id.clone(), size_bytes, limit_bytes });
        }
        Ok(())
    }

    /// Finds memory, or the first copy to evict. Evicts nothing if all evictions would free too
    /// little.
    pub(crate) fn find_room(&mut self, limits: &Limits, size_bytes: u64) -> Room {
        if self.copies.len() >= limits.max_objects {
            self.find_victim()
        } else {
            self.find_extent(size_bytes)
        }
    }

    pub(crate) fn find_extent(&mut self, size_bytes: u64) -> Room {
        if let Some(extent) = self.allocator.allocate(HEADER_BYTES + size_bytes) {
            self.reserved_bytes += extent.length_bytes;
            return Room::Found(extent);
        }
        if !self.may_fit(size_bytes) {
            return Room::None;
        }
        let clean = self.spills.as_ref().and_then(|spills| spills.idle.clean().next());
        match (self.find_victim(), clean) {
            (Room::None, Some((copy, _))) => Room::AfterDropping(copy),
            (eviction, _) => eviction,
        }
    }

    fn find_victim(&self) -> Room {
        let victim = self.evictable.peek_lru().map(|(copy, _)| *copy);
        victim.map_or(Room::None, Room::AfterEvicting)
    }

    /// Returns `true` if free memory, evictable and clean copies would suffice. Ignores
    /// fragmentation.
    pub(crate) fn may_fit(&self, size_bytes: u64) -> bool {
        let clean_bytes = self.spills.as_ref().map_or(0, |spills| spills.idle.clean_bytes());
        HEADER_BYTES + size_bytes
            <= self.allocator.free_bytes() + self.evictable_bytes + clean_bytes
    }

    /// Returns `true` if an object fits beside the complete pinned copies, or these can be spilled.
    pub(crate) fn may_come_to_fit(&self, size_bytes: u64) -> bool {
        if self.may_spill() {
            return true;
        }
        let stays = |copy: &&LocalCopy| copy.is_live() && copy.is_pinned() && copy.is_complete();
        let kept = self.copies.values().map(Box::as_ref).filter(stays);
        let kept_bytes: u64 = kept.map(|copy| copy.extent.length_bytes).sum();
        HEADER_BYTES + size_bytes <= self.allocator.capacity_bytes().saturating_sub(kept_bytes)
    }

    pub(crate) fn give_back(&mut self, room: Extent) {
        self.reserved_bytes -= room.length_bytes;
        self.free(room);
    }

    /// Wakes no waiter, because the search has freed no memory.
    pub(crate) fn give_back_after_search(&mut self, rooms: impl IntoIterator<Item = Extent>) {
        let has_new_space = self.has_new_space;
        for room in rooms {
            self.give_back(room);
        }
        self.has_new_space = has_new_space;
    }

    pub(super) fn free(&mut self, extent: Extent) {
        self.allocator.free(extent);
        self.has_new_space = true;
    }

    pub(crate) fn count_eviction(&mut self) {
        self.evictions += 1;
    }

    /// Makes an error that names this store, because other stores' clients may see it.
    pub(crate) fn store_full(&self, node: &NodeId, size_bytes: u64) -> Error {
        Error::StoreFull {
            needed_bytes: HEADER_BYTES + size_bytes,
            free_bytes: self.allocator.free_bytes(),
            capacity_bytes: self.allocator.capacity_bytes(),
            holders: format!("on {node}"),
        }
    }

    pub(crate) fn never_fit(&self, node: &NodeId, inputs: usize, needed_bytes: u64) -> Error {
        Error::StoreFull {
            needed_bytes,
            free_bytes: self.allocator.free_bytes(),
            capacity_bytes: self.allocator.capacity_bytes(),
            holders: format!(
                "on {node}: {inputs} sources and their result must be in memory together"
            ),
        }
    }

    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.allocator.capacity_bytes()
    }

    pub(crate) fn has_space_waiters(&self) -> bool {
        !self.space_waiters.is_empty()
    }

    pub(crate) fn lacks_room(&self, size_bytes: u64) -> Missing {
        Missing::Room {
            needed_bytes: HEADER_BYTES + size_bytes,
            free_bytes: self.allocator.free_bytes(),
            capacity_bytes: self.allocator.capacity_bytes(),
        }
    }

    pub(crate) fn wait_for_space(&mut self, waiter: SpaceWaiter) {
        self.quotas.stop_waiting(&waiter);
        self.space_waiters.push(waiter);
    }

    pub(crate) fn is_waiting_for_space(&self, waiter: &SpaceWaiter) -> bool {
        self.space_waiters.contains(waiter)
    }

    pub(crate) fn stop_waiting_for_space(&mut self, waiter: &SpaceWaiter) {
        self.space_waiters.remove(waiter);
        self.quotas.stop_waiting(waiter);
    }

    pub(crate) fn take_space_waiters(&mut self) -> Option<Vec<SpaceWaiter>> {
        let of_space = std::mem::take(&mut self.has_new_space).then(|| self.space_waiters.take());
        self.readmit_barred();
        let of_quotas = self.quotas.take_waiters();
        if of_space.is_none() && of_quotas.is_none() {
            return None;
        }
        Some(of_space.into_iter().flatten().chain(of_quotas.into_iter().flatten()).collect())
    }
}
