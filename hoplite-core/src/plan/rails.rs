//! Chooses the network cards (rails) of connections between hosts with several addresses.
//!
//! A route is a pair of addresses. Address `k` of one host pairs with address `k` of the other,
//! because such networks are often separate. If one host has fewer addresses, they repeat.
//!
//! A new connection takes the route with the fewest connections of its transfer, then of all, then
//! the least used card of this host. No connection takes a failed route while another works. The
//! host tests failed routes at growing intervals.

mod cut;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

pub use cut::{CutDetector, Finding, LOOK_INTERVAL};

use crate::id::NodeId;
use crate::time::Time;

/// Most addresses of a host.
pub const MAX_RAILS: usize = 16;
/// Longest time without any byte over one route while another works.
pub const RAIL_TIMEOUT: Duration = Duration::from_millis(500);
/// Longest time for connecting over one route while another works: the kernel repeats a lost
/// request after a second.
pub const RAIL_CONNECT_TIMEOUT: Duration = Duration::from_millis(1100);
/// Longest time without an answer over one route while another works. Senders without bytes send a
/// keepalive each second.
pub const RAIL_ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// Interval of tests.
pub const TEST_INTERVAL: Duration = Duration::from_secs(1);

const MAX_PEERS: usize = 4096;
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(32);
/// Time after which a peer counts as gone if all routes fail.
const GONE_AFTER: Duration = Duration::from_secs(120);
/// Most routes tested at a time.
const MAX_TESTS: usize = 16;

/// Pair of addresses for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// Number of the route to this peer.
    pub number: usize,
    /// Number of this host's address; `None` if the system chooses it.
    pub own: Option<usize>,
    /// Peer's address.
    pub address: SocketAddr,
}

impl Route {
    /// Route to a peer with one address.
    pub const fn only(address: SocketAddr) -> Self {
        Self { number: 0, own: None, address }
    }
}

/// Connections of this host to hosts with several addresses.
#[derive(Debug)]
pub struct Rails {
    /// Connections in use from each of this host's addresses.
    used: Vec<usize>,
    peers: BTreeMap<NodeId, Peer>,
}

#[derive(Debug)]
struct Peer {
    addresses: Vec<SocketAddr>,
    routes: Vec<State>,
}

#[derive(Debug, Clone, Copy, Default)]
struct State {
    used: usize,
    /// Time of the first failure; `None` while the route works.
    failed_at: Option<Time>,
    /// Failures since the route last delivered bytes.
    failures: u32,
    test_at: Time,
}

impl State {
    const fn works(&self) -> bool {
        self.failed_at.is_none()
    }
}

impl Peer {
    fn is_unused(&self) -> bool {
        self.routes.iter().all(|route| route.used == 0)
    }

    fn works(&self) -> bool {
        self.routes.iter().any(State::works)
    }

    fn route(&self, number: usize, own: usize) -> Route {
        let address = self.addresses[number % self.addresses.len()];
        Route { number, own: (own > 1).then(|| number % own), address }
    }
}

impl Rails {
    /// Makes the state of a host with `own` addresses.
    pub fn new(own: usize) -> Self {
        Self { used: vec![0; own], peers: BTreeMap::new() }
    }

    /// Notes all addresses of a peer. A peer with a single address needs no state.
    pub fn learn(&mut self, peer: &NodeId, addresses: &[SocketAddr]) {
        if !(2..=MAX_RAILS).contains(&addresses.len()) {
            self.peers.remove(peer);
            return;
        }
        if self.peers.get(peer).is_some_and(|known| known.addresses == addresses) {
            return;
        }
        if self.peers.len() >= MAX_PEERS && !self.peers.contains_key(peer) {
            let unused = self.peers.iter().find(|(_, known)| known.is_unused());
            let Some(unused) = unused.map(|(unused, _)| unused.clone()) else { return };
            self.peers.remove(&unused);
        }
        let routes = vec![State::default(); self.used.len().max(addresses.len())];
        self.peers.insert(peer.clone(), Peer { addresses: addresses.to_vec(), routes });
    }

    /// Number of routes to a peer.
    pub fn routes(&self, peer: &NodeId) -> usize {
        self.peers.get(peer).map_or(1, |known| known.routes.len())
    }

    /// Begins a connection to a peer, whose first address is `main`. The transfer's other
    /// connections have the routes `others`. Returns `None` if no other address is known.
    pub fn begin(&mut self, peer: &NodeId, main: SocketAddr, others: &[usize]) -> Option<Route> {
        let known = self.peers.get(peer).filter(|known| known.addresses[0] == main)?;
        let routes = known.routes.iter().enumerate();
        let least =
            routes.clone().filter(|(_, route)| route.works()).min_by_key(|(number, route)| {
                let alike = others.iter().filter(|other| *other == number).count();
                let own = known.route(*number, self.used.len()).own;
                (alike, route.used, own.map_or(0, |own| self.used[own]), *number)
            });
        let earliest = || routes.min_by_key(|(_, route)| route.test_at);
        let (number, _) = least.or_else(earliest)?;
        let route = known.route(number, self.used.len());
        self.count(peer, route);
        Some(route)
    }

    /// Counts an open connection to `main`, whose hello told the other addresses. It leaves from
    /// this host's address number `own`, if known.
    pub fn adopt(&mut self, peer: &NodeId, main: SocketAddr, own: Option<usize>) -> Option<Route> {
        let route = Route { number: 0, own, address: main };
        self.state(peer, route)?;
        self.count(peer, route);
        Some(route)
    }

    /// Returns the peer's first address, and the route of a connection that the peer opened from
    /// its card `from` to this host's address number `own`.
    pub fn incoming(
        &self,
        peer: &NodeId,
        own: Option<usize>,
        from: IpAddr,
    ) -> Option<(SocketAddr, Route)> {
        let known = self.peers.get(peer)?;
        let mut routes = (0..known.routes.len()).map(|number| known.route(number, self.used.len()));
        let route = routes.find(|route| route.own == own && route.address.ip() == from)?;
        Some((known.addresses[0], route))
    }

    /// Ends a connection.
    pub fn end(&mut self, peer: &NodeId, route: Route) {
        if let Some(used) = route.own.and_then(|own| self.used.get_mut(own)) {
            *used = used.saturating_sub(1);
        }
        if let Some(state) = self.state(peer, route) {
            state.used = state.used.saturating_sub(1);
        }
    }

    /// Notes that a connection could not be opened, or became silent. Returns `true` if its route
    /// worked before. Forgets a peer whose routes have all failed for long.
    pub fn failed(&mut self, now: Time, peer: &NodeId, route: Route) -> bool {
        let Some(state) = self.state(peer, route) else { return false };
        if !state.works() && now < state.test_at {
            // A connection from before the first failure.
            return false;
        }
        let wait = FIRST_RETRY.saturating_mul(1 << state.failures.min(5)).min(LAST_RETRY);
        (state.failures, state.test_at) = (state.failures.saturating_add(1), now + wait);
        let is_new = state.works();
        state.failed_at.get_or_insert(now);
        let is_gone = |state: &State| state.failed_at.is_some_and(|at| now.since(at) > GONE_AFTER);
        if self.peers.get(peer).is_some_and(|known| known.routes.iter().all(is_gone)) {
            self.peers.remove(peer);
        }
        is_new
    }

    /// Notes that a connection was opened. Returns `true` if its route had failed before.
    pub fn worked(&mut self, peer: &NodeId, route: Route) -> bool {
        let Some(state) = self.state(peer, route) else { return false };
        state.failed_at.take().is_some()
    }

    /// Notes that a connection delivered bytes, so that its route's next failure is the first one.
    pub fn delivered(&mut self, peer: &NodeId, route: Route) {
        if let Some(state) = self.state(peer, route).filter(|state| state.works()) {
            state.failures = 0;
        }
    }

    /// Returns `true` if another route works.
    pub fn has_other(&self, peer: &NodeId, route: Route) -> bool {
        let Some(known) = self.peers.get(peer) else { return false };
        let mut routes = known.routes.iter().enumerate();
        routes.any(|(number, state)| number != route.number && state.works())
    }

    /// Begins tests of failed routes and, if their peer has no connection, of its working ones.
    /// Also returns each peer's first address.
    pub fn tests(&mut self, now: Time) -> Vec<(NodeId, SocketAddr, Route)> {
        let is_due = |state: &State| !state.works() && state.test_at <= now;
        let mut tests = Vec::new();
        for (peer, known) in &self.peers {
            let tests_all = known.is_unused() && known.routes.iter().any(is_due);
            for (number, state) in known.routes.iter().enumerate() {
                if is_due(state) || (tests_all && state.works()) {
                    let route = known.route(number, self.used.len());
                    tests.push((state.test_at, (peer.clone(), known.addresses[0], route)));
                }
            }
        }
        tests.sort_by_key(|(test_at, _)| *test_at);
        tests.truncate(MAX_TESTS);
        let tests: Vec<_> = tests.into_iter().map(|(_, test)| test).collect();
        tests.iter().for_each(|(peer, _, route)| self.count(peer, *route));
        tests
    }

    /// Failed routes to peers that another route reaches.
    pub fn failed_routes(&self) -> impl Iterator<Item = Route> {
        let reached = self.peers.values().filter(|known| known.works());
        reached.flat_map(|known| {
            let routes = known.routes.iter().enumerate().filter(|(_, state)| !state.works());
            routes.map(|(number, _)| known.route(number, self.used.len()))
        })
    }

    /// Number of connections in use from each of this host's addresses.
    pub fn used(&self) -> &[usize] {
        &self.used
    }

    fn count(&mut self, peer: &NodeId, route: Route) {
        if let Some(used) = route.own.and_then(|own| self.used.get_mut(own)) {
            *used += 1;
        }
        if let Some(state) = self.state(peer, route) {
            state.used += 1;
        }
    }

    fn state(&mut self, peer: &NodeId, route: Route) -> Option<&mut State> {
        let known = self.peers.get_mut(peer)?;
        let address = known.addresses[route.number % known.addresses.len()];
        known.routes.get_mut(route.number).filter(|_| address == route.address)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn node(name: &str) -> NodeId {
        NodeId::new(name).unwrap()
    }

    fn addresses(host: u8, count: u8) -> Vec<SocketAddr> {
        (0..count).map(|rail| SocketAddr::from(([10, rail, 0, host], 7400))).collect()
    }

    fn learnt(own: usize, count: u8) -> (Rails, NodeId, SocketAddr) {
        let (mut rails, peer) = (Rails::new(own), node("peer"));
        rails.learn(&peer, &addresses(2, count));
        (rails, peer, addresses(2, 1)[0])
    }

    const T0: Time = Time::ZERO;

    #[test]
    fn connections_are_spread_over_routes_and_cards() {
        let (mut rails, peer, main) = learnt(2, 2);
        let routes: Vec<_> = (0..4).map(|_| rails.begin(&peer, main, &[]).unwrap()).collect();
        assert_eq!(routes.iter().map(|route| route.number).collect::<Vec<_>>(), [0, 1, 0, 1]);
        assert_eq!((routes[1].own, routes[1].address), (Some(1), addresses(2, 2)[1]));
        assert_eq!((rails.used(), rails.routes(&peer)), (&[2, 2][..], 2));
        rails.end(&peer, routes[1]);
        assert_eq!(rails.used(), [2, 1]);
        let (other, main) = (node("other"), addresses(3, 1)[0]);
        rails.learn(&other, &addresses(3, 2));
        assert_eq!(rails.begin(&other, main, &[]).unwrap().number, 1, "the less used card");
        assert_eq!(rails.adopt(&other, main, Some(0)).unwrap().number, 0);
        assert_eq!(rails.used(), [3, 2]);
        assert_eq!(rails.adopt(&other, addresses(9, 1)[0], None), None);
    }

    #[test]
    fn a_transfer_uses_different_routes_whatever_else_runs() {
        let (mut rails, peer, main) = learnt(2, 2);
        let other = node("other");
        rails.learn(&other, &addresses(3, 2));
        for _ in 0..3 {
            rails.begin(&other, addresses(3, 1)[0], &[1]);
        }
        rails.begin(&peer, main, &[1]);
        let first = rails.begin(&peer, main, &[]).unwrap().number;
        assert_eq!((first, rails.used()), (1, &[4, 1][..]));
        assert_eq!(rails.begin(&peer, main, &[first]).unwrap().number, 0);
        assert_eq!(rails.begin(&peer, main, &[1, 0, 0]).unwrap().number, 1);
    }

    #[test]
    fn a_host_with_fewer_addresses_repeats_them() {
        let (mut rails, peer, main) = learnt(3, 2);
        let routes: Vec<_> = (0..3).map(|_| rails.begin(&peer, main, &[]).unwrap()).collect();
        let ends: Vec<_> =
            routes.iter().map(|route| (route.own.unwrap(), route.address.ip())).collect();
        let [first, second] = [addresses(2, 2)[0].ip(), addresses(2, 2)[1].ip()];
        assert_eq!(ends, [(0, first), (1, second), (2, first)]);

        let (mut rails, peer, main) = learnt(1, 2);
        let route = rails.begin(&peer, main, &[]);
        assert_eq!(route.unwrap().own, None, "the system chooses the only card");
    }

    #[test]
    fn the_addresses_of_an_incoming_connection_name_its_route() {
        let (rails, peer, main) = learnt(3, 2);
        let [first, second] = [addresses(2, 2)[0], addresses(2, 2)[1]];
        let number = |own, from: SocketAddr| {
            let (found, route) = rails.incoming(&peer, Some(own), from.ip())?;
            assert_eq!(found, main);
            Some(route.number)
        };
        assert_eq!([number(0, first), number(1, second)], [Some(0), Some(1)]);
        assert_eq!([number(2, first), number(0, second)], [Some(2), None]);
        assert_eq!(rails.incoming(&node("other"), Some(0), first.ip()), None);
    }

    #[test]
    fn a_peer_with_one_address_or_another_first_address_has_one_route() {
        let (mut rails, peer, main) = learnt(2, 1);
        assert_eq!((rails.begin(&peer, main, &[]), rails.routes(&peer)), (None, 1));
        let (mut rails, peer, _) = learnt(2, 2);
        let moved = addresses(9, 1)[0];
        assert_eq!(rails.begin(&peer, moved, &[]), None);
        rails.learn(&peer, &vec![moved; MAX_RAILS + 1]);
        assert_eq!(rails.begin(&peer, moved, &[]), None);
        assert!(!rails.failed(T0, &peer, Route::only(moved)));
    }

    #[test]
    fn a_failed_route_is_avoided_until_a_test_succeeds() {
        let (mut rails, peer, main) = learnt(2, 2);
        let first = rails.begin(&peer, main, &[]).unwrap();
        assert!(rails.has_other(&peer, first));
        assert!(rails.failed(T0, &peer, first), "it had worked");
        assert!(!rails.failed(T0, &peer, first), "a connection from before");
        assert_eq!(rails.failed_routes().collect::<Vec<_>>(), [first]);
        rails.end(&peer, first);
        assert_eq!(rails.begin(&peer, main, &[1]).unwrap().number, 1);
        let (early, due) = (T0 + FIRST_RETRY / 2, T0 + FIRST_RETRY);
        assert_eq!(rails.tests(early), []);
        assert_eq!(rails.tests(due), [(peer.clone(), main, first)]);
        assert_eq!(rails.used(), [1, 1], "a test counts as a connection");
        assert!(!rails.failed(due, &peer, first), "the test fails");
        assert_eq!(rails.tests(due + FIRST_RETRY), []);
        assert!(rails.worked(&peer, first));
        assert!(!rails.worked(&peer, first));
        rails.end(&peer, first);
        assert_eq!(rails.begin(&peer, main, &[]).unwrap().number, 0);

        rails.failed(T0, &peer, first);
        assert_eq!(rails.tests(T0 + 3 * FIRST_RETRY), [], "it delivered nothing in between");
        rails.worked(&peer, first);
        rails.delivered(&peer, first);
        rails.failed(T0, &peer, first);
        assert_eq!(rails.tests(T0 + FIRST_RETRY).len(), 1);
    }

    #[test]
    fn without_a_working_route_the_earliest_test_counts() {
        let (mut rails, peer, main) = learnt(2, 2);
        let routes = [0, 1].map(|_| rails.begin(&peer, main, &[]).unwrap());
        rails.failed(T0 + FIRST_RETRY, &peer, routes[0]);
        rails.failed(T0, &peer, routes[1]);
        assert!(!rails.has_other(&peer, routes[1]));
        assert_eq!(rails.begin(&peer, main, &[]).unwrap().number, 1);
        assert_eq!(rails.failed_routes().count(), 0, "the peer itself is unreachable");
        rails.failed(T0 + GONE_AFTER, &peer, routes[0]);
        assert!(rails.begin(&peer, main, &[]).is_some());
        rails.failed(T0 + 2 * GONE_AFTER, &peer, routes[1]);
        assert_eq!(rails.begin(&peer, main, &[]), None, "the peer is gone");
    }

    #[test]
    fn all_routes_of_an_unused_peer_are_tested_together() {
        let (mut rails, peer, main) = learnt(2, 2);
        let first = rails.begin(&peer, main, &[]).unwrap();
        rails.failed(T0, &peer, first);
        rails.end(&peer, first);
        assert_eq!(rails.tests(T0), []);
        let tests = rails.tests(T0 + FIRST_RETRY);
        assert_eq!(tests.iter().map(|(.., route)| route.number).collect::<Vec<_>>(), [1, 0]);
    }

    #[test]
    fn the_number_of_peers_is_bounded() {
        let (mut rails, peer, main) = learnt(2, 2);
        let used = rails.begin(&peer, main, &[]).unwrap();
        for number in 0..MAX_PEERS + 5 {
            rails.learn(&node(&format!("n{number}")), &addresses(1, 2));
        }
        assert_eq!(rails.peers.len(), MAX_PEERS);
        assert!(rails.has_other(&peer, used), "it is in use");
        rails.learn(&peer, &addresses(7, 3));
        assert_eq!(rails.routes(&peer), 3, "known peers may change");
    }

    proptest! {
        #[test]
        fn every_connection_is_counted_once(
            own in 1..4_usize,
            steps in prop::collection::vec((0..6_u8, 1..4_u8, any::<u8>()), 1..80),
        ) {
            let (mut rails, peer, mut now) = (Rails::new(own), node("peer"), T0);
            let main = addresses(2, 1)[0];
            let mut open = Vec::new();
            for (step, count, pick) in steps {
                let picked = usize::from(pick) % open.len().max(1);
                match step {
                    0 => rails.learn(&peer, &addresses(2, count)),
                    1 => open.extend(rails.begin(&peer, main, &[0, 1])),
                    2 => open.extend(rails.tests(now).into_iter().map(|(_, _, route)| route)),
                    3 if !open.is_empty() => rails.end(&peer, open.swap_remove(picked)),
                    4 if !open.is_empty() => drop(rails.failed(now, &peer, open[picked])),
                    _ => now = now + FIRST_RETRY,
                }
                let bound = open.iter().filter(|route| route.own.is_some()).count();
                prop_assert_eq!(rails.used().iter().sum::<usize>(), bound);
            }
        }
    }
}
