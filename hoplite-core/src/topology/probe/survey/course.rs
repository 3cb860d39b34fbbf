//! The course of a survey: which pairs meet, and what is known of them.

use std::collections::BTreeMap;
use std::fmt::Debug;

use super::super::super::matrix::{Link, Matrix};
use super::super::super::random::Random;
use super::super::{Probes, percentile};
use super::messages::{SurveyError, SurveyLoss};

/// Of the gaps of a pair under load, this percentile counts: a low rate, but not the lowest, which may be that of a pause of a host.
const LOADED_PERCENTILE: u32 = 75;

/// What the pairs of a step do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Task {
    Echoes(Probes),
    Train,
    Loaded,
}

/// Nodes that have no part any more.
pub(super) type Lost = BTreeMap<u32, SurveyLoss>;

/// Which pairs meet, and what is known of them.
pub(super) trait Course: Debug + Send {
    /// What is done in a step, and by which pairs; asked for one step after the other. `None` after the last one.
    fn step(&mut self, step: u64, lost: &Lost, random: &mut Random) -> Option<(Task, Vec<(u32, u32)>)>;
    /// Returns the number of steps, as far as is known.
    fn steps(&self) -> u64;
    /// Takes in the worse round trip of a pair, or that it has none.
    fn echoed(&mut self, pair: (u32, u32), round_trip_ns: Option<u64>);
    /// Takes in what a byte took between the two nodes of a pair, under load or not.
    fn carried(&mut self, pair: (u32, u32), ps_per_byte: u32, is_loaded: bool);
    /// What a byte takes at least between two nodes.
    fn gap(&self, a: u32, b: u32) -> Option<u32>;
    /// What is known of the nodes that are left.
    fn map(&self, names: Vec<String>, kept: &[u32], assumed_ps_per_byte: u32) -> Result<Map, SurveyError>;
}

/// What a course has found.
pub(super) struct Map {
    pub(super) matrix: Matrix,
    pub(super) guessed: Vec<(u32, u32)>,
    pub(super) estimated: u64,
}

/// The link of a pair with this round trip.
pub(super) fn link_of(round_trip_ns: u64, ps_per_byte: u32) -> Link {
    Link { alpha_ns: u32::try_from(round_trip_ns.div_ceil(2)).unwrap_or(u32::MAX), ps_per_byte }
}

/// Of what bytes took under load, that which counts.
pub(super) fn loaded_gap(gaps: &[u64]) -> Option<u32> {
    percentile(gaps, LOADED_PERCENTILE).map(|gap| u32::try_from(gap).unwrap_or(u32::MAX))
}
