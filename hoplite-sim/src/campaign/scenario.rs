//! What a run is made of: how many machines, objects and clients, how large, how fast, and what fails.

use std::time::Duration;

use hoplite_core::plan::collective::SchedulePreference;
use hoplite_core::plan::link::LinkEstimate;
use hoplite_core::{Dtype, ObjectId};

use crate::cluster::Labels;
use crate::random::Random;

/// The element type of all that is reduced, and its size.
pub(super) const DTYPE: Dtype = Dtype::U64;
pub(super) const ELEMENT_BYTES: u64 = 8;

/// Most objects that are made by one reduce each.
pub(super) const MAX_RESULTS: usize = 8;

/// What a run is made of.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// How many stores.
    pub stores: usize,
    /// How many shards.
    pub shards: usize,
    /// How many clients at each store.
    pub clients_per_store: usize,
    /// The number of ids of objects that nobody reduces.
    pub ids: usize,
    /// How many ids of objects that are put to be reduced.
    pub sources: usize,
    /// How many ids of targets that several reduces may have.
    pub targets: usize,
    /// The size of objects that are reduced.
    pub reduced_bytes: u64,
    /// `true` if some of them have another size by mistake.
    pub has_mistakes: bool,
    /// `true` if no store ever lacks room.
    pub is_roomy: bool,
    /// What stores take their links for.
    pub link: LinkEstimate,
    /// Where they say that they are.
    pub labels: Labels,
    /// The arena of each store.
    pub capacity_bytes: u64,
    /// For how long clients are busy.
    pub duration: Duration,
    /// What fails meanwhile.
    pub faults: Faults,
    /// The time that it is from one fault to the next, at most.
    pub fault_interval: Duration,
    /// How often something fails in the middle of a reduce.
    pub faults_per_1000_steps: u64,
    /// How many times as long as usual writes and transfers take.
    pub slowness: u32,
    /// The largest object.
    pub largest_bytes: u64,
    /// `true` if there are exchanges of parts too.
    pub has_exchanges: bool,
    /// How the sessions of allreduces exchange data.
    pub allreduce_schedule: SchedulePreference,
    /// `true` if it is measured, again and again, where stores are.
    pub has_probes: bool,
}

/// Whether anything fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Faults {
    /// Nothing does, apart from clients.
    None,
    /// Sessions, stores, shards, links and frames do.
    Many,
}

/// Often the cheapest one, as it is in general.
const SCHEDULES: [SchedulePreference; 6] = [
    SchedulePreference::Auto,
    SchedulePreference::Auto,
    SchedulePreference::Ring,
    SchedulePreference::HalvingDoubling,
    SchedulePreference::Hdrm,
    SchedulePreference::Hierarchical,
];

impl Scenario {
    /// The scenario that belongs to `seed`.
    pub fn of(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x5ce2_a810);
        // A few are wide, so that there are long chains.
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
            // The last ones, so that what a seed was before is what it is.
            allreduce_schedule: *random.pick(&SCHEDULES),
            has_exchanges: random.chance(40),
            has_probes: random.chance(30),
        }
    }

    /// Returns the number of ids of a kind.
    pub(super) fn count_of(&self, kind: Kind) -> usize {
        match kind {
            Kind::Plain => self.ids,
            Kind::Source => self.sources,
            Kind::Target => self.targets,
            Kind::Result | Kind::Part | Kind::End => MAX_RESULTS,
        }
    }
}

/// What an object is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// To be put and read.
    Plain,
    /// To be put, read and reduced.
    Source,
    /// To be made by any number of reduces, or by mistake put.
    Target,
    /// To be made by one reduce.
    Result,
    /// The same, of parts of its sources.
    Part,
    /// To be made, without bytes, when an exchange of parts is over.
    End,
}

impl Kind {
    const ALL: [Self; 6] = [Self::Plain, Self::Source, Self::Target, Self::Result, Self::Part, Self::End];

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

    /// One object of this kind.
    pub(super) fn object(self, number: usize) -> ObjectId {
        ObjectId::new(format!("{}-{number}", self.prefix())).expect("the id is short")
    }

    pub(super) fn of(id: &ObjectId) -> Self {
        let kind = Self::ALL.into_iter().find(|kind| id.as_bytes().starts_with(kind.prefix().as_bytes()));
        kind.expect("each object is of a kind")
    }
}
