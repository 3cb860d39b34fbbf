//! What the coordinator of a probe tells nodes and hears from them, and what it makes of it.

use std::time::Duration;

use super::super::super::matrix::Matrix;
use super::super::Probes;
use super::super::echo::Echoes;

/// A matrix has no more.
pub const MAX_NODES: usize = crate::topology::matrix::MAX_NODES;
/// All pairs of so many nodes send trains in half an hour, which is half of the time that stores take part.
pub const MAX_NODES_OF_PAIRS: usize = 500;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SurveyOptions {
    /// How many echoes each pair exchanges.
    pub probes: Probes,
    /// Which pairs send trains.
    pub bandwidth: Bandwidth,
    /// `true` if all pairs of a round send trains at once, too. This disturbs whoever uses the network.
    pub loaded: bool,
    /// `true` if the directory and the stores are to use what is found.
    pub apply: bool,
}

/// Which pairs send trains on an idle network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Bandwidth {
    /// Each node with the next one. A pair that was not measured otherwise gets what the slower of its two nodes' links carries.
    #[default]
    Nodes,
    /// All pairs, one after the other.
    Pairs,
}

/// The reason for which there is no survey.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SurveyError {
    /// More than [`MAX_NODES`].
    #[error("{count} nodes are more than the {MAX_NODES} that can be probed")]
    TooManyNodes {
        /// The number of nodes.
        count: usize,
    },
    /// More than [`MAX_NODES_OF_PAIRS`], and all pairs are to send trains.
    #[error("{count} nodes are more than the {MAX_NODES_OF_PAIRS} all of whose pairs can send trains")]
    TooManyPairs {
        /// The number of nodes.
        count: usize,
    },
    /// There is no pair, or none is left.
    #[error("a probe needs two nodes, and there are {count}")]
    TooFewNodes {
        /// The number of nodes.
        count: usize,
    },
    /// All nodes are there, and no two of them have reached each other.
    #[error("no two nodes have reached each other")]
    NothingMeasured,
}

/// The reason for which a node is not in the matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SurveyLoss {
    /// It cannot be reached.
    Unreachable,
    /// Its connection ended.
    Gone,
    /// It has not done in time what it was told.
    Silent,
    /// It takes part in another probe.
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

/// What a node measures with its peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SurveyWork {
    /// Ask for echoes.
    Echo {
        /// How many.
        probes: Probes,
    },
    /// Take trains.
    Train {
        /// The bytes of the first one.
        bytes: u64,
        /// Trains grow until one takes so long.
        at_least: Duration,
    },
}

/// What a node has measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finding {
    /// Echoes.
    Echoes {
        /// The round trips.
        echoes: Echoes,
        /// `true` if they went over TCP, since no datagram came back.
        by_tcp: bool,
    },
    /// A train.
    Train {
        /// Picoseconds that each byte took.
        ps_per_byte: u32,
        /// The number of bytes that all trains had.
        bytes: u64,
    },
    /// Nothing: the peer could not be reached.
    Nothing,
}

/// What the coordinator has to tell the nodes, which are named by their index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SurveyCommand {
    /// Answer `peer`, and nobody else, if it has `nonce`. To be confirmed.
    Arm {
        /// Who is told.
        node: u32,
        /// Who may ask.
        peer: u32,
        /// What it asks with.
        nonce: u64,
    },
    /// Measure, and report.
    Measure {
        /// Who is told.
        node: u32,
        /// With whom.
        peer: u32,
        /// What to ask with.
        nonce: u64,
        /// The work to do.
        work: SurveyWork,
    },
    /// Let go of a node, which has no part in this any more.
    Dismiss {
        /// The node to let go of.
        node: u32,
    },
}

/// What happens to the coordinator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SurveyEvent {
    /// A node has confirmed that it answers.
    Armed {
        /// The node that answers.
        node: u32,
    },
    /// A node has done its work.
    Found {
        /// The node that has done it.
        node: u32,
        /// What it has found.
        finding: Finding,
    },
    /// A node is gone.
    Lost {
        /// The node that is gone.
        node: u32,
        /// The cause.
        loss: SurveyLoss,
    },
    /// Time has passed.
    Tick,
}

/// How far a survey is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SurveyProgress {
    /// Steps that are done.
    pub done: u64,
    /// All steps.
    pub steps: u64,
}

/// What a survey has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SurveyReport {
    /// The links between the nodes that were there until the end.
    pub matrix: Matrix,
    /// Nodes that are not in it, and why.
    pub lost: Vec<(String, SurveyLoss)>,
    /// Pairs of indices that have not reached each other. They are given the worst round trip that either has.
    pub guessed: Vec<(u32, u32)>,
    /// The number of pairs that are given what others between their blocks have; none if all were to be measured.
    pub estimated: u64,
    /// The number of pairs that were measured by TCP.
    pub by_tcp: u32,
    /// Round trips of all pairs.
    pub echoes: u64,
    /// Asks of all pairs that were not replied to in time.
    pub lost_echoes: u64,
    /// Bytes of all trains.
    pub train_bytes: u64,
}
