//! Spilling: unused pinned copies move to files, so that the arena has room, and return on demand.
//!
//! 1. Once the arena is 80% full, or a call waits for room, the store writes the least recently
//!    used copies to a file: up to 100 MiB in one file (`Effect::Spill`). It spills down to 70%.
//!    Copies that clients map, other stores read, or reduces need stay.
//! 2. A written copy is *clean*: in the arena and in the file. The store frees a clean copy once
//!    its room is needed, after the unpinned copies. The directory does not notice.
//! 3. For a get, a serve or a reduce, the store finds room and reads the copy again
//!    (`Effect::Load`). The record stays, so the copy can leave again without a write. If more
//!    than half of the spill limit is used, the store gives the record up instead.
//! 4. The store removes a file when no copy needs it. Once more than half of a file is useless, the
//!    store copies the rest to a new file.
//!
//! # Failures
//!
//! * **A disk is full or fails.** The copies stay in the arena. The spill directory rests for up to
//!   a second, then the store tries again. Calls wait for room until their timeout.
//! * **A file is damaged.** The copy is lost. Waiting calls fail with [`Error::SpillFailed`].
//! * **A file cannot be read now.** Calls fail with the same error, and the copy stays.

use std::time::Duration;

use super::Objects;
use super::notice::SpaceWaiter;
use crate::error::Error;
use crate::id::{ObjectId, PutId};
use crate::message::{CopyId, SpillFault, SpillFile};
use crate::shard::UnpublishReason;

/// Time for which gets of an unreadable copy fail at once.
const READ_PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fetched {
    Here,
    Coming,
    Failed(Error),
}

impl Objects {
    /// Spills if calls wait for room, or the arena is above its watermark.
    pub(crate) fn spill_cold(&mut self) {
        if self.ctx.is_shutting_down() {
            return;
        }
        // First, because it makes room below the limit of the files.
        while self.copies.begin_compaction(&mut self.ctx) {}
        while self.copies.begin_batch(&mut self.ctx) {}
    }

    pub(crate) fn spilled(&mut self, file: SpillFile, outcome: Result<(), SpillFault>) {
        self.copies.spilled(&mut self.ctx, file, outcome);
    }

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

    pub(crate) fn bring_put(&mut self, id: &ObjectId, put: PutId) -> Fetched {
        self.copies.live_put(id, put).map_or(Fetched::Here, |copy| self.bring(copy))
    }

    /// Reads a copy that had no room, if still wanted.
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

    fn came_back(&mut self, copy: CopyId, id: &ObjectId) {
        self.copies.accept_awaiting(&mut self.ctx, copy);
        if let Some((winner, holder)) = self.copies[&copy].publication.rival.clone() {
            self.compare(copy, winner, holder);
        }
        self.wake(id);
    }

    fn fail_waiting(&mut self, id: &ObjectId, error: &Error) {
        for key in self.calls.waiting(id) {
            self.finish(key, Err(error.clone()));
        }
    }
}
