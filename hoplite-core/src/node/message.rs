//! What goes into a [`Node`](super::Node) and what comes out of it.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;

use crate::collective::{Agreement, CollectiveEffect, CollectiveEvent};
use crate::error::Error;
use crate::extent::Extent;
use crate::id::{NodeId, ObjectId, PutId};
use crate::metadata::{Dtype, Metadata};
use crate::plan::collective::Kind;
use crate::plan::link::LinkEstimate;
use crate::reduce::ReduceOp;
use crate::shard::{Locations, PullOutcome, ToShard, ToStore};
use crate::topology::probe::survey::SurveyOptions;

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

/// Who writes the bytes of a copy. The producer publishes progress and declares the copy complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Producer {
    /// A client, in its own process.
    Worker,
    /// The store, from another node or from bytes that a shard sent. A node that has all bytes has the object.
    Store,
    /// The store, from other objects. The last block is kept back until the copy is complete, as that of a worker is.
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
    /// The offset at which it begins.
    pub offset_bytes: u64,
    /// Its length.
    pub length_bytes: u64,
}

/// One hop of a reduce: combines its inputs, element by element, into an object of its own, and serves that while it
/// grows. Coordinator to the node that performs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hop {
    /// The private id of the output.
    pub output: ObjectId,
    /// The put id of the output.
    pub put: PutId,
    /// The operation on two elements.
    pub op: ReduceOp,
    /// The element type.
    pub dtype: Dtype,
    /// The size of the output, and of the range of each input.
    pub size_bytes: u64,
    /// The first byte of the output that is needed.
    pub offset_bytes: u64,
    /// The inputs, combined in this order: at most [`MAX_HOP_INPUTS`].
    pub inputs: Vec<HopInput>,
    /// How long the hop may wait for room.
    pub timeout: Duration,
}

/// Most inputs of a hop that is performed for another node: their ids must fit in one message.
pub const MAX_HOP_INPUTS: usize = 64;

/// One input of a [`Hop`]: a range of an object somewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HopInput {
    /// The id of the object.
    pub id: ObjectId,
    /// The put of that id.
    pub put: PutId,
    /// The size of the whole object.
    pub size_bytes: u64,
    /// The offset in the object at which the range begins.
    pub base_bytes: u64,
    /// The node that has the object.
    pub node: NodeId,
    /// The address of the data plane of that node.
    pub address: SocketAddr,
    /// Whether the object is the output of another hop, which may not have begun yet.
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
        /// The index of the input.
        index: usize,
        /// How the attempt to read it ended.
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
        /// The copy to read.
        copy: CopyId,
        /// The offset in the copy at which the range begins.
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
        /// The index of the input.
        index: usize,
        /// How the transfer of the input ended.
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

/// When a put of a whole object is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Confirm {
    /// Once the directory has accepted the object, as by [`Request::Seal`].
    Yes,
    /// Once it is in the store, as after [`Request::SealUnconfirmed`].
    No,
}

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
        /// How long to wait for room, or for another writer of the same id.
        timeout: Duration,
    },
    /// Puts a whole object, a small one. Answered by `Sealed`, at once or as told, or by `Existing`, with which the caller has to
    /// compare the bytes.
    Put {
        /// The id to put under.
        id: ObjectId,
        /// Its metadata.
        metadata: Metadata,
        /// The object.
        bytes: Bytes,
        /// When to answer.
        confirm: Confirm,
        /// How long to wait for room, for another writer of the same id, and for the directory.
        timeout: Duration,
    },
    /// Declares all bytes of a created copy valid. Answered by `Sealed` once the directory has accepted the object;
    /// see [`Request::SealUnconfirmed`]. The reference stays: it has become one of a reader.
    Seal {
        /// The copy that the client has written.
        copy: CopyId,
        /// How long to wait for the directory.
        timeout: Duration,
    },
    /// As `Seal`, but not answered, nor is the directory waited for: the first of several conflicting puts wins there,
    /// and the copies of the others are dropped.
    SealUnconfirmed {
        /// The copy that the client has written.
        copy: CopyId,
    },
    /// Gives up a created copy: it is aborted everywhere. Not answered.
    Abort {
        /// The copy that the client was writing.
        copy: CopyId,
    },
    /// Asks for a reference to a local copy, which is fetched if need be. Answered by `Object`.
    Get {
        /// The object to refer to.
        id: ObjectId,
        /// How much of the object must be there.
        until: Until,
        /// How long the object may take.
        timeout: Duration,
    },
    /// Waits until more than a number of leading bytes of a copy are valid, or it is complete. The client holds a reference
    /// to it. Answered by `Progress`; fails when the copy does.
    Follow {
        /// A copy to which the client holds a reference.
        copy: CopyId,
        /// How many valid bytes the client knows of.
        beyond_bytes: u64,
        /// How long the bytes may take.
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
        /// How long the stores may take to drop their copies.
        timeout: Duration,
    },
    /// Combines `count` of `sources` into a new object, the first ones to become ready. Answered by `Reduced`.
    Reduce(Reduce),
    /// Coordinates a collective of all nodes with sources. Answered by `Reduced`.
    ///
    /// * Allreduce: as `Reduce`, of a target that they make together, if they can.
    /// * Collectives of parts: they exchange parts, if they can. The target is an object without bytes that is made when that is over,
    ///   or cannot be done: who has not its parts then gets them otherwise. An allgather does not look at the operation.
    Collective(Kind, Reduce),
    /// As a `Get` of the target of a collective until it is started: also answered, by `Ranges`, if its parts come here one after
    /// the other.
    Join {
        /// The target of the collective.
        target: ObjectId,
        /// What this participant has agreed to.
        agreement: Agreement,
        /// Whether it was told that what it had joined is superseded: what it hears now may have been said already.
        is_again: bool,
        /// How long the target may take to begin.
        timeout: Duration,
    },
    /// Waits until `count` of `ids` are available somewhere, or the deadline. Answered by `Ready` in both cases.
    Wait {
        /// The objects to wait for.
        ids: Vec<ObjectId>,
        /// How many of them to wait for.
        count: usize,
        /// How long to wait. Zero: until the directory has told once of each what it knows, at most 5 s.
        timeout: Duration,
    },
    /// Waits until an object has a location, or is inline. Answered by `Locations`; fails when it is lost.
    Locate {
        /// The object to find.
        id: ObjectId,
        /// How long to wait. Zero asks for what is known now and is answered in any case.
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
    /// Asks for what the directory and this store know, for people and tools. The shell answers it, see
    /// [`Effect::Inspect`].
    Inspect(Inspection),
    /// Ends a call that is no longer wanted; its answer may still come. Not answered.
    Cancel {
        /// The call to end.
        call: CallId,
    },
}

impl Request {
    /// Whether a client may ask for this that is to change nothing: it looks, or gives back what it got by looking. A probe makes
    /// traffic between all stores.
    pub const fn is_for_readers(&self) -> bool {
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
                | Self::Inspect(
                    Inspection::List { .. }
                        | Inspection::Describe { .. }
                        | Inspection::Status
                        | Inspection::ProbeProgress
                )
        )
    }
}

/// What people and tools ask for.
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
    /// The links between nodes, which are measured.
    Probe {
        /// These nodes; none stands for all.
        nodes: Vec<NodeId>,
        /// How.
        options: SurveyOptions,
    },
    /// How far the probe is that the store coordinates.
    ProbeProgress,
}

/// What a reduce is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reduce {
    /// The object to make.
    pub target: ObjectId,
    /// The objects to combine; they need not exist yet. No id twice.
    pub sources: Vec<ObjectId>,
    /// How many sources to combine.
    pub count: usize,
    /// The operation on two elements.
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
    /// The extent of the copy in the arena.
    pub extent: Extent,
    /// The put that the copy is of.
    pub put: PutId,
    /// The size of the object.
    pub size_bytes: u64,
    /// The metadata of the object.
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
    /// A reference to a copy that grows in parts: its progress counts the bytes of `order`, one range after the other.
    Ranges {
        /// The copy.
        view: ObjectView,
        /// Which bytes become valid, in this order. Together they are all of the object.
        order: Vec<ByteRange>,
    },
    /// How many of the ids named an object.
    Deleted {
        /// The number of ids that named an object.
        count: usize,
    },
    /// Which of the ids are available, as indices into the request's list, ascending. Fewer than asked for if the
    /// deadline passed.
    Ready {
        /// The indices of the available ids.
        indices: Vec<usize>,
    },
    /// Which sources were reduced, as indices into the request's list, in the order in which they joined.
    Reduced {
        /// The indices of the reduced sources.
        indices: Vec<usize>,
    },
    /// Where an object is.
    Locations(Locations),
    /// How many leading bytes of the copy are valid that was followed.
    Progress {
        /// The number of valid bytes.
        valid_bytes: u64,
    },
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A client asks for something.
    Request {
        /// The client that asks.
        client: ClientId,
        /// The number that the answer carries.
        call: CallId,
        /// The request, already bounded.
        request: Request,
    },
    /// A copy that a client follows has got more bytes, or is complete, or has failed. Said at most once for each
    /// [`Effect::Follow`], and not after [`Effect::CallEnded`].
    Followed {
        /// The client that follows the copy.
        client: ClientId,
        /// The call that follows.
        call: CallId,
        /// How many leading bytes are valid, or why there will not be more.
        progress: Result<u64, Error>,
    },
    /// The answer to an inspection is on its way to the client. Said at most once for each [`Effect::Inspect`], and not
    /// after [`Effect::CallEnded`].
    Inspected {
        /// The client that asked.
        client: ClientId,
        /// The call of the `Inspect`.
        call: CallId,
    },
    /// The links between this node and others were measured anew.
    Measured {
        /// The bandwidth and latency that planners assume.
        link: LinkEstimate,
    },
    /// A client's connection is closed: its process ended, or its last reference is gone.
    ClientGone {
        /// The client that left.
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
        /// The message of the shard.
        message: ToStore,
    },
    /// A pull has ended and no longer touches the copy's memory. Said exactly once for each `StartPull`.
    PullEnded {
        /// The pull of a `StartPull`.
        pull: PullId,
        /// How many leading bytes of the copy are valid now.
        valid_bytes: u64,
        /// How the pull ended.
        outcome: PullOutcome,
    },
    /// Another node asks to be served. Answered by `ServeAccepted` or `ServeRefused`: at once, or, if `awaits_hop`, when
    /// the hop of this output begins here.
    ServeRequested {
        /// A number that the shell chose.
        serve: ServeId,
        /// The object that the node asks for.
        id: ObjectId,
        /// The put that it must be of.
        put: PutId,
        /// Whether the object is the output of a hop, which may not have begun yet.
        awaits_hop: bool,
    },
    /// A serve has ended, accepted or not, and no longer touches the copy's memory. Said exactly once for each
    /// `ServeRequested`.
    ServeEnded {
        /// The serve of a `ServeRequested`.
        serve: ServeId,
    },
    /// The comparison asked for by [`Effect::Compare`] is done.
    Compared {
        /// The local copy that was compared.
        copy: CopyId,
        /// Whether both copies have the same bytes; `None` if that could not be found out.
        equal: Option<bool>,
    },
    /// A combination has ended and no longer touches any memory. Said exactly once for each `StartCombine`.
    CombineEnded {
        /// The combination of a `StartCombine`.
        combine: CombineId,
        /// How many leading bytes of the copy are valid now, counted from its beginning.
        valid_bytes: u64,
        /// How the combination ended.
        outcome: CombineOutcome,
    },
    /// A coordinator elsewhere asks this store to perform a hop. Answered by `HopReport`s: at most `Complete`, and any
    /// time `Failed`, after which there are no more.
    HopRequested {
        /// A number that the shell chose.
        hosting: HostingId,
        /// The inputs, the operation and the output.
        hop: Hop,
    },
    /// The coordinator of a hop needs it no longer, or is gone. Said exactly once for each `HopRequested`.
    HopReleased {
        /// The number of the `HopRequested`.
        hosting: HostingId,
    },
    /// The report of another node on a hop that this store directs, or that the node cannot be heard any more. No report
    /// comes after `Failed`, nor after `EndHop`.
    HopReported {
        /// The hop of a `StartHop`.
        hop: HopId,
        /// How far the hop is.
        report: HopReport,
    },
    /// Something happened in a session of a collective.
    Collective(CollectiveEvent),
    /// Time has passed; see [`Node::next_deadline`](super::Node::next_deadline).
    Tick,
    /// The daemon was asked to stop: calls that wait are answered, new ones refused.
    ShutDown,
}

/// Whether a message to a shard may wait a moment for others to go along with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Urgency {
    /// A client may wait for its effect.
    Prompt,
    /// No client of this store waits for its effect.
    Deferrable,
}

/// What the shell must do, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Answer a client.
    Reply {
        /// The client that asked.
        client: ClientId,
        /// The call that this answers.
        call: CallId,
        /// The answer, or why there is none.
        response: Result<Response, Error>,
    },
    /// Tell the node, by `Followed`, when more than so many leading bytes of a copy are valid, or it is complete, or fails.
    Follow {
        /// The client that wants to know.
        client: ClientId,
        /// The call that `Followed` names.
        call: CallId,
        /// The copy to watch.
        copy: CopyId,
        /// How many valid bytes the client knows of.
        beyond_bytes: u64,
    },
    /// Ask these shards what a client wants to know, answer the client with what they say together, and say `Inspected`.
    Inspect {
        /// The client that asks.
        client: ClientId,
        /// The call to answer.
        call: CallId,
        /// The question.
        inspection: Inspection,
        /// The indices of the shards in the configured list.
        shards: Vec<usize>,
    },
    /// A call has ended for which the shell was asked to `Follow` or `Inspect`.
    CallEnded {
        /// The client that called.
        client: ClientId,
        /// The call of the `Follow` or `Inspect`.
        call: CallId,
    },
    /// Say something to a shard.
    ToShard {
        /// Its index in the configured list.
        shard: usize,
        /// The message to send.
        message: ToShard,
        /// If set, the message is a `Publish` whose `inline` the shell fills with this copy's bytes.
        inline_from: Option<CopyId>,
        /// Whether a client may wait for its effect.
        urgency: Urgency,
    },
    /// A copy exists now: initialise its header with no valid byte.
    CopyOpened {
        /// The number of the new copy.
        copy: CopyId,
        /// The extent of the copy in the arena.
        extent: Extent,
        /// The size of the object.
        size_bytes: u64,
        /// Who writes the bytes.
        producer: Producer,
    },
    /// Write these bytes, all of the object, into a copy.
    Fill {
        /// The copy to fill.
        copy: CopyId,
        /// All bytes of the object.
        bytes: Bytes,
    },
    /// All bytes of a copy are valid: publish that in its header, wake everybody who follows it.
    CopyCompleted {
        /// The copy that is complete.
        copy: CopyId,
    },
    /// A copy will never be complete, or was deleted: wake everybody who follows it, end serves of it.
    CopyFailed {
        /// The copy that has failed.
        copy: CopyId,
        /// The error that followers get.
        error: Error,
    },
    /// A copy's space is free: nobody touches it any more.
    CopyClosed {
        /// The copy that is gone.
        copy: CopyId,
    },
    /// Start to pull bytes into a copy.
    StartPull {
        /// The number of the new pull.
        pull: PullId,
        /// The copy to fill.
        copy: CopyId,
        /// The object to ask the sender for.
        id: ObjectId,
        /// The put that it must be of.
        put: PutId,
        /// The size of the object.
        size_bytes: u64,
        /// The node that serves it.
        sender: NodeId,
        /// The address of the data plane of that node.
        sender_address: SocketAddr,
        /// The first byte that is wanted.
        offset_bytes: u64,
    },
    /// End a pull soon; it still reports `PullEnded`.
    CancelPull {
        /// The pull to end.
        pull: PullId,
    },
    /// Serve a copy, from whatever offset was asked for.
    ServeAccepted {
        /// The serve of a `ServeRequested`.
        serve: ServeId,
        /// The copy to read.
        copy: CopyId,
        /// The size of the object.
        size_bytes: u64,
    },
    /// Tell the receiver that there is nothing to serve.
    ServeRefused {
        /// The serve of a `ServeRequested`.
        serve: ServeId,
    },
    /// Compare a complete local copy with the copy of another put of the same id at another node; report `Compared`.
    Compare {
        /// The local copy, of the put that came second.
        copy: CopyId,
        /// The id of both puts.
        id: ObjectId,
        /// The put that came first.
        winner: PutId,
        /// The node that has the other copy, and the address of its data plane.
        holder: (NodeId, SocketAddr),
    },
    /// Fill a copy from its `offset_bytes` on with the combination of `inputs`; the bytes before that do not matter.
    StartCombine {
        /// The number of the new combination.
        combine: CombineId,
        /// The copy to fill.
        copy: CopyId,
        /// The operation on two elements.
        op: ReduceOp,
        /// The element type.
        dtype: Dtype,
        /// The first byte that is wanted.
        offset_bytes: u64,
        /// The inputs, combined in this order.
        inputs: Vec<CombineInput>,
    },
    /// End a combination soon; it still reports `CombineEnded`.
    CancelCombine {
        /// The combination to end.
        combine: CombineId,
    },
    /// Ask another node to perform a hop, until `EndHop`, and report what it says.
    StartHop {
        /// The number of the new hop.
        hop: HopId,
        /// The node that performs it.
        node: NodeId,
        /// The address of the data plane of that node.
        address: SocketAddr,
        /// The inputs, the operation and the output.
        spec: Hop,
    },
    /// Tell a node that its hop is needed no longer, if it can still hear it.
    EndHop {
        /// The hop to end.
        hop: HopId,
    },
    /// Tell a coordinator how the hop goes that it asked for.
    HopReport {
        /// The number of the `HopRequested`.
        hosting: HostingId,
        /// How far the hop is.
        report: HopReport,
    },
    /// Do something for a session of a collective.
    Collective(CollectiveEffect),
}
