//! The answers to clients.

use bytes::Bytes;

use super::{ByteRange, CopyId, DrainReport, OwnerlessPage};
use crate::error::Error;
use crate::extent::Extent;
use crate::id::PutId;
use crate::metadata::Metadata;
use crate::shard::Locations;

/// The place where a client finds a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectView {
    /// The reference, to be given back with [`Request::Release`](super::Request::Release).
    pub copy: CopyId,
    /// The extent of the copy in the arena.
    pub extent: Extent,
    /// The put that the copy is of.
    pub put: PutId,
    /// The size of the object.
    pub size_bytes: u64,
    /// The metadata of the object.
    pub metadata: Metadata,
    /// `true` if no shard with a lease knows the copy, so the object may be deleted or replaced.
    pub is_stale: bool,
}

/// An answer to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Response {
    /// Room was made: the client writes the bytes, publishes progress, seals.
    Created(ObjectView),
    /// The id exists with the same size and metadata: the client compares the bytes, then releases.
    /// The put succeeds if they are equal.
    Existing(ObjectView),
    /// The object is sealed and the directory has accepted it.
    Sealed,
    /// A reference to a copy.
    Object(ObjectView),
    /// The bytes of an object. The client gets no reference.
    Contents {
        /// The copy that the bytes were read from. It may be gone when the client reads this.
        view: ObjectView,
        /// All bytes of the object. Empty in the effects of the node's state machine: the store
        /// reads the bytes from the copy when it performs the effect.
        bytes: Bytes,
    },
    /// The answers to the items of a batch, in their order.
    Batch(Vec<Result<Self, Error>>),
    /// A reference to a copy that grows in parts: its progress counts the bytes of `order`, one
    /// range after the other.
    Ranges {
        /// The copy.
        view: ObjectView,
        /// The ranges of bytes that become valid, in this order. Together they are the whole
        /// object.
        order: Vec<ByteRange>,
    },
    /// The number of ids that named an object.
    Deleted {
        /// The number of ids that named an object.
        count: usize,
    },
    /// The available ids, as ascending indices into the request's list. Fewer than requested if the
    /// deadline passed.
    Ready {
        /// The indices of the available ids.
        indices: Vec<usize>,
    },
    /// The sources that were reduced, as indices into the request's list, in joining order.
    Reduced {
        /// The indices of the reduced sources.
        indices: Vec<usize>,
    },
    /// The locations of an object.
    Locations(Locations),
    /// The progress of a drain, or its result.
    Drain(DrainReport),
    /// Ownerless objects.
    Ownerless(OwnerlessPage),
    /// The number of valid leading bytes of the followed copy.
    Progress {
        /// The number of valid bytes.
        valid_bytes: u64,
    },
}
