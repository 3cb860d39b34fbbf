//! A network with the measured rate of each pair of nodes. Pairs that cross a group's border share
//! its uplink, whose capacity is given, or follows from rates under load.

use std::collections::BTreeMap;

use super::link::LinkId;
use hoplite_core::topology::TopologyError;
use hoplite_core::topology::matrix::{Link, Matrix};
use hoplite_core::topology::measured::Groups;
use hoplite_core::topology::place::{EVERYWHERE, MAX_LEVELS, Path, groups_of, is_in, number_of};

/// A network of measured latencies and rates.
#[derive(Debug, Clone, PartialEq)]
pub struct MeasuredNetwork {
    matrix: Matrix,
    /// For each node, the picoseconds per byte of its fastest link; zero if unknown.
    node_gaps: Vec<u32>,
    paths: Vec<Path>,
    uplink_gaps: BTreeMap<Path, f64>,
    /// As [`Self::uplinks()`]; zero if unknown.
    uplinks: [f64; MAX_LEVELS],
    /// `true` if the capacities follow from rates under load.
    is_derived: bool,
}

impl MeasuredNetwork {
    /// Makes a network whose pairs share only the links of nodes.
    pub fn unshared(matrix: Matrix) -> Self {
        let nodes = matrix.len();
        let gap = |node: usize| {
            let gaps = (0..nodes)
                .filter(|other| *other != node)
                .map(|other| matrix.link(node, other).ps_per_byte);
            gaps.min().unwrap_or(0)
        };
        Self {
            node_gaps: (0..nodes).map(gap).collect(),
            paths: vec![EVERYWHERE; nodes],
            uplink_gaps: BTreeMap::new(),
            uplinks: [0.0; MAX_LEVELS],
            is_derived: false,
            matrix,
        }
    }

    /// Makes a network whose groups share uplinks.
    ///
    /// `groups` names each node's groups, outermost first. Without it, groups follow from the
    /// rates, or from latencies if rates show none and capacities are given.
    ///
    /// `uplinks` has the capacity at each level, outermost first, or one for all levels, as
    /// multiples of a node link's capacity. Without it, capacities follow from the matrix, which
    /// must have rates under load.
    ///
    /// # Errors
    /// Fails if sums of costs overflow, or if groups or capacities are missing for a node or level.
    pub fn shared(
        matrix: Matrix,
        groups: Option<&[Vec<String>]>,
        uplinks: Option<&[f64]>,
    ) -> Result<Self, SharedError> {
        let groups = match groups {
            Some(names) => Groups::with_paths(&matrix, named_paths(names, matrix.len())?),
            None => match Groups::of(&matrix)? {
                none if none.is_empty() && uplinks.is_some() => Groups::of_latencies(&matrix)?,
                groups => groups,
            },
        };
        let used: Vec<usize> = (0..MAX_LEVELS)
            .filter(|level| groups.paths.iter().any(|path| path[*level] != 0))
            .collect();
        let mut capacities = [0.0; MAX_LEVELS];
        match uplinks {
            Some(given) if used.is_empty() || (given.len() != 1 && given.len() != used.len()) => {
                return Err(SharedError::Levels { given: given.len(), levels: used.len() });
            }
            Some(given) if !given.iter().all(|links| *links > 0.0 && links.is_finite()) => {
                return Err(SharedError::Capacity);
            }
            Some(given) => {
                for (&level, &links) in used.iter().zip(given.iter().cycle()) {
                    capacities[level] = links;
                }
            }
            None => {
                capacities = groups.uplink.levels().map(|permille| f64::from(permille) / 1000.0)
            }
        }
        let mut network = Self::unshared(matrix);
        (network.paths, network.uplinks, network.is_derived) =
            (groups.paths, capacities, uplinks.is_none());
        network.uplink_gaps = network.gaps_of_uplinks();
        Ok(network)
    }

    fn gaps_of_uplinks(&self) -> BTreeMap<Path, f64> {
        let mut members: BTreeMap<Path, Vec<u32>> = BTreeMap::new();
        for (path, gap) in self.paths.iter().zip(&self.node_gaps) {
            for group in groups_of(*path).filter(|group| *group != EVERYWHERE) {
                members.entry(group).or_default().push(*gap);
            }
        }
        let gap = |(group, mut gaps): (Path, Vec<u32>)| {
            gaps.sort_unstable();
            let level = group.iter().rposition(|number| *number != 0)?;
            let links = self.uplinks[level];
            (links > 0.0).then(|| (group, f64::from(gaps[gaps.len() / 2]) / links))
        };
        members.into_iter().filter_map(gap).collect()
    }

    /// Number of nodes.
    pub fn hosts(&self) -> u32 {
        self.matrix.len() as u32
    }

    /// Number of groups with an uplink.
    pub fn groups(&self) -> usize {
        self.uplink_gaps.len()
    }

    /// Known capacities of the uplinks, outermost level first, as multiples of a node link's
    /// capacity.
    pub fn uplinks(&self) -> Vec<f64> {
        self.uplinks.into_iter().filter(|links| *links > 0.0).collect()
    }

    pub(super) fn route(&self, from: u32, to: u32) -> impl Iterator<Item = LinkId> {
        let (start, end) = (self.paths[from as usize], self.paths[to as usize]);
        let crossed = move |path: Path, other: Path| {
            let groups =
                groups_of(path).filter(move |group| *group != EVERYWHERE && !is_in(other, *group));
            groups.filter(|group| self.uplink_gaps.contains_key(group))
        };
        let up = crossed(start, end).map(|group| LinkId::Uplink { group, is_up: true });
        let down = crossed(end, start).map(|group| LinkId::Uplink { group, is_up: false });
        let mut uplinks = up.chain(down).peekable();
        let has_own = !self.is_derived || uplinks.peek().is_none();
        has_own.then_some(LinkId::Pair(from, to)).into_iter().chain(uplinks)
    }

    pub(super) fn gap(&self, link: LinkId) -> f64 {
        match link {
            LinkId::FromHost(host) | LinkId::ToHost(host) => self.node_gaps[host as usize].into(),
            LinkId::Pair(a, b) => self.link(a, b).ps_per_byte.into(),
            LinkId::Uplink { group, .. } => self.uplink_gaps.get(&group).copied().unwrap_or(0.0),
            _ => 0.0,
        }
    }

    pub(super) fn link(&self, a: u32, b: u32) -> Link {
        self.matrix.link(a as usize, b as usize)
    }
}

fn named_paths(names: &[Vec<String>], nodes: usize) -> Result<Vec<Path>, SharedError> {
    if names.len() != nodes {
        return Err(SharedError::Groups { count: names.len(), nodes });
    }
    let levels = names.iter().map(Vec::len).max().unwrap_or(0);
    let Some(first) = MAX_LEVELS.checked_sub(levels) else {
        return Err(SharedError::TooDeep { levels });
    };
    let path = |names: &Vec<String>| {
        let mut path = EVERYWHERE;
        for (number, name) in path[first..].iter_mut().zip(names) {
            *number = number_of(name);
        }
        path
    };
    Ok(names.iter().map(path).collect())
}

/// Reason why groups of nodes, or capacities of their uplinks, do not fit a matrix of links.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say it")]
pub enum SharedError {
    #[error("there are groups for {count} nodes, not for {nodes}")]
    Groups { count: usize, nodes: usize },
    #[error("{levels} levels of groups are more than {MAX_LEVELS}")]
    TooDeep { levels: usize },
    #[error("there are {given} capacities of uplinks for {levels} levels of groups")]
    Levels { given: usize, levels: usize },
    #[error("the capacity of an uplink must be above zero and finite")]
    Capacity,
    #[error(transparent)]
    Topology(#[from] TopologyError),
}
