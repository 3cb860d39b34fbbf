//! Orderings, schedules, sizes of blocks, and what is known of the links.

pub mod blocks;
pub mod broadcast;
pub mod chain;
pub mod collective;
pub mod link;
pub mod reduce;
pub mod vicinity;

use std::time::Duration;

/// A schedule, and what it is expected to take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice<S> {
    /// The schedule.
    pub schedule: S,
    /// The estimate.
    pub estimate: Duration,
    /// The best of the others, if there are any, and its estimate.
    pub runner_up: Option<(S, Duration)>,
}
