//! The engine's queue of messages to one shard. [`hoplite_core::batch`] decides when messages
//! leave.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hoplite_core::TraceContext;
use hoplite_core::batch::{BatchQueue, Full, NextFrame};
use hoplite_core::node::Urgency;
use hoplite_core::shard::ToShard;
use hoplite_core::time::Time;
use hoplite_daemon::register;
use rustix::fd::OwnedFd;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

use crate::copies::LiveCopy;

#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) message: ToShard,
    /// The inline object whose bytes are read when the message is sent: queued bytes of all inline
    /// objects would double their memory.
    pub(crate) inline_from: Option<Arc<LiveCopy>>,
    pub(crate) trace: Option<TraceContext>,
}

impl Outgoing {
    fn into_message(self) -> (ToShard, Option<TraceContext>) {
        let Self { mut message, inline_from, trace } = self;
        if let (ToShard::Publish(publish), Some(copy)) = (&mut message, inline_from) {
            publish.inline = copy.bytes().map(Into::into);
        }
        (message, trace)
    }

    fn inline_bytes(&self) -> u64 {
        self.inline_from.as_ref().map_or(0, |copy| copy.size_bytes())
    }
}

#[derive(Debug, Default)]
struct Queue {
    batches: BatchQueue<Outgoing>,
    is_closed: bool,
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    news: Notify,
    /// Fires when deferrable messages have waited long enough. Tokio's timers count only
    /// milliseconds.
    timer: AsyncFd<OwnedFd>,
    origin: Instant,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Time {
        Time::ZERO + self.origin.elapsed()
    }

    fn wake(&self, next_frame: NextFrame) {
        let is_armed = match next_frame {
            NextFrame::Never => return,
            NextFrame::Now => false,
            NextFrame::At(time) => self.arm(time.since(self.now())),
        };
        if !is_armed {
            self.news.notify_one();
        }
    }

    fn arm(&self, delay: Duration) -> bool {
        let delay = delay.max(Duration::from_nanos(1));
        let once = Itimerspec { it_interval: timespec(Duration::ZERO), it_value: timespec(delay) };
        timerfd_settime(self.timer.get_ref(), TimerfdTimerFlags::empty(), &once).is_ok()
    }
}

/// The engine's end. Dropping it ends the session after the queued messages.
#[derive(Debug)]
pub(crate) struct Outbox(Arc<Shared>);

#[derive(Debug)]
pub(crate) struct Batches(Arc<Shared>);

/// Fails if no file descriptor is free for the timer.
pub(crate) fn outbox() -> io::Result<(Outbox, Batches)> {
    let timer =
        timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
    let timer = register(timer, Interest::READABLE)?;
    let (queue, news) = (Mutex::default(), Notify::new());
    let shared = Arc::new(Shared { queue, news, timer, origin: Instant::now() });
    Ok((Outbox(Arc::clone(&shared)), Batches(shared)))
}

impl Outbox {
    pub(crate) fn push(&self, message: Outgoing, urgency: Urgency) -> Result<(), Full> {
        let change = self.0.lock().batches.push(self.0.now(), message, urgency)?;
        if let Some(next_frame) = change {
            self.0.wake(next_frame);
        }
        Ok(())
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
        self.0.news.notify_one();
    }
}

impl Batches {
    /// Waits until a frame leaves, and takes its messages; `None` after the last one. Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<Vec<(ToShard, Option<TraceContext>)>> {
        loop {
            if let Some(batch) = self.take() {
                return (!batch.is_empty())
                    .then(|| batch.into_iter().map(Outgoing::into_message).collect());
            }
            tokio::select! {
                () = self.0.news.notified() => {}
                () = expired(&self.0.timer) => {}
            }
        }
    }

    /// Takes the messages that leave now, or an empty list after the last frame; `None` if no frame
    /// is due.
    fn take(&self) -> Option<Vec<Outgoing>> {
        let now = self.0.now();
        let mut queue = self.0.lock();
        let is_due = queue.is_closed || queue.batches.next_frame(now) == NextFrame::Now;
        is_due.then(|| queue.batches.take_batch(now, Outgoing::inline_bytes))
    }
}

async fn expired(timer: &AsyncFd<OwnedFd>) {
    let mut expirations = [0; 8];
    loop {
        let Ok(mut ready) = timer.readable().await else { return };
        match ready.try_io(|timer| Ok(rustix::io::read(timer.get_ref(), &mut expirations)?)) {
            Ok(_) => return,
            Err(_would_block) => {}
        }
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}

#[cfg(test)]
mod tests {
    use hoplite_core::shard::{GrantId, PullOutcome};

    use super::*;

    fn message(number: u64) -> Outgoing {
        let message =
            ToShard::ReturnSlot { grant: GrantId(number), outcome: PullOutcome::Complete };
        Outgoing { message, inline_from: None, trace: None }
    }

    async fn next(batches: &mut Batches) -> Option<usize> {
        batches.next().await.map(|batch| batch.len())
    }

    #[tokio::test]
    async fn messages_that_wait_leave_when_their_time_has_come() {
        let (outbox, mut batches) = outbox().unwrap();
        outbox.push(message(1), Urgency::Deferrable).unwrap();
        assert_eq!(next(&mut batches).await, Some(1));
        outbox.push(message(2), Urgency::Deferrable).unwrap();
        outbox.push(message(3), Urgency::Deferrable).unwrap();
        let mut waiting = 0;
        while waiting < 2 {
            waiting += next(&mut batches).await.unwrap();
        }
        drop(outbox);
        assert_eq!(next(&mut batches).await, None);
    }

    #[tokio::test]
    async fn a_message_that_comes_while_the_session_waits_wakes_it() {
        let (outbox, mut batches) = outbox().unwrap();
        let session =
            tokio::spawn(async move { (next(&mut batches).await, next(&mut batches).await) });
        tokio::task::yield_now().await;
        outbox.push(message(1), Urgency::Prompt).unwrap();
        tokio::task::yield_now().await;
        outbox.push(message(2), Urgency::Deferrable).unwrap();
        assert_eq!(session.await.unwrap(), (Some(1), Some(1)));
    }

    #[tokio::test]
    async fn what_is_queued_leaves_before_the_end() {
        let (outbox, mut batches) = outbox().unwrap();
        outbox.push(message(1), Urgency::Deferrable).unwrap();
        assert_eq!(next(&mut batches).await, Some(1));
        outbox.push(message(2), Urgency::Deferrable).unwrap();
        drop(outbox);
        assert_eq!(next(&mut batches).await, Some(1));
        assert_eq!(next(&mut batches).await, None);
    }
}
