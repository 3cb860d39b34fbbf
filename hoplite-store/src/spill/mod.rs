//! Spill files: their directories, and writes and reads of whole files and records.
//!
//! Each configured directory has a lock file, and a directory for this run of the store. The lock
//! ends with its process, so the next owner may remove the directories of earlier runs.

mod directory;
mod file;
mod reader;

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{fs, io};

use hoplite_core::id::NodeId;
use hoplite_core::node::{CopyId, SpillConfig, SpillFault, SpillFile, SpillRecord};
use hoplite_daemon::random_number;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::config::{SpillSettings, StoreConfig};
use crate::copies::LiveCopy;
use crate::error::StoreError;
use directory::RunDirectory;
pub use directory::SpillDirError;
use file::Owner;
pub(crate) use file::Source;
pub(crate) use reader::{NotRead, SpilledCopy};

/// Maximum number of whole objects that are read into memory at once.
const MAX_LOADS: usize = 16;
/// Maximum number of blocks that are read for other stores at once.
const MAX_SERVES: usize = 16;
/// Longest wait for a permit, and then for one block from a disk.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct SpillFiles {
    directories: Vec<RunDirectory>,
    owner: Owner,
    limit_bytes: Option<u64>,
    loads: Arc<Semaphore>,
    /// Number of blocks that loads have read, which tells a busy disk from a hung one.
    loaded_blocks: AtomicU64,
    serves: Arc<Semaphore>,
}

impl SpillFiles {
    /// Takes the configured directories, and removes the files of ended stores. Returns `None` if
    /// the store does not spill.
    ///
    /// # Errors
    /// The reason why a directory cannot be used.
    pub(crate) async fn take(config: &StoreConfig) -> Result<Option<Self>, StoreError> {
        let (settings, node) = (config.spill.clone(), config.node.clone());
        let run = random_number().map_err(StoreError::Random)?;
        let taken = spawn_blocking(move || Self::take_now(&settings, &node, run)).await;
        Ok(taken.map_err(|error| StoreError::Thread(error.into()))??)
    }

    fn take_now(settings: &SpillSettings, node: &NodeId, run: u64) -> Result<Option<Self>, SpillDirError> {
        if settings.directories.is_empty() {
            return Ok(None);
        }
        let mut directories: Vec<RunDirectory> = Vec::new();
        for path in &settings.directories {
            let taken = RunDirectory::take(path, node, run, &directories)?;
            directories.push(taken);
        }
        Ok(Some(Self {
            directories,
            owner: Owner { node: node.clone(), run },
            limit_bytes: settings.limit_bytes,
            loads: Arc::new(Semaphore::new(MAX_LOADS)),
            loaded_blocks: AtomicU64::new(0),
            serves: Arc::new(Semaphore::new(MAX_SERVES)),
        }))
    }

    pub(crate) fn config(&self) -> SpillConfig {
        let names = self.directories.iter().map(|directory| directory.parent().display().to_string());
        SpillConfig { directories: names.collect(), limit_bytes: self.limit_bytes }
    }

    fn path(&self, file: SpillFile) -> PathBuf {
        self.directories[file.directory].path().join(format!("{:016x}.spill", file.number))
    }

    /// Writes a file, and waits until it is on the disk. `stop` ends the write early.
    ///
    /// # Errors
    /// The failure of the write. The file is removed then.
    pub(crate) async fn write(
        self: &Arc<Self>,
        (runtime, stop): (&Handle, CancellationToken),
        file: SpillFile,
        copies: Vec<(CopyId, u64, Source)>,
    ) -> Result<(), SpillFault> {
        let files = Arc::clone(self);
        let write = move || {
            let path = files.path(file);
            let lengths = copies.iter().map(|(_, size_bytes, _)| SpillRecord::length_bytes(*size_bytes));
            let length_bytes = SpillRecord::FILE_HEADER_BYTES + lengths.sum::<u64>();
            files.directories[file.directory].check_room(length_bytes)?;
            let old = |record: SpillRecord| files.path(record.file);
            let written = file::write(&path, (&files.owner, file.number), &copies, old, &stop);
            if written.is_err() {
                let _ = fs::remove_file(&path);
            }
            written
        };
        runtime.spawn_blocking(write).await.unwrap_or_else(|error| Err(SpillFault::Failed(error.to_string())))
    }

    /// Reads a copy from its file into memory, and checks it. `stop` ends the read early.
    ///
    /// # Errors
    /// The failure of the read. The copy's memory is meaningless then.
    pub(crate) async fn read(
        self: &Arc<Self>,
        (runtime, stop): (&Handle, CancellationToken),
        record: SpillRecord,
        copy: CopyId,
        live: Arc<LiveCopy>,
    ) -> Result<(), SpillFault> {
        let path = self.path(record.file);
        let permit = self.load_permit().await.ok_or_else(|| no_answer(&path))?;
        let files = Arc::clone(self);
        let read = move || {
            let _permit = permit;
            let place = (record.file.number, record.offset_bytes);
            let has_read = || {
                files.loaded_blocks.fetch_add(1, Ordering::Relaxed);
            };
            file::read(&path, &files.owner, place, copy, (&live, has_read), &stop)
        };
        runtime.spawn_blocking(read).await.unwrap_or_else(|error| Err(SpillFault::Failed(error.to_string())))
    }

    /// Waits for a permit to load an object; `None` after the running loads have read no block for
    /// [`READ_TIMEOUT`].
    async fn load_permit(&self) -> Option<OwnedSemaphorePermit> {
        let mut permit = pin!(Arc::clone(&self.loads).acquire_owned());
        loop {
            let loaded_blocks = self.loaded_blocks.load(Ordering::Relaxed);
            match timeout(READ_TIMEOUT, permit.as_mut()).await {
                Ok(permit) => return permit.ok(),
                Err(_) if self.loaded_blocks.load(Ordering::Relaxed) == loaded_blocks => return None,
                Err(_) => {}
            }
        }
    }

    pub(crate) fn remove(&self, file: SpillFile) {
        let path = self.path(file);
        if let Err(error) = fs::remove_file(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %path.display(), %error, "cannot remove a spill file");
        }
    }

    pub(crate) fn remove_all(&self) {
        self.directories.iter().for_each(RunDirectory::remove);
    }
}

fn no_answer(path: &Path) -> SpillFault {
    SpillFault::Failed(format!("cannot read {}: no answer of the disk for {READ_TIMEOUT:?}", path.display()))
}
