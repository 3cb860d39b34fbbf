//! What a caller may choose: how to connect, and how to put.

use std::path::PathBuf;
use std::time::Duration;

use hoplite_core::Metadata;
use hoplite_proto::socket_path::default_socket_path;

/// How long connecting may take, unless the caller says otherwise. A store answers within a millisecond; one that does
/// not within seconds is stopped or swamped.
pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a put waits for room, or for the directory, unless the caller says otherwise.
pub const DEFAULT_PUT_TIMEOUT: Duration = Duration::from_secs(30);

/// How to connect to a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectOptions {
    /// The store's socket; by default what [`default_socket_path`] says.
    pub socket: PathBuf,
    /// How long to wait for the store to accept and to answer; by default [`DEFAULT_CONNECT_TIMEOUT`].
    pub timeout: Duration,
    /// How this program is called in the store's log; by default the name of the executable.
    pub program: String,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        let program = std::env::args_os()
            .next()
            .and_then(|path| PathBuf::from(path).file_name().map(|name| name.to_string_lossy().into_owned()))
            .unwrap_or_default();
        Self { socket: default_socket_path(), timeout: DEFAULT_CONNECT_TIMEOUT, program }
    }
}

/// How to put an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PutOptions {
    /// Element type, shape and the application's own few bytes; plain bytes by default.
    pub metadata: Metadata,
    /// How long to wait for room, for another writer of the same id, and for the directory, all together; by default
    /// [`DEFAULT_PUT_TIMEOUT`].
    pub timeout: Duration,
    /// What a successful put means.
    pub confirm: Confirmation,
}

impl Default for PutOptions {
    fn default() -> Self {
        Self { metadata: Metadata::default(), timeout: DEFAULT_PUT_TIMEOUT, confirm: Confirmation::default() }
    }
}

/// What has happened when a put returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Confirmation {
    /// Objects below the store's inline limit: the store has the object, and tells the directory by itself. Should
    /// another node have put other bytes under the same id at the same moment, the one that the directory heard of
    /// first stays, and the store counts the conflict. Larger objects: as [`Confirmation::Confirmed`].
    #[default]
    BySize,
    /// The directory has accepted the object, so a conflicting put has been found and reported.
    Confirmed,
}
