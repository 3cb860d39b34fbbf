//! Unused pinned copies move to files to free memory, and return on demand.
//!
//! 1. Once the arena is 80% full, or a call waits for memory, the store writes the least recently
//!    used copies to a file of up to 100 MiB (`Effect::Spill`). It stops at 70%. Copies that
//!    clients map, other stores read, or reduces need stay. For a put over a quota of memory, it
//!    writes copies of that quota. Copies beyond a quota of disk stay.
//! 2. A written copy is *clean*: in the arena and in the file. The store frees clean copies when it
//!    needs memory, after the unpinned copies. The directory still lists them.
//! 3. Other stores and hops read the copy from the file (`Effect::ServeSpilled`). For a get or a
//!    collective, the store loads it into the arena (`Effect::Load`). The record stays in the file,
//!    unless more than half of the spill limit is used.
//! 4. The store removes a file that no copy needs. Once more than half of a file is useless, the
//!    store moves the rest to a new file.
//!
//! # Failures
//!
//! * **A disk is full or fails.** The copies stay in the arena. The store avoids the directory for
//!   up to a second. Calls wait for memory until their timeout.
//! * **A file is damaged.** The copy is lost. Waiting calls fail with [`Error::SpillFailed`].
//! * **A file cannot be read now.** Calls fail with the same error, and the copy stays.

use std::time::Duration;

use super::Objects;
use super::notice::SpaceWaiter;
use crate::error::Error;
use crate::id::ObjectId;
use crate::message::{CopyId, SpillFault, SpillFile, SpillRecord};
use crate::shard::UnpublishReason;

/// After a failed read, gets of the copy fail at once for this time.
const READ_PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fetched {
    Here,
    Coming,
    Failed(Error),
}

impl Objects {
    pub(crate) fn spill_cold(&mut self) {
        if self.ctx.is_shutting_down() {
            return;
        }
        while self.copies.begin_compaction(&mut self.ctx) {}
        while self.copies.begin_batch(&mut self.ctx) {}
    }

    pub(crate) fn spilled(&mut self, file: SpillFile, outcome: Result<(), SpillFault>) {
        let (places, compaction) = self.copies.spilled(&mut self.ctx, file, outcome);
        self.index(file, &places);
        if let Some(compaction) = compaction {
            self.copies.end_compaction(&mut self.ctx, compaction);
        }
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
            match self.allocate_again(local.size_bytes) {
                Some(room) => self.copies.begin_load(&mut self.ctx, copy, room),
                None => self.copies.wait_for_space(SpaceWaiter::Load(copy)),
            }
        }
        Fetched::Coming
    }

    pub(crate) fn retry_load(&mut self, copy: CopyId) {
        let Some(local) = self.copies.get(&copy).filter(|local| local.is_live()) else { return };
        if self.calls.is_awaited(&local.id) || local.publication.rival().is_some() {
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
        match outcome {
            Ok(()) => self.came_back(copy),
            Err(fault) => {
                self.copies.drop_memory(&mut self.ctx, copy);
                self.unreadable(copy, &fault);
            }
        }
    }

    pub(crate) fn record_failed(&mut self, copy: CopyId, record: SpillRecord, fault: &SpillFault) {
        if self.copies.record_failed(copy, record) {
            self.unreadable(copy, fault);
        }
    }

    fn unreadable(&mut self, copy: CopyId, fault: &SpillFault) {
        let id = self.copies[&copy].id.clone();
        let error = Error::SpillFailed { id: id.clone(), reason: fault.to_string().into() };
        if matches!(fault, SpillFault::Damaged(_)) {
            self.abandon(copy, error.clone(), UnpublishReason::Evicted);
        } else {
            let retry_at = self.ctx.now() + READ_PAUSE;
            self.copies.set_unreadable(copy, retry_at, fault.to_string());
            // A new publication makes the shard report the rival put again.
            if self.copies.publication_mut(copy).take_rival().is_some() {
                self.publish_again_later(copy);
            }
        }
        self.fail_waiting(&id, &error);
    }

    fn came_back(&mut self, copy: CopyId) {
        if let Some(rival) = self.copies[&copy].publication.rival().cloned() {
            self.compare(copy, rival);
        }
        self.wake(&self.copies[&copy].id.clone());
    }

    fn fail_waiting(&mut self, id: &ObjectId, error: &Error) {
        for key in self.calls.waiting(id) {
            self.finish(key, Err(error.clone()));
        }
    }
}
