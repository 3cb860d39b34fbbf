//! The messages and the report of a survey.

use std::time::Duration;

use super::super::super::matrix::Matrix;
use super::super::Probes;
use super::super::echo::Echoes;

/// Most nodes of a survey.
pub const MAX_NODES: usize = crate::topology::matrix::MAX_NODES;
/// Most nodes if each pair measures its rate alone. The survey then takes half an hour, half of the
/// time for which stores take part.
pub const MAX_NODES_OF_PAIRS: usize = 500;

/// The options of a survey.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SurveyOptions {
    /// The number of round trips to measure per pair.
    pub probes: Probes,
    /// The pairs that measure their rate alone.
    pub bandwidth: Bandwidth,
    /// `true` to measure rates also while many pairs send at once, which disturbs other traffic.
    pub loaded: bool,
    /// `true` if daemons must use the result.
    pub apply: bool,
}

/// The pairs that measure their rate alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Bandwidth {
    /// Each node and the next one. Other pairs get the lower rate of their two nodes.
    #[default]
    Nodes,
    /// All pairs, one after the other.
    Pairs,
}

/// The reason why a survey fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SurveyError {
    /// There are more than [`MAX_NODES`] nodes.
    #[error("{count} nodes are more than the {MAX_NODES} that can be probed")]
    TooManyNodes {
        /// The number of nodes.
        count: usize,
    },
    /// There are too many nodes to measure the rate of each pair.
    #[error(
        "{count} nodes are more than the {MAX_NODES_OF_PAIRS} that can send trains in all pairs"
    )]
    TooManyPairs {
        /// The number of nodes.
        count: usize,
    },
    /// Fewer than two nodes are left.
    #[error("a probe needs two nodes, and there are {count}")]
    TooFewNodes {
        /// The number of nodes.
        count: usize,
    },
    /// No two nodes have reached each other.
    #[error("no two nodes have reached each other")]
    NothingMeasured,
}

/// The reason why a survey leaves a node out.
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
        /// The number of round trips.
        probes: Probes,
    },
    /// Receive trains.
    Train {
        /// The first train's size.
        bytes: u64,
        /// The node requests larger trains until one takes this long.
        at_least: Duration,
    },
}

/// The result of a measurement between two nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finding {
    /// The pair's round trips.
    Echoes {
        /// The round trips.
        echoes: Echoes,
        /// `true` if the echoes went over TCP, because no datagram returned.
        by_tcp: bool,
    },
    /// The trains that the node received.
    Train {
        /// The time per byte in picoseconds.
        ps_per_byte: u32,
        /// The bytes of all trains.
        bytes: u64,
    },
    /// The peer could not be reached.
    Nothing,
}

/// A command to a node. Nodes are indices into the survey's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub enum SurveyCommand {
    /// Tells a node to answer only requests from `peer` with `nonce`, and to confirm with
    /// [`SurveyEvent::Armed`].
    Arm {
        node: u32,
        peer: u32,
        /// The nonce of the peer's requests.
        nonce: u64,
    },
    /// Tells a node to measure its link to `peer`.
    Measure {
        node: u32,
        peer: u32,
        /// The nonce of requests to the peer.
        nonce: u64,
        work: SurveyWork,
    },
    /// Releases a node.
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
        /// The result of the work.
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
    /// The number of finished steps.
    pub done: u64,
    /// The number of all steps, partly estimated.
    pub steps: u64,
}

/// A survey's result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SurveyReport {
    /// Links between the remaining nodes.
    pub matrix: Matrix,
    /// The lost nodes.
    pub lost: Vec<(String, SurveyLoss)>,
    /// Pairs that have not reached each other. Their link has the worst round trip of either node.
    pub guessed: Vec<(u32, u32)>,
    /// The number of unmeasured pairs, for which other pairs of their groups stand.
    pub estimated: u64,
    /// The number of pairs that used TCP for round trips.
    pub by_tcp: u32,
    /// The number of measured round trips.
    pub echoes: u64,
    /// The number of requests without a timely reply.
    pub lost_echoes: u64,
    /// The bytes sent to measure rates.
    pub train_bytes: u64,
}
