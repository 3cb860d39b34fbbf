//! Spilling: unused pinned copies move to files, so that the arena has room, and return on demand.
//!
//! 1. Once the arena is 80% full, or a call waits for room, the store writes the copies that were
//!    not used for longest to a file: up to 100 MiB of them in one file (`Effect::Spill`). It
//!    spills down to 70%. Copies that clients map, other stores read, or reduces need stay.
//! 2. A copy that was written is *clean*: in the arena and in the file. The store frees a clean copy
//!    once its room is needed, after the unpinned copies. The directory does not notice.
//! 3. A get, a serve to another store, or a reduce needs the copy again: the store finds room and
//!    reads it (`Effect::Load`). The record stays, so the copy can leave again without a write. If
//!    more than half of the spill limit is used, the store gives the record up instead.
//! 4. The store removes a file when no copy needs it any more. Once more than half of a file is not
//!    needed, the store copies the rest to a new file.
//!
//! # Failures
//!
//! * **A disk is full or fails.** The copies stay in the arena. The directory rests for up to a
//!   second, then the store tries again. Calls wait for room until their timeout.
//! * **A file is damaged.** The copy is lost. The calls that wait for it fail with
//!   [`Error::SpillFailed`].
//! * **A file cannot be read now.** The calls fail with the same error, and the copy stays.

use std::time::Duration;

use super::Objects;
use super::notice::SpaceWaiter;
use crate::error::Error;
use crate::id::{ObjectId, PutId};
use crate::message::{CopyId, SpillFault, SpillFile};
use crate::shard::UnpublishReason;

/// The time for which a copy that cannot be read fails at once.
const READ_PAUSE: Duration = Duration::from_secs(1);

/// The place of a copy that a caller wants to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fetched {
    /// It is in the arena.
    Here,
    /// The store reads it, or waits for room.
    Coming,
    /// The store cannot read it now.
    Failed(Error),
}

impl Objects {
    /// Writes cold copies to files if calls wait for room, or the arena is above its watermark.
    pub(crate) fn spill_cold(&mut self) {
        if self.ctx.is_shutting_down() {
            return;
        }
        while self.copies.begin_batch(&mut self.ctx) {}
        while self.copies.begin_compaction(&mut self.ctx) {}
    }

    /// Takes in the end of a write.
    pub(crate) fn spilled(&mut self, file: SpillFile, outcome: Result<(), SpillFault>) {
        self.copies.spilled(&mut self.ctx, file, outcome);
    }

    /// Has a copy read into the arena if it is only in a file.
    pub(crate) fn bring(&mut self, copy: CopyId) -> Fetched {
        let local = &self.copies[&copy];
        if local.is_resident() {
            return Fetched::Here;
        }
        if let Some(error) = local.spill_error(self.ctx.now()) {
            return Fetched::Failed(error);
        }
        if local.is_away() {
            match self.allocate(local.size_bytes) {
                Some(room) => self.copies.begin_load(&mut self.ctx, copy, room),
                None => self.copies.wait_for_space(SpaceWaiter::Load(copy)),
            }
        }
        Fetched::Coming
    }

    /// Acts as [`bring`](Self::bring) for the live copy of a put, if there is one.
    pub(crate) fn bring_put(&mut self, id: &ObjectId, put: PutId) -> Fetched {
        self.copies.live_put(id, put).map_or(Fetched::Here, |copy| self.bring(copy))
    }

    /// Reads a copy for which there was no room before, if a caller still wants it.
    pub(crate) fn retry_load(&mut self, copy: CopyId) {
        let Some(local) = self.copies.get(&copy).filter(|local| local.is_live()) else { return };
        let is_wanted = self.calls.is_awaited(&local.id)
            || local.publication.rival.is_some()
            || self.copies.is_awaited_by_serves(&local.id, local.put);
        if is_wanted {
            let (id, fetched) = (local.id.clone(), self.bring(copy));
            if let Fetched::Failed(error) = fetched {
                self.fail_waiting(&id, &error);
            }
        }
    }

    /// Takes in the end of a read.
    pub(crate) fn loaded(&mut self, copy: CopyId, outcome: Result<(), SpillFault>) {
        if !self.copies.end_load(&mut self.ctx, copy, outcome.is_ok()) {
            return;
        }
        let local = &self.copies[&copy];
        let (id, put) = (local.id.clone(), local.put);
        let Err(fault) = outcome else { return self.came_back(copy, &id) };
        let error = Error::SpillFailed { id: id.clone(), reason: fault.to_string().into() };
        self.copies.refuse_awaiting_put(&mut self.ctx, &id, put);
        if matches!(fault, SpillFault::Damaged(_)) {
            self.abandon(copy, error.clone(), UnpublishReason::Evicted);
        } else {
            let retry_at = self.ctx.now() + READ_PAUSE;
            self.copies.unload(&mut self.ctx, copy, retry_at, fault.to_string());
        }
        self.fail_waiting(&id, &error);
    }

    /// A copy is in the arena again.
    fn came_back(&mut self, copy: CopyId, id: &ObjectId) {
        self.copies.accept_awaiting(&mut self.ctx, copy);
        if let Some((winner, holder)) = self.copies[&copy].publication.rival.clone() {
            self.compare(copy, winner, holder);
        }
        self.wake(id);
    }

    /// Fails the gets and the creates that wait for an object.
    fn fail_waiting(&mut self, id: &ObjectId, error: &Error) {
        for key in self.calls.waiting(id) {
            self.finish(key, Err(error.clone()));
        }
    }
}
