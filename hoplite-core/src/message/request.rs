use std::time::Duration;

use bytes::Bytes;

use super::{CallId, CopyId, Reduce};
use crate::collective::Agreement;
use crate::id::{NodeId, ObjectId};
use crate::metadata::Metadata;
use crate::placement::ShardChange;
use crate::plan::collective::Collective;
use crate::quota::{QuotaLimits, QuotaSubject};
use crate::shard::DeleteWait;
use crate::topology::probe::survey::SurveyOptions;
use crate::version::Version;

/// A client's request.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of the fields say it")]
pub enum Request {
    /// Allocates memory for an object that the client will write. Answered by `Created` or
    /// `Existing`.
    Create {
        id: ObjectId,
        size_bytes: u64,
        metadata: Metadata,
        /// Longest wait for memory, or for another writer of the id.
        timeout: Duration,
    },
    /// Puts a small object. Answered by `Sealed`, at the time that `confirm` sets. If the id
    /// exists, answered by `Existing`: the caller compares the bytes.
    Put {
        id: ObjectId,
        metadata: Metadata,
        bytes: Bytes,
        confirm: Confirm,
        /// Longest wait for memory, another writer of the id, and the directory.
        timeout: Duration,
    },
    /// Declares all bytes of a created copy valid. Answered by `Sealed` once the directory accepts
    /// the object. The writer's reference becomes a reader's.
    Seal {
        copy: CopyId,
        timeout: Duration,
    },
    /// Seals without an answer. If another put of the id was first, the store drops this copy.
    SealUnconfirmed {
        copy: CopyId,
    },
    /// Aborts a created copy everywhere. Not answered.
    Abort {
        copy: CopyId,
    },
    /// Requests a local copy, fetched if necessary. Answered by `Object`, or by `Contents` as
    /// [`Until::Contents`] says.
    Get {
        id: ObjectId,
        until: Until,
        timeout: Duration,
        /// Permits a complete local copy, marked stale, whose object may have been deleted or
        /// replaced.
        allow_stale: bool,
    },
    /// Waits until a copy has more than `beyond_bytes` valid leading bytes, or is complete.
    /// Answered by `Progress`; fails with the copy.
    Follow {
        copy: CopyId,
        beyond_bytes: u64,
        timeout: Duration,
    },
    /// Gives back one reference. Not answered.
    Release {
        copy: CopyId,
    },
    /// Removes every copy of each id in the cluster. Answered by `Deleted`.
    Delete {
        ids: Vec<ObjectId>,
        /// Time for the stores to drop their copies.
        timeout: Duration,
        wait: DeleteWait,
    },
    /// Separate calls, answered by `Batch` after the last. Every item is [fit for a
    /// batch](Request::is_for_batches).
    Batch(Vec<Self>),
    /// Combines the first `count` ready `sources` into a new object. Answered by `Reduced`.
    Reduce(Reduce),
    /// Coordinates a collective of all nodes with sources. Answered by `Reduced`.
    ///
    /// * Allreduce: the target of a `Reduce`, if possible made by the nodes together.
    /// * Collectives of parts: the nodes exchange parts, if possible. The target is empty, made
    ///   after the exchange or instead of it; participants then get missing parts. An allgather
    ///   ignores the operation.
    Collective(Collective, Reduce),
    /// Gets the target of a collective as soon as a copy has begun here. Answered like `Get`, or by
    /// `Ranges` if the copy grows range by range.
    Join {
        target: ObjectId,
        agreement: Agreement,
        /// `true` if an earlier join failed with `Superseded`. The answer may repeat earlier
        /// ranges.
        is_again: bool,
        source_bytes: u64,
        timeout: Duration,
    },
    /// Waits until `count` of `ids` are available somewhere. Answered by `Ready`, at the deadline
    /// with fewer.
    Wait {
        ids: Vec<ObjectId>,
        count: usize,
        /// Zero waits for one answer of the directory for each object, at most 5 s.
        timeout: Duration,
    },
    /// Waits until the directory has a location or the bytes of an object. Answered by `Locations`;
    /// fails when the object is lost.
    Locate {
        id: ObjectId,
        /// Zero requests the directory's present knowledge, even if it has no location.
        timeout: Duration,
    },
    /// Subscribes to an object's locations. Answered by `Locations` at once and at every change,
    /// until `Unsubscribe`.
    Subscribe {
        id: ObjectId,
    },
    /// Ends a subscription. Not answered.
    Unsubscribe {
        call: CallId,
    },
    /// Inspects the directory and this store, see [`Effect::Inspect`](super::Effect::Inspect).
    Inspect(Inspection),
    /// Moves pinned copies to other stores. Answered by `Drain`: when all have moved and earlier
    /// calls are over, at the timeout, or at once without another store. After success, the store
    /// stops.
    Drain {
        timeout: Duration,
    },
    DrainProgress,
    /// Lists objects whose owner is gone. Answered by `Ownerless`.
    ListOwnerless {
        /// Only ids that start with these bytes, at most 255.
        prefix: Bytes,
        /// Only ids after these bytes, at most 255.
        after: Bytes,
        limit: usize,
    },
    /// Requests all quotas. Answered by `Quotas`.
    ListQuotas,
    /// Sets a quota's limits, or removes the quota. Answered by `Quotas` with this one quota.
    SetQuota {
        subject: QuotaSubject,
        limits: Option<QuotaLimits>,
    },
    /// Ends a call. Its answer may already be under way. Not answered.
    Cancel {
        call: CallId,
    },
}

impl Request {
    /// An upper limit for the number of ids that the call waits for.
    pub const fn id_count(&self) -> usize {
        match self {
            Self::Delete { ids, .. } | Self::Wait { ids, .. } => ids.len(),
            Self::Batch(requests) => requests.len(),
            Self::Reduce(reduce) | Self::Collective(_, reduce) => reduce.sources.len(),
            _ => 1,
        }
    }

    /// Oldest protocol version in which a store performs the whole request. An older store ignores
    /// newer fields.
    pub fn oldest_version(&self) -> u32 {
        match self {
            Self::Create { metadata, .. } | Self::Put { metadata, .. }
                if metadata.lifetime.is_some() || metadata.replicas.quorum =>
            {
                Version::WITH_TERMS
            }
            Self::Reduce(reduce) | Self::Collective(_, reduce) if reduce.replicas > 0 => {
                Version::WITH_TERMS
            }
            Self::Delete { wait: DeleteWait::All, .. }
            | Self::ListOwnerless { .. }
            | Self::ListQuotas
            | Self::SetQuota { .. }
            | Self::Inspect(Inspection::DrainNode { .. }) => Version::WITH_TERMS,
            Self::Inspect(Inspection::Shards | Inspection::ChangeShards { .. }) => {
                Version::WITH_SHARD_CHANGES
            }
            Self::Batch(requests) => {
                requests.iter().map(Self::oldest_version).max().unwrap_or_default()
            }
            _ => Version::OLDEST.number(),
        }
    }

    /// Returns `true` if a batch may have the request: it is about one object, with one answer.
    pub fn is_for_batches(&self) -> bool {
        match self {
            Self::Put { .. } => true,
            Self::Get { until, .. } => *until == Until::Contents,
            Self::Delete { ids, .. } => ids.len() == 1,
            _ => false,
        }
    }

    /// Returns `true` if the request needs no right to change objects. Probes, which burden all
    /// stores, need it.
    pub fn is_for_readers(&self) -> bool {
        if let Self::Batch(requests) = self {
            return requests.iter().all(Self::is_for_readers);
        }
        matches!(
            self,
            Self::Get { .. }
                | Self::Follow { .. }
                | Self::Release { .. }
                | Self::Wait { .. }
                | Self::Locate { .. }
                | Self::Subscribe { .. }
                | Self::Unsubscribe { .. }
                | Self::Cancel { .. }
                | Self::DrainProgress
                | Self::ListOwnerless { .. }
                | Self::ListQuotas
                | Self::Inspect(
                    Inspection::List { .. }
                        | Inspection::Describe { .. }
                        | Inspection::Status
                        | Inspection::Cluster
                        | Inspection::Shards
                        | Inspection::ProbeProgress
                )
        )
    }
}

/// Most requests in a batch, which bounds the wait of other clients.
pub const MAX_BATCH_ITEMS: usize = 256;

/// Condition that ends a `Get`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Until {
    /// A local copy exists, possibly without valid bytes. An object without bytes must be complete.
    Started,
    /// All bytes are here.
    Complete,
    /// All bytes are here. Unless the client has many open calls, the answer has the bytes of an
    /// object of at most [`MAX_CONTENTS_BYTES`], and no reference.
    Contents,
}

/// Largest object that an answer carries, because a client would copy it anyway.
pub const MAX_CONTENTS_BYTES: u64 = 4 << 10;

/// Moment at which a put is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Confirm {
    /// Once the directory has accepted the object, as after [`Request::Seal`].
    Yes,
    /// Once the store has the object, as after [`Request::SealUnconfirmed`].
    No,
}

/// Query about the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of the fields say it")]
pub enum Inspection {
    /// One page of objects, by ascending id.
    List {
        /// Start of each id, at most 255 bytes.
        prefix: Bytes,
        /// Id before the page, at most 255 bytes.
        after: Bytes,
        limit: usize,
    },
    Describe {
        id: ObjectId,
    },
    Status,
    /// Nodes and the state of their stores.
    Cluster,
    Probe {
        /// Empty for all nodes.
        nodes: Vec<NodeId>,
        options: SurveyOptions,
    },
    /// Progress of the probe of links that this store coordinates.
    ProbeProgress,
    DrainNode {
        /// Store's name or data plane address.
        node: String,
        /// Drain's time limit; `None` requests the progress.
        timeout: Option<Duration>,
    },
    /// Directory's shards, and the progress of the latest change of their list.
    Shards,
    /// Adds a shard to the directory, or removes one.
    ChangeShards {
        change: ShardChange,
        /// Changes the list without a majority of its shards; at least one must accept.
        force: bool,
    },
}
