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

/// Default time limit of connecting. A store answers within a millisecond; a store that needs
/// seconds is suspended or overloaded.
pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Options for connecting to a store.
#[derive(Debug, Clone)]
pub struct ConnectOptions {
    /// The store's socket; by default [`default_socket_path`].
    pub socket: PathBuf,
    /// Time limit for the store to accept and answer, and for a stopped store to come back; by
    /// default [`DEFAULT_CONNECT_TIMEOUT`].
    pub timeout: Duration,
    /// The name of this program in the store's log; by default the name of the executable.
    pub program: String,
    /// The user, by name or number, who may run the store besides root and the user of this
    /// process. By default the value of `HOPLITE_DAEMON_USER`. `None` stands for the user
    /// `hoplite`, as which the packages run a store.
    ///
    /// The client refuses a store of any other user, and a socket that another user could replace.
    pub daemon_user: Option<String>,
    /// A hook that runs once when a put finds no room, before the put waits for room. It is for
    /// hosts that may hold unneeded views, such as the interpreter of a language with a garbage
    /// collector.
    pub on_full: Option<fn()>,
    /// The behaviour of the next call after the connection was lost; by default it reconnects.
    pub after_loss: AfterLoss,
    /// Receives the notices of the client; by default [`log_notice`].
    pub listener: Listener,
    /// The time after which a call reports a long wait; by default [`LONG_WAIT`].
    pub long_wait: Duration,
}

/// The behaviour of the next call after the connection was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum AfterLoss {
    /// The call connects to the store that then listens at the socket.
    #[default]
    Reconnect,
    /// The call and all later ones fail. This is for programs whose objects must all come from one
    /// run of the store.
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

/// Options of a put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PutOptions {
    /// Element type, shape, a few bytes of the application, and the number of copies; plain bytes with
    /// the copies of the store's default by default.
    pub metadata: Metadata,
    /// Total time to wait for room, for another writer of the same id, and for the directory; by
    /// default [`default_timeout`].
    pub timeout: Duration,
    /// The confirmation that a put waits for.
    pub confirm: Confirmation,
}

impl Default for PutOptions {
    fn default() -> Self {
        Self { metadata: Metadata::default(), timeout: default_timeout(), confirm: Confirmation::default() }
    }
}

/// The confirmation that a put waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Confirmation {
    /// As [`Confirmation::Confirmed`] if the put waits for several copies
    /// ([`Replicas`](crate::Replicas)). Otherwise the store has the object, and announces it to the directory afterwards. Another node may put
    /// other bytes under the same id at that moment. The directory then keeps the put that it hears
    /// of first, and the store counts the conflict. This applies below
    /// [`crate::Client::confirmed_from_bytes`]; larger objects are [`Confirmation::Confirmed`].
    #[default]
    BySize,
    /// The directory has accepted the object, so a conflicting put has been found and reported.
    Confirmed,
}

/// Options of a get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GetOptions {
    /// Total time to wait for the object and its bytes; by default [`default_timeout`].
    pub timeout: Duration,
    /// `true` also accepts a complete copy in the store of this node while no directory shard
    /// confirms that the object still exists. Such an answer is
    /// [stale](crate::ObjectView::is_stale). By default `false`: a get then waits for a shard.
    pub allow_stale: bool,
}

impl Default for GetOptions {
    fn default() -> Self {
        Self { timeout: default_timeout(), allow_stale: false }
    }
}

impl From<Duration> for GetOptions {
    fn from(timeout: Duration) -> Self {
        Self { timeout, allow_stale: false }
    }
}

/// Options of a reduce.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReduceOptions {
    /// The operation on two elements; by default their sum.
    pub op: ReduceOp,
    /// The number of sources to reduce, in the order in which they become ready; `None`, the
    /// default, means all.
    pub num_objects: Option<usize>,
    /// The order in which sources are combined; by default the order in which they become ready.
    pub order: ReduceOrder,
    /// The range of each source to reduce; both ends are at whole elements. `None`, the default,
    /// means all bytes. With a range, the target has the length of the range and the type of the
    /// sources, but no shape.
    pub range: Option<ByteRange>,
    /// Total time limit, with the wait for the sources; by default [`default_timeout`].
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

/// Options of an allreduce. All participants must choose the same ones, except for the timeout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllreduceOptions {
    /// The operation on two elements; by default their sum.
    pub op: ReduceOp,
    /// The order in which sources are combined; by default the order in which they become ready.
    /// All participants always get the same bits.
    pub order: ReduceOrder,
    /// Total time limit, with the wait for the participants; by default [`default_timeout`].
    pub timeout: Duration,
}

impl Default for AllreduceOptions {
    fn default() -> Self {
        Self { op: ReduceOp::default(), order: ReduceOrder::default(), timeout: default_timeout() }
    }
}
