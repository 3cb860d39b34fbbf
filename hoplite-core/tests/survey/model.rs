use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hoplite_core::time::Time;
use hoplite_core::topology::Links;
use hoplite_core::topology::cluster::Dendrogram;
use hoplite_core::topology::probe::Probes;
use hoplite_core::topology::probe::echo::Echoes;
use hoplite_core::topology::probe::survey::{
    Finding, Survey, SurveyCommand, SurveyError, SurveyEvent, SurveyLoss, SurveyOptions,
    SurveyReport, SurveyWork,
};
use hoplite_core::topology::random::Random;

/// Racks in zones. A round trip takes 40 us within a rack, 80 us between racks. A host's link takes
/// 1 ns per byte; uplinks may be slower.
pub(super) struct Racks {
    pub(super) hosts: u32,
    pub(super) per_rack: u32,
    pub(super) in_turn: bool,
    /// Rate of a rack's uplink, relative to a host's link.
    pub(super) uplink: f64,
    pub(super) racks_per_zone: u32,
    pub(super) zone_uplink: f64,
    pub(super) noise: Random,
    pub(super) gone: BTreeMap<u32, u32>,
    pub(super) silent: BTreeSet<u32>,
    pub(super) cut: BTreeSet<(u32, u32)>,
    /// One in this number of pairs is delayed threefold; zero for none.
    pub(super) delayed: u64,
    pub(super) by_landmarks: bool,
    pub(super) seen: Seen,
}

#[derive(Default)]
pub(super) struct Seen {
    pub(super) echo_rounds: u32,
    pub(super) echoed_by: Duration,
    /// Full exchanges per pair, and shorter ones with landmarks.
    pub(super) echoes: BTreeMap<(u32, u32), u32>,
    pub(super) landmark_echoes: u64,
}

impl Racks {
    pub(super) fn new(hosts: u32, per_rack: u32) -> Self {
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
            delayed: 0,
            by_landmarks: false,
            seen: Seen::default(),
        }
    }

    fn watch(&mut self, now: Time, options: SurveyOptions, batch: &[SurveyCommand]) {
        let mut is_round = false;
        for command in batch {
            let SurveyCommand::Measure { node, peer, work: SurveyWork::Echo { probes }, .. } =
                command
            else {
                continue;
            };
            is_round = true;
            if *probes == options.probes {
                *self.seen.echoes.entry((*node.min(peer), *node.max(peer))).or_default() += 1;
            } else {
                assert_eq!(*probes, Probes::Count(32));
                self.seen.landmark_echoes += 1;
            }
        }
        if is_round {
            self.seen.echo_rounds += 1;
            self.seen.echoed_by = now.since(Time::ZERO);
        }
    }

    pub(super) fn rack(&self, host: u32) -> u32 {
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
                let is_delayed = self.delayed > 0 && self.noise.below(self.delayed) == 0;
                let delay = if is_delayed { 3.0 } else { 1.0 };
                let forth_ns = (round_trip_ns as f64 * noise * delay) as u64;
                let count = if let Probes::Count(count) = probes { count } else { 256 };
                let echoes = Echoes { forth_ns, back_ns: round_trip_ns, count, lost: 0 };
                // Echoes beyond 64 take 100 us each; the last 64 one round trip each.
                let last = Duration::from_nanos(forth_ns) * count.min(64);
                let took = Duration::from_micros(u64::from(count.saturating_sub(64)) * 100) + last;
                (Finding::Echoes { echoes, by_tcp: false }, took)
            }
            SurveyWork::Train { bytes, at_least } => {
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
                let took = Duration::from_nanos(bytes * u64::from(ps_per_byte) / 1000)
                    .max(at_least.mul_f64(1.5));
                (Finding::Train { ps_per_byte, bytes }, took)
            }
        }
    }
}

pub(super) fn survey(
    racks: &mut Racks,
    options: SurveyOptions,
    seed: u64,
) -> (Duration, Result<SurveyReport, SurveyError>) {
    const CONTROL: Duration = Duration::from_micros(200);
    let names = (0..racks.hosts).map(|host| format!("host-{host}")).collect();
    let mut commands = Vec::new();
    let mut now = Time::ZERO;
    let begin = if racks.by_landmarks { Survey::begin_by_landmarks } else { Survey::begin };
    let mut survey = begin(names, options, seed, now, &mut commands).unwrap();
    let mut armed: BTreeMap<u32, (u32, u64)> = BTreeMap::new();
    let mut events: BTreeMap<(Time, u64), SurveyEvent> = BTreeMap::new();
    let mut number = 0;
    let mut works: BTreeMap<u32, u32> = BTreeMap::new();
    while !survey.is_done() {
        let batch = std::mem::take(&mut commands);
        let flows: Vec<(u32, u32)> = batch.iter().filter_map(measured).collect();
        let mut busy = BTreeSet::new();
        racks.watch(now, options, &batch);
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

pub(super) fn finds_racks(report: &SurveyReport, per_rack: usize, size_bytes: u64) -> bool {
    let links = Links::new(&report.matrix, size_bytes).unwrap();
    let dendrogram = Dendrogram::new(links);
    let levels = dendrogram.levels();
    let Some(distance_ps) = levels.last() else { return false };
    let groups = dendrogram.groups(*distance_ps);
    groups.iter().enumerate().all(|(host, group)| *group as usize == host / per_rack)
}
