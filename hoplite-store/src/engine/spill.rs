use std::sync::Arc;
use std::time::Instant;

use hoplite_core::node::{CopyId, Event, SpillFault, SpillFile, SpillItem, SpillRecord};
use hoplite_daemon::warn_repeated;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use super::Engine;
use crate::spill::{Change, Source, SpillFiles, SpilledCopy};

impl Engine {
    /// Enables spilling to these files, and recovers objects. Called once.
    pub(crate) fn spill_to(self: &Arc<Self>, files: Option<SpillFiles>) {
        if let Some(files) = files {
            let recovered = files.take_recovered();
            let _ = self.spill.set(Arc::new(files));
            self.apply(Event::Recover(recovered));
        }
    }

    pub(crate) fn spills(&self) -> bool {
        self.spill.get().is_some()
    }

    /// Keeps the spill files for the next start, which recovers their objects.
    pub(crate) fn keep_spill_files(&self) {
        if let Some(files) = self.spill.get() {
            files.keep();
        }
    }

    pub(crate) fn remove_spill_files(&self) {
        if let Some(files) = self.spill.get() {
            files.remove_all();
        }
    }

    fn disk(&self) -> (&Handle, CancellationToken) {
        (&self.bulk.runtime, self.stop.clone())
    }

    pub(super) fn start_spill(self: &Arc<Self>, file: SpillFile, items: &[SpillItem]) {
        let source = |item: &SpillItem| {
            let source = match item.from {
                None => Source::Memory(
                    self.copies.get(item.copy).expect("a copy is open while it is written"),
                ),
                Some(record) => Source::Record(record),
            };
            (item.copy, item.size_bytes, source)
        };
        let copies: Vec<_> = items.iter().map(source).collect();
        let engine = Arc::clone(self);
        let task = async move {
            let started = Instant::now();
            let bytes: u64 = copies.iter().map(|(_, size_bytes, _)| size_bytes).sum();
            let objects = copies.len();
            let outcome = match engine.spill.get() {
                Some(files) => files.write(engine.disk(), file, copies).await,
                None => Err(SpillFault::Failed("no directory for spill files".to_owned())),
            };
            match &outcome {
                Ok(()) => {
                    let seconds = started.elapsed().as_secs_f64();
                    tracing::debug!(?file, objects, bytes, seconds, "spilled");
                }
                Err(fault) => warn_repeated!(%fault, "cannot spill"),
            }
            engine.apply(Event::Spilled { file, outcome });
        };
        self.tasks.spawn_on(task, &self.bulk.runtime);
    }

    pub(super) fn start_load(self: &Arc<Self>, copy: CopyId, record: SpillRecord) {
        let live = self.copies.get(copy).expect("a copy is open while it is read from a file");
        let engine = Arc::clone(self);
        let task = async move {
            let started = Instant::now();
            let bytes = live.size_bytes();
            let outcome = match engine.spill.get() {
                Some(files) => files.read(engine.disk(), record, copy, live).await,
                None => Err(SpillFault::Failed("no directory for spill files".to_owned())),
            };
            match &outcome {
                Ok(()) => {
                    let seconds = started.elapsed().as_secs_f64();
                    tracing::debug!(?copy, bytes, seconds, "read from a spill file");
                }
                Err(fault) => warn_repeated!(%fault, "cannot read a spilled object"),
            }
            engine.apply(Event::Loaded { copy, outcome });
        };
        self.tasks.spawn_on(task, &self.bulk.runtime);
    }

    /// Calls `end` when the read is over.
    pub(super) fn spilled_copy(
        self: &Arc<Self>,
        copy: CopyId,
        size_bytes: u64,
        record: SpillRecord,
        end: impl FnOnce() + Send + Sync + 'static,
    ) -> Option<SpilledCopy> {
        let (files, runtime) = (Arc::clone(self.spill.get()?), self.bulk.runtime.clone());
        let engine = Arc::clone(self);
        let failed = Box::new(move |fault: SpillFault| {
            warn_repeated!(%fault, "cannot read a spilled object for another store");
            engine.apply(Event::RecordFailed { copy, record, fault });
        });
        Some(SpilledCopy {
            files,
            runtime,
            copy,
            size_bytes,
            record,
            failed,
            end: Some(Box::new(end)),
        })
    }

    pub(super) fn change_spill_files(&self, change: Change) {
        let Some(files) = self.spill.get().map(Arc::clone) else { return };
        match change {
            Change::Remove(file) if !files.recovers() => {
                self.bulk.runtime.spawn_blocking(move || files.remove(file));
            }
            change => {
                if files.queue(change) {
                    self.bulk.runtime.spawn_blocking(move || files.work());
                }
            }
        }
    }
}
