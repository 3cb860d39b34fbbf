//! The effects that the shell of a node performs.

use std::net::SocketAddr;

use bytes::Bytes;

use super::{
    CallId, ClientId, CombineId, CombineInput, CopyId, DrainReport, Hop, HopId, HopReport, HostingId,
    Inspection, Producer, PullId, Response, ServeId, SpillFile, SpillItem, SpillRecord, Urgency,
};
use crate::collective::CollectiveEffect;
use crate::dtype::Dtype;
use crate::error::Error;
use crate::extent::Extent;
use crate::id::{NodeId, ObjectId, PutId};
use crate::reduce::ReduceOp;
use crate::shard::ToShard;

/// One thing that the shell must do. The shell keeps the order of effects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Answer a client.
    Reply {
        /// The client that asked.
        client: ClientId,
        /// The call.
        call: CallId,
        /// The answer, or why there is none.
        response: Result<Response, Error>,
    },
    /// Report `Followed` when more than this number of leading bytes of a copy are valid, or it is
    /// complete, or fails.
    Follow {
        /// The client.
        client: ClientId,
        /// The call that `Followed` names.
        call: CallId,
        /// The copy to watch.
        copy: CopyId,
        /// The number of valid bytes that the client knows of.
        beyond_bytes: u64,
    },
    /// Send an inspection to these shards, answer the client with their answers together, and
    /// report `Inspected`.
    Inspect {
        /// The client that calls.
        client: ClientId,
        /// The call to answer.
        call: CallId,
        /// The question.
        inspection: Inspection,
        /// The indices of the shards in the configured list.
        shards: Vec<usize>,
    },
    /// End a `Follow` or an `Inspect`.
    CallEnded {
        /// The client that called.
        client: ClientId,
        /// The call of the `Follow` or `Inspect`.
        call: CallId,
    },
    /// Send a message to a shard.
    ToShard {
        /// Its index in the configured list.
        shard: usize,
        /// The message to send.
        message: ToShard,
        /// If set, the message is a `Publish` whose `inline` the shell fills with this copy's
        /// bytes.
        inline_from: Option<CopyId>,
        /// The urgency of the message.
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
        /// The client or the transfer that writes the bytes.
        producer: Producer,
    },
    /// Write all bytes of the object into a copy.
    Fill {
        /// The copy to fill.
        copy: CopyId,
        /// All bytes of the object.
        bytes: Bytes,
    },
    /// Publish in the header of a copy that all its bytes are valid, and wake its followers.
    CopyCompleted {
        /// The copy that is complete.
        copy: CopyId,
    },
    /// Wake the followers of a copy that will never be complete, or was deleted, and end its
    /// serves.
    CopyFailed {
        /// The copy that has failed.
        copy: CopyId,
        /// The error that followers get.
        error: Error,
    },
    /// Free the space of a copy without users. A copy that a spill file has may be opened again.
    CopyClosed {
        /// The copy that is gone.
        copy: CopyId,
    },
    /// Write copies to a new spill file. Report `Spilled` when their bytes are on the disk.
    Spill {
        /// The new file.
        file: SpillFile,
        /// The copies, in the order of their records.
        items: Vec<SpillItem>,
    },
    /// Read all bytes of a copy from its record, and check them. Report `Loaded`.
    Load {
        /// The copy to fill.
        copy: CopyId,
        /// The size of the object.
        size_bytes: u64,
        /// The record.
        record: SpillRecord,
    },
    /// Remove a spill file, of which nothing is needed any more.
    RemoveSpillFile {
        /// The file.
        file: SpillFile,
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
    /// Serve a copy from the requested offset.
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
    /// Compare a complete local copy with the copy of another put of the same id at another node.
    /// Report `Compared`.
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
    /// Fill a copy from `offset_bytes` with the combination of `inputs`. Earlier bytes do not
    /// matter.
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
    /// Request a hop from another node, until `EndHop`, and pass its reports on.
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
    /// Tell a node, if it can hear it, that its hop is not needed any more.
    EndHop {
        /// The hop to end.
        hop: HopId,
    },
    /// Report a hop to its coordinator.
    HopReport {
        /// The number of the `HopRequested`.
        hosting: HostingId,
        /// The progress of the hop.
        report: HopReport,
    },
    /// The drain has ended. After success, or if the daemon was asked to end, the shell stops the store.
    DrainEnded {
        /// The result.
        report: DrainReport,
    },
    /// An effect of collectives.
    Collective(CollectiveEffect),
}
