//! Spill files, their directories, and the copies that may leave the arena.

use std::collections::{BTreeMap, BTreeSet};

use super::super::context::Context;
use super::super::fetch::back_off;
use super::super::idle::IdleCopies;
use super::super::notice::Deadline;
use crate::message::{
    CopyId, Effect, RecoveredFile, SpillConfig, SpillFault, SpillFile, SpillRecord, SpillStatus,
    SpillTrouble,
};
use crate::time::Time;

/// Used share of the arena from which the store spills even without waiting calls.
const START_PERCENT: u64 = 80;
const STOP_PERCENT: u64 = 70;
/// Most bytes of copies in one file, unless one copy is larger.
const BATCH_BYTES: u64 = 100 << 20;
const BATCHES_PER_ARENA: u64 = 8;
pub(super) const MAX_BATCH_OBJECTS: usize = RecoveredFile::MAX_OBJECTS;
const MAX_BATCHES: usize = 2;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Spilled {
    pub(crate) record: SpillRecord,
    pub(crate) step: SpillStep,
    /// Latest failed read: the time of the next attempt, and the error.
    pub(crate) fault: Option<(Time, String)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SpillStep {
    Writing,
    Clean,
    Away,
    Loading,
}

#[derive(Debug, Default)]
struct Directory {
    fault: Option<SpillFault>,
    failures: u32,
    retry_at: Time,
}

#[derive(Debug)]
struct FileUse {
    length_bytes: u64,
    copies: Vec<CopyId>,
    live: usize,
    live_bytes: u64,
    is_compacting: bool,
}

const fn is_wasteful(live_bytes: u64, length_bytes: u64) -> bool {
    live_bytes < length_bytes / 2
}

#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) copies: Vec<(CopyId, u64)>,
    pub(super) length_bytes: u64,
    /// Memory of the copies in the arena; zero if they come from a file.
    pub(super) arena_bytes: u64,
    /// Old file of a compaction; `None` for copies from the arena.
    pub(super) compacts: Option<SpillFile>,
}

impl Batch {
    pub(super) fn empty() -> Self {
        Self { length_bytes: SpillRecord::FILE_HEADER_BYTES, ..Self::default() }
    }

    pub(super) fn push(&mut self, copy: CopyId, size_bytes: u64) {
        self.copies.push((copy, size_bytes));
        self.length_bytes += SpillRecord::length_bytes(size_bytes);
    }

    pub(super) fn records(
        &self,
        file: SpillFile,
    ) -> impl Iterator<Item = (CopyId, u64, SpillRecord)> {
        let mut end_bytes = SpillRecord::FILE_HEADER_BYTES;
        self.copies.iter().map(move |(copy, size_bytes)| {
            let offset_bytes = end_bytes;
            end_bytes += SpillRecord::length_bytes(*size_bytes);
            (*copy, *size_bytes, SpillRecord { file, offset_bytes })
        })
    }
}

#[derive(Debug)]
pub(super) struct Spills {
    config: SpillConfig,
    directories: Vec<Directory>,
    next_directory: usize,
    pub(super) idle: IdleCopies,
    /// `true` if the latest batch was of a quota.
    pub(super) was_for_quota: bool,
    batches: BTreeMap<SpillFile, Batch>,
    files: BTreeMap<SpillFile, FileUse>,
    file_bytes: u64,
    wasteful: BTreeSet<SpillFile>,
    /// `true` once use reaches `START_PERCENT`, until it falls to `STOP_PERCENT`.
    is_above: bool,
    pub(super) status: SpillStatus,
}

impl Spills {
    pub(super) fn new(config: SpillConfig) -> Self {
        Self {
            directories: config.directories.iter().map(|_| Directory::default()).collect(),
            config,
            next_directory: 0,
            idle: IdleCopies::default(),
            was_for_quota: false,
            batches: BTreeMap::new(),
            files: BTreeMap::new(),
            file_bytes: 0,
            wasteful: BTreeSet::new(),
            is_above: false,
            status: SpillStatus::default(),
        }
    }

    pub(super) fn is_wanted(
        &mut self,
        has_waiters: bool,
        used_bytes: u64,
        capacity_bytes: u64,
    ) -> bool {
        let writing: u64 = self.batches.values().map(|batch| batch.arena_bytes).sum();
        let percent =
            used_bytes.saturating_sub(writing).saturating_mul(100) / capacity_bytes.max(1);
        self.is_above = percent >= if self.is_above { STOP_PERCENT + 1 } else { START_PERCENT };
        has_waiters || self.is_above
    }

    pub(super) fn may_begin(&self) -> bool {
        self.idle.has_dirty() && self.batches.len() < MAX_BATCHES
    }

    pub(super) fn batch_bytes(capacity_bytes: u64) -> u64 {
        BATCH_BYTES.min(capacity_bytes / BATCHES_PER_ARENA)
    }

    pub(super) fn room_in_files(&self) -> u64 {
        let writing: u64 = self.batches.values().map(|batch| batch.length_bytes).sum();
        self.config
            .limit_bytes
            .map_or(u64::MAX, |limit| limit.saturating_sub(self.file_bytes + writing))
    }

    /// Chooses the next usable directory. If none is usable, sets a deadline to try again.
    pub(super) fn choose_directory(&mut self, ctx: &mut Context) -> Option<usize> {
        let count = self.directories.len();
        let in_turn = (0..count).map(|step| (self.next_directory + step) % count);
        let usable = in_turn.clone().find(|index| self.directories[*index].retry_at <= ctx.now());
        match usable {
            Some(index) => self.next_directory = (index + 1) % count,
            None => {
                let retry_at = self.directories.iter().map(|directory| directory.retry_at).min();
                retry_at.into_iter().for_each(|time| ctx.schedule(time, Deadline::Spill));
            }
        }
        usable
    }

    pub(super) fn limit_reached(&mut self, ctx: &mut Context, directory: usize) {
        let limit = self.config.limit_bytes.unwrap_or_default();
        let reason = format!("the next spill file does not fit below the limit of {limit} bytes");
        let fault = Some(SpillFault::Full(reason));
        if self.directories.get(directory).is_some_and(|directory| directory.fault != fault) {
            self.status.failures += 1;
        }
        self.rest(ctx, directory, fault);
    }

    pub(super) fn begin(&mut self, file: SpillFile, batch: Batch) {
        self.batches.insert(file, batch);
    }

    pub(super) fn may_compact(&self) -> bool {
        !self.wasteful.is_empty() && self.batches.len() < MAX_BATCHES
    }

    /// Returns a file that is more than half useless, and the copies written to it.
    pub(super) fn take_wasteful(&mut self) -> Option<(SpillFile, &[CopyId])> {
        let file = self.wasteful.pop_first()?;
        let used = self.files.get_mut(&file)?;
        used.is_compacting = true;
        Some((file, &used.copies))
    }

    /// Ends a compaction: removes the file if no copy needs it. With `again`, compacts a still
    /// wasteful file later.
    pub(super) fn compacted(&mut self, ctx: &mut Context, file: SpillFile, again: bool) {
        let Some(used) = self.files.get_mut(&file) else { return };
        used.is_compacting = false;
        if used.live == 0 {
            self.remove(ctx, file);
        } else if again {
            self.reconsider(file);
        }
    }

    pub(super) fn reconsider(&mut self, file: SpillFile) {
        let used = self.files.get(&file).filter(|used| !used.is_compacting);
        if used.is_some_and(|used| is_wasteful(used.live_bytes, used.length_bytes)) {
            self.wasteful.insert(file);
        }
    }

    pub(super) fn end(&mut self, file: SpillFile) -> Option<Batch> {
        self.batches.remove(&file)
    }

    pub(super) fn directory_failed(&mut self, ctx: &mut Context, index: usize, fault: SpillFault) {
        self.status.failures += 1;
        self.rest(ctx, index, Some(fault));
    }

    fn rest(&mut self, ctx: &mut Context, index: usize, fault: Option<SpillFault>) {
        let Some(directory) = self.directories.get_mut(index) else { return };
        directory.failures = directory.failures.saturating_add(1);
        directory.fault = fault;
        directory.retry_at = ctx.now() + back_off(directory.failures.saturating_add(1));
        ctx.schedule(directory.retry_at, Deadline::Spill);
    }

    pub(super) fn written(
        &mut self,
        ctx: &mut Context,
        file: SpillFile,
        batch: &Batch,
        copies: Vec<CopyId>,
    ) {
        if let Some(directory) = self.directories.get_mut(file.directory) {
            *directory = Directory::default();
        }
        if copies.is_empty() {
            return ctx.push(Effect::RemoveSpillFile { file });
        }
        let live = copies.len();
        let lengths = batch.copies.iter().filter(|(copy, _)| copies.binary_search(copy).is_ok());
        let live_bytes: u64 =
            lengths.map(|(_, size_bytes)| SpillRecord::length_bytes(*size_bytes)).sum();
        let length_bytes = batch.length_bytes;
        self.file_bytes += length_bytes;
        if is_wasteful(live_bytes, length_bytes) {
            self.wasteful.insert(file);
        }
        self.files
            .insert(file, FileUse { length_bytes, copies, live, live_bytes, is_compacting: false });
    }

    pub(super) fn release(&mut self, ctx: &mut Context, record: SpillRecord, size_bytes: u64) {
        let Some(used) = self.files.get_mut(&record.file) else { return };
        used.live -= 1;
        used.live_bytes -= SpillRecord::length_bytes(size_bytes);
        if used.live == 0 && !used.is_compacting {
            self.remove(ctx, record.file);
        } else {
            ctx.push(Effect::RetireSpillRecord { record });
            self.reconsider(record.file);
        }
    }

    pub(super) fn adopt(
        &mut self,
        ctx: &mut Context,
        adopted: &RecoveredFile,
        copies: Vec<CopyId>,
        live_bytes: u64,
    ) {
        let (file, length_bytes, live) = (adopted.file, adopted.length_bytes, copies.len());
        self.file_bytes += length_bytes;
        self.files
            .insert(file, FileUse { length_bytes, copies, live, live_bytes, is_compacting: false });
        if live == 0 {
            self.remove(ctx, file);
        } else {
            self.reconsider(file);
        }
    }

    fn remove(&mut self, ctx: &mut Context, file: SpillFile) {
        let Some(used) = self.files.remove(&file) else { return };
        self.file_bytes -= used.length_bytes;
        self.wasteful.remove(&file);
        ctx.push(Effect::RemoveSpillFile { file });
        // The removed file has freed disk space.
        for directory in &mut self.directories {
            if matches!(directory.fault, Some(SpillFault::Full(_))) {
                *directory = Directory::default();
            }
        }
    }

    /// Returns `true` if over half of the files' limit is used: loaded copies then leave their
    /// files.
    pub(super) fn is_scarce(&self) -> bool {
        self.config.limit_bytes.is_some_and(|limit| self.file_bytes > limit / 2)
    }

    pub(super) fn may_make_room(&self) -> bool {
        self.directories.iter().any(|directory| directory.fault.is_none())
    }

    pub(super) fn status(&self) -> SpillStatus {
        SpillStatus {
            clean_bytes: self.idle.clean_bytes(),
            files: self.files.len() as u64,
            file_bytes: self.file_bytes,
            limit_bytes: self.config.limit_bytes.unwrap_or_default(),
            ..self.status
        }
    }

    pub(super) fn troubles(&self) -> impl Iterator<Item = SpillTrouble> {
        let named = self.config.directories.iter().zip(&self.directories);
        named.filter_map(|(name, directory)| {
            Some(SpillTrouble { directory: name.clone(), fault: directory.fault.clone()? })
        })
    }
}
