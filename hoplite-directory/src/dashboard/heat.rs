//! A table of links between places (stores, or groups with the same label). Rows send, columns
//! receive.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hoplite_core::id::NodeId;
use hoplite_core::load::{Load, MAX_LINKS};
use serde::Serialize;

pub(super) const MAX_PLACES: usize = MAX_LINKS;

/// Places with the most slow links.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Heat {
    places: Vec<String>,
    left_out: usize,
    cells: Vec<Cell>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Cell {
    from: usize,
    to: usize,
    links: u64,
    bytes_per_second: u64,
    round_trip_ns: u64,
    slow: u64,
}

impl Heat {
    pub(super) fn new<'a>(
        loads: &'a [(NodeId, Arc<Load>)],
        place_of: impl Fn(&'a NodeId) -> &'a str,
    ) -> Self {
        let links = || {
            loads.iter().flat_map(|(node, load)| load.links.iter().map(move |link| (node, link)))
        };
        // Number of slow links, and of all links, of each place.
        let mut weights: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for (node, link) in links() {
            for end in BTreeSet::from([place_of(node), place_of(&link.peer)]) {
                let weight = weights.entry(end).or_default();
                *weight = (weight.0 + u64::from(link.is_slow), weight.1 + 1);
            }
        }
        let all = weights.len();
        let mut chosen: Vec<(&str, (u64, u64))> = weights.into_iter().collect();
        chosen.sort_by_key(|(_, weight)| Reverse(*weight));
        let places: BTreeSet<&str> =
            chosen.into_iter().take(MAX_PLACES).map(|(place, _)| place).collect();
        let rows: BTreeMap<&str, usize> =
            places.iter().enumerate().map(|(row, place)| (*place, row)).collect();
        let mut cells: BTreeMap<(usize, usize), Cell> = BTreeMap::new();
        for (node, link) in links() {
            let (Some(&from), Some(&to)) =
                (rows.get(place_of(node)), rows.get(place_of(&link.peer)))
            else {
                continue;
            };
            let none =
                Cell { from, to, links: 0, bytes_per_second: u64::MAX, round_trip_ns: 0, slow: 0 };
            let cell = cells.entry((from, to)).or_insert(none);
            cell.links += 1;
            cell.bytes_per_second = cell.bytes_per_second.min(link.bytes_per_second);
            cell.round_trip_ns = cell.round_trip_ns.max(link.round_trip_ns);
            cell.slow += u64::from(link.is_slow);
        }
        Self {
            cells: cells.into_values().collect(),
            left_out: all - places.len(),
            places: places.into_iter().map(str::to_owned).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use hoplite_core::load::LinkLoad;

    use super::*;

    fn load_of(from: usize, links: &[(usize, u64, bool)]) -> (NodeId, Arc<Load>) {
        let name = |number: usize| NodeId::new(&format!("{}-{number:03}", number / 10)).unwrap();
        let links = links.iter().map(|&(to, bytes_per_second, is_slow)| LinkLoad {
            peer: name(to),
            bytes_per_second,
            round_trip_ns: 1_000_000 / bytes_per_second,
            is_slow,
            lanes: 0,
        });
        (name(from), Arc::new(Load { links: links.collect(), ..Load::default() }))
    }

    fn cell((from, to): (usize, usize), links: u64, bytes_per_second: u64, slow: u64) -> Cell {
        Cell {
            from,
            to,
            links,
            bytes_per_second,
            round_trip_ns: 1_000_000 / bytes_per_second,
            slow,
        }
    }

    #[test]
    fn each_direction_is_a_cell_with_the_worst_link_of_its_group() {
        let loads = [
            load_of(1, &[(2, 100, false), (11, 10, true)]),
            load_of(2, &[(1, 50, false), (12, 20, false)]),
        ];
        let heat = Heat::new(&loads, NodeId::as_str);
        assert_eq!(heat.places, ["0-001", "0-002", "1-011", "1-012"]);
        let found = [
            cell((0, 1), 1, 100, 0),
            cell((0, 2), 1, 10, 1),
            cell((1, 0), 1, 50, 0),
            cell((1, 3), 1, 20, 0),
        ];
        assert_eq!(heat.cells, found);
        let racks = Heat::new(&loads, |node| &node.as_str()[..1]);
        assert_eq!(racks.places, ["0", "1"]);
        assert_eq!(racks.cells, [cell((0, 0), 2, 50, 0), cell((0, 1), 2, 10, 1)]);
    }

    #[test]
    fn a_heat_map_is_bounded_and_shows_slow_links() {
        let loads: Vec<_> =
            (0..100).map(|node| load_of(node, &[((node + 1) % 100, 100, node == 70)])).collect();
        let heat = Heat::new(&loads, NodeId::as_str);
        assert_eq!((heat.places.len(), heat.left_out), (MAX_PLACES, 100 - MAX_PLACES));
        assert!(heat.places.iter().any(|place| place == "7-070"), "the end of the only slow link");
        assert_eq!(heat.cells.iter().map(|cell| cell.slow).sum::<u64>(), 1);
        assert!(heat.cells.len() <= MAX_PLACES * MAX_PLACES);
        assert_eq!(
            Heat::new(&[], NodeId::as_str),
            Heat { places: vec![], left_out: 0, cells: vec![] }
        );
    }
}
