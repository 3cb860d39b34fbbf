//! The data plane: moves the bytes of objects between stores over TCP, from arena to socket to arena.
//!
//! A receiver connects to a sender, or takes an idle connection from its pool, and sends `Pull`. The sender answers with
//! blocks of whatever is valid, as it becomes valid, then `End`; the connection can then be used again. Which copy goes
//! where is decided elsewhere: the sender asks a [`ServeSource`], the receiver is told a [`PullRequest`].
//!
//! A hop of a reduce is a connection of its own, on which the coordinator says `Combine` and later `Release`, and the
//! host how far it is; the host asks a [`HopHost`]. Whoever combines is the receiver of pulls that go into a computation
//! instead of a copy: a [`CombineRequest`] says which.
//!
//! A [`Surveyor`] has the stores measure the links between them.

mod pull;
mod server;
mod stream;

mod session;

mod probe;

mod combine;
mod direct;
mod host;
mod input;

mod call;
mod digest;
mod keepalive;

mod connection;
mod faults;
mod handshake;
mod plain;
mod pool;
mod tls;
mod transport;

#[cfg(test)]
mod tests;

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hoplite_core::id::{ClusterId, NodeId, ObjectId, PutId};
use hoplite_core::node::{Hop, HopReport};
use hoplite_core::peer;
use hoplite_core::plan::blocks::Delivery;
use hoplite_core::time::Time;
use hoplite_core::topology::live::{PeerLink, PeerLinks};
use hoplite_core::trace::TraceContext;
use hoplite_daemon::Token;
use tokio::sync::mpsc;

pub(crate) use self::transport::TransportKind;
use crate::advertised::Advertised;
use crate::config::LinkSettings;
use crate::copies::LiveCopy;

pub(crate) use combine::{CombineRequest, CombineSource};
pub(crate) use pool::Peer;
pub(crate) use probe::{SurveyTally, Surveyor};
pub(crate) use pull::{CompareRequest, PullRequest, Puller};
pub(crate) use server::run;
pub(crate) use session::{Enlisted, Exchange, MemberHost, Words};

/// The name and the cluster of this store, and the limits of its data plane.
#[derive(Debug, Clone)]
pub(crate) struct DataConfig {
    /// The cluster; peers of another one are refused.
    pub(crate) cluster: ClusterId,
    /// This node.
    pub(crate) node: NodeId,
    /// What is known of the links, so that it need not be measured.
    pub(crate) links: LinkSettings,
    /// What connections to other stores are.
    pub(crate) transport: TransportKind,
    /// What peers must know, too.
    pub(crate) token: Option<Token>,
    /// Where other stores reach this one, if that is known.
    pub(crate) advertised: Option<Advertised>,
    /// What this store asks for over its connections.
    pub(crate) sizes: Sizes,
    /// Most connections from other stores at once that are past their handshake; those beyond are closed at once.
    pub(crate) max_connections: usize,
    /// Most connections in their handshake; when there are more, the oldest is closed.
    pub(crate) max_half_open: usize,
    /// Most idle connections kept to one other store.
    pub(crate) max_idle_per_peer: usize,
    /// How long a peer may take to say and to prove who it is, the handshake of the transport included.
    pub(crate) handshake_timeout: Duration,
    /// How long to try to connect to a sender.
    pub(crate) connect_timeout: Duration,
    /// How long a sender may send nothing at all, not even that it is alive.
    pub(crate) silence_timeout: Duration,
    /// How long a receiver waits for a byte, or for a new sign that the object's producer is alive.
    pub(crate) stall_timeout: Duration,
    /// How long a receiver may accept nothing at all while there is something to send to it.
    pub(crate) write_stall_timeout: Duration,
    /// How often a sender that has nothing to send says so. Several fit into `silence_timeout`.
    pub(crate) keepalive_interval: Duration,
    /// How long the pool keeps an idle connection.
    pub(crate) pool_idle_timeout: Duration,
    /// How long the server keeps an idle connection: longer than the pool, so that it is rarely the one that closes.
    pub(crate) server_idle_timeout: Duration,
}

/// What goes over the connections of a puller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sizes {
    /// Anything.
    Any,
    /// Objects of up to [`SMALL_BYTES`], and what is made of such: where clients and shards are listened to. Each switch to another
    /// thread takes longer than their bytes do.
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
            links: LinkSettings { bytes_per_second: None, latency: None },
            transport: TransportKind::Plain,
            token: None,
            advertised: None,
            sizes: Sizes::Any,
            max_connections: 2048,
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

/// What the data plane has done since the start.
#[derive(Debug, Default)]
pub(crate) struct DataMetrics {
    /// Bytes of objects that were handed to sockets.
    pub(crate) sent_bytes: AtomicU64,
    /// Bytes of objects that arrived, damaged ones not counted.
    pub(crate) received_bytes: AtomicU64,
    /// Transfers to other stores that began.
    pub(crate) serves: AtomicU64,
    /// Transfers from other stores that began.
    pub(crate) pulls: AtomicU64,
    /// Transfers that ended because a frame was damaged or not of the protocol.
    pub(crate) corrupt_frames: AtomicU64,
    /// Connections from peers that did not speak the protocol, or belong to another cluster.
    pub(crate) malformed_connections: AtomicU64,
    /// Connections closed at once because there were too many.
    pub(crate) refused_connections: AtomicU64,
    /// What transfers to other stores have shown of the links.
    links: Mutex<PeerLinks>,
}

impl DataMetrics {
    /// Takes in what the kernel knows of a transfer to `peer`. Returns the slow links, if the directory does not know these.
    fn measured(&self, now: Time, peer: &NodeId, delivery: Delivery) -> Option<Vec<NodeId>> {
        let mut links = self.lock_links();
        links.add(now, peer, delivery.into());
        links.news(now)
    }

    /// Takes in at which rate this store receives.
    fn received(&self, bytes_per_second: u64) {
        self.lock_links().received(bytes_per_second);
    }

    /// The links to other stores as transfers have shown them, those that carry least first.
    pub(crate) fn links(&self) -> Vec<PeerLink> {
        self.lock_links().worst_first()
    }

    fn lock_links(&self) -> MutexGuard<'_, PeerLinks> {
        // An estimate that a panic left half changed is one sample off.
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn count(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}

/// Decides whether another store is served, and from what.
pub(crate) trait ServeSource: Send + Sync + 'static {
    /// Finds the copy, maybe after a while; `None` if there is none.
    ///
    /// Dropping the future withdraws the request.
    fn serve(self: &Arc<Self>, request: ServeRequest) -> impl Future<Output = Option<Served>> + Send;

    /// The links to these peers, and no others, have been slow for long.
    fn has_slow_links(self: &Arc<Self>, peers: Vec<NodeId>);
}

/// What another store asks to be served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServeRequest {
    /// The peer, by the name that it gave in the handshake.
    pub(crate) peer: NodeId,
    /// The object that a peer asks for.
    pub(crate) id: ObjectId,
    /// Which put of it.
    pub(crate) put: PutId,
    /// Whether it is the output of a hop, which may not have begun yet.
    pub(crate) awaits_hop: bool,
    /// The span that has caused this.
    pub(crate) trace: Option<TraceContext>,
}

/// The right to read a copy, for as long as this is not dropped.
pub(crate) struct Served {
    live: Arc<LiveCopy>,
    end: Option<Box<dyn FnOnce() + Send + Sync>>,
}

impl Served {
    /// A serve of `live`. `end` is called when it is over, when nothing touches the copy's memory for it any more.
    pub(crate) fn new(live: Arc<LiveCopy>, end: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self { live, end: Some(Box::new(end)) }
    }
}

impl std::ops::Deref for Served {
    type Target = LiveCopy;

    fn deref(&self) -> &LiveCopy {
        &self.live
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(end) = self.end.take() {
            end();
        }
    }
}

impl fmt::Debug for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Served").field(&self.live).finish()
    }
}

/// Performs hops for coordinators elsewhere.
pub(crate) trait HopHost: Send + Sync + 'static {
    /// Begins a hop, which goes on until what is returned is dropped.
    fn host(self: &Arc<Self>, request: HopRequest) -> Hosted;
}

/// A hop that a coordinator asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HopRequest {
    /// What is to be done.
    pub(crate) spec: Hop,
    /// The span that has caused this.
    pub(crate) trace: Option<TraceContext>,
}

/// A hop that is performed for a coordinator, for as long as this is not dropped.
pub(crate) struct Hosted {
    /// How it goes: at most `Complete`, and then `Failed`.
    reports: mpsc::Receiver<HopReport>,
    end: Option<Box<dyn FnOnce() + Send + Sync>>,
}

impl Hosted {
    /// Most reports that a hop makes.
    pub(crate) const MAX_REPORTS: usize = 2;

    /// A hop that tells how it goes through `reports`. `end` is called when it is needed no longer.
    pub(crate) fn new(
        reports: mpsc::Receiver<HopReport>,
        end: impl FnOnce() + Send + Sync + 'static,
    ) -> Self {
        Self { reports, end: Some(Box::new(end)) }
    }

    /// Waits for the next report; `None` if there are no more.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn next_report(&mut self) -> Option<HopReport> {
        self.reports.recv().await
    }
}

impl Drop for Hosted {
    fn drop(&mut self) {
        if let Some(end) = self.end.take() {
            end();
        }
    }
}
