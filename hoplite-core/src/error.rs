//! What can go wrong, as every plane and every client sees it.
//!
//! One enum serves the shard, the store, the wire and the clients, because an error that a shard decides on travels
//! through a store to a client unchanged. The crates that own a transport add the errors of that transport.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use crate::id::{NodeId, ObjectId};
use crate::metadata::Dtype;
use crate::missing::{Because, Missing};

/// The result of an operation on objects.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Which blocking call ran out of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Waiting for space, for another put of the same id, or for the directory.
    Put,
    /// Waiting for an object to appear or to arrive.
    Get,
    /// Waiting for all copies to be dropped.
    Delete,
    /// Waiting for some of several objects.
    Wait,
    /// Waiting for a location.
    Locate,
    /// Waiting for sources, or for their combination.
    Reduce,
    /// Waiting for a daemon to answer or to accept a connection.
    Connect,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Put => "put",
            Self::Get => "get",
            Self::Delete => "delete",
            Self::Wait => "wait",
            Self::Locate => "locate",
            Self::Reduce => "reduce",
            Self::Connect => "connect",
        })
    }
}

/// The plane on which something malformed was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plane {
    /// Client to store, Unix socket.
    Local,
    /// Store to shard, gRPC.
    Control,
    /// Store to store, TCP.
    Data,
}

impl fmt::Display for Plane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Local => "local",
            Self::Control => "control",
            Self::Data => "data",
        })
    }
}

/// Why metadata was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MetadataError {
    /// No dtype has this name.
    #[error("unknown dtype {name:?}")]
    UnknownDtype {
        /// The name that was given, cut to 32 characters.
        name: String,
    },
    /// The shape has too many dimensions.
    #[error("a shape has at most 64 dimensions, this one has {dimensions}")]
    TooManyDimensions {
        /// How many dimensions the shape has.
        dimensions: usize,
    },
    /// Shape times element size is not the size of the object.
    #[error("dtype {dtype} and the shape do not make {size_bytes} bytes")]
    ShapeDisagrees {
        /// The element type.
        dtype: Dtype,
        /// The size of the object.
        size_bytes: u64,
    },
    /// Refused by a peer, which gave this reason.
    #[error("{reason}")]
    Reported {
        /// The peer's text, cut to the limit of the wire.
        reason: Cow<'static, str>,
    },
    /// The application's own metadata is too long.
    #[error("application metadata is at most 4096 bytes, this is {length_bytes}")]
    UserTooLong {
        /// Its length.
        length_bytes: usize,
    },
}

/// The last part of a message: why room is in use, if that is known.
struct Holders<'a>(&'a str);

impl fmt::Display for Holders<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, "; {}", self.0) }
    }
}

/// Everything that an operation on objects can answer instead of a result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The object id is empty or too long.
    #[error("an object id has 1 to 255 bytes, this one has {length_bytes}")]
    InvalidId {
        /// The length of the refused id.
        length_bytes: usize,
    },
    /// A node or cluster id is empty, too long or has characters that are not allowed.
    #[error("{name:?} is not a valid name: 1 to 63 of the characters A-Z a-z 0-9 - _ .")]
    InvalidName {
        /// The refused name, cut to 63 characters.
        name: String,
    },
    /// Dtype, shape and size do not fit together.
    #[error(transparent)]
    InvalidMetadata(#[from] MetadataError),
    /// A request that is well-formed but makes no sense, such as waiting for more ids than were given.
    #[error("invalid request: {reason}")]
    InvalidRequest {
        /// The mistake, in words.
        reason: Cow<'static, str>,
    },
    /// The id already names an object of other bytes, size or metadata.
    #[error("object {id} already exists, with other bytes, or of another dtype or shape")]
    AlreadyExists {
        /// The id under which both were put.
        id: ObjectId,
    },
    /// The object can never fit.
    #[error("object {id} of {size_bytes} bytes is larger than the limit of {limit_bytes} bytes")]
    ObjectTooLarge {
        /// The object that was to be made.
        id: ObjectId,
        /// Its size.
        size_bytes: u64,
        /// The arena's capacity, or the configured limit if that is less.
        limit_bytes: u64,
    },
    /// There was no room before the deadline, even after eviction.
    #[error(
        "store is full: {needed_bytes} bytes needed, {free_bytes} of {capacity_bytes} free{}",
        Holders(holders)
    )]
    StoreFull {
        /// How many bytes the call needed.
        needed_bytes: u64,
        /// How many bytes of the arena were free when the call gave up.
        free_bytes: u64,
        /// The size of the arena.
        capacity_bytes: u64,
        /// The reasons why the rest is in use, and the programs that refer to it, in words; empty where nobody looked.
        holders: String,
    },
    /// The deadline passed.
    #[error("{operation} timed out after {waited:?}{}", Because(missing))]
    Timeout {
        /// The call that timed out.
        operation: Operation,
        /// How long it waited.
        waited: Duration,
        /// The thing that it waited for, if that is known.
        missing: Option<Box<Missing>>,
    },
    /// Every copy of the object is gone, or its producer died before it was complete.
    #[error("object {id} is lost: no copy of it is left")]
    ObjectLost {
        /// The lost object.
        id: ObjectId,
    },
    /// The object was the target of a reduce that lost a source and took another one instead. The bytes that were read are
    /// wrong; the reduce makes the object anew.
    #[error("object {id} is made anew, since a source of its reduce was lost")]
    Superseded {
        /// The target of the reduce.
        id: ObjectId,
    },
    /// The object was deleted while the call was under way.
    #[error("object {id} was deleted")]
    Deleted {
        /// The deleted object.
        id: ObjectId,
    },
    /// The object cannot be reduced: its type, shape or size is not that of the others, or the operation is not defined for
    /// it.
    #[error("object {id} cannot be reduced: {reason}")]
    TypeMismatch {
        /// The object that differs from the others, or for which the operation is not defined.
        id: ObjectId,
        /// How it differs, and from which object.
        reason: Cow<'static, str>,
    },
    /// An object is named twice where each may be named once.
    #[error("object {id} is named more than once")]
    DuplicateId {
        /// The id that occurs twice.
        id: ObjectId,
    },
    /// A limit on a number of things was reached.
    #[error("{what} are limited to {maximum}")]
    LimitExceeded {
        /// The things that there were too many of, in the plural: `open calls of a client`.
        what: Cow<'static, str>,
        /// The largest number that is allowed.
        maximum: u64,
    },
    /// The connection has no such reference: it was released already, or never given.
    #[error("no reference {reference} on this connection")]
    UnknownReference {
        /// The number of the copy that the client named.
        reference: u64,
    },
    /// Another daemon of this name is alive.
    #[error("node id {node} is in use by another store of this cluster")]
    NodeIdInUse {
        /// The name that two stores claim.
        node: NodeId,
    },
    /// The peer belongs to another cluster.
    #[error("the peer belongs to cluster {theirs:?}, and this side to {ours:?}")]
    ClusterMismatch {
        /// The cluster of this side.
        ours: String,
        /// The cluster of the peer.
        theirs: String,
    },
    /// The store spells the list of directory shards in another way than the others do: it would look for objects at other
    /// shards than they.
    #[error(
        "the directory shards of this store are [{refused}], those of the others in the cluster [{in_use}]"
    )]
    ShardListMismatch {
        /// The list of the store that is refused.
        refused: String,
        /// The list of the stores that are connected.
        in_use: String,
    },
    /// The peer speaks another version of the protocol.
    #[error("the peer speaks protocol version {theirs}, this is version {ours}")]
    VersionMismatch {
        /// The version of this side.
        ours: u32,
        /// The version of the peer.
        theirs: u32,
    },
    /// The peer does not prove that it may do this, or it may not.
    #[error("permission denied: {reason}")]
    PermissionDenied {
        /// What is missing, in words.
        reason: Cow<'static, str>,
    },
    /// The peer sent something that is not of the protocol.
    #[error("malformed message on the {plane} plane: {reason}")]
    Malformed {
        /// The plane on which it arrived.
        plane: Plane,
        /// The rule that it breaks, in words.
        reason: Cow<'static, str>,
    },
    /// The daemon, or the directory behind it, cannot be reached now.
    #[error("{what} cannot be reached")]
    Unavailable {
        /// The daemon that cannot be reached, in words.
        what: Cow<'static, str>,
    },
    /// The daemon is shutting down.
    #[error("the daemon is shutting down")]
    ShuttingDown,
}

/// Stable numbers of the errors: on the wire, in metrics, and for `match` across languages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each is documented at the variant of Error of the same name")]
pub enum ErrorCode {
    InvalidId = 1,
    InvalidName = 2,
    InvalidMetadata = 3,
    InvalidRequest = 4,
    AlreadyExists = 5,
    ObjectTooLarge = 6,
    StoreFull = 7,
    Timeout = 8,
    ObjectLost = 9,
    Deleted = 10,
    LimitExceeded = 11,
    UnknownReference = 12,
    NodeIdInUse = 13,
    ClusterMismatch = 14,
    VersionMismatch = 15,
    Malformed = 16,
    Unavailable = 17,
    ShuttingDown = 18,
    TypeMismatch = 19,
    DuplicateId = 20,
    Superseded = 21,
    PermissionDenied = 22,
    ShardListMismatch = 23,
}

impl Error {
    /// An [`Error::InvalidRequest`] for `reason`.
    pub const fn invalid_request(reason: &'static str) -> Self {
        Self::InvalidRequest { reason: Cow::Borrowed(reason) }
    }

    /// An [`Error::Malformed`] on `plane` for `reason`.
    pub const fn malformed(plane: Plane, reason: &'static str) -> Self {
        Self::Malformed { plane, reason: Cow::Borrowed(reason) }
    }

    /// An [`Error::PermissionDenied`] for `reason`.
    pub const fn permission_denied(reason: &'static str) -> Self {
        Self::PermissionDenied { reason: Cow::Borrowed(reason) }
    }

    /// An [`Error::Unavailable`] of `what`.
    pub const fn unavailable(what: &'static str) -> Self {
        Self::Unavailable { what: Cow::Borrowed(what) }
    }

    /// An [`Error::Timeout`] of which nobody knows what was missing.
    pub const fn timeout(operation: Operation, waited: Duration) -> Self {
        Self::Timeout { operation, waited, missing: None }
    }

    /// An [`Error::LimitExceeded`] of `what`.
    pub const fn limit_exceeded(what: &'static str, maximum: u64) -> Self {
        Self::LimitExceeded { what: Cow::Borrowed(what), maximum }
    }

    /// The stable code of this error.
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::InvalidId { .. } => ErrorCode::InvalidId,
            Self::InvalidName { .. } => ErrorCode::InvalidName,
            Self::InvalidMetadata(_) => ErrorCode::InvalidMetadata,
            Self::InvalidRequest { .. } => ErrorCode::InvalidRequest,
            Self::AlreadyExists { .. } => ErrorCode::AlreadyExists,
            Self::ObjectTooLarge { .. } => ErrorCode::ObjectTooLarge,
            Self::StoreFull { .. } => ErrorCode::StoreFull,
            Self::Timeout { .. } => ErrorCode::Timeout,
            Self::ObjectLost { .. } => ErrorCode::ObjectLost,
            Self::Deleted { .. } => ErrorCode::Deleted,
            Self::LimitExceeded { .. } => ErrorCode::LimitExceeded,
            Self::UnknownReference { .. } => ErrorCode::UnknownReference,
            Self::NodeIdInUse { .. } => ErrorCode::NodeIdInUse,
            Self::ClusterMismatch { .. } => ErrorCode::ClusterMismatch,
            Self::ShardListMismatch { .. } => ErrorCode::ShardListMismatch,
            Self::VersionMismatch { .. } => ErrorCode::VersionMismatch,
            Self::Malformed { .. } => ErrorCode::Malformed,
            Self::Unavailable { .. } => ErrorCode::Unavailable,
            Self::ShuttingDown => ErrorCode::ShuttingDown,
            Self::TypeMismatch { .. } => ErrorCode::TypeMismatch,
            Self::DuplicateId { .. } => ErrorCode::DuplicateId,
            Self::Superseded { .. } => ErrorCode::Superseded,
            Self::PermissionDenied { .. } => ErrorCode::PermissionDenied,
        }
    }

    /// Whether the same call may succeed if it is made again later, with nothing changed by the caller.
    pub const fn is_retryable(&self) -> bool {
        matches!(
            self,
            Self::StoreFull { .. }
                | Self::Timeout { .. }
                | Self::LimitExceeded { .. }
                | Self::NodeIdInUse { .. }
                | Self::Unavailable { .. }
                | Self::Superseded { .. }
                | Self::ShuttingDown
        )
    }
}
