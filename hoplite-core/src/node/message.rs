//! What goes into a [`Node`](super::Node) and what comes out of it.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;

use crate::error::Error;
use crate::extent::Extent;
use crate::id::{NodeId, ObjectId, PutId};
use crate::metadata::Metadata;
use crate::shard::{Locations, PullOutcome, ToShard, ToStore};

/// One connection of one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// Correlates a client's request with its answer; chosen by the client, unique among its open requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// One local copy of an object, from the moment its space is allocated to the moment that space is free again. Never
/// used twice in the life of a store. Clients name their references by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CopyId(pub u64);

/// One transfer from another node into a local copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PullId(pub u64);

/// One transfer from a local copy to another node; chosen by the shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServeId(pub u64);

/// Who writes the bytes of a copy, and so who says that there are more of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Producer {
    /// A client, in its own process.
    Worker,
    /// The store: from another node, or at once from bytes that a shard sent.
    Store,
}

/// What a `Get` waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Until {
    /// Until there is a local copy, maybe without any valid byte yet; the client follows its progress. An object without
    /// bytes must be complete.
    Started,
    /// Until all bytes are there.
    Complete,
}

/// A client's request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Makes room for an object and starts to publish it. Answered by `Created` or `Existing`.
    Create {
        /// The object.
        id: ObjectId,
        /// Its size.
        size_bytes: u64,
        /// Its metadata.
        metadata: Metadata,
        /// How long to wait for room, or for another writer of the same id.
        timeout: Duration,
    },
    /// Declares all bytes of a created copy valid. Answered by `Sealed` once the directory has accepted the object;
    /// see [`Request::SealUnconfirmed`]. The reference stays: it has become one of a reader.
    Seal {
        /// The copy.
        copy: CopyId,
        /// How long to wait for the directory.
        timeout: Duration,
    },
    /// As `Seal`, but not answered, nor is the directory waited for: the first of several conflicting puts wins there,
    /// and the copies of the others are dropped.
    SealUnconfirmed {
        /// The copy.
        copy: CopyId,
    },
    /// Gives up a created copy: it is aborted everywhere. Not answered.
    Abort {
        /// The copy.
        copy: CopyId,
    },
    /// Asks for a reference to a local copy, which is fetched if need be. Answered by `Object`.
    Get {
        /// The object.
        id: ObjectId,
        /// What to wait for.
        until: Until,
        /// How long to wait.
        timeout: Duration,
    },
    /// Gives back one reference. Not answered.
    Release {
        /// The copy.
        copy: CopyId,
    },
    /// Removes every copy of each id in the cluster. Answered by `Deleted`.
    Delete {
        /// The objects.
        ids: Vec<ObjectId>,
        /// How long to wait.
        timeout: Duration,
    },
    /// Waits until `count` of `ids` are available somewhere, or the deadline. Answered by `Ready` in both cases.
    Wait {
        /// The objects.
        ids: Vec<ObjectId>,
        /// How many of them to wait for.
        count: usize,
        /// How long to wait.
        timeout: Duration,
    },
    /// Waits until an object has a location, or is inline. Answered by `Locations`; fails when it is lost.
    Locate {
        /// The object.
        id: ObjectId,
        /// How long to wait. Zero asks for what is known now and is answered in any case.
        timeout: Duration,
    },
    /// Answered by `Locations` at once and at every change, until `Unsubscribe`.
    Subscribe {
        /// The object.
        id: ObjectId,
    },
    /// Ends a subscription. Not answered.
    Unsubscribe {
        /// The call that subscribed.
        call: CallId,
    },
    /// Ends a call that is no longer wanted; its answer may still come. Not answered.
    Cancel {
        /// The call.
        call: CallId,
    },
}

/// Where a client finds a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectView {
    /// The reference, to be given back with [`Request::Release`].
    pub copy: CopyId,
    /// Where in the arena it is.
    pub extent: Extent,
    /// Which put it is of.
    pub put: PutId,
    /// Its size.
    pub size_bytes: u64,
    /// Its metadata.
    pub metadata: Metadata,
}

/// An answer to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Response {
    /// Room was made: the client writes the bytes, publishes progress, seals.
    Created(ObjectView),
    /// The id exists with the same size and metadata: the client compares the bytes, then releases. The put succeeds
    /// if they are equal.
    Existing(ObjectView),
    /// The object is sealed and the directory has accepted it.
    Sealed,
    /// A reference to a copy.
    Object(ObjectView),
    /// How many of the ids named an object.
    Deleted {
        /// The number.
        count: usize,
    },
    /// Which of the ids are available, as indices into the request's list, ascending. Fewer than asked for if the
    /// deadline passed.
    Ready {
        /// The indices.
        indices: Vec<usize>,
    },
    /// Where an object is.
    Locations(Locations),
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A client asks for something.
    Request {
        /// Who.
        client: ClientId,
        /// Correlates the answer.
        call: CallId,
        /// What.
        request: Request,
    },
    /// A client's connection is closed: its process ended, or its last reference is gone.
    ClientGone {
        /// Who.
        client: ClientId,
    },
    /// A session with a shard is established.
    ShardUp {
        /// Its index in the configured list.
        shard: usize,
    },
    /// A session with a shard is lost.
    ShardDown {
        /// Its index.
        shard: usize,
    },
    /// A shard says something.
    FromShard {
        /// Its index.
        shard: usize,
        /// What.
        message: ToStore,
    },
    /// A pull has ended and no longer touches the copy's memory. Said exactly once for each `StartPull`.
    PullEnded {
        /// Which.
        pull: PullId,
        /// How many leading bytes of the copy are valid now.
        valid_bytes: u64,
        /// How it ended.
        outcome: PullOutcome,
    },
    /// Another node asks to be served. Answered by `ServeAccepted` or `ServeRefused` at once.
    ServeRequested {
        /// Which.
        serve: ServeId,
        /// The object.
        id: ObjectId,
        /// Which put.
        put: PutId,
    },
    /// A serve has ended, accepted or not, and no longer touches the copy's memory. Said exactly once for each
    /// `ServeRequested`.
    ServeEnded {
        /// Which.
        serve: ServeId,
    },
    /// The comparison asked for by [`Effect::Compare`] is done.
    Compared {
        /// The local copy.
        copy: CopyId,
        /// Whether both copies have the same bytes; `None` if that could not be found out.
        equal: Option<bool>,
    },
    /// Time has passed; see [`Node::next_deadline`](super::Node::next_deadline).
    Tick,
    /// The daemon was asked to stop: calls that wait are answered, new ones refused.
    ShutDown,
}

/// Whether a message to a shard may wait a moment for others to go along with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Urgency {
    /// Somebody may be waiting for what it brings about.
    Prompt,
    /// Nobody in this store waits, and others can hardly tell.
    Patient,
}

/// What the shell must do, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Answer a client.
    Reply {
        /// Whom.
        client: ClientId,
        /// Which call.
        call: CallId,
        /// With what.
        response: Result<Response, Error>,
    },
    /// Say something to a shard.
    ToShard {
        /// Which.
        shard: usize,
        /// What.
        message: ToShard,
        /// If set, the message is a `Publish` whose `inline` the shell fills with this copy's bytes.
        inline_from: Option<CopyId>,
        /// Whether somebody may be waiting for what it brings about.
        urgency: Urgency,
    },
    /// A copy exists now: initialise its header with no valid byte.
    CopyOpened {
        /// Which.
        copy: CopyId,
        /// Its space.
        extent: Extent,
        /// The size of the object.
        size_bytes: u64,
        /// Who will write it.
        producer: Producer,
    },
    /// Write these bytes, all of the object, into a copy.
    Fill {
        /// Which.
        copy: CopyId,
        /// The bytes.
        bytes: Bytes,
    },
    /// All bytes of a copy are valid: publish that in its header, wake everybody who follows it.
    CopyCompleted {
        /// Which.
        copy: CopyId,
    },
    /// A copy will never be complete, or was deleted: wake everybody who follows it, end serves of it.
    CopyFailed {
        /// Which.
        copy: CopyId,
        /// What followers are told.
        error: Error,
    },
    /// A copy's space is free: nobody touches it any more.
    CopyClosed {
        /// Which.
        copy: CopyId,
    },
    /// Start to pull bytes into a copy.
    StartPull {
        /// Which.
        pull: PullId,
        /// Into what.
        copy: CopyId,
        /// The object.
        id: ObjectId,
        /// Which put.
        put: PutId,
        /// Its size.
        size_bytes: u64,
        /// From whom.
        sender: NodeId,
        /// At which address.
        sender_address: SocketAddr,
        /// From which byte on.
        offset_bytes: u64,
    },
    /// End a pull soon; it still reports `PullEnded`.
    CancelPull {
        /// Which.
        pull: PullId,
    },
    /// Serve a copy, from whatever offset was asked for.
    ServeAccepted {
        /// Which serve.
        serve: ServeId,
        /// From what.
        copy: CopyId,
        /// Its size.
        size_bytes: u64,
    },
    /// Tell the receiver that there is nothing to serve.
    ServeRefused {
        /// Which serve.
        serve: ServeId,
    },
    /// Compare a complete local copy with the copy of another put of the same id at another node; report `Compared`.
    Compare {
        /// The local copy.
        copy: CopyId,
        /// The object.
        id: ObjectId,
        /// The other put.
        winner: PutId,
        /// Who has it, and where its data plane is.
        holder: (NodeId, SocketAddr),
    },
}
