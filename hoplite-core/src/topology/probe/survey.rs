//! The coordinator of a probe: has all pairs of nodes meet, and makes a matrix of what they say.
//!
//! A survey is a sequence of steps, each of which has some pairs of nodes, and no node twice. In a step both nodes of each pair are first
//! told to answer each other; when all have confirmed that, the work begins, and when all work is done, the next step. So nobody answers
//! what was not directed, and nobody is measured while it has other probes to do.
//!
//! 1. Echoes: the rounds of a tournament.
//! 2. Trains: one pair at a time, so that none takes another's share of a link. Either each node with the next, from which follows what the
//!    link of each node carries; or all pairs.
//! 3. Loaded, if asked for: all pairs of a round send trains at once, in six tournaments with other pairs each. Only so an uplink shows that
//!    carries less than its hosts together: the low rates count.
//!
//! Sources: Cloud Collectives, section IV-B, for the echoes. The trains are ours.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::super::matrix::{Link, Matrix};
use super::super::random::Random;
use super::super::rounds;
use super::echo::Echoes;
use super::{Probes, percentile};
use crate::time::Time;

/// More are to be measured by landmarks, which do not exist yet: with so many, echoes take a minute and the matrix 16 MB.
pub const MAX_NODES: usize = 2000;
/// All pairs of so many nodes send trains in half an hour, which is half of the time that stores take part.
pub const MAX_NODES_OF_PAIRS: usize = 500;
/// How often each pair meets under load.
const LOADED_PASSES: u32 = 6;
/// Of the gaps of a pair under load, this percentile counts: a low rate, but not the lowest, which may be that of a pause of a host.
const LOADED_PERCENTILE: u32 = 75;
/// How long a train under load lasts on a link that is not shared.
const LOADED_TRAIN: Duration = Duration::from_millis(20);
/// The shortest train: TCP has opened its window before the part of it that is measured.
pub const MIN_TRAIN_BYTES: u64 = 256 << 10;
/// The longest train: 20 ms at 25 Gbit/s.
pub const MAX_TRAIN_BYTES: u64 = 64 << 20;
/// A train that took less is repeated with more bytes: buffers on the way take in the first milliseconds of a burst.
pub const TRAIN_DURATION: Duration = Duration::from_millis(10);
/// How long nodes may take to confirm that they answer: a round trip, and as long as a store may be silent.
const ARM_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the work of a step may take. Both are far above what it is bounded by at the nodes: the silent port, a connection, echoes by
/// TCP; a train of 64 MiB at 50 Mbit/s.
const ECHO_TIMEOUT: Duration = Duration::from_secs(20);
const TRAIN_TIMEOUT: Duration = Duration::from_secs(20);

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SurveyOptions {
    /// How many echoes each pair exchanges.
    pub probes: Probes,
    /// Which pairs send trains.
    pub bandwidth: Bandwidth,
    /// Whether all pairs of a round send trains at once, too. This disturbs whoever uses the network.
    pub loaded: bool,
    /// Whether the directory and the stores are to use what is found.
    pub apply: bool,
}

/// Which pairs send trains on an idle network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Bandwidth {
    /// Each node with the next one. A pair that was not measured otherwise gets what the slower of its two nodes' links carries.
    #[default]
    Nodes,
    /// All pairs, one after the other.
    Pairs,
}

/// Why there is no survey.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SurveyError {
    /// More than [`MAX_NODES`].
    #[error("{count} nodes are more than the {MAX_NODES} that can be probed")]
    TooManyNodes {
        /// How many nodes there are.
        count: usize,
    },
    /// More than [`MAX_NODES_OF_PAIRS`], and all pairs are to send trains.
    #[error("{count} nodes are more than the {MAX_NODES_OF_PAIRS} all of whose pairs can send trains")]
    TooManyPairs {
        /// How many nodes there are.
        count: usize,
    },
    /// There is no pair, or none is left.
    #[error("a probe needs two nodes, and there are {count}")]
    TooFewNodes {
        /// How many nodes there are.
        count: usize,
    },
    /// All nodes are there, and no two of them have reached each other.
    #[error("no two nodes have reached each other")]
    NothingMeasured,
}

/// Why a node is not in the matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SurveyLoss {
    /// It cannot be reached.
    Unreachable,
    /// Its connection ended.
    Gone,
    /// It has not done in time what it was told.
    Silent,
    /// It takes part in another probe.
    Busy,
}

impl std::fmt::Display for SurveyLoss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Unreachable => "it cannot be reached",
            Self::Gone => "its connection ended",
            Self::Silent => "it did not answer in time",
            Self::Busy => "it takes part in another probe",
        })
    }
}

/// What a node measures with its peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SurveyWork {
    /// Ask for echoes.
    Echo {
        /// How many.
        probes: Probes,
    },
    /// Take trains.
    Train {
        /// The bytes of the first one.
        bytes: u64,
        /// Trains grow until one takes so long.
        at_least: Duration,
    },
}

/// What a node has measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finding {
    /// Echoes.
    Echoes {
        /// The round trips.
        echoes: Echoes,
        /// Whether they went over TCP, since no datagram came back.
        by_tcp: bool,
    },
    /// A train.
    Train {
        /// Picoseconds that each byte took.
        ps_per_byte: u32,
        /// How many bytes all trains had.
        bytes: u64,
    },
    /// Nothing: the peer could not be reached.
    Nothing,
}

/// What the coordinator has to tell the nodes, which are named by their index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SurveyCommand {
    /// Answer `peer`, and nobody else, if it has `nonce`. To be confirmed.
    Arm {
        /// Who is told.
        node: u32,
        /// Who may ask.
        peer: u32,
        /// What it asks with.
        nonce: u64,
    },
    /// Measure, and report.
    Measure {
        /// Who is told.
        node: u32,
        /// With whom.
        peer: u32,
        /// What to ask with.
        nonce: u64,
        /// The work to do.
        work: SurveyWork,
    },
    /// Let go of a node, which has no part in this any more.
    Dismiss {
        /// The node to let go of.
        node: u32,
    },
}

/// What happens to the coordinator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SurveyEvent {
    /// A node has confirmed that it answers.
    Armed {
        /// The node that answers.
        node: u32,
    },
    /// A node has done its work.
    Found {
        /// The node that has done it.
        node: u32,
        /// What it has found.
        finding: Finding,
    },
    /// A node is gone.
    Lost {
        /// The node that is gone.
        node: u32,
        /// The cause.
        loss: SurveyLoss,
    },
    /// Time has passed.
    Tick,
}

/// What is known of a pair.
#[derive(Debug, Clone, Default)]
struct Pair {
    round_trip_ns: Option<u64>,
    /// On an idle network.
    ps_per_byte: Option<u32>,
    /// One for each pass.
    loaded_ps_per_byte: Vec<u64>,
}

/// How far a survey is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SurveyProgress {
    /// Steps that are done.
    pub done: u64,
    /// All steps.
    pub steps: u64,
}

/// What a survey has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SurveyReport {
    /// The links between the nodes that were there until the end.
    pub matrix: Matrix,
    /// Nodes that are not in it, and why.
    pub lost: Vec<(String, SurveyLoss)>,
    /// Pairs of indices that have not reached each other. They are given the worst round trip that either has.
    pub guessed: Vec<(u32, u32)>,
    /// How many pairs were measured by TCP.
    pub by_tcp: u32,
    /// Round trips of all pairs.
    pub echoes: u64,
    /// Asks of all pairs that were not replied to in time.
    pub lost_echoes: u64,
    /// Bytes of all trains.
    pub train_bytes: u64,
}

#[derive(Debug)]
enum Phase {
    /// Waiting for these to confirm.
    Arming(BTreeSet<u32>),
    /// Waiting for the work of these.
    Working(BTreeSet<u32>),
    Done,
}

/// A survey that goes on.
#[derive(Debug)]
pub struct Survey {
    options: SurveyOptions,
    nodes: Vec<String>,
    lost: BTreeMap<u32, SurveyLoss>,
    /// As a packed triangle, like that of a matrix.
    pairs: Vec<Pair>,
    /// Of each node, the least that a byte of any of its trains took.
    node_gaps: Vec<Option<u32>>,
    random: Random,
    /// Who has which seat in the present pass under load.
    seats: Vec<u32>,
    step: u64,
    meetings: Vec<(u32, u32, u64)>,
    phase: Phase,
    deadline: Time,
    by_tcp: u32,
    echoes: u64,
    lost_echoes: u64,
    train_bytes: u64,
}

/// The kind of a step, and which of its kind it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Echoes { round: u32 },
    Train { index: u64 },
    Loaded { round: u32, is_first: bool },
}

impl Survey {
    /// Begins a survey of `nodes`, with nonces and passes that follow from `seed`; appends what is to be done.
    ///
    /// # Errors
    ///
    /// If there are too few nodes, or too many.
    pub fn begin(
        nodes: Vec<String>,
        options: SurveyOptions,
        seed: u64,
        now: Time,
        commands: &mut Vec<SurveyCommand>,
    ) -> Result<Self, SurveyError> {
        let count = nodes.len();
        match count {
            0 | 1 => return Err(SurveyError::TooFewNodes { count }),
            _ if count > MAX_NODES => return Err(SurveyError::TooManyNodes { count }),
            _ if options.bandwidth == Bandwidth::Pairs && count > MAX_NODES_OF_PAIRS => {
                return Err(SurveyError::TooManyPairs { count });
            }
            _ => {}
        }
        let mut survey = Self {
            options,
            pairs: vec![Pair::default(); count * (count - 1) / 2],
            node_gaps: vec![None; count],
            seats: (0..count as u32).collect(),
            nodes,
            lost: BTreeMap::new(),
            random: Random::new(seed),
            step: 0,
            meetings: Vec::new(),
            phase: Phase::Done,
            deadline: Time::NEVER,
            by_tcp: 0,
            echoes: 0,
            lost_echoes: 0,
            train_bytes: 0,
        };
        survey.begin_step(now, commands);
        Ok(survey)
    }

    /// Takes in what happened; appends what is to be done.
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

    /// When to tick.
    pub const fn deadline(&self) -> Time {
        self.deadline
    }

    /// Whether there is nothing more to do.
    pub const fn is_done(&self) -> bool {
        matches!(self.phase, Phase::Done)
    }

    /// How far it is.
    pub fn progress(&self) -> SurveyProgress {
        let steps = self.steps();
        SurveyProgress { done: self.step.min(steps), steps }
    }

    /// What is known now. Where no train has arrived, a byte takes `assumed_ps_per_byte`.
    ///
    /// # Errors
    ///
    /// If fewer than two nodes are left, or none of them have reached each other.
    pub fn report(&self, assumed_ps_per_byte: u32) -> Result<SurveyReport, SurveyError> {
        let kept: Vec<u32> = self.present().collect();
        if kept.len() < 2 {
            return Err(SurveyError::TooFewNodes { count: kept.len() });
        }
        // The worst round trip of each node, for those that it has not reached.
        let mut worst: Vec<Option<u64>> = vec![None; self.nodes.len()];
        for (low, &a) in kept.iter().enumerate() {
            for &b in &kept[low + 1..] {
                let round_trip_ns = self.pairs[index(a, b)].round_trip_ns;
                for node in [a, b] {
                    worst[node as usize] = worst[node as usize].max(round_trip_ns);
                }
            }
        }
        let worst_of_all = worst.iter().copied().max().flatten().ok_or(SurveyError::NothingMeasured)?;
        let mut guessed = Vec::new();
        let names = kept.iter().map(|&node| self.nodes[node as usize].clone()).collect();
        let matrix = Matrix::from_links(names, |high, low| {
            let (a, b) = (kept[high], kept[low]);
            let pair = &self.pairs[index(a, b)];
            let round_trip_ns = pair.round_trip_ns.unwrap_or_else(|| {
                guessed.push((low as u32, high as u32));
                worst[a as usize].max(worst[b as usize]).unwrap_or(worst_of_all)
            });
            let alpha_ns = u32::try_from(round_trip_ns.div_ceil(2)).unwrap_or(u32::MAX);
            Ok(Link { alpha_ns, ps_per_byte: self.gap(a, b, assumed_ps_per_byte) })
        });
        let name = |(&node, &loss): (&u32, &SurveyLoss)| (self.nodes[node as usize].clone(), loss);
        Ok(SurveyReport {
            // The names were those of as many nodes when the survey began.
            matrix: matrix.map_err(|_| SurveyError::TooFewNodes { count: kept.len() })?,
            lost: self.lost.iter().map(name).collect(),
            guessed,
            by_tcp: self.by_tcp,
            echoes: self.echoes,
            lost_echoes: self.lost_echoes,
            train_bytes: self.train_bytes,
        })
    }

    /// What a byte takes between two nodes.
    fn gap(&self, a: u32, b: u32, assumed: u32) -> u32 {
        let pair = &self.pairs[index(a, b)];
        let of_nodes = self.node_gaps[a as usize].max(self.node_gaps[b as usize]);
        let loaded = percentile(&pair.loaded_ps_per_byte, LOADED_PERCENTILE);
        let loaded = loaded.map(|gap| u32::try_from(gap).unwrap_or(u32::MAX));
        // What was measured comes before what follows from other pairs: those may cross an uplink that this one does not.
        pair.ps_per_byte.max(loaded).or(of_nodes).unwrap_or(assumed)
    }

    fn present(&self) -> impl Iterator<Item = u32> {
        (0..self.nodes.len() as u32).filter(|node| !self.lost.contains_key(node))
    }

    fn rounds(&self) -> u64 {
        rounds::count(self.nodes.len() as u32).into()
    }

    fn trains(&self) -> u64 {
        let nodes = self.nodes.len() as u64;
        match self.options.bandwidth {
            // Two nodes meet once.
            Bandwidth::Nodes if nodes > 2 => nodes,
            Bandwidth::Nodes | Bandwidth::Pairs => nodes * (nodes - 1) / 2,
        }
    }

    fn steps(&self) -> u64 {
        let loaded = if self.options.loaded { u64::from(LOADED_PASSES) * self.rounds() } else { 0 };
        self.rounds() + self.trains() + loaded
    }

    fn kind(&self) -> Option<Step> {
        let (step, rounds, trains) = (self.step, self.rounds(), self.trains());
        Some(match step {
            _ if step < rounds => Step::Echoes { round: step as u32 },
            _ if step < rounds + trains => Step::Train { index: step - rounds },
            _ if step < self.steps() => {
                let round = ((step - rounds - trains) % rounds) as u32;
                Step::Loaded { round, is_first: round == 0 }
            }
            _ => return None,
        })
    }

    /// The pairs of a step.
    fn meetings(&mut self, step: Step) -> Vec<(u32, u32)> {
        let nodes = self.nodes.len() as u32;
        match step {
            Step::Echoes { round } => rounds::pairs(nodes, round).collect(),
            Step::Train { index } => vec![match self.options.bandwidth {
                Bandwidth::Nodes => (index as u32, (index as u32 + 1) % nodes),
                // Pair by pair of each round, so that no node is measured again and again.
                Bandwidth::Pairs => {
                    let per_round = u64::from(nodes / 2);
                    let mut pairs = rounds::pairs(nodes, (index / per_round) as u32);
                    pairs.nth((index % per_round) as usize).unwrap_or((0, 1))
                }
            }],
            Step::Loaded { round, is_first } => {
                if is_first {
                    self.random.shuffle(&mut self.seats);
                }
                let seat = |seat: u32| self.seats[seat as usize];
                rounds::pairs(nodes, round).map(|(a, b)| (seat(a), seat(b))).collect()
            }
        }
    }

    /// Begins the next step that has a pair of nodes that are there.
    fn begin_step(&mut self, now: Time, commands: &mut Vec<SurveyCommand>) {
        if self.nodes.len() - self.lost.len() < 2 {
            self.step = self.steps();
        }
        while let Some(step) = self.kind() {
            let meetings = self.meetings(step);
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
            let mut waiting = BTreeSet::new();
            for &(a, b, nonce) in &self.meetings {
                commands.push(SurveyCommand::Arm { node: a, peer: b, nonce });
                commands.push(SurveyCommand::Arm { node: b, peer: a, nonce });
                waiting.extend([a, b]);
            }
            (self.phase, self.deadline) = (Phase::Arming(waiting), now + ARM_TIMEOUT);
            return;
        }
        (self.phase, self.deadline) = (Phase::Done, Time::NEVER);
    }

    /// Goes on if nobody is waited for.
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
        let Some(step) = self.kind() else { return };
        let mut waiting = BTreeSet::new();
        for &(a, b, nonce) in &self.meetings {
            if self.lost.contains_key(&a) || self.lost.contains_key(&b) {
                continue;
            }
            let work = match step {
                Step::Echoes { .. } => SurveyWork::Echo { probes: self.options.probes },
                Step::Train { .. } => SurveyWork::Train { bytes: MIN_TRAIN_BYTES, at_least: TRAIN_DURATION },
                Step::Loaded { .. } => {
                    let gap = u128::from(self.gap(a, b, 0).max(1));
                    let bytes = u64::try_from(LOADED_TRAIN.as_nanos() * 1000 / gap).unwrap_or(u64::MAX);
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
        let limit = if matches!(step, Step::Echoes { .. }) { ECHO_TIMEOUT } else { TRAIN_TIMEOUT };
        (self.phase, self.deadline) = (Phase::Working(waiting), now + limit);
    }

    fn found(&mut self, node: u32, finding: Finding) {
        let meeting = self.meetings.iter().find(|(a, b, _)| *a == node || *b == node);
        let (Some(&(a, b, _)), Some(step)) = (meeting, self.kind()) else { return };
        let pair = &mut self.pairs[index(a, b)];
        match (step, finding) {
            (Step::Echoes { .. }, Finding::Echoes { echoes, by_tcp }) => {
                pair.round_trip_ns = Some(echoes.forth_ns.max(echoes.back_ns));
                self.by_tcp += u32::from(by_tcp);
                self.echoes += u64::from(echoes.count);
                self.lost_echoes += u64::from(echoes.lost);
            }
            (Step::Train { .. }, Finding::Train { ps_per_byte, bytes }) => {
                pair.ps_per_byte = pair.ps_per_byte.max(Some(ps_per_byte));
                for node in [a, b] {
                    let gap = &mut self.node_gaps[node as usize];
                    *gap = Some(gap.map_or(ps_per_byte, |gap| gap.min(ps_per_byte)));
                }
                self.train_bytes = self.train_bytes.saturating_add(bytes);
            }
            (Step::Loaded { .. }, Finding::Train { ps_per_byte, bytes }) => {
                pair.loaded_ps_per_byte.push(ps_per_byte.into());
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

/// Where a pair is in the triangle.
const fn index(a: u32, b: u32) -> usize {
    let (low, high) = if a < b { (a as usize, b as usize) } else { (b as usize, a as usize) };
    high * (high - 1) / 2 + low
}
