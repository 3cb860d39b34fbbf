use std::collections::BTreeSet;

use hoplite_core::topology::probe::{BLOCK, Samples, percentile};
use hoplite_core::topology::random::Random;
use hoplite_core::topology::rounds;
use hoplite_core::topology::{Link, Matrix};
use hoplite_topology::fabric::collective::{
    Algorithm, BYTES_PER_SECOND, LATENCY_S, SimulationError, allreduce, hdrm_order,
};
use hoplite_topology::fabric::max_min::{finish_times, rates};
use hoplite_topology::fabric::measured::{MeasuredNetwork, SharedError};
use hoplite_topology::fabric::network::{Network, NetworkError, Routing, loads};
use proptest::prelude::*;
use serde_json::Value;

use crate::{cases, made, number, numbers, order};

fn fraction(value: &Value) -> f64 {
    let text = value.as_str().unwrap();
    let (above, below) = text.split_once('/').unwrap_or((text, "1"));
    above.parse::<f64>().unwrap() / below.parse::<f64>().unwrap()
}

fn assert_close(a: f64, b: f64) {
    assert!((a - b).abs() <= 1e-9 * b.abs(), "{a} is not {b}");
}

#[test]
fn rates_and_ends_match_the_reference() {
    let made = cases("max_min");
    let handed = cases("fabric");
    let made =
        made.iter().flat_map(|case| case["expect"].as_array().unwrap()).map(|case| (case, case));
    for (case, expect) in handed.iter().map(|case| (case, &case["expect"])).chain(made) {
        let floats = |name: &str| -> Vec<f64> {
            numbers(&case[name]).into_iter().map(|number| number as f64).collect()
        };
        let flows: Vec<Vec<usize>> = case["flows"]
            .as_array()
            .unwrap()
            .iter()
            .map(numbers)
            .collect::<Vec<_>>()
            .into_iter()
            .map(|links| links.into_iter().map(|link| link as usize).collect())
            .collect();
        let found = rates(&floats("capacity"), &flows);
        for (found, expected) in found.into_iter().zip(expect["rates"].as_array().unwrap()) {
            assert_close(found, fraction(expected));
        }
        let found = finish_times(&floats("capacity"), &flows, &floats("sizes"));
        for (found, expected) in found.into_iter().zip(expect["finish"].as_array().unwrap()) {
            assert_close(found, fraction(expected));
        }
    }
}

fn check_loads(network: &Network, algorithm: &Algorithm, order: &[u32], expected: &[f64]) {
    let outcome = allreduce(network, algorithm, order, 1e6, 0.0, 1e9).unwrap();
    assert_eq!(outcome.steps.len(), expected.len());
    for (step, expected) in outcome.steps.iter().zip(expected) {
        assert_close(step.load, *expected);
    }
}

fn fractions(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(fraction).collect()
}

#[test]
fn loads_and_times_match_the_reference() {
    let hd = &Algorithm::HalvingDoubling;
    for case in cases("loads")[0]["expect"].as_array().unwrap() {
        let hosts = number(&case["P"]) as u32;
        let natural: Vec<u32> = (0..hosts).collect();
        let graph = Network::bigraph(hosts, Routing::Modulo).unwrap();
        let (hosts_per_switch, switches) = (number(&case["M"]) as u32, number(&case["N"]) as u32);
        assert_eq!(
            graph,
            Network::BiGraph { hosts_per_switch, switches, routing: Routing::Modulo }
        );
        let mapped = hdrm_order(&graph).unwrap();
        check_loads(&graph, &Algorithm::Ring, &natural, &[fraction(&case["bigraph"]["ring"])]);
        check_loads(&graph, hd, &natural, &fractions(&case["bigraph"]["hd"]));
        check_loads(&graph, hd, &mapped, &fractions(&case["bigraph"]["hdrm"]));
        let tree = Network::fat_tree(hosts, Routing::Modulo).unwrap();
        check_loads(&tree, &Algorithm::Ring, &natural, &[fraction(&case["leaf_spine"]["ring"])]);
        check_loads(&tree, hd, &natural, &fractions(&case["leaf_spine"]["hd"]));
        let half = Network::FatTree {
            leaves: hosts / hosts_per_switch,
            hosts_per_leaf: hosts_per_switch,
            spines: (hosts_per_switch / 2).max(1),
            routing: Routing::Ideal,
        };
        check_loads(
            &half,
            &Algorithm::Ring,
            &natural,
            &[fraction(&case["leaf_spine"]["ideal_half_ring"])],
        );
        check_loads(&half, hd, &natural, &fractions(&case["leaf_spine"]["ideal_half_hd"]));
        let seconds = |order: &[u32], algorithm: &Algorithm, bytes| {
            allreduce(&graph, algorithm, order, bytes, LATENCY_S, BYTES_PER_SECOND).unwrap().seconds
        };
        let expected = |name: &str| case["seconds"][name].as_f64().unwrap();
        assert_close(seconds(&natural, &Algorithm::Ring, 262_144.0), expected("ring_bigraph"));
        assert_close(seconds(&mapped, hd, 262_144.0), expected("hdrm_bigraph"));
        assert_close(seconds(&natural, hd, 268_435_456.0), expected("hd_bigraph"));
    }
    for case in cases("torus")[0]["expect"].as_array().unwrap() {
        let torus = Network::Torus { dimensions: order(&case["dims"]) };
        let natural: Vec<u32> = (0..torus.hosts()).collect();
        let shuffled = made::shuffled(natural.len(), number(&case["shuffle_seed"]));
        check_loads(&torus, &Algorithm::Ring, &natural, &[fraction(&case["ring"])]);
        check_loads(&torus, &Algorithm::Ring, &shuffled, &[fraction(&case["ring_shuffled"])]);
        if case["hd"].is_array() {
            check_loads(&torus, hd, &natural, &fractions(&case["hd"]));
        }
    }
}

#[test]
fn figure_16_gives_the_defaults() {
    let seconds = |hosts| {
        let graph = Network::bigraph(hosts, Routing::Modulo).unwrap();
        let order = hdrm_order(&graph).unwrap();
        allreduce(
            &graph,
            &Algorithm::HalvingDoubling,
            &order,
            262_144.0,
            LATENCY_S,
            BYTES_PER_SECOND,
        )
        .unwrap()
        .seconds
    };
    assert!((seconds(64) * 1e6 - 130.0).abs() < 0.1, "{}", seconds(64));
    assert!((seconds(1024) * 1e6 - 181.0).abs() < 0.1, "{}", seconds(1024));
}

#[test]
fn a_step_ends_by_fair_rates() {
    for (network, seed) in [
        (Network::fat_tree(64, Routing::Ecmp(3)).unwrap(), 1),
        (Network::bigraph(32, Routing::Ecmp(4)).unwrap(), 2),
        (Network::Torus { dimensions: vec![4, 2, 4] }, 3),
    ] {
        let hosts = network.hosts();
        let order = made::shuffled(hosts as usize, seed);
        let flows: Vec<(u32, u32)> =
            (0..order.len()).map(|rank| (order[rank], order[rank ^ 4])).collect();
        let links: Vec<_> = loads(&network, &flows).into_keys().collect();
        let routes: Vec<Vec<usize>> = flows
            .iter()
            .map(|&(from, to)| {
                network
                    .route(from, to)
                    .iter()
                    .map(|(link, _)| links.binary_search(link).unwrap())
                    .collect()
            })
            .collect();
        let ends = finish_times(&vec![1.0; links.len()], &routes, &vec![1.0; flows.len()]);
        let most = loads(&network, &flows).into_values().fold(0.0, f64::max);
        assert_close(ends.into_iter().fold(0.0, f64::max), most);
    }
}

#[test]
fn hierarchies_follow_racks() {
    let tree =
        Network::FatTree { leaves: 4, hosts_per_leaf: 4, spines: 1, routing: Routing::Modulo };
    let natural: Vec<u32> = (0..16).collect();
    let outcome =
        allreduce(&tree, &Algorithm::Hierarchical(vec![4, 4]), &natural, 16e6, 0.0, 1e9).unwrap();
    let steps: Vec<(u32, f64, f64)> =
        outcome.steps.iter().map(|step| (step.count, step.bytes, step.load)).collect();
    assert_eq!(steps, [(6, 4e6, 1.0), (6, 1e6, 4.0)]);
    assert_close(outcome.seconds, 6.0 * 4e-3 + 6.0 * 4e-3);
}

#[test]
fn measured_networks_use_their_measurements() {
    let matrix = made::random_matrix(4, 1);
    let slowest = (0..4_usize).map(|rank| matrix.link(rank, (rank + 1) % 4));
    let gap = slowest.clone().map(|link| link.ps_per_byte).max().unwrap();
    let latency = slowest.map(|link| link.alpha_ns).max().unwrap();
    let network = Network::Measured(MeasuredNetwork::unshared(matrix));
    let outcome = allreduce(&network, &Algorithm::Ring, &[0, 1, 2, 3], 4e6, 1.0, 1e12).unwrap();
    assert_close(outcome.seconds, 6.0 * (f64::from(latency) * 1e-9 + 1e6 * f64::from(gap) * 1e-12));
}

/// Two racks of four; times per byte in picoseconds.
fn two_racks(near: u32, far: u32, far_ns: u32) -> Matrix {
    let link = |a: usize, b: usize| {
        let is_near = a / 4 == b / 4;
        let (alpha_ns, ps_per_byte) = if is_near { (10_000, near) } else { (far_ns, far) };
        Ok(Link { alpha_ns, ps_per_byte })
    };
    Matrix::from_links(made::names(8), link).unwrap()
}

fn ring_load(network: &MeasuredNetwork, order: [u32; 8]) -> f64 {
    let network = Network::Measured(network.clone());
    allreduce(&network, &Algorithm::Ring, &order, 8.0, 0.0, 25e6).unwrap().steps[0].load
}

const IN_RACKS: [u32; 8] = [0, 1, 2, 3, 4, 5, 6, 7];
const IN_TURN: [u32; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

#[test]
fn crossing_pairs_share_the_uplink_measured_under_load() {
    let network = MeasuredNetwork::shared(two_racks(40_000, 224_000, 10_000), None, None).unwrap();
    assert_eq!((network.groups(), network.uplinks()), (2, vec![0.5]));
    assert_close(ring_load(&network, IN_RACKS), 2.0);
    assert_close(ring_load(&network, IN_TURN), 8.0);
    // Without uplinks, each pair is alone.
    let unshared = MeasuredNetwork::unshared(two_racks(40_000, 224_000, 10_000));
    for order in [IN_RACKS, IN_TURN] {
        assert_close(ring_load(&unshared, order), 5.6);
    }
}

#[test]
fn uplinks_can_be_given() {
    let network = |uplinks: &[f64]| {
        MeasuredNetwork::shared(two_racks(40_000, 40_000, 50_000), None, Some(uplinks))
    };
    let quarter = network(&[0.25]).unwrap();
    assert_close(ring_load(&quarter, IN_RACKS), 4.0);
    assert_close(ring_load(&quarter, IN_TURN), 16.0);
    assert_close(ring_load(&network(&[4.0]).unwrap(), IN_TURN), 1.0);
    let slow =
        MeasuredNetwork::shared(two_racks(40_000, 120_000, 50_000), None, Some(&[1.0])).unwrap();
    assert_close(ring_load(&slow, IN_RACKS), 3.0);
    assert_close(ring_load(&slow, IN_TURN), 4.0);
    let flat = MeasuredNetwork::shared(two_racks(40_000, 40_000, 10_000), None, None).unwrap();
    assert_eq!((flat.groups(), flat.uplinks()), (0, Vec::new()));
    assert_eq!(network(&[1.0, 2.0]), Err(SharedError::Levels { given: 2, levels: 1 }));
    assert_eq!(network(&[0.0]), Err(SharedError::Capacity));
    assert_eq!(network(&[f64::INFINITY]), Err(SharedError::Capacity));
}

#[test]
fn groups_can_be_given() {
    let matrix = || two_racks(40_000, 40_000, 10_000);
    let names = |node: usize| vec![["a", "b"][node / 4].to_owned(), format!("r{}", node / 2 % 2)];
    let groups: Vec<Vec<String>> = (0..8).map(names).collect();
    let network = MeasuredNetwork::shared(matrix(), Some(&groups), Some(&[0.5, 1.0])).unwrap();
    assert_eq!(
        (network.groups(), network.uplinks()),
        (6, vec![0.5, 1.0]),
        "r0 of a differs from r0 of b"
    );
    assert_close(ring_load(&network, IN_RACKS), 2.0);
    assert_close(ring_load(&network, IN_TURN), 8.0);
    let latencies = MeasuredNetwork::shared(two_racks(0, 0, 50_000), Some(&groups), None).unwrap();
    assert_eq!((latencies.groups(), latencies.uplinks()), (0, Vec::new()));
    let one =
        |groups: &[Vec<String>]| MeasuredNetwork::shared(matrix(), Some(groups), Some(&[1.0]));
    assert_eq!(one(&groups[1..]), Err(SharedError::Groups { count: 7, nodes: 8 }));
    assert_eq!(one(&vec![Vec::new(); 8]), Err(SharedError::Levels { given: 1, levels: 0 }));
    assert_eq!(one(&vec![vec!["x".to_owned(); 5]; 8]), Err(SharedError::TooDeep { levels: 5 }));
}

#[test]
fn networks_and_orders_that_do_not_exist_are_refused() {
    assert_eq!(Network::torus(0), Err(NetworkError::Empty));
    assert!(matches!(
        Network::bigraph(48, Routing::Ideal),
        Err(NetworkError::NoSuchSize { hosts: 48, .. })
    ));
    assert_eq!(Network::torus(1 << 20), Err(NetworkError::TooManyHosts { hosts: 1 << 20 }));
    let odd = Network::BiGraph { hosts_per_switch: 1, switches: 3, routing: Routing::Modulo };
    assert_eq!(odd.check(), Err(NetworkError::OddSwitches { switches: 3 }));
    let torus = Network::torus(6).unwrap();
    let run =
        |algorithm, order: &[u32]| allreduce(&torus, &algorithm, order, 1.0, 0.0, 1.0).unwrap_err();
    let natural = [0, 1, 2, 3, 4, 5];
    assert_eq!(
        run(Algorithm::HalvingDoubling, &natural),
        SimulationError::NotAPowerOfTwo { ranks: 6 }
    );
    assert_eq!(
        run(Algorithm::Hierarchical(vec![4]), &natural),
        SimulationError::Factors { product: 4, ranks: 6 }
    );
    assert_eq!(
        run(Algorithm::Ring, &[0, 1, 2, 3, 4, 4]),
        SimulationError::NotAPermutation { hosts: 6 }
    );
    assert_eq!(hdrm_order(&torus), Err(SimulationError::NoBiGraph));
}

proptest! {
    #[test]
    fn rates_are_feasible_and_every_flow_has_a_bottleneck(seed: u64, links in 1_usize..12, count in 1_usize..24) {
        let mut random = Random::new(seed);
        let capacities: Vec<f64> = (0..links).map(|_| 1.0 + random.below(100) as f64).collect();
        let flows: Vec<Vec<usize>> = (0..count).map(|_| {
            let some: BTreeSet<usize> = (0..=random.below(4)).map(|_| random.index(links)).collect();
            some.into_iter().collect()
        }).collect();
        let rates = rates(&capacities, &flows);
        let on = |link: usize| flows.iter().zip(&rates).filter(move |(links, _)| links.contains(&link)).map(|(_, rate)| *rate);
        for (link, capacity) in capacities.iter().enumerate() {
            prop_assert!(on(link).sum::<f64>() <= capacity * (1.0 + 1e-9));
        }
        for (flow, rate) in flows.iter().zip(&rates) {
            prop_assert!(*rate > 0.0);
            // A bottleneck is a full link on which no flow is faster.
            let has_bottleneck = flow.iter().any(|&link| {
                on(link).sum::<f64>() >= capacities[link] * (1.0 - 1e-9) && on(link).all(|other| other <= rate * (1.0 + 1e-9))
            });
            prop_assert!(has_bottleneck, "{:?}", flow);
        }
    }
}

#[test]
fn in_a_tournament_each_pair_meets_once() {
    for case in cases("probe").iter().filter(|case| case["name"] == "rounds") {
        for (nodes, rounds) in case["expect"].as_object().unwrap() {
            assert_eq!(u64::from(rounds::count(nodes.parse().unwrap())), number(rounds));
        }
    }
    for nodes in (0..40).chain([64, 101]) {
        let mut met = BTreeSet::new();
        for round in 0..rounds::count(nodes) {
            let mut busy = BTreeSet::new();
            for (a, b) in rounds::pairs(nodes, round) {
                assert!(a < nodes && b < nodes && a != b);
                assert!(busy.insert(a) && busy.insert(b), "{nodes} nodes, round {round}");
                assert!(met.insert((a.min(b), a.max(b))));
            }
        }
        assert_eq!(met.len() as u32, nodes * nodes.saturating_sub(1) / 2);
    }
}

#[test]
fn percentiles_are_by_nearest_rank() {
    for case in cases("probe").iter().filter(|case| case["name"] == "percentile") {
        for expect in case["expect"].as_array().unwrap() {
            if let Some(count) = expect["k"].as_u64() {
                let ascending: Vec<u64> = (0..count).collect();
                assert_eq!(percentile(&ascending, 10), Some(number(&expect["index"])));
            } else {
                assert_eq!(
                    percentile(&numbers(&expect["samples"]), 10),
                    Some(number(&expect["p10"]))
                );
            }
        }
    }
    assert_eq!(percentile(&[], 10), None);
    assert_eq!(percentile(&[3, 1, 2], 100), Some(3));
    assert_eq!(percentile(&[3, 1, 2], 0), Some(1));
}

#[test]
fn probing_ends_when_the_percentile_is_steady() {
    let count = |round_trip: &dyn Fn(usize) -> u64| {
        let mut samples = Samples::default();
        while !samples.is_enough() && samples.len() < 100 * BLOCK {
            samples.add(round_trip(samples.len()));
        }
        samples.len()
    };
    assert_eq!(count(&|_| 50_000), 4 * BLOCK, "one block for comparison, and three more");
    assert_eq!(count(&|index| 50_000 + index as u64 % 16 * 1000), 4 * BLOCK);
    assert_eq!(
        count(&|index| 50_000 * 97_u64.pow((index / BLOCK).min(5) as u32)
            / 100_u64.pow((index / BLOCK).min(5) as u32)),
        9 * BLOCK
    );
}

#[test]
fn a_time_that_is_not_finite_is_refused() {
    let network = Network::torus(8).unwrap();
    let order: Vec<u32> = (0..8).collect();
    for (latency_s, bytes_per_second) in [(LATENCY_S, 1e-320), (1e308, BYTES_PER_SECOND)] {
        let outcome =
            allreduce(&network, &Algorithm::Ring, &order, 1e6, latency_s, bytes_per_second);
        assert!(matches!(outcome, Err(SimulationError::TooLong)), "{outcome:?}");
    }
}
