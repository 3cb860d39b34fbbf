use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use hoplite_core::node::{CopyId, SpillFault, SpillRecord};
use tokio::runtime::Handle;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::file::Record;
use super::{READ_TIMEOUT, SpillFiles, no_answer};

/// The right to read a copy from its spill file, until dropped.
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
    /// Begins to read a range of the object. The open file stays readable after its removal.
    pub(crate) async fn open(&self, range: Range<u64>) -> Result<SpilledReader<'_>, NotRead> {
        let (offset_bytes, size_bytes) = (self.record.offset_bytes, self.size_bytes);
        let path: PathBuf = self.files.path(self.record.file);
        let stamp = self.files.stamp(self.record.file, self.copy);
        let opening = self.start(move || Record::open(path, &stamp, offset_bytes, size_bytes));
        let record = self.finish(opening).await?;
        Ok(SpilledReader { spilled: self, record: Arc::new(record), rest: range, ahead: None })
    }

    /// Starts `work` when fewer than [`MAX_SERVES`](super::MAX_SERVES) reads run, to limit the
    /// threads of a hung disk.
    fn start<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, SpillFault> + Send + 'static,
    ) -> Disk<T> {
        let (files, file) = (Arc::clone(&self.files), self.record.file);
        let runtime = self.runtime.clone();
        AbortOnDropHandle::new(self.runtime.spawn(async move {
            let permit = timeout(READ_TIMEOUT, Arc::clone(&files.serves).acquire_owned());
            let permit = permit.await.ok()?.ok()?;
            let work = runtime.spawn_blocking(move || {
                let _permit = permit;
                work()
            });
            Some(match timeout(READ_TIMEOUT, work).await {
                Ok(done) => done.unwrap_or_else(|error| Err(lost(&error))),
                Err(_) => Err(no_answer(&files.path(file))),
            })
        }))
    }

    async fn finish<T>(&self, work: Disk<T>) -> Result<T, NotRead> {
        let done = work.await.unwrap_or_else(|error| Some(Err(lost(&error))));
        done.ok_or(NotRead)?.map_err(|fault| {
            (self.failed)(fault);
            NotRead
        })
    }
}

/// Nothing was read: the read has failed, or other reads occupied the disk for [`READ_TIMEOUT`].
#[derive(Debug)]
pub(crate) struct NotRead;

/// Work on a disk. Its result is `None` if no permit was free for [`READ_TIMEOUT`].
type Disk<T> = AbortOnDropHandle<Option<Result<T, SpillFault>>>;

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

/// Reads an object without a copy in the arena, one block ahead of the caller.
pub(crate) struct SpilledReader<'a> {
    spilled: &'a SpilledCopy,
    record: Arc<Record>,
    rest: Range<u64>,
    ahead: Option<Disk<Vec<u8>>>,
}

impl SpilledReader<'_> {
    /// Returns the next bytes, checked, and their position in the object; `None` at the end. Not
    /// cancel safe.
    pub(crate) async fn next(&mut self) -> Result<Option<(u64, Vec<u8>)>, NotRead> {
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
        let in_block =
            |position: u64| usize::try_from(position - block_start).unwrap_or(usize::MAX);
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::channel;

    use hoplite_core::ClusterId;
    use hoplite_core::id::NodeId;
    use hoplite_core::node::SpillFile;

    use super::super::file::Owner;
    use super::super::run_log::Origin;
    use super::super::{MAX_LOADS, MAX_SERVES};
    use super::*;
    use crate::config::SpillSettings;

    type Faults = Arc<Mutex<Vec<SpillFault>>>;

    fn spilled(directory: &tempfile::TempDir) -> (SpilledCopy, Faults) {
        let directories = vec![directory.path().to_owned()];
        let settings = SpillSettings { directories, ..SpillSettings::default() };
        let owner = Owner { node: NodeId::new("node").unwrap(), run: 1 };
        let origin = Origin::of(&ClusterId::new("cluster").unwrap());
        let files = Arc::new(SpillFiles::take_now(&settings, owner, &origin, 9).unwrap().unwrap());
        let faults = Faults::default();
        let noted = Arc::clone(&faults);
        let record = SpillRecord { file: SpillFile { directory: 0, number: 1 }, offset_bytes: 128 };
        let copy = SpilledCopy {
            files,
            runtime: Handle::current(),
            copy: CopyId(1),
            size_bytes: 1,
            record,
            failed: Box::new(move |fault| noted.lock().unwrap().push(fault)),
            end: None,
        };
        (copy, faults)
    }

    #[tokio::test]
    async fn a_served_block_does_not_wait_for_loads() {
        let directory = tempfile::tempdir().unwrap();
        let (copy, faults) = spilled(&directory);
        let _loads = copy.files.loads.try_acquire_many(MAX_LOADS as u32).unwrap();
        assert_eq!(copy.finish(copy.start(|| Ok(7))).await.unwrap(), 7);
        assert!(copy.open(0..1).await.is_err());
        assert!(
            matches!(&faults.lock().unwrap()[..], [SpillFault::Damaged(_)]),
            "there is no file"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_busy_disk_is_no_failure() {
        let directory = tempfile::tempdir().unwrap();
        let (copy, faults) = spilled(&directory);
        let _serves = copy.files.serves.try_acquire_many(MAX_SERVES as u32).unwrap();
        assert!(copy.open(0..1).await.is_err());
        assert!(faults.lock().unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_hung_read_keeps_its_permit() {
        let directory = tempfile::tempdir().unwrap();
        let (copy, _) = spilled(&directory);
        let (begun, begins) = tokio::sync::oneshot::channel();
        let (answer, answered) = channel::<()>();
        let hung = copy.start(move || {
            let _ = begun.send(());
            let _ = answered.recv();
            Ok(())
        });
        begins.await.unwrap();
        drop(hung);
        tokio::task::yield_now().await;
        assert_eq!(copy.files.serves.available_permits(), MAX_SERVES - 1);
        drop(answer);
        drop(copy.files.serves.acquire_many(MAX_SERVES as u32).await.unwrap());
    }
}
