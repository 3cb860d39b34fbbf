use std::time::Duration;

use crate::time::Time;

/// Most resumptions of a stream within a [`PERIOD`], and in total while no bytes arrive.
const MAX_RESUMES: u32 = 3;
const PERIOD: Duration = Duration::from_secs(1);
/// Pause before a stream resumes, so that a peer can begin to send.
const PAUSE: Duration = Duration::from_millis(20);

/// Reason for a stream's early end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Break {
    /// The connection failed.
    Broken,
    /// The peer has nothing to send: it has no plan yet, or has finished.
    NothingToSend,
    /// The peer was silent for too long.
    Silent,
    /// The peer's own source is lost.
    SourceLost,
}

/// Counts the breaks of a stream.
#[derive(Debug)]
pub struct Resumes {
    count: u32,
    since: Time,
    received_bytes: u64,
    requested_at: Time,
}

impl Resumes {
    /// Makes a count without breaks.
    pub const fn new(now: Time) -> Self {
        Self { count: 0, since: now, received_bytes: 0, requested_at: now }
    }

    /// Notes a break after `received_bytes`. Returns the pause before the stream resumes, or `None`
    /// if the stream has failed.
    pub fn broke(&mut self, now: Time, received_bytes: u64, cause: Break) -> Option<Duration> {
        // The peer had enough time: its plan will not come, or it has sent everything.
        let is_final = cause == Break::NothingToSend && now.since(self.requested_at) > PERIOD;
        if now.since(self.since) > PERIOD && received_bytes > self.received_bytes {
            *self = Self::new(now);
        }
        self.received_bytes = received_bytes;
        self.count += 1;
        self.requested_at = now + PAUSE;
        let is_passing = matches!(cause, Break::Broken | Break::NothingToSend) && !is_final;
        (is_passing && self.count <= MAX_RESUMES).then_some(PAUSE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Time {
        Time::from_micros(seconds * 1_000_000)
    }

    #[test]
    fn a_stream_resumes_only_while_it_makes_progress() {
        let mut stream = Resumes::new(at(0));
        for second in 1..=10 {
            assert_eq!(
                stream.broke(at(2 * second), second, Break::Broken),
                Some(PAUSE),
                "{second}"
            );
        }
        for second in 11..=12 {
            assert_eq!(stream.broke(at(2 * second), 10, Break::Broken), Some(PAUSE), "{second}");
        }
        assert_eq!(stream.broke(at(100), 10, Break::Broken), None);
    }

    #[test]
    fn a_stream_that_breaks_often_ends_despite_progress() {
        let mut stream = Resumes::new(at(0));
        let answers = [1, 2, 3, 4].map(|bytes| stream.broke(at(0), bytes, Break::Broken));
        assert_eq!(answers, [Some(PAUSE), Some(PAUSE), Some(PAUSE), None]);
    }

    #[test]
    fn a_stream_without_bytes_is_not_requested_again_after_the_period() {
        let mut stream = Resumes::new(at(0));
        assert_eq!(
            stream.broke(at(0), 0, Break::NothingToSend),
            Some(PAUSE),
            "it may have begun by then"
        );
        assert_eq!(stream.broke(at(7), 0, Break::NothingToSend), None);
        assert_eq!(
            Resumes::new(at(0)).broke(at(7), 0, Break::Broken),
            Some(PAUSE),
            "that says nothing of it"
        );
    }

    #[test]
    fn a_silent_peer_and_a_lost_source_are_no_reasons_to_resume() {
        for cause in [Break::Silent, Break::SourceLost] {
            assert_eq!(Resumes::new(at(0)).broke(at(1), 1, cause), None);
        }
    }
}
