//! The settings of the data plane.

use std::time::Duration;

use hoplite_core::Version;
use hoplite_core::id::{ClusterId, NodeId};
use hoplite_core::peer;
use hoplite_core::plan::lanes::{DEFAULT_MAX_LANES, Start};
use hoplite_net::{Token, TransportKind};

use crate::advertised::Advertised;
use crate::config::LinkSettings;

/// Bytes combined at a time: two pieces stay in the first and second level of the cache while they
/// are read, combined and written.
pub(super) const PIECE_BYTES: usize = 32 << 10;
/// Bytes combined before other tasks have their turn: the longest frame, some 100 us.
pub(super) const STEP_BYTES: u64 = 1 << 20;

#[derive(Debug, Clone)]
pub(crate) struct DataConfig {
    pub(crate) cluster: ClusterId,
    pub(crate) node: NodeId,
    pub(crate) newest: Version,
    /// Links that need not be measured.
    pub(crate) links: LinkSettings,
    pub(crate) transport: TransportKind,
    /// A secret that peers must know too.
    pub(crate) token: Option<Token>,
    pub(crate) advertised: Option<Advertised>,
    pub(crate) sizes: Sizes,
    /// Most connections from other stores after their handshake; further ones are closed at once.
    pub(crate) max_connections: usize,
    pub(crate) max_lanes: usize,
    pub(crate) first_lanes: Start,
    /// Most connections in their handshake; one more closes the oldest.
    pub(crate) max_half_open: usize,
    /// Most idle connections to one store, besides the lanes of one stream.
    pub(crate) max_idle_per_peer: usize,
    pub(crate) handshake_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    /// Longest silence of a sender, without even a keepalive.
    pub(crate) silence_timeout: Duration,
    /// Longest wait of a receiver for a byte, or for a new sign of the object's producer.
    pub(crate) stall_timeout: Duration,
    /// Longest time in which a receiver accepts nothing.
    pub(crate) write_stall_timeout: Duration,
    /// Interval of the keepalives of a sender without bytes. Several fit into `silence_timeout`.
    pub(crate) keepalive_interval: Duration,
    /// Time for which the pool keeps an idle connection.
    pub(crate) pool_idle_timeout: Duration,
    /// Time for which the server keeps an idle connection: longer, so that the pool usually closes
    /// first.
    pub(crate) server_idle_timeout: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sizes {
    Any,
    /// Objects of up to [`SMALL_BYTES`], and results of reduces over them, on the threads of
    /// clients and shards. Switching threads takes longer than these bytes.
    Small,
}

/// Most bytes of a small object: they take as long on a link of 1 Gbit/s as the messages about
/// them.
pub(crate) const SMALL_BYTES: u64 = 64 << 10;

impl DataConfig {
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
