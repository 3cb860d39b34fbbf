//! A store's session with a shard: timeouts, pauses, and the decision to give up.

use std::time::Duration;

use crate::error::{Error, ErrorCode};
use crate::fault::LoggedFailures;
use crate::time::Time;

/// A connection's pings. Without a timely answer, the connection counts as lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pings {
    /// Time between two pings.
    pub interval: Duration,
    /// Longest wait for an answer.
    pub timeout: Duration,
}

impl Pings {
    /// Longest silence of a live peer.
    pub const fn silence_limit(self) -> Duration {
        self.interval.saturating_add(self.timeout)
    }
}

/// A store's pings to a shard over gRPC, which find a dead shard within two seconds. A false alarm
/// only costs another publication.
pub const STORE_PINGS: Pings =
    Pings { interval: Duration::from_secs(1), timeout: Duration::from_secs(1) };
/// A shard's pings over gRPC, and its silence limit for stores on direct connections. The timeout
/// is longer than in [`STORE_PINGS`], because a shard that gives up a store loses its copies.
pub const SHARD_PINGS: Pings =
    Pings { interval: Duration::from_secs(2), timeout: Duration::from_secs(4) };
/// Timeout to connect to a shard: TCP retransmits a SYN after one and three seconds.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Timeout to connect to a shard and get its first message.
pub const OPEN_TIMEOUT: Duration = Duration::from_secs(6);
/// A shard's timeout for a store's first message. The connection may be half open.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// A store's pings on a direct connection: empty frames. The timeout is longer than for gRPC,
/// because the answers wait for the threads that handle messages.
pub const DIRECT_PINGS: Pings =
    Pings { interval: Duration::from_secs(2), timeout: Duration::from_secs(4) };

/// Time for which a store may serve its copies after it sent a ping that a shard answered.
///
/// A shard waits longer for a silent store (the silence limit of [`SHARD_PINGS`] and a grace
/// period), so the store serves no copy that was deleted without it.
pub const LEASE: Duration = Duration::from_secs(5);
const _: () =
    assert!(LEASE.as_secs() < SHARD_PINGS.silence_limit().as_secs(), "the shard waits longer");
const _: () =
    assert!(LEASE.as_secs() >= DIRECT_PINGS.interval.as_secs() * 2, "one lost ping is harmless");

/// Timeout for a question about a shard's state.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause after the first failure to open a session. Each further failure doubles it.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Longest pause, and the default grace for copies of an absent store.
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// Time for which a store retries after refusals that may pass: longer than a shard takes to notice
/// a previous run's death.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(10);

/// A store's attempts to open a session with a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempts {
    pause: Duration,
    is_up: bool,
    was_accepted: bool,
    refused_since: Option<Time>,
    logged: LoggedFailures,
}

/// Store's next step after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Try again.
    Retry {
        /// After this pause.
        pause: Duration,
        /// `true` for a failure to log: the first, or a new kind.
        is_news: bool,
    },
    /// Give up: the refusal is final.
    GiveUp,
}

impl Default for Attempts {
    fn default() -> Self {
        Self {
            pause: FIRST_PAUSE,
            is_up: false,
            was_accepted: false,
            refused_since: None,
            logged: LoggedFailures::default(),
        }
    }
}

impl Attempts {
    /// Notes that the session is up.
    pub fn opened(&mut self) {
        *self = Self { is_up: true, was_accepted: true, ..Self::default() };
    }

    /// Decides the next step after a session or attempt; `error` is `None` after a regular end.
    pub fn ended(&mut self, now: Time, error: Option<&Error>) -> Next {
        let was_up = std::mem::take(&mut self.is_up);
        match error.filter(|error| self.is_refusal(error, was_up)) {
            Some(error) => {
                let since = *self.refused_since.get_or_insert(now);
                if !may_pass(error) || now.since(since) > REFUSAL_TIMEOUT {
                    return Next::GiveUp;
                }
            }
            // Another failure interrupts the series of refusals.
            None => self.refused_since = None,
        }
        let pause = self.pause;
        self.pause = (pause * 2).min(MAX_PAUSE);
        let is_new_kind = error.is_some_and(|error| self.logged.is_news(now, error));
        Next::Retry { pause, is_news: was_up || is_new_kind }
    }

    /// Returns `true` if the shard's last answer was a refusal.
    pub const fn is_refused(&self) -> bool {
        self.refused_since.is_some()
    }

    /// Returns `true` if a shard refuses the store, or sent a malformed message before the session.
    /// A refused token counts only before the first session: later, an operator may be replacing
    /// it.
    fn is_refusal(&self, error: &Error, was_up: bool) -> bool {
        match error.code() {
            ErrorCode::NodeIdInUse
            | ErrorCode::ClusterMismatch
            | ErrorCode::ShardListMismatch
            | ErrorCode::VersionMismatch => true,
            ErrorCode::InvalidName | ErrorCode::Malformed => !was_up,
            ErrorCode::PermissionDenied => !self.was_accepted,
            _ => false,
        }
    }
}

/// Returns `true` for a refusal that may end: the other store of this name, or shard with another
/// list, may be dead, or the connection may have broken at its start.
fn may_pass(refusal: &Error) -> bool {
    matches!(
        refusal.code(),
        ErrorCode::NodeIdInUse | ErrorCode::ShardListMismatch | ErrorCode::Malformed
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Plane;
    use crate::id::NodeId;

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    fn in_use() -> Error {
        Error::NodeIdInUse { node: NodeId::new("n").unwrap() }
    }

    #[test]
    fn pauses_double_up_to_a_second_and_begin_anew_after_a_session() {
        let mut attempts = Attempts::default();
        let error = Error::unavailable("the directory shard");
        let mut pauses = Vec::new();
        for _ in 0..7 {
            match attempts.ended(at(0), Some(&error)) {
                Next::Retry { pause, is_news } => pauses.push((pause.as_millis(), is_news)),
                Next::GiveUp => panic!("it is only away"),
            }
        }
        let expected = [(50, true), (100, false), (200, false), (400, false), (800, false)];
        assert_eq!(pauses[..5], expected);
        assert_eq!(pauses[5..], [(1000, false), (1000, false)]);
        attempts.opened();
        let first = Next::Retry { pause: FIRST_PAUSE, is_news: true };
        assert_eq!(attempts.ended(at(0), None), first);
    }

    #[test]
    fn a_refusal_that_cannot_pass_is_final() {
        for error in [
            Error::ClusterMismatch { ours: "c".to_owned(), theirs: "d".to_owned() },
            Error::VersionMismatch { ours: 1, theirs: 2 },
            Error::InvalidName { name: "a b".into() },
        ] {
            assert_eq!(Attempts::default().ended(at(0), Some(&error)), Next::GiveUp, "{error}");
        }
    }

    #[test]
    fn a_token_that_is_refused_is_final_only_for_a_store_that_is_new() {
        let error = Error::permission_denied("another token");
        let mut attempts = Attempts::default();
        assert_eq!(attempts.ended(at(0), Some(&error)), Next::GiveUp);
        attempts.opened();
        for millis in [0, 20_000, 40_000] {
            assert!(matches!(attempts.ended(at(millis), Some(&error)), Next::Retry { .. }));
        }
    }

    #[test]
    fn another_kind_of_failure_is_news() {
        let news = |attempts: &mut Attempts, millis: u64, error: &Error| match attempts
            .ended(at(millis), Some(error))
        {
            Next::Retry { is_news, .. } => is_news,
            Next::GiveUp => panic!("it was accepted before"),
        };
        let away = Error::unavailable("the directory shard");
        let expired = Error::Unavailable { what: "the shard (its certificate has expired)".into() };
        let refused = Error::permission_denied("another token");
        let mut attempts = Attempts::default();
        attempts.opened();
        assert!(news(&mut attempts, 0, &Error::ShuttingDown));
        assert!(news(&mut attempts, 50, &away));
        for millis in [150, 350] {
            assert!(!news(&mut attempts, millis, &away));
        }
        assert!(news(&mut attempts, 750, &refused), "the shard is back, with another token");
        assert!(!news(&mut attempts, 1550, &refused));
        assert!(news(&mut attempts, 2550, &expired), "the code alone is not the kind");
        attempts.opened();
        assert!(news(&mut attempts, 3000, &refused));
    }

    #[test]
    fn a_name_or_list_in_use_may_become_free() {
        let list =
            Error::ShardListMismatch { refused: "a:1, b:1".into(), in_use: "a:1, c:1".into() };
        let mut attempts = Attempts::default();
        for error in [list, in_use()] {
            attempts = Attempts::default();
            for millis in [0, 5000, 10_000] {
                assert!(matches!(attempts.ended(at(millis), Some(&error)), Next::Retry { .. }));
            }
            assert_eq!(attempts.ended(at(10_001), Some(&error)), Next::GiveUp);
        }
        let mut broken = attempts.clone();
        assert!(matches!(
            broken.ended(at(20_000), Some(&Error::unavailable("the shard"))),
            Next::Retry { .. }
        ));
        assert!(matches!(broken.ended(at(20_001), Some(&in_use())), Next::Retry { .. }));
        attempts.opened();
        assert!(matches!(attempts.ended(at(20_000), Some(&in_use())), Next::Retry { .. }));
    }

    #[test]
    fn what_is_malformed_is_a_refusal_only_at_the_start() {
        let error = Error::malformed(Plane::Control, "a second hello");
        let mut attempts = Attempts::default();
        attempts.opened();
        assert!(matches!(attempts.ended(at(0), Some(&error)), Next::Retry { .. }));
        assert_eq!(attempts.refused_since, None);
        assert!(matches!(attempts.ended(at(0), Some(&error)), Next::Retry { .. }));
        assert_eq!(attempts.refused_since, Some(at(0)));
    }
}
