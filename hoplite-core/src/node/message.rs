//! What goes into a [`Node`](super::Node) and what comes out of it.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;

use crate::error::Error;
use crate::extent::Extent;
use crate::id::{NodeId, ObjectId, PutId};
use crate::metadata::{Dtype, Metadata};
use crate::plan::reduce::Link;
use crate::reduce::ReduceOp;
use crate::shard::{Locations, PullOutcome, ToShard, ToStore};

/// One connection of one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

impl ClientId {
    /// The store itself, where it asks for what clients ask for.
    pub(super) const STORE: Self = Self(u64::MAX);
}

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

/// One computation that fills a local copy with the combination of several inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CombineId(pub u64);

/// A hop of a reduce that this store coordinates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HopId(pub u64);

/// A hop that this store performs for a coordinator elsewhere; chosen by the shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostingId(pub u64);

/// Who writes the bytes of a copy, and so who says that there are more of them, and that they are all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Producer {
    /// A client, in its own process.
    Worker,
    /// The store: from another node, or at once from bytes that a shard sent. Whoever has all bytes has the object.
    Store,
    /// The store, from other objects. As of a worker's, the last block is kept back until the copy is complete.
    Reduce,
}

/// In which order the sources of a reduce are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ReduceOrder {
    /// As they become ready, and as the topology suggests. Sums and products of floats may differ by rounding.
    #[default]
    Any,
    /// In the order of the request, from left to right: the same bits in every run over the same sources.
    Fixed,
}

/// A part of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ByteRange {
    /// Where it begins.
    pub offset_bytes: u64,
    /// How long it is.
    pub length_bytes: u64,
}

/// One hop of a reduce: combines its inputs, element by element, into an object of its own, and serves that while it
/// grows. Coordinator to the node that performs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hop {
    /// The private id of the output.
    pub output: ObjectId,
    /// Which put the output is.
    pub put: PutId,
    /// The operation.
    pub op: ReduceOp,
    /// The element type.
    pub dtype: Dtype,
    /// The size of the output, and of the range of each input.
    pub size_bytes: u64,
    /// From which byte on; nobody asks for those before.
    pub offset_bytes: u64,
    /// What is combined, in this order: at most [`MAX_HOP_INPUTS`].
    pub inputs: Vec<HopInput>,
    /// How long to wait for room.
    pub timeout: Duration,
}

/// Most inputs of a hop that is performed for another node: their ids must fit in one message.
pub const MAX_HOP_INPUTS: usize = 64;

/// One input of a [`Hop`]: a range of an object somewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HopInput {
    /// The object.
    pub id: ObjectId,
    /// Which put.
    pub put: PutId,
    /// The size of the whole object.
    pub size_bytes: u64,
    /// Where in it the range begins.
    pub base_bytes: u64,
    /// Who has it.
    pub node: NodeId,
    /// Where the data plane of that node is.
    pub address: SocketAddr,
    /// Whether it is the output of another hop, which may not have begun yet.
    pub is_hop: bool,
}

/// How a [`Hop`] went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HopReport {
    /// All bytes of the output are there.
    Complete,
    /// It ended without them.
    Failed(HopFailure),
}

/// Why a [`Hop`] failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HopFailure {
    /// The node cannot be reached, or has been silent for too long.
    Unreachable,
    /// An input cannot be had.
    Input {
        /// Its place among the inputs.
        index: usize,
        /// What became of the attempt.
        outcome: PullOutcome,
    },
    /// The node cannot perform it.
    Refused(Error),
}

/// From where an input of a combination is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CombineInput {
    /// A local copy, as it grows.
    Local {
        /// The copy.
        copy: CopyId,
        /// Where in it the range begins.
        base_bytes: u64,
    },
    /// Another node.
    Remote(HopInput),
}

/// How a combination ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CombineOutcome {
    /// All bytes are there.
    Complete,
    /// It was cancelled.
    Cancelled,
    /// An input ended too soon.
    InputFailed {
        /// Its place among the inputs.
        index: usize,
        /// How it ended.
        outcome: PullOutcome,
    },
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
        /// The size of the object.
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
    /// Waits until more than a number of leading bytes of a copy are valid, or it is complete. The client holds a reference
    /// to it. Answered by `Progress`; fails when the copy does.
    Follow {
        /// The copy.
        copy: CopyId,
        /// How many valid bytes are no news.
        beyond_bytes: u64,
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
    /// Combines `count` of `sources` into a new object, the first ones to become ready. Answered by `Reduced`.
    Reduce(Reduce),
    /// Waits until `count` of `ids` are available somewhere, or the deadline. Answered by `Ready` in both cases.
    Wait {
        /// The objects.
        ids: Vec<ObjectId>,
        /// How many of them to wait for.
        count: usize,
        /// How long to wait. Zero: until the directory has told once of each what it knows, at most 5 s.
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

/// What a reduce is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reduce {
    /// The object to make.
    pub target: ObjectId,
    /// The objects to combine; they need not exist yet. No id twice.
    pub sources: Vec<ObjectId>,
    /// How many of them to combine.
    pub count: usize,
    /// The operation.
    pub op: ReduceOp,
    /// The order of the operands.
    pub order: ReduceOrder,
    /// The part of each source to combine, a multiple of the element size at both ends; `None`: all of it. It is planned as
    /// if the other parts were reduced at the same time, as they are in an allreduce.
    pub range: Option<ByteRange>,
    /// How long the whole may take.
    pub timeout: Duration,
}

impl Reduce {
    /// Checks what can be known of a reduce before any source exists: it has sources, names no object twice (the target
    /// included), asks for no more sources than it names, and its range does not overflow.
    ///
    /// # Errors
    /// [`Error::DuplicateId`], which names the id; [`Error::InvalidRequest`].
    pub fn check(&self) -> Result<(), Error> {
        if self.sources.is_empty() {
            return Err(Error::invalid_request("a reduce of no objects"));
        }
        if !(1..=self.sources.len()).contains(&self.count) {
            return Err(Error::invalid_request("cannot reduce no objects, or more than there are sources"));
        }
        let mut named = BTreeSet::from([&self.target]);
        if let Some(id) = self.sources.iter().find(|id| !named.insert(id)) {
            return Err(Error::DuplicateId { id: id.clone() });
        }
        match self.range {
            Some(range) if range.offset_bytes.checked_add(range.length_bytes).is_none() => {
                Err(Error::invalid_request("the range ends beyond the largest offset"))
            }
            _ => Ok(()),
        }
    }
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
    /// Which sources were reduced, as indices into the request's list, in the order in which they joined.
    Reduced {
        /// The indices.
        indices: Vec<usize>,
    },
    /// Where an object is.
    Locations(Locations),
    /// How many leading bytes of the copy are valid that was followed.
    Progress {
        /// The number.
        valid_bytes: u64,
    },
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A client asks for something.
    Request {
        /// The client.
        client: ClientId,
        /// Correlates the answer.
        call: CallId,
        /// What it asks for.
        request: Request,
    },
    /// A copy that a client follows has got more bytes, or is complete, or has failed. Said at most once for each
    /// [`Effect::Follow`], and not after [`Effect::EndFollow`].
    Followed {
        /// The client.
        client: ClientId,
        /// The call that follows.
        call: CallId,
        /// How many leading bytes are valid, or why there will not be more.
        progress: Result<u64, Error>,
    },
    /// The links between this node and others were measured anew.
    Measured {
        /// What they are taken for.
        link: Link,
    },
    /// A client's connection is closed: its process ended, or its last reference is gone.
    ClientGone {
        /// The client.
        client: ClientId,
    },
    /// A session with a shard is established.
    ShardUp {
        /// Its index in the configured list.
        shard: usize,
    },
    /// A session with a shard is lost.
    ShardDown {
        /// Its index in the configured list.
        shard: usize,
    },
    /// A shard says something.
    FromShard {
        /// Its index in the configured list.
        shard: usize,
        /// What it says.
        message: ToStore,
    },
    /// A pull has ended and no longer touches the copy's memory. Said exactly once for each `StartPull`.
    PullEnded {
        /// The pull.
        pull: PullId,
        /// How many leading bytes of the copy are valid now.
        valid_bytes: u64,
        /// How it ended.
        outcome: PullOutcome,
    },
    /// Another node asks to be served. Answered by `ServeAccepted` or `ServeRefused`: at once, or, if `awaits_hop`, when
    /// the hop of this output begins here.
    ServeRequested {
        /// The serve.
        serve: ServeId,
        /// The object.
        id: ObjectId,
        /// The put of it.
        put: PutId,
        /// Whether it is the output of a hop, which may not have begun yet.
        awaits_hop: bool,
    },
    /// A serve has ended, accepted or not, and no longer touches the copy's memory. Said exactly once for each
    /// `ServeRequested`.
    ServeEnded {
        /// The serve.
        serve: ServeId,
    },
    /// The comparison asked for by [`Effect::Compare`] is done.
    Compared {
        /// The local copy.
        copy: CopyId,
        /// Whether both copies have the same bytes; `None` if that could not be found out.
        equal: Option<bool>,
    },
    /// A combination has ended and no longer touches any memory. Said exactly once for each `StartCombine`.
    CombineEnded {
        /// The combination.
        combine: CombineId,
        /// How many leading bytes of the copy are valid now, counted from its beginning.
        valid_bytes: u64,
        /// How it ended.
        outcome: CombineOutcome,
    },
    /// A coordinator elsewhere asks this store to perform a hop. Answered by `HopReport`s: at most `Complete`, and any
    /// time `Failed`, after which there are no more.
    HopRequested {
        /// The hop.
        hosting: HostingId,
        /// The hop.
        hop: Hop,
    },
    /// The coordinator of a hop needs it no longer, or is gone. Said exactly once for each `HopRequested`.
    HopReleased {
        /// The hop.
        hosting: HostingId,
    },
    /// What another node says of a hop that this store directs; also that nothing can be heard from it. Nothing comes
    /// after `Failed`, nor after `EndHop`.
    HopReported {
        /// The hop.
        hop: HopId,
        /// What is said of it.
        report: HopReport,
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
        /// The client.
        client: ClientId,
        /// Its call.
        call: CallId,
        /// The answer.
        response: Result<Response, Error>,
    },
    /// Tell the node, by `Followed`, when more than so many leading bytes of a copy are valid, or it is complete, or fails.
    Follow {
        /// The client that wants to know.
        client: ClientId,
        /// Its call.
        call: CallId,
        /// The copy.
        copy: CopyId,
        /// How many valid bytes are no news.
        beyond_bytes: u64,
    },
    /// The call that follows a copy has ended.
    EndFollow {
        /// The client.
        client: ClientId,
        /// Its call.
        call: CallId,
    },
    /// Say something to a shard.
    ToShard {
        /// Its index in the configured list.
        shard: usize,
        /// What it says.
        message: ToShard,
        /// If set, the message is a `Publish` whose `inline` the shell fills with this copy's bytes.
        inline_from: Option<CopyId>,
        /// Whether somebody may be waiting for what it brings about.
        urgency: Urgency,
    },
    /// A copy exists now: initialise its header with no valid byte.
    CopyOpened {
        /// The copy.
        copy: CopyId,
        /// Its space in the arena.
        extent: Extent,
        /// The size of the object.
        size_bytes: u64,
        /// Who will write it.
        producer: Producer,
    },
    /// Write these bytes, all of the object, into a copy.
    Fill {
        /// The copy.
        copy: CopyId,
        /// The bytes.
        bytes: Bytes,
    },
    /// All bytes of a copy are valid: publish that in its header, wake everybody who follows it.
    CopyCompleted {
        /// The copy.
        copy: CopyId,
    },
    /// A copy will never be complete, or was deleted: wake everybody who follows it, end serves of it.
    CopyFailed {
        /// The copy.
        copy: CopyId,
        /// What followers are told.
        error: Error,
    },
    /// A copy's space is free: nobody touches it any more.
    CopyClosed {
        /// The copy.
        copy: CopyId,
    },
    /// Start to pull bytes into a copy.
    StartPull {
        /// The pull.
        pull: PullId,
        /// The copy.
        copy: CopyId,
        /// The object.
        id: ObjectId,
        /// The put of it.
        put: PutId,
        /// The size of the object.
        size_bytes: u64,
        /// The node that serves it.
        sender: NodeId,
        /// Where its data plane is.
        sender_address: SocketAddr,
        /// The first byte that is wanted.
        offset_bytes: u64,
    },
    /// End a pull soon; it still reports `PullEnded`.
    CancelPull {
        /// The pull.
        pull: PullId,
    },
    /// Serve a copy, from whatever offset was asked for.
    ServeAccepted {
        /// The serve.
        serve: ServeId,
        /// The copy.
        copy: CopyId,
        /// The size of the object.
        size_bytes: u64,
    },
    /// Tell the receiver that there is nothing to serve.
    ServeRefused {
        /// The serve.
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
    /// Fill a copy from its `offset_bytes` on with the combination of `inputs`; the bytes before that do not matter.
    StartCombine {
        /// The combination.
        combine: CombineId,
        /// The copy.
        copy: CopyId,
        /// The operation.
        op: ReduceOp,
        /// The element type.
        dtype: Dtype,
        /// The first byte that is wanted.
        offset_bytes: u64,
        /// What is combined, in this order.
        inputs: Vec<CombineInput>,
    },
    /// End a combination soon; it still reports `CombineEnded`.
    CancelCombine {
        /// The combination.
        combine: CombineId,
    },
    /// Ask another node to perform a hop, until `EndHop`, and report what it says.
    StartHop {
        /// The hop.
        hop: HopId,
        /// The node that performs it.
        node: NodeId,
        /// Where the data plane of that node is.
        address: SocketAddr,
        /// What it is to do.
        spec: Hop,
    },
    /// Tell a node that its hop is needed no longer, if it can still hear it.
    EndHop {
        /// The hop.
        hop: HopId,
    },
    /// Tell a coordinator how the hop goes that it asked for.
    HopReport {
        /// The hop.
        hosting: HostingId,
        /// What is said of it.
        report: HopReport,
    },
}
