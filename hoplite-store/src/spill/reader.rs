//! Reads of spilled objects, past the arena.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hoplite_core::node::{CopyId, SpillFault, SpillRecord};
use tokio::runtime::Handle;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::SpillFiles;
use super::file::Record;

/// Longest wait for a block. The receiver then looks for another sender.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// The right to read a copy from its spill file until this is dropped.
pub(crate) struct SpilledCopy {
    pub(crate) files: Arc<SpillFiles>,
    pub(crate) runtime: Handle,
    pub(crate) copy: CopyId,
    pub(crate) size_bytes: u64,
    pub(crate) record: SpillRecord,
    pub(crate) failed: Box<dyn Fn(SpillFault) + Send + Sync>,
    pub(crate) end: Option<Box<dyn FnOnce() + Send + Sync>>,
}

impl SpilledCopy {
    /// The open file stays readable after its removal.
    ///
    /// # Errors
    /// The reason why the file cannot be read.
    pub(crate) async fn open(&self, range: Range<u64>) -> Result<SpilledReader<'_>, SpillFault> {
        let (files, copy, size_bytes) = (Arc::clone(&self.files), self.copy, self.size_bytes);
        let place = (self.record.file.number, self.record.offset_bytes);
        let path: PathBuf = files.path(self.record.file);
        let opening = self.start(move || Record::open(path, &files.owner, place, copy, size_bytes));
        let record = self.finish(opening).await?;
        Ok(SpilledReader { spilled: self, record: Arc::new(record), rest: range, ahead: None })
    }

    /// Waits until fewer than [`MAX_READS`](super::MAX_READS) reads run.
    fn start<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, SpillFault> + Send + 'static,
    ) -> Disk<T> {
        let files = Arc::clone(&self.files);
        let runtime = self.runtime.clone();
        AbortOnDropHandle::new(self.runtime.spawn(async move {
            let _permit = files.reads.acquire().await;
            runtime.spawn_blocking(work).await.unwrap_or_else(|error| Err(lost(&error)))
        }))
    }

    async fn finish<T>(&self, work: Disk<T>) -> Result<T, SpillFault> {
        let done = match timeout(READ_TIMEOUT, work).await {
            Ok(done) => done.unwrap_or_else(|error| Err(lost(&error))),
            Err(_) => Err(SpillFault::Failed(format!(
                "cannot read {}: no answer of the disk for {READ_TIMEOUT:?}",
                self.files.path(self.record.file).display()
            ))),
        };
        done.inspect_err(|fault| (self.failed)(fault.clone()))
    }
}

type Disk<T> = AbortOnDropHandle<Result<T, SpillFault>>;

fn lost(error: &tokio::task::JoinError) -> SpillFault {
    SpillFault::Failed(error.to_string())
}

impl Drop for SpilledCopy {
    fn drop(&mut self) {
        if let Some(end) = self.end.take() {
            end();
        }
    }
}

impl fmt::Debug for SpilledCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpilledCopy").field("copy", &self.copy).finish_non_exhaustive()
    }
}

/// Reads one block ahead of the caller.
pub(crate) struct SpilledReader<'a> {
    spilled: &'a SpilledCopy,
    record: Arc<Record>,
    rest: Range<u64>,
    ahead: Option<Disk<Vec<u8>>>,
}

impl SpilledReader<'_> {
    /// Returns the next bytes, checked, and their position in the object; `None` at the end. Not
    /// cancel safe.
    ///
    /// # Errors
    /// The reason why the file cannot be read.
    pub(crate) async fn next(&mut self) -> Result<Option<(u64, Vec<u8>)>, SpillFault> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let position = self.rest.start;
        let block_start = position - position % SpillRecord::BLOCK_BYTES;
        let read = self.ahead.take().unwrap_or_else(|| self.read(block_start));
        let mut block = self.spilled.finish(read).await?;
        let end = (block_start + block.len() as u64).min(self.rest.end);
        self.rest.start = end;
        if !self.rest.is_empty() {
            self.ahead = Some(self.read(end));
        }
        let in_block = |position: u64| usize::try_from(position - block_start).unwrap_or(usize::MAX);
        block.truncate(in_block(end));
        Ok(Some((position, block.split_off(in_block(position)))))
    }

    fn read(&self, offset_bytes: u64) -> Disk<Vec<u8>> {
        let length = (self.spilled.size_bytes - offset_bytes).min(SpillRecord::BLOCK_BYTES);
        let record = Arc::clone(&self.record);
        self.spilled.start(move || {
            let mut block = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
            record.read(offset_bytes, &mut block)?;
            Ok(block)
        })
    }
}
