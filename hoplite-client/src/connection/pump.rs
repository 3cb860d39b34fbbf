//! Receives answers without a runtime: one of the waiting threads, the leader, receives for all.
//!
//! The leader sleeps in `poll`, or spins if answers come quickly ([`Pace`]). The others sleep until
//! their answer arrives or they become the leader.

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::receiver::deliver;
use super::sender::system;
use super::shared::Shared;
use crate::error::Loss;

/// Time to spin for an answer. Waking a sleeping core takes longer than the store's answer.
const LOOK: Duration = Duration::from_micros(50);
const QUICK: Duration = Duration::from_micros(80);
/// Quick answers in a row before spinning: puts in turn with remote gets must not spin.
const QUICK_IN_A_ROW: u32 = 2;

const CHUNK_BYTES: usize = 16 << 10;

thread_local! {
    /// Time at which this thread polls its future again even without an answer.
    static WAKE_AT: Cell<Option<Instant>> = const { Cell::new(None) };
}

#[derive(Debug)]
pub(crate) struct Pump {
    shared: Arc<Shared>,
    interrupt: Arc<OwnedFd>,
    incoming: Mutex<Incoming>,
    followers: Mutex<VecDeque<Arc<Sleeper>>>,
    pace: Pace,
}

#[derive(Debug)]
struct Incoming {
    chunk: Vec<u8>,
    received: BytesMut,
}

impl Pump {
    pub(super) fn new(shared: Arc<Shared>) -> Result<Self, Errno> {
        let interrupt = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let incoming =
            Mutex::new(Incoming { chunk: vec![0; CHUNK_BYTES], received: BytesMut::new() });
        Ok(Self { shared, interrupt, incoming, followers: Mutex::default(), pace: Pace::default() })
    }

    pub(crate) fn run<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        let sleeper = Arc::new(Sleeper::new(Arc::clone(&self.interrupt)));
        let waker = Waker::from(Arc::clone(&sleeper));
        let _hand_over = HandOver(self);
        loop {
            let asked = Instant::now();
            sleeper.woken.store(false, Ordering::SeqCst);
            WAKE_AT.set(None);
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return output;
            }
            let wake_at = WAKE_AT.get();
            if self.shared.calls.have_ended() {
                sleeper.sleep(wake_at);
            } else if let Some(incoming) = self.try_lead() {
                self.lead(incoming, &sleeper, asked, wake_at);
            } else {
                self.follow(&sleeper, wake_at);
            }
        }
    }

    fn try_lead(&self) -> Option<MutexGuard<'_, Incoming>> {
        match self.incoming.try_lock() {
            Ok(incoming) => Some(incoming),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn lead(
        &self,
        mut incoming: MutexGuard<'_, Incoming>,
        sleeper: &Sleeper,
        asked: Instant,
        wake_at: Option<Instant>,
    ) {
        let sleeps_at = asked + self.pace.looks_for();
        sleeper.leads.store(true, Ordering::SeqCst);
        while !sleeper.woken.load(Ordering::SeqCst) && wake_at.is_none_or(|at| Instant::now() < at)
        {
            let received = if Instant::now() < sleeps_at {
                thread::yield_now();
                self.receive(&mut incoming)
            } else {
                self.sleep(wake_at).and_then(|()| self.receive(&mut incoming))
            };
            if let Err(loss) = received {
                self.shared.break_off(loss);
                break;
            }
        }
        sleeper.leads.store(false, Ordering::SeqCst);
        self.pace.took(asked.elapsed());
    }

    fn sleep(&self, wake_at: Option<Instant>) -> Result<(), Loss> {
        let mut fds = [
            PollFd::new(&*self.shared.socket, PollFlags::IN),
            PollFd::new(&*self.interrupt, PollFlags::IN),
        ];
        let timeout = wake_at.and_then(|at| {
            // A time too large for `Timespec` counts as no limit.
            Timespec::try_from(at.saturating_duration_since(Instant::now())).ok()
        });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(system(error)),
        }
        if !fds[1].revents().is_empty() {
            let _ = rustix::io::read(&*self.interrupt, &mut [0; 8]);
        }
        Ok(())
    }

    fn receive(&self, incoming: &mut Incoming) -> Result<(), Loss> {
        match recv(&*self.shared.socket, &mut incoming.chunk[..], RecvFlags::DONTWAIT) {
            Ok((_, 0)) | Err(Errno::CONNRESET) => Err(Loss::Closed),
            Ok((_, length)) => {
                incoming.received.extend_from_slice(&incoming.chunk[..length]);
                deliver(&self.shared, &mut incoming.received)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(error) => Err(system(error)),
        }
    }

    fn follow(&self, sleeper: &Arc<Sleeper>, wake_at: Option<Instant>) {
        self.followers().push_back(Arc::clone(sleeper));
        let leaderless = self.try_lead().is_some();
        if !leaderless {
            sleeper.sleep(wake_at);
        }
        self.followers().retain(|follower| !Arc::ptr_eq(follower, sleeper));
    }

    fn followers(&self) -> MutexGuard<'_, VecDeque<Arc<Sleeper>>> {
        self.followers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Default)]
struct Pace {
    quick_in_a_row: AtomicU32,
}

impl Pace {
    fn looks_for(&self) -> Duration {
        let is_quick = self.quick_in_a_row.load(Ordering::Relaxed) >= QUICK_IN_A_ROW;
        if is_quick { LOOK } else { Duration::ZERO }
    }

    fn took(&self, duration: Duration) {
        let quick_in_a_row = match duration < QUICK {
            true => self.quick_in_a_row.load(Ordering::Relaxed).saturating_add(1),
            false => 0,
        };
        self.quick_in_a_row.store(quick_in_a_row, Ordering::Relaxed);
    }
}

/// Makes another waiting thread the leader when dropped.
struct HandOver<'a>(&'a Pump);

impl Drop for HandOver<'_> {
    fn drop(&mut self) {
        if let Some(next) = self.0.followers().pop_front() {
            next.thread.unpark();
        }
    }
}

#[derive(Debug)]
struct Sleeper {
    thread: Thread,
    woken: AtomicBool,
    leads: AtomicBool,
    interrupt: Arc<OwnedFd>,
}

impl Sleeper {
    fn new(interrupt: Arc<OwnedFd>) -> Self {
        let (woken, leads) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { thread: thread::current(), woken, leads, interrupt }
    }

    /// May return early, as [`thread::park`] may.
    fn sleep(&self, wake_at: Option<Instant>) {
        if self.woken.load(Ordering::SeqCst) {
            return;
        }
        match wake_at {
            None => thread::park(),
            Some(at) => thread::park_timeout(at.saturating_duration_since(Instant::now())),
        }
    }
}

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        if thread::current().id() == self.thread.id() {
            return;
        }
        if self.leads.load(Ordering::SeqCst) {
            let _ = rustix::io::write(&*self.interrupt, &1_u64.to_ne_bytes());
        }
        self.thread.unpark();
    }
}

/// Waits for `future`, which [`Pump::run`] drives, for at most `limit`; `None` afterwards.
pub(super) async fn within<F: Future + Unpin>(limit: Duration, future: F) -> Option<F::Output> {
    Within { ends: Instant::now().checked_add(limit), future }.await
}

struct Within<F> {
    ends: Option<Instant>,
    future: F,
}

impl<F: Future + Unpin> Future for Within<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(output) = Pin::new(&mut self.future).poll(context) {
            return Poll::Ready(Some(output));
        }
        let Some(ends) = self.ends else { return Poll::Pending };
        if ends <= Instant::now() {
            return Poll::Ready(None);
        }
        WAKE_AT.set(Some(WAKE_AT.get().map_or(ends, |earlier| earlier.min(ends))));
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_looked_for_only_after_several_quick_ones() {
        let pace = Pace::default();
        for _ in 0..10 {
            pace.took(Duration::from_micros(20));
            pace.took(Duration::from_millis(1));
            assert_eq!(pace.looks_for(), Duration::ZERO);
        }
        pace.took(Duration::from_micros(20));
        assert_eq!(pace.looks_for(), Duration::ZERO);
        pace.took(Duration::from_micros(20));
        assert_eq!(pace.looks_for(), LOOK);
        pace.took(QUICK);
        assert_eq!(pace.looks_for(), Duration::ZERO);
    }
}
