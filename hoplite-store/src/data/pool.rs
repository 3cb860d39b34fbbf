use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hoplite_core::id::NodeId;
use tokio::time::Instant;

use super::connection::PeerConnection;

pub(crate) type Peer = (NodeId, SocketAddr);

/// Idle connections: their handshake is done, and no request is open.
#[derive(Debug)]
pub(super) struct Pool {
    max_idle_per_peer: usize,
    idle_timeout: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    closed: bool,
    /// Each list ends with the connection used last. No list is empty.
    idle: HashMap<Peer, Vec<Idle>>,
}

#[derive(Debug)]
struct Idle {
    connection: PeerConnection,
    /// Number of the connection's route to the peer.
    route: usize,
    since: Instant,
}

impl Pool {
    pub(super) fn new(max_idle_per_peer: usize, idle_timeout: Duration) -> Self {
        Self { max_idle_per_peer, idle_timeout, state: Mutex::default() }
    }

    /// Takes the last used connection to `peer` over `route` not known to be dead.
    pub(super) fn take(&self, peer: &Peer, route: usize) -> Option<PeerConnection> {
        let mut state = self.lock();
        let idle = state.idle.get_mut(peer)?;
        let mut found = None;
        while let Some(last) = idle.iter().rposition(|idle| idle.route == route) {
            let Idle { mut connection, since, .. } = idle.remove(last);
            if since.elapsed() < self.idle_timeout && !connection.is_disturbed() {
                found = Some(connection);
                break;
            }
        }
        if idle.is_empty() {
            state.idle.remove(peer);
        }
        found
    }

    /// Returns a connection to the pool. If the peer has too many, closes the longest idle one.
    pub(super) fn put(&self, peer: Peer, route: usize, connection: PeerConnection) {
        let mut state = self.lock();
        if state.closed || self.max_idle_per_peer == 0 {
            return;
        }
        let idle = state.idle.entry(peer).or_default();
        if idle.len() >= self.max_idle_per_peer {
            idle.remove(0);
        }
        idle.push(Idle { connection, route, since: Instant::now() });
    }

    /// Closes connections idle for too long or closed by the peer.
    pub(super) fn expire(&self) {
        let limit = self.idle_timeout;
        self.lock().idle.retain(|_, idle| {
            idle.retain_mut(|idle| idle.since.elapsed() < limit && !idle.connection.is_disturbed());
            !idle.is_empty()
        });
    }

    /// Closes all connections, and each one returned later.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.idle.clear();
    }

    #[cfg(test)]
    pub(super) fn forget(&self) {
        self.lock().idle.clear();
    }

    #[cfg(test)]
    pub(super) fn idle_connections(&self) -> usize {
        self.lock().idle.values().map(Vec::len).sum()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
