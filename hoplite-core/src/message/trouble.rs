use std::time::Duration;

use super::SpillTrouble;
use crate::error::Missing;
use crate::error::Operation;
use crate::fault::Fault;
use crate::id::NodeId;

/// Call that has waited for [`LONG_WAIT`](crate::node::LONG_WAIT).
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct LongWait {
    pub operation: Operation,
    pub waited: Duration,
    pub missing: Option<Missing>,
}

/// Directory shard without a session, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct ShardFault {
    /// Index in the configured list.
    pub shard: usize,
    pub fault: Fault,
}

/// Peer that refuses this store, or is unreachable.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct PeerFault {
    pub node: NodeId,
    pub fault: Fault,
}

/// Present troubles of a store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "most names say it")]
pub struct Troubles {
    /// Calls, transfers, reduces and their steps that wait for memory.
    pub full_waiters: usize,
    /// Calls that have waited for [`LONG_WAIT`](crate::node::LONG_WAIT).
    pub long_waits: usize,
    /// At most [`MAX_LONG_WAITS`](crate::node::MAX_LONG_WAITS) of the `long_waits` calls.
    pub waits: Vec<LongWait>,
    /// Directory shards without a session.
    pub shards: Vec<ShardFault>,
    /// Stores that lately refused this one, or were unreachable.
    pub peers: Vec<PeerFault>,
    pub spill: Vec<SpillTrouble>,
    /// Last refusal of a client or store without a common protocol version, if recent.
    pub incompatible: Option<Fault>,
}
