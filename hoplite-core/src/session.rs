//! How a store keeps its session with a shard: how long it waits for what, when it tries again, and when it gives up.

use std::time::Duration;

use crate::error::{Error, ErrorCode};
use crate::fault::ToldFailures;
use crate::time::Time;

/// Pings on a connection: the other side counts as gone if it does not answer one in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pings {
    /// How often one is sent.
    pub interval: Duration,
    /// How long its answer may take.
    pub timeout: Duration,
}

impl Pings {
    /// How long the other side may be silent before it counts as gone.
    pub const fn silence_limit(self) -> Duration {
        self.interval.saturating_add(self.timeout)
    }
}

/// The pings of a store to a shard: the second shard of each id serves within two seconds. A shard that is given up too
/// early costs no more than a publication.
pub const STORE_PINGS: Pings = Pings { interval: Duration::from_secs(1), timeout: Duration::from_secs(1) };
/// The pings of a shard to its stores: it is more patient, since to give up a store means to lose its copies.
pub const SHARD_PINGS: Pings = Pings { interval: Duration::from_secs(2), timeout: Duration::from_secs(4) };
/// How long a store waits for a connection: a lost SYN is sent again after one second, and after three.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a store waits for the first message of a shard, the connection included.
pub const OPEN_TIMEOUT: Duration = Duration::from_secs(6);
/// How long a store may take to introduce itself to a shard that it has connected to; a connection may be half open for as long.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a shard may take to accept the connection past gRPC that it has just offered, and then to say that it has turned.
pub const BYPASS_TIMEOUT: Duration = Duration::from_secs(2);
/// The pings of a store past gRPC, each a frame without messages, which the shard answers with a frame. Those over gRPC do not tell whether
/// anything passes there. More patient than these, since they wait for the threads that messages keep busy.
pub const BYPASS_PINGS: Pings = Pings { interval: Duration::from_secs(2), timeout: Duration::from_secs(4) };
/// How long messages stay in gRPC after a shard was not heard past it: long, since each try delays a session, and not for ever.
const BYPASS_PAUSE: Duration = Duration::from_secs(60);
/// How long messages must have gone past gRPC for the end of that to say nothing against it. Silence always does.
const BYPASS_TRIAL: Duration = Duration::from_secs(10);

/// How long a shard may take to say what it knows now: far more than one that is up needs for that.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The first pause between two attempts; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause: also the default grace within which a store must be back at its shard.
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// How long a refusal that may pass may last: longer than it takes a shard to notice that the previous run of this node is
/// dead.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(10);

/// The attempts of a store to keep a session with one shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempts {
    pause: Duration,
    is_up: bool,
    /// Whether the session has ever been up.
    was_accepted: bool,
    refused_since: Option<Time>,
    /// The failures since the session was up that the log has told.
    told: ToldFailures,
}

/// What to do when a session has ended, or did not come about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Try again after this pause.
    Retry {
        /// The pause.
        pause: Duration,
        /// `true` if the log should tell this failure: it is the first one since the session was up, or of another kind than
        /// the one before.
        is_news: bool,
    },
    /// The shard refuses this store, and will go on to.
    GiveUp,
}

impl Default for Attempts {
    fn default() -> Self {
        Self {
            pause: FIRST_PAUSE,
            is_up: false,
            was_accepted: false,
            refused_since: None,
            told: ToldFailures::default(),
        }
    }
}

impl Attempts {
    /// The session is up.
    pub fn opened(&mut self) {
        *self = Self { is_up: true, was_accepted: true, ..Self::default() };
    }

    /// The session has ended, or an attempt has failed; `error` says why, if it was not in peace.
    pub fn ended(&mut self, now: Time, error: Option<&Error>) -> Next {
        let was_up = std::mem::take(&mut self.is_up);
        if let Some(error) = error.filter(|error| self.is_refusal(error, was_up)) {
            let since = *self.refused_since.get_or_insert(now);
            if !may_pass(error) || now.since(since) > REFUSAL_TIMEOUT {
                return Next::GiveUp;
            }
        }
        let pause = self.pause;
        self.pause = (pause * 2).min(MAX_PAUSE);
        let is_new_kind = error.is_some_and(|error| self.told.is_news(now, error));
        Next::Retry { pause, is_news: was_up || is_new_kind }
    }

    /// Whether the last attempts were refused.
    pub const fn is_refused(&self) -> bool {
        self.refused_since.is_some()
    }

    /// Whether the shard was reached and does not want this store; before the session was up, also whether it could make
    /// nothing of the first message. A store that was accepted before keeps its objects and goes on trying if its token is
    /// refused: the token of the cluster may be about to be replaced.
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

/// Whether a shard may take a refusal back: the previous run of this node leaves its name free when it is found dead, the
/// previous runs of all stores do so with their list of shards, and a connection that breaks at its start can look malformed.
fn may_pass(refusal: &Error) -> bool {
    matches!(refusal.code(), ErrorCode::NodeIdInUse | ErrorCode::ShardListMismatch | ErrorCode::Malformed)
}

/// Whether a store should try to get past gRPC when a shard offers it.
#[derive(Debug, Clone, Copy, Default)]
pub struct BypassTries {
    paused_until: Time,
}

impl BypassTries {
    /// Whether to try now.
    pub fn is_due(&self, now: Time) -> bool {
        self.paused_until <= now
    }

    /// Messages have gone past gRPC since `begun`, and go no more. What lies between, such as a firewall, may end that each time.
    pub fn ended(&mut self, begun: Time, now: Time) {
        if now.since(begun) < BYPASS_TRIAL {
            self.failed(now);
        }
    }

    /// Nothing was heard past gRPC, or that way did not come about; maybe only because the shard has ended.
    pub fn failed(&mut self, now: Time) {
        self.paused_until = now + BYPASS_PAUSE;
    }
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
        let list = Error::ShardListMismatch { refused: "a:1, b:1".into(), in_use: "a:1, c:1".into() };
        let mut attempts = Attempts::default();
        for error in [list, in_use()] {
            attempts = Attempts::default();
            for millis in [0, 5000, 10_000] {
                assert!(matches!(attempts.ended(at(millis), Some(&error)), Next::Retry { .. }));
            }
            assert_eq!(attempts.ended(at(10_001), Some(&error)), Next::GiveUp);
        }
        // Once it was accepted, the time counts anew.
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

    #[test]
    fn a_way_past_grpc_that_failed_is_left_alone_for_a_minute() {
        let mut tries = BypassTries::default();
        assert!(tries.is_due(Time::ZERO));
        tries.failed(Time::from_micros(5_000_000));
        assert!(!tries.is_due(Time::from_micros(64_999_999)));
        assert!(tries.is_due(Time::from_micros(65_000_000)));
    }

    #[test]
    fn a_way_past_grpc_that_ends_soon_is_left_alone_too() {
        let seconds = |seconds: u64| Time::from_micros(seconds * 1_000_000);
        let mut tries = BypassTries::default();
        tries.ended(seconds(5), seconds(15));
        assert!(tries.is_due(seconds(15)), "it had worked for long: the shard may have ended");
        tries.ended(seconds(15), seconds(24));
        assert!(!tries.is_due(seconds(83)) && tries.is_due(seconds(84)));
    }
}
