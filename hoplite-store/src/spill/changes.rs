use std::fs::{self, File};
use std::io::{self, Write};
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

use hoplite_core::node::{SpillFile, SpillRecord, SpilledObject};
use hoplite_core::shard::ShardRun;
use hoplite_daemon::warn_repeated;

use super::directory::RunDirectory;
use super::ledger::{Change, Ledger, MAX_QUEUED};
use super::{SpillFiles, index};

impl SpillFiles {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns `true` if the caller must start [`SpillFiles::work`].
    pub(crate) fn queue(&self, change: Change) -> bool {
        if self.is_kept.load(Ordering::Relaxed) || !self.recovers {
            return false;
        }
        let mut ledger = self.ledger();
        if ledger.queue.len() < MAX_QUEUED || matches!(change, Change::Remove(_)) {
            ledger.queue.push_back(change);
        } else {
            ledger.has_gap = true;
        }
        !std::mem::replace(&mut ledger.is_busy, true)
    }

    /// Performs all queued changes. Blocks.
    pub(crate) fn work(&self) {
        loop {
            let mut ledger = self.ledger();
            if std::mem::take(&mut ledger.has_gap) {
                // No later run reads the indices, so only the removals matter.
                ledger.queue.retain(|change| matches!(change, Change::Remove(_)));
                drop(ledger);
                self.directories.iter().for_each(RunDirectory::end_log);
                warn_repeated!(
                    "the disks are too slow: spilled objects cannot be recovered after a crash"
                );
                continue;
            }
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

    /// Appends to the index at `start`. A failure cuts off the index, or ends the directory's log,
    /// so that no later run recovers a deleted object.
    fn append(&self, file: SpillFile, log: &[u8], start: u64) -> io::Result<()> {
        let path = self.path(file);
        let appended =
            File::options().append(true).open(&path).and_then(|mut found| found.write_all(log));
        appended.inspect_err(|_| {
            let cut =
                File::options().write(true).open(&path).and_then(|found| found.set_len(start));
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
    // The stopping store may have removed its directories.
    if error.kind() != io::ErrorKind::NotFound {
        warn_repeated!(%error, "{problem}: their objects cannot be recovered after a crash");
    }
}

#[cfg(test)]
mod tests {
    use hoplite_core::ClusterId;
    use hoplite_core::id::NodeId;

    use super::super::file::Owner;
    use super::super::run_log::{self, Origin};
    use super::*;
    use crate::config::SpillSettings;

    #[test]
    fn with_too_many_changes_nothing_can_be_recovered() {
        let place = tempfile::tempdir().unwrap();
        let directories = vec![place.path().to_owned()];
        let settings = SpillSettings { directories, limit_bytes: None, recover: true };
        let origin = Origin::of(&ClusterId::new("cluster").unwrap());
        let owner = Owner { node: NodeId::new("node").unwrap(), run: 1 };
        let files = SpillFiles::take_now(&settings, owner, &origin, 100).unwrap().unwrap();
        let mut run = fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().path());
        let run = run.find(|path| path.is_dir()).unwrap();
        let record = SpillRecord { file: SpillFile { directory: 0, number: 1 }, offset_bytes: 0 };
        assert!(files.queue(Change::Retire(record)));
        files.work();
        assert!(run_log::read(&run, &origin).is_ok());
        for _ in 0..MAX_QUEUED {
            files.queue(Change::Retire(record));
        }
        assert!(!files.ledger().has_gap);
        files.queue(Change::Retire(record));
        files.queue(Change::Remove(record.file));
        assert_eq!(files.ledger().queue.len(), MAX_QUEUED + 1);
        files.work();
        assert!(run_log::read(&run, &origin).is_err());
        assert!(files.queue(Change::Retire(record)), "the queue works again");
    }
}
