//! The local copies as those see them who move bytes: their memory, how much of it is valid, and waits for more.
//!
//! When a copy begins and ends is decided in `hoplite_core::node`; nothing here outlives that decision on its own.

use std::fmt;
use std::pin::pin;
use std::sync::{Arc, OnceLock};

use dashmap::DashMap;
use hoplite_core::block::publishable;
use hoplite_core::error::Error;
use hoplite_core::node::{CopyId, Producer};
use hoplite_shm::Buffer;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// One local copy, from `CopyOpened` to `CopyClosed`.
///
/// At most one task writes it at a time; any number wait for its bytes and read them.
pub(crate) struct LiveCopy {
    buffer: Buffer,
    size_bytes: u64,
    producer: Producer,
    progressed: Notify,
    failure: OnceLock<Error>,
    failed: CancellationToken,
}

impl fmt::Debug for LiveCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveCopy")
            .field("size_bytes", &self.size_bytes)
            .field("valid_bytes", &self.valid_bytes())
            .field("producer", &self.producer)
            .field("failure", &self.failure.get())
            .finish_non_exhaustive()
    }
}

impl LiveCopy {
    /// A copy of `size_bytes` in `buffer`, whose header says what is valid.
    pub(crate) fn new(buffer: Buffer, size_bytes: u64, producer: Producer) -> Self {
        Self {
            buffer,
            size_bytes,
            producer,
            progressed: Notify::new(),
            failure: OnceLock::new(),
            failed: CancellationToken::new(),
        }
    }

    /// The memory of the copy.
    pub(crate) const fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// The size of the object.
    pub(crate) const fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// How many leading bytes may be read or passed on now.
    pub(crate) fn valid_bytes(&self) -> u64 {
        // A worker shares the header: what it wrote there is bounded here, before anybody relies on it.
        publishable(self.buffer.valid_bytes(), self.size_bytes)
    }

    /// Whether all bytes are valid.
    pub(crate) fn is_complete(&self) -> bool {
        self.valid_bytes() == self.size_bytes
    }

    /// Declares the first `valid_bytes` valid, and wakes those who wait for them.
    pub(crate) fn advance(&self, valid_bytes: u64) {
        self.buffer.publish(valid_bytes.min(self.size_bytes));
        self.progressed.notify_waiters();
    }

    /// Declares all bytes valid.
    pub(crate) fn complete(&self) {
        self.advance(self.size_bytes);
    }

    /// Ends every wait with `error`, in this process and in the others. The first error stays.
    pub(crate) fn fail(&self, error: Error) {
        if self.failure.set(error).is_ok() {
            self.buffer.set_failed();
            self.failed.cancel();
            self.progressed.notify_waiters();
        }
    }

    /// A worker has said that it advanced the progress in the shared header.
    pub(crate) fn ring(&self) {
        self.progressed.notify_waiters();
    }

    /// Waits until more than `offset_bytes` are valid, or all are; answers how many.
    ///
    /// # Errors
    /// The error with which the copy failed.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn beyond(&self, offset_bytes: u64) -> Result<u64, Error> {
        loop {
            let mut progressed = pin!(self.progressed.notified());
            // From here on no notification is missed, so what is read below is not stale when we sleep.
            progressed.as_mut().enable();
            if let Some(valid_bytes) = self.news_beyond(offset_bytes)? {
                return Ok(valid_bytes);
            }
            if self.producer == Producer::Worker {
                self.buffer.want_doorbell();
                // The worker may have advanced before it could see the flag.
                if let Some(valid_bytes) = self.news_beyond(offset_bytes)? {
                    return Ok(valid_bytes);
                }
            }
            progressed.await;
        }
    }

    fn news_beyond(&self, offset_bytes: u64) -> Result<Option<u64>, Error> {
        if let Some(error) = self.failure.get() {
            return Err(error.clone());
        }
        let valid_bytes = self.valid_bytes();
        Ok((valid_bytes > offset_bytes || valid_bytes == self.size_bytes).then_some(valid_bytes))
    }

    /// The error with which the copy failed, if it did.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.failure.get().cloned()
    }

    /// Waits until the copy fails, for ever if it does not.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn failed(&self) {
        self.failed.cancelled().await;
    }
}

/// All copies of this store.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    live: DashMap<CopyId, Arc<LiveCopy>>,
}

impl Copies {
    /// Adds a copy that has begun.
    pub(crate) fn open(&self, copy: CopyId, live: LiveCopy) -> Arc<LiveCopy> {
        let live = Arc::new(live);
        self.live.insert(copy, Arc::clone(&live));
        live
    }

    /// The copy, if it has not been closed.
    pub(crate) fn get(&self, copy: CopyId) -> Option<Arc<LiveCopy>> {
        self.live.get(&copy).map(|entry| Arc::clone(entry.value()))
    }

    /// Removes a copy whose memory is about to be used for something else.
    pub(crate) fn close(&self, copy: CopyId) -> Option<Arc<LiveCopy>> {
        self.live.remove(&copy).map(|(_, live)| live)
    }
}
