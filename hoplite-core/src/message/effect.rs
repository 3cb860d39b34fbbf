use std::net::SocketAddr;

use bytes::Bytes;

use super::{
    CallId, ClientId, CombineId, CombineInput, CopyId, DrainReport, Hop, HopId, HopReport,
    HostingId, Inspection, Producer, PullId, Response, ServeId, SpillFile, SpillItem, SpillRecord,
    SpilledObject, Unrecovered, Urgency,
};
use crate::collective::CollectiveEffect;
use crate::dtype::Dtype;
use crate::error::Error;
use crate::extent::Extent;
use crate::id::{NodeId, ObjectId, PutId};
use crate::reduce::ReduceOp;
use crate::shard::{ShardRun, ToShard};

/// Action for the shell: the daemon around the node. The shell keeps the order of effects.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of the fields say it")]
pub enum Effect {
    Reply {
        client: ClientId,
        call: CallId,
        response: Result<Response, Error>,
    },
    /// Report `Followed` when a copy has more than `beyond_bytes` valid leading bytes, is complete,
    /// or fails.
    Follow {
        client: ClientId,
        call: CallId,
        copy: CopyId,
        beyond_bytes: u64,
    },
    /// Query these shards, answer the client with their combined answers, and report `Inspected`.
    Inspect {
        client: ClientId,
        call: CallId,
        inspection: Inspection,
        shards: Vec<usize>,
    },
    /// End a `Follow` or an `Inspect`.
    CallEnded {
        client: ClientId,
        call: CallId,
    },
    ToShard {
        shard: usize,
        message: ToShard,
        /// Makes the shell fill the `inline` of a `Publish` with this copy's bytes.
        inline_from: Option<CopyId>,
        urgency: Urgency,
    },
    /// Initialise the header of a new copy without valid bytes.
    CopyOpened {
        copy: CopyId,
        extent: Extent,
        size_bytes: u64,
        producer: Producer,
    },
    Fill {
        copy: CopyId,
        bytes: Bytes,
    },
    /// Publish in the copy's header that all bytes are valid, and wake followers.
    CopyCompleted {
        copy: CopyId,
    },
    /// Wake followers of a copy that was deleted or cannot become complete, and end its serves.
    CopyFailed {
        copy: CopyId,
        error: Error,
    },
    /// Free the memory of a copy without users. A copy in a spill file may be opened again.
    CopyClosed {
        copy: CopyId,
    },
    /// Write copies to a new spill file. Report `Spilled` when they are on the disk.
    Spill {
        file: SpillFile,
        /// Copies, in the order of their records.
        items: Vec<SpillItem>,
    },
    /// Read a copy from its record, and check all bytes. Report `Loaded`.
    Load {
        copy: CopyId,
        size_bytes: u64,
        record: SpillRecord,
    },
    RemoveSpillFile {
        file: SpillFile,
    },
    /// With `--recover`, append the index to a complete spill file for a later run.
    IndexSpillFile {
        file: SpillFile,
        objects: Vec<SpilledObject>,
    },
    /// Note in the file's index that no later run may recover this record.
    RetireSpillRecord {
        record: SpillRecord,
    },
    /// Note a session with this run of a shard, which knows in a later recovery which objects were
    /// deleted.
    NoteShardRun {
        run: ShardRun,
    },
    /// Log that an object of a killed store does not come back.
    Unrecovered {
        id: ObjectId,
        put: PutId,
        reason: Unrecovered,
    },
    StartPull {
        pull: PullId,
        copy: CopyId,
        id: ObjectId,
        put: PutId,
        size_bytes: u64,
        sender: NodeId,
        sender_address: SocketAddr,
        offset_bytes: u64,
        /// `true` if another node has the object: the shell leaves a silent sender after
        /// [`SHORT_SILENCE`](crate::stall::SHORT_SILENCE).
        is_replaceable: bool,
    },
    /// End a pull soon; it still reports `PullEnded`.
    CancelPull {
        pull: PullId,
    },
    ServeAccepted {
        serve: ServeId,
        copy: CopyId,
        size_bytes: u64,
    },
    /// Report a failed read as `RecordFailed`.
    ServeSpilled {
        serve: ServeId,
        copy: CopyId,
        size_bytes: u64,
        record: SpillRecord,
    },
    ServeRefused {
        serve: ServeId,
    },
    /// Compare a complete local copy with another node's put of the id, and report `Compared`.
    Compare {
        copy: CopyId,
        id: ObjectId,
        winner: PutId,
        /// Node with a copy of the id's first put, and its data plane's address.
        holder: (NodeId, SocketAddr),
    },
    /// Log that an accepted put has lost after a network split.
    PutLost {
        id: ObjectId,
        put: PutId,
        winner: PutId,
    },
    /// Fill a copy from `offset_bytes` on with the combined `inputs`, in this order.
    StartCombine {
        combine: CombineId,
        copy: CopyId,
        op: ReduceOp,
        dtype: Dtype,
        offset_bytes: u64,
        inputs: Vec<CombineInput>,
    },
    /// Cancel a combination. `CombineEnded` still follows.
    CancelCombine {
        combine: CombineId,
    },
    /// Request a hop (reduce step) from another node. Forward its reports until `EndHop`.
    StartHop {
        hop: HopId,
        node: NodeId,
        address: SocketAddr,
        spec: Hop,
    },
    /// End a step of a reduce. The daemon tells the performing node, if reachable.
    EndHop {
        hop: HopId,
    },
    HopReport {
        hosting: HostingId,
        report: HopReport,
    },
    /// Begin sessions with the new shards of [`Node::shards`](crate::node::Node::shards), and end
    /// those with shards that this store has left. Shards keep their indices.
    ShardsChanged {
        added: Vec<usize>,
        left: Vec<usize>,
    },
    /// The drain has ended. The shell stops the store after success, or if the daemon was asked to
    /// end.
    DrainEnded {
        report: DrainReport,
    },
    Collective(CollectiveEffect),
}
