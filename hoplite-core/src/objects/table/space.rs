//! Room in the arena: allocation, eviction, and waiters.
//!
//! A call or fetch without room waits and tries again when copies are freed, reserved room is given
//! back, or a spill file is complete.

use super::super::notice::SpaceWaiter;
use super::{LocalCopy, Room, Table};
use crate::error::{Error, Missing};
use crate::extent::{Extent, HEADER_BYTES};
use crate::id::{NodeId, ObjectId};
use crate::limits::Limits;

impl Table {
    /// Checks that an object of this size can ever be stored here.
    pub(crate) fn check_size(&self, limits: &Limits, id: &ObjectId, size_bytes: u64) -> Result<(), Error> {
        let limit_bytes =
            limits.max_object_bytes.min(self.allocator.capacity_bytes().saturating_sub(HEADER_BYTES));
        if size_bytes > limit_bytes {
            return Err(Error::ObjectTooLarge { id: id.clone(), size_bytes, limit_bytes });
        }
        Ok(())
    }

    /// Looks for room. Evicts nothing if even all evictions would make too little room.
    pub(crate) fn find_room(&mut self, limits: &Limits, size_bytes: u64) -> Room {
        let length_bytes = HEADER_BYTES + size_bytes;
        let victim = self.evictable.peek_lru().map(|(copy, _)| *copy);
        let mut eviction = victim.map_or(Room::None, Room::AfterEvicting);
        if self.copies.len() >= limits.max_objects {
            return eviction;
        }
        let clean = self.spills.as_ref().and_then(|spills| spills.clean.peek_lru());
        if let (Room::None, Some((copy, _))) = (eviction, clean) {
            eviction = Room::AfterDropping(*copy);
        }
        match self.allocator.allocate(length_bytes) {
            Some(extent) => {
                self.reserved_bytes += extent.length_bytes;
                Room::Found(extent)
            }
            None if self.may_fit(size_bytes) => eviction,
            None => Room::None,
        }
    }

    /// Returns `true` if an object fits now, apart from fragmentation.
    pub(crate) fn may_fit(&self, size_bytes: u64) -> bool {
        let clean_bytes = self.spills.as_ref().map_or(0, |spills| spills.clean_bytes);
        HEADER_BYTES + size_bytes <= self.allocator.free_bytes() + self.evictable_bytes + clean_bytes
    }

    /// Returns `true` if an object will fit without a delete, once all present work is over.
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

    pub(super) fn free(&mut self, extent: Extent) {
        self.allocator.free(extent);
        self.has_new_space = true;
    }

    pub(crate) fn count_eviction(&mut self) {
        self.evictions += 1;
    }

    /// Names this store, because other stores may be told of the error.
    pub(crate) fn store_full(&self, node: &NodeId, size_bytes: u64) -> Error {
        Error::StoreFull {
            needed_bytes: HEADER_BYTES + size_bytes,
            free_bytes: self.allocator.free_bytes(),
            capacity_bytes: self.allocator.capacity_bytes(),
            holders: format!("on {node}"),
        }
    }

    pub(crate) fn lacks_room(&self, size_bytes: u64) -> Missing {
        Missing::Room {
            needed_bytes: HEADER_BYTES + size_bytes,
            free_bytes: self.allocator.free_bytes(),
            capacity_bytes: self.allocator.capacity_bytes(),
        }
    }

    pub(crate) fn wait_for_space(&mut self, waiter: SpaceWaiter) {
        self.space_waiters.push(waiter);
    }

    pub(crate) fn is_waiting_for_space(&self, waiter: &SpaceWaiter) -> bool {
        self.space_waiters.contains(waiter)
    }

    pub(crate) fn stop_waiting_for_space(&mut self, waiter: &SpaceWaiter) {
        self.space_waiters.remove(waiter);
    }

    /// Takes the waiters in the order of their arrival, if there is new room.
    pub(crate) fn take_space_waiters(&mut self) -> Option<Vec<SpaceWaiter>> {
        std::mem::take(&mut self.has_new_space).then(|| self.space_waiters.take().collect())
    }
}
