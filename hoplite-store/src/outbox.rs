//! What a store has yet to say to one shard: a queue that gathers what can wait.
//!
//! Publications of small objects come in bursts, and a frame of the session for each of them would cost the processor more
//! than the puts themselves, in this store and in the shard. Such messages are *patient*: while frames follow each other
//! closely they wait for company, for at most [`PACE`]. After a quiet moment even a patient message leaves at once, and
//! any other message takes all before it along.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hoplite_core::node::Urgency;
use hoplite_core::shard::ToShard;
use rustix::fd::OwnedFd;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

use crate::copies::LiveCopy;

/// Messages that may wait for one session: a full publication of a store with the default limit on copies fits.
pub(crate) const QUEUE_MESSAGES: usize = 1 << 21;
/// How long a patient message waits for company: about ten small puts, and less than a person or a task can tell from
/// the round trip to another node.
const PACE: Duration = Duration::from_micros(200);

/// A message that waits to be sent to a shard.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) message: ToShard,
    /// The copy whose bytes go with it. They are read when it is sent: a full publication of copies of all inline objects
    /// at once would double the memory that they take.
    pub(crate) inline_from: Option<Arc<LiveCopy>>,
    pub(crate) urgency: Urgency,
}

impl Outgoing {
    /// The message, complete.
    pub(crate) fn into_message(self) -> ToShard {
        let Self { mut message, inline_from, .. } = self;
        if let (ToShard::Publish(publish), Some(copy)) = (&mut message, inline_from) {
            publish.inline = copy.bytes();
        }
        message
    }
}

#[derive(Debug, Default)]
struct Queue {
    messages: VecDeque<Outgoing>,
    /// How many of them cannot wait.
    prompt: usize,
    pace: Pace,
    is_closed: bool,
}

/// Whether a frame was sent just now.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Pace {
    #[default]
    Quiet,
    Busy,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    news: Notify,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where the engine puts messages. When it is dropped the session ends, after what is queued.
#[derive(Debug)]
pub(crate) struct Outbox(Arc<Shared>);

/// The messages in order, for the session.
#[derive(Debug)]
pub(crate) struct Departures {
    shared: Arc<Shared>,
    timer: AsyncFd<OwnedFd>,
}

/// The queue is at its limit.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// An empty queue.
///
/// # Errors
/// If the process has no file descriptor left for the timer.
pub(crate) fn outbox() -> io::Result<(Outbox, Departures)> {
    let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
    let shared = Arc::new(Shared::default());
    #[expect(
        deprecated,
        reason = "its successor is unsafe, for types that may close the descriptor; an OwnedFd does not"
    )]
    let timer = AsyncFd::new(timer)?;
    let departures = Departures { shared: Arc::clone(&shared), timer };
    Ok((Outbox(shared), departures))
}

impl Outbox {
    /// Adds a message.
    pub(crate) fn push(&self, message: Outgoing) -> Result<(), Full> {
        let mut queue = self.0.lock();
        if queue.messages.len() >= QUEUE_MESSAGES {
            return Err(Full);
        }
        let is_prompt = message.urgency == Urgency::Prompt;
        queue.prompt += usize::from(is_prompt);
        queue.messages.push_back(message);
        let leaves_now = is_prompt || queue.pace == Pace::Quiet;
        drop(queue);
        if leaves_now {
            self.0.news.notify_one();
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

impl Departures {
    /// Waits until messages should leave; [`take`](Self::take) has them.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn due(&mut self) -> Departure {
        loop {
            let pace = {
                let queue = self.shared.lock();
                let is_due = queue.prompt > 0 || queue.is_closed || queue.pace == Pace::Quiet;
                if is_due && !queue.messages.is_empty() {
                    return Departure::Due;
                }
                if queue.is_closed {
                    return Departure::Closed;
                }
                queue.pace
            };
            tokio::select! {
                () = self.shared.news.notified() => {}
                () = expired(&self.timer), if pace == Pace::Busy => self.shared.lock().pace = Pace::Quiet,
            }
        }
    }

    /// The next message, if there is one.
    pub(crate) fn take(&mut self) -> Option<Outgoing> {
        let mut queue = self.shared.lock();
        let message = queue.messages.pop_front()?;
        queue.prompt -= usize::from(message.urgency == Urgency::Prompt);
        Some(message)
    }

    /// A frame leaves now: patient messages wait from here on.
    pub(crate) fn start_pace(&mut self) {
        let once = Itimerspec { it_interval: timespec(Duration::ZERO), it_value: timespec(PACE) };
        // Without the timer, nothing is gathered.
        let is_armed = timerfd_settime(self.timer.get_ref(), TimerfdTimerFlags::empty(), &once).is_ok();
        self.shared.lock().pace = if is_armed { Pace::Busy } else { Pace::Quiet };
    }
}

/// What [`Departures::due`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Departure {
    /// Messages should leave.
    Due,
    /// There are none, and there will be none.
    Closed,
}

/// Waits for the end of the pace. Tokio's own timers count in milliseconds.
async fn expired(timer: &AsyncFd<OwnedFd>) {
    let mut expirations = [0; 8];
    loop {
        // Neither can fail for a timer; if one does, the pace is over.
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

    fn message(urgency: Urgency) -> Outgoing {
        let message = ToShard::ReturnSlot { grant: GrantId(1), outcome: PullOutcome::Complete };
        Outgoing { message, inline_from: None, urgency }
    }

    fn patient() -> Outgoing {
        message(Urgency::Patient)
    }

    fn prompt() -> Outgoing {
        message(Urgency::Prompt)
    }

    fn drain(departures: &mut Departures) -> usize {
        std::iter::from_fn(|| departures.take()).count()
    }

    #[tokio::test]
    async fn patient_messages_wait_for_company_only_after_a_frame() {
        let (outbox, mut departures) = outbox().unwrap();
        outbox.push(patient()).unwrap();
        assert_eq!(departures.due().await, Departure::Due, "after a quiet moment, at once");
        assert_eq!(drain(&mut departures), 1);
        departures.start_pace();
        outbox.push(patient()).unwrap();
        outbox.push(patient()).unwrap();
        assert_eq!(departures.shared.lock().pace, Pace::Busy);
        assert_eq!(departures.due().await, Departure::Due, "when the pace is over");
        assert_eq!(departures.shared.lock().pace, Pace::Quiet);
        assert_eq!(drain(&mut departures), 2);
    }

    #[tokio::test]
    async fn a_prompt_message_takes_all_along() {
        let (outbox, mut departures) = outbox().unwrap();
        departures.start_pace();
        outbox.push(patient()).unwrap();
        outbox.push(prompt()).unwrap();
        assert_eq!(departures.due().await, Departure::Due);
        assert_eq!(departures.shared.lock().pace, Pace::Busy, "the pace was not waited for");
        assert_eq!(drain(&mut departures), 2);
    }

    #[tokio::test]
    async fn what_is_queued_leaves_before_the_end() {
        let (outbox, mut departures) = outbox().unwrap();
        departures.start_pace();
        outbox.push(patient()).unwrap();
        drop(outbox);
        assert_eq!(departures.due().await, Departure::Due);
        assert_eq!(drain(&mut departures), 1);
        assert_eq!(departures.due().await, Departure::Closed);
    }
}
