//! The troubles of a store, for people.

use std::time::Duration;

use super::SpillTrouble;
use crate::error::Missing;
use crate::error::Operation;
use crate::fault::Fault;
use crate::id::NodeId;

/// A call that has waited for long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LongWait {
    /// The call.
    pub operation: Operation,
    /// The time that it has waited so far.
    pub waited: Duration,
    /// The thing that it waits for, if that is known.
    pub missing: Option<Missing>,
}

/// A directory shard with which this store has no session, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardFault {
    /// Its index in the configured list.
    pub shard: usize,
    /// The last failure.
    pub fault: Fault,
}

/// A store that refuses this one, or cannot be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerFault {
    /// The store.
    pub node: NodeId,
    /// The last failure.
    pub fault: Fault,
}

/// The troubles of a store now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Troubles {
    /// The number of calls, fetches, hops and reduces that wait for room.
    pub full_waiters: usize,
    /// The number of calls of clients that have waited for [`LONG_WAIT`](crate::node::LONG_WAIT).
    pub long_waits: usize,
    /// Some of these calls: at most [`MAX_LONG_WAITS`](crate::node::MAX_LONG_WAITS).
    pub waits: Vec<LongWait>,
    /// The directory shards with which there is no session.
    pub shards: Vec<ShardFault>,
    /// The stores that have refused this one lately, or could not be reached.
    pub peers: Vec<PeerFault>,
    /// The directories of spill files that cannot be used now.
    pub spill: Vec<SpillTrouble>,
    /// The last refusal of a client or store of an incompatible version, if it is recent.
    pub incompatible: Option<Fault>,
}
