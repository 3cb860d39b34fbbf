//! The course of a survey: chooses the pairs of each step, and interprets their findings.

use std::collections::BTreeMap;
use std::fmt::Debug;

use super::super::super::matrix::{Link, Matrix};
use super::super::super::random::Random;
use super::super::{Probes, percentile};
use super::messages::{SurveyError, SurveyLoss};

/// The percentile of a pair's gaps under load that counts. It stands for a low rate, but leaves out
/// the lowest ones, which a pause of a host may cause.
const LOADED_PERCENTILE: u32 = 75;

/// The task of the pairs of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Task {
    Echoes(Probes),
    Train,
    Loaded,
}

/// The nodes that have left the survey, with the cause.
pub(super) type Lost = BTreeMap<u32, SurveyLoss>;

/// Chooses the pairs of each step, and interprets their findings.
pub(super) trait Course: Debug + Send {
    /// Returns the task and the pairs of a step, or `None` after the last step. Callers call it
    /// once for each step, in order.
    fn step(&mut self, step: u64, lost: &Lost, random: &mut Random) -> Option<(Task, Vec<(u32, u32)>)>;
    /// Returns the number of steps, estimated for later stages.
    fn steps(&self) -> u64;
    /// Adds the worse round trip of a pair's two sides; `None` if the pair has none.
    fn echoed(&mut self, pair: (u32, u32), round_trip_ns: Option<u64>);
    /// Adds the time per byte between the two nodes of a pair, idle or under load.
    fn carried(&mut self, pair: (u32, u32), ps_per_byte: u32, is_loaded: bool);
    /// Returns the known lower bound of the time per byte between two nodes.
    fn gap(&self, a: u32, b: u32) -> Option<u32>;
    /// Returns the map of the nodes that are left.
    fn map(&self, names: Vec<String>, kept: &[u32], assumed_ps_per_byte: u32) -> Result<Map, SurveyError>;
}

/// The result of a course.
pub(super) struct Map {
    pub(super) matrix: Matrix,
    pub(super) guessed: Vec<(u32, u32)>,
    pub(super) estimated: u64,
}

/// Returns the link of a pair with this round trip.
pub(super) fn link_of(round_trip_ns: u64, ps_per_byte: u32) -> Link {
    Link { alpha_ns: u32::try_from(round_trip_ns.div_ceil(2)).unwrap_or(u32::MAX), ps_per_byte }
}

/// Returns the time per byte that counts, of all times under load.
pub(super) fn loaded_gap(gaps: &[u64]) -> Option<u32> {
    percentile(gaps, LOADED_PERCENTILE).map(|gap| u32::try_from(gap).unwrap_or(u32::MAX))
}
