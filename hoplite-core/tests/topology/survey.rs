//! Surveys over models of networks, in virtual time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hoplite_core::time::Time;
use hoplite_core::topology::Links;
use hoplite_core::topology::cluster::Dendrogram;
use hoplite_core::topology::measured::MeasuredPlaces;
use hoplite_core::topology::place::EVERYWHERE;
use hoplite_core::topology::probe::Probes;
use hoplite_core::topology::probe::echo::Echoes;
use hoplite_core::topology::probe::survey::{
    Bandwidth, Finding, MAX_NODES, Survey, SurveyCommand, SurveyError, SurveyEvent, SurveyLoss,
    SurveyOptions, SurveyReport, SurveyWork,
};
use hoplite_core::topology::random::Random;
use proptest::prelude::*;

/// Hosts in racks, and these in zones, one after the other: 40 us within a rack, 80 us between; 1 ns per byte, and uplinks that carry so much
/// less.
struct Racks {
    hosts: u32,
    per_rack: u32,
    /// Whether hosts stand in the racks in turn instead.
    in_turn: bool,
    /// What the uplink of a rack carries, in links of hosts.
    uplink: f64,
    racks_per_zone: u32,
    /// What the uplink of a zone carries, in links of hosts.
    zone_uplink: f64,
    noise: Random,
    /// Hosts that are gone from this step of theirs on.
    gone: BTreeMap<u32, u32>,
    /// Hosts that say nothing from the beginning.
    silent: BTreeSet<u32>,
    /// Pairs that do not reach each other.
    cut: BTreeSet<(u32, u32)>,
}

impl Racks {
    fn new(hosts: u32, per_rack: u32) -> Self {
        Self {
            hosts,
            per_rack,
            in_turn: false,
            uplink: f64::from(per_rack),
            racks_per_zone: hosts,
            zone_uplink: f64::from(hosts),
            noise: Random::new(1),
            gone: BTreeMap::new(),
            silent: BTreeSet::new(),
            cut: BTreeSet::new(),
        }
    }

    fn rack(&self, host: u32) -> u32 {
        if self.in_turn { host % (self.hosts / self.per_rack) } else { host / self.per_rack }
    }

    fn crosses(&self, a: u32, b: u32) -> bool {
        self.rack(a) != self.rack(b)
    }

    fn finding(
        &mut self,
        node: u32,
        peer: u32,
        work: SurveyWork,
        others: &[(u32, u32)],
    ) -> (Finding, Duration) {
        if self.cut.contains(&(node.min(peer), node.max(peer))) {
            return (Finding::Nothing, Duration::from_millis(1500));
        }
        let noise = 1.0 + self.noise.below(300) as f64 / 10_000.0;
        match work {
            SurveyWork::Echo { probes } => {
                let round_trip_ns = if self.crosses(node, peer) { 80_000 } else { 40_000 };
                let forth_ns = (round_trip_ns as f64 * noise) as u64;
                let count = if let Probes::Count(count) = probes { count } else { 256 };
                let echoes = Echoes { forth_ns, back_ns: round_trip_ns, count, lost: 0 };
                // 64 in 6.4 ms at least, the last block at once.
                let took = Duration::from_micros(u64::from(count.saturating_sub(64)) * 100 + 64 * 50);
                (Finding::Echoes { echoes, by_tcp: false }, took)
            }
            SurveyWork::Train { bytes, at_least } => {
                // Of all flows out of the sender's group, and into the receiver's, each gets its part.
                let part = |group: &dyn Fn(u32) -> u32, uplink: f64| {
                    let crossing = || others.iter().filter(|&&(a, b)| group(a) != group(b));
                    let leaving = crossing().filter(|&&(_, b)| group(b) == group(peer)).count();
                    let arriving = crossing().filter(|&&(a, _)| group(a) == group(node)).count();
                    let flows = leaving.max(arriving).max(1) as f64;
                    if group(node) == group(peer) { 1.0 } else { (uplink / flows).min(1.0) }
                };
                let rack = |host: u32| self.rack(host);
                let zone = |host: u32| self.rack(host) / self.racks_per_zone;
                let rate = part(&rack, self.uplink).min(part(&zone, self.zone_uplink));
                let ps_per_byte = (1000.0 / rate * noise) as u32;
                let took =
                    Duration::from_nanos(bytes * u64::from(ps_per_byte) / 1000).max(at_least.mul_f64(1.5));
                (Finding::Train { ps_per_byte, bytes }, took)
            }
        }
    }
}

/// Has a survey ended over a model; answers when it was, and what it has found.
fn survey(
    racks: &mut Racks,
    options: SurveyOptions,
    seed: u64,
) -> (Duration, Result<SurveyReport, SurveyError>) {
    const CONTROL: Duration = Duration::from_micros(200);
    let names = (0..racks.hosts).map(|host| format!("host-{host}")).collect();
    let mut commands = Vec::new();
    let mut now = Time::ZERO;
    let mut survey = Survey::begin(names, options, seed, now, &mut commands).unwrap();
    let mut armed: BTreeMap<u32, (u32, u64)> = BTreeMap::new();
    let mut events: BTreeMap<(Time, u64), SurveyEvent> = BTreeMap::new();
    let mut number = 0;
    let mut works: BTreeMap<u32, u32> = BTreeMap::new();
    while !survey.is_done() {
        let batch = std::mem::take(&mut commands);
        let flows: Vec<(u32, u32)> = batch.iter().filter_map(measured).collect();
        let mut busy = BTreeSet::new();
        for command in batch {
            let (at, event) = match command {
                SurveyCommand::Arm { node, .. } if racks.silent.contains(&node) => continue,
                SurveyCommand::Arm { node, peer, nonce } => {
                    assert!(busy.insert(node), "{node} is in two pairs");
                    armed.insert(node, (peer, nonce));
                    (CONTROL, SurveyEvent::Armed { node })
                }
                SurveyCommand::Measure { node, peer, nonce, work } => {
                    assert_eq!(armed[&peer], (node, nonce), "the peer answers");
                    let done = works.entry(node).or_default();
                    *done += 1;
                    if racks.gone.get(&node).is_some_and(|last| *done > *last) {
                        (CONTROL, SurveyEvent::Lost { node, loss: SurveyLoss::Gone })
                    } else {
                        let (finding, took) = racks.finding(node, peer, work, &flows);
                        (took + CONTROL, SurveyEvent::Found { node, finding })
                    }
                }
                SurveyCommand::Dismiss { .. } => continue,
            };
            number += 1;
            events.insert((now + at, number), event);
        }
        if let Some((&(at, number), _)) = events.first_key_value()
            && at < survey.deadline()
        {
            now = at;
            let event = events.remove(&(at, number)).unwrap();
            survey.apply(now, event, &mut commands);
        } else {
            now = survey.deadline();
            assert_ne!(now, Time::NEVER, "somebody is waited for");
            survey.apply(now, SurveyEvent::Tick, &mut commands);
        }
    }
    let progress = survey.progress();
    assert_eq!(progress.done, progress.steps);
    (now.since(Time::ZERO), survey.report(500))
}

fn measured(command: &SurveyCommand) -> Option<(u32, u32)> {
    match command {
        SurveyCommand::Measure { node, peer, .. } => Some((*node, *peer)),
        _ => None,
    }
}

/// Whether the groups of close nodes are the racks, for messages of so many bytes.
fn finds_racks(report: &SurveyReport, per_rack: usize, size_bytes: u64) -> bool {
    let links = Links::new(&report.matrix, size_bytes).unwrap();
    let dendrogram = Dendrogram::new(links);
    let levels = dendrogram.levels();
    let Some(distance_ps) = levels.last() else { return false };
    let groups = dendrogram.groups(*distance_ps);
    groups.iter().enumerate().all(|(host, group)| *group as usize == host / per_rack)
}

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
    // Each node's train comes on top: 1,000 of them, one after the other, take as long again.
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
        // All trains between neighbours cross an uplink, and say nothing of this pair.
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
        // Pairs that are slow above the rack leave more of its uplink to others than this model says.
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
    assert_eq!(survey(&mut racks, SurveyOptions::default(), 1).1, Err(SurveyError::NothingMeasured));
    racks.silent.insert(1);
    assert_eq!(survey(&mut racks, SurveyOptions::default(), 1).1, Err(SurveyError::TooFewNodes { count: 1 }));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_survey_ends_whatever_nodes_do(
        hosts in 2_u32..9, gone in prop::collection::btree_map(0_u32..9, 0_u32..12, 0..4),
        silent in prop::collection::btree_set(0_u32..9, 0..3),
        cut in prop::collection::btree_set((0_u32..8, 0_u32..9), 0..6),
        loaded in any::<bool>(), all in any::<bool>(), seed in any::<u64>(),
    ) {
        let mut racks = Racks::new(hosts, 3);
        (racks.gone, racks.silent, racks.cut) = (gone, silent, cut);
        let bandwidth = if all { Bandwidth::Pairs } else { Bandwidth::Nodes };
        let options = SurveyOptions { probes: Probes::Auto, bandwidth, loaded, apply: false };
        if let (_, Ok(report)) = survey(&mut racks, options, seed) {
            prop_assert_eq!(report.matrix.len() + report.lost.len(), hosts as usize);
        }
    }

    #[test]
    fn events_out_of_place_do_no_harm(
        hosts in 2_u32..6,
        events in prop::collection::vec((0_u32..7, 0_u8..5, 0_u64..3_000_000), 0..200),
    ) {
        let names = (0..hosts).map(|host| host.to_string()).collect();
        let mut commands = Vec::new();
        let options = SurveyOptions { loaded: true, ..SurveyOptions::default() };
        let mut survey = Survey::begin(names, options, 1, Time::ZERO, &mut commands).unwrap();
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
