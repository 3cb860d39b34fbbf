//! The copies of objects in this store's memory. `hoplite_core::node` decides when a copy begins
//! and ends. No entry outlives its copy.

use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use dashmap::DashMap;
use hoplite_core::error::Error;
use hoplite_core::node::{self, CopyId, Producer};
use hoplite_core::stall::Sign;
use hoplite_core::time::Time;
use hoplite_shm::Buffer;
use once_cell::race::OnceBox;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::data::Exchange;

/// Interval at which a task that waits for a client's bytes reads their number again, because
/// another client can clear the wake-up flag.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// A copy of one object, from `CopyOpened` until `CopyClosed`.
///
/// At most one task writes the copy at a time. Any number of tasks read it, or wait for its bytes.
pub(crate) struct LiveCopy {
    buffer: Buffer,
    producer: Producer,
    /// Leading bytes that this store knows to be valid. The shared header, which every client can
    /// write, counts only while a client fills the copy.
    known_bytes: AtomicU64,
    completed: AtomicBool,
    /// The error with which the copy ended, set before another copy gets the memory. A task that
    /// does not fill the copy holds this lock while it changes the copy's header.
    failure: Mutex<Option<Box<Error>>>,
    /// Boxed, because most small objects are never transferred.
    transfers: OnceBox<Transfers>,
}

#[derive(Default)]
struct Transfers {
    progressed: Notify,
    exchange: OnceLock<Arc<Exchange>>,
    failed: CancellationToken,
    heard: watch::Sender<Sign>,
}

impl fmt::Debug for LiveCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveCopy")
            .field("size_bytes", &self.size_bytes())
            .field("valid_bytes", &self.valid_bytes())
            .field("producer", &self.producer)
            .field("failure", &self.failure())
            .finish_non_exhaustive()
    }
}

impl LiveCopy {
    pub(crate) fn new(buffer: Buffer, producer: Producer) -> Self {
        Self {
            buffer,
            producer,
            known_bytes: AtomicU64::new(0),
            completed: AtomicBool::new(false),
            failure: Mutex::default(),
            transfers: OnceBox::new(),
        }
    }

    pub(crate) const fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    pub(crate) fn exchange(&self) -> Option<&Arc<Exchange>> {
        self.transfers.get()?.exchange.get()
    }

    pub(crate) fn set_exchange(&self, exchange: Arc<Exchange>) {
        let _ = self.transfers().exchange.set(exchange);
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        self.buffer.size_bytes()
    }

    /// Number of leading bytes that may be read or forwarded. If a client or a reduce fills the
    /// copy, omits the last block until the copy is complete (see `hoplite_core::block`).
    pub(crate) fn valid_bytes(&self) -> u64 {
        self.forwardable(self.shown_bytes(|buffer| buffer.valid_bytes()), self.size_bytes())
    }

    pub(crate) fn known_bytes(&self) -> u64 {
        self.known_bytes.load(Ordering::Acquire)
    }

    /// Number of valid bytes, read with `header` while a client fills the copy. Never
    /// shrinks, even if the client writes a smaller number.
    fn shown_bytes(&self, header: impl FnOnce(&Buffer) -> u64) -> u64 {
        if self.producer != Producer::Worker || self.is_completed() {
            return self.known_bytes();
        }
        let shown_bytes = header(&self.buffer);
        self.known_bytes.fetch_max(shown_bytes, Ordering::AcqRel).max(shown_bytes)
    }

    fn forwardable(&self, valid_bytes: u64, end_bytes: u64) -> u64 {
        node::forwardable(
            self.producer,
            self.is_completed(),
            valid_bytes,
            self.size_bytes(),
            end_bytes,
        )
    }

    fn is_completed(&self) -> bool {
        self.completed.load(Ordering::Acquire)
    }

    pub(crate) fn advance(&self, valid_bytes: u64) {
        // Workers read the header, too, so it omits the last block of an incomplete reduce.
        let is_reduce = self.producer == Producer::Reduce;
        let forwardable = self.forwardable(valid_bytes, self.size_bytes());
        self.known_bytes.fetch_max(valid_bytes, Ordering::AcqRel);
        self.buffer.publish(if is_reduce { forwardable } else { valid_bytes });
        self.ring();
    }

    pub(crate) fn complete(&self) {
        self.buffer.set_complete();
        self.known_bytes.fetch_max(self.size_bytes(), Ordering::AcqRel);
        self.completed.store(true, Ordering::Release);
        self.ring();
    }

    /// Ends all waits for the copy, also in clients. The first error stays.
    pub(crate) fn fail(&self, error: Error) {
        {
            let mut failure = self.lock_failure();
            if failure.is_some() {
                return;
            }
            *failure = Some(Box::new(error));
            self.buffer.set_failed();
        }
        if let Some(transfers) = self.transfers.get() {
            transfers.failed.cancel();
        }
        self.ring();
    }

    /// Makes [`bytes`](Self::bytes) return `None`, because another copy may get the memory.
    fn retire(&self) {
        self.lock_failure()
            .get_or_insert_with(|| Box::new(Error::unavailable("the memory of a closed copy")));
    }

    pub(crate) fn ring(&self) {
        // With the fence in `beyond_within`: either this call finds the task's `Notify`, or the
        // task sees the change.
        fence(Ordering::SeqCst);
        if let Some(transfers) = self.transfers.get() {
            transfers.progressed.notify_waiters();
        }
    }

    /// Waits until more than `offset_bytes` are valid, or all bytes are. Returns the number of
    /// valid bytes. An empty object is ready only once complete. Cancel safe.
    pub(crate) async fn beyond(&self, offset_bytes: u64) -> Result<u64, Error> {
        self.beyond_within(offset_bytes, self.size_bytes()).await
    }

    /// Acts as [`beyond`](Self::beyond) for the part before `end_bytes`. Until the copy is
    /// complete, omits the part's last block. Cancel safe.
    pub(crate) async fn beyond_within(
        &self,
        offset_bytes: u64,
        end_bytes: u64,
    ) -> Result<u64, Error> {
        if self.is_completed() {
            return self.valid_or_wanted(offset_bytes, end_bytes);
        }
        let transfers = self.transfers();
        loop {
            let mut progressed = pin!(transfers.progressed.notified());
            progressed.as_mut().enable();
            fence(Ordering::SeqCst);
            let valid_bytes = self.valid_or_wanted(offset_bytes, end_bytes)?;
            if !self.is_old_news(valid_bytes, offset_bytes, end_bytes) {
                return Ok(valid_bytes);
            }
            if self.producer == Producer::Worker {
                let _ = timeout(LOOK_INTERVAL, progressed).await;
            } else {
                progressed.await;
            }
        }
    }

    /// Number of valid bytes. If these are not enough, requests a doorbell message from
    /// the client that fills the copy.
    fn valid_or_wanted(&self, offset_bytes: u64, end_bytes: u64) -> Result<u64, Error> {
        let failure = self.lock_failure();
        if let Some(error) = &*failure {
            return Err((**error).clone());
        }
        let valid_bytes =
            self.forwardable(self.shown_bytes(|buffer| buffer.valid_bytes()), end_bytes);
        if self.is_old_news(valid_bytes, offset_bytes, end_bytes)
            && self.producer == Producer::Worker
        {
            // Includes all progress that the worker published before it saw the request.
            return Ok(
                self.forwardable(self.shown_bytes(|buffer| buffer.want_doorbell()), end_bytes)
            );
        }
        Ok(valid_bytes)
    }

    fn is_old_news(&self, valid_bytes: u64, offset_bytes: u64, end_bytes: u64) -> bool {
        !node::is_news(self.is_completed(), valid_bytes, offset_bytes, end_bytes)
    }

    /// Returns all bytes; `None` for a failed or closed copy.
    pub(crate) fn bytes(&self) -> Option<Bytes> {
        let mut bytes = vec![0; usize::try_from(self.size_bytes()).ok()?];
        self.buffer.read(0, &mut bytes);
        self.failure().is_none().then(|| bytes.into())
    }

    pub(crate) fn failure(&self) -> Option<Error> {
        self.lock_failure().as_deref().cloned()
    }

    fn lock_failure(&self) -> MutexGuard<'_, Option<Box<Error>>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn heard(&self, sign: Sign) {
        self.transfers().heard.send_replace(sign);
    }

    pub(crate) fn signs(&self) -> watch::Receiver<Sign> {
        self.transfers().heard.subscribe()
    }

    pub(crate) fn sign(&self, now: Time) -> Sign {
        let heard =
            self.transfers.get().map(|transfers| *transfers.heard.borrow()).unwrap_or_default();
        Sign::of(self.producer, heard, now)
    }

    fn transfers(&self) -> &Transfers {
        self.transfers.get_or_init(Box::default)
    }

    /// Waits until the copy has failed. Cancel safe.
    pub(crate) async fn failed(&self) {
        let transfers = self.transfers();
        if self.failure().is_none() {
            transfers.failed.cancelled().await;
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Copies {
    live: DashMap<CopyId, Arc<LiveCopy>>,
}

impl Copies {
    pub(crate) fn open(&self, copy: CopyId, live: LiveCopy) -> Arc<LiveCopy> {
        let live = Arc::new(live);
        self.live.insert(copy, Arc::clone(&live));
        live
    }

    pub(crate) fn get(&self, copy: CopyId) -> Option<Arc<LiveCopy>> {
        self.live.get(&copy).map(|entry| Arc::clone(entry.value()))
    }

    /// Removes the copy from the list. Call this before another copy gets the memory.
    pub(crate) fn close(&self, copy: CopyId) -> Option<Arc<LiveCopy>> {
        let (_, live) = self.live.remove(&copy)?;
        live.retire();
        Some(live)
    }
}

#[cfg(test)]
mod tests {
    use hoplite_shm::{Arena, Backing, Extent, HEADER_BYTES};

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_task_that_begins_to_wait_while_a_copy_completes_is_woken() {
        let length_bytes = (HEADER_BYTES + 4).next_multiple_of(4096);
        let arena = Arena::create(Backing::Pages, length_bytes).unwrap();
        for _ in 0..5000 {
            let buffer = arena.buffer(Extent { offset_bytes: 0, length_bytes }, 4).unwrap();
            buffer.initialise();
            let live = Arc::new(LiveCopy::new(buffer, Producer::Store));
            let waiting = Arc::clone(&live);
            let waiting = tokio::spawn(async move { waiting.beyond(0).await });
            live.complete();
            assert_eq!(waiting.await.unwrap(), Ok(4));
        }
    }

    #[test]
    fn a_closed_copy_gives_no_bytes_although_it_has_not_failed() {
        let length_bytes = (HEADER_BYTES + 4).next_multiple_of(4096);
        let arena = Arena::create(Backing::Pages, length_bytes).unwrap();
        let buffer = arena.buffer(Extent { offset_bytes: 0, length_bytes }, 4).unwrap();
        buffer.initialise();
        buffer.write(0, b"mine");
        let copies = Copies::default();
        let live = copies.open(CopyId(1), LiveCopy::new(buffer, Producer::Store));
        live.complete();
        assert_eq!(live.bytes().as_deref(), Some(&b"mine"[..]));
        copies.close(CopyId(1));
        assert_eq!(live.bytes(), None);
    }
}
