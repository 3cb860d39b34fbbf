//! The route of one connection, over a pair of network cards.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hoplite_core::id::NodeId;
use hoplite_core::plan::rails::Route;
use hoplite_daemon::warn_repeated;

use super::connection::ConnectionError;
use super::pool::Peer;
use super::rails::RailTable;

/// Counts a connection on its route, until dropped.
#[derive(Debug)]
pub(super) struct RouteUse {
    route: Route,
    /// `None` without known further addresses, or for probes.
    known: Option<(Arc<RailTable>, NodeId)>,
    has_delivered: bool,
}

impl RouteUse {
    /// Chooses the route of a new connection. The transfer's other connections have the routes
    /// `others`.
    pub(super) fn begin(table: &Arc<RailTable>, (peer, main): &Peer, others: &[usize]) -> Self {
        match table.lock().begin(peer, *main, others) {
            Some(route) => Self::of(table, peer, route),
            None => Self::main(*main),
        }
    }

    /// Begins tests of failed routes.
    pub(super) fn tests(table: &Arc<RailTable>) -> Vec<(Peer, Self)> {
        let tests = table.lock().tests(table.now());
        let begin = |(peer, main, route)| {
            let used = Self::of(table, &peer, route);
            ((peer, main), used)
        };
        tests.into_iter().map(begin).collect()
    }

    fn of(table: &Arc<RailTable>, peer: &NodeId, route: Route) -> Self {
        let known = Some((Arc::clone(table), peer.clone()));
        Self { route, known, has_delivered: false }
    }

    /// Counts a new connection, if its hello told of more addresses than the first.
    pub(super) fn adopted(
        self,
        table: &Arc<RailTable>,
        (peer, main): &Peer,
        own: Option<usize>,
    ) -> Self {
        if self.known.is_some() {
            return self;
        }
        match table.lock().adopt(peer, *main, own) {
            Some(route) => Self::of(table, peer, route),
            None => self,
        }
    }

    /// Uses the first address of a peer.
    pub(super) const fn main(address: SocketAddr) -> Self {
        Self { route: Route::only(address), known: None, has_delivered: false }
    }

    pub(super) const fn address(&self) -> SocketAddr {
        self.route.address
    }

    pub(super) const fn route(&self) -> usize {
        self.route.number
    }

    /// The route, if the peer has several.
    pub(super) fn known(&self) -> Option<Route> {
        self.known.as_ref().map(|_| self.route)
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

    pub(super) fn worked(&self) {
        let Some((table, peer)) = &self.known else { return };
        if table.lock().worked(peer, self.route) {
            tracing::info!(%peer, address = %self.route.address, "a route over a network card works again");
        }
    }

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

    /// Notes that the connection broke with `error`. Returns `true` if the peer has not closed it,
    /// and another route may help.
    pub(super) fn broke(&self, error: &ConnectionError) -> bool {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};

        let is_of_route = match error {
            ConnectionError::Idle(_) | ConnectionError::Cut => true,
            ConnectionError::Io(error) => {
                !matches!(error.kind(), ConnectionReset | BrokenPipe | UnexpectedEof)
            }
            _ => false,
        };
        is_of_route && self.failed(error)
    }

    fn failed(&self, error: &ConnectionError) -> bool {
        let known = self.known.as_ref();
        known.is_some_and(|(table, peer)| failed(table, peer, self.route, error))
    }
}

/// Notes that a route failed with `error`. Returns `true` if another one may work.
pub(super) fn failed(
    table: &RailTable,
    peer: &NodeId,
    route: Route,
    error: &ConnectionError,
) -> bool {
    let is_new = table.lock().failed(table.now(), peer, route);
    let has_other = table.lock().has_other(peer, route);
    if is_new && has_other {
        let own = route.own.and_then(|own| table.own.get(own));
        warn_repeated!(%peer, address = %route.address, ?own, %error, "a route over a network card has failed; transfers use others");
    }
    has_other
}

impl Drop for RouteUse {
    fn drop(&mut self) {
        if let Some((table, peer)) = &self.known {
            table.lock().end(peer, self.route);
        }
    }
}
