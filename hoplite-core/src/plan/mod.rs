//! Planners: senders, schedules, block sizes, connections, network cards, and links.

pub mod blocks;
pub mod broadcast;
pub mod chain;
pub mod collective;
pub mod lanes;
pub mod link;
pub mod locality;
pub mod rails;
pub mod reduce;

use std::time::Duration;

/// A chosen schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice<S> {
    /// Schedule.
    pub schedule: S,
    /// Operation's predicted time.
    pub estimate: Duration,
    /// Second best schedule and its predicted time, if any.
    pub runner_up: Option<(S, Duration)>,
}
