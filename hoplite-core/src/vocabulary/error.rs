//! Failures of operations on objects. All crates share one enum, because shards' errors reach
//! clients unchanged.

mod code;
mod display;

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

pub use crate::vocabulary::dtype::MetadataError;
use crate::vocabulary::id::{IdError, NodeId, ObjectId};
use crate::vocabulary::missing::{Absent, Named, list};
use crate::vocabulary::text::{escape, rounded};
use display::{Holders, Room, TooLarge, Unreachable};

pub use crate::vocabulary::call::{Operation, Plane};
pub use crate::vocabulary::quota::QuotaExcess;
pub use code::ErrorCode;

/// Result of an operation on objects.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Failure of an operation on objects.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The object id is empty or too long.
    #[error("{}", IdError::Length { length_bytes: *length_bytes })]
    InvalidId {
        /// Length in bytes.
        length_bytes: usize,
    },
    /// A node or cluster id has a wrong length or character.
    #[error("{}", IdError::Name { name: name.clone() })]
    InvalidName {
        /// Invalid id, cut to 63 characters.
        name: String,
    },
    /// Element type, shape and size of an object do not fit together.
    #[error(transparent)]
    InvalidMetadata(#[from] MetadataError),
    /// The request's values contradict each other or are not allowed.
    #[error("invalid request: {reason}")]
    InvalidRequest {
        /// Mistake in the request.
        reason: Cow<'static, str>,
    },
    /// The id already names an object with other content.
    #[error("object {id} already exists, with other bytes, or of another dtype or shape")]
    AlreadyExists {
        /// Taken id.
        id: ObjectId,
    },
    /// An accepted put lost to another put of its id after a network split. Reported once, to the
    /// client of the lost put.
    #[error(
        "the put of {id} was accepted, and has lost to another one on the other side of a network split"
    )]
    PutConflict {
        /// Id of both puts.
        id: ObjectId,
    },
    /// The object can never fit into the store.
    #[error("{}", TooLarge { id, size_bytes: *size_bytes, limit_bytes: *limit_bytes })]
    ObjectTooLarge {
        /// Object's id.
        id: ObjectId,
        /// Object's size.
        size_bytes: u64,
        /// Arena's capacity or the configured limit in bytes.
        limit_bytes: u64,
    },
    /// The deadline passed before enough memory was free, even with evictions.
    #[error(
        "store is full: {}{}",
        Room([*needed_bytes, *free_bytes, *capacity_bytes]),
        Holders(holders)
    )]
    StoreFull {
        /// Bytes that the call needed.
        needed_bytes: u64,
        /// Free bytes when the call gave up.
        free_bytes: u64,
        /// Arena's size.
        capacity_bytes: u64,
        /// Store and users of its memory, in words; empty if unknown.
        holders: String,
    },
    /// A put or reduce did not fit its user's or id prefix's quota before the deadline, or exceeds
    /// the whole quota.
    #[error("{0}")]
    QuotaExceeded(Box<QuotaExcess>),
    /// The deadline of a call passed.
    #[error("{operation} timed out after {:?}{}", rounded(*waited), MissingSuffix(missing))]
    Timeout {
        /// Call.
        operation: Operation,
        /// Time waited.
        waited: Duration,
        /// Cause of the wait, if known.
        missing: Option<Box<Missing>>,
    },
    /// Every copy of the object is gone, or its producer died before completion.
    #[error("object {id} is lost: no copy of it is left")]
    ObjectLost {
        /// Object's id.
        id: ObjectId,
    },
    /// A reduce replaced a lost source and makes its target again: the bytes read so far are wrong.
    #[error("object {id} is made anew, since a source of its reduce was lost")]
    Superseded {
        /// Target's id.
        id: ObjectId,
    },
    /// The object was deleted during the call.
    #[error("object {id} was deleted")]
    Deleted {
        /// Object's id.
        id: ObjectId,
    },
    /// The object's type, shape or size is unexpected, or the operation is undefined for its type.
    #[error("object {id} cannot be reduced: {reason}")]
    TypeMismatch {
        /// Object's id.
        id: ObjectId,
        /// Difference from the expected object.
        reason: Cow<'static, str>,
    },
    /// An id occurs twice in a list that must have no duplicates.
    #[error("object {id} is named more than once")]
    DuplicateId {
        /// Id that occurs twice.
        id: ObjectId,
    },
    /// A bounded number has reached its limit.
    #[error("{what} are limited to {maximum}")]
    LimitExceeded {
        /// Limited things, like `open calls of a client`.
        what: Cow<'static, str>,
        /// Largest allowed number.
        maximum: u64,
    },
    /// The client named a copy in shared memory that it does not hold.
    #[error("no reference {reference} on this connection")]
    UnknownReference {
        /// Store's number for the copy.
        reference: u64,
    },
    /// Another live store has this node id.
    #[error("node id {node} is in use by another store of this cluster")]
    NodeIdInUse {
        /// Node's id.
        node: NodeId,
    },
    /// The peer belongs to another cluster.
    #[error("{}", IdError::OtherCluster { ours: ours.clone(), theirs: theirs.clone() })]
    ClusterMismatch {
        /// This side's cluster.
        ours: String,
        /// Peer's cluster.
        theirs: String,
    },
    /// The store's list of directory shards differs from the other stores'.
    #[error(
        "the directory shards of this store are [{refused}], those of the others in the cluster [{in_use}]"
    )]
    ShardListMismatch {
        /// Rejected store's list.
        refused: String,
        /// Connected stores' list.
        in_use: String,
    },
    /// Both sides have no protocol version in common.
    #[error("the peer speaks protocol version {theirs}, this is version {ours}")]
    VersionMismatch {
        /// This side's version.
        ours: u32,
        /// Peer's version.
        theirs: u32,
    },
    /// The peer lacks a proof of its identity, or a right.
    #[error("permission denied: {reason}")]
    PermissionDenied {
        /// Missing proof or right.
        reason: Cow<'static, str>,
    },
    /// The peer sent a message that breaks the protocol.
    #[error("malformed message on the {plane} plane: {reason}")]
    Malformed {
        /// Message's plane.
        plane: Plane,
        /// Broken rule.
        reason: Cow<'static, str>,
    },
    /// The daemon, or the directory behind it, is unreachable now.
    #[error("{}", Unreachable(what))]
    Unavailable {
        /// Unreachable daemon, then the cause in parentheses if known.
        what: Cow<'static, str>,
    },
    /// The daemon is shutting down.
    #[error("the daemon is shutting down")]
    ShuttingDown,
    /// A put requests more copies than stores can keep. Draining stores do not count.
    #[error("{wanted} replicas are wanted, but only {present} stores can keep one")]
    NotEnoughNodes {
        /// Copies that the put requests.
        wanted: u64,
        /// Stores that can keep a copy.
        present: u64,
    },
    /// The store moves its objects away before it stops, and accepts no new ones.
    #[error("the store drains, and accepts no new objects")]
    Draining,
    /// The store cannot read the object's spill file, its only copy. If the file is damaged, the
    /// copy is lost.
    #[error("object {id} cannot be read from its spill file: {reason}")]
    SpillFailed {
        /// Object's id.
        id: ObjectId,
        /// Spill file and the failure to read it.
        reason: Cow<'static, str>,
    },
}

impl From<IdError> for Error {
    fn from(error: IdError) -> Self {
        match error {
            IdError::Length { length_bytes } => Self::InvalidId { length_bytes },
            IdError::Name { name } => Self::InvalidName { name },
            IdError::OtherCluster { ours, theirs } => Self::ClusterMismatch { ours, theirs },
        }
    }
}

impl Error {
    /// Makes an [`Error::InvalidRequest`].
    pub const fn invalid_request(reason: &'static str) -> Self {
        Self::InvalidRequest { reason: Cow::Borrowed(reason) }
    }

    /// Makes an [`Error::Malformed`].
    pub const fn malformed(plane: Plane, reason: &'static str) -> Self {
        Self::Malformed { plane, reason: Cow::Borrowed(reason) }
    }

    /// Makes an [`Error::PermissionDenied`].
    pub const fn permission_denied(reason: &'static str) -> Self {
        Self::PermissionDenied { reason: Cow::Borrowed(reason) }
    }

    /// Makes an [`Error::Unavailable`].
    pub const fn unavailable(what: &'static str) -> Self {
        Self::Unavailable { what: Cow::Borrowed(what) }
    }

    /// Makes an [`Error::Timeout`] without a known cause.
    pub const fn timeout(operation: Operation, waited: Duration) -> Self {
        Self::Timeout { operation, waited, missing: None }
    }

    /// Makes an [`Error::LimitExceeded`].
    pub const fn limit_exceeded(what: &'static str, maximum: u64) -> Self {
        Self::LimitExceeded { what: Cow::Borrowed(what), maximum }
    }
}

/// Cause of a call's wait.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Missing {
    /// The directory knows no store with the object.
    Object {
        /// Object's id.
        id: ObjectId,
    },
    /// The directory knows no store with these sources.
    Sources {
        /// Sources.
        sources: Named<ObjectId>,
    },
    /// These participants have not put their sources.
    Participants {
        /// Participants.
        participants: Named<Absent>,
    },
    /// Rank 0, the coordinator, has not begun the collective, or its store has not finished it.
    Coordinator {
        /// Collective's target.
        target: ObjectId,
    },
    /// These stores have not finished their part.
    Stores {
        /// Stores.
        nodes: Named<NodeId>,
    },
    /// The store lacks memory. A timeout becomes [`Error::StoreFull`].
    Room {
        /// Bytes of memory that the call needs.
        needed_bytes: u64,
        /// Free bytes of the arena.
        free_bytes: u64,
        /// Arena's size.
        capacity_bytes: u64,
    },
    /// A put or reduce exceeds its user's or id prefix's quota. A timeout becomes
    /// [`Error::QuotaExceeded`].
    Quota {
        /// Exceeded quota.
        excess: Box<QuotaExcess>,
    },
    /// A local client has not completed (sealed) the object.
    Seal {
        /// Object's id.
        id: ObjectId,
    },
    /// The bytes of an object have stopped arriving.
    Bytes {
        /// Object's id.
        id: ObjectId,
        /// Node that sends the bytes.
        from: NodeId,
    },
    /// A store is unreachable or refuses this one.
    Peer {
        /// Other store.
        node: NodeId,
        /// Last failure.
        reason: Box<Error>,
    },
    /// The object's shard is unreachable or refuses this store.
    Shard {
        /// Shard's configured address.
        address: String,
        /// Last failure.
        reason: Box<Error>,
    },
    /// A shard has not answered a query.
    Answer {
        /// Shard's configured address.
        address: String,
    },
    /// Fewer stores than requested have a pinned copy.
    Replicas {
        /// Object's id.
        id: ObjectId,
        /// Copies that the put waits for.
        wanted: u64,
        /// Existing copies.
        present: u64,
    },
}

impl Missing {
    /// Returns a stable name, for programs.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Object { .. } => "object",
            Self::Sources { .. } => "sources",
            Self::Participants { .. } => "participants",
            Self::Coordinator { .. } => "coordinator",
            Self::Stores { .. } => "stores",
            Self::Room { .. } => "room",
            Self::Quota { .. } => "quota",
            Self::Seal { .. } => "seal",
            Self::Bytes { .. } => "bytes",
            Self::Peer { .. } => "peer",
            Self::Shard { .. } => "shard",
            Self::Answer { .. } => "answer",
            Self::Replicas { .. } => "replicas",
        }
    }

    /// Underlying failure, if known.
    pub fn reason(&self) -> Option<&Error> {
        match self {
            Self::Peer { reason, .. } | Self::Shard { reason, .. } => Some(reason),
            _ => None,
        }
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Object { id } => write!(f, "no store offers object {id}"),
            Self::Sources { sources } => {
                f.write_str("no store offers ")?;
                list(f, ("source", "sources"), sources, |f, id| write!(f, "{id}"))
            }
            Self::Participants { participants } => {
                list(f, ("rank", "ranks"), participants, |f, Absent { rank, source }| {
                    write!(f, "{rank} ({source})")
                })?;
                f.write_str(if participants.count == 1 {
                    " has not joined"
                } else {
                    " have not joined"
                })
            }
            Self::Coordinator { target } => {
                write!(f, "rank 0 has not begun or not finished the collective of {target}")
            }
            Self::Stores { nodes } => {
                list(f, ("store", "stores"), nodes, |f, node| f.write_str(node.as_str()))?;
                f.write_str(if nodes.count == 1 { " is not done" } else { " are not done" })
            }
            Self::Room { needed_bytes, free_bytes, capacity_bytes } => {
                let room = Room([*needed_bytes, *free_bytes, *capacity_bytes]);
                write!(f, "the store is full: {room}")
            }
            Self::Quota { excess } => write!(f, "{excess}"),
            Self::Seal { id } => {
                write!(f, "the client that creates object {id} here has not sealed it")
            }
            Self::Bytes { id, from } => {
                write!(f, "store {} has not sent all bytes of object {id}", from.as_str())
            }
            Self::Peer { node, reason } => write!(f, "store {}: {reason}", node.as_str()),
            Self::Shard { address, reason } => {
                write!(f, "directory shard {}: {reason}", escape(address))
            }
            Self::Answer { address } => {
                write!(f, "directory shard {} has not answered", escape(address))
            }
            Self::Replicas { id, wanted, present } => {
                write!(f, "{present} of {wanted} copies of object {id} exist")
            }
        }
    }
}

struct MissingSuffix<'a>(&'a Option<Box<Missing>>);

impl fmt::Display for MissingSuffix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |missing| write!(f, ": {missing}"))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::vocabulary::error::Operation;

    fn id(name: &str) -> ObjectId {
        ObjectId::new(name).unwrap()
    }

    #[test]
    fn a_timeout_names_the_missing_objects() {
        let text_of = |missing: Missing| {
            let waited = Duration::from_secs(2);
            let missing = Some(Box::new(missing));
            Error::Timeout { operation: Operation::Reduce, waited, missing }.to_string()
        };
        let participants = Named::of([Absent { rank: 2, source: id("x/2") }]);
        assert_eq!(
            text_of(Missing::Participants { participants }),
            "reduce timed out after 2s: rank 2 (x/2) has not joined"
        );
        let sources = Named::of((0..10).map(|number| id(&format!("s{number}"))));
        assert_eq!(
            text_of(Missing::Sources { sources }),
            "reduce timed out after 2s: no store offers sources s0, s1, s2, s3, s4, s5, s6, s7 and 2 more"
        );
        let reason = Box::new(Error::permission_denied("another token"));
        assert_eq!(
            text_of(Missing::Shard { address: "a:1".into(), reason }),
            "reduce timed out after 2s: directory shard a:1: permission denied: another token"
        );
        let plain = Error::timeout(Operation::Get, Duration::from_secs(1));
        assert_eq!(plain.to_string(), "get timed out after 1s");
    }
}
