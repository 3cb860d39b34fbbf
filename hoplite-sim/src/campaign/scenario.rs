use std::time::Duration;

use hoplite_core::plan::collective::SchedulePreference;
use hoplite_core::plan::link::LinkEstimate;
use hoplite_core::{Dtype, ObjectId};

use crate::cluster::Labels;
use crate::random::Random;

pub(super) const DTYPE: Dtype = Dtype::U64;
pub(super) const ELEMENT_BYTES: u64 = 8;

pub(super) const MAX_RESULTS: usize = 8;

#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "most names say it")]
pub struct Scenario {
    pub stores: usize,
    pub shards: usize,
    pub clients_per_store: usize,
    /// Number of ids of objects never reduced.
    pub ids: usize,
    pub sources: usize,
    /// Number of ids of reduce targets. Several reduces may share one.
    pub targets: usize,
    pub reduced_bytes: u64,
    /// Some sources have a wrong size.
    pub has_mistakes: bool,
    /// Stores always have memory for all objects.
    pub is_roomy: bool,
    /// Links for which stores plan reduces.
    pub link: LinkEstimate,
    pub labels: Labels,
    pub capacity_bytes: u64,
    /// Time for which clients make calls.
    pub duration: Duration,
    pub faults: Faults,
    /// Longest time between two faults.
    pub fault_interval: Duration,
    /// Faults in 1000 steps of reduces (such as arrivals of blocks).
    pub faults_per_1000_steps: u64,
    /// Slowdown of writes and transfers.
    pub slowness: u32,
    pub largest_bytes: u64,
    /// Clients call reduce_scatter, allgather and all_to_all.
    pub has_exchanges: bool,
    pub allreduce_schedule: SchedulePreference,
    /// Probes measure links repeatedly.
    pub has_probes: bool,
    /// Shards join and leave the directory.
    pub changes_shards: bool,
}

/// Kinds of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Faults {
    /// Only clients die.
    None,
    /// Sessions, stores, shards, links and frames fail.
    Many,
}

const SCHEDULES: [SchedulePreference; 6] = [
    SchedulePreference::Auto,
    SchedulePreference::Auto,
    SchedulePreference::Ring,
    SchedulePreference::HalvingDoubling,
    SchedulePreference::Hdrm,
    SchedulePreference::Hierarchical,
];

impl Scenario {
    /// Draws the scenario of `seed`.
    pub fn of(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x5ce2_a810);
        let is_wide = random.chance(10);
        let stores = if is_wide { 12 } else { 3 + random.index(6) };
        let largest_bytes = *random.pick(&[65_536, 150_001, 2_000_000]);
        let faults = if random.chance(25) { Faults::None } else { Faults::Many };
        let is_roomy = random.chance(40);
        let largest_to_reduce = largest_bytes / ELEMENT_BYTES * ELEMENT_BYTES;
        let sizes = match random.index(3) {
            0 => [0, 8, 4088, 4096],
            _ => [20_000, 65_000, largest_to_reduce, largest_to_reduce],
        };
        Self {
            sources: if is_wide { 14 } else { 2 + random.index(8) },
            targets: 1 + random.index(3),
            reduced_bytes: *random.pick(&sizes),
            has_mistakes: random.chance(10),
            faults_per_1000_steps: *random.pick(&[0, 1, 5, 20]),
            link: LinkEstimate {
                bytes_per_second: *random.pick(&[1_000_000, 1_000_000_000, 1_000_000_000_000]),
                latency: random.micros(1..100_000),
                ..LinkEstimate::default()
            },
            labels: Labels { racks: *random.pick(&[0, 0, 2, 3]), moves: random.chance(30) },
            fault_interval: random.millis(50..700),
            slowness: *random.pick(&[1, 1, 10, 100]),
            largest_bytes,
            stores,
            shards: 1 + random.index(3),
            clients_per_store: if is_wide { 1 } else { 1 + random.index(3) },
            ids: 2 + random.index(8),
            capacity_bytes: largest_bytes * if is_roomy { 1000 } else { random.number(2..10) },
            duration: random.millis(1_000..5_000),
            faults,
            is_roomy,
            // Drawn last, so that known seeds keep their scenarios.
            allreduce_schedule: *random.pick(&SCHEDULES),
            has_exchanges: random.chance(40),
            has_probes: random.chance(30),
            changes_shards: random.chance(30),
        }
    }

    pub(super) fn count_of(&self, kind: Kind) -> usize {
        match kind {
            Kind::Plain => self.ids,
            Kind::Source => self.sources,
            Kind::Target => self.targets,
            Kind::Result | Kind::Part | Kind::End => MAX_RESULTS,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Plain,
    Source,
    /// Clients may also put it by mistake.
    Target,
    Result,
    Part,
    /// Empty object that ends an exchange such as allgather.
    End,
}

impl Kind {
    const ALL: [Self; 6] =
        [Self::Plain, Self::Source, Self::Target, Self::Result, Self::Part, Self::End];

    const fn prefix(self) -> &'static str {
        match self {
            Self::Plain => "object",
            Self::Source => "source",
            Self::Target => "target",
            Self::Result => "result",
            Self::Part => "part",
            Self::End => "end",
        }
    }

    pub(super) fn object(self, number: usize) -> ObjectId {
        ObjectId::new(format!("{}-{number}", self.prefix())).expect("the id is short")
    }

    pub(super) fn of(id: &ObjectId) -> Self {
        let kind =
            Self::ALL.into_iter().find(|kind| id.as_bytes().starts_with(kind.prefix().as_bytes()));
        kind.expect("each object is of a kind")
    }
}
