//! Where a node is: a path of groups, outermost first, and a position in the order of all nodes.
//!
//! This is what daemons need of a topology: 12 bytes per node, where a matrix takes 8 per pair.

use std::collections::BTreeMap;

/// How many levels of groups there can be, such as region, zone, row, rack.
pub const MAX_LEVELS: usize = 4;

/// The place of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Place {
    /// The groups that the node is in, outermost first. A network with fewer levels leaves the first ones zero.
    pub path: [u16; MAX_LEVELS],
    /// Its rank in the order of all nodes, along which chains run.
    pub position: u32,
}

impl Place {
    /// The lowest level at which both are in one group: 0 if they share the innermost, [`MAX_LEVELS`] if they share none.
    pub fn level(&self, other: &Self) -> usize {
        let shared = self.path.iter().zip(&other.path).take_while(|(own, other)| own == other);
        MAX_LEVELS - shared.count()
    }

    /// How many positions `to` comes after this one; a node before this one is further than all nodes after it.
    pub const fn forward(&self, to: &Self) -> u32 {
        to.position.wrapping_sub(self.position)
    }
}

/// The labels of a node, outermost level first.
pub type Labels = [Option<String>; MAX_LEVELS];

/// The label, or the measured group, that makes a group of a level.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Group<'a> {
    Label(&'a str),
    Measured(u16),
}

/// Corrects measured places by labels.
///
/// A label wins over the measured group of its level. A node without one gets the label that most of its measured group have,
/// and keeps the measured group if none of them has any. The positions follow the measured ones, but each group is contiguous.
///
/// # Panics
///
/// If there are not as many labels as places.
pub fn relabel(measured: &[Place], labels: &[Labels]) -> Vec<Place> {
    assert_eq!(labels.len(), measured.len(), "a set of labels for each node");
    let mut order: Vec<usize> = (0..measured.len()).collect();
    order.sort_by_key(|&node| (measured[node].position, node));
    let mut places = vec![Place::default(); measured.len()];
    for level in 0..MAX_LEVELS {
        let common = common_labels(measured, labels, level);
        let mut numbers = BTreeMap::new();
        for &node in &order {
            let own = labels[node][level].as_deref();
            let group = match own.or_else(|| common.get(&measured[node].path[..=level]).copied()) {
                Some(label) => Group::Label(label),
                None => Group::Measured(measured[node].path[level]),
            };
            // Numbers are given in the order of positions, so that sorting by path moves as little as it can.
            let next = numbers.len().min(usize::from(u16::MAX)) as u16;
            places[node].path[level] = *numbers.entry(group).or_insert(next);
        }
    }
    order.sort_by_key(|&node| places[node].path);
    for (position, node) in order.into_iter().enumerate() {
        places[node].position = position as u32;
    }
    places
}

/// For each measured group of a level, the label that most of its nodes have; among equals the first by name.
fn common_labels<'a>(measured: &[Place], labels: &'a [Labels], level: usize) -> BTreeMap<Vec<u16>, &'a str> {
    let mut counts: BTreeMap<Vec<u16>, BTreeMap<&str, usize>> = BTreeMap::new();
    for (place, labels) in measured.iter().zip(labels) {
        if let Some(label) = labels[level].as_deref() {
            *counts.entry(place.path[..=level].to_vec()).or_default().entry(label).or_default() += 1;
        }
    }
    let most_common = |labels: BTreeMap<&'a str, usize>| {
        labels.into_iter().rev().max_by_key(|(_, count)| *count).map(|(label, _)| label)
    };
    counts.into_iter().filter_map(|(group, labels)| Some((group, most_common(labels)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(groups: &[u16]) -> Vec<Place> {
        let place =
            |(position, &group): (usize, &u16)| Place { path: [0, 0, 0, group], position: position as u32 };
        groups.iter().enumerate().map(place).collect()
    }

    fn rack(label: &str) -> Labels {
        [None, None, None, (!label.is_empty()).then(|| label.to_owned())]
    }

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
    fn labels_win_and_spread_to_the_rest_of_a_measured_group() {
        let labels: Vec<Labels> = ["x", "x", "", "y", "", ""].map(rack).into();
        let places = relabel(&measured(&[0, 0, 0, 0, 1, 1]), &labels);
        let racks: Vec<u16> = places.iter().map(|place| place.path[3]).collect();
        assert_eq!(racks, [0, 0, 0, 1, 2, 2]);
    }

    #[test]
    fn positions_make_labelled_groups_contiguous() {
        let labels: Vec<Labels> = ["a", "b", "a", "b"].map(rack).into();
        let places = relabel(&measured(&[0, 0, 0, 0]), &labels);
        let positions: Vec<u32> = places.iter().map(|place| place.position).collect();
        assert_eq!(positions, [0, 2, 1, 3]);
    }

    #[test]
    fn without_labels_nothing_changes() {
        let measured = measured(&[0, 0, 1, 1, 2]);
        let labels = vec![Labels::default(); 5];
        assert_eq!(relabel(&measured, &labels), measured);
    }
}
