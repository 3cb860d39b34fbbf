//! Performs the changes of spill files: indices, run logs, and removals.

use std::fs::{self, File};
use std::io::{self, Write};
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

use hoplite_core::node::{SpillFile, SpillRecord, SpilledObject};
use hoplite_core::shard::ShardRun;
use hoplite_daemon::warn_repeated;

use super::ledger::{Change, Ledger};
use super::{SpillFiles, index};

impl SpillFiles {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a change. Returns `true` if the caller must start [`SpillFiles::work`].
    pub(crate) fn queue(&self, change: Change) -> bool {
        if self.is_kept.load(Ordering::Relaxed) || !self.recovers {
            return false;
        }
        let mut ledger = self.ledger();
        ledger.queue.push_back(change);
        !std::mem::replace(&mut ledger.is_busy, true)
    }

    /// Performs all queued changes. Blocks.
    pub(crate) fn work(&self) {
        loop {
            let mut ledger = self.ledger();
            let Some(change) = ledger.queue.pop_front() else {
                ledger.is_busy = false;
                return;
            };
            drop(ledger);
            match change {
                Change::Index(file, objects) => self.write_index(file, &objects),
                Change::Retire(record) => self.retire(record),
                Change::Remove(file) => {
                    self.ledger().indexed.remove(&file);
                    self.remove(file);
                }
                Change::Shard(run) => self.note_shard(run),
            }
        }
    }

    fn write_index(&self, file: SpillFile, objects: &[SpilledObject]) {
        let path = self.path(file);
        let log = index::encode(objects, index::BootTime::now());
        let written = fs::metadata(&path).and_then(|found| {
            let start = found.len();
            self.append(file, &log, start).map(|()| start)
        });
        match written {
            Ok(start) => drop(self.ledger().indexed.insert(file, start)),
            Err(error) => report(&error, "cannot write the index of a spill file"),
        }
    }

    fn retire(&self, record: SpillRecord) {
        let Some(start) = self.ledger().indexed.get(&record.file).copied() else { return };
        let log = index::encode_retired(record.offset_bytes);
        if let Err(error) = self.append(record.file, &log, start) {
            self.ledger().indexed.remove(&record.file);
            report(&error, "cannot change the index of a spill file");
        }
    }

    /// Appends to the index that begins at `start`. After a failure, a later run recovers nothing
    /// from the file, or nothing at all.
    fn append(&self, file: SpillFile, log: &[u8], start: u64) -> io::Result<()> {
        let path = self.path(file);
        let appended = File::options().append(true).open(&path).and_then(|mut found| found.write_all(log));
        appended.inspect_err(|_| {
            let cut = File::options().write(true).open(&path).and_then(|found| found.set_len(start));
            if cut.is_err() {
                self.directories[file.directory].end_log();
            }
        })
    }

    fn note_shard(&self, run: ShardRun) {
        for directory in &self.directories {
            if let Err(error) = directory.note_shards([run]) {
                report(&error, "cannot change the log beside the spill files");
            }
        }
    }
}

fn report(error: &io::Error, problem: &str) {
    // The store removes its directories when it stops.
    if error.kind() != io::ErrorKind::NotFound {
        warn_repeated!(%error, "{problem}: their objects cannot be recovered after a crash");
    }
}
