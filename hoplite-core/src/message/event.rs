//! The events of a node.

use std::time::Duration;

use super::{
    CallId, ClientId, CombineId, CombineOutcome, CopyId, Hop, HopId, HopReport, HostingId, PullId, Request,
    ServeId, SpillFault, SpillFile,
};
use crate::collective::CollectiveEvent;
use crate::error::Error;
use crate::id::{NodeId, ObjectId, PutId};
use crate::lifetime::Owner;
use crate::plan::link::LinkEstimate;
use crate::shard::{PullOutcome, ShardRun, ToStore};
use crate::time::Time;
use crate::version::Version;

/// An input of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A client sends a request.
    Request {
        /// The client that calls.
        client: ClientId,
        /// The number that the answer carries.
        call: CallId,
        /// The request, already bounded.
        request: Request,
    },
    /// A copy that a client follows has more bytes, is complete, or has failed. At most one for
    /// each [`Effect::Follow`](super::Effect::Follow), and none after
    /// [`Effect::CallEnded`](super::Effect::CallEnded).
    Followed {
        /// The client that follows the copy.
        client: ClientId,
        /// The call that follows.
        call: CallId,
        /// The number of valid leading bytes, or the error that ends the progress.
        progress: Result<u64, Error>,
    },
    /// The answer to an inspection is on its way to the client. At most one for each
    /// [`Effect::Inspect`](super::Effect::Inspect), and none after
    /// [`Effect::CallEnded`](super::Effect::CallEnded).
    Inspected {
        /// The client that asked.
        client: ClientId,
        /// The call of the `Inspect`.
        call: CallId,
    },
    /// The links between this node and others were measured again.
    Measured {
        /// The bandwidth and latency that planners assume.
        link: LinkEstimate,
    },
    /// The links to exactly these peers have been slow for long.
    SlowLinks {
        /// The peers, at most [`MAX_TOLD`](crate::topology::live::MAX_TOLD).
        peers: Vec<NodeId>,
    },
    /// A client has connected.
    ClientConnected {
        /// The client.
        client: ClientId,
        /// The owners that it holds while it is connected, at most
        /// [`MAX_OWNERS_PER_CLIENT`](crate::lifetime::MAX_OWNERS_PER_CLIENT).
        owners: Vec<Owner>,
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
        /// The run of the shard.
        run: ShardRun,
        /// The time at which the store requested the session; [`Time::NEVER`] if the shard runs in the process of the store.
        asked_at: Time,
        /// The version of the protocol in which both sides speak.
        version: Version,
    },
    /// A shard has answered a ping of its present session.
    ShardAnswered {
        /// Its index in the configured list.
        shard: usize,
        /// The time at which the store sent the ping.
        pinged_at: Time,
    },
    /// A session with a shard is lost.
    ShardDown {
        /// Its index in the configured list.
        shard: usize,
    },
    /// A session with a shard could not begin, or has ended with an error. It follows `ShardDown`.
    ShardFailed {
        /// Its index in the configured list.
        shard: usize,
        /// The reason.
        error: Error,
    },
    /// The data plane could not connect to a store, or that store has refused this one.
    PeerFailed {
        /// The store.
        peer: NodeId,
        /// The reason.
        error: Error,
    },
    /// The data plane has connected to a store for which the last attempt had failed.
    PeerReached {
        /// The store.
        peer: NodeId,
    },
    /// A client or a store was refused, because it has no version of the protocol in common with
    /// this store.
    Incompatible {
        /// The reason.
        error: Error,
    },
    /// A shard sends a message.
    FromShard {
        /// Its index in the configured list.
        shard: usize,
        /// The message of the shard.
        message: ToStore,
    },
    /// A pull has ended and no longer touches the copy's memory. Exactly one for each `StartPull`.
    PullEnded {
        /// The pull of a `StartPull`.
        pull: PullId,
        /// The number of leading bytes of the copy that are valid now.
        valid_bytes: u64,
        /// The outcome of the pull.
        outcome: PullOutcome,
    },
    /// Another node requests a copy. Answered by `ServeAccepted` or `ServeRefused`: at once, or, if
    /// `awaits_hop`, when the hop of this output begins here.
    ServeRequested {
        /// A number that the shell chose.
        serve: ServeId,
        /// The requesting node, by the name that it gave in the handshake.
        peer: NodeId,
        /// The requested object.
        id: ObjectId,
        /// The put that it must be of.
        put: PutId,
        /// `true` if the object is the output of a hop, which may not have begun yet.
        awaits_hop: bool,
    },
    /// A serve has ended, accepted or not, and no longer touches the copy's memory. Exactly one for
    /// each `ServeRequested`.
    ServeEnded {
        /// The serve of a `ServeRequested`.
        serve: ServeId,
    },
    /// The comparison asked for by [`Effect::Compare`](super::Effect::Compare) is done.
    Compared {
        /// The local copy that was compared.
        copy: CopyId,
        /// `true` if both copies have the same bytes; `None` if the comparison failed.
        equal: Option<bool>,
    },
    /// A spill file is complete, or could not be written and is removed. The shell no longer reads
    /// the copies. Exactly one for each `Spill`.
    Spilled {
        /// The file.
        file: SpillFile,
        /// The reason of a failure.
        outcome: Result<(), SpillFault>,
    },
    /// A copy was read from its spill file, or could not be read. The shell no longer touches its
    /// memory. Exactly one for each `Load`.
    Loaded {
        /// The copy.
        copy: CopyId,
        /// The reason of a failure.
        outcome: Result<(), SpillFault>,
    },
    /// A combination has ended and no longer touches any memory. Exactly one for each
    /// `StartCombine`.
    CombineEnded {
        /// The combination of a `StartCombine`.
        combine: CombineId,
        /// The number of leading bytes of the copy that are valid now, counted from its beginning.
        valid_bytes: u64,
        /// The outcome of the combination.
        outcome: CombineOutcome,
    },
    /// A coordinator elsewhere requests a hop. Answered by `HopReport`s: at most `Complete`, and
    /// any time `Failed`, after which there are no more.
    HopRequested {
        /// A number that the shell chose.
        hosting: HostingId,
        /// The inputs, the operation and the output.
        hop: Hop,
    },
    /// The coordinator of a hop does not need it any more, or is gone. Exactly one for each
    /// `HopRequested`.
    HopReleased {
        /// The number of the `HopRequested`.
        hosting: HostingId,
    },
    /// Another node has reported on a hop that this store directs, or is lost. No report comes
    /// after `Failed` or `EndHop`.
    HopReported {
        /// The hop of a `StartHop`.
        hop: HopId,
        /// The progress of the hop.
        report: HopReport,
    },
    /// An event of collectives.
    Collective(CollectiveEvent),
    /// Time has passed; see [`Node::next_deadline`](crate::node::Node::next_deadline).
    Tick,
    /// The daemon was asked to move its pinned copies to other stores before it stops. Answered by
    /// [`Effect::DrainEnded`](super::Effect::DrainEnded).
    Drain {
        /// The time that the drain may take.
        timeout: Duration,
    },
    /// The daemon was asked to stop: calls that wait are answered, new ones refused.
    ShutDown,
}
