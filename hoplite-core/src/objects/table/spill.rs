use std::collections::BTreeMap;
use std::time::Duration;

use super::super::context::Context;
use super::super::idle::IdleCopies;
use super::super::notice::Deadline;
use super::super::quotas::Account;
use super::spills::{Batch, MAX_BATCH_OBJECTS, SpillStep, Spilled, Spills};
use super::{LocalCopy, Table};
use crate::error::Error;
use crate::extent::Extent;
use crate::message::{
    CopyId, Effect, Producer, ServeId, SpillConfig, SpillFault, SpillFile, SpillItem, SpillRecord,
    SpillStatus, SpillTrouble,
};
use crate::time::Time;

const MAX_EXAMINED: usize = 2 * MAX_BATCH_OBJECTS;

/// Latest time of the next scan after one that only barred copies.
const SCAN_PAUSE: Duration = Duration::from_millis(10);

pub(super) const NO_EXTENT: Extent = Extent { offset_bytes: 0, length_bytes: 0 };

#[derive(Debug)]
struct Picked {
    batch: Batch,
    /// Copies whose records exceed a quota of disk, with its account.
    barred: Vec<(CopyId, Account)>,
    /// Account for which the batch makes room.
    account: Option<Account>,
}

impl Default for Picked {
    fn default() -> Self {
        Self { batch: Batch::empty(), barred: Vec::new(), account: None }
    }
}

/// Move of a spill file's remaining copies to a new file.
#[derive(Debug)]
pub(crate) struct Compaction {
    old: SpillFile,
    /// Records in the old file, with the copies' sizes.
    moved: Vec<(SpillRecord, u64)>,
    again: bool,
}

impl Table {
    pub(crate) fn spill_to(&mut self, config: SpillConfig) {
        self.spills = Some(Box::new(Spills::new(config)));
    }

    pub(crate) fn spill_status(&self) -> SpillStatus {
        self.spills.as_ref().map(|spills| spills.status()).unwrap_or_default()
    }

    pub(crate) fn spill_troubles(&self) -> impl Iterator<Item = SpillTrouble> {
        self.spills.iter().flat_map(|spills| spills.troubles())
    }

    pub(crate) fn may_spill(&self) -> bool {
        self.spills.as_ref().is_some_and(|spills| spills.may_make_room())
    }

    pub(super) fn offer_to_spill(&mut self, copy: CopyId) {
        let Some(spills) = &mut self.spills else { return };
        let Some(local) = self.copies.get(&copy) else { return };
        let is_cold = local.is_complete() && local.is_resident() && local.is_idle();
        if is_cold
            && local.is_live()
            && local.is_pinned()
            && local.is_public
            && local.size_bytes > 0
        {
            let is_clean = local.spilled.is_some();
            let is_new = spills.idle.add(copy, local.extent.length_bytes, is_clean);
            self.has_new_space |= is_new && is_clean;
            if is_new {
                self.quotas.add_idle(local.charge(), copy, is_clean);
            }
        }
    }

    /// Begins to spill the least recently used copies: of a quota if puts lack its memory, or of
    /// all if calls lack memory or the arena is nearly full.
    pub(crate) fn begin_batch(&mut self, ctx: &mut Context) -> bool {
        let (capacity_bytes, free_bytes) =
            (self.allocator.capacity_bytes(), self.allocator.free_bytes());
        let has_waiters = !self.space_waiters.is_empty();
        let Some(spills) = &mut self.spills else { return false };
        let used_bytes =
            capacity_bytes - free_bytes - self.evictable_bytes - spills.idle.clean_bytes();
        let is_wanted = spills.is_wanted(has_waiters, used_bytes, capacity_bytes);
        let is_any_wanted = is_wanted || self.quotas.to_spill().next().is_some();
        if !is_any_wanted || !spills.may_begin() {
            return false;
        }
        let Some(directory) = spills.choose_directory(ctx) else { return false };
        let Picked { batch, barred, account } = self.next_batch(is_wanted, capacity_bytes);
        let Some(spills) = &mut self.spills else { return false };
        for (copy, account) in &barred {
            // Two lists may contain the same copy.
            if spills.idle.bar(*copy) {
                self.quotas.bar(account, self.copies[copy].charge(), *copy);
            }
        }
        if batch.copies.is_empty() {
            if barred.is_empty() {
                spills.limit_reached(ctx, directory);
            } else if spills.idle.has_dirty() {
                ctx.schedule(ctx.now() + SCAN_PAUSE, Deadline::Spill);
            }
            return false;
        }
        let file = SpillFile { directory, number: ctx.next_number() };
        let mut items = Vec::with_capacity(batch.copies.len());
        for (copy, size_bytes, record) in batch.records(file) {
            let local = self.copies.get_mut(&copy).expect("copies that may be spilled exist");
            spills.idle.remove(copy);
            self.quotas.remove_idle(local.charge(), copy);
            self.quotas.begins_to_spill(local.charge());
            self.quotas.add(local.charge_of_disk());
            local.spilled =
                Some(Box::new(Spilled { record, step: SpillStep::Writing, fault: None }));
            items.push(SpillItem { copy, size_bytes, from: None });
        }
        spills.was_for_quota = account.is_some();
        if let Some(account) = account {
            self.quotas.spills_for(account);
        }
        spills.begin(file, batch);
        ctx.push(Effect::Spill { file, items });
        true
    }

    /// Begins to move the useful records of a file that is more than half useless.
    pub(crate) fn begin_compaction(&mut self, ctx: &mut Context) -> bool {
        let Some(spills) = &mut self.spills else { return false };
        if !spills.may_compact() {
            return false;
        }
        let Some(directory) = spills.choose_directory(ctx) else { return false };
        let Some((old, copies)) = spills.take_wasteful() else { return false };
        let mut batch = Batch { compacts: Some(old), ..Batch::empty() };
        let mut items = Vec::new();
        for copy in copies {
            let Some(local) = self.copies.get(copy) else { continue };
            let Some(record) = local.record().filter(|_| local.may_move_from(old)) else {
                continue;
            };
            batch.push(*copy, local.size_bytes);
            items.push(SpillItem { copy: *copy, size_bytes: local.size_bytes, from: Some(record) });
        }
        if items.is_empty() {
            spills.compacted(ctx, old, false);
            return false;
        }
        let file = SpillFile { directory, number: ctx.next_number() };
        spills.begin(file, batch);
        ctx.push(Effect::Spill { file, items });
        true
    }

    /// Alternates batches of quotas and of all copies.
    fn next_batch(&self, is_wanted: bool, capacity_bytes: u64) -> Picked {
        let mut picked = Picked::default();
        let Some(spills) = &self.spills else { return picked };
        let batch_bytes = Spills::batch_bytes(capacity_bytes);
        let all = is_wanted.then_some((&spills.idle, batch_bytes, None));
        let quotas = self.quotas.to_spill();
        let quotas =
            quotas.map(|(account, idle, bytes)| (idle, bytes.min(batch_bytes), Some(account)));
        let mut lists: Vec<_> = all.into_iter().chain(quotas).collect();
        if !spills.was_for_quota && is_wanted {
            lists.rotate_left(1);
        }
        for (idle, most_bytes, account) in lists {
            self.pick(idle, most_bytes, &mut picked);
            if !picked.batch.copies.is_empty() {
                picked.account = account.cloned();
                break;
            }
        }
        picked
    }

    fn pick(&self, idle: &IdleCopies, most_bytes: u64, picked: &mut Picked) {
        let Some(spills) = &self.spills else { return };
        let Picked { batch, barred, .. } = picked;
        let (room_bytes, mut planned) = (spills.room_in_files(), BTreeMap::new());
        for (copy, bytes) in idle.dirty().take(MAX_EXAMINED) {
            let is_first = batch.copies.is_empty();
            let is_full =
                batch.copies.len() >= MAX_BATCH_OBJECTS || batch.arena_bytes >= most_bytes;
            if !is_first && (is_full || batch.arena_bytes + bytes > most_bytes) {
                break;
            }
            let local = &self.copies[&copy];
            let length_bytes = SpillRecord::length_bytes(local.size_bytes);
            if batch.length_bytes + length_bytes > room_bytes {
                continue;
            }
            match self.quotas.plan_record(&mut planned, local.charge(), length_bytes) {
                Ok(()) => {
                    batch.push(copy, local.size_bytes);
                    batch.arena_bytes += bytes;
                }
                Err(account) => barred.push((copy, account)),
            }
        }
    }

    /// Handles a written file. Returns its live copies with their offsets.
    pub(crate) fn spilled(
        &mut self,
        ctx: &mut Context,
        file: SpillFile,
        outcome: Result<(), SpillFault>,
    ) -> (Vec<(CopyId, u64)>, Option<Compaction>) {
        let Some(spills) = &mut self.spills else { return Default::default() };
        let Some(batch) = spills.end(file) else { return Default::default() };
        if let Some(old) = batch.compacts {
            let (places, compaction) = self.compacted(ctx, old, (file, &batch), outcome);
            return (places, Some(compaction));
        }
        let (mut kept, mut places) = (Vec::new(), Vec::new());
        for (copy, size_bytes) in &batch.copies {
            let Some(local) = self.copies.get_mut(copy) else { continue };
            let is_kept = outcome.is_ok() && local.is_live();
            match local.spilled.as_mut().filter(|_| is_kept) {
                Some(spilled) => {
                    spilled.step = SpillStep::Clean;
                    kept.push(*copy);
                    places.push((*copy, spilled.record.offset_bytes));
                    spills.status.spilled_objects += 1;
                    spills.status.spilled_bytes += size_bytes;
                }
                None => {
                    self.quotas.subtract(local.charge_of_disk());
                    local.spilled = None;
                }
            }
        }
        kept.sort_unstable();
        match outcome {
            Ok(()) => spills.written(ctx, file, &batch, kept),
            Err(fault) => spills.directory_failed(ctx, file.directory, fault),
        }
        for (copy, _) in batch.copies {
            self.settle(ctx, copy);
        }
        (places, None)
    }

    fn compacted(
        &mut self,
        ctx: &mut Context,
        old: SpillFile,
        (file, batch): (SpillFile, &Batch),
        outcome: Result<(), SpillFault>,
    ) -> (Vec<(CopyId, u64)>, Compaction) {
        let mut places = Vec::new();
        let again = !matches!(outcome, Err(SpillFault::Damaged(_) | SpillFault::Unread(_)));
        let mut compaction = Compaction { old, moved: Vec::new(), again };
        let Some(spills) = &mut self.spills else { return (places, compaction) };
        match outcome {
            Ok(()) => {
                let mut moved = Vec::new();
                for (copy, size_bytes, record) in batch.records(file) {
                    let local = self.copies.get_mut(&copy).filter(|local| local.may_move_from(old));
                    if let Some(spilled) = local.and_then(|local| local.spilled.as_mut()) {
                        compaction.moved.push((spilled.record, size_bytes));
                        spilled.record = record;
                        moved.push(copy);
                        places.push((copy, record.offset_bytes));
                    }
                }
                moved.sort_unstable();
                spills.written(ctx, file, batch, moved);
            }
            // The next load of the copy fails.
            Err(SpillFault::Damaged(_)) => {}
            Err(fault @ SpillFault::Unread(_)) => {
                spills.directory_failed(ctx, old.directory, fault)
            }
            Err(fault) => spills.directory_failed(ctx, file.directory, fault),
        }
        (places, compaction)
    }

    /// Releases the old file's records, once the new file's index is written.
    pub(crate) fn end_compaction(&mut self, ctx: &mut Context, compaction: Compaction) {
        let Some(spills) = &mut self.spills else { return };
        for (record, size_bytes) in compaction.moved {
            spills.release(ctx, record, size_bytes);
        }
        spills.compacted(ctx, compaction.old, compaction.again);
    }

    pub(crate) fn drop_memory(&mut self, ctx: &mut Context, copy: CopyId) {
        self.keep(copy);
        let Some(spills) = &mut self.spills else { return };
        let local = self.copies.get_mut(&copy).expect("a clean copy exists");
        let Some(spilled) = &mut local.spilled else { return };
        spilled.step = SpillStep::Away;
        spills.status.objects += 1;
        spills.status.bytes += local.size_bytes;
        self.quotas.subtract(local.charge_of_memory());
        let extent = std::mem::replace(&mut local.extent, NO_EXTENT);
        if local.is_pinned() {
            self.pinned_bytes -= extent.length_bytes;
        }
        ctx.push(Effect::CopyClosed { copy });
        self.free(extent);
    }

    pub(crate) fn begin_load(&mut self, ctx: &mut Context, copy: CopyId, extent: Extent) {
        self.reserved_bytes -= extent.length_bytes;
        let local = self.copy_mut(copy);
        let size_bytes = local.size_bytes;
        let Some(spilled) = &mut local.spilled else { return };
        (spilled.step, spilled.fault) = (SpillStep::Loading, None);
        let record = spilled.record;
        local.extent = extent;
        if local.is_pinned() {
            self.pinned_bytes += extent.length_bytes;
        }
        self.quotas.add(self.copies[&copy].charge_of_memory());
        self.count_away(size_bytes);
        ctx.push(Effect::CopyOpened { copy, extent, size_bytes, producer: Producer::Store });
        ctx.push(Effect::Load { copy, size_bytes, record });
    }

    fn count_away(&mut self, size_bytes: u64) {
        if let Some(spills) = &mut self.spills {
            spills.status.objects -= 1;
            spills.status.bytes -= size_bytes;
        }
    }

    pub(crate) fn end_load(&mut self, ctx: &mut Context, copy: CopyId, is_loaded: bool) -> bool {
        let Some(local) = self.copies.get_mut(&copy) else { return false };
        let (is_live, size_bytes, is_served) =
            (local.is_live(), local.size_bytes, local.serves > 0);
        let Some(spilled) =
            local.spilled.as_mut().filter(|spilled| spilled.step == SpillStep::Loading)
        else {
            return false;
        };
        spilled.step = SpillStep::Clean;
        if let Some(spills) = &mut self.spills {
            spills.status.failures += u64::from(!is_loaded);
            spills.status.loaded_objects += u64::from(is_loaded);
            spills.status.loaded_bytes += if is_loaded { size_bytes } else { 0 };
            if !is_live || (is_loaded && spills.is_scarce() && !is_served) {
                self.release_record(ctx, copy);
            }
        }
        self.reconsider_file(copy);
        if is_live && is_loaded {
            ctx.push(Effect::CopyCompleted { copy });
            // Calls that wait for this copy are among the waiters for memory.
            self.has_new_space = true;
            self.settle(ctx, copy);
        } else if !is_live {
            self.settle(ctx, copy);
        }
        is_live
    }

    pub(crate) fn set_unreadable(&mut self, copy: CopyId, retry_at: Time, reason: String) {
        if let Some(spilled) = &mut self.copy_mut(copy).spilled {
            spilled.fault = Some((retry_at, reason));
        }
    }

    /// Returns `true` if this store has the copy's bytes only in this record.
    pub(crate) fn record_failed(&mut self, copy: CopyId, record: SpillRecord) -> bool {
        let local = self.copies.get(&copy).filter(|local| local.is_live() && local.is_away());
        let is_needed = local.is_some_and(|local| local.record() == Some(record));
        if let Some(spills) = &mut self.spills {
            spills.status.failures += u64::from(is_needed);
        }
        is_needed
    }

    /// Serves a spilled copy, or refuses soon after a failed read.
    pub(super) fn serve_spilled(&mut self, ctx: &mut Context, serve: ServeId, copy: CopyId) {
        let now = ctx.now();
        let local = self.copy_mut(copy);
        let record = local.record().filter(|_| local.spill_error(now).is_none());
        let Some(record) = record else { return ctx.push(Effect::ServeRefused { serve }) };
        local.serves += 1;
        let size_bytes = local.size_bytes;
        self.serves.insert(serve, copy);
        ctx.push(Effect::ServeSpilled { serve, copy, size_bytes, record });
    }

    pub(super) fn reconsider_file(&mut self, copy: CopyId) {
        let record = self
            .copies
            .get(&copy)
            .filter(|local| local.serves == 0)
            .and_then(|local| local.record());
        if let (Some(spills), Some(record)) = (&mut self.spills, record) {
            spills.reconsider(record.file);
        }
    }

    pub(super) fn release_record(&mut self, ctx: &mut Context, copy: CopyId) {
        let Some(local) = self.copies.get_mut(&copy) else { return };
        if let (Some(spills), Some(spilled)) = (&mut self.spills, local.spilled.take()) {
            self.quotas.subtract(local.charge_of_disk());
            spills.release(ctx, spilled.record, local.size_bytes);
        }
    }

    /// Drops a copy's record, unless it is being written or loaded.
    pub(super) fn forget_spilled(&mut self, ctx: &mut Context, copy: CopyId) {
        let local = &self.copies[&copy];
        let Some(spilled) = &local.spilled else { return };
        match spilled.step {
            SpillStep::Writing | SpillStep::Loading => {}
            SpillStep::Clean => self.release_record(ctx, copy),
            SpillStep::Away => {
                let size_bytes = local.size_bytes;
                self.count_away(size_bytes);
                self.release_record(ctx, copy);
            }
        }
    }
}

impl LocalCopy {
    fn record(&self) -> Option<SpillRecord> {
        self.spilled.as_ref().map(|spilled| spilled.record)
    }

    fn may_move_from(&self, file: SpillFile) -> bool {
        let is_still = matches!(self.step(), Some(SpillStep::Clean | SpillStep::Away));
        is_still && self.serves == 0 && self.record().is_some_and(|record| record.file == file)
    }

    fn step(&self) -> Option<SpillStep> {
        self.spilled.as_ref().map(|spilled| spilled.step)
    }

    pub(crate) fn is_resident(&self) -> bool {
        !matches!(self.step(), Some(SpillStep::Away | SpillStep::Loading))
    }

    pub(crate) fn is_away(&self) -> bool {
        self.step() == Some(SpillStep::Away)
    }

    pub(super) fn is_in_motion(&self) -> bool {
        matches!(self.step(), Some(SpillStep::Writing | SpillStep::Loading))
    }

    pub(crate) fn spill_error(&self, now: Time) -> Option<Error> {
        let (until, reason) = self.spilled.as_ref()?.fault.as_ref()?;
        (now < *until)
            .then(|| Error::SpillFailed { id: self.id.clone(), reason: reason.clone().into() })
    }
}
