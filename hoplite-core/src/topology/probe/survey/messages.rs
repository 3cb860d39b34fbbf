//! The messages between the coordinator of a probe and the nodes, and its report.

use std::time::Duration;

use super::super::super::matrix::Matrix;
use super::super::Probes;
use super::super::echo::Echoes;

/// Most nodes of a survey, as of a matrix.
pub const MAX_NODES: usize = crate::topology::matrix::MAX_NODES;
/// Most nodes of a survey in which all pairs send trains. It takes half an hour, half of the time
/// that stores take part.
pub const MAX_NODES_OF_PAIRS: usize = 500;

/// The options of a survey.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SurveyOptions {
    /// The number of echoes of each pair.
    pub probes: Probes,
    /// The pairs that send trains.
    pub bandwidth: Bandwidth,
    /// `true` if all pairs of a round also send trains at once, which disturbs other traffic.
    pub loaded: bool,
    /// `true` if the directory and the stores must use the result.
    pub apply: bool,
}

/// The pairs that send trains on an idle network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Bandwidth {
    /// Each node with the next one. A pair without a train gets the lower rate of its two nodes.
    #[default]
    Nodes,
    /// All pairs, one after the other.
    Pairs,
}

/// The reason why there is no survey.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SurveyError {
    /// There are more than [`MAX_NODES`] nodes.
    #[error("{count} nodes are more than the {MAX_NODES} that can be probed")]
    TooManyNodes {
        /// The number of nodes.
        count: usize,
    },
    /// All pairs must send trains, and there are more than [`MAX_NODES_OF_PAIRS`] nodes.
    #[error("{count} nodes are more than the {MAX_NODES_OF_PAIRS} that can send trains in all pairs")]
    TooManyPairs {
        /// The number of nodes.
        count: usize,
    },
    /// There are fewer than two nodes, or fewer than two are left.
    #[error("a probe needs two nodes, and there are {count}")]
    TooFewNodes {
        /// The number of nodes.
        count: usize,
    },
    /// Nodes are left, but no two of them have reached each other.
    #[error("no two nodes have reached each other")]
    NothingMeasured,
}

/// The reason why a node is missing from the matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SurveyLoss {
    /// The node cannot be reached.
    Unreachable,
    /// The node's connection ended.
    Gone,
    /// The node did not finish its task in time.
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

/// The work of a node with its peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SurveyWork {
    /// Exchange echoes.
    Echo {
        /// The number of echoes.
        probes: Probes,
    },
    /// Receive trains.
    Train {
        /// The size of the first train.
        bytes: u64,
        /// The duration of the longest train. Trains grow until one takes this long.
        at_least: Duration,
    },
}

/// The result of a node's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finding {
    /// The echoes of the pair.
    Echoes {
        /// The round trips.
        echoes: Echoes,
        /// `true` if the echoes used TCP, because no datagram came back.
        by_tcp: bool,
    },
    /// A train.
    Train {
        /// Picoseconds per byte.
        ps_per_byte: u32,
        /// The number of bytes of all trains.
        bytes: u64,
    },
    /// The peer could not be reached.
    Nothing,
}

/// A command of the coordinator. Indices stand for nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SurveyCommand {
    /// Tells a node to answer only requests of `peer` with `nonce`. The node confirms with
    /// [`SurveyEvent::Armed`].
    Arm {
        /// The node that gets the command.
        node: u32,
        /// The node that may send requests.
        peer: u32,
        /// The nonce of the requests.
        nonce: u64,
    },
    /// Tells a node to measure and to report its finding.
    Measure {
        /// The node that gets the command.
        node: u32,
        /// The node's peer.
        peer: u32,
        /// The nonce to send.
        nonce: u64,
        /// The work to do.
        work: SurveyWork,
    },
    /// Releases a node that has no further part in the survey.
    Dismiss {
        /// The node to release.
        node: u32,
    },
}

/// An event for the coordinator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SurveyEvent {
    /// A node has confirmed that it answers.
    Armed {
        /// The node.
        node: u32,
    },
    /// A node has finished its work.
    Found {
        /// The node.
        node: u32,
        /// The result.
        finding: Finding,
    },
    /// A node is lost.
    Lost {
        /// The node.
        node: u32,
        /// The cause.
        loss: SurveyLoss,
    },
    /// Time has passed.
    Tick,
}

/// The progress of a survey.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SurveyProgress {
    /// The number of finished steps.
    pub done: u64,
    /// The number of all steps.
    pub steps: u64,
}

/// The result of a survey.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SurveyReport {
    /// The links between the nodes that stayed until the end.
    pub matrix: Matrix,
    /// The nodes that are missing from the matrix, with the reason.
    pub lost: Vec<(String, SurveyLoss)>,
    /// Pairs of indices that have not reached each other. They get the worst round trip of either
    /// node.
    pub guessed: Vec<(u32, u32)>,
    /// The number of pairs without a measurement, which get the value of other pairs of their
    /// blocks. Zero if the survey measured all pairs.
    pub estimated: u64,
    /// The number of pairs measured by TCP.
    pub by_tcp: u32,
    /// The number of round trips of all pairs.
    pub echoes: u64,
    /// The number of requests of all pairs without a reply in time.
    pub lost_echoes: u64,
    /// The number of bytes of all trains.
    pub train_bytes: u64,
}
