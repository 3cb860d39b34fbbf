//! Messages between a store and a directory shard. Their wire form is in
//! `proto/hoplite/v1/directory.proto`.

mod inline;
mod replication;
mod to_shard;
mod to_store;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::vocabulary::id::{Incarnation, NodeId, ObjectId, PutId};
use crate::vocabulary::link::Uplink;
use crate::vocabulary::metadata::Metadata;
use crate::vocabulary::place::Path;
use crate::vocabulary::placement::ShardList;
use crate::vocabulary::version::Version;

pub use inline::InlineBytes;
pub use replication::*;
pub use to_shard::*;
pub use to_store::*;

/// Number by which a store matches answers to its request; unique among its open requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Names a slot: a receiver's right to pull an object from one sender. Unique per run of the shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GrantId(pub u64);

/// Random number of a shard's run. A shard knows nothing of its earlier runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardRun(pub u64);

/// Data address of a store that accepts no connections of other stores.
pub const UNREACHABLE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// Identity of a store, sent at the start of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub struct NodeInfo {
    pub node: NodeId,
    /// Secret number of the store's run.
    pub incarnation: Incarnation,
    /// Address for connections of other stores, or [`UNREACHABLE`].
    pub data_address: SocketAddr,
    /// Operator's labels, such as `rack=7`; at most 32.
    pub labels: Vec<(String, String)>,
    /// Directory shards that the store uses: the configured ones, or a newer list.
    pub shards: ShardList,
    /// In the hello, the store's newest protocol version; later, the session's version.
    pub version: Version,
}

/// Completeness of a node's copy of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LocationState {
    /// A client on the node is still writing the object.
    Producing,
    /// The node is pulling the object.
    Partial,
    /// The copy has all bytes.
    Complete,
}

/// Rule by which a store keeps a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Retention {
    /// Stays until the object ends. A client put the copy here, or a shard ordered the store to
    /// keep it.
    Pinned,
    /// May be evicted when the store needs memory.
    Evictable,
}

/// A store's groups, as a probe measured them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Placed {
    /// Version of the measurement. The highest version counts. Zero, which is never sent, means
    /// unmeasured.
    pub version: u64,
    /// Groups by labels or measurements.
    pub path: Path,
    /// Measured capacity of the groups' uplinks at each level.
    pub uplink: Uplink,
}

impl Placed {
    /// Combines two measurements with one version by their greater values, so that all sides soon
    /// agree: a restarted shard may know less, and two probes may share a version.
    pub(crate) fn or_larger(self, other: Self) -> Self {
        Self { path: self.path.max(other.path), uplink: self.uplink.max(other.uplink), ..self }
    }
}

/// A node with a copy of an object, for subscribers and tools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// Node with the copy.
    pub node: NodeId,
    /// Address for connections of other stores.
    pub data_address: SocketAddr,
    /// Copy's completeness.
    pub state: LocationState,
    /// `Pinned` if the store must keep the copy.
    pub retention: Retention,
    /// Current sender of the object to this node.
    pub pulling_from: Option<NodeId>,
    /// Node's groups.
    pub path: Path,
    /// Peers to which this node's links are persistently slow.
    pub slow_peers: Vec<NodeId>,
}

/// A shard's knowledge of an object and its copies.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub struct Locations {
    pub id: ObjectId,
    /// `None` if the shard does not know the object.
    pub object: Option<ObjectSummary>,
    /// Copies, sorted by node id.
    pub locations: Vec<Location>,
}

/// Properties of an object without its locations.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub struct ObjectSummary {
    /// Put that made the object.
    pub put: PutId,
    pub size_bytes: u64,
    pub metadata: Metadata,
    /// `true` if the shard itself holds the bytes.
    pub inline: bool,
    /// `true` if all copies are lost.
    pub lost: bool,
    /// Creator and age; only in listings and descriptions.
    pub origin: Option<Origin>,
}

/// Origin of an object, as this run of the shard knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// Node that first published the object.
    pub creator: NodeId,
    /// Time since the creator published the object.
    pub age: Duration,
    /// Time since a node last got the object from another node or from a shard.
    pub unused: Option<Duration>,
}

impl Locations {
    /// Counts the pinned and complete copies.
    pub fn pinned_copies(&self) -> usize {
        let is_kept = |copy: &&Location| {
            copy.retention == Retention::Pinned && copy.state == LocationState::Complete
        };
        self.locations.iter().filter(is_kept).count()
    }

    /// Returns `true` if a `Get` need not wait for a producer: there is a complete copy, or the
    /// inline bytes.
    pub fn is_available(&self) -> bool {
        let inline = self.object.as_ref().is_some_and(|object| object.inline);
        inline || self.locations.iter().any(|location| location.state == LocationState::Complete)
    }
}
