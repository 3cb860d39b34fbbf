mod answers;
mod connection;
mod drain;
mod handshake;
mod inbox;
mod inspect;
mod listener;
mod long_request;
mod nodes;
mod rights;
mod shards;
mod shares;
mod socket;
#[cfg(test)]
mod tests;
mod turns;

use std::sync::Arc;
use std::time::Duration;

use hoplite_core::{ClusterId, Limits, NodeId, Version};
use hoplite_daemon::Acceptor;
use hoplite_net::HalfOpen;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub(crate) use answers::{Answers, CallWork};
pub use listener::SocketError;
pub(crate) use listener::{LocalListener, LocalPeer, Role, SocketAccess};
pub(crate) use shares::Shares;
pub(crate) use turns::Turns;

use crate::advertised::Advertised;
use crate::engine::Engine;
use crate::shards::ShardLinks;

/// Interval of checks of the socket file. A client that misses the file retries.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Most connections before their first message; one more closes the oldest.
pub(crate) const MAX_HALF_OPEN: usize = 1024;

#[derive(Debug)]
pub(crate) struct LocalPlane {
    pub(crate) engine: Arc<Engine>,
    pub(crate) limits: Limits,
    pub(crate) replicas: u8,
    pub(crate) access: SocketAccess,
    pub(crate) node: NodeId,
    pub(crate) cluster: ClusterId,
    pub(crate) newest: Version,
    pub(crate) advertised: Option<Advertised>,
    pub(crate) shards: Arc<ShardLinks>,
    pub(crate) half_open: Arc<HalfOpen>,
    pub(crate) shares: Shares,
    pub(crate) turns: Arc<Turns>,
    pub(crate) prefaulted_bytes: Arc<std::sync::atomic::AtomicU64>,
}

/// Serves clients until `shutdown`, and then until the last connection is closed.
pub(crate) async fn run(
    mut listener: LocalListener,
    plane: Arc<LocalPlane>,
    shutdown: CancellationToken,
) {
    let connections = TaskTracker::new();
    let acceptor = Acceptor::new("clients");
    let mut look = tokio::time::interval(LOOK_INTERVAL);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            stream = acceptor.accept(&listener, || listener.accept()) => {
                connections.spawn(connection::serve(stream, Arc::clone(&plane), shutdown.clone()));
            }
            _ = look.tick() => listener.restore(),
            () = shutdown.cancelled() => break,
        }
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}
