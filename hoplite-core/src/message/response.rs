use bytes::Bytes;

use super::{ByteRange, CopyId, DrainReport, OwnerlessPage};
use crate::error::Error;
use crate::extent::Extent;
use crate::id::{NodeId, PutId};
use crate::metadata::Metadata;
use crate::missing::Named;
use crate::quota::Quota;
use crate::shard::Locations;

/// Copy in the arena, for the client that maps it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct ObjectView {
    /// Names the client's reference, until [`Request::Release`](super::Request::Release).
    pub copy: CopyId,
    pub extent: Extent,
    pub put: PutId,
    pub size_bytes: u64,
    pub metadata: Metadata,
    /// `true` if no shard with a lease knows the copy, so the object may be deleted or replaced.
    pub is_stale: bool,
}

/// Answer to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of the fields say it")]
pub enum Response {
    /// Answers `Create`: the client writes the bytes, publishes progress, and seals.
    Created(ObjectView),
    /// The id exists with the same size and metadata. The client compares the bytes, and releases.
    Existing(ObjectView),
    Sealed,
    Object(ObjectView),
    Contents {
        /// The client gets no reference, so the copy may be gone.
        view: ObjectView,
        /// Empty in the node's effects: the store reads the bytes later.
        bytes: Bytes,
    },
    Batch(Vec<Result<Self, Error>>),
    /// Reference to a copy that grows in parts: its progress counts the bytes of `order`, range by
    /// range.
    Ranges {
        view: ObjectView,
        /// All ranges, as they become valid.
        order: Vec<ByteRange>,
    },
    Deleted {
        count: usize,
        absent: Named<NodeId>,
    },
    /// Ascending indices into the request's list; after the deadline, fewer than requested.
    Ready {
        indices: Vec<usize>,
    },
    /// Indices into the request's list, in the order of joining; ascending for a fixed order.
    Reduced {
        indices: Vec<usize>,
    },
    Locations(Locations),
    Drain(DrainReport),
    Ownerless(OwnerlessPage),
    Quotas(Vec<Quota>),
    Progress {
        valid_bytes: u64,
    },
}
