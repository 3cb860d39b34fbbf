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

/// Location of the directory: the service that finds the stores with an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Directory {
    /// One shard (server of the directory), in this process.
    Embedded {
        /// Address on which other stores reach the shard; `None` if no other store can join.
        listen: Option<SocketAddr>,
        /// Addresses for the shard's dashboard, which takes the first free one; empty for none.
        dashboard: Vec<SocketAddr>,
    },
    /// Shards in other processes, as `HOST:PORT`. Every store has the same list.
    Shards(Vec<String>),
}

/// Configuration of a store.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the names say it")]
pub struct StoreConfig {
    /// Node's name, unique in the cluster.
    pub node: NodeId,
    pub cluster: ClusterId,
    /// Newest version of the protocol that the store speaks.
    pub newest_version: Version,
    /// Addresses of the data plane, one for each network card; port 0 for any free port; empty for
    /// a store without peers.
    pub listen: Vec<SocketAddr>,
    pub credentials: Credentials,
    /// `HOST:PORT` at which other stores reach each address in `listen`; empty if it is the same. A
    /// single address may have several names, one for each network card.
    pub advertise: Vec<String>,
    pub directory: Directory,
    pub socket: PathBuf,
    pub socket_mode: u32,
    /// User id of the owner of the Unix socket; `None` for the process's user.
    pub socket_owner: Option<u32>,
    /// Group id of the Unix socket; `None` for the process's group.
    pub socket_group: Option<u32>,
    pub clients: ClientRules,
    pub memory_bytes: u64,
    pub backing: Backing,
    pub prefault: Prefault,
    pub links: LinkSettings,
    pub allreduce_schedule: SchedulePreference,
    /// Number of stores that keep a copy of an object, unless its put requests another number.
    pub replicas: u8,
    pub spill: SpillSettings,
    /// Longest time for moving pinned copies to other stores before the store stops; `None` to stop
    /// at once.
    pub drain: Option<Duration>,
    pub labels: Vec<(String, String)>,
    pub limits: Limits,
    pub tracer: Option<Tracer>,
}

impl StoreConfig {
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
            serves_directory: matches!(self.directory, Directory::Embedded { listen: Some(_), .. }),
            seed,
        }
    }
}

/// Local users who may be clients, besides root and the store's own user.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClientRules {
    /// Ids of permitted users. Without `users` and `groups`, the socket's permissions alone decide.
    pub users: Option<Vec<u32>>,
    /// Ids of groups whose members are permitted.
    pub groups: Option<Vec<u32>>,
    /// Ids of users who may only read, even if another list permits more.
    pub readers: Vec<u32>,
}

/// The links between stores, for the planning of reduces. Unset values are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "the names say it")]
pub struct LinkSettings {
    pub bytes_per_second: Option<u64>,
    pub latency: Option<Duration>,
    pub max_lanes: Option<usize>,
}

/// Spill files, for objects that do not fit into memory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SpillSettings {
    /// Directories; empty if the store does not spill.
    pub directories: Vec<PathBuf>,
    /// Largest size of all spill files together; `None` if only the disks limit it.
    pub limit_bytes: Option<u64>,
    /// `true` to recover the objects of killed stores that had this setting, and to let a later run
    /// recover this run's objects.
    pub recover: bool,
}

/// Time of the first access to the pages of the shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prefault {
    /// In the background, from the start of the store.
    AtStart,
    /// At the first put.
    OnUse,
}
