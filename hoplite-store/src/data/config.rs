use std::sync::Arc;
use std::time::Duration;

use hoplite_core::Version;
use hoplite_core::id::{ClusterId, NodeId};
use hoplite_core::peer;
use hoplite_core::plan::lanes::{DEFAULT_MAX_LANES, Start};
use hoplite_net::{Token, TransportKind};

use super::rails::RailTable;
use crate::advertised::Advertised;
use crate::config::LinkSettings;

/// Bytes combined at a time. Two pieces fit into the first two cache levels.
pub(super) const PIECE_BYTES: usize = 32 << 10;
/// Bytes combined before other tasks have their turn: the longest frame, about 100 us.
pub(super) const STEP_BYTES: u64 = 1 << 20;

#[derive(Debug, Clone)]
pub(crate) struct DataConfig {
    pub(crate) cluster: ClusterId,
    pub(crate) node: NodeId,
    pub(crate) newest: Version,
    pub(crate) links: LinkSettings,
    pub(crate) transport: TransportKind,
    pub(crate) token: Option<Token>,
    pub(crate) advertised: Option<Advertised>,
    pub(crate) rails: Arc<RailTable>,
    pub(crate) sizes: Sizes,
    /// Most connections after their handshake. Further ones are closed at once.
    pub(crate) max_connections: usize,
    pub(crate) max_lanes: usize,
    pub(crate) first_lanes: Start,
    /// Most connections in their handshake; one more closes the oldest.
    pub(crate) max_half_open: usize,
    /// Most idle connections to one peer, without the extra connections of one stream.
    pub(crate) max_idle_per_peer: usize,
    pub(crate) handshake_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    /// Longest time without any frame of a sender; keepalives count as frames.
    pub(crate) silence_timeout: Duration,
    /// Longest wait of a receiver for a byte, or for a new sign that the producer is alive.
    pub(crate) stall_timeout: Duration,
    /// Longest time for which a receiver may accept no byte.
    pub(crate) write_stall_timeout: Duration,
    /// Interval between keepalives of a sender without bytes to send. Several fit into
    /// `silence_timeout`.
    pub(crate) keepalive_interval: Duration,
    pub(crate) pool_idle_timeout: Duration,
    /// Longer than `pool_idle_timeout`, so that the pool usually closes an idle connection first.
    pub(crate) server_idle_timeout: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sizes {
    Any,
    /// Transfers of objects of up to [`SMALL_BYTES`], and of reduces over them. They run on the
    /// thread of clients and shards, because switching threads takes longer than moving these
    /// bytes.
    Small,
}

/// On a link of 1 Gbit/s, a small object takes at most as long as the messages about it.
pub(crate) const SMALL_BYTES: u64 = 64 << 10;

impl DataConfig {
    pub(crate) fn new(cluster: ClusterId, node: NodeId) -> Self {
        Self {
            cluster,
            node,
            newest: Version::NEWEST,
            links: LinkSettings { bytes_per_second: None, latency: None, max_lanes: None },
            transport: TransportKind::Plain,
            token: None,
            advertised: None,
            rails: Arc::new(RailTable::new(Vec::new())),
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
