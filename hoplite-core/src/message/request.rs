//! The requests of clients.

use std::time::Duration;

use bytes::Bytes;

use super::{CallId, CopyId, Reduce};
use crate::collective::Agreement;
use crate::id::{NodeId, ObjectId};
use crate::metadata::Metadata;
use crate::plan::collective::Collective;
use crate::topology::probe::survey::SurveyOptions;

/// A client's request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Makes room for an object and starts to publish it. Answered by `Created` or `Existing`.
    Create {
        /// The id to put under.
        id: ObjectId,
        /// The size of the object.
        size_bytes: u64,
        /// Its metadata.
        metadata: Metadata,
        /// The time to wait for room, or for another writer of the same id.
        timeout: Duration,
    },
    /// Puts a whole small object. Answered by `Sealed`, at the time that `confirm` chooses, or by
    /// `Existing`. Then the caller compares the bytes.
    Put {
        /// The id to put under.
        id: ObjectId,
        /// Its metadata.
        metadata: Metadata,
        /// The object.
        bytes: Bytes,
        /// The condition for the answer.
        confirm: Confirm,
        /// The time to wait for room, for another writer of the same id, and for the directory.
        timeout: Duration,
    },
    /// Declares all bytes of a created copy valid. Answered by `Sealed` once the directory has
    /// accepted the object; see [`Request::SealUnconfirmed`]. The writer's reference becomes a
    /// reader's.
    Seal {
        /// The copy that the client has written.
        copy: CopyId,
        /// The time to wait for the directory.
        timeout: Duration,
    },
    /// As `Seal`, but without an answer or a wait for the directory, where the first of several
    /// conflicting puts wins. The copies of the others are dropped.
    SealUnconfirmed {
        /// The copy that the client has written.
        copy: CopyId,
    },
    /// Gives up a created copy: it is aborted everywhere. Not answered.
    Abort {
        /// The copy that the client was writing.
        copy: CopyId,
    },
    /// Requests a local copy, which is fetched if need be. Answered by `Object`, or by `Contents`
    /// as [`Until::Contents`] says.
    Get {
        /// The object to refer to.
        id: ObjectId,
        /// The part of the object that must be there.
        until: Until,
        /// The time that the object may take.
        timeout: Duration,
        /// `true` if a complete local copy that may not be served now is an answer too. The view
        /// of the copy is stale.
        allow_stale: bool,
    },
    /// Waits until more than a number of leading bytes of a copy are valid, or it is complete. The
    /// client holds a reference to it. Answered by `Progress`; fails with the copy.
    Follow {
        /// A copy to which the client holds a reference.
        copy: CopyId,
        /// The number of valid bytes that the client knows of.
        beyond_bytes: u64,
        /// The time that the bytes may take.
        timeout: Duration,
    },
    /// Gives back one reference. Not answered.
    Release {
        /// The copy to which the client held the reference.
        copy: CopyId,
    },
    /// Removes every copy of each id in the cluster. Answered by `Deleted`.
    Delete {
        /// The objects to remove.
        ids: Vec<ObjectId>,
        /// The time that the stores may take to drop their copies.
        timeout: Duration,
    },
    /// Performs several requests as separate calls. Answered by `Batch`, after the last of them is.
    /// Every item is [fit for a batch](Request::is_for_batches).
    Batch(Vec<Self>),
    /// Combines the first `count` of `sources` to become ready into a new object. Answered by
    /// `Reduced`.
    Reduce(Reduce),
    /// Coordinates a collective of all nodes with sources. Answered by `Reduced`.
    ///
    /// * Allreduce: as `Reduce`, of a target that the nodes make together, if they can.
    /// * Collectives of parts: the nodes exchange parts, if they can. The target is an object
    ///   without bytes, made after the exchange or instead of it. A participant that has no parts
    ///   then gets them without an exchange. An allgather ignores the operation.
    Collective(Collective, Reduce),
    /// As a `Get` of the target of a collective until it is started. Also answered by `Ranges`, if
    /// its parts arrive here one after the other and are worth following.
    Join {
        /// The target of the collective.
        target: ObjectId,
        /// The agreement of this participant.
        agreement: Agreement,
        /// `true` if the attempt that it joined is superseded. The answer may repeat earlier
        /// ranges.
        is_again: bool,
        /// The size of the participant's source.
        source_bytes: u64,
        /// The time that the target may take to begin.
        timeout: Duration,
    },
    /// Waits until `count` of `ids` are available somewhere, or the deadline. Answered by `Ready`
    /// in both cases.
    Wait {
        /// The objects to wait for.
        ids: Vec<ObjectId>,
        /// The number of objects to wait for.
        count: usize,
        /// The time to wait. Zero waits for one answer of the directory for each object, at most 5
        /// s.
        timeout: Duration,
    },
    /// Waits until an object has a location, or is inline. Answered by `Locations`; fails when it
    /// is lost.
    Locate {
        /// The object to find.
        id: ObjectId,
        /// The time to wait. Zero requests the present knowledge, and always gets an answer.
        timeout: Duration,
    },
    /// Answered by `Locations` at once and at every change, until `Unsubscribe`.
    Subscribe {
        /// The object to watch.
        id: ObjectId,
    },
    /// Ends a subscription. Not answered.
    Unsubscribe {
        /// The call that subscribed.
        call: CallId,
    },
    /// Inspects the directory and this store, for people and tools. The shell answers it, see
    /// [`Effect::Inspect`](super::Effect::Inspect).
    Inspect(Inspection),
    /// Moves the pinned copies of the store to other stores. Answered by `Drain` at the end: when all
    /// have moved and earlier calls are over, at the timeout, or at once if there is no other store.
    /// After success, the store stops.
    Drain {
        /// The time that the drain may take.
        timeout: Duration,
    },
    /// Requests the progress of the drain. Answered by `Drain`.
    DrainProgress,
    /// Requests ownerless objects of this store. Answered by `Ownerless`.
    ListOwnerless {
        /// Only ids that start with these bytes, at most 255.
        prefix: Bytes,
        /// Only ids after these bytes, at most 255.
        after: Bytes,
        /// Most objects in the page.
        limit: usize,
    },
    /// Ends a call. Its answer may still come. Not answered.
    Cancel {
        /// The call to end.
        call: CallId,
    },
}

impl Request {
    /// Returns the largest number of ids that the call waits for.
    pub const fn id_count(&self) -> usize {
        match self {
            Self::Delete { ids, .. } | Self::Wait { ids, .. } => ids.len(),
            Self::Batch(requests) => requests.len(),
            Self::Reduce(reduce) | Self::Collective(_, reduce) => reduce.sources.len(),
            _ => 1,
        }
    }

    /// Returns `true` for a request that may be an item of a batch: it concerns one object, and has one answer.
    pub fn is_for_batches(&self) -> bool {
        match self {
            Self::Put { .. } => true,
            Self::Get { until, .. } => *until == Until::Contents,
            Self::Delete { ids, .. } => ids.len() == 1,
            _ => false,
        }
    }

    /// Returns `true` if a client without the right to change objects may make this request. A
    /// probe makes traffic between all stores.
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
                | Self::Inspect(
                    Inspection::List { .. }
                        | Inspection::Describe { .. }
                        | Inspection::Status
                        | Inspection::Cluster
                        | Inspection::ProbeProgress
                )
        )
    }
}

/// Most requests in a batch. It bounds the time for which a store serves no other client.
pub const MAX_BATCH_ITEMS: usize = 256;

/// The condition that ends a `Get`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Until {
    /// Until there is a local copy, possibly without valid bytes. The client follows its progress.
    /// An object without bytes must be complete.
    Started,
    /// Until all bytes are there.
    Complete,
    /// Until all bytes are there. The answer has the bytes of an object of at most
    /// [`MAX_CONTENTS_BYTES`], and no reference, unless the client has many open calls.
    Contents,
}

/// Size in bytes of the largest object in an answer to a get. The client copies it anyway, and the
/// answer saves the message that releases a reference.
pub const MAX_CONTENTS_BYTES: u64 = 4 << 10;

/// The time at which a put of a whole object is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Confirm {
    /// Once the directory has accepted the object, as by [`Request::Seal`].
    Yes,
    /// Once it is in the store, as after [`Request::SealUnconfirmed`].
    No,
}

/// An inspection by people and tools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Inspection {
    /// One page of the cluster's objects, in the order of their ids.
    List {
        /// Only ids that start with these bytes, at most 255.
        prefix: Bytes,
        /// Only ids after these bytes, at most 255.
        after: Bytes,
        /// Most objects in the page.
        limit: usize,
    },
    /// All that the directory knows of one object.
    Describe {
        /// The object to describe.
        id: ObjectId,
    },
    /// The counters of the store and of the shards.
    Status,
    /// The nodes of the cluster, and how their stores are.
    Cluster,
    /// The links between nodes, which are measured.
    Probe {
        /// These nodes; none stands for all.
        nodes: Vec<NodeId>,
        /// The measurements to make.
        options: SurveyOptions,
    },
    /// The progress of the probe that the store coordinates.
    ProbeProgress,
}
