//! The messages of a session between a store and a shard. The wire form is in
//! `proto/hoplite/v1/directory.proto`.
//!
//! This file has the types of both directions; the messages are in `to_shard` and `to_store`.

mod inline;
mod replication;
mod to_shard;
mod to_store;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::vocabulary::id::{Incarnation, NodeId, ObjectId, PutId};
use crate::vocabulary::link::Uplink;
use crate::vocabulary::metadata::Metadata;
use crate::vocabulary::place::Path;
use crate::vocabulary::placement::ShardList;

pub use inline::InlineBytes;
pub use replication::*;
pub use to_shard::*;
pub use to_store::*;

/// Correlates a request of one store with its answers; unique among that store's open requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// One sender slot, granted by one shard to one receiver. Unique per run of the shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GrantId(pub u64);

/// One run of a shard: a random number, chosen at the start. A shard knows nothing of its earlier
/// runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardRun(pub u64);

/// The data address of a store without peers, which has no data plane.
pub const UNREACHABLE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// The identity of a store, sent at the start of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeInfo {
    /// The name of the node.
    pub node: NodeId,
    /// The run of the store.
    pub incarnation: Incarnation,
    /// The address of its data plane; [`UNREACHABLE`] without one.
    pub data_address: SocketAddr,
    /// Labels of the operator's, such as `rack=7`; at most 32.
    pub labels: Vec<(String, String)>,
    /// The shards of the cluster, as the store names them.
    pub shards: ShardList,
}

/// The completeness of an object at a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LocationState {
    /// A worker of the node is still writing the object: the copy needs no transfer to become
    /// complete.
    Producing,
    /// It is being pulled from another node.
    Partial,
    /// All of it is there.
    Complete,
}

/// The lifetime of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Retention {
    /// Made by `Put`, or promoted when the last pinned copy was lost: stays until `Delete`.
    Pinned,
    /// Made by `Get`: evicted for room.
    Evictable,
}

/// The place of a store, by one version of the measured places.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Placed {
    /// The version; the highest one counts. Zero, which is never sent, if nothing was measured.
    pub version: u64,
    /// The groups, by labels or by measurements.
    pub path: Path,
    /// The capacity of the uplinks at each level, if it was measured for any store.
    pub uplink: Uplink,
}

impl Placed {
    /// Merges two places of one version. A restarted shard may know less than others, and two
    /// probes in one millisecond share a version. The result only grows, so exchanges come to an
    /// end.
    pub(crate) fn or_larger(self, other: Self) -> Self {
        Self { path: self.path.max(other.path), uplink: self.uplink.max(other.uplink), ..self }
    }
}

/// One location, as told to subscribers and tools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// The node that has the copy.
    pub node: NodeId,
    /// The address of its data plane.
    pub data_address: SocketAddr,
    /// The completeness of the copy.
    pub state: LocationState,
    /// The lifetime of the copy.
    pub retention: Retention,
    /// The node from which the copy is being pulled.
    pub pulling_from: Option<NodeId>,
    /// The groups that the node is in.
    pub path: Path,
    /// The peers to which the links of the node have been slow for long.
    pub slow_peers: Vec<NodeId>,
}

/// All that a shard knows about an object at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Locations {
    /// The id of the object.
    pub id: ObjectId,
    /// The put and its size; `None` if no such object is known.
    pub object: Option<ObjectSummary>,
    /// The copies, by node id.
    pub locations: Vec<Location>,
}

/// An object, apart from its locations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectSummary {
    /// The put that the locations have.
    pub put: PutId,
    /// The size in bytes.
    pub size_bytes: u64,
    /// The metadata of the put.
    pub metadata: Metadata,
    /// `true` if the shard itself holds the bytes.
    pub inline: bool,
    /// `true` if all copies are lost.
    pub lost: bool,
}

impl Locations {
    /// Returns the number of pinned and complete copies.
    pub fn pinned_copies(&self) -> usize {
        let is_kept =
            |copy: &&Location| copy.retention == Retention::Pinned && copy.state == LocationState::Complete;
        self.locations.iter().filter(is_kept).count()
    }

    /// Returns `true` if a `Get` need not wait for a producer.
    pub fn is_available(&self) -> bool {
        let inline = self.object.as_ref().is_some_and(|object| object.inline);
        inline || self.locations.iter().any(|location| location.state == LocationState::Complete)
    }
}
