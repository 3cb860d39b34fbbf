use hoplite_core::topology::hdrm::{Conflict, Halves, HdrmError, check, mapping, mapping_of};
use hoplite_topology::decompose::{self, DecomposeError, Decomposition, Fabric};
use serde_json::Value;

use crate::{cases, number, order};

fn hash(halves: &Halves) -> String {
    let sorted = halves.iter().flatten().flat_map(|ranks| {
        let mut ranks = ranks.clone();
        ranks.sort_unstable();
        ranks
    });
    let hash = sorted.flat_map(u32::to_le_bytes).fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}

fn halves(value: &Value) -> Halves {
    ["upper", "lower"].map(|half| value[half].as_array().unwrap().iter().map(order).collect())
}

fn system(name: &str) -> (u32, u32) {
    let (hosts, switches) = name.split_once('x').unwrap();
    (hosts.parse().unwrap(), switches.parse().unwrap())
}

#[test]
fn mappings_match_the_reference_and_have_no_conflict() {
    for case in cases("hdrm").iter().filter(|case| case["refuse"].is_null()) {
        let found = mapping(number(&case["M"]) as u32, number(&case["N"]) as u32).unwrap();
        assert_eq!(hash(&found), case["expect"]["fnv1a64_of_sorted_switches"]);
        assert_eq!(found, halves(&case["expect"]));
    }
    let mut count = 0;
    for (name, expected) in cases("hdrm_all")[0]["hashes"].as_object().unwrap() {
        let (hosts, switches) = system(name);
        let found = mapping(hosts, switches).unwrap();
        assert_eq!(hash(&found), *expected, "{name}");
        assert_eq!(check(&found), Ok(()), "{name}");
        count += 1;
    }
    assert_eq!(count, 127, "all M <= N / 2 for N = 2, 4, ..., 128");
}

#[test]
fn parts_of_systems() {
    for (name, expected) in cases("hdrm_partial")[0]["expect"].as_object().unwrap() {
        let (of, ranks) = name.split_once(':').unwrap();
        let (hosts, switches) = system(of);
        let found = mapping_of(hosts, switches, ranks.parse().unwrap()).unwrap();
        assert_eq!(hash(&found), expected["hash"], "{name}");
        let is_good = expected["check"] == serde_json::json!([0, 1]);
        assert_eq!(check(&found).is_ok(), is_good, "{name}");
    }
    for ranks in [0, 1, 7, 9, 12, 40] {
        let refused = HdrmError::PartialSystem { ranks, hosts_per_switch: 4, switches: 8 };
        assert_eq!(mapping_of(4, 8, ranks), Err(refused));
    }
}

#[test]
fn sizes_without_a_mapping_are_refused() {
    for pair in cases("hdrm").iter().filter_map(|case| case["refuse"].as_array()).flatten() {
        let system = order(pair);
        let error = mapping(system[0], system[1]).unwrap_err();
        let expected = match (system[0], system[1]) {
            (0, _) => HdrmError::NoHosts,
            (_, switches) if switches < 2 || !switches.is_power_of_two() => {
                HdrmError::SwitchesNotAPowerOfTwo { switches }
            }
            (hosts_per_switch, switches) => HdrmError::TooManyHosts { hosts_per_switch, switches },
        };
        assert_eq!(error, expected);
    }
    assert!(matches!(mapping(1, 1 << 20), Err(HdrmError::TooManySwitches { .. })));
}

#[test]
fn planted_conflicts_are_found() {
    for case in cases("hdrm_mutant") {
        assert!(check(&halves(&case)).is_err(), "{}", case["name"]);
    }
    let good = mapping(2, 4).unwrap();
    let change = |change: &dyn Fn(&mut Halves)| {
        let mut halves = good.clone();
        change(&mut halves);
        check(&halves).unwrap_err()
    };
    assert_eq!(change(&|halves| halves[0][0][0] = 1), Conflict::TwoPlaces { rank: 1 });
    assert_eq!(change(&|halves| halves[0][0].clear()), Conflict::NoPlace { rank: 0 });
    assert!(matches!(
        change(&|halves| {
            let rank = halves[0][0][0];
            halves[0][0][0] = std::mem::replace(&mut halves[1][1][0], rank);
        }),
        Conflict::WithinHalf { .. }
    ));
    let mut shared = 0;
    let hosts = 4;
    let good = mapping(hosts as u32, 8).unwrap();
    for (a, b) in (0..4).flat_map(|a| (0..a).map(move |b| (a, b))) {
        for slot in 0..hosts {
            let mut halves = good.clone();
            let rank = halves[1][a][slot];
            halves[1][a][slot] = std::mem::replace(&mut halves[1][b][slot], rank);
            match check(&halves).unwrap_err() {
                Conflict::SharedLink { distance, pair, other, upper, lower } => {
                    for pair in [pair, other] {
                        assert_eq!(pair[0] ^ pair[1], distance);
                        let is_at = |half: usize, switch: usize| {
                            halves[half][switch].iter().any(|rank| pair.contains(rank))
                        };
                        assert!(is_at(0, upper) && is_at(1, lower));
                    }
                    shared += 1;
                }
                other => panic!("{other}"),
            }
        }
    }
    assert_eq!(
        shared, 24,
        "if all links are in use, each swap of ranks within a half makes two pairs share a link"
    );
}

fn is_close(a: f64, b: &Value) -> bool {
    let b = b.as_f64().unwrap();
    (a - b).abs() <= 1e-9 * b.abs()
}

fn check_plan(case: &Value, expect: &Value) {
    let factors = order(&case["p"]);
    let bandwidths: Vec<f64> =
        case["bytes_per_second"].as_array().unwrap().iter().map(|w| w.as_f64().unwrap()).collect();
    let fabric = if case["torus"] == true { Fabric::Torus } else { Fabric::Tree };
    let (latency, bytes) = (case["alpha_s"].as_f64().unwrap(), case["bytes"].as_f64().unwrap());
    let plan = decompose::estimate(&factors, &bandwidths, latency, bytes, fabric).unwrap();
    assert!(is_close(plan.seconds, &expect["blueconnect_s"]), "{plan:?}");
    let stages = expect["stages"].as_array().unwrap();
    assert_eq!(plan.stages.len(), stages.len());
    for (stage, expected) in plan.stages.iter().zip(stages) {
        assert_eq!(u64::from(stage.nodes), number(&expected["p"]));
        assert!(is_close(stage.bytes, &expected["bytes"]), "{stage:?}");
        assert!(is_close(stage.bytes_per_second, &expected["bytes_per_second"]), "{stage:?}");
        assert!(is_close(stage.seconds, &expected["seconds"]), "{stage:?}");
    }
    let ring = decompose::one_ring(&factors, &bandwidths, latency, bytes).unwrap();
    assert!(is_close(ring, &expect["one_level_ring_s"]));
}

#[test]
fn times_of_decompositions_match_the_reference() {
    for case in cases("blueconnect").iter().filter(|case| case["bytes"].is_number()) {
        check_plan(case, &case["expect"]);
    }
    for case in cases("blueconnect_more")[0]["expect"].as_array().unwrap() {
        check_plan(case, case);
    }
}

#[test]
fn schedules_match_figure_4() {
    for case in cases("blueconnect").iter().filter(|case| case["learners"].is_array()) {
        let (stages, parts) = decompose::schedule(&order(&case["p"]));
        let name = |rank: u32| &case["learners"][rank as usize];
        for (stage, expected) in
            stages.iter().zip(case["expect"]["groups_per_stage"].as_array().unwrap())
        {
            let mut named: Vec<Vec<&Value>> =
                stage.iter().map(|group| group.iter().map(|&rank| name(rank)).collect()).collect();
            named.sort_by_key(|group| group[0].as_str());
            assert_eq!(serde_json::json!(named), *expected);
        }
        for (rank, part) in (0..).zip(parts) {
            let expected =
                &case["expect"]["partition_of_twelve_each_ends_with"][name(rank).as_str().unwrap()];
            assert_eq!(u64::from(part), number(expected));
        }
    }
}

fn factorizations(number: u32) -> Vec<Vec<u32>> {
    if number == 1 {
        return vec![Vec::new()];
    }
    let divisors = (2..=number).filter(|divisor| number.is_multiple_of(*divisor));
    divisors
        .flat_map(|first| {
            factorizations(number / first).into_iter().map(move |rest| [vec![first], rest].concat())
        })
        .collect()
}

#[test]
fn the_best_decomposition_is_the_best_of_all() {
    for nodes in [1, 2, 7, 12, 60, 64] {
        for (latency, bytes) in [(1e-3, 1e3), (1e-6, 1e8), (1e-5, 1e6), (0.0, 1e6)] {
            let best = decompose::best(&[nodes], &[1e9], latency, bytes).unwrap();
            let seconds = |factors: Vec<u32>| {
                let mut left = bytes;
                let stages = factors.into_iter().map(|factor| {
                    let plan = decompose::estimate(&[factor], &[1e9], latency, left, Fabric::Tree)
                        .unwrap();
                    left /= f64::from(factor);
                    plan.seconds
                });
                stages.sum::<f64>()
            };
            let least =
                factorizations(nodes).into_iter().map(seconds).fold(f64::INFINITY, f64::min);
            assert!((best.seconds - least).abs() <= 1e-9 * least, "{nodes}: {best:?}, {least}");
            let product: u32 = best.stages.iter().map(|stage| stage.nodes).product();
            assert_eq!(product, nodes);
        }
    }
}

#[test]
fn levels_divide_bandwidth_but_factors_of_a_level_do_not() {
    let Decomposition { stages, .. } = decompose::best(&[6, 10], &[1e9, 3e8], 1e-3, 1e3).unwrap();
    for stage in stages {
        let (bandwidth, from) =
            if stage.bytes > 1e3 / 6.0 + 1e-6 { (1e9, 0) } else { (3e8 / 6.0, 1) };
        assert_eq!(stage.bytes_per_second, bandwidth, "level {from}");
    }
}

#[test]
fn bad_decompositions_are_refused() {
    let refused = |factors: &[u32], bandwidths: &[f64], latency, bytes| {
        decompose::best(factors, bandwidths, latency, bytes).unwrap_err()
    };
    assert_eq!(refused(&[], &[], 0.0, 1.0), DecomposeError::LevelCount { levels: 0 });
    assert_eq!(refused(&[2, 0], &[1.0, 1.0], 0.0, 1.0), DecomposeError::EmptyLevel { level: 1 });
    let ranks = (1 << 17) * 2;
    assert_eq!(refused(&[1 << 17, 2], &[1.0, 1.0], 0.0, 1.0), DecomposeError::RankCount { ranks });
    assert_eq!(
        refused(&[2, 2], &[1.0], 0.0, 1.0),
        DecomposeError::BandwidthCount { bandwidths: 1, levels: 2 }
    );
    for (bandwidth, latency, bytes) in
        [(0.0, 0.0, 1.0), (f64::NAN, 0.0, 1.0), (1.0, -1.0, 1.0), (1.0, 0.0, f64::INFINITY)]
    {
        assert!(matches!(
            refused(&[2], &[bandwidth], latency, bytes),
            DecomposeError::OutOfRange { .. }
        ));
    }
    assert_eq!(
        decompose::check_ranks(&[4, 16], 63),
        Err(DecomposeError::Product { product: 64, ranks: 63 })
    );
}

#[test]
fn a_plan_with_a_time_that_is_not_finite_is_refused() {
    for (bandwidth, latency) in [(1e-320, 0.0), (1e9, 1e308)] {
        let refused = |result: Result<f64, DecomposeError>| {
            assert!(
                matches!(result, Err(DecomposeError::OutOfRange { what: "a time", .. })),
                "{result:?}"
            );
        };
        refused(decompose::best(&[8], &[bandwidth], latency, 1e6).map(|plan| plan.seconds));
        refused(decompose::one_ring(&[8], &[bandwidth], latency, 1e6));
    }
}
