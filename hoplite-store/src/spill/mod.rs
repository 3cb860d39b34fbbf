//! Each configured directory has a lock file, and a directory for this run of the store. The lock
//! ends with its process; then its next owner may take over or remove the directories of earlier
//! runs.

mod directory;
mod file;
mod reader;

mod changes;
mod frames;
mod index;
mod ledger;
mod recovery;
mod run_log;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{fs, io};

use hoplite_core::node::{CopyId, Recovered, SpillConfig, SpillFault, SpillFile, SpillRecord};
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
pub(crate) use file::Source;
use file::{FileHeader, Owner, Stamp};
pub(crate) use ledger::Change;
use ledger::Ledger;
pub(crate) use reader::{NotRead, SpilledCopy};
use recovery::Takeover;
use run_log::Origin;

/// Most whole objects read into memory at once.
const MAX_LOADS: usize = 16;
/// Most blocks read for other stores at once.
const MAX_SERVES: usize = 16;
/// Longest wait for a permit to read, and again for one block from a disk.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct SpillFiles {
    directories: Vec<RunDirectory>,
    owner: Owner,
    limit_bytes: Option<u64>,
    recovers: bool,
    ledger: Mutex<Ledger>,
    /// Objects of killed stores, until the node takes them over.
    recovered: Mutex<Recovered>,
    /// Headers of killed stores' files.
    headers: BTreeMap<SpillFile, Box<FileHeader>>,
    /// `true` if the files outlive this run.
    is_kept: AtomicBool,
    loads: Arc<Semaphore>,
    /// Blocks that loads have read: they tell a busy disk from a hung one.
    loaded_blocks: AtomicU64,
    serves: Arc<Semaphore>,
}

impl SpillFiles {
    /// Takes the configured directories, and recovers or removes the files of ended stores. `None`
    /// if the store does not spill. Fails if a directory cannot be used.
    pub(crate) async fn take(config: &StoreConfig) -> Result<Option<Self>, StoreError> {
        let run = random_number().map_err(StoreError::Random)?;
        let owner = Owner { node: config.node.clone(), run };
        let (settings, cluster) = (config.spill.clone(), config.cluster.clone());
        let max_objects = config.limits.max_objects;
        let take = move || Self::take_now(&settings, owner, &Origin::of(&cluster), max_objects);
        let taken = spawn_blocking(take).await;
        Ok(taken.map_err(|error| StoreError::Thread(error.into()))??)
    }

    fn take_now(
        settings: &SpillSettings,
        owner: Owner,
        origin: &Origin,
        max_objects: usize,
    ) -> Result<Option<Self>, SpillDirError> {
        if settings.directories.is_empty() {
            return Ok(None);
        }
        let mut directories: Vec<RunDirectory> = Vec::new();
        for path in &settings.directories {
            let taken = RunDirectory::take(path, &owner, &directories)?;
            directories.push(taken);
        }
        let mut takeover = Takeover::default();
        for (index, directory) in directories.iter().enumerate() {
            if settings.recover {
                directory.create()?;
                directory.begin_log(origin)?;
                for run in directory.earlier_runs()? {
                    takeover.take(&run, (index, directory), origin, max_objects)?;
                }
                directory.remove_earlier_runs()?;
            } else {
                // Removed first, because they may fill the disk.
                directory.remove_earlier_runs()?;
                directory.create()?;
            }
        }
        takeover.report();
        Ok(Some(Self {
            directories,
            owner,
            limit_bytes: settings.limit_bytes,
            recovers: settings.recover,
            ledger: Mutex::new(Ledger::of_recovered(takeover.indexed)),
            recovered: Mutex::new(takeover.recovered),
            headers: takeover.headers,
            is_kept: AtomicBool::new(false),
            loads: Arc::new(Semaphore::new(MAX_LOADS)),
            loaded_blocks: AtomicU64::new(0),
            serves: Arc::new(Semaphore::new(MAX_SERVES)),
        }))
    }

    pub(crate) const fn recovers(&self) -> bool {
        self.recovers
    }

    pub(crate) fn take_recovered(&self) -> Recovered {
        self.directories.iter().for_each(|directory| directory.keep(false));
        std::mem::take(&mut self.recovered.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn config(&self) -> SpillConfig {
        let names =
            self.directories.iter().map(|directory| directory.parent().display().to_string());
        SpillConfig { directories: names.collect(), limit_bytes: self.limit_bytes }
    }

    fn path(&self, file: SpillFile) -> PathBuf {
        self.directories[file.directory].path_of(file.number)
    }

    fn stamp(&self, file: SpillFile, copy: CopyId) -> Stamp {
        match self.headers.get(&file) {
            Some(header) => Stamp { file: **header, copy: None },
            None => Stamp { file: self.owner.file_header(file.number), copy: Some(copy) },
        }
    }

    /// Writes a file, and waits until it is on the disk. `stop` ends the write early. A failure
    /// removes the file.
    pub(crate) async fn write(
        self: &Arc<Self>,
        (runtime, stop): (&Handle, CancellationToken),
        file: SpillFile,
        copies: Vec<(CopyId, u64, Source)>,
    ) -> Result<(), SpillFault> {
        let files = Arc::clone(self);
        let write = move || {
            let path = files.path(file);
            let lengths =
                copies.iter().map(|(_, size_bytes, _)| SpillRecord::length_bytes(*size_bytes));
            let length_bytes = SpillRecord::FILE_HEADER_BYTES + lengths.sum::<u64>();
            files.directories[file.directory].check_room(length_bytes)?;
            let old = |record: SpillRecord, copy| {
                (files.path(record.file), files.stamp(record.file, copy))
            };
            let written = file::write(&path, (&files.owner, file.number), &copies, old, &stop);
            if written.is_err() {
                let _ = fs::remove_file(&path);
            }
            written
        };
        runtime
            .spawn_blocking(write)
            .await
            .unwrap_or_else(|error| Err(SpillFault::Failed(error.to_string())))
    }

    /// Reads and checks a copy. `stop` ends the read early. After a failure, the copy's memory is
    /// meaningless.
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
            let stamp = files.stamp(record.file, copy);
            let has_read = || {
                files.loaded_blocks.fetch_add(1, Ordering::Relaxed);
            };
            file::read(&path, &stamp, record.offset_bytes, (&live, has_read), &stop)
        };
        runtime
            .spawn_blocking(read)
            .await
            .unwrap_or_else(|error| Err(SpillFault::Failed(error.to_string())))
    }

    /// Waits for a permit to load; `None` if running loads have read no block for [`READ_TIMEOUT`].
    async fn load_permit(&self) -> Option<OwnedSemaphorePermit> {
        let mut permit = pin!(Arc::clone(&self.loads).acquire_owned());
        loop {
            let loaded_blocks = self.loaded_blocks.load(Ordering::Relaxed);
            match timeout(READ_TIMEOUT, permit.as_mut()).await {
                Ok(permit) => return permit.ok(),
                Err(_) if self.loaded_blocks.load(Ordering::Relaxed) == loaded_blocks => {
                    return None;
                }
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

    pub(crate) fn keep(&self) {
        self.is_kept.store(true, Ordering::Relaxed);
        self.directories.iter().for_each(|directory| directory.keep(true));
    }

    pub(crate) fn remove_all(&self) {
        if !self.is_kept.load(Ordering::Relaxed) {
            self.directories.iter().for_each(RunDirectory::remove);
        }
    }
}

fn no_answer(path: &Path) -> SpillFault {
    SpillFault::Failed(format!(
        "cannot read {}: no answer of the disk for {READ_TIMEOUT:?}",
        path.display()
    ))
}
