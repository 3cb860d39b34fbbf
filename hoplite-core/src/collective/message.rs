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

/// Most sources of one member. With the longest ids they fill a quarter of a frame.
pub const MAX_SOURCES_PER_MEMBER: usize = 64;
/// Most parts that the ranks of a member receive in an all-to-all: each participant is told their
/// ranges.
pub const MAX_PAIRS_PER_MEMBER: usize = 2 * MAX_MEMBERS;
/// Longest [explanation](Plan::explanation) of a plan in bytes. It fits in a frame with all
/// members.
pub const MAX_EXPLANATION_BYTES: usize = 512;

/// An attempt to make a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptId {
    /// The run of the coordinator.
    pub run: u64,
    /// The number within that run, which grows with each attempt.
    pub number: u64,
}

impl AttemptId {
    /// Returns `true` if the other attempt is this one, or an older one of the same run.
    pub const fn includes(self, other: Self) -> bool {
        self.run == other.run && self.number >= other.number
    }
}

/// A member of an attempt that this store coordinates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EnlistmentId(pub u64);

/// An attempt in which this store is a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MembershipId {
    /// This store also coordinates the attempt.
    Here(EnlistmentId),
    /// Another store coordinates the attempt. The shell chose the number.
    Elsewhere(u64),
}

/// A member of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The node.
    pub node: NodeId,
    /// The address of its data plane.
    pub address: SocketAddr,
}

/// The task of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The object that all members make, or whose name they use for the exchange of parts.
    pub target: ObjectId,
    /// The attempt.
    pub attempt: AttemptId,
    /// The put of the copies of the attempt.
    pub put: PutId,
    /// The agreement of the participants.
    pub agreement: Agreement,
    /// The size of the result, in an all-to-all that of each rank. A source has this size, or the
    /// size of a part.
    pub size_bytes: u64,
    /// The metadata of the target. The sources have its type, and in an allreduce its shape.
    pub metadata: Metadata,
    /// The schedule, from which the member derives its program.
    pub schedule: Schedule,
    /// The length of a frame.
    pub frame_bytes: u64,
    /// All members, in the order of the schedule.
    pub members: Vec<Member>,
    /// The index of this member.
    pub index: usize,
    /// In a collective of parts: the ranks at each member, in the order of its sources. Rank k has
    /// the k-th of the equal parts.
    pub ranks: Vec<Vec<usize>>,
    /// The member's own sources by rank, at most [`MAX_SOURCES_PER_MEMBER`].
    pub sources: Vec<(ObjectId, PutId)>,
    /// The time to wait for room.
    pub timeout: Duration,
    /// The reason for the schedule, for people: at most [`MAX_EXPLANATION_BYTES`].
    pub explanation: String,
}

/// Describes the schedule, the reason for it, and the members.
pub fn describe_plan(kind: Collective, schedule: &Schedule, explanation: &str, members: &[Member]) -> String {
    let nodes: Vec<&str> = members.iter().map(|member| member.node.as_str()).collect();
    let schedule = match kind {
        Collective::AllToAll => format!("pairs of {}", members.len()),
        _ => schedule.to_string(),
    };
    format!("{schedule}, {explanation}; order {}", nodes.join(" "))
}

impl Plan {
    /// Returns the steps of this member.
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

    /// Returns the properties of the kind of collective.
    pub const fn properties(&self) -> Properties {
        self.agreement.kind.properties()
    }

    /// Returns the steps of `program` that make bytes final, in this order.
    pub fn finals(&self, program: &Program) -> Vec<usize> {
        let mut finals = program.finals();
        if self.agreement.kind == Collective::ReduceScatter {
            // The member passes the parts of other members on.
            let own: Vec<Range<u64>> = self.ranks[self.index].iter().map(|rank| self.part(*rank)).collect();
            finals.retain(|step| own.contains(program.steps()[*step].range()));
        }
        finals
    }

    /// Returns the range of a rank's part.
    fn part(&self, rank: usize) -> Range<u64> {
        let part_bytes = self.size_bytes / u64::from(self.agreement.participants.max(1));
        let start = rank as u64 * part_bytes;
        start..start + part_bytes
    }

    /// Returns the size of each source.
    pub fn source_bytes(&self) -> u64 {
        if self.properties().joins_sources { length(&self.part(0)) } else { self.size_bytes }
    }

    /// Returns `true` if the member combines its own sources in its copy before the exchange.
    pub fn is_folded(&self) -> bool {
        self.sources.len() > 1 && self.properties().combines
    }

    /// Returns the index of the own source with this byte of the result, and the position of the
    /// source in the result. The sources are not folded.
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

    /// Returns the largest number of bytes that a member receives. All members choose a transport
    /// by this number.
    pub fn most_bytes(&self) -> u64 {
        let ranks = if self.properties().is_paired {
            self.ranks.iter().map(Vec::len).max().unwrap_or(1) as u64
        } else {
            1
        };
        self.size_bytes.saturating_mul(ranks)
    }

    /// Returns the room that the member needs. The last bytes of an incomplete copy are kept back.
    /// A copy of parts has more room, so that these bytes are beyond all parts.
    pub fn copy_bytes(&self) -> u64 {
        let copies = if self.properties().is_paired { self.ranks[self.index].len() as u64 } else { 1 };
        let all_bytes = self.size_bytes.saturating_mul(copies);
        all_bytes.saturating_add(if self.properties().makes_target { 0 } else { 2 * BLOCK_BYTES })
    }
}

/// A report of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// The member has all bytes and still gives. The report of the coordinator's own member decides
    /// an allreduce. Other members report after the commit, and members with parts at once.
    Filled,
    /// The member has all bytes, has given all that others need, and has left.
    Done,
    /// The member does not get all bytes from this attempt.
    Failed(Failure),
}

/// The reason for which a member failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The node cannot be reached, or has been silent for too long.
    Unreachable,
    /// The bytes of another member cannot be had.
    Peer {
        /// The index of that member.
        index: usize,
        /// The end of the transfer.
        outcome: PullOutcome,
    },
    /// The node cannot take part.
    Refused(Error),
    /// Participants disagree.
    Disagrees(Error),
}

/// The decision of a coordinator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// The copies are the target, or, in an all-to-all, all members have their parts.
    Commit,
    /// The attempt never makes the target, or the target was deleted. Participants get this error.
    Stop(Error),
}

const fn length(range: &Range<u64>) -> u64 {
    range.end - range.start
}
