//! Measured places: groups of nodes and the capacity of their uplinks, from a probe.
//!
//! Measurements only add groups within the innermost labelled group. Places are soft state; the
//! highest version counts.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Matrix;
use super::cluster::Dendrogram;
use super::error::TopologyError;
use super::matrix::Links;
use super::place::{EVERYWHERE, MAX_LEVELS, Path, is_in, level, number_of_measured};
use crate::id::NodeId;
use crate::link::Uplink;

/// Most nodes whose groups are measured: a megabyte on the wire with names of 40 bytes.
pub const MAX_MEASURED_NODES: usize = 16_384;
/// Highest version of [`MeasuredPlaces`], in milliseconds since 1970.
pub const MAX_VERSION: u64 = i64::MAX as u64;
/// Groups are formed by the time of a message of this size, because rates under load separate
/// groups better than round trips.
const MESSAGE_BYTES: u64 = 1 << 20;

/// Returns a version that replaces all known ones, whatever the clocks show.
pub fn version_above(known: impl IntoIterator<Item = u64>, since_1970: Duration) -> u64 {
    let now = u64::try_from(since_1970.as_millis()).unwrap_or(MAX_VERSION);
    let next = known.into_iter().max().map_or(1, |known| known.saturating_add(1));
    now.max(next).min(MAX_VERSION)
}

/// Each node's measured groups, and their uplinks.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct MeasuredPlaces {
    /// Shards keep the places with the highest version; on ties the larger content, so that all
    /// shards agree. Zero means unmeasured.
    pub version: u64,
    /// Capacity of the groups' uplinks.
    pub uplink: Uplink,
    /// Groups of each node in a measured group.
    pub paths: BTreeMap<NodeId, Path>,
}

impl MeasuredPlaces {
    /// Computes each node's groups from links measured under load, and from labels. If no links are
    /// much slower than others, there are no groups.
    ///
    /// # Errors
    /// Fails if sums of costs overflow.
    pub fn of(
        matrix: &Matrix,
        labels: impl Fn(&str) -> Path,
        version: u64,
    ) -> Result<Self, TopologyError> {
        let mut paths = measured_paths(matrix, MESSAGE_BYTES)?;
        let is_found: Vec<bool> = paths.iter().map(|path| *path != EVERYWHERE).collect();
        let labels: Vec<Path> = matrix.nodes().iter().map(|name| labels(name)).collect();
        refine(&mut paths, &labels);
        let Groups { paths, uplink } = Groups::with_paths(matrix, paths);
        let named =
            matrix.nodes().iter().zip(paths).zip(is_found).filter(|(_, is_found)| *is_found);
        let paths =
            named.filter_map(|((name, path), _)| Some((NodeId::new(name).ok()?, path))).collect();
        Ok(Self { version, uplink, paths })
    }

    /// Counts the groups of the innermost level.
    pub fn groups(&self) -> usize {
        let mut groups: Vec<&Path> = self.paths.values().collect();
        groups.sort_unstable();
        groups.dedup();
        groups.len()
    }
}

/// Groups of close nodes in a matrix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Groups {
    /// Each node's groups.
    pub paths: Vec<Path>,
    /// Capacity of the groups' uplinks, from rates under load.
    pub uplink: Uplink,
}

impl Groups {
    /// Computes the groups and uplinks of a matrix measured under load.
    ///
    /// # Errors
    /// Fails if sums of costs overflow.
    pub fn of(matrix: &Matrix) -> Result<Self, TopologyError> {
        Ok(Self::with_paths(matrix, measured_paths(matrix, MESSAGE_BYTES)?))
    }

    /// Computes the groups by latency alone, without the capacity of uplinks.
    ///
    /// # Errors
    /// Fails if sums of costs overflow.
    pub fn of_latencies(matrix: &Matrix) -> Result<Self, TopologyError> {
        Ok(Self { paths: measured_paths(matrix, 0)?, uplink: Uplink::default() })
    }

    /// Returns `true` if there are no groups.
    pub fn is_empty(&self) -> bool {
        self.paths.iter().all(|path| *path == EVERYWHERE)
    }

    /// Computes the capacity of the uplinks of given groups.
    pub fn with_paths(matrix: &Matrix, paths: Vec<Path>) -> Self {
        let uplink =
            Uplink::of_levels(std::array::from_fn(|level| narrowest_uplink(matrix, &paths, level)));
        Self { paths, uplink }
    }
}

fn measured_paths(matrix: &Matrix, message_bytes: u64) -> Result<Vec<Path>, TopologyError> {
    let dendrogram = Dendrogram::new(Links::new(matrix, message_bytes)?);
    let order: Vec<u32> = (0..matrix.len() as u32).collect();
    let mut paths: Vec<Path> = dendrogram.places(&order).iter().map(|place| place.path).collect();
    for level in 0..MAX_LEVELS {
        if !divides(&paths, level) {
            paths.iter_mut().for_each(|path| path[level] = 0);
        }
        number_by_first(&mut paths, level, matrix.nodes());
    }
    Ok(paths)
}

/// Replaces measured groups by labelled ones, but keeps measured levels that divide a labelled
/// group.
fn refine(paths: &mut [Path], labels: &[Path]) {
    let mut labelled: BTreeMap<Path, Vec<usize>> = BTreeMap::new();
    for (node, label) in labels.iter().enumerate().filter(|(_, label)| **label != EVERYWHERE) {
        labelled.entry(*label).or_default().push(node);
    }
    for (label, nodes) in labelled {
        let labelled_levels =
            label.iter().rposition(|number| *number != 0).map_or(0, |last| last + 1);
        let mut inside: Vec<Path> = nodes.iter().map(|node| paths[*node]).collect();
        inside
            .iter_mut()
            .for_each(|path| path[..labelled_levels].copy_from_slice(&label[..labelled_levels]));
        for level in labelled_levels..MAX_LEVELS {
            if !divides(&inside, level) {
                inside.iter_mut().for_each(|path| path[level] = 0);
            }
        }
        for (node, path) in nodes.into_iter().zip(inside) {
            paths[node] = path;
        }
    }
}

/// Numbers groups by their first member's name, so that all measurements agree.
fn number_by_first(paths: &mut [Path], level: usize, names: &[String]) {
    let mut firsts: BTreeMap<u32, &String> = BTreeMap::new();
    for (path, name) in paths.iter().zip(names).filter(|(path, _)| path[level] != 0) {
        let first = firsts.entry(path[level]).or_insert(name);
        *first = name.min(*first);
    }
    for path in paths.iter_mut() {
        path[level] = firsts.get(&path[level]).map_or(0, |first| number_of_measured(level, first));
    }
}

/// Returns `true` if a level has several groups. A single node with slow links does not count as a
/// group.
fn divides(paths: &[Path], level: usize) -> bool {
    let mut sizes: BTreeMap<&[u32], usize> = BTreeMap::new();
    for path in paths {
        *sizes.entry(&path[..=level]).or_default() += 1;
    }
    sizes.values().filter(|size| **size > 1).count() > 1
}

/// Returns the smallest uplink capacity of a level's groups, in thousandths of a node's link; zero
/// without groups.
///
/// Under load, all pairs that cross a group's border share its uplink. Its capacity is one pair's
/// rate times the mean number of such pairs. Pairs that also cross outer uplinks may be slower, so
/// rates at the same distance (number of crossed levels) are averaged first.
fn narrowest_uplink(matrix: &Matrix, paths: &[Path], of_level: usize) -> u32 {
    let mut groups: BTreeMap<Path, Vec<usize>> = BTreeMap::new();
    for (node, path) in paths.iter().enumerate().filter(|(_, path)| path[of_level] != 0) {
        let mut group = EVERYWHERE;
        group[..=of_level].copy_from_slice(&path[..=of_level]);
        groups.entry(group).or_default().push(node);
    }
    let permille = groups.into_iter().filter_map(|(group, inside)| {
        let outside: Vec<usize> =
            (0..paths.len()).filter(|node| !is_in(paths[*node], group)).collect();
        let mut gaps: [Gaps; MAX_LEVELS + 1] = Default::default();
        let mut near = Gaps::default();
        let (cells, others) = (cells(matrix, paths, &inside), cells(matrix, paths, &outside));
        for ((block, path), cell) in &cells {
            for ((other_block, other_path), other) in &others {
                gaps[level(*path, *other_path)].add(matrix, (*block, cell), (*other_block, other));
            }
            for ((other_block, _), other) in cells.iter().filter(|((_, other), _)| other == path) {
                near.add(matrix, (*block, cell), (*other_block, other));
            }
        }
        let near = near.median().filter(|near| *near > 0).map(f64::from)?;
        let pairs = (inside.len() * outside.len()) as f64;
        let rates = gaps.into_iter().filter_map(|gaps| {
            let part = gaps.pairs as f64 / pairs;
            Some(part * near / f64::from(gaps.median()?.max(1)))
        });
        let links = rates.sum::<f64>() * crossing_pairs(inside.len(), paths.len());
        Some(((links.min(inside.len() as f64) * 1000.0).round() as u32).max(1))
    });
    permille.min().unwrap_or(0)
}

/// Nodes of one block and group. One link stands for all their links to another block.
type Cells = BTreeMap<(u32, Path), Vec<usize>>;

fn cells(matrix: &Matrix, paths: &[Path], nodes: &[usize]) -> Cells {
    let mut cells = Cells::new();
    for &node in nodes {
        let block = matrix.blocks().map_or(0, |blocks| blocks.block(node));
        cells.entry((block, paths[node])).or_default().push(node);
    }
    cells
}

#[derive(Default)]
struct Gaps {
    gaps: Vec<(u32, u32)>,
    pairs: usize,
}

impl Gaps {
    fn add(
        &mut self,
        matrix: &Matrix,
        (block, cell): (u32, &[usize]),
        (other_block, other): (u32, &[usize]),
    ) {
        let gap = |one: usize, other: usize| matrix.link(one, other).ps_per_byte;
        if block == other_block {
            let pairs = cell.iter().flat_map(|one| other.iter().map(move |other| (*one, *other)));
            let before = self.gaps.len();
            self.gaps
                .extend(pairs.filter(|(one, other)| one != other).map(|(a, b)| (gap(a, b), 1)));
            self.pairs += self.gaps.len() - before;
        } else {
            self.gaps.push((gap(cell[0], other[0]), (cell.len() * other.len()) as u32));
            self.pairs += cell.len() * other.len();
        }
    }

    fn median(mut self) -> Option<u32> {
        self.gaps.sort_unstable();
        let mut before = 0;
        let gap = self.gaps.iter().find(|(_, pairs)| {
            before += *pairs as usize;
            before > self.pairs / 2
        });
        gap.map(|(gap, _)| *gap)
    }
}

/// Returns the number of pairs that cross a group's border in a random matching of nodes, as a
/// crossing pair finds it on average. `inside` of `all` nodes are in the group.
///
/// With a nodes inside and b outside, k crossing pairs have a probability proportional to C(a, k)
/// C(b, k) k! (a-k-1)!! (b-k-1)!!.
fn crossing_pairs(inside: usize, all: usize) -> f64 {
    // With an odd number, one node rests.
    let outside = all + all % 2 - inside;
    let (mut weights, mut total, mut squares) = (1.0_f64, 0.0, 0.0);
    let mut k = inside % 2;
    while k <= inside.min(outside) {
        total += weights * k as f64;
        squares += weights * (k * k) as f64;
        // k + 2 crossing pairs instead of k leave fewer nodes for pairs on each side.
        let (a, b) = ((inside - k) as f64, (outside - k) as f64);
        weights *= a * b / ((k + 1) * (k + 2)) as f64;
        k += 2;
        // Scaling keeps the sums' ratios.
        if weights > 1e200 {
            (weights, total, squares) = (weights / 1e200, total / 1e200, squares / 1e200);
        }
    }
    if total > 0.0 { squares / total } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{Link, Place};

    fn measured(racks: &[usize], near: u32, far: u32) -> MeasuredPlaces {
        let rack_of: Vec<usize> = racks
            .iter()
            .enumerate()
            .flat_map(|(rack, hosts)| std::iter::repeat_n(rack, *hosts))
            .collect();
        let names = (0..rack_of.len()).map(|node| format!("h{node:02}")).collect();
        let matrix = Matrix::from_links(names, |high, low| {
            let ps_per_byte = if rack_of[high] == rack_of[low] { near } else { far };
            Ok(Link { alpha_ns: 100_000, ps_per_byte })
        });
        MeasuredPlaces::of(&matrix.unwrap(), |_| EVERYWHERE, 1).unwrap()
    }

    fn in_zones(rack_of: [usize; 8], labels: impl Fn(&str) -> Path) -> BTreeMap<NodeId, Path> {
        let names = (0..8).map(|node| format!("h{node:02}")).collect();
        let matrix = Matrix::from_links(names, |a, b| {
            let ps_per_byte = if rack_of[a] == rack_of[b] { 40_000 } else { 224_000 };
            Ok(Link { alpha_ns: 100_000, ps_per_byte })
        });
        MeasuredPlaces::of(&matrix.unwrap(), labels, 1).unwrap().paths
    }

    fn zone(name: &str) -> Path {
        let zone = if name < "h04" { "a" } else { "b" };
        Place::of_labels(&[("zone".to_owned(), zone.to_owned())]).path
    }

    fn row(paths: &BTreeMap<NodeId, Path>) -> Vec<Path> {
        (0..8).map(|node| paths[&NodeId::new(&format!("h{node:02}")).unwrap()]).collect()
    }

    #[test]
    fn measured_racks_refine_labelled_zones() {
        let paths = row(&in_zones([0, 0, 1, 1, 2, 2, 3, 3], zone));
        for (node, path) in paths.iter().enumerate() {
            assert_eq!(path[..3], zone(&format!("h{node:02}"))[..3], "labels are kept");
            assert!(path[3] != 0 && *path == paths[node / 2 * 2], "in its rack");
        }
        assert!(paths[0] != paths[2] && paths[4] != paths[6]);
    }

    #[test]
    fn a_measured_group_of_two_zones_is_cut_at_the_labels() {
        let paths = row(&in_zones([0, 0, 1, 1, 1, 1, 2, 2], zone));
        assert_eq!((paths[2][3], paths[2] == paths[3]), (paths[4][3], true));
        assert!(paths[2] != paths[4] && paths[2][0] == paths[0][0] && paths[4][0] == paths[6][0]);
    }

    #[test]
    fn measured_groups_that_divide_no_labelled_group_are_ignored() {
        for rack_of in [[0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 3, 1, 1, 1, 1]] {
            let paths = row(&in_zones(rack_of, zone));
            assert!(
                paths.iter().enumerate().all(|(node, path)| *path == zone(&format!("h{node:02}")))
            );
        }
        let host = |name: &str| Place::of_labels(&[("host".to_owned(), name[..2].to_owned())]).path;
        let paths = row(&in_zones([0, 0, 0, 0, 1, 1, 1, 1], host));
        assert!(paths.iter().all(|path| *path == host("h0")));
    }

    #[test]
    fn a_version_is_above_all_known_versions() {
        let at = |millis| Duration::from_millis(millis);
        assert_eq!(version_above([], at(0)), 1, "a clock that was never set");
        assert_eq!(version_above([7, 900, 8], at(1000)), 1000);
        assert_eq!(version_above([7, 1000, 8], at(1000)), 1001, "two in a millisecond");
        assert_eq!(version_above([2000], at(1000)), 2001, "a clock that has jumped back");
        assert_eq!(version_above([u64::MAX], Duration::MAX), MAX_VERSION);
    }

    #[test]
    fn all_matchings_are_counted() {
        // Of all matchings of two racks of two, one has no crossing pair, and two have two.
        assert!((crossing_pairs(2, 4) - 2.0).abs() < 1e-9);
        // Of two racks of four, 9 have no crossing pair, 72 have two, and 24 have four.
        let expected = f64::from(72 * 4 + 24 * 16) / f64::from(72 * 2 + 24 * 4);
        assert!((crossing_pairs(4, 8) - expected).abs() < 1e-9);
        assert!((crossing_pairs(4, 1000) - 4.0).abs() < 0.05);
        assert!((crossing_pairs(1, 3) - 1.0).abs() < 1e-9);
        assert!(crossing_pairs(5000, 10_000).is_finite());
    }

    #[test]
    fn racks_and_the_capacity_of_their_uplinks() {
        // 2.8 pairs share an uplink with half a host's rate.
        let places = measured(&[4, 4], 40_000, 224_000);
        assert_eq!((places.groups(), places.paths.len()), (2, 8));
        assert_eq!(places.uplink, Uplink::of_levels([0, 0, 0, 500]));
        let path = |name: &str| places.paths[&NodeId::new(name).unwrap()];
        assert!(
            path("h00") == path("h03") && path("h04") == path("h07") && path("h00") != path("h04")
        );
    }

    #[test]
    fn a_group_has_the_same_number_in_every_probe_that_finds_it() {
        let (before, after) =
            (measured(&[4, 4], 40_000, 224_000), measured(&[4, 4, 4], 40_000, 224_000));
        let numbers = |places: &MeasuredPlaces| {
            let mut numbers: Vec<u32> = places.paths.values().map(|path| path[3]).collect();
            numbers.dedup();
            numbers
        };
        let (before, after) = (numbers(&before), numbers(&after));
        assert_eq!((before.len(), after.len()), (2, 3));
        assert_eq!(after[..2], before);
        let label =
            |value: &str| Place::of_labels(&[("host".to_owned(), value.to_owned())]).path[3];
        assert!(
            before
                .iter()
                .all(|number| *number > 3 && *number != label("h00") && *number != label("h04"))
        );
    }

    #[test]
    fn an_uplink_carries_no_more_than_all_hosts_send() {
        assert_eq!(measured(&[4, 4], 40_000, 70_000).uplink, Uplink::of_levels([0, 0, 0, 1600]));
        assert_eq!(
            measured(&[2, 2, 2, 2, 2, 2], 40_000, 70_000).uplink,
            Uplink::of_levels([0, 0, 0, 1143])
        );
    }

    #[test]
    fn without_slow_links_there_are_no_groups() {
        for places in [
            measured(&[8], 40_000, 0),
            measured(&[4, 4], 40_000, 50_000),
            measured(&[7, 1], 40_000, 400_000),
        ] {
            assert_eq!(places, MeasuredPlaces { version: 1, ..MeasuredPlaces::default() });
        }
    }
}
