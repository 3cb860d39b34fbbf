use std::time::Duration;

use super::{
    CallId, ClientId, CombineId, CombineOutcome, CopyId, Hop, HopId, HopReport, HostingId, PullId,
    Recovered, Request, ServeId, SpillFault, SpillFile, SpillRecord,
};
use crate::collective::CollectiveEvent;
use crate::error::Error;
use crate::id::{NodeId, ObjectId, PutId};
use crate::lifetime::Owner;
use crate::plan::link::LinkEstimate;
use crate::shard::{PullOutcome, ShardRun, ToStore};
use crate::time::Time;
use crate::version::Version;

#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of the fields say it")]
pub enum Event {
    /// A client's request, whose counts and sizes the daemon has checked.
    Request {
        client: ClientId,
        call: CallId,
        request: Request,
    },
    /// A followed copy has more bytes, is complete, or has failed. At most one for each
    /// [`Effect::Follow`](super::Effect::Follow), and none after `CallEnded`.
    Followed {
        client: ClientId,
        call: CallId,
        /// Valid leading bytes, or the error that ends the progress.
        progress: Result<u64, Error>,
    },
    /// An `Inspect` has ended. At most one for each, and none after `CallEnded`.
    Inspected {
        client: ClientId,
        call: CallId,
    },
    Measured {
        link: LinkEstimate,
    },
    /// Links to exactly these peers have been slow for long.
    SlowLinks {
        /// Peers, at most [`MAX_SLOW_PEERS`](crate::topology::live::MAX_SLOW_PEERS).
        peers: Vec<NodeId>,
    },
    ClientConnected {
        client: ClientId,
        user: u32,
        /// Owner names that keep objects alive while this client is connected, at most
        /// [`MAX_OWNERS_PER_CLIENT`](crate::lifetime::MAX_OWNERS_PER_CLIENT).
        owners: Vec<Owner>,
    },
    ClientGone {
        client: ClientId,
    },
    ShardUp {
        /// Shard's index in the configured list.
        shard: usize,
        run: ShardRun,
        /// Time when the store requested the session; [`Time::NEVER`] for a shard in the store's
        /// process.
        asked_at: Time,
        version: Version,
    },
    ShardAnswered {
        shard: usize,
        pinged_at: Time,
    },
    ShardDown {
        shard: usize,
    },
    /// A session could not begin, or has failed. Follows `ShardDown`.
    ShardFailed {
        shard: usize,
        error: Error,
    },
    /// A store is unreachable, or refuses this one.
    PeerFailed {
        peer: NodeId,
        error: Error,
    },
    PeerReached {
        peer: NodeId,
    },
    /// A client or store without a common protocol version was refused.
    Incompatible {
        error: Error,
    },
    FromShard {
        shard: usize,
        message: ToStore,
    },
    /// The pull no longer touches memory. Exactly one for each `StartPull`.
    PullEnded {
        pull: PullId,
        valid_bytes: u64,
        outcome: PullOutcome,
    },
    /// Another node requests a copy. Answered by `ServeAccepted`, `ServeSpilled` or `ServeRefused`:
    /// at once, or, if `awaits_hop`, when the reduce step that makes the copy begins here.
    ServeRequested {
        serve: ServeId,
        /// Name that the node gave in its handshake.
        peer: NodeId,
        id: ObjectId,
        put: PutId,
        /// `true` for the output of a reduce step.
        awaits_hop: bool,
    },
    /// A serve has ended, accepted or not, and no longer touches memory. Exactly one for each
    /// `ServeRequested`.
    ServeEnded {
        serve: ServeId,
    },
    /// Result of [`Effect::Compare`](super::Effect::Compare); `None` if it failed.
    Compared {
        copy: CopyId,
        equal: Option<bool>,
    },
    /// A spill file is complete, or has failed and is removed. The shell no longer reads the
    /// copies.
    Spilled {
        file: SpillFile,
        outcome: Result<(), SpillFault>,
    },
    /// A read from a spill file has ended, and no longer touches the copy's memory.
    Loaded {
        copy: CopyId,
        outcome: Result<(), SpillFault>,
    },
    /// A serve could not read a spilled copy.
    RecordFailed {
        copy: CopyId,
        record: SpillRecord,
        fault: SpillFault,
    },
    /// Spill files of killed stores. At most once, before any client or shard is connected.
    Recover(Recovered),
    /// The combination no longer touches memory. Exactly one for each `StartCombine`.
    CombineEnded {
        combine: CombineId,
        valid_bytes: u64,
        outcome: CombineOutcome,
    },
    /// A remote coordinator requests a hop (reduce step). Answered by at most one `Complete`.
    /// `Failed` may come at any time, as the last report.
    HopRequested {
        hosting: HostingId,
        hop: Hop,
    },
    /// The store that requested a hop is gone, or no longer needs the output. Exactly one for each
    /// `HopRequested`.
    HopReleased {
        hosting: HostingId,
    },
    /// Report on a hop that this store coordinates. None comes after `Failed` or `EndHop`.
    HopReported {
        hop: HopId,
        report: HopReport,
    },
    Collective(CollectiveEvent),
    /// The time of [`Node::next_deadline`](crate::node::Node::next_deadline) has come.
    Tick,
    /// Move pinned copies to other stores. Answered by
    /// [`Effect::DrainEnded`](super::Effect::DrainEnded).
    Drain {
        timeout: Duration,
    },
    /// Stop: answer waiting calls, and refuse new ones.
    ShutDown,
}
