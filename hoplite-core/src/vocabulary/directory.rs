//! The messages between a store and a shard, and the types that both directions use.
//!
//! The wire form is in `proto/hoplite/v1/directory.proto`.

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

/// Matches answers to a request; unique among a store's open requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// A sender slot that a shard granted to a receiver; unique per run of the shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GrantId(pub u64);

/// One run of a shard, a random number. A shard knows nothing of its earlier runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardRun(pub u64);

/// The data address of a store without a data plane.
pub const UNREACHABLE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// The identity of a store, sent at the start of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeInfo {
    /// The node's name.
    pub node: NodeId,
    /// The run of the store.
    pub incarnation: Incarnation,
    /// Its data plane, or [`UNREACHABLE`].
    pub data_address: SocketAddr,
    /// The operator's labels, such as `rack=7`; at most 32.
    pub labels: Vec<(String, String)>,
    /// The shards, as the store names them.
    pub shards: ShardList,
    /// The newest version of the protocol that the store speaks, and after its hello the version of
    /// the session.
    pub version: Version,
}

/// The completeness of an object at a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LocationState {
    /// A worker of the node is still writing it, so it needs no transfer.
    Producing,
    /// It is being pulled.
    Partial,
    /// It has all bytes.
    Complete,
}

/// The lifetime of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Retention {
    /// Stays until `Delete`: put here, or promoted after the last pinned copy was lost.
    Pinned,
    /// May be evicted.
    Evictable,
}

/// A store's place in one version of the measured places.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Placed {
    /// The highest version counts. Zero, which is never sent, means unmeasured.
    pub version: u64,
    /// The groups, by labels or by measurements.
    pub path: Path,
    /// The measured capacity of the uplinks at each level.
    pub uplink: Uplink,
}

impl Placed {
    /// Merges two places of one version: a restarted shard may know less, and two probes may share
    /// a version. The result only grows, so exchanges end.
    pub(crate) fn or_larger(self, other: Self) -> Self {
        Self { path: self.path.max(other.path), uplink: self.uplink.max(other.uplink), ..self }
    }
}

/// A location, for subscribers and tools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// The node.
    pub node: NodeId,
    /// Its data plane.
    pub data_address: SocketAddr,
    /// The copy's completeness.
    pub state: LocationState,
    /// The copy's lifetime.
    pub retention: Retention,
    /// The sender of the running pull.
    pub pulling_from: Option<NodeId>,
    /// The node's groups.
    pub path: Path,
    /// The peers over persistently slow links.
    pub slow_peers: Vec<NodeId>,
}

/// A shard's knowledge of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Locations {
    /// The object.
    pub id: ObjectId,
    /// `None` if the object is unknown.
    pub object: Option<ObjectSummary>,
    /// The copies, by node id.
    pub locations: Vec<Location>,
}

/// An object without its locations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectSummary {
    /// The put.
    pub put: PutId,
    /// The size in bytes.
    pub size_bytes: u64,
    /// The put's metadata.
    pub metadata: Metadata,
    /// `true` if the shard itself holds the bytes.
    pub inline: bool,
    /// `true` if all copies are lost.
    pub lost: bool,
    /// The creator and the age, in listings and descriptions.
    pub origin: Option<Origin>,
}

/// The origin of an object, as far as a shard knows. A restarted shard learns of objects again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The node that published the object first.
    pub creator: NodeId,
    /// The time since that publication.
    pub age: Duration,
    /// The time since a node last got the object from another node or from the shard.
    pub unused: Option<Duration>,
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
