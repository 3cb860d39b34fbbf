//! The messages between coordinators and members.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use super::kind::Properties;
use crate::block::BLOCK_BYTES;
use crate::error::Error;
use crate::id::{NodeId, ObjectId, PutId};
use crate::metadata::Metadata;
use crate::plan::collective::{
    Collective, MAX_MEMBERS, Program, Schedule, program_of_pairs, program_of_parts,
};
use crate::shard::PullOutcome;
use crate::vocabulary::agreement::Agreement;

/// With the longest ids they fill a quarter of a frame.
pub const MAX_SOURCES_PER_MEMBER: usize = 64;
/// Most parts received in an all-to-all, because each participant is told their ranges.
pub const MAX_PAIRS_PER_MEMBER: usize = 2 * MAX_MEMBERS;
/// Longest [`Plan::explanation`] in bytes. It fits in a frame with all members.
pub const MAX_EXPLANATION_BYTES: usize = 512;

/// An attempt to make a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptId {
    /// The coordinator's run.
    pub run: u64,
    /// Grows with each attempt of the run.
    pub number: u64,
}

impl AttemptId {
    /// Returns `true` if the other attempt is this or an older one of the same run.
    pub const fn includes(self, other: Self) -> bool {
        self.run == other.run && self.number >= other.number
    }
}

/// A member, numbered by its coordinator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EnlistmentId(pub u64);

/// An attempt, numbered at its member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MembershipId {
    /// This store is the coordinator.
    Here(EnlistmentId),
    /// Another store is the coordinator. The shell chose the number.
    Elsewhere(u64),
}

/// A member of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The node.
    pub node: NodeId,
    /// Its data plane.
    pub address: SocketAddr,
}

/// A member's task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The object to make, or the name of an exchange of parts.
    pub target: ObjectId,
    /// The attempt.
    pub attempt: AttemptId,
    /// The put of its copies.
    pub put: PutId,
    /// The participants' agreement.
    pub agreement: Agreement,
    /// The size of the result, in an all-to-all per rank. A source has this size, or a part's size.
    pub size_bytes: u64,
    /// The target's metadata. Sources have its type, and in an allreduce its shape.
    pub metadata: Metadata,
    /// The member derives its program from it.
    pub schedule: Schedule,
    /// Bytes per frame.
    pub frame_bytes: u64,
    /// All members, in the schedule's order.
    pub members: Vec<Member>,
    /// This member's index.
    pub index: usize,
    /// For parts: the ranks at each member, in the order of its sources. Rank k has the k-th part.
    pub ranks: Vec<Vec<usize>>,
    /// Own sources by rank, at most [`MAX_SOURCES_PER_MEMBER`].
    pub sources: Vec<(ObjectId, PutId)>,
    /// The longest wait for room.
    pub timeout: Duration,
    /// For people: at most [`MAX_EXPLANATION_BYTES`].
    pub explanation: String,
}

/// Describes a plan for people.
pub fn describe_plan(kind: Collective, schedule: &Schedule, explanation: &str, members: &[Member]) -> String {
    let nodes: Vec<&str> = members.iter().map(|member| member.node.as_str()).collect();
    let schedule = match kind {
        Collective::AllToAll => format!("pairs of {}", members.len()),
        _ => schedule.to_string(),
    };
    format!("{schedule}, {explanation}; order {}", nodes.join(" "))
}

impl Plan {
    /// Returns this member's steps.
    pub fn program(&self) -> Program {
        match self.agreement.kind {
            Collective::Allreduce => return self.schedule.program(self.index, self.size_bytes),
            Collective::AllToAll => return program_of_pairs(self.index, &self.ranks, length(&self.part(0))),
            Collective::ReduceScatter | Collective::Allgather => {}
        }
        let of_member = |ranks: &Vec<usize>| ranks.iter().map(|rank| self.part(*rank)).collect();
        let parts: Vec<Vec<Range<u64>>> = self.ranks.iter().map(of_member).collect();
        program_of_parts(self.agreement.kind, self.index, &parts)
    }

    /// The collective's properties.
    pub const fn properties(&self) -> Properties {
        self.agreement.kind.properties()
    }

    /// Returns the steps that make bytes final, in order.
    pub fn finals(&self, program: &Program) -> Vec<usize> {
        let mut finals = program.finals();
        if self.agreement.kind == Collective::ReduceScatter {
            // The other parts are passed on.
            let own: Vec<Range<u64>> = self.ranks[self.index].iter().map(|rank| self.part(*rank)).collect();
            finals.retain(|step| own.contains(program.steps()[*step].range()));
        }
        finals
    }

    fn part(&self, rank: usize) -> Range<u64> {
        let part_bytes = self.size_bytes / u64::from(self.agreement.participants.max(1));
        let start = rank as u64 * part_bytes;
        start..start + part_bytes
    }

    /// The size of each source.
    pub fn source_bytes(&self) -> u64 {
        if self.properties().joins_sources { length(&self.part(0)) } else { self.size_bytes }
    }

    /// Returns `true` if own sources are combined before the exchange.
    pub fn is_folded(&self) -> bool {
        self.sources.len() > 1 && self.properties().combines
    }

    /// For unfolded sources: returns the index and the position of the own source with this byte.
    pub fn source_at(&self, at: u64) -> (usize, u64) {
        match self.agreement.kind {
            Collective::Allreduce | Collective::ReduceScatter => return (0, 0),
            Collective::AllToAll => {
                let index = at / self.size_bytes.max(1);
                return (usize::try_from(index).unwrap_or(usize::MAX), index * self.size_bytes);
            }
            Collective::Allgather => {}
        }
        let parts = self.ranks[self.index].iter().map(|rank| self.part(*rank));
        let found = parts.enumerate().find(|(_, part)| part.contains(&at));
        found.map_or((0, 0), |(index, part)| (index, part.start))
    }

    /// Returns the end of the part with this byte. An allreduce has one part.
    pub fn part_end(&self, at: u64) -> u64 {
        match self.agreement.kind {
            Collective::Allreduce => self.size_bytes,
            Collective::ReduceScatter | Collective::Allgather => {
                let part_bytes = length(&self.part(0)).max(1);
                self.size_bytes.min((at / part_bytes + 1) * part_bytes)
            }
            Collective::AllToAll => {
                let part_bytes = length(&self.part(0)).max(1);
                (at / part_bytes + 1) * part_bytes
            }
        }
    }

    /// Returns the most bytes that a member receives, by which all members choose a transport.
    pub fn most_bytes(&self) -> u64 {
        let ranks = if self.properties().is_paired {
            self.ranks.iter().map(Vec::len).max().unwrap_or(1) as u64
        } else {
            1
        };
        self.size_bytes.saturating_mul(ranks)
    }

    /// Returns the room that the member needs. The last bytes of an incomplete copy are kept back;
    /// in a copy of parts, these bytes lie beyond all parts.
    pub fn copy_bytes(&self) -> u64 {
        let copies = if self.properties().is_paired { self.ranks[self.index].len() as u64 } else { 1 };
        let all_bytes = self.size_bytes.saturating_mul(copies);
        all_bytes.saturating_add(if self.properties().makes_target { 0 } else { 2 * BLOCK_BYTES })
    }
}

/// A member's report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// It has all bytes and still gives. Sent after the commit, except by the coordinator's own
    /// member and by members with parts.
    Filled,
    /// It has all bytes and has given everything.
    Done,
    /// It cannot get all bytes.
    Failed(Failure),
}

/// The reason for a member's failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The node is unreachable or silent.
    Unreachable,
    /// Another member's bytes are unavailable.
    Peer {
        /// That member.
        index: usize,
        /// The transfer's end.
        outcome: PullOutcome,
    },
    /// The node cannot take part.
    Refused(Error),
    /// Participants disagree.
    Disagrees(Error),
}

/// A coordinator's decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// The copies are the target; in an all-to-all, all members have their parts.
    Commit,
    /// The attempt is over without a target, or the target was deleted. Participants get this
    /// error.
    Stop(Error),
}

const fn length(range: &Range<u64>) -> u64 {
    range.end - range.start
}
