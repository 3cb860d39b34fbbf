//! Surveys of modelled networks, in virtual time.

#![expect(
    clippy::unwrap_used,
    reason = "these are tests, and so are the functions that they share"
)]

mod landmarks;
mod model;

use std::time::Duration;

use hoplite_core::time::Time;
use hoplite_core::topology::measured::MeasuredPlaces;
use hoplite_core::topology::place::EVERYWHERE;
use hoplite_core::topology::probe::Probes;
use hoplite_core::topology::probe::survey::{
    Bandwidth, Finding, MAX_NODES, Survey, SurveyError, SurveyEvent, SurveyLoss, SurveyOptions,
};
use hoplite_core::topology::random::Random;
use proptest::prelude::*;

use model::{Racks, finds_racks, survey};

#[test]
fn sixty_four_nodes_take_less_than_five_seconds() {
    let (took, report) = survey(&mut Racks::new(64, 16), SurveyOptions::default(), 1);
    let report = report.unwrap();
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert!(finds_racks(&report, 16, 0));
    assert_eq!((report.lost.len(), report.guessed.len(), report.by_tcp), (0, 0, 0));
    assert_eq!(report.echoes, 64 * 63 / 2 * 256);
    let link = report.matrix.link(0, 63);
    assert!((40_000..=41_300).contains(&link.alpha_ns), "half of the worse round trip: {link:?}");
    assert!((1000..=1030).contains(&link.ps_per_byte), "{link:?}");
}

#[test]
fn a_thousand_nodes_take_less_than_thirty_seconds_for_their_echoes() {
    let options = SurveyOptions { probes: Probes::Auto, ..SurveyOptions::default() };
    let (took, report) = survey(&mut Racks::new(1000, 50), options, 1);
    let trains = Duration::from_millis(1000 * 16);
    assert!(took < Duration::from_secs(30) + trains, "{took:?}");
    assert!(finds_racks(&report.unwrap(), 50, 0));
}

#[test]
fn only_load_shows_that_uplinks_carry_less() {
    for seed in 0..10 {
        let mut racks = Racks::new(16, 4);
        racks.uplink = 1.0;
        racks.noise = Random::new(seed);
        let all = SurveyOptions { bandwidth: Bandwidth::Pairs, ..SurveyOptions::default() };
        let (_, idle) = survey(&mut racks, all, seed);
        let idle = idle.unwrap();
        assert!(idle.matrix.link(0, 15).ps_per_byte < 1050);
        let (_, loaded) =
            survey(&mut racks, SurveyOptions { loaded: true, ..SurveyOptions::default() }, seed);
        let loaded = loaded.unwrap();
        assert!(loaded.matrix.link(0, 1).ps_per_byte < 1050);
        assert!(loaded.matrix.link(0, 15).ps_per_byte > 2000, "{:?}", loaded.matrix.link(0, 15));
        assert!(finds_racks(&loaded, 4, 64 << 20), "seed {seed}");
    }
}

#[test]
fn hosts_of_a_rack_are_close_although_each_has_a_neighbour_in_another() {
    for seed in 0..10 {
        let mut racks = Racks::new(8, 4);
        (racks.in_turn, racks.uplink, racks.noise) = (true, 0.25, Random::new(seed));
        let (_, report) =
            survey(&mut racks, SurveyOptions { loaded: true, ..SurveyOptions::default() }, seed);
        let matrix = report.unwrap().matrix;
        // This pair shares a rack, because successive hosts are in different racks.
        assert!(matrix.link(0, 2).ps_per_byte < 1050, "seed {seed}: {:?}", matrix.link(0, 2));
        let places = MeasuredPlaces::of(&matrix, |_| EVERYWHERE, 1).unwrap();
        assert_eq!(places.groups(), 2, "seed {seed}");
        assert!((170..300).contains(&places.uplink.permille()), "seed {seed}: {:?}", places.uplink);
    }
}

#[test]
fn the_uplinks_of_racks_and_of_zones_are_told_apart() {
    for seed in 0..5 {
        let mut racks = Racks::new(32, 4);
        (racks.uplink, racks.racks_per_zone, racks.zone_uplink) = (2.0, 4, 0.5);
        racks.noise = Random::new(seed);
        let (_, report) =
            survey(&mut racks, SurveyOptions { loaded: true, ..SurveyOptions::default() }, seed);
        let places = MeasuredPlaces::of(&report.unwrap().matrix, |_| EVERYWHERE, 1).unwrap();
        assert_eq!(places.groups(), 8, "seed {seed}: {places:?}");
        // Pairs that a zone's uplink slows down use less of the rack's uplink.
        let [_, _, zone, rack] = places.uplink.levels();
        assert!((300..700).contains(&zone) && rack > 700, "seed {seed}: {:?}", places.uplink);
    }
}

#[test]
fn a_node_that_goes_is_left_out_and_named() {
    let mut racks = Racks::new(9, 3);
    racks.gone.insert(4, 2);
    racks.silent.insert(7);
    let (_, report) = survey(&mut racks, SurveyOptions::default(), 1);
    let report = report.unwrap();
    assert_eq!(
        report.lost,
        [("host-4".to_owned(), SurveyLoss::Gone), ("host-7".to_owned(), SurveyLoss::Silent)]
    );
    assert_eq!(report.matrix.len(), 7);
    assert!(!report.matrix.nodes().contains(&"host-4".to_owned()));
    assert_eq!(report.guessed, []);
}

#[test]
fn pairs_that_cannot_meet_are_guessed_and_named() {
    let mut racks = Racks::new(4, 2);
    racks.cut.insert((0, 1));
    let (_, report) = survey(&mut racks, SurveyOptions::default(), 1);
    let report = report.unwrap();
    assert_eq!(report.guessed, [(0, 1)]);
    assert!(report.matrix.link(0, 1).alpha_ns >= 40_000, "as bad as the worst that either has");
}

#[test]
fn what_cannot_be_measured_is_an_error() {
    let begin = |count: usize| {
        let names = (0..count).map(|host| host.to_string()).collect();
        Survey::begin(names, SurveyOptions::default(), 1, Time::ZERO, &mut Vec::new()).map(|_| ())
    };
    assert_eq!(begin(0), Err(SurveyError::TooFewNodes { count: 0 }));
    assert_eq!(begin(1), Err(SurveyError::TooFewNodes { count: 1 }));
    assert_eq!(begin(MAX_NODES + 1), Err(SurveyError::TooManyNodes { count: MAX_NODES + 1 }));
    let mut racks = Racks::new(2, 1);
    racks.cut.insert((0, 1));
    assert_eq!(
        survey(&mut racks, SurveyOptions::default(), 1).1,
        Err(SurveyError::NothingMeasured)
    );
    racks.silent.insert(1);
    assert_eq!(
        survey(&mut racks, SurveyOptions::default(), 1).1,
        Err(SurveyError::TooFewNodes { count: 1 })
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_survey_ends_whatever_nodes_do(
        hosts in 2_u32..9, gone in prop::collection::btree_map(0_u32..9, 0_u32..12, 0..4),
        silent in prop::collection::btree_set(0_u32..9, 0..3),
        cut in prop::collection::btree_set((0_u32..8, 0_u32..9), 0..6),
        loaded in any::<bool>(), all in any::<bool>(), by_landmarks in any::<bool>(), seed in any::<u64>(),
    ) {
        let mut racks = Racks::new(hosts, 3);
        (racks.gone, racks.silent, racks.cut, racks.by_landmarks) = (gone, silent, cut, by_landmarks);
        let bandwidth = if all { Bandwidth::Pairs } else { Bandwidth::Nodes };
        let options = SurveyOptions { probes: Probes::Auto, bandwidth, loaded, apply: false };
        if let (_, Ok(report)) = survey(&mut racks, options, seed) {
            prop_assert_eq!(report.matrix.len() + report.lost.len(), hosts as usize);
        }
    }

    #[test]
    fn events_out_of_place_do_no_harm(
        hosts in 2_u32..6, by_landmarks in any::<bool>(),
        events in prop::collection::vec((0_u32..7, 0_u8..5, 0_u64..3_000_000), 0..200),
    ) {
        let names = (0..hosts).map(|host| host.to_string()).collect();
        let mut commands = Vec::new();
        let options = SurveyOptions { loaded: true, ..SurveyOptions::default() };
        let begin = if by_landmarks { Survey::begin_by_landmarks } else { Survey::begin };
        let mut survey = begin(names, options, 1, Time::ZERO, &mut commands).unwrap();
        let mut now = Time::ZERO;
        for (node, kind, micros) in events {
            now = now + Duration::from_micros(micros);
            let event = match kind {
                0 => SurveyEvent::Armed { node },
                1 => SurveyEvent::Found { node, finding: Finding::Nothing },
                2 => SurveyEvent::Found { node, finding: Finding::Train { ps_per_byte: u32::MAX, bytes: u64::MAX } },
                3 => SurveyEvent::Lost { node, loss: SurveyLoss::Gone },
                _ => SurveyEvent::Tick,
            };
            survey.apply(now, event, &mut commands);
            let _ = survey.report(1);
        }
    }
}
