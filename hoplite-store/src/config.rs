//! Configuration with which a store starts.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use hoplite_core::node::{NodeConfig, SpillConfig};
use hoplite_core::placement::ShardMap;
use hoplite_core::plan::collective::SchedulePreference;
use hoplite_core::topology::Place;
use hoplite_core::{ClusterId, Limits, NodeId, Version};
use hoplite_daemon::Tracer;
use hoplite_net::Credentials;
use hoplite_shm::Backing;

/// Location of the directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Directory {
    /// One shard, in this process.
    Embedded {
        /// The address to listen on, so that other stores can join; `None` if no other store can
        /// join.
        listen: Option<SocketAddr>,
        /// The address of the shard's dashboard, if it has one.
        dashboard: Option<SocketAddr>,
    },
    /// Shards in other processes: their addresses as `HOST:PORT`, the same list at every store of
    /// the cluster.
    Shards(Vec<String>),
}

/// The configuration of a store.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// The name of the store's node, unique in the cluster.
    pub node: NodeId,
    /// The name of the cluster.
    pub cluster: ClusterId,
    /// The newest version of the protocol that the store speaks.
    pub newest_version: Version,
    /// The address of the data plane; port 0 for any free port. `None` for a store without peers,
    /// which has no data plane.
    pub listen: Option<SocketAddr>,
    /// The keys and certificates with which daemons authenticate each other.
    pub credentials: Credentials,
    /// The address of the data plane for other stores, `HOST:PORT`, if it differs from `listen`. A
    /// name is resolved again before each session with a shard.
    pub advertise: Option<String>,
    /// The location of the directory.
    pub directory: Directory,
    /// The Unix socket for workers.
    pub socket: PathBuf,
    /// The permissions of the socket.
    pub socket_mode: u32,
    /// The user who owns the socket; by default the user of the process.
    pub socket_owner: Option<u32>,
    /// The group of the socket; by default the group of the process.
    pub socket_group: Option<u32>,
    /// The users who may connect as clients.
    pub clients: ClientRules,
    /// The size of the arena.
    pub memory_bytes: u64,
    /// The kind of memory that backs the arena.
    pub backing: Backing,
    /// The time at which the arena's pages are first touched.
    pub prefault: Prefault,
    /// Bandwidth and latency of links to other stores. Unset values are measured.
    pub links: LinkSettings,
    /// The schedule of allreduces that this store coordinates.
    pub allreduce_schedule: SchedulePreference,
    /// The number of copies of an object whose put does not say how many it wants.
    pub replicas: u8,
    /// The directories to which objects move when the arena is full.
    pub spill: SpillSettings,
    /// The time for which a store that is asked to stop moves its pinned copies to other stores first.
    pub drain: Option<Duration>,
    /// Labels for the operator's use, shown by the directory.
    pub labels: Vec<(String, String)>,
    /// The limits.
    pub limits: Limits,
    /// The tracer that begins spans, if traces are exported.
    pub tracer: Option<Tracer>,
}

impl StoreConfig {
    /// Returns the settings of the node of an empty store.
    pub(crate) fn of_node(
        &self,
        shards: &[String],
        capacity_bytes: u64,
        spill: Option<SpillConfig>,
        seed: u64,
    ) -> NodeConfig {
        NodeConfig {
            node: self.node.clone(),
            path: Place::of_labels(&self.labels).path,
            capacity_bytes,
            limits: self.limits.clone(),
            shards: ShardMap::new(shards),
            allreduce_schedule: self.allreduce_schedule,
            replicas: self.replicas,
            spill,
            seed,
        }
    }
}

/// The users of this machine who may connect as clients. Root and the store's own user may always
/// do everything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClientRules {
    /// The permitted users. If `users` and `groups` are both `None`, the permissions of the socket
    /// alone decide.
    pub users: Option<Vec<u32>>,
    /// The groups whose members are permitted.
    pub groups: Option<Vec<u32>>,
    /// The users who may only read. This list overrides the other two.
    pub readers: Vec<u32>,
}

/// Bandwidth and latency of the links between stores, for the planning of reduces. Unset values are
/// measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LinkSettings {
    /// The bandwidth of one stream between two nodes.
    pub bytes_per_second: Option<u64>,
    /// The one-way latency between two nodes.
    pub latency: Option<Duration>,
    /// The most connections of one transfer; `None` for the default.
    pub max_lanes: Option<usize>,
}

/// The directories for spill files.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SpillSettings {
    /// The directories. Without any, the store does not spill.
    pub directories: Vec<PathBuf>,
    /// Most bytes of spill files together; `None` if only the disks limit them.
    pub limit_bytes: Option<u64>,
}

/// The time at which the arena's pages are first touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prefault {
    /// In the background, at the start.
    AtStart,
    /// By the first put that uses them.
    OnUse,
}
