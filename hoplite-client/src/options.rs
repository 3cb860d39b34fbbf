use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::time::Duration;

use hoplite_core::Metadata;
use hoplite_core::lifetime::Owner;
use hoplite_core::node::{ByteRange, ReduceOrder};
use hoplite_core::reduce::ReduceOp;
use hoplite_proto::socket_path::default_socket_path;
use hoplite_proto::socket_place::daemon_user_of_environment;

use crate::notice::{LONG_WAIT, Listener, log_notice};
use crate::timeout::default_timeout;

/// Default timeout of connecting. Only a suspended or overloaded store takes longer than a
/// millisecond.
pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Options for connecting to a store.
#[derive(Debug, Clone)]
pub struct ConnectOptions {
    /// Store's socket; by default [`default_socket_path`].
    pub socket: PathBuf,
    /// Time for the store to answer or come back; by default [`DEFAULT_CONNECT_TIMEOUT`].
    pub timeout: Duration,
    /// Name in the store's log; by default the executable's name.
    pub program: String,
    /// Name or number of a further user who may run the store; by default `HOPLITE_DAEMON_USER`, or
    /// else `hoplite`. The client refuses stores of other users, and sockets that these could
    /// replace.
    pub daemon_user: Option<String>,
    /// Function that drops unneeded views. A put calls it before its only retry, if memory is short
    /// or a quota is exceeded.
    pub on_full: Option<fn()>,
    /// Behaviour after a loss of the connection; by default the next call reconnects.
    pub after_loss: AfterLoss,
    /// Receiver of notices; by default [`log_notice`].
    pub listener: Listener,
    /// Owners, at most 7, that the client holds while it is connected. Objects may end with an
    /// owner: see [`Lifetime`](crate::Lifetime).
    pub owners: Vec<Owner>,
    /// Time after which a waiting call sends a notice; by default [`LONG_WAIT`].
    pub long_wait: Duration,
}

/// Behaviour of the next call after a loss of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum AfterLoss {
    /// Connect to the store at the same socket.
    #[default]
    Reconnect,
    /// Fail all later calls. For programs whose objects must come from one run of the store.
    Fail,
}

impl ConnectOptions {
    /// Adds the owner that stands for this client, in front. All connections of the client hold it.
    pub(crate) fn with_own_owner(mut self) -> Self {
        let number = RandomState::new().hash_one(std::time::SystemTime::now());
        let name = format!("client:{}:{number:016x}", std::process::id());
        self.owners.insert(0, Owner::new(name).expect("the name is short and printable"));
        self
    }
}

impl Default for ConnectOptions {
    fn default() -> Self {
        let program = std::env::args_os()
            .next()
            .and_then(|path| {
                PathBuf::from(path).file_name().map(|name| name.to_string_lossy().into_owned())
            })
            .unwrap_or_default();
        Self {
            socket: default_socket_path(),
            timeout: DEFAULT_CONNECT_TIMEOUT,
            program,
            daemon_user: daemon_user_of_environment(),
            on_full: None,
            after_loss: AfterLoss::default(),
            listener: log_notice,
            owners: Vec::new(),
            long_wait: LONG_WAIT,
        }
    }
}

/// Options of a put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PutOptions {
    /// Metadata, lifetime and copies; by default plain bytes, no lifetime, and the store's number
    /// of copies.
    pub metadata: Metadata,
    /// Time to wait for memory, another writer of the id, and the directory; by default
    /// [`default_timeout`].
    pub timeout: Duration,
    /// Confirmation to wait for; by default [`Confirmation::BySize`].
    pub confirm: Confirmation,
}

impl Default for PutOptions {
    fn default() -> Self {
        Self {
            metadata: Metadata::default(),
            timeout: default_timeout(),
            confirm: Confirmation::default(),
        }
    }
}

/// Confirmation that a put waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Confirmation {
    /// A put waits only for its store, which announces the object afterwards. If another node puts
    /// other bytes under the id at that moment, the directory keeps the first put that it hears of,
    /// and the store counts a conflict. Puts with [`Replicas`](crate::Replicas), or from
    /// [`crate::Client::confirmed_from_bytes`] on, are [`Confirmation::Confirmed`].
    #[default]
    BySize,
    /// The directory accepts the object before the call returns, so the call reports a conflicting
    /// put.
    Confirmed,
}

/// Options of a get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GetOptions {
    /// Time to wait for the object and its bytes; by default [`default_timeout`].
    pub timeout: Duration,
    /// `true` accepts a complete local copy that no directory shard confirms: a
    /// [stale](crate::ObjectView::is_stale) answer. By default a get waits for a shard.
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
    /// Operation; by default the sum.
    pub op: ReduceOp,
    /// Number of sources to reduce, the first to become ready; by default all.
    pub num_objects: Option<usize>,
    /// Order of combining; by default as sources become ready.
    pub order: ReduceOrder,
    /// Range of bytes to reduce in each source, at whole elements; by default all. With a range,
    /// the target has no shape.
    pub range: Option<ByteRange>,
    /// Pinned copies of the target, each on another node; by default (0) the store's number.
    pub replicas: u8,
    /// Time for the call, including the wait for sources; by default [`default_timeout`].
    pub timeout: Duration,
}

impl Default for ReduceOptions {
    fn default() -> Self {
        Self {
            op: ReduceOp::default(),
            num_objects: None,
            order: ReduceOrder::default(),
            range: None,
            replicas: 0,
            timeout: default_timeout(),
        }
    }
}

/// Options of an allreduce, equal at all participants but for the timeout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllreduceOptions {
    /// See [`ReduceOptions::op`].
    pub op: ReduceOp,
    /// See [`ReduceOptions::order`].
    pub order: ReduceOrder,
    /// Time for the call, including the wait for participants; by default [`default_timeout`].
    pub timeout: Duration,
}

impl Default for AllreduceOptions {
    fn default() -> Self {
        Self { op: ReduceOp::default(), order: ReduceOrder::default(), timeout: default_timeout() }
    }
}
