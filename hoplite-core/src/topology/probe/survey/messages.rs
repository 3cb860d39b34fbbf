//! The messages and the report of a survey.

use std::time::Duration;

use super::super::super::matrix::Matrix;
use super::super::Probes;
use super::super::echo::Echoes;

/// Most nodes of a survey.
pub const MAX_NODES: usize = crate::topology::matrix::MAX_NODES;
/// Most nodes if each pair measures its rate alone. The survey then takes half an hour, half of the
/// stores' limit.
pub const MAX_NODES_OF_PAIRS: usize = 500;

/// Options of a survey.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SurveyOptions {
    /// Number of round trips to measure per pair.
    pub probes: Probes,
    /// Pairs that measure their rate alone.
    pub bandwidth: Bandwidth,
    /// `true` to measure rates also while many pairs send at once, which disturbs other traffic.
    pub loaded: bool,
    /// `true` if daemons must use the result.
    pub apply: bool,
}

/// Pairs that measure their rate alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Bandwidth {
    /// Each node and the next one measure. Other pairs get the lower rate of their two nodes.
    #[default]
    Nodes,
    /// All pairs, one after the other.
    Pairs,
}

/// Reason why a survey fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SurveyError {
    /// There are more than [`MAX_NODES`] nodes.
    #[error("{count} nodes are more than the {MAX_NODES} that can be probed")]
    TooManyNodes {
        /// Number of nodes.
        count: usize,
    },
    /// There are too many nodes to measure the rate of each pair.
    #[error(
        "{count} nodes are more than the {MAX_NODES_OF_PAIRS} that can send trains in all pairs"
    )]
    TooManyPairs {
        /// Number of nodes.
        count: usize,
    },
    /// Fewer than two nodes are left.
    #[error("a probe needs two nodes, and there are {count}")]
    TooFewNodes {
        /// Number of nodes.
        count: usize,
    },
    /// No two nodes have reached each other.
    #[error("no two nodes have reached each other")]
    NothingMeasured,
}

/// Reason why a survey leaves a node out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SurveyLoss {
    /// The node cannot be reached.
    Unreachable,
    /// The node's connection ended.
    Gone,
    /// The node did not answer in time.
    Silent,
    /// The node takes part in another probe.
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

/// A node's measurement with its peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SurveyWork {
    /// Measure round trips.
    Echo {
        /// Number of round trips.
        probes: Probes,
    },
    /// Receive trains.
    Train {
        /// First train's size.
        bytes: u64,
        /// The node requests larger trains until a train takes this long.
        at_least: Duration,
    },
}

/// Result of a measurement between two nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finding {
    /// Pair's round trips.
    Echoes {
        /// Round trips.
        echoes: Echoes,
        /// `true` if the echoes went over TCP, because no datagram returned.
        by_tcp: bool,
    },
    /// Trains that the node received.
    Train {
        /// Time per byte in picoseconds.
        ps_per_byte: u32,
        /// Bytes of all trains.
        bytes: u64,
    },
    /// The peer could not be reached.
    Nothing,
}

/// A command to a node. Nodes are indices into the survey's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub enum SurveyCommand {
    /// Lets a node answer only requests from `peer` with `nonce`, and confirm with
    /// [`SurveyEvent::Armed`].
    Arm {
        node: u32,
        peer: u32,
        /// Nonce of the peer's requests.
        nonce: u64,
    },
    /// Tells a node to measure its link to `peer`.
    Measure {
        node: u32,
        peer: u32,
        /// Nonce of requests to the peer.
        nonce: u64,
        work: SurveyWork,
    },
    /// Ends a node's part in the survey.
    Dismiss { node: u32 },
}

/// An event for a survey's coordinator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub enum SurveyEvent {
    /// A node has confirmed [`SurveyCommand::Arm`].
    Armed { node: u32 },
    /// A node has finished its work.
    Found {
        node: u32,
        /// Result of the work.
        finding: Finding,
    },
    /// A node takes part no longer.
    Lost { node: u32, loss: SurveyLoss },
    /// Time has passed.
    Tick,
}

/// A survey's progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SurveyProgress {
    /// Number of finished steps.
    pub done: u64,
    /// Number of all steps, partly estimated.
    pub steps: u64,
}

/// A survey's result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SurveyReport {
    /// Links between the remaining nodes.
    pub matrix: Matrix,
    /// Lost nodes.
    pub lost: Vec<(String, SurveyLoss)>,
    /// Pairs that have not reached each other. Their link has the worst round trip of either node.
    pub guessed: Vec<(u32, u32)>,
    /// Number of unmeasured pairs, for which other pairs of their groups stand.
    pub estimated: u64,
    /// Number of pairs that used TCP for round trips.
    pub by_tcp: u32,
    /// Number of measured round trips.
    pub echoes: u64,
    /// Number of requests without a timely reply.
    pub lost_echoes: u64,
    /// Bytes sent to measure rates.
    pub train_bytes: u64,
}
