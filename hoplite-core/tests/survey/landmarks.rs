use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hoplite_core::id::NodeId;
use hoplite_core::topology::Links;
use hoplite_core::topology::cluster::Dendrogram;
use hoplite_core::topology::measured::{Groups, MeasuredPlaces};
use hoplite_core::topology::place::EVERYWHERE;
use hoplite_core::topology::probe::survey::{SurveyOptions, SurveyReport};
use hoplite_core::topology::random::Random;
use proptest::prelude::*;

use super::model::{Racks, survey};

fn are_racks(report: &SurveyReport, racks: &Racks) -> bool {
    let dendrogram = Dendrogram::new(Links::new(&report.matrix, 0).unwrap());
    let Some(distance_ps) = dendrogram.levels().last().copied() else { return false };
    let groups = dendrogram.groups(distance_ps);
    let mut rack_of: BTreeMap<u32, u32> = BTreeMap::new();
    let hosts = report.matrix.nodes().iter().map(|name| name["host-".len()..].parse().unwrap());
    let all_within = hosts.zip(&groups).all(|(host, group): (u32, &u32)| {
        let rack = racks.rack(host);
        *rack_of.entry(*group).or_insert(rack) == rack
    });
    let racks: BTreeSet<u32> = rack_of.values().copied().collect();
    all_within && racks.len() == rack_of.len()
}

fn check_meetings(report: &SurveyReport, racks: &Racks) {
    let blocks = report.matrix.blocks().unwrap();
    let hosts = report.matrix.nodes().iter().map(|name| name["host-".len()..].parse().unwrap());
    let block_of: BTreeMap<u32, u32> =
        hosts.zip(0..).map(|(host, index)| (host, blocks.block(index))).collect();
    assert!(racks.seen.echoes.values().all(|times| *times == 1), "a pair has met twice");
    let mut between: BTreeMap<(u32, u32), u64> = BTreeMap::new();
    let mut within = 0;
    for (a, b) in racks.seen.echoes.keys() {
        let (Some(a), Some(b)) = (block_of.get(a), block_of.get(b)) else { continue };
        if a == b {
            within += 1;
        } else {
            *between.entry((*a.min(b), *a.max(b))).or_default() += 1;
        }
    }
    let sizes: Vec<usize> = blocks.members().iter().map(Vec::len).collect();
    let pairs = |size: usize| size * (size - 1) / 2;
    assert_eq!(
        within,
        sizes.iter().map(|size| pairs(*size)).sum::<usize>(),
        "all pairs of blocks have met"
    );
    assert_eq!(between.len(), pairs(sizes.len()), "all blocks have met");
    for ((a, b), met) in between {
        let [a, b] = [a, b].map(|block| sizes[block as usize]);
        let few = a.min(b).min(3);
        // If two blocks were one group at that time, all their pairs have met.
        assert!(met == few as u64 || met == (a * b) as u64, "{met} pairs of {a} and {b} nodes");
    }
}

#[test]
fn three_thousand_nodes_in_racks_take_less_than_thirty_seconds_for_their_echoes() {
    for (in_turn, seed) in [(false, 1), (true, 2)] {
        let mut racks = Racks::new(3000, 40);
        (racks.in_turn, racks.noise) = (in_turn, Random::new(seed));
        let (took, report) = survey(&mut racks, SurveyOptions::default(), seed);
        let report = report.unwrap();
        let seen = &racks.seen;
        println!(
            "in turn {in_turn}: {} rounds, {:?} of {took:?}; {} pairs and {} with landmarks, {} blocks",
            seen.echo_rounds,
            seen.echoed_by,
            seen.echoes.len(),
            seen.landmark_echoes,
            report.matrix.blocks().unwrap().len()
        );
        assert!(seen.echoed_by < Duration::from_secs(30), "{:?}", seen.echoed_by);
        assert!(took < Duration::from_secs(30) + Duration::from_millis(3000 * 17), "{took:?}");
        assert!(are_racks(&report, &racks));
        check_meetings(&report, &racks);
        assert!(report.matrix.links().count() < 200_000, "not a link for each of 4,498,500 pairs");
        assert_eq!(report.estimated + seen.echoes.len() as u64, 3000 * 2999 / 2);
        let neighbour = if in_turn { 75 } else { 1 };
        let [near, far] = [neighbour, 2999].map(|other| report.matrix.link(other, 0));
        assert!((40_000..=41_300).contains(&far.alpha_ns), "{far:?}");
        assert!(
            (1000..=1030).contains(&near.ps_per_byte) && (1000..=1030).contains(&far.ps_per_byte)
        );
        assert!((20_000..=20_700).contains(&near.alpha_ns), "{near:?}");
        assert_eq!(Groups::of_latencies(&report.matrix).unwrap().paths.len(), 3000);
    }
}

#[test]
fn a_uniform_network_is_cut_and_has_no_groups() {
    let mut racks = Racks::new(2001, 2001);
    let (_, report) = survey(&mut racks, SurveyOptions::default(), 1);
    let report = report.unwrap();
    check_meetings(&report, &racks);
    assert_eq!(report.matrix.blocks().unwrap().len(), 16);
    assert!(Dendrogram::new(Links::new(&report.matrix, 0).unwrap()).levels().is_empty());
    assert!(
        (2000 + 125..2000 + 150).contains(&racks.seen.echo_rounds),
        "{}",
        racks.seen.echo_rounds
    );
}

#[test]
fn uplinks_are_found_under_load() {
    for (seed, in_turn) in [(1, false), (2, true)] {
        let mut racks = Racks::new(320, 40);
        (racks.by_landmarks, racks.in_turn, racks.noise) = (true, in_turn, Random::new(seed));
        racks.uplink = 10.0;
        let (_, report) =
            survey(&mut racks, SurveyOptions { loaded: true, ..SurveyOptions::default() }, seed);
        let report = report.unwrap();
        assert!(are_racks(&report, &racks));
        let places = MeasuredPlaces::of(&report.matrix, |_| EVERYWHERE, 1).unwrap();
        assert_eq!((places.groups(), places.paths.len()), (8, 320));
        let [.., uplink] = places.uplink.levels();
        assert!((8000..12_000).contains(&uplink), "{uplink}");
        let names = |rack: u32| -> BTreeSet<_> {
            let hosts = (0..320).filter(|host| racks.rack(*host) == rack);
            hosts.map(|host| places.paths[&NodeId::new(&format!("host-{host}")).unwrap()]).collect()
        };
        assert!((0..8).all(|rack| names(rack).len() == 1));
    }
}

#[test]
fn delays_of_some_pairs_hide_no_rack() {
    for (seed, in_turn) in [(1, false), (2, true), (3, true)] {
        let mut racks = Racks::new(800, 20);
        (racks.by_landmarks, racks.in_turn, racks.delayed) = (true, in_turn, 200);
        racks.noise = Random::new(seed);
        let (_, report) = survey(&mut racks, SurveyOptions::default(), seed);
        let report = report.unwrap();
        check_meetings(&report, &racks);
        println!(
            "delays: {} blocks, {} rounds",
            report.matrix.blocks().unwrap().len(),
            racks.seen.echo_rounds
        );
        let places = Groups::of_latencies(&report.matrix).unwrap();
        let mut paths: BTreeMap<u32, BTreeSet<_>> = BTreeMap::new();
        for (name, path) in report.matrix.nodes().iter().zip(&places.paths) {
            let host = name["host-".len()..].parse().unwrap();
            paths.entry(racks.rack(host)).or_default().insert(*path);
        }
        assert!(paths.values().all(|paths| paths.len() == 1), "seed {seed}");
        assert_eq!(paths.values().flatten().collect::<BTreeSet<_>>().len(), 40, "seed {seed}");
    }
}

#[test]
fn hosts_that_go_or_say_nothing_are_named_and_the_racks_are_found_without_them() {
    let mut racks = Racks::new(400, 20);
    racks.by_landmarks = true;
    racks.gone = (0..30).map(|host| (host * 13, host * 3)).collect();
    racks.silent = [17, 333].into();
    racks.cut = (0..40).map(|host| (host * 9, host * 9 + 1)).collect();
    let (_, report) = survey(&mut racks, SurveyOptions::default(), 3);
    let report = report.unwrap();
    assert_eq!(report.matrix.len() + report.lost.len(), 400);
    assert!((3..=32).contains(&report.lost.len()), "{:?}", report.lost);
    assert!(!report.guessed.is_empty() && report.guessed.len() <= 40, "{:?}", report.guessed);
    assert!(are_racks(&report, &racks));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn racks_of_any_size_are_found(
        counts in prop_oneof![(2_u32..8, 2_u32..12), (4_u32..9, 30_u32..60), (20_u32..50, 4_u32..9)],
        in_turn in any::<bool>(), seed in any::<u64>(),
    ) {
        let (number, per_rack) = counts;
        let mut racks = Racks::new(number * per_rack, per_rack);
        (racks.in_turn, racks.by_landmarks, racks.noise) = (in_turn, true, Random::new(seed));
        let (_, report) = survey(&mut racks, SurveyOptions::default(), seed);
        let report = report.unwrap();
        check_meetings(&report, &racks);
        prop_assert!(are_racks(&report, &racks));
        prop_assert_eq!(report.guessed.len(), 0);
    }

    #[test]
    fn a_survey_by_landmarks_ends_whatever_nodes_do(
        hosts in 2_u32..200, per_rack in 1_u32..40,
        gone in prop::collection::btree_map(0_u32..200, 0_u32..150, 0..60),
        silent in prop::collection::btree_set(0_u32..200, 0..20),
        cut in prop::collection::btree_set((0_u32..199, 0_u32..200), 0..300),
        loaded in any::<bool>(), seed in any::<u64>(),
    ) {
        let mut racks = Racks::new(hosts, per_rack);
        (racks.gone, racks.silent, racks.cut, racks.by_landmarks) = (gone, silent, cut, true);
        if let (_, Ok(report)) = survey(&mut racks, SurveyOptions { loaded, ..SurveyOptions::default() }, seed) {
            prop_assert_eq!(report.matrix.len() + report.lost.len(), hosts as usize);
            let count = report.matrix.len();
            prop_assert_eq!(report.matrix.blocks().unwrap().nodes(), count);
            prop_assert!(report.guessed.iter().all(|(low, high)| low < high && (*high as usize) < count));
            prop_assert!(MeasuredPlaces::of(&report.matrix, |_| EVERYWHERE, 1).is_ok());
        }
    }
}
