//! Chooses the network cards (rails) of connections between hosts with several addresses.
//!
//! Address `k` of one host pairs with address `k` of the other, because such networks are often
//! separate. If one host has more addresses, those of the other repeat.
//!
//! A new connection takes the pair with the fewest connections, and among these the least used
//! card of this host. A pair that failed gets no request while another works. Additional
//! connections of a transfer (lanes) try it again, at growing intervals.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use crate::id::NodeId;
use crate::time::Time;

/// Most addresses of a host.
pub const MAX_RAILS: usize = 16;
/// Longest time without any byte over one rail while another works.
pub const RAIL_TIMEOUT: Duration = Duration::from_millis(500);
/// Longest time without an answer over one rail while another works. Senders without bytes send a
/// keepalive each second.
pub const RAIL_ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

const MAX_PEERS: usize = 4096;
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(32);

/// Pair of addresses for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// Number of this host's address; `None` if the system chooses it.
    pub own: Option<usize>,
    /// Peer's address.
    pub address: SocketAddr,
    /// Number of the pair.
    pub pair: usize,
}

impl Route {
    /// Route to a peer with one address.
    pub const fn only(address: SocketAddr) -> Self {
        Self { own: None, address, pair: 0 }
    }
}

/// Purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A request.
    Request,
    /// An additional connection of a transfer, whose other connections deliver already.
    Lane,
}

/// Connections of this host to hosts with several addresses.
#[derive(Debug)]
pub struct Rails {
    /// Open connections from each of this host's addresses.
    used: Vec<usize>,
    peers: BTreeMap<NodeId, PeerRails>,
}

#[derive(Debug)]
struct PeerRails {
    addresses: Vec<SocketAddr>,
    pairs: Vec<Pair>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Pair {
    used: usize,
    /// Successive failures.
    failures: u32,
    retry_at: Time,
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
        let is_known = self.peers.get(peer).map(|known| known.addresses == addresses);
        if is_known == Some(true) || (is_known.is_none() && self.peers.len() >= MAX_PEERS) {
            return;
        }
        let pairs = vec![Pair::default(); self.used.len().max(addresses.len())];
        self.peers.insert(peer.clone(), PeerRails { addresses: addresses.to_vec(), pairs });
    }

    /// Begins a connection to a peer, whose first address is `main`. Returns `None` if no other
    /// address is known.
    pub fn begin(
        &mut self,
        now: Time,
        peer: &NodeId,
        main: SocketAddr,
        purpose: Purpose,
    ) -> Option<Route> {
        let known = self.peers.get_mut(peer).filter(|known| known.addresses[0] == main)?;
        let own = |pair: usize| (self.used.len() > 1).then(|| pair % self.used.len());
        let usable = known.pairs.iter().enumerate().filter(|(_, pair)| {
            pair.failures == 0 || (purpose == Purpose::Lane && pair.retry_at <= now)
        });
        let least = usable.min_by_key(|(number, pair)| {
            (pair.used, own(*number).map_or(0, |own| self.used[own]), *number)
        });
        let earliest = || known.pairs.iter().enumerate().min_by_key(|(_, pair)| pair.retry_at);
        let (pair, _) = least.or_else(earliest)?;
        let own = own(pair);
        known.pairs[pair].used += 1;
        if let Some(own) = own {
            self.used[own] += 1;
        }
        Some(Route { own, address: known.addresses[pair % known.addresses.len()], pair })
    }

    /// Counts a connection to `main` that was opened before the other addresses were known. It
    /// leaves from this host's address number `own`, if known.
    pub fn adopt(&mut self, peer: &NodeId, main: SocketAddr, own: Option<usize>) -> Option<Route> {
        let route = Route { own, address: main, pair: 0 };
        self.pair(peer, route)?.used += 1;
        if let Some(used) = own.and_then(|own| self.used.get_mut(own)) {
            *used += 1;
        }
        Some(route)
    }

    /// Ends a connection.
    pub fn end(&mut self, peer: &NodeId, route: Route) {
        if let Some(used) = route.own.and_then(|own| self.used.get_mut(own)) {
            *used = used.saturating_sub(1);
        }
        if let Some(pair) = self.pair(peer, route) {
            pair.used = pair.used.saturating_sub(1);
        }
    }

    /// Notes that a connection could not be opened, or became silent. Returns `true` if its pair
    /// worked before.
    pub fn failed(&mut self, now: Time, peer: &NodeId, route: Route) -> bool {
        let Some(pair) = self.pair(peer, route) else { return false };
        let is_new = pair.failures == 0;
        let wait = FIRST_RETRY.saturating_mul(1 << pair.failures.min(5)).min(LAST_RETRY);
        (pair.failures, pair.retry_at) = (pair.failures.saturating_add(1), now + wait);
        is_new
    }

    /// Notes that a new connection works. Returns `true` if its pair had failed before.
    pub fn worked(&mut self, peer: &NodeId, route: Route) -> bool {
        let Some(pair) = self.pair(peer, route) else { return false };
        std::mem::take(&mut pair.failures) > 0
    }

    /// Returns `true` if another pair works.
    pub fn has_other(&self, peer: &NodeId, route: Route) -> bool {
        let Some(known) = self.peers.get(peer) else { return false };
        let mut pairs = known.pairs.iter().enumerate();
        pairs.any(|(number, pair)| number != route.pair && pair.failures == 0)
    }

    /// Returns the number of pairs that have failed.
    pub fn failed_pairs(&self) -> usize {
        let pairs = self.peers.values().flat_map(|peer| &peer.pairs);
        pairs.filter(|pair| pair.failures > 0).count()
    }

    /// Returns the number of open connections from each of this host's addresses.
    pub fn used(&self) -> &[usize] {
        &self.used
    }

    fn pair(&mut self, peer: &NodeId, route: Route) -> Option<&mut Pair> {
        let known = self.peers.get_mut(peer)?;
        let address = known.addresses[route.pair % known.addresses.len()];
        known.pairs.get_mut(route.pair).filter(|_| address == route.address)
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
    fn connections_are_spread_over_pairs_and_cards() {
        let (mut rails, peer, main) = learnt(2, 2);
        let pairs: Vec<_> =
            (0..4).map(|_| rails.begin(T0, &peer, main, Purpose::Request).unwrap()).collect();
        assert_eq!(pairs.iter().map(|route| route.pair).collect::<Vec<_>>(), [0, 1, 0, 1]);
        assert_eq!(pairs[1].own, Some(1));
        assert_eq!(pairs[1].address, addresses(2, 2)[1]);
        assert_eq!(rails.used(), [2, 2]);
        rails.end(&peer, pairs[1]);
        assert_eq!(rails.used(), [2, 1]);
        rails.learn(&node("other"), &addresses(3, 2));
        let main = addresses(3, 1)[0];
        let other = rails.begin(T0, &node("other"), main, Purpose::Request);
        assert_eq!(other.unwrap().pair, 1, "the less used card");
        let first = rails.adopt(&node("other"), main, Some(0)).unwrap();
        assert_eq!((first.pair, rails.used()), (0, &[3, 2][..]));
        assert_eq!(rails.adopt(&node("other"), addresses(9, 1)[0], None), None);
    }

    #[test]
    fn a_host_with_fewer_addresses_repeats_them() {
        let (mut rails, peer, main) = learnt(3, 2);
        let routes: Vec<_> =
            (0..3).map(|_| rails.begin(T0, &peer, main, Purpose::Request).unwrap()).collect();
        let ends: Vec<_> =
            routes.iter().map(|route| (route.own.unwrap(), route.address.ip())).collect();
        let [first, second] = [addresses(2, 2)[0].ip(), addresses(2, 2)[1].ip()];
        assert_eq!(ends, [(0, first), (1, second), (2, first)]);

        let (mut rails, peer, main) = learnt(1, 2);
        let route = rails.begin(T0, &peer, main, Purpose::Request);
        assert_eq!(route.unwrap().own, None, "the system chooses the only card");
    }

    #[test]
    fn a_peer_with_one_address_or_another_first_address_has_one_route() {
        let (mut rails, peer, main) = learnt(2, 1);
        assert_eq!(rails.begin(T0, &peer, main, Purpose::Lane), None);
        let (mut rails, peer, _) = learnt(2, 2);
        let moved = addresses(9, 1)[0];
        assert_eq!(rails.begin(T0, &peer, moved, Purpose::Request), None);
        rails.learn(&peer, &vec![moved; MAX_RAILS + 1]);
        assert_eq!(rails.begin(T0, &peer, moved, Purpose::Request), None);
        assert!(!rails.failed(T0, &peer, Route::only(moved)));
    }

    #[test]
    fn a_failed_pair_rests_and_lanes_try_it_again() {
        let (mut rails, peer, main) = learnt(2, 2);
        let first = rails.begin(T0, &peer, main, Purpose::Request).unwrap();
        assert!(rails.has_other(&peer, first));
        assert!(rails.failed(T0, &peer, first), "it had worked");
        assert!(!rails.failed(T0, &peer, first), "a second failure is no news");
        assert_eq!(rails.failed_pairs(), 1);
        rails.end(&peer, first);
        let late = T0 + 2 * FIRST_RETRY;
        let pair =
            |rails: &mut Rails, now, purpose| rails.begin(now, &peer, main, purpose).unwrap().pair;
        assert_eq!(pair(&mut rails, T0, Purpose::Lane), 1);
        assert_eq!(pair(&mut rails, late, Purpose::Request), 1, "a request takes no risk");
        assert_eq!(pair(&mut rails, late, Purpose::Lane), 0);
        assert!(rails.worked(&peer, first));
        assert!(!rails.worked(&peer, first));
        assert_eq!(pair(&mut rails, T0, Purpose::Request), 0);
    }

    #[test]
    fn without_a_working_pair_the_earliest_retry_counts() {
        let (mut rails, peer, main) = learnt(2, 2);
        let mut begin = |_| rails.begin(T0, &peer, main, Purpose::Request).unwrap();
        let routes = [0, 1].map(&mut begin);
        rails.failed(T0, &peer, routes[0]);
        rails.failed(T0, &peer, routes[0]);
        rails.failed(T0, &peer, routes[1]);
        assert!(!rails.has_other(&peer, routes[1]));
        assert_eq!(rails.begin(T0, &peer, main, Purpose::Request).unwrap().pair, 1);
        for _ in 0..40 {
            rails.failed(T0, &peer, routes[1]);
        }
        assert_eq!(rails.begin(T0 + LAST_RETRY, &peer, main, Purpose::Lane).unwrap().pair, 0);
    }

    #[test]
    fn the_number_of_peers_is_bounded() {
        let mut rails = Rails::new(2);
        for number in 0..MAX_PEERS + 5 {
            rails.learn(&node(&format!("n{number}")), &addresses(1, 2));
        }
        assert_eq!(rails.peers.len(), MAX_PEERS);
        rails.learn(&node("n0"), &addresses(7, 3));
        assert_eq!(rails.peers[&node("n0")].addresses.len(), 3, "known peers may change");
    }

    proptest! {
        #[test]
        fn every_connection_is_counted_once(
            own in 1..4_usize,
            steps in prop::collection::vec((0..5_u8, 1..4_u8, any::<u8>()), 1..80),
        ) {
            let (mut rails, peer, mut now) = (Rails::new(own), node("peer"), T0);
            let main = addresses(2, 1)[0];
            let mut open = Vec::new();
            for (step, count, pick) in steps {
                match step {
                    0 => rails.learn(&peer, &addresses(2, count)),
                    1 => open.extend(rails.begin(now, &peer, main, Purpose::Request)),
                    2 => open.extend(rails.begin(now, &peer, main, Purpose::Lane)),
                    3 if !open.is_empty() => {
                        rails.end(&peer, open.swap_remove(usize::from(pick) % open.len()));
                    }
                    _ if !open.is_empty() => {
                        rails.failed(now, &peer, open[usize::from(pick) % open.len()]);
                    }
                    _ => now = now + FIRST_RETRY,
                }
                let bound = open.iter().filter(|route| route.own.is_some()).count();
                prop_assert_eq!(rails.used().iter().sum::<usize>(), bound);
            }
        }
    }
}
