//! Connections over several network cards (rails).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hoplite_core::id::NodeId;
use hoplite_core::plan::rails::{Rails, Route};
use hoplite_core::time::Time;
use hoplite_daemon::warn_repeated;
use tokio::time::Instant;

use super::connection::ConnectionError;
use super::pool::Peer;

/// This store's network cards, and the routes to stores with several.
#[derive(Debug)]
pub(crate) struct RailTable {
    own: Vec<IpAddr>,
    rails: Mutex<Rails>,
    counts: Vec<RailCounts>,
    origin: Instant,
}

#[derive(Debug, Default)]
struct RailCounts {
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
}

/// Use of a network card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RailReport {
    pub(crate) address: IpAddr,
    /// Open connections from this card to other stores.
    pub(crate) connections: usize,
    /// Bytes of objects since the start of the store.
    pub(crate) sent_bytes: u64,
    pub(crate) received_bytes: u64,
}

impl RailTable {
    pub(crate) fn new(own: Vec<IpAddr>) -> Self {
        let counts = own.iter().filter(|_| own.len() > 1).map(|_| RailCounts::default()).collect();
        let rails = Mutex::new(Rails::new(own.len()));
        Self { own, rails, counts, origin: Instant::now() }
    }

    /// Describes each network card; none if there is a single one.
    pub(crate) fn reports(&self) -> Vec<RailReport> {
        let used = self.lock().used().to_vec();
        let cards = self.own.iter().zip(&self.counts).zip(used);
        cards
            .map(|((address, counts), connections)| RailReport {
                address: *address,
                connections,
                sent_bytes: counts.sent_bytes.load(Ordering::Relaxed),
                received_bytes: counts.received_bytes.load(Ordering::Relaxed),
            })
            .collect()
    }

    pub(crate) fn failed_routes(&self) -> usize {
        self.lock().failed_routes()
    }

    pub(super) fn learn(&self, peer: &NodeId, addresses: &[SocketAddr]) {
        self.lock().learn(peer, addresses);
    }

    pub(super) fn routes(&self, peer: &NodeId) -> usize {
        self.lock().routes(peer)
    }

    /// Chooses the route of a new connection. The transfer's other connections have the routes
    /// `others`.
    pub(super) fn begin(self: &Arc<Self>, (peer, main): &Peer, others: &[usize]) -> RailUse {
        match self.lock().begin(peer, *main, others) {
            Some(route) => self.used(peer, route),
            None => RailUse::main(*main),
        }
    }

    /// Counts a new connection, if its hello told of more addresses than the first.
    pub(super) fn adopt(
        self: &Arc<Self>,
        rail: RailUse,
        (peer, main): &Peer,
        own: Option<usize>,
    ) -> RailUse {
        if rail.known.is_some() {
            return rail;
        }
        match self.lock().adopt(peer, *main, own) {
            Some(route) => self.used(peer, route),
            None => rail,
        }
    }

    /// Begins tests of failed routes.
    pub(super) fn tests(self: &Arc<Self>) -> Vec<(Peer, RailUse)> {
        let tests = self.lock().tests(self.now());
        let begin = |(peer, main, route)| ((NodeId::clone(&peer), main), self.used(&peer, route));
        tests.into_iter().map(begin).collect()
    }

    fn used(self: &Arc<Self>, peer: &NodeId, route: Route) -> RailUse {
        let known = Some((Arc::clone(self), peer.clone()));
        RailUse { route, known, has_delivered: false }
    }

    pub(super) fn number_of(&self, local: IpAddr) -> Option<usize> {
        let is_at = |own: &IpAddr| *own == local.to_canonical();
        self.own.iter().position(is_at).filter(|_| self.own.len() > 1)
    }

    pub(super) fn sent(&self, rail: Option<usize>, bytes: u64) {
        if let Some(counts) = rail.and_then(|rail| self.counts.get(rail)) {
            counts.sent_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    pub(super) fn received(&self, rail: Option<usize>, bytes: u64) {
        if let Some(counts) = rail.and_then(|rail| self.counts.get(rail)) {
            counts.received_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    fn now(&self) -> Time {
        Time::ZERO + self.origin.elapsed()
    }

    fn lock(&self) -> MutexGuard<'_, Rails> {
        self.rails.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts a connection on its route, until dropped.
#[derive(Debug)]
pub(super) struct RailUse {
    route: Route,
    /// `None` if the peer has a single address.
    known: Option<(Arc<RailTable>, NodeId)>,
    has_delivered: bool,
}

impl RailUse {
    /// Uses the first address of a peer.
    pub(super) const fn main(address: SocketAddr) -> Self {
        Self { route: Route::only(address), known: None, has_delivered: false }
    }

    pub(super) const fn address(&self) -> SocketAddr {
        self.route.address
    }

    /// Returns the number of the route.
    pub(super) const fn route(&self) -> usize {
        self.route.number
    }

    pub(super) fn own(&self) -> Option<IpAddr> {
        let (table, _) = self.known.as_ref()?;
        table.own.get(self.route.own?).copied()
    }

    /// Returns a time limit: `short` while another route works, but at most `longest`.
    pub(super) fn limit(&self, longest: Duration, short: Duration) -> Duration {
        if self.has_other() { longest.min(short) } else { longest }
    }

    pub(super) fn has_other(&self) -> bool {
        let known = self.known.as_ref();
        known.is_some_and(|(table, peer)| table.lock().has_other(peer, self.route))
    }

    /// Notes that the connection was opened.
    pub(super) fn worked(&self) {
        let Some((table, peer)) = &self.known else { return };
        if table.lock().worked(peer, self.route) {
            tracing::info!(%peer, address = %self.route.address, "a route over a network card works again");
        }
    }

    /// Notes that the connection delivered bytes.
    pub(super) fn delivered(&mut self) {
        if let Some((table, peer)) = &self.known
            && !self.has_delivered
        {
            table.lock().delivered(peer, self.route);
            self.has_delivered = true;
        }
    }

    /// Notes that the connection could not be opened. Returns `true` if another route may help.
    pub(super) fn could_not_open(&self, error: &ConnectionError) -> bool {
        !matches!(error, ConnectionError::Refused(_)) && self.failed(error)
    }

    /// Notes that the connection broke with `error`, unless the peer closed it.
    pub(super) fn broke(&self, error: &ConnectionError) {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};

        let is_of_route = match error {
            ConnectionError::Idle(_) => true,
            ConnectionError::Io(error) => {
                !matches!(error.kind(), ConnectionReset | BrokenPipe | UnexpectedEof)
            }
            _ => false,
        };
        if is_of_route {
            self.failed(error);
        }
    }

    fn failed(&self, error: &ConnectionError) -> bool {
        let Some((table, peer)) = &self.known else { return false };
        let is_new = table.lock().failed(table.now(), peer, self.route);
        let has_other = self.has_other();
        if is_new && has_other {
            let (address, own) = (self.route.address, self.own());
            warn_repeated!(%peer, %address, ?own, %error, "a route over a network card has failed; transfers use others");
        }
        has_other
    }
}

impl Drop for RailUse {
    fn drop(&mut self) {
        if let Some((table, peer)) = &self.known {
            table.lock().end(peer, self.route);
        }
    }
}
