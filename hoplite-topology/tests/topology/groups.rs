use hoplite_core::topology::blocks::{BlockLink, Blocks};
use hoplite_core::topology::cluster::Dendrogram;
use hoplite_core::topology::measured::MeasuredPlaces;
use hoplite_core::topology::place::MAX_LEVELS;
use hoplite_core::topology::random::Random;
use hoplite_core::topology::{Link, Links, Matrix, Place};

use crate::made;

/// Zones of two racks of four, shuffled, with noise of 10%; and each node's rack.
fn zones(count: usize, seed: u64) -> (Matrix, Vec<usize>) {
    let nodes = 8 * count;
    let racks: Vec<usize> =
        made::shuffled(nodes, seed).into_iter().map(|node| node as usize / 4).collect();
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
            let in_order: Vec<usize> = order.iter().map(|&node| racks[node as usize]).collect();
            assert!(in_order.chunks(4).all(|rack| rack.iter().all(|group| *group == rack[0])));
            assert!(
                in_order.chunks(8).all(|zone| zone.iter().all(|group| group / 2 == zone[0] / 2))
            );
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

/// Makes racks, two per zone, as a matrix of blocks and as a plain one. Each rack is one block, but
/// rack `halved` is two.
fn in_blocks(sizes: &[u32], halved: usize) -> [Matrix; 2] {
    let mut rack_of: Vec<u32> = Vec::new();
    let mut block_of: Vec<u32> = Vec::new();
    for (rack, &size) in (0..).zip(sizes) {
        for host in 0..size {
            rack_of.push(rack);
            let is_second_half = rack as usize == halved && host >= size / 2;
            block_of.push(if is_second_half { sizes.len() as u32 } else { rack });
        }
    }
    let link = |a: u32, b: u32| match (rack_of[a as usize], rack_of[b as usize]) {
        (one, other) if one == other => {
            Link { alpha_ns: 20_000 + (a + b) % 7, ps_per_byte: 1000 + a % 3 }
        }
        (one, other) if one / 2 == other / 2 => Link { alpha_ns: 40_000, ps_per_byte: 4000 },
        _ => Link { alpha_ns: 80_000, ps_per_byte: 16_000 },
    };
    let blocks = Blocks::new(&block_of).unwrap();
    let first = |block: u32| blocks.members()[block as usize][0];
    let links = blocks.links().map(|block_link| match block_link {
        BlockLink::Within(a, b) => link(a, b),
        BlockLink::Between(a, b) => link(first(a), first(b)),
    });
    let links = links.collect();
    let names: Vec<String> = (0..rack_of.len()).map(|node| format!("n{node:03}")).collect();
    let matrix = Matrix::from_blocks(names.clone(), blocks, links).unwrap();
    let all = Matrix::from_links(names, |a, b| Ok(matrix.link(a, b))).unwrap();
    [matrix, all]
}

#[test]
fn a_matrix_of_blocks_has_the_groups_of_one_of_all_pairs() {
    for (sizes, halved) in [(&[3, 8, 5, 6, 7, 4][..], 9), (&[6, 6, 6, 6], 2), (&[2, 40], 1)] {
        let [blocks, all] = in_blocks(sizes, halved);
        for size_bytes in [0, 1 << 20] {
            let [one, other] = [&blocks, &all]
                .map(|matrix| Dendrogram::new(Links::new(matrix, size_bytes).unwrap()));
            assert_eq!(one.joins().len(), other.joins().len());
            assert_eq!(one.levels().len(), other.levels().len(), "{sizes:?}");
            for (a, b) in one.levels().into_iter().zip(other.levels()) {
                assert_eq!(one.groups(a), other.groups(b), "{sizes:?}");
            }
            let mut leaves = one.leaves_by_size();
            leaves.sort_unstable();
            assert!(leaves.into_iter().eq(0..blocks.len() as u32));
        }
        let label = |name: &str| {
            let zone = if name < "n004" { "a" } else { "b" };
            Place::of_labels(&[("zone".to_owned(), zone.to_owned())]).path
        };
        let places = |matrix: &Matrix| MeasuredPlaces::of(matrix, label, 1).unwrap();
        assert_eq!(places(&blocks), places(&all), "{sizes:?}");
        assert!(places(&all).groups() > 1);
    }
}
