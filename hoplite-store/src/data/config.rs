//! The settings of the data plane.

use std::time::Duration;

use hoplite_core::Version;
use hoplite_core::id::{ClusterId, NodeId};
use hoplite_core::peer;
use hoplite_core::plan::lanes::{DEFAULT_MAX_LANES, Start};
use hoplite_net::{Token, TransportKind};

use crate::advertised::Advertised;
use crate::config::LinkSettings;

/// Bytes that are combined at a time: two pieces stay in the first and second level of the cache while they are read,
/// combined and written.
pub(super) const PIECE_BYTES: usize = 32 << 10;
/// Bytes that are combined before other tasks have their turn: the longest frame, some 100 us.
pub(super) const STEP_BYTES: u64 = 1 << 20;

/// The name and the cluster of this store, and the limits of its data plane.
#[derive(Debug, Clone)]
pub(crate) struct DataConfig {
    /// The cluster; peers of another one are refused.
    pub(crate) cluster: ClusterId,
    /// This node.
    pub(crate) node: NodeId,
    /// The newest version of the protocol that this store speaks.
    pub(crate) newest: Version,
    /// Properties of the links that need not be measured.
    pub(crate) links: LinkSettings,
    /// The transport to other stores.
    pub(crate) transport: TransportKind,
    /// The secret that peers must know, too.
    pub(crate) token: Option<Token>,
    /// The address at which other stores reach this one, if it is known.
    pub(crate) advertised: Option<Advertised>,
    /// The sizes of objects that this store requests over its connections.
    pub(crate) sizes: Sizes,
    /// Most connections from other stores at once that are past their handshake; those beyond are closed at once.
    pub(crate) max_connections: usize,
    /// Most connections of one stream.
    pub(crate) max_lanes: usize,
    /// The connections of the first stream to a store.
    pub(crate) first_lanes: Start,
    /// Most connections in their handshake; when there are more, the oldest is closed.
    pub(crate) max_half_open: usize,
    /// Most idle connections kept to one other store, in addition to the lanes of one stream.
    pub(crate) max_idle_per_peer: usize,
    /// The time that a peer may take to say and to prove who it is, the handshake of the transport included.
    pub(crate) handshake_timeout: Duration,
    /// The time to try to connect to a sender.
    pub(crate) connect_timeout: Duration,
    /// The time that a sender may send nothing at all, not even that it is alive.
    pub(crate) silence_timeout: Duration,
    /// The time that a receiver waits for a byte, or for a new sign that the object's producer is alive.
    pub(crate) stall_timeout: Duration,
    /// The time that a receiver may accept nothing at all while there is something to send to it.
    pub(crate) write_stall_timeout: Duration,
    /// Interval of the keepalives of a sender without bytes. Several fit into `silence_timeout`.
    pub(crate) keepalive_interval: Duration,
    /// The time that the pool keeps an idle connection.
    pub(crate) pool_idle_timeout: Duration,
    /// The time that the server keeps an idle connection: longer than the pool, so that it is rarely the one that closes.
    pub(crate) server_idle_timeout: Duration,
}

/// The sizes of objects that go over the connections of a puller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sizes {
    /// Anything.
    Any,
    /// Objects of up to [`SMALL_BYTES`], and results of reduces over them, on the threads that
    /// serve clients and shards. A switch to another thread takes longer than the bytes of these
    /// objects.
    Small,
}

/// Most bytes of an object that is small: they take as long on a link of 1 Gbit/s as the messages about them.
pub(crate) const SMALL_BYTES: u64 = 64 << 10;

impl DataConfig {
    /// The defaults, for `node` of `cluster`.
    pub(crate) const fn new(cluster: ClusterId, node: NodeId) -> Self {
        Self {
            cluster,
            node,
            newest: Version::NEWEST,
            links: LinkSettings { bytes_per_second: None, latency: None, max_lanes: None },
            transport: TransportKind::Plain,
            token: None,
            advertised: None,
            sizes: Sizes::Any,
            max_connections: 2048,
            max_lanes: DEFAULT_MAX_LANES,
            first_lanes: Start { lanes: 1, is_settled: false },
            max_half_open: 256,
            max_idle_per_peer: 4,
            handshake_timeout: peer::HANDSHAKE_TIMEOUT,
            connect_timeout: peer::CONNECT_TIMEOUT,
            silence_timeout: peer::SILENCE_TIMEOUT,
            stall_timeout: peer::STALL_TIMEOUT,
            write_stall_timeout: peer::WRITE_STALL_TIMEOUT,
            keepalive_interval: peer::KEEPALIVE_INTERVAL,
            pool_idle_timeout: peer::POOL_IDLE_TIMEOUT,
            server_idle_timeout: peer::SERVER_IDLE_TIMEOUT,
        }
    }
}
