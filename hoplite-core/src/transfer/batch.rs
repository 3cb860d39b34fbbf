//! Queues between a store and a shard: they decide which messages share a frame, and when it
//! leaves.
//!
//! Publications of small objects are *deferrable*: separate frames would cost more time than the
//! puts. After a frame with only deferrable messages, further ones wait up to [`LINGER`] in a
//! store's [`BatchQueue`]. A prompt message leaves at once, with all messages before it. A shard's
//! [`AnswerQueue`] never waits.

use std::collections::VecDeque;
use std::time::Duration;

use crate::time::Time;
use crate::vocabulary::directory::ToStore;
use crate::vocabulary::local::Urgency;

/// Time for which a deferrable message waits for others to share its frame: the time of ten small
/// puts.
pub const LINGER: Duration = Duration::from_micros(200);
/// Most messages that wait in a store's session with a shard: enough to publish all copies at the
/// default limit of objects.
pub const MAX_QUEUED_MESSAGES: usize = 1 << 21;
/// Most answers that wait for one store: 16 times the default limit on a client's open requests.
pub const MAX_QUEUED_ANSWERS: usize = 1 << 16;
/// While more answers wait for a store, the shard reads no requests of this store.
const PAUSE_ABOVE_ANSWERS: usize = 1 << 13;
/// Most messages that share a frame.
pub const MAX_BATCH_MESSAGES: usize = 256;
/// A batch with this many inline bytes takes no further message. The receiver's limit is 4 MiB.
pub const MAX_BATCH_BYTES: u64 = 1 << 20;

const KEPT_MESSAGES: usize = 4 * MAX_BATCH_MESSAGES;

/// Messages that wait in a store's session with a shard.
#[derive(Debug)]
pub struct BatchQueue<T> {
    messages: VecDeque<(T, Urgency)>,
    prompt: usize,
    linger_until: Time,
}

/// Time of the next frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextFrame {
    /// The frame leaves now.
    Now,
    /// The frame leaves at this time, or earlier with an urgent message.
    At(Time),
    /// No message waits.
    Never,
}

/// The queue is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

impl<T> Default for BatchQueue<T> {
    fn default() -> Self {
        Self { messages: VecDeque::new(), prompt: 0, linger_until: Time::ZERO }
    }
}

impl<T> BatchQueue<T> {
    /// Adds a message. Returns the time of the next frame if that time changes.
    pub fn push(
        &mut self,
        now: Time,
        message: T,
        urgency: Urgency,
    ) -> Result<Option<NextFrame>, Full> {
        if self.messages.len() >= MAX_QUEUED_MESSAGES {
            return Err(Full);
        }
        let before = self.next_frame(now);
        self.messages.push_back((message, urgency));
        self.prompt += usize::from(urgency == Urgency::Prompt);
        let after = self.next_frame(now);
        Ok((after != before).then_some(after))
    }

    /// Returns the time of the next frame.
    pub fn next_frame(&self, now: Time) -> NextFrame {
        match (self.messages.is_empty(), self.prompt > 0 || self.linger_until <= now) {
            (true, _) => NextFrame::Never,
            (false, true) => NextFrame::Now,
            (false, false) => NextFrame::At(self.linger_until),
        }
    }

    /// Takes the messages of the next frame, even before it is due.
    pub fn take_batch(&mut self, now: Time, inline_bytes: impl Fn(&T) -> u64) -> Vec<T> {
        let (mut batch, mut batch_bytes, mut is_deferrable) = (Vec::new(), 0, true);
        while batch.len() < MAX_BATCH_MESSAGES
            && batch_bytes < MAX_BATCH_BYTES
            && let Some((message, urgency)) = self.messages.pop_front()
        {
            batch_bytes += inline_bytes(&message);
            batch.push(message);
            is_deferrable &= urgency == Urgency::Deferrable;
            self.prompt -= usize::from(urgency == Urgency::Prompt);
        }
        give_back(&mut self.messages);
        // If messages remain, the next frame leaves at once.
        let lingers = is_deferrable && self.messages.is_empty();
        self.linger_until = if lingers { now + LINGER } else { now };
        batch
    }
}

fn give_back<T>(queue: &mut VecDeque<T>) {
    if queue.is_empty() && queue.capacity() > KEPT_MESSAGES {
        *queue = VecDeque::new();
    }
}

/// A shard's messages that wait for one store.
#[derive(Debug, Default)]
pub struct AnswerQueue {
    messages: VecDeque<ToStore>,
}

impl AnswerQueue {
    /// Adds a message. [`Full`]: the store reads no answers, and its session must end.
    pub fn push(&mut self, message: ToStore) -> Result<(), Full> {
        if self.messages.len() >= MAX_QUEUED_ANSWERS {
            return Err(Full);
        }
        self.messages.push_back(message);
        Ok(())
    }

    /// Returns `true` if the shard may read the store's requests. This slows down a store that
    /// leaves answers unread.
    pub fn has_space(&self) -> bool {
        self.messages.len() <= PAUSE_ABOVE_ANSWERS
    }

    /// Takes the messages of the next frame, if any.
    pub fn take_batch(&mut self) -> Vec<ToStore> {
        let mut batch = Vec::with_capacity(self.messages.len().min(MAX_BATCH_MESSAGES));
        let mut bytes = 0;
        while batch.len() < MAX_BATCH_MESSAGES
            && bytes < MAX_BATCH_BYTES
            && let Some(message) = self.messages.pop_front()
        {
            bytes += about_bytes(&message);
            batch.push(message);
        }
        give_back(&mut self.messages);
        batch
    }

    /// Drops all messages.
    pub fn clear(&mut self) {
        self.messages.clear();
    }
}

fn about_bytes(message: &ToStore) -> u64 {
    match message {
        ToStore::Inline { bytes, .. } | ToStore::TakeOver { bytes, .. } => 256 + bytes.len() as u64,
        ToStore::Locations { locations, .. } => {
            let slow_peers = locations.locations.iter().map(|location| location.slow_peers.len());
            256 + 128 * slow_peers.map(|count| 1 + count as u64).sum::<u64>()
        }
        _ => 256,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::id::{ObjectId, PutId};
    use crate::metadata::Metadata;
    use crate::vocabulary::directory::RequestId;

    fn promote(number: u64) -> ToStore {
        ToStore::Promote { id: ObjectId::new("x").unwrap(), put: PutId(number) }
    }

    fn inline(length: usize) -> ToStore {
        let (id, bytes) = (ObjectId::new("x").unwrap(), Bytes::from(vec![0; length]));
        ToStore::Inline {
            request: RequestId(1),
            id,
            put: PutId(1),
            metadata: Metadata::default(),
            bytes: bytes.into(),
        }
    }

    #[test]
    fn answers_leave_at_once_in_bounded_frames() {
        let mut queue = AnswerQueue::default();
        for number in 0..300 {
            queue.push(promote(number)).unwrap();
        }
        let mut lengths =
            || std::iter::repeat_with(|| queue.take_batch().len()).take(3).collect::<Vec<_>>();
        assert_eq!(lengths(), [256, 44, 0]);
        for _ in 0..3 {
            queue.push(inline(600_000)).unwrap();
        }
        let mut lengths =
            || std::iter::repeat_with(|| queue.take_batch().len()).take(3).collect::<Vec<_>>();
        assert_eq!(lengths(), [2, 1, 0]);
    }

    #[test]
    fn answers_are_bounded_and_reading_pauses_long_before() {
        let mut queue = AnswerQueue::default();
        for number in 0..MAX_QUEUED_ANSWERS {
            assert_eq!(queue.has_space(), number <= PAUSE_ABOVE_ANSWERS);
            queue.push(promote(0)).unwrap();
        }
        assert_eq!(queue.push(promote(0)), Err(Full));
        while !queue.has_space() {
            assert!(!queue.take_batch().is_empty());
        }
        queue.clear();
        assert_eq!(queue.take_batch(), []);
    }

    const fn at(micros: u64) -> Time {
        Time::from_micros(micros)
    }

    fn take(queue: &mut BatchQueue<u64>, now: Time) -> Vec<u64> {
        queue.take_batch(now, |_| 0)
    }

    #[test]
    fn deferrable_messages_wait_only_after_a_frame_of_such() {
        let mut queue = BatchQueue::default();
        assert_eq!(queue.next_frame(at(0)), NextFrame::Never);
        let pushed = queue.push(at(0), 1, Urgency::Deferrable);
        assert_eq!(pushed, Ok(Some(NextFrame::Now)), "after a quiet moment, at once");
        assert_eq!(take(&mut queue, at(0)), [1]);
        assert_eq!(queue.push(at(50), 2, Urgency::Deferrable), Ok(Some(NextFrame::At(at(200)))));
        assert_eq!(queue.push(at(60), 3, Urgency::Deferrable), Ok(None), "it goes along");
        assert_eq!(queue.next_frame(at(199)), NextFrame::At(at(200)));
        assert_eq!(queue.next_frame(at(200)), NextFrame::Now);
        assert_eq!(take(&mut queue, at(200)), [2, 3]);
    }

    #[test]
    fn a_prompt_message_takes_all_along_and_nothing_waits_after_it() {
        let mut queue = BatchQueue::default();
        queue.push(at(0), 1, Urgency::Deferrable).unwrap();
        assert_eq!(take(&mut queue, at(0)), [1]);
        queue.push(at(10), 2, Urgency::Deferrable).unwrap();
        assert_eq!(queue.push(at(20), 3, Urgency::Prompt), Ok(Some(NextFrame::Now)));
        assert_eq!(take(&mut queue, at(20)), [2, 3]);
        assert_eq!(queue.push(at(200), 4, Urgency::Prompt), Ok(Some(NextFrame::Now)));
        assert_eq!(take(&mut queue, at(200)), [4]);
        assert_eq!(queue.push(at(201), 5, Urgency::Deferrable), Ok(Some(NextFrame::Now)));
    }

    #[test]
    fn frames_are_bounded_and_what_is_left_over_leaves_next() {
        let mut queue = BatchQueue::default();
        for number in 0..=MAX_BATCH_MESSAGES as u64 {
            queue.push(at(0), number, Urgency::Deferrable).unwrap();
        }
        assert_eq!(take(&mut queue, at(0)).len(), MAX_BATCH_MESSAGES);
        assert_eq!(queue.next_frame(at(0)), NextFrame::Now);
        assert_eq!(take(&mut queue, at(0)), [MAX_BATCH_MESSAGES as u64]);

        queue.push(at(1), 0, Urgency::Prompt).unwrap();
        for number in 1..=MAX_BATCH_MESSAGES as u64 {
            queue.push(at(1), number, Urgency::Deferrable).unwrap();
        }
        assert_eq!(take(&mut queue, at(1)).len(), MAX_BATCH_MESSAGES);
        assert_eq!(queue.next_frame(at(1)), NextFrame::Now);
        assert_eq!(take(&mut queue, at(1)), [MAX_BATCH_MESSAGES as u64]);

        let mut queue = BatchQueue::default();
        for number in 0..4 {
            queue.push(at(0), number, Urgency::Prompt).unwrap();
        }
        let batch = queue.take_batch(at(0), |_| MAX_BATCH_BYTES / 2);
        assert_eq!(batch, [0, 1]);
    }
}
