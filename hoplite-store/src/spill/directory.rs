use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use hoplite_core::node::SpillFault;
use hoplite_core::shard::ShardRun;
use rustix::fs::{FlockOperation, OFlags, flock, statvfs};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::file::Owner;
use super::run_log::{Origin, RunLog};

const LOCK_NAME: &str = "hoplite-spill.lock";
const RUN_PREFIX: &str = "hoplite-spill.run.";
/// Share of a file system that stays free, unless [`FREE_BYTES`] are less.
const FREE_PERCENT: u64 = 5;
const FREE_BYTES: u64 = 1 << 30;

/// Reason why a directory cannot be used for spill files.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say it")]
pub enum SpillDirError {
    #[error("the spill directory {} does not exist", path.display())]
    Missing { path: PathBuf },
    #[error("{} is not a directory, so it cannot have spill files", path.display())]
    NotADirectory { path: PathBuf },
    /// Another user could replace the files.
    #[error(
        "the spill directory {} belongs to user {owner}: it must belong to the user of the store, or to root",
        path.display()
    )]
    OtherOwner { path: PathBuf, owner: u32 },
    #[error(
        "other users may write to the spill directory {} (mode {mode:o}): run chmod go-w, or set the sticky bit",
        path.display()
    )]
    OthersMayWrite { path: PathBuf, mode: u32 },
    #[error("the spill directory {} is in use by another store", path.display())]
    InUse { path: PathBuf },
    #[error("the spill directory {} is named more than once", path.display())]
    Twice { path: PathBuf },
    #[error("cannot use the spill directory {}", path.display())]
    Unusable {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

#[derive(Debug)]
pub(super) struct RunDirectory {
    parent: PathBuf,
    path: PathBuf,
    /// Device and inode of the parent directory.
    identity: (u64, u64),
    /// `None` after a failure to write the log.
    log: Mutex<Option<RunLog>>,
    /// `true` while the files of killed stores must outlive this value.
    is_kept: AtomicBool,
    _lock: File,
}

impl RunDirectory {
    /// Locks `parent`, a configured directory for spill files. `others` are locked already.
    pub(super) fn take(
        parent: &Path,
        Owner { node, run }: &Owner,
        others: &[Self],
    ) -> Result<Self, SpillDirError> {
        let path = parent.to_owned();
        let unusable = |source| SpillDirError::Unusable { path: parent.to_owned(), source };
        let found = match fs::metadata(parent) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(SpillDirError::Missing { path });
            }
            Err(error) => return Err(unusable(error)),
        };
        if !found.is_dir() {
            return Err(SpillDirError::NotADirectory { path });
        }
        let (user, owner) = (geteuid().as_raw(), found.uid());
        if owner != user && owner != 0 {
            return Err(SpillDirError::OtherOwner { path, owner });
        }
        let mode = found.mode() & 0o7777;
        let is_sticky = mode & 0o1000 != 0;
        if mode & 0o022 != 0 && !is_sticky {
            return Err(SpillDirError::OthersMayWrite { path, mode });
        }
        let identity = (found.dev(), found.ino());
        if others.iter().any(|other| other.identity == identity) {
            return Err(SpillDirError::Twice { path });
        }
        let lock = lock(parent)?;
        let path = parent.join(format!("{RUN_PREFIX}{node}.{run:016x}"));
        Ok(Self {
            parent: parent.to_owned(),
            path,
            identity,
            log: Mutex::new(None),
            is_kept: AtomicBool::new(false),
            _lock: lock,
        })
    }

    pub(super) fn create(&self) -> Result<(), SpillDirError> {
        DirBuilder::new().mode(0o700).create(&self.path).map_err(|source| self.unusable(source))
    }

    /// Without the log, a later run recovers no object.
    pub(super) fn begin_log(&self, origin: &Origin) -> Result<(), SpillDirError> {
        let log = RunLog::begin(&self.path, origin).map_err(|source| self.unusable(source))?;
        *self.log.lock().unwrap_or_else(PoisonError::into_inner) = Some(log);
        Ok(())
    }

    /// Removes the log, so that no later run recovers a deleted object.
    pub(super) fn end_log(&self) {
        *self.log.lock().unwrap_or_else(PoisonError::into_inner) = None;
        RunLog::remove(&self.path);
    }

    /// If `is_kept`, dropping this value keeps the directory for another start.
    pub(super) fn keep(&self, is_kept: bool) {
        self.is_kept.store(is_kept, Ordering::Relaxed);
    }

    pub(super) fn note_shards(&self, runs: impl IntoIterator<Item = ShardRun>) -> io::Result<()> {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let noted = log.as_mut().map_or(Ok(()), |log| log.note(runs));
        if noted.is_err() {
            *log = None;
        }
        noted
    }

    /// Directories of ended stores of the same user.
    pub(super) fn earlier_runs(&self) -> Result<Vec<PathBuf>, SpillDirError> {
        let user = geteuid().as_raw();
        let find = || {
            let mut found = Vec::new();
            for entry in fs::read_dir(&self.parent)? {
                let entry = entry?;
                let is_named_so = entry.file_name().to_string_lossy().starts_with(RUN_PREFIX);
                if !is_named_so || entry.path() == self.path {
                    continue;
                }
                // Does not follow links.
                let metadata = entry.metadata()?;
                if metadata.is_dir() && metadata.uid() == user {
                    found.push(entry.path());
                }
            }
            found.sort_unstable();
            Ok(found)
        };
        find().map_err(|source| self.unusable(source))
    }

    pub(super) fn remove_earlier_runs(&self) -> Result<(), SpillDirError> {
        for path in self.earlier_runs()? {
            tracing::info!(path = %path.display(), "removing the spill files of a store that has ended");
            fs::remove_dir_all(path).map_err(|source| self.unusable(source))?;
        }
        Ok(())
    }

    pub(super) fn unusable(&self, source: io::Error) -> SpillDirError {
        SpillDirError::Unusable { path: self.parent.clone(), source }
    }

    pub(super) fn parent(&self) -> &Path {
        &self.parent
    }

    pub(super) fn path_of(&self, number: u64) -> PathBuf {
        self.path.join(format!("{number:016x}.spill"))
    }

    pub(super) fn check_room(&self, length_bytes: u64) -> Result<(), SpillFault> {
        let room = statvfs(&self.path)
            .map_err(|error| SpillFault::Failed(format!("{}: {error}", self.path.display())))?;
        let total_bytes = room.f_blocks.saturating_mul(room.f_frsize);
        let available_bytes = room.f_bavail.saturating_mul(room.f_frsize);
        let kept_bytes = FREE_BYTES.min(total_bytes / 100 * FREE_PERCENT);
        if available_bytes < length_bytes.saturating_add(kept_bytes) {
            return Err(SpillFault::Full(format!(
                "{available_bytes} bytes of the file system are free, and {kept_bytes} must stay free"
            )));
        }
        Ok(())
    }

    pub(super) fn remove(&self) {
        match fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(path = %self.path.display(), %error, "cannot remove spill files");
            }
            _ => {}
        }
    }
}

impl Drop for RunDirectory {
    fn drop(&mut self) {
        if !self.is_kept.load(Ordering::Relaxed) {
            self.remove();
        }
    }
}

fn lock(parent: &Path) -> Result<File, SpillDirError> {
    let unusable = |source| SpillDirError::Unusable { path: parent.to_owned(), source };
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let no_link = OFlags::NOFOLLOW.bits().try_into().unwrap_or_default();
    let lock = options.custom_flags(no_link).open(parent.join(LOCK_NAME)).map_err(unusable)?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(Errno::WOULDBLOCK) => Err(SpillDirError::InUse { path: parent.to_owned() }),
        Err(error) => Err(unusable(error.into())),
    }
}
