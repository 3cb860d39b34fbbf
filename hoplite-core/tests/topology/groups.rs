//! Groups of close nodes.

use hoplite_core::topology::cluster::Dendrogram;
use hoplite_core::topology::place::MAX_LEVELS;
use hoplite_core::topology::random::Random;
use hoplite_core::topology::{Link, Links, Matrix};

use crate::made;

/// Zones of two racks of four, shuffled, with noise of 10%; and the rack of each node.
fn zones(count: usize, seed: u64) -> (Matrix, Vec<usize>) {
    let nodes = 8 * count;
    let racks: Vec<usize> = made::shuffled(nodes, seed).into_iter().map(|node| node as usize / 4).collect();
    let mut random = Random::new(seed);
    let link = |a: usize, b: usize| {
        let base = match (racks[a], racks[b]) {
            (a, b) if a == b => 10_000,
            (a, b) if a / 2 == b / 2 => 30_000,
            _ => 100_000,
        };
        Ok(Link { alpha_ns: base + random.below(u64::from(base) / 10) as u32, ps_per_byte: 0 })
    };
    (Matrix::from_links(made::names(nodes), link).unwrap(), racks)
}

#[test]
fn racks_and_zones_are_found() {
    for seed in 0..10 {
        let (matrix, racks) = zones(3, seed);
        let links = Links::new(&matrix, 0).unwrap();
        let dendrogram = Dendrogram::new(links);
        assert_eq!(dendrogram.joins().len(), 23);
        assert_eq!(dendrogram.levels().len(), 2);
        for order in [dendrogram.leaves_by_ends(links), dendrogram.leaves_by_size()] {
            matrix.check_order(&order).unwrap();
            let places = dendrogram.places(&order);
            let nodes = racks.len();
            for (a, b) in (0..nodes).flat_map(|a| (0..nodes).map(move |b| (a, b))) {
                let expected = match (racks[a], racks[b]) {
                    (a, b) if a == b => 0,
                    (a, b) if a / 2 == b / 2 => 1,
                    _ => 2,
                };
                assert_eq!(places[a].level(&places[b]), expected);
            }
            // Groups are contiguous in the order.
            let in_order: Vec<usize> = order.iter().map(|&node| racks[node as usize]).collect();
            assert!(in_order.chunks(4).all(|rack| rack.iter().all(|group| *group == rack[0])));
            assert!(in_order.chunks(8).all(|zone| zone.iter().all(|group| group / 2 == zone[0] / 2)));
        }
    }
}

#[test]
fn a_flat_network_is_one_group() {
    let link = |a: usize, b: usize| {
        Ok(Link { alpha_ns: 10_000 + ((a * 7 + b * 13) % 100) as u32, ps_per_byte: 800 })
    };
    let matrix = Matrix::from_links(made::names(20), link).unwrap();
    let dendrogram = Dendrogram::new(Links::new(&matrix, 1 << 20).unwrap());
    assert!(dendrogram.levels().is_empty());
    let places = dendrogram.places(&dendrogram.leaves_by_size());
    assert!(places.iter().all(|place| place.path == [0; MAX_LEVELS]));
}

#[test]
fn groups_end_at_the_distance() {
    let (matrix, racks) = zones(1, 1);
    let dendrogram = Dendrogram::new(Links::new(&matrix, 0).unwrap());
    assert_eq!(dendrogram.groups(u64::MAX), [0; 8]);
    assert_eq!(dendrogram.groups(0), [0, 1, 2, 3, 4, 5, 6, 7]);
    let groups = dendrogram.groups(20_000_000);
    for (a, b) in (0..8).flat_map(|a| (0..8).map(move |b| (a, b))) {
        assert_eq!(groups[a] == groups[b], racks[a] == racks[b]);
    }
    let one = made::random_matrix(1, 1);
    assert_eq!(Dendrogram::new(Links::new(&one, 0).unwrap()).leaves_by_size(), [0]);
}
