//! What a store is told at its start.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use hoplite_core::plan::collective::SchedulePreference;
use hoplite_core::{ClusterId, Limits, NodeId};
use hoplite_daemon::Tracer;
use hoplite_net::Credentials;
use hoplite_shm::Backing;

/// Where the directory is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Directory {
    /// In this process: one shard.
    Embedded {
        /// The address to listen on, so that other stores can join; `None` if none is to.
        listen: Option<SocketAddr>,
        /// Where its dashboard is, if it has one.
        dashboard: Option<SocketAddr>,
    },
    /// Elsewhere: the addresses of all shards, `HOST:PORT`, the same for every store of the cluster.
    Shards(Vec<String>),
}

/// The configuration of a store.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// Its name, unique in the cluster.
    pub node: NodeId,
    /// The name of the cluster.
    pub cluster: ClusterId,
    /// Where the data plane listens; port 0 for any. `None` for a store without peers, which has no data plane.
    pub listen: Option<SocketAddr>,
    /// What other daemons must prove, and are proven.
    pub credentials: Credentials,
    /// Where other stores reach the data plane, `HOST:PORT`, if that differs from where it listens. A name is looked up again
    /// whenever a session with a shard begins.
    pub advertise: Option<String>,
    /// Where the directory is.
    pub directory: Directory,
    /// The Unix socket for workers.
    pub socket: PathBuf,
    /// The permissions of the socket.
    pub socket_mode: u32,
    /// The user who owns the socket; by default that of the process.
    pub socket_owner: Option<u32>,
    /// The group of the socket; by default that of the process.
    pub socket_group: Option<u32>,
    /// Which users may be its clients.
    pub clients: ClientRules,
    /// The size of the arena.
    pub memory_bytes: u64,
    /// What the arena is made of.
    pub backing: Backing,
    /// Whether the arena's pages are touched at the start.
    pub prefault: Prefault,
    /// What the links to other stores do, as far as it is set and not to be measured.
    pub links: LinkSettings,
    /// How the allreduces that this store coordinates exchange data.
    pub allreduce_schedule: SchedulePreference,
    /// Labels for the operator's use, shown by the directory.
    pub labels: Vec<(String, String)>,
    /// The limits.
    pub limits: Limits,
    /// What begins spans, if traces are exported.
    pub tracer: Option<Tracer>,
}

/// Which users of this machine may be clients of a store, beside root and the store's own user, who may do anything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClientRules {
    /// The users. With `groups`, `None` means that the permissions of the socket decide alone.
    pub users: Option<Vec<u32>>,
    /// The groups whose members may.
    pub groups: Option<Vec<u32>>,
    /// The users who may read only, whatever else is said of them.
    pub readers: Vec<u32>,
}

/// What is known of the links between stores, for the planning of reduces. What is unset is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LinkSettings {
    /// What one stream between two nodes gets.
    pub bytes_per_second: Option<u64>,
    /// The time that a byte takes from one node to another.
    pub latency: Option<Duration>,
}

/// When the arena's pages are first touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prefault {
    /// In the background, at the start.
    AtStart,
    /// By the first put that uses them.
    OnUse,
}
