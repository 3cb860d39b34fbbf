//! What stores and shards say to each other over a session. The wire form is in `proto/hoplite/v1/directory.proto`.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;

use crate::error::Error;
use crate::id::{Incarnation, NodeId, ObjectId, PutId};
use crate::metadata::Metadata;
use crate::placement::ShardList;
use crate::plan::link::Uplink;
use crate::topology::place::Path;

/// Correlates a request of one store with its answers; unique among that store's open requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// One sender slot, granted by one shard to one receiver. Unique per run of the shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GrantId(pub u64);

/// The identity of a store, sent once at the start of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeInfo {
    /// The name of the node.
    pub node: NodeId,
    /// The run of the store.
    pub incarnation: Incarnation,
    /// The address at which others reach its data plane.
    pub data_address: SocketAddr,
    /// Labels of the operator's, such as `rack=7`; at most 32.
    pub labels: Vec<(String, String)>,
    /// The shards of the cluster, as the store names them.
    pub shards: ShardList,
}

/// Whether a node has all bytes of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LocationState {
    /// A worker of that node is still writing it: a partial copy that will become complete by itself.
    Producing,
    /// It is being pulled from another node.
    Partial,
    /// All of it is there.
    Complete,
}

/// Whether a copy may be evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Retention {
    /// Made by `Put`, or promoted when the last such copy was lost: stays until `Delete`.
    Pinned,
    /// Made by `Get`: goes when room is needed.
    Evictable,
}

/// A store announces a copy: when it starts, when it is complete, and again when a session is new. The shard that granted
/// a slot for a copy knows without this that the copy has started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publish {
    /// The object that the copy is of.
    pub id: ObjectId,
    /// The put that made it.
    pub put: PutId,
    /// The size of the whole object.
    pub size_bytes: u64,
    /// The metadata of the object.
    pub metadata: Metadata,
    /// How much of the object the copy has.
    pub state: LocationState,
    /// Whether the copy may be evicted.
    pub retention: Retention,
    /// For a [`LocationState::Partial`] copy: who it is being pulled from, so that no cycle is ever granted.
    pub pulling_from: Option<NodeId>,
    /// The bytes, if the object is complete, small and this store put it.
    pub inline: Option<Bytes>,
    /// For a [`LocationState::Complete`] copy: the slot over which its last bytes came, which is returned with this.
    pub slot: Option<GrantId>,
    /// Whether the store waits for the verdict even if the copy is accepted.
    pub wants_answer: bool,
}

/// Why a copy is no longer there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UnpublishReason {
    /// Evicted to make room.
    Evicted,
    /// The pull ended without all the bytes.
    PullEnded,
    /// The worker that was writing it died or gave up: no copy of this put can ever be complete.
    Aborted,
    /// The node that was producing it makes it anew, under another put id: as `Aborted`, but those who wait for it go on
    /// waiting.
    Superseded,
    /// Given up by its store, because another put of the id was first.
    Conceded,
    /// Deleted, as the shard had asked.
    Deleted,
}

/// How a pull ended, reported when the slot is returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PullOutcome {
    /// All bytes arrived.
    Complete,
    /// The sender could not be reached, or its connection broke.
    SenderUnreachable,
    /// The sender sent nothing for too long.
    SenderStalled,
    /// The sender does not have this put of the object (any more).
    SenderHasNoCopy,
    /// A frame was damaged on the way.
    Corrupt,
    /// The receiver no longer wants it, or has no room, and has no copy.
    Cancelled,
    /// The receiver gave the slot up, as it was asked to: [`ToStore::GiveWay`].
    GaveWay,
}

/// Asks for one location to pull from. Answered when there is one, or at the deadline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query {
    /// Correlates the answer: `Granted`, `Inline` or `Failed`.
    pub request: RequestId,
    /// The object to find a sender for.
    pub id: ObjectId,
    /// How long to wait at most, from arrival.
    pub timeout: Duration,
    /// Which put the receiver already has leading bytes of; only copies of the same put are of use then.
    pub resume: Option<PutId>,
    /// Senders that failed this receiver lately: granted only if there is no other.
    pub avoid: Vec<NodeId>,
}

/// Where a store is, as of one version of the measured places.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Placed {
    /// The highest counts, whoever says it. Zero if nothing was measured, which nobody says.
    pub version: u64,
    /// The groups, by labels or by measurements.
    pub path: Path,
    /// What uplinks carry, if any store is where was measured.
    pub uplink: Uplink,
}

impl Placed {
    /// What counts of two of one version. A shard that was restarted may know less than others, and two probes in one millisecond
    /// have one version. Since this only grows, those who tell each other come to rest.
    pub(crate) fn or_larger(self, other: Self) -> Self {
        Self { path: self.path.max(other.path), uplink: self.uplink.max(other.uplink), ..self }
    }
}

/// Store to shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToShard {
    /// A copy has started or is complete. Answered by `Published` if the store wants that, or the copy is not accepted.
    Publish(Publish),
    /// A copy is gone. Not answered.
    Unpublish {
        /// The object that the copy was of.
        id: ObjectId,
        /// The put that the copy was of.
        put: PutId,
        /// Why the copy is gone.
        reason: UnpublishReason,
    },
    /// A synchronous location query that takes a sender slot. Answered by `Granted`, `Inline` or `Failed`.
    Query(Query),
    /// Ends a `Query` that is no longer wanted, or asks not to be told of the end of a `Delete`, which goes on. If the
    /// answer is already under way, a `Granted` slot must still be returned. Not answered.
    Cancel {
        /// The query, or the delete.
        request: RequestId,
    },
    /// Returns a slot whose pull did not bring all bytes; [`Publish::slot`] returns the others. Not answered.
    ReturnSlot {
        /// The slot of a `Granted`.
        grant: GrantId,
        /// How the pull ended.
        outcome: PullOutcome,
    },
    /// Removes every copy. Answered by `DeleteDone` when all nodes have dropped theirs or are gone.
    Delete {
        /// Correlates the answer.
        request: RequestId,
        /// The object to remove.
        id: ObjectId,
    },
    /// Tells the second shard of an id what the first one deleted. Not answered.
    Forget {
        /// The object that was deleted.
        id: ObjectId,
        /// The put that was deleted.
        put: PutId,
    },
    /// An asynchronous location query: answered at once by `Locations`, and again at every change, until `Unsubscribe`.
    Subscribe {
        /// Correlates the answers.
        request: RequestId,
        /// The object to watch.
        id: ObjectId,
    },
    /// Ends a subscription. Not answered; updates under way may still arrive.
    Unsubscribe {
        /// The subscription.
        request: RequestId,
    },
    /// Where another shard, or this one before it was restarted, has said that the store is, after a probe. Not answered.
    Placed(Placed),
}

impl ToShard {
    /// The kinds of messages, for metrics.
    pub const KINDS: [&str; 10] = [
        "publish",
        "unpublish",
        "query",
        "cancel",
        "return-slot",
        "delete",
        "forget",
        "subscribe",
        "unsubscribe",
        "placed",
    ];

    /// Which of [`Self::KINDS`] it is.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Publish(_) => "publish",
            Self::Unpublish { .. } => "unpublish",
            Self::Query(_) => "query",
            Self::Cancel { .. } => "cancel",
            Self::ReturnSlot { .. } => "return-slot",
            Self::Delete { .. } => "delete",
            Self::Forget { .. } => "forget",
            Self::Subscribe { .. } => "subscribe",
            Self::Unsubscribe { .. } => "unsubscribe",
            Self::Placed(_) => "placed",
        }
    }
}

/// Why a sender was chosen. For logs and `hoplite stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GrantReason {
    /// The only location that could be chosen.
    OnlyCandidate,
    /// A complete copy while others were partial.
    CompleteBeforePartial,
    /// The closest, by the places of the nodes: without them another would have been chosen.
    Closest,
    /// As close as others, and longest without a grant.
    LeastRecentlyUsed,
    /// A copy that is not complete, as close as others, and the first of them to have bytes.
    EarliestBytes,
    /// A copy that is not complete, while many others receive the object too: the bytes are about to reach it. Until then a
    /// chain is not extended, so that none gets longer than a transfer takes.
    ChainHasBytes,
    /// It failed this receiver lately, but there is no other.
    AvoidedButOnly,
    /// The receiver is the first of its group to get the object: no node there has any of it.
    FirstOfGroup,
    /// The copies that are closer served others for too long.
    CloserAreBusy,
}

/// A slot at a sender. The receiver counts as a partial location from now on, until it says otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The query it answers.
    pub request: RequestId,
    /// The slot, to be returned with [`Publish::slot`] or [`ToShard::ReturnSlot`].
    pub grant: GrantId,
    /// The object to pull.
    pub id: ObjectId,
    /// The put that the sender has.
    pub put: PutId,
    /// The size of the whole object.
    pub size_bytes: u64,
    /// The metadata of the object.
    pub metadata: Metadata,
    /// The node to pull from.
    pub sender: NodeId,
    /// The address of the data plane of that node.
    pub sender_address: SocketAddr,
    /// How much the sender has.
    pub sender_state: LocationState,
    /// Why this sender was chosen.
    pub reason: GrantReason,
}

/// The answer to `Publish`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The location is known now.
    Accepted,
    /// Another put of this id was here first. If it was equal (same size, metadata and bytes, known only for inline
    /// objects), the store's copy may take its place under the put id `winner`.
    Conflict {
        /// The put that was first.
        winner: PutId,
        /// Whether its contents are the same.
        equality: Equality,
    },
    /// This put was deleted; the copy must be dropped.
    Deleted,
    /// The shard holds as many objects as it may.
    ShardFull,
}

/// Whether two puts of one id have the same contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Equality {
    /// They do.
    Equal,
    /// They do not.
    Different,
    /// Size and metadata agree; the bytes must be compared with a copy at this node, if there is one.
    Unknown {
        /// A node that has, or will have, a complete copy of the winner, and its data plane.
        holder: Option<(NodeId, SocketAddr)>,
    },
}

/// Why a shard tells a store to drop its copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// `Delete` was called. The store answers with `Unpublish` and [`UnpublishReason::Deleted`], even if it has no copy.
    Deleted,
    /// Its producer gave up, or the last node with all the bytes was lost, so that it can never be complete.
    Lost,
    /// Its producer makes it anew, under another put id.
    Superseded,
}

/// One location, as told to subscribers and tools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// The node that has the copy.
    pub node: NodeId,
    /// The address of its data plane.
    pub data_address: SocketAddr,
    /// How much of the object it has.
    pub state: LocationState,
    /// Whether the copy may be evicted.
    pub retention: Retention,
    /// The node from which the copy is being pulled.
    pub pulling_from: Option<NodeId>,
    /// The groups that the node is in.
    pub path: Path,
}

/// All that a shard knows about an object at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Locations {
    /// The object that they are of.
    pub id: ObjectId,
    /// The put and its size; `None` if no such object is known.
    pub object: Option<ObjectSummary>,
    /// The copies, by node id.
    pub locations: Vec<Location>,
}

/// An object, apart from its locations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectSummary {
    /// The put that the locations have.
    pub put: PutId,
    /// The size in bytes.
    pub size_bytes: u64,
    /// The metadata that came with the put.
    pub metadata: Metadata,
    /// Whether the shard itself holds the bytes.
    pub inline: bool,
    /// Whether every copy was lost.
    pub lost: bool,
}

impl Locations {
    /// Whether a `Get` would be answered without waiting for a producer.
    pub fn is_available(&self) -> bool {
        let inline = self.object.as_ref().is_some_and(|object| object.inline);
        inline || self.locations.iter().any(|location| location.state == LocationState::Complete)
    }
}

/// Shard to store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToStore {
    /// The answer to `Publish`.
    Published {
        /// The object that was published.
        id: ObjectId,
        /// The put that was published.
        put: PutId,
        /// What the shard has decided.
        verdict: Verdict,
    },
    /// A sender slot: an answer to `Query`.
    Granted(Grant),
    /// The bytes themselves: an answer to `Query`. The receiver counts as a complete, evictable location from now on.
    Inline {
        /// The query that this answers.
        request: RequestId,
        /// The object that was asked for.
        id: ObjectId,
        /// The put that the bytes are of.
        put: PutId,
        /// The metadata of the object.
        metadata: Metadata,
        /// All bytes of the object.
        bytes: Bytes,
    },
    /// The query cannot be answered otherwise.
    Failed {
        /// The query, or the `Delete`.
        request: RequestId,
        /// Why it failed.
        error: Error,
    },
    /// The store must drop its copy, if it has one.
    Drop {
        /// The object to drop.
        id: ObjectId,
        /// The put to drop; copies of others stay.
        put: PutId,
        /// Why the copy must go.
        reason: DropReason,
    },
    /// The store's copy is the one that must survive now: it becomes pinned.
    Promote {
        /// The object to keep.
        id: ObjectId,
        /// The put to keep.
        put: PutId,
    },
    /// The last copy of an inline object is gone with its node: the store keeps one from now on, pinned. It says so with
    /// `Publish`, or has no room.
    TakeOver {
        /// The object to keep.
        id: ObjectId,
        /// The put that the bytes are of.
        put: PutId,
        /// The metadata of the object.
        metadata: Metadata,
        /// All bytes of the object.
        bytes: Bytes,
    },
    /// A receiver that is closer to the sender needs this slot: the store ends the pull, returns the slot with
    /// [`PullOutcome::GaveWay`], and asks again, to go on where it is.
    GiveWay {
        /// The slot.
        grant: GrantId,
    },
    /// In which groups the store is, by its labels or by measurements, and what the uplinks of groups carry.
    Placed(Placed),
    /// No copy is left.
    DeleteDone {
        /// The `Delete` that this answers.
        request: RequestId,
        /// The put that was deleted; `None` if there was no such object.
        put: Option<PutId>,
    },
    /// An answer to `Subscribe`, and every change after it.
    Locations {
        /// The `Subscribe` that this answers.
        request: RequestId,
        /// The locations now.
        locations: Locations,
    },
}

impl ToStore {
    /// The kinds of messages, for metrics.
    pub const KINDS: [&str; 11] = [
        "published",
        "granted",
        "inline",
        "failed",
        "drop",
        "promote",
        "take-over",
        "give-way",
        "placed",
        "delete-done",
        "locations",
    ];

    /// Which of [`Self::KINDS`] it is.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Published { .. } => "published",
            Self::Granted(_) => "granted",
            Self::Inline { .. } => "inline",
            Self::Failed { .. } => "failed",
            Self::Drop { .. } => "drop",
            Self::Promote { .. } => "promote",
            Self::TakeOver { .. } => "take-over",
            Self::GiveWay { .. } => "give-way",
            Self::Placed(_) => "placed",
            Self::DeleteDone { .. } => "delete-done",
            Self::Locations { .. } => "locations",
        }
    }
}
