//! The pairs of a survey's steps, and the matrix of their measurements.

use std::collections::BTreeMap;
use std::fmt::Debug;

use super::super::super::matrix::{Link, Matrix};
use super::super::super::random::Random;
use super::super::{Probes, percentile};
use super::messages::{SurveyError, SurveyLoss};

/// Percentile of times per byte under load: a low rate, but not the lowest, which a host's
/// pause may cause.
const LOADED_PERCENTILE: u32 = 75;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Task {
    Echoes(Probes),
    Train,
    Loaded,
}

pub(super) type Lost = BTreeMap<u32, SurveyLoss>;

pub(super) trait SurveySchedule: Debug + Send {
    /// Returns the work and pairs of a step; `None` after the last one. Called once per step, in
    /// order.
    fn step(
        &mut self,
        step: u64,
        lost: &Lost,
        random: &mut Random,
    ) -> Option<(Task, Vec<(u32, u32)>)>;
    /// Number of steps, partly estimated.
    fn steps(&self) -> u64;
    /// Adds the worse round trip of a pair's two sides, if any.
    fn echoed(&mut self, pair: (u32, u32), round_trip_ns: Option<u64>);
    /// Adds a pair's measured time per byte, idle or under load.
    fn carried(&mut self, pair: (u32, u32), ps_per_byte: u32, is_loaded: bool);
    /// Returns the known lower bound of the time per byte between two nodes, in picoseconds.
    fn gap(&self, a: u32, b: u32) -> Option<u32>;
    fn map(
        &self,
        names: Vec<String>,
        kept: &[u32],
        assumed_ps_per_byte: u32,
    ) -> Result<Map, SurveyError>;
}

pub(super) struct Map {
    pub(super) matrix: Matrix,
    pub(super) guessed: Vec<(u32, u32)>,
    pub(super) estimated: u64,
}

pub(super) fn link_of(round_trip_ns: u64, ps_per_byte: u32) -> Link {
    Link { alpha_ns: u32::try_from(round_trip_ns.div_ceil(2)).unwrap_or(u32::MAX), ps_per_byte }
}

pub(super) fn loaded_gap(gaps: &[u64]) -> Option<u32> {
    percentile(gaps, LOADED_PERCENTILE).map(|gap| u32::try_from(gap).unwrap_or(u32::MAX))
}
