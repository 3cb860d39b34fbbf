//! Coordinates a probe: lets pairs of nodes measure, and builds a matrix.
//!
//! In each step, each node is in at most one pair. Both nodes first confirm that they answer each
//! other, because nodes answer only named peers.
//!
//! A schedule chooses the pairs: all in `pairs`; only some in `landmarks`, for many nodes. It has
//! three parts:
//! 1. Echoes (round trips).
//! 2. Trains (bursts of bytes), one pair at a time, so that pairs share no link.
//! 3. If requested, trains of a round's pairs at once. Only this shows an uplink that carries less
//!    than its hosts together.
//!
//! Sources: Cloud Collectives, section IV-B, for the echoes. The trains are ours.

mod groups;
mod landmarks;
mod messages;
mod pairs;
mod schedule;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::super::random::Random;
use crate::time::Time;

use landmarks::Landmarks;
pub use messages::{
    Bandwidth, Finding, MAX_NODES, MAX_NODES_OF_PAIRS, SurveyCommand, SurveyError, SurveyEvent,
    SurveyLoss, SurveyOptions, SurveyProgress, SurveyReport, SurveyWork,
};
use pairs::AllPairs;
use schedule::{Lost, Map, SurveySchedule, Task};

/// Most nodes for measuring each pair: echoes take a minute, and results 100 MB.
pub const MAX_NODES_BY_PAIRS: usize = 2000;
/// Time that a train under load would take on an unshared link.
const LOADED_TRAIN: Duration = Duration::from_millis(20);
/// Smallest train: TCP's window must open before the measured part.
pub const MIN_TRAIN_BYTES: u64 = 256 << 10;
/// Largest train: 20 ms at 25 Gbit/s.
pub const MAX_TRAIN_BYTES: u64 = 64 << 20;
/// Shortest train that measures a rate. A shorter one is repeated with more bytes, because buffers
/// absorb the first milliseconds.
pub const TRAIN_DURATION: Duration = Duration::from_millis(10);
/// Time in which both nodes of a pair must confirm that they answer each other: a round trip, and a
/// store's longest silence.
const ARM_TIMEOUT: Duration = Duration::from_secs(5);
/// Time in which a pair must report: longer than echoes by TCP after a silent UDP port, or a train
/// of 64 MiB at 50 Mbit/s.
const ECHO_TIMEOUT: Duration = Duration::from_secs(20);
const TRAIN_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Debug)]
enum Phase {
    Arming(BTreeSet<u32>),
    Working(BTreeSet<u32>),
    Done,
}

/// A running survey of links, at its coordinator.
#[derive(Debug)]
pub struct Survey {
    nodes: Vec<String>,
    lost: Lost,
    schedule: Box<dyn SurveySchedule>,
    random: Random,
    step: u64,
    task: Task,
    meetings: Vec<(u32, u32, u64)>,
    meeting_of: BTreeMap<u32, usize>,
    phase: Phase,
    deadline: Time,
    by_tcp: u32,
    echoes: u64,
    lost_echoes: u64,
    train_bytes: u64,
}

impl Survey {
    /// Begins a survey and appends the first commands. `seed` determines nonces and random choices.
    ///
    /// # Errors
    /// Fails for too few or too many nodes.
    pub fn begin(
        nodes: Vec<String>,
        options: SurveyOptions,
        seed: u64,
        now: Time,
        commands: &mut Vec<SurveyCommand>,
    ) -> Result<Self, SurveyError> {
        check(&nodes, options)?;
        if nodes.len() > MAX_NODES_BY_PAIRS {
            return Self::begin_by_landmarks(nodes, options, seed, now, commands);
        }
        let schedule = Box::new(AllPairs::new(nodes.len() as u32, options));
        Ok(Self::follow(schedule, nodes, seed, now, commands))
    }

    /// Begins a survey like [`Self::begin`], but by landmarks even with few nodes.
    ///
    /// # Errors
    /// Fails for too few or too many nodes.
    pub fn begin_by_landmarks(
        nodes: Vec<String>,
        options: SurveyOptions,
        seed: u64,
        now: Time,
        commands: &mut Vec<SurveyCommand>,
    ) -> Result<Self, SurveyError> {
        check(&nodes, options)?;
        let schedule = Box::new(Landmarks::new(nodes.len() as u32, options));
        Ok(Self::follow(schedule, nodes, seed, now, commands))
    }

    fn follow(
        schedule: Box<dyn SurveySchedule>,
        nodes: Vec<String>,
        seed: u64,
        now: Time,
        commands: &mut Vec<SurveyCommand>,
    ) -> Self {
        let mut survey = Self {
            nodes,
            lost: Lost::new(),
            schedule,
            random: Random::new(seed),
            step: 0,
            task: Task::Train,
            meetings: Vec::new(),
            meeting_of: BTreeMap::new(),
            phase: Phase::Done,
            deadline: Time::NEVER,
            by_tcp: 0,
            echoes: 0,
            lost_echoes: 0,
            train_bytes: 0,
        };
        survey.begin_step(now, commands);
        survey
    }

    /// Handles an event, and appends commands.
    pub fn apply(&mut self, now: Time, event: SurveyEvent, commands: &mut Vec<SurveyCommand>) {
        match event {
            SurveyEvent::Armed { node } => {
                if let Phase::Arming(waiting) = &mut self.phase {
                    waiting.remove(&node);
                }
            }
            SurveyEvent::Found { node, finding } => {
                if let Phase::Working(waiting) = &mut self.phase
                    && waiting.remove(&node)
                {
                    self.found(node, finding);
                }
            }
            SurveyEvent::Lost { node, loss } => self.lose(node, loss),
            SurveyEvent::Tick if now >= self.deadline => {
                let (Phase::Arming(late) | Phase::Working(late)) = &self.phase else { return };
                for node in late.clone() {
                    self.lose(node, SurveyLoss::Silent);
                    commands.push(SurveyCommand::Dismiss { node });
                }
            }
            SurveyEvent::Tick => {}
        }
        self.proceed(now, commands);
    }

    /// Time at which the survey needs the next [`SurveyEvent::Tick`].
    pub const fn deadline(&self) -> Time {
        self.deadline
    }

    /// Returns `true` at the end.
    pub const fn is_done(&self) -> bool {
        matches!(self.phase, Phase::Done)
    }

    /// Survey's progress.
    pub fn progress(&self) -> SurveyProgress {
        let steps = self.schedule.steps();
        SurveyProgress { done: if self.is_done() { steps } else { self.step.min(steps) }, steps }
    }

    /// Returns the matrix and statistics. A link of unmeasured rate gets `assumed_ps_per_byte`.
    ///
    /// # Errors
    /// Fails if no two of the remaining nodes have reached each other.
    pub fn report(&self, assumed_ps_per_byte: u32) -> Result<SurveyReport, SurveyError> {
        let kept: Vec<u32> =
            (0..self.nodes.len() as u32).filter(|node| !self.lost.contains_key(node)).collect();
        if kept.len() < 2 {
            return Err(SurveyError::TooFewNodes { count: kept.len() });
        }
        let names = kept.iter().map(|&node| self.nodes[node as usize].clone()).collect();
        let Map { matrix, guessed, estimated } =
            self.schedule.map(names, &kept, assumed_ps_per_byte)?;
        let name = |(&node, &loss): (&u32, &SurveyLoss)| (self.nodes[node as usize].clone(), loss);
        Ok(SurveyReport {
            matrix,
            lost: self.lost.iter().map(name).collect(),
            guessed,
            estimated,
            by_tcp: self.by_tcp,
            echoes: self.echoes,
            lost_echoes: self.lost_echoes,
            train_bytes: self.train_bytes,
        })
    }

    fn begin_step(&mut self, now: Time, commands: &mut Vec<SurveyCommand>) {
        while self.nodes.len() - self.lost.len() >= 2
            && let Some((task, meetings)) =
                self.schedule.step(self.step, &self.lost, &mut self.random)
        {
            self.task = task;
            self.meetings.clear();
            for (a, b) in meetings {
                if !self.lost.contains_key(&a) && !self.lost.contains_key(&b) {
                    self.meetings.push((a, b, self.random.next_number()));
                }
            }
            if self.meetings.is_empty() {
                self.step += 1;
                continue;
            }
            self.meeting_of.clear();
            let mut waiting = BTreeSet::new();
            for (index, &(a, b, nonce)) in self.meetings.iter().enumerate() {
                commands.push(SurveyCommand::Arm { node: a, peer: b, nonce });
                commands.push(SurveyCommand::Arm { node: b, peer: a, nonce });
                waiting.extend([a, b]);
                self.meeting_of.extend([(a, index), (b, index)]);
            }
            (self.phase, self.deadline) = (Phase::Arming(waiting), now + ARM_TIMEOUT);
            return;
        }
        (self.phase, self.deadline) = (Phase::Done, Time::NEVER);
    }

    fn proceed(&mut self, now: Time, commands: &mut Vec<SurveyCommand>) {
        loop {
            match &self.phase {
                Phase::Arming(waiting) if waiting.is_empty() => self.begin_work(now, commands),
                Phase::Working(waiting) if waiting.is_empty() => {
                    self.step += 1;
                    self.begin_step(now, commands);
                }
                _ => return,
            }
        }
    }

    fn begin_work(&mut self, now: Time, commands: &mut Vec<SurveyCommand>) {
        let mut waiting = BTreeSet::new();
        for &(a, b, nonce) in &self.meetings {
            if self.lost.contains_key(&a) || self.lost.contains_key(&b) {
                continue;
            }
            let work = match self.task {
                Task::Echoes(probes) => SurveyWork::Echo { probes },
                Task::Train => {
                    SurveyWork::Train { bytes: MIN_TRAIN_BYTES, at_least: TRAIN_DURATION }
                }
                Task::Loaded => {
                    let gap = u128::from(self.schedule.gap(a, b).unwrap_or(1).max(1));
                    let bytes =
                        u64::try_from(LOADED_TRAIN.as_nanos() * 1000 / gap).unwrap_or(u64::MAX);
                    let bytes = bytes.clamp(MIN_TRAIN_BYTES, MAX_TRAIN_BYTES);
                    SurveyWork::Train { bytes, at_least: Duration::ZERO }
                }
            };
            commands.push(SurveyCommand::Measure { node: a, peer: b, nonce, work });
            waiting.insert(a);
            if matches!(work, SurveyWork::Train { .. }) {
                commands.push(SurveyCommand::Measure { node: b, peer: a, nonce, work });
                waiting.insert(b);
            }
        }
        let limit = if matches!(self.task, Task::Echoes(_)) { ECHO_TIMEOUT } else { TRAIN_TIMEOUT };
        (self.phase, self.deadline) = (Phase::Working(waiting), now + limit);
    }

    fn found(&mut self, node: u32, finding: Finding) {
        let Some(&index) = self.meeting_of.get(&node) else { return };
        let (a, b, _) = self.meetings[index];
        match (self.task, finding) {
            (Task::Echoes(_), Finding::Echoes { echoes, by_tcp }) => {
                self.schedule.echoed((a, b), Some(echoes.forth_ns.max(echoes.back_ns)));
                self.by_tcp += u32::from(by_tcp);
                self.echoes += u64::from(echoes.count);
                self.lost_echoes += u64::from(echoes.lost);
            }
            (Task::Echoes(_), Finding::Nothing) => self.schedule.echoed((a, b), None),
            (Task::Train | Task::Loaded, Finding::Train { ps_per_byte, bytes }) => {
                self.schedule.carried((a, b), ps_per_byte, self.task == Task::Loaded);
                self.train_bytes = self.train_bytes.saturating_add(bytes);
            }
            _ => {}
        }
    }

    fn lose(&mut self, node: u32, loss: SurveyLoss) {
        if node as usize >= self.nodes.len() {
            return;
        }
        self.lost.entry(node).or_insert(loss);
        if let Phase::Arming(waiting) | Phase::Working(waiting) = &mut self.phase {
            waiting.remove(&node);
        }
    }
}

fn check(nodes: &[String], options: SurveyOptions) -> Result<(), SurveyError> {
    let count = nodes.len();
    match count {
        0 | 1 => Err(SurveyError::TooFewNodes { count }),
        _ if count > MAX_NODES => Err(SurveyError::TooManyNodes { count }),
        _ if options.bandwidth == Bandwidth::Pairs && count > MAX_NODES_OF_PAIRS => {
            Err(SurveyError::TooManyPairs { count })
        }
        _ => Ok(()),
    }
}
