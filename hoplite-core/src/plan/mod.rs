//! Planners: senders, schedules, block sizes, connections, and links.

pub mod blocks;
pub mod broadcast;
pub mod chain;
pub mod collective;
pub mod lanes;
pub mod link;
pub mod locality;
pub mod reduce;

use std::time::Duration;

/// The chosen schedule, with its predicted time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice<S> {
    /// The schedule.
    pub schedule: S,
    /// The predicted time of the operation.
    pub estimate: Duration,
    /// The second best schedule and its predicted time, if any.
    pub runner_up: Option<(S, Duration)>,
}
