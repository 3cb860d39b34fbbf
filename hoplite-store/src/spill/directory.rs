//! A directory for spill files, and the part of it for this run of the store.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use hoplite_core::id::NodeId;
use hoplite_core::node::SpillFault;
use rustix::fs::{FlockOperation, OFlags, flock, statvfs};
use rustix::io::Errno;
use rustix::process::geteuid;

const LOCK_NAME: &str = "hoplite-spill.lock";
const RUN_PREFIX: &str = "hoplite-spill.run.";
/// The share of a file system that stays free, unless [`FREE_BYTES`] are less.
const FREE_PERCENT: u64 = 5;
const FREE_BYTES: u64 = 1 << 30;

/// The reason why a directory cannot be used for spill files.
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
    /// For example, the file system is read-only.
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
    /// The device and inode of the parent directory.
    identity: (u64, u64),
    /// The lock of the parent directory, held until the file is closed.
    _lock: File,
}

impl RunDirectory {
    /// Locks `parent`, removes the files of earlier runs, and makes a directory for this run. The
    /// directories `others` are taken already.
    pub(super) fn take(
        parent: &Path,
        node: &NodeId,
        run: u64,
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
        remove_earlier_runs(parent, user).map_err(unusable)?;
        let path = parent.join(format!("{RUN_PREFIX}{node}.{run:016x}"));
        DirBuilder::new().mode(0o700).create(&path).map_err(unusable)?;
        Ok(Self { parent: parent.to_owned(), path, identity, _lock: lock })
    }

    pub(super) fn parent(&self) -> &Path {
        &self.parent
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Checks that a file of this length leaves enough free space on the file system.
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
        self.remove();
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

/// Removes the directories of ended stores. The caller must have the lock.
fn remove_earlier_runs(parent: &Path, user: u32) -> io::Result<()> {
    for entry in fs::read_dir(parent)? {
        let entry = entry?;
        let is_named_so = entry.file_name().to_string_lossy().starts_with(RUN_PREFIX);
        if !is_named_so {
            continue;
        }
        let found = entry.metadata()?;
        if found.is_dir() && found.uid() == user {
            let path = entry.path();
            tracing::info!(path = %path.display(), "removing the spill files of a store that has ended");
            fs::remove_dir_all(path)?;
        }
    }
    Ok(())
}
