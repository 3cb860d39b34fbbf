//! The local copies as those see them who move bytes: their memory, how much of it is valid, and waits for more.
//!
//! When a copy begins and ends is decided in `hoplite_core::node`; nothing here outlives that decision on its own.

use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use dashmap::DashMap;
use hoplite_core::error::Error;
use hoplite_core::node::{self, CopyId, Producer};
use hoplite_core::stall::Sign;
use hoplite_core::time::Time;
use hoplite_shm::Buffer;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::data::Exchange;

/// How often a wait for a worker looks at the header. The worker rings when it has made progress,
/// unless another one has taken back the request for that.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// One local copy, from `CopyOpened` to `CopyClosed`.
///
/// At most one task writes it at a time; any number wait for its bytes and read them.
pub(crate) struct LiveCopy {
    buffer: Buffer,
    producer: Producer,
    progressed: Notify,
    /// The number of leading bytes that this store knows to be valid. All workers can write to the
    /// header, so it counts only for the copy that a worker fills, and there only if it shows more
    /// than this.
    known_bytes: AtomicU64,
    /// `true` once the node has called the copy complete.
    completed: AtomicBool,
    /// Set before the memory can be given to another copy. A writer to the header that has no right of its own to the copy
    /// holds the lock meanwhile.
    failure: Mutex<Option<Error>>,
    failed: CancellationToken,
    /// What fills it, if that is a session.
    exchange: OnceLock<Arc<Exchange>>,
    /// The latest sign of life of the object's producer, if another node has sent it.
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
    /// A copy in `buffer` without any valid byte.
    pub(crate) fn new(buffer: Buffer, producer: Producer) -> Self {
        Self {
            buffer,
            producer,
            progressed: Notify::new(),
            known_bytes: AtomicU64::new(0),
            completed: AtomicBool::new(false),
            failure: Mutex::default(),
            failed: CancellationToken::new(),
            exchange: OnceLock::new(),
            heard: watch::Sender::default(),
        }
    }

    /// The memory of the copy.
    pub(crate) const fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// What fills the copy, if that is a session.
    pub(crate) fn exchange(&self) -> Option<&Arc<Exchange>> {
        self.exchange.get()
    }

    /// A session fills the copy, from now on.
    pub(crate) fn set_exchange(&self, exchange: Arc<Exchange>) {
        // A copy is filled once.
        let _ = self.exchange.set(exchange);
    }

    /// The size of the object.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.buffer.size_bytes()
    }

    /// How many leading bytes may be read or passed on now. Before the node calls the copy complete that is never all of
    /// what a worker writes, whatever it says, nor of what a reduce makes: a node that has all bytes has a complete object.
    pub(crate) fn valid_bytes(&self) -> u64 {
        self.forwardable(self.shown_bytes(|buffer| buffer.valid_bytes()), self.size_bytes())
    }

    /// The number of leading bytes that this store has declared valid.
    pub(crate) fn known_bytes(&self) -> u64 {
        self.known_bytes.load(Ordering::Acquire)
    }

    /// The number of leading bytes that are valid. `header` is asked only if a worker fills the
    /// copy, and cannot take back what it has shown before.
    fn shown_bytes(&self, header: impl FnOnce(&Buffer) -> u64) -> u64 {
        if self.producer != Producer::Worker || self.is_completed() {
            return self.known_bytes();
        }
        let shown_bytes = header(&self.buffer);
        self.known_bytes.fetch_max(shown_bytes, Ordering::AcqRel).max(shown_bytes)
    }

    /// How much of what is before `end_bytes` may be passed on if `valid_bytes` are valid.
    fn forwardable(&self, valid_bytes: u64, end_bytes: u64) -> u64 {
        node::forwardable(self.producer, self.is_completed(), valid_bytes, self.size_bytes(), end_bytes)
    }

    fn is_completed(&self) -> bool {
        self.completed.load(Ordering::Acquire)
    }

    /// Declares the first `valid_bytes` valid, and wakes those who wait for them.
    pub(crate) fn advance(&self, valid_bytes: u64) {
        // Workers read the header too, so what a reduce keeps back is kept back there.
        let is_reduce = self.producer == Producer::Reduce;
        let forwardable = self.forwardable(valid_bytes, self.size_bytes());
        self.known_bytes.fetch_max(valid_bytes, Ordering::AcqRel);
        self.buffer.publish(if is_reduce { forwardable } else { valid_bytes });
        self.progressed.notify_waiters();
    }

    /// Declares all bytes valid, and the copy complete.
    pub(crate) fn complete(&self) {
        self.buffer.set_complete();
        self.known_bytes.fetch_max(self.size_bytes(), Ordering::AcqRel);
        self.completed.store(true, Ordering::Release);
        self.progressed.notify_waiters();
    }

    /// Ends every wait with `error`, in this process and in the others. The first error stays.
    pub(crate) fn fail(&self, error: Error) {
        {
            let mut failure = self.lock_failure();
            if failure.is_some() {
                return;
            }
            *failure = Some(error);
            self.buffer.set_failed();
        }
        self.failed.cancel();
        self.progressed.notify_waiters();
    }

    /// A worker has said that it advanced the progress in the shared header.
    pub(crate) fn ring(&self) {
        self.progressed.notify_waiters();
    }

    /// Waits until more than `offset_bytes` are valid, or all are; answers how many. All bytes of an object without any are
    /// valid once it is complete.
    ///
    /// # Errors
    /// The error with which the copy failed.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn beyond(&self, offset_bytes: u64) -> Result<u64, Error> {
        self.beyond_within(offset_bytes, self.size_bytes()).await
    }

    /// As [`beyond`](Self::beyond), as if the object ended at `end_bytes`. The end of a part, too, is kept back until the copy
    /// is complete: a node that has all of a part takes it for a part of a complete object.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn beyond_within(&self, offset_bytes: u64, end_bytes: u64) -> Result<u64, Error> {
        loop {
            let mut progressed = pin!(self.progressed.notified());
            // From here on no notification is missed, so what is read below is not stale when we sleep.
            progressed.as_mut().enable();
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

    /// Returns the number of bytes that are valid; if that is old news, the worker that writes the copy will ring when there are more.
    fn valid_or_wanted(&self, offset_bytes: u64, end_bytes: u64) -> Result<u64, Error> {
        let failure = self.lock_failure();
        if let Some(error) = &*failure {
            return Err(error.clone());
        }
        let valid_bytes = self.forwardable(self.shown_bytes(|buffer| buffer.valid_bytes()), end_bytes);
        if self.is_old_news(valid_bytes, offset_bytes, end_bytes) && self.producer == Producer::Worker {
            // What the worker has published before it could see that we wait is in the answer.
            return Ok(self.forwardable(self.shown_bytes(|buffer| buffer.want_doorbell()), end_bytes));
        }
        Ok(valid_bytes)
    }

    fn is_old_news(&self, valid_bytes: u64, offset_bytes: u64, end_bytes: u64) -> bool {
        !node::is_news(self.is_completed(), valid_bytes, offset_bytes, end_bytes)
    }

    /// All bytes of a small, complete copy; `None` if it has failed, because they may be another's by now.
    pub(crate) fn bytes(&self) -> Option<Bytes> {
        let mut bytes = vec![0; usize::try_from(self.size_bytes()).ok()?];
        self.buffer.read(0, &mut bytes);
        self.failure().is_none().then(|| bytes.into())
    }

    /// The error with which the copy failed, if it did.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.lock_failure().clone()
    }

    fn lock_failure(&self) -> MutexGuard<'_, Option<Error>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sender of the copy has passed on a new sign of its producer.
    pub(crate) fn heard(&self, sign: Sign) {
        self.heard.send_replace(sign);
    }

    /// The signs that the sender of the copy passes on.
    pub(crate) fn signs(&self) -> watch::Receiver<Sign> {
        self.heard.subscribe()
    }

    /// What is said of the copy's producer to those who pull the copy.
    pub(crate) fn sign(&self, now: Time) -> Sign {
        Sign::of(self.producer, *self.heard.borrow(), now)
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
