use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use hoplite_core::id::IdError;
use hoplite_core::text::rounded;
use hoplite_core::{ObjectId, Operation};
use hoplite_proto::socket_place::{DAEMON_USER_VARIABLE, Distrust};

/// Result of a call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Errors of the store and of the connection.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operation on objects failed, here or in the store.
    #[error(transparent)]
    Object(#[from] hoplite_core::Error),
    /// No connection to the store.
    #[error("cannot connect to the store at {}: {kind}", path.display())]
    Connect {
        /// Socket.
        path: PathBuf,
        /// Reason.
        #[source]
        kind: ConnectFailure,
    },
    /// The connection broke during the call, or before it.
    ///
    /// The next call reconnects unless [`AfterLoss`](crate::AfterLoss) forbids it.
    #[error("the connection to the store at {} is lost: {reason}{call}", path.display())]
    ConnectionLost {
        /// Store's socket.
        path: PathBuf,
        /// Reason.
        #[source]
        reason: Loss,
        /// Tells if the caller may repeat the call.
        call: LostCall,
    },
    /// A forked child uses its parent's connection. It must open a new one.
    #[error(
        "process {current} cannot use a connection that process {connected} made before it forked"
    )]
    ForkedChild {
        /// Process that made the connection.
        connected: u32,
        /// Process that made the call.
        current: u32,
    },
    /// The given buffer is too small for the objects.
    #[error("{needed_bytes} bytes are needed, the buffer has room for {given_bytes}")]
    BufferTooSmall {
        /// Size of the objects up to and including the first one that does not fit.
        needed_bytes: u64,
        /// Size of the buffer.
        given_bytes: u64,
    },
    /// The number of written bytes differs from the announced size.
    #[error("{written_bytes} bytes were written to an object of {size_bytes} bytes")]
    SizeMismatch {
        /// Announced size.
        size_bytes: u64,
        /// Bytes written so far. For a write beyond the size, the number that it would have
        /// reached.
        written_bytes: u64,
    },
    /// Participants of a collective did not call it in time.
    #[error("{name} waited {:?} in vain for {}", rounded(*waited), Ranks(ranks))]
    RanksMissing {
        /// Name of the collective.
        name: ObjectId,
        /// Ranks of some missing participants, ascending; at least one.
        ranks: Vec<usize>,
        /// Timeout that expired.
        waited: Duration,
    },
}

const MAX_NAMED_RANKS: usize = 16;

struct Ranks<'a>(&'a [usize]);

impl fmt::Display for Ranks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.len() == 1 { "rank " } else { "ranks " })?;
        for (index, rank) in self.0.iter().take(MAX_NAMED_RANKS).enumerate() {
            write!(f, "{}{rank}", if index == 0 { "" } else { ", " })?;
        }
        match self.0.len().saturating_sub(MAX_NAMED_RANKS) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// Reason why there is no connection.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectFailure {
    /// The path does not exist.
    #[error(
        "there is no such socket: `hoplite start` starts a store, and HOPLITE_SOCKET names another socket"
    )]
    NoSuchSocket,
    /// The path is not a socket.
    #[error("it is not a socket")]
    NotASocket,
    /// No daemon listens on the socket.
    #[error(
        "no daemon listens on this socket: `hoplite start` starts a store, and HOPLITE_SOCKET names another socket"
    )]
    NotListening,
    /// This user may not use the socket.
    #[error("permission denied{}", owner.map(|uid| format!("; the socket belongs to user {uid}")).unwrap_or_default())]
    PermissionDenied {
        /// Socket's owner, if visible.
        owner: Option<u32>,
    },
    /// Another user could replace the socket or its directory.
    #[error(transparent)]
    UntrustedPlace(Distrust),
    /// The listener runs as another user than root, this user, or the permitted daemon user.
    #[error(
        "the listening process runs as user {user}, not as this user or root: set {DAEMON_USER_VARIABLE}={user} if that user runs the \
         store, or use another socket"
    )]
    UntrustedDaemon {
        /// User of the listening process.
        user: u32,
    },
    /// The socket's file name exceeds a Unix address: about 80 bytes fit. The directory may have
    /// any length.
    #[error("the name of the socket is too long for a Unix socket")]
    PathTooLong,
    /// The daemon did not answer in time.
    #[error("no answer within {:?}", rounded(*waited))]
    TimedOut {
        /// Timeout that expired.
        waited: Duration,
    },
    /// The listening process closed the connection before its hello.
    #[error("the listening process closed the connection before its hello; is the store stopping?")]
    ClosedEarly,
    /// The listening process is not a store.
    #[error("the listening process is not a hoplite-store")]
    NotAStore,
    /// The store refused this client, or speaks no common version of the protocol.
    #[error(transparent)]
    Refused(hoplite_core::Error),
    /// The arena cannot be mapped.
    #[error("the store's memory cannot be mapped: {reason}")]
    Arena {
        /// Reason.
        #[source]
        reason: Arc<hoplite_shm::Error>,
    },
    /// Any other system error.
    #[error("{}", io::Error::from(*kind))]
    System {
        /// Kind of error.
        kind: io::ErrorKind,
    },
}

/// Reason why a connection broke.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Loss {
    /// The store closed the connection.
    #[error("the store closed it")]
    Closed,
    /// The store gave this reason for closing the connection, or sent an invalid message.
    #[error(transparent)]
    Protocol(hoplite_core::Error),
    /// A system error.
    #[error("{}", io::Error::from(*kind))]
    System {
        /// Kind of error.
        kind: io::ErrorKind,
    },
    /// The client's tokio runtime has ended.
    #[error("the runtime that created it has ended")]
    RuntimeEnded,
}

/// State of a call whose connection was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostCall {
    /// The call can be repeated without harm.
    Repeatable,
    /// The store may have performed the call. A repetition may delete a newer object, or fail
    /// because the target exists.
    MayHaveHappened,
    /// A repetition fails: the call's writer, reader, watch or client has ended.
    Ended,
}

impl fmt::Display for LostCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MayHaveHappened => "; the store may have performed the call",
            Self::Repeatable | Self::Ended => "",
        })
    }
}

/// Stable codes of all errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorCode {
    /// Code of an [`Error::Object`].
    Object(hoplite_core::ErrorCode),
    /// [`Error::Connect`].
    Connect,
    /// [`Error::ConnectionLost`].
    ConnectionLost,
    /// [`Error::ForkedChild`].
    ForkedChild,
    /// [`Error::BufferTooSmall`].
    BufferTooSmall,
    /// [`Error::SizeMismatch`].
    SizeMismatch,
    /// [`Error::RanksMissing`].
    RanksMissing,
}

impl From<IdError> for Error {
    fn from(error: IdError) -> Self {
        Self::Object(error.into())
    }
}

impl Error {
    /// Adds a wait before the call's request to a timeout.
    pub(crate) fn having_waited(mut self, before: Duration) -> Self {
        if let Self::Object(hoplite_core::Error::Timeout { waited, .. })
        | Self::RanksMissing { waited, .. } = &mut self
        {
            *waited += before;
        }
        self
    }

    pub(crate) const fn timeout(operation: Operation, waited: Duration) -> Self {
        Self::Object(hoplite_core::Error::timeout(operation, waited))
    }

    /// Returns this error, but a lost connection gets the state `call`. For callers that combine
    /// calls.
    #[must_use]
    pub fn leaving(self, call: LostCall) -> Self {
        match self {
            Self::ConnectionLost { path, reason, .. } => {
                Self::ConnectionLost { path, reason, call }
            }
            error => error,
        }
    }

    /// Stable code; for a refused connection, the code of the store's reason.
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::Object(error) | Self::Connect { kind: ConnectFailure::Refused(error), .. } => {
                ErrorCode::Object(error.code())
            }
            Self::Connect { .. } => ErrorCode::Connect,
            Self::ConnectionLost { .. } => ErrorCode::ConnectionLost,
            Self::ForkedChild { .. } => ErrorCode::ForkedChild,
            Self::BufferTooSmall { .. } => ErrorCode::BufferTooSmall,
            Self::SizeMismatch { .. } => ErrorCode::SizeMismatch,
            Self::RanksMissing { .. } => ErrorCode::RanksMissing,
        }
    }

    /// Returns `true` if the same call may succeed later, for example after
    /// [`LostCall::Repeatable`].
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::ConnectionLost { call, .. } => matches!(call, LostCall::Repeatable),
            Self::Object(error) | Self::Connect { kind: ConnectFailure::Refused(error), .. } => {
                error.is_retryable()
            }
            Self::Connect { kind, .. } => matches!(
                kind,
                ConnectFailure::NoSuchSocket
                    | ConnectFailure::NotListening
                    | ConnectFailure::ClosedEarly
                    | ConnectFailure::TimedOut { .. }
            ),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_the_path_and_the_cause() {
        let connect = |kind| Error::Connect { path: "/run/store.sock".into(), kind };
        assert_eq!(
            connect(ConnectFailure::PermissionDenied { owner: Some(7) }).to_string(),
            "cannot connect to the store at /run/store.sock: permission denied; the socket belongs \
             to user 7"
        );
        assert_eq!(
            connect(ConnectFailure::PermissionDenied { owner: None }).to_string(),
            "cannot connect to the store at /run/store.sock: permission denied"
        );
        let lost = Error::ConnectionLost {
            path: "/run/store.sock".into(),
            reason: Loss::Closed,
            call: LostCall::Repeatable,
        };
        assert!(lost.to_string().ends_with("/run/store.sock is lost: the store closed it"));
        let lost = lost.leaving(LostCall::MayHaveHappened);
        assert!(
            lost.to_string()
                .ends_with("the store closed it; the store may have performed the call")
        );
    }

    #[test]
    fn a_message_names_some_of_many_ranks() {
        let name = ObjectId::new("meeting").unwrap();
        let message = |ranks: std::ops::Range<usize>| {
            let waited = Duration::from_secs(2);
            Error::RanksMissing { name: name.clone(), ranks: ranks.collect(), waited }.to_string()
        };
        assert_eq!(message(3..4), "meeting waited 2s in vain for rank 3");
        assert_eq!(message(3..6), "meeting waited 2s in vain for ranks 3, 4, 5");
        assert!(message(0..100).ends_with(", 14, 15 and 84 more"));
    }

    #[test]
    fn codes_and_retries() {
        let timeout = Error::timeout(Operation::Get, Duration::from_secs(1));
        assert_eq!(timeout.code(), ErrorCode::Object(hoplite_core::ErrorCode::Timeout));
        assert!(timeout.is_retryable());
        let refused =
            |error| Error::Connect { path: "s".into(), kind: ConnectFailure::Refused(error) };
        assert!(
            !refused(hoplite_core::Error::VersionMismatch { ours: 1, theirs: 2 }).is_retryable()
        );
        assert!(refused(hoplite_core::Error::ShuttingDown).is_retryable());
        assert!(!Error::ForkedChild { connected: 1, current: 2 }.is_retryable());
        let lost = |call| Error::ConnectionLost { path: "s".into(), reason: Loss::Closed, call };
        assert!(lost(LostCall::Repeatable).is_retryable());
        assert!(!lost(LostCall::MayHaveHappened).is_retryable());
        assert!(!lost(LostCall::Ended).is_retryable());
        assert_eq!(lost(LostCall::Ended).code(), ErrorCode::ConnectionLost);
    }
}
