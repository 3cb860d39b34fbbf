//! The messages of coordinators and members.

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

/// Most sources of one member, which combines them by itself: with the longest ids they fill a quarter of a frame.
pub const MAX_SOURCES_PER_MEMBER: usize = 64;
/// Most parts that the ranks of a member get in an all-to-all: their ranges are told to each of its participants.
pub const MAX_PAIRS_PER_MEMBER: usize = 2 * MAX_MEMBERS;
/// Longest [explanation](Plan::explanation) of a plan, in bytes: some sentences, which beside all members still fit in a frame.
pub const MAX_EXPLANATION_BYTES: usize = 512;

/// An attempt to make a target. The number grows with each attempt of a run of a coordinator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptId {
    /// The run of the coordinator.
    pub run: u64,
    /// The number within that run.
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
    /// This store coordinates it too.
    Here(EnlistmentId),
    /// Another store does. The number is chosen by the shell.
    Elsewhere(u64),
}

/// A member, as the others see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its node.
    pub node: NodeId,
    /// The address of the data plane of that node.
    pub address: SocketAddr,
}

/// The task of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The object that all members make, or under whose name they exchange parts.
    pub target: ObjectId,
    /// The attempt.
    pub attempt: AttemptId,
    /// The put of the copies that the attempt makes.
    pub put: PutId,
    /// The agreement of the participants.
    pub agreement: Agreement,
    /// The size of what is made, by an all-to-all for each rank. Each source has that, or is a part of it.
    pub size_bytes: u64,
    /// The metadata of the target. The sources have its type; those of an allreduce have its shape.
    pub metadata: Metadata,
    /// The schedule, from which the member derives its program.
    pub schedule: Schedule,
    /// The length of a frame.
    pub frame_bytes: u64,
    /// All members, in the order of the schedule.
    pub members: Vec<Member>,
    /// The index of this member.
    pub index: usize,
    /// If it is of parts: the ranks at each member, in the order of their sources. The part of rank k is the k-th of equal ones.
    pub ranks: Vec<Vec<usize>>,
    /// The member's own sources, in the order of their ranks: 1 to [`MAX_SOURCES_PER_MEMBER`].
    pub sources: Vec<(ObjectId, PutId)>,
    /// The time to wait for room.
    pub timeout: Duration,
    /// The reason for which it was planned so, for people: at most [`MAX_EXPLANATION_BYTES`].
    pub explanation: String,
}

/// Describes the schedule, the reason for it and the order of the members for people.
pub fn describe_plan(kind: Collective, schedule: &Schedule, explanation: &str, members: &[Member]) -> String {
    let nodes: Vec<&str> = members.iter().map(|member| member.node.as_str()).collect();
    let schedule = match kind {
        Collective::AllToAll => format!("pairs of {}", members.len()),
        _ => schedule.to_string(),
    };
    format!("{schedule}, {explanation}; order {}", nodes.join(" "))
}

impl Plan {
    /// The steps of this member.
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

    /// After which steps of its program bytes are final, in this order.
    pub fn finals(&self, program: &Program) -> Vec<usize> {
        let mut finals = program.finals();
        if self.agreement.kind == Collective::ReduceScatter {
            // Those of the others are passed on.
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

    /// The size of each source.
    pub fn source_bytes(&self) -> u64 {
        if self.properties().joins_sources { length(&self.part(0)) } else { self.size_bytes }
    }

    /// Returns `true` if the member's own sources are combined into its copy before anything else. Others are only given.
    pub fn is_folded(&self) -> bool {
        self.sources.len() > 1 && self.properties().combines
    }

    /// Which of the member's own sources has a byte of what is made, if they are not folded, and where the first byte of that source
    /// is there.
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

    /// Where the part ends in which a byte of what is made is; of an allreduce all is one part.
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

    /// Returns the number of bytes that the member gets that gets most: by that all of them choose how they exchange.
    pub fn most_bytes(&self) -> u64 {
        let ranks = if self.properties().is_paired {
            self.ranks.iter().map(Vec::len).max().unwrap_or(1) as u64
        } else {
            1
        };
        self.size_bytes.saturating_mul(ranks)
    }

    /// How much room a member needs. The end of a copy that is not complete is kept back, and one of parts never is: there the
    /// end is beyond all parts.
    pub fn copy_bytes(&self) -> u64 {
        let copies = if self.properties().is_paired { self.ranks[self.index].len() as u64 } else { 1 };
        let all_bytes = self.size_bytes.saturating_mul(copies);
        all_bytes.saturating_add(if self.properties().makes_target { 0 } else { 2 * BLOCK_BYTES })
    }
}

/// A report of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// The member has all bytes and still gives. The report of the coordinator's own member decides an allreduce. Other members
    /// report after the commit. Members with parts report at once.
    Filled,
    /// The same, and it has given all that others need: it has left.
    Done,
    /// It will not get them from this attempt.
    Failed(Failure),
}

/// The reason for which a member failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The node cannot be reached, or has been silent for too long.
    Unreachable,
    /// What another member gives cannot be had.
    Peer {
        /// The index of that member.
        index: usize,
        /// How the attempt ended.
        outcome: PullOutcome,
    },
    /// The node cannot take part.
    Refused(Error),
    /// Its client, or another one, means something else.
    Disagrees(Error),
}

/// The decision of a coordinator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// The copies are the target. Of an all-to-all: all members have their parts.
    Commit,
    /// The attempt never makes the target, or the target was deleted. Participants are told this error.
    Stop(Error),
}

const fn length(range: &Range<u64>) -> u64 {
    range.end - range.start
}
