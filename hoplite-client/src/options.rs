//! The options of connects, puts and reduces.

use std::path::PathBuf;
use std::time::Duration;

use hoplite_core::Metadata;
use hoplite_core::node::{ByteRange, ReduceOrder};
use hoplite_core::reduce::ReduceOp;
use hoplite_proto::socket_path::default_socket_path;
use hoplite_proto::socket_place::daemon_user_of_environment;

use crate::notice::{LONG_WAIT, Listener, log_notice};
use crate::timeout::default_timeout;

/// The time that connecting may take, unless the caller says otherwise. A store answers within a millisecond; one that does
/// not within seconds is stopped or swamped.
pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How to connect to a store.
#[derive(Debug, Clone)]
pub struct ConnectOptions {
    /// The store's socket; by default that of [`default_socket_path`].
    pub socket: PathBuf,
    /// The time to wait for the store to accept and to answer, and for a store that has gone to come back; by default
    /// [`DEFAULT_CONNECT_TIMEOUT`].
    pub timeout: Duration,
    /// The name of this program in the store's log; by default that of the executable.
    pub program: String,
    /// The user, by name or number, as whom the store may run beside the user of this process and
    /// root. By default that of `HOPLITE_DAEMON_USER`. `None` stands for the user `hoplite`, as
    /// whom the packages run a store.
    ///
    /// A store of another user is refused, and so is a socket that another user could replace.
    pub daemon_user: Option<String>,
    /// What the client does when a put finds no room, once and before the put waits for room. For hosts that may hold
    /// views which nobody needs any more, such as the interpreter of a language with a garbage collector.
    pub on_full: Option<fn()>,
    /// What the next call does after the connection was lost; by default it connects again.
    pub after_loss: AfterLoss,
    /// Receives the notices of the client; by default [`log_notice`].
    pub listener: Listener,
    /// The wait after which a call reports that it waits; by default [`LONG_WAIT`].
    pub long_wait: Duration,
}

/// What the next call of a client does after its connection was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum AfterLoss {
    /// The call connects again, to whichever store then listens at the socket.
    #[default]
    Reconnect,
    /// The call fails, and so do all later ones: for programs whose objects must all be of one life of the store.
    Fail,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        let program = std::env::args_os()
            .next()
            .and_then(|path| PathBuf::from(path).file_name().map(|name| name.to_string_lossy().into_owned()))
            .unwrap_or_default();
        Self {
            socket: default_socket_path(),
            timeout: DEFAULT_CONNECT_TIMEOUT,
            program,
            daemon_user: daemon_user_of_environment(),
            on_full: None,
            after_loss: AfterLoss::default(),
            listener: log_notice,
            long_wait: LONG_WAIT,
        }
    }
}

/// How to put an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PutOptions {
    /// Element type, shape and the application's own few bytes; plain bytes by default.
    pub metadata: Metadata,
    /// The time to wait for room, for another writer of the same id, and for the directory, all together; by default
    /// [`default_timeout`].
    pub timeout: Duration,
    /// What the store and the directory have done when a put succeeds.
    pub confirm: Confirmation,
}

impl Default for PutOptions {
    fn default() -> Self {
        Self { metadata: Metadata::default(), timeout: default_timeout(), confirm: Confirmation::default() }
    }
}

/// What the store and the directory have done when a put succeeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Confirmation {
    /// The store has the object, and tells the directory by itself. If another node has put other bytes under the same id at
    /// the same moment, the put that the directory heard of first stays, and the store counts the conflict. This is for
    /// objects below [`crate::Client::confirmed_from_bytes`]; larger ones are as with [`Confirmation::Confirmed`].
    #[default]
    BySize,
    /// The directory has accepted the object, so a conflicting put has been found and reported.
    Confirmed,
}

/// How to reduce.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReduceOptions {
    /// What is done with two elements; by default their sum.
    pub op: ReduceOp,
    /// Reduce only the first so many sources to become ready; `None`, which is the default, means all.
    pub num_objects: Option<usize>,
    /// In which order the sources are combined; by default as they become ready.
    pub order: ReduceOrder,
    /// The part of each source that is reduced; both ends are at whole elements. `None`, the default, means all of it. With a
    /// range, the target is as long as the range, and has the type of the sources but not their shape.
    pub range: Option<ByteRange>,
    /// The time that the whole may take, with the time until the sources are there; by default [`default_timeout`].
    pub timeout: Duration,
}

impl Default for ReduceOptions {
    fn default() -> Self {
        Self {
            op: ReduceOp::default(),
            num_objects: None,
            order: ReduceOrder::default(),
            range: None,
            timeout: default_timeout(),
        }
    }
}

/// How to allreduce. All participants must choose the same, but for the timeout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllreduceOptions {
    /// What is done with two elements; by default their sum.
    pub op: ReduceOp,
    /// In which order the sources are combined; by default as they become ready. In any case all participants get the
    /// same bits.
    pub order: ReduceOrder,
    /// The time that the whole may take, with the time until all participants are there; by default
    /// [`default_timeout`].
    pub timeout: Duration,
}

impl Default for AllreduceOptions {
    fn default() -> Self {
        Self { op: ReduceOp::default(), order: ReduceOrder::default(), timeout: default_timeout() }
    }
}
