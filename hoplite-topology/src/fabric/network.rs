//! Networks of hosts and switches, and the routes of flows. Capacities are relative to a host's
//! link.
//!
//! Source: EFLOPS, sections IV-B and VII-C for BiGraph and fat-tree; BlueConnect, section 3 for the
//! torus.

use std::collections::BTreeMap;

use thiserror::Error;

pub use super::link::LinkId;
use super::measured::MeasuredNetwork;
use hoplite_core::placement::mix;

/// Most hosts, and most nodes in a directory.
pub const MAX_HOSTS: u32 = 65_536;

/// Choice among equally short paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Routing {
    /// The receiver's number modulo the number of paths: static forwarding tables.
    Modulo,
    /// A hash of both ends with this seed: equal-cost multipath.
    Ecmp(u64),
    /// All paths equally.
    Ideal,
}

/// A network of hosts and switches.
#[derive(Debug, Clone, PartialEq)]
pub enum Network {
    /// Two halves of switches with hosts, each linked to all switches of the other half.
    ///
    /// Host h is at switch h / M, in the order upper 0, lower 0, upper 1, .... Hosts of different
    /// halves have one path, hosts of one half a path through each switch of the other half.
    BiGraph {
        /// M, the number of hosts per switch.
        hosts_per_switch: u32,
        /// N, the even number of switches.
        switches: u32,
        /// Choice of a path between hosts of the same half.
        routing: Routing,
    },
    /// Leaf switches with hosts, and spine switches linked to each leaf.
    FatTree {
        /// Number of leaves.
        leaves: u32,
        /// Host h is at leaf h / `hosts_per_leaf`.
        hosts_per_leaf: u32,
        /// Number of spines, whose links have the capacity of hosts' links.
        spines: u32,
        /// Choice of the spine.
        routing: Routing,
    },
    /// A host at each point. Flows go dimension by dimension, the shorter way round, on ties
    /// upwards. The first coordinate changes fastest.
    Torus {
        /// Number of points in each dimension.
        dimensions: Vec<u32>,
    },
    /// A network that a matrix of latencies and rates describes.
    Measured(MeasuredNetwork),
}

/// Reason why a network is invalid.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say it")]
pub enum NetworkError {
    #[error("a network needs hosts, switches and links")]
    Empty,
    #[error("{hosts} hosts are more than {MAX_HOSTS}")]
    TooManyHosts { hosts: u64 },
    #[error("{switches} switches do not form two equal halves")]
    OddSwitches { switches: u32 },
    #[error("no {fabric} has {hosts} hosts: their number must be {needed}")]
    NoSuchSize { fabric: &'static str, hosts: u32, needed: &'static str },
}

impl Network {
    /// Returns the smallest BiGraph whose switches have at most as many hosts as links to the other
    /// half.
    ///
    /// # Errors
    /// Fails unless `hosts` is a power of two of at least two.
    pub fn bigraph(hosts: u32, routing: Routing) -> Result<Self, NetworkError> {
        let (hosts_per_switch, switches) = square(hosts, "BiGraph")?;
        Ok(Self::BiGraph { hosts_per_switch, switches, routing })
    }

    /// Returns a two-level fat-tree with a [`bigraph`](Self::bigraph)'s switches, and as many links
    /// up as down.
    ///
    /// # Errors
    /// Fails unless `hosts` is a power of two of at least two.
    pub fn fat_tree(hosts: u32, routing: Routing) -> Result<Self, NetworkError> {
        let (hosts_per_leaf, leaves) = square(hosts, "fat-tree")?;
        Ok(Self::FatTree { leaves, hosts_per_leaf, spines: hosts_per_leaf, routing })
    }

    /// Returns the most square torus of two dimensions for these hosts.
    ///
    /// # Errors
    /// Fails without hosts, or with too many.
    pub fn torus(hosts: u32) -> Result<Self, NetworkError> {
        check_hosts(hosts.into())?;
        let short = (1..=hosts.isqrt()).rev().find(|side| hosts.is_multiple_of(*side)).unwrap_or(1);
        Ok(Self::Torus { dimensions: vec![hosts / short, short] })
    }

    /// Checks the numbers of hosts, switches and links.
    ///
    /// # Errors
    /// Returns the first problem.
    pub fn check(&self) -> Result<(), NetworkError> {
        let sides: Vec<u32> = match self {
            Self::BiGraph { switches, .. } if switches % 2 == 1 => {
                return Err(NetworkError::OddSwitches { switches: *switches });
            }
            Self::BiGraph { hosts_per_switch, switches, .. } => vec![*hosts_per_switch, *switches],
            Self::FatTree { spines: 0, .. } => return Err(NetworkError::Empty),
            Self::FatTree { leaves, hosts_per_leaf, .. } => vec![*leaves, *hosts_per_leaf],
            Self::Torus { dimensions } => dimensions.clone(),
            Self::Measured(_) => vec![self.hosts()],
        };
        check_hosts(sides.iter().fold(1, |hosts, &side| u64::saturating_mul(hosts, side.into())))
    }

    /// Number of hosts.
    pub fn hosts(&self) -> u32 {
        match self {
            Self::BiGraph { hosts_per_switch, switches, .. } => hosts_per_switch * switches,
            Self::FatTree { leaves, hosts_per_leaf, .. } => leaves * hosts_per_leaf,
            Self::Torus { dimensions } => dimensions.iter().product(),
            Self::Measured(network) => network.hosts(),
        }
    }

    /// Returns the links of a flow, each with its share of the flow.
    pub fn route(&self, from: u32, to: u32) -> Vec<(LinkId, f64)> {
        if let Self::Torus { dimensions } = self {
            return torus_route(dimensions, from, to);
        }
        let mut route = vec![(LinkId::FromHost(from), 1.0), (LinkId::ToHost(to), 1.0)];
        match self {
            Self::BiGraph { hosts_per_switch, switches, routing } => {
                let place = |host: u32| (host / hosts_per_switch % 2, host / hosts_per_switch / 2);
                let ((half, start), (other, end)) = (place(from), place(to));
                let cross = |half: u32, from, to| LinkId::Cross { half: half as u8, from, to };
                if half != other {
                    route.push((cross(half, start, end), 1.0));
                } else if start != end {
                    for (via, part) in ways(*routing, from, to, switches / 2) {
                        route.push((cross(half, start, via), part));
                        route.push((cross(1 - half, via, end), part));
                    }
                }
            }
            Self::FatTree { hosts_per_leaf, spines, routing, .. } => {
                let (start, end) = (from / hosts_per_leaf, to / hosts_per_leaf);
                if start != end {
                    for (spine, part) in ways(*routing, from, to, *spines) {
                        route.push((LinkId::Up { leaf: start, spine }, part));
                        route.push((LinkId::Down { spine, leaf: end }, part));
                    }
                }
            }
            Self::Measured(network) => {
                route.extend(network.route(from, to).map(|link| (link, 1.0)))
            }
            Self::Torus { .. } => {}
        }
        route
    }

    /// Returns a link's capacity, relative to a link with `ps_per_byte`; 1 in a network without
    /// measurements.
    pub fn capacity(&self, link: LinkId, ps_per_byte: f64) -> f64 {
        let Self::Measured(network) = self else { return 1.0 };
        let measured = network.gap(link);
        let is_hosts = matches!(link, LinkId::FromHost(_) | LinkId::ToHost(_));
        let capacity = if measured > 0.0 { ps_per_byte / measured } else { f64::INFINITY };
        if is_hosts { capacity.min(1.0) } else { capacity }
    }

    /// Returns the measured latency between two hosts, if any.
    pub fn latency_s(&self, from: u32, to: u32) -> Option<f64> {
        match self {
            Self::Measured(network) => Some(f64::from(network.link(from, to).alpha_ns) * 1e-9),
            _ => None,
        }
    }
}

/// Splits `hosts` into hosts per switch, and the smallest number of switches at least twice as
/// large.
fn square(hosts: u32, fabric: &'static str) -> Result<(u32, u32), NetworkError> {
    check_hosts(hosts.into())?;
    if hosts < 2 || !hosts.is_power_of_two() {
        return Err(NetworkError::NoSuchSize {
            fabric,
            hosts,
            needed: "a power of two, at least 2",
        });
    }
    let mut switches = 2;
    while u64::from(switches) * u64::from(switches) / 2 < u64::from(hosts) {
        switches *= 2;
    }
    Ok((hosts / switches, switches))
}

fn check_hosts(hosts: u64) -> Result<(), NetworkError> {
    match hosts {
        0 => Err(NetworkError::Empty),
        hosts if hosts > u64::from(MAX_HOSTS) => Err(NetworkError::TooManyHosts { hosts }),
        _ => Ok(()),
    }
}

fn ways(routing: Routing, from: u32, to: u32, count: u32) -> Vec<(u32, f64)> {
    match routing {
        Routing::Modulo => vec![(to % count, 1.0)],
        Routing::Ecmp(seed) => {
            let pair = u64::from(from) << 32 | u64::from(to);
            vec![((mix(mix(seed) ^ pair) % u64::from(count)) as u32, 1.0)]
        }
        Routing::Ideal => (0..count).map(|way| (way, 1.0 / f64::from(count))).collect(),
    }
}

fn torus_route(dimensions: &[u32], from: u32, to: u32) -> Vec<(LinkId, f64)> {
    let mut route = Vec::new();
    let (mut at, mut stride) = (from, 1);
    for (dimension, &side) in dimensions.iter().enumerate() {
        let coordinate = |point: u32| point / stride % side;
        let ahead = (coordinate(to) + side - coordinate(from)) % side;
        let is_ahead = ahead <= side - ahead;
        for _ in 0..ahead.min(side - ahead) {
            route.push((LinkId::Torus { point: at, dimension: dimension as u8, is_ahead }, 1.0));
            let here = coordinate(at);
            let next = if is_ahead { (here + 1) % side } else { (here + side - 1) % side };
            at = at - here * stride + next * stride;
        }
        stride *= side;
    }
    route
}

/// Returns the number of flows on each link.
pub fn loads(network: &Network, flows: &[(u32, u32)]) -> BTreeMap<LinkId, f64> {
    let mut loads = BTreeMap::new();
    for &(from, to) in flows {
        for (link, part) in network.route(from, to) {
            *loads.entry(link).or_default() += part;
        }
    }
    loads
}
