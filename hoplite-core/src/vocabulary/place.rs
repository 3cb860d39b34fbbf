//! Place of a node: its groups, such as its rack, and its position in the order of all nodes.

use crate::vocabulary::placement::{fnv1a, mix};

/// Most levels of groups.
pub const MAX_LEVELS: usize = 4;

/// Keys of place labels, outermost first. A prefix is allowed: `topology.kubernetes.io/zone`.
pub const LEVEL_KEYS: [&str; MAX_LEVELS] = ["zone", "pod", "rack", "host"];

/// Numbers of a node's groups, such as its zone, outermost first; zero at levels without a
/// group.
///
/// A path also names a group: zeros follow the group's own number, and all zeros name the group of
/// all nodes.
pub type Path = [u32; MAX_LEVELS];

/// Group of all nodes.
pub const EVERYWHERE: Path = [0; MAX_LEVELS];

/// A node's place in the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Place {
    /// Node's groups.
    pub path: Path,
    /// Node's rank in the order of all nodes, along which chains of transfers run.
    pub position: u32,
}

impl Place {
    /// Returns the place, without a position, that these `key=value` labels describe. Ignores
    /// unknown keys and repeated levels.
    pub fn of_labels(labels: &[(String, String)]) -> Self {
        let number = |level: &str| {
            let label = labels.iter().find(|(key, value)| is_of(key, level) && !value.is_empty());
            label.map_or(0, |(_, value)| number_of(value))
        };
        Self { path: LEVEL_KEYS.map(number), position: 0 }
    }

    /// Returns the number of levels at which the nodes' groups differ: 0 on one host,
    /// [`MAX_LEVELS`] without a common group.
    pub fn level(&self, other: &Self) -> usize {
        level(self.path, other.path)
    }

    /// Returns the number of positions from this node forward to `to`. The order wraps around:
    /// earlier nodes are farther than later ones.
    pub const fn forward(&self, to: &Self) -> u32 {
        to.position.wrapping_sub(self.position)
    }
}

/// Finds two labels of one level with different groups, such as `zone=a` and
/// `topology.kubernetes.io/zone=b`.
pub fn contradiction(labels: &[(String, String)]) -> Option<[&(String, String); 2]> {
    LEVEL_KEYS.into_iter().find_map(|level| {
        let mut of_level =
            labels.iter().filter(|(key, value)| is_of(key, level) && !value.is_empty());
        let first = of_level.next()?;
        Some([first, of_level.find(|(_, value)| *value != first.1)?])
    })
}

fn is_of(key: &str, level: &str) -> bool {
    key.rsplit('/').next() == Some(level)
}

/// Returns the number of a measured group: a hash of its level and its first node's name, with zero
/// bytes to differ from labels.
pub(crate) fn number_of_measured(level: usize, first: &str) -> u32 {
    number_of(&format!("\0{level}\0{first}"))
}

/// Returns the number of the group with this place label's value: a hash, so that all processes
/// agree. With 1,000 groups, equal hashes merge two groups in one of 10,000 clusters.
pub fn number_of(label: &str) -> u32 {
    let hash = mix(fnv1a(label.as_bytes()));
    ((hash >> 32) as u32).max(1)
}

/// Returns the groups of a node, innermost first, up to the group of all nodes.
pub fn groups_of(path: Path) -> impl Iterator<Item = Path> {
    let within = move |levels: usize| (path[levels - 1] != 0).then(|| group(path, levels));
    (1..=MAX_LEVELS).rev().filter_map(within).chain([EVERYWHERE])
}

/// Returns [`Place::level`] of two paths.
pub fn level(one: Path, other: Path) -> usize {
    let shared = one.iter().zip(&other).take_while(|(one, other)| one == other);
    MAX_LEVELS - shared.count()
}

/// Returns `true` if the node at `path` is in the group `of`.
pub fn is_in(path: Path, of: Path) -> bool {
    let levels = of.iter().rposition(|number| *number != 0).map_or(0, |last| last + 1);
    path[..levels] == of[..levels]
}

fn group(path: Path, levels: usize) -> Path {
    let mut group = EVERYWHERE;
    group[..levels].copy_from_slice(&path[..levels]);
    group
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_distances() {
        let place = |path, position| Place { path, position };
        let a = place([0, 1, 2, 3], 7);
        assert_eq!(a.level(&a), 0);
        assert_eq!(a.level(&place([0, 1, 2, 4], 8)), 1);
        assert_eq!(a.level(&place([0, 2, 2, 3], 8)), 3);
        assert_eq!(a.level(&place([1, 1, 2, 3], 8)), 4);
        assert_eq!(a.forward(&place([0; 4], 9)), 2);
        assert!(a.forward(&place([0; 4], 6)) > a.forward(&place([0; 4], u32::MAX)));
    }

    #[test]
    fn labels_describe_places() {
        let place = |labels: &[(&str, &str)]| {
            let labels: Vec<_> = labels
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect();
            Place::of_labels(&labels)
        };
        assert_eq!(place(&[]), Place::default());
        assert_eq!(place(&[("disk", "ssd"), ("rack", "")]), Place::default());
        let a7 = place(&[("rack", "7"), ("topology.kubernetes.io/zone", "a")]);
        assert_eq!(a7, place(&[("rack", "7"), ("zone", "a"), ("disk", "ssd")]));
        assert_eq!(a7.level(&place(&[("rack", "8"), ("zone", "a")])), 2);
        assert_eq!(a7.level(&place(&[("rack", "7"), ("zone", "b")])), 4);
    }

    #[test]
    fn labels_of_one_level_agree() {
        let found = |labels: &[(&str, &str)]| {
            let labels: Vec<_> = labels
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect();
            contradiction(&labels).map(|labels| labels.map(|(key, _)| key.clone()))
        };
        let kubernetes = "topology.kubernetes.io/zone";
        assert_eq!(found(&[("rack", "7"), (kubernetes, "a"), ("zone", "a"), ("a/zone", "")]), None);
        assert_eq!(
            found(&[("rack", "7"), (kubernetes, "a"), ("zone", "b")]),
            Some([kubernetes, "zone"].map(str::to_owned))
        );
    }

    #[test]
    fn groups_are_the_known_prefixes_of_a_path() {
        let groups: Vec<Path> = groups_of([1, 0, 3, 0]).collect();
        assert_eq!(groups, [[1, 0, 3, 0], [1, 0, 0, 0], EVERYWHERE]);
        assert_eq!(groups_of(EVERYWHERE).collect::<Vec<_>>(), [EVERYWHERE]);
        assert!(is_in([1, 0, 3, 9], [1, 0, 3, 0]) && is_in([1, 0, 3, 9], EVERYWHERE));
        assert!(!is_in([1, 2, 3, 9], [1, 0, 3, 0]) && !is_in(EVERYWHERE, [1, 0, 0, 0]));
    }
}
