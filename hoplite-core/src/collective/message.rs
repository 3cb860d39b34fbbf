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

/// Most sources of a member. Even with the longest ids, they fill only a quarter of a frame.
pub const MAX_SOURCES_PER_MEMBER: usize = 64;
/// Most parts that a member receives in an all-to-all. Each participant's answer lists their
/// ranges.
pub const MAX_PAIRS_PER_MEMBER: usize = 2 * MAX_MEMBERS;
/// Longest [`Plan::explanation`] in bytes. It fits in a frame with all members.
pub const MAX_EXPLANATION_BYTES: usize = 512;

/// Coordinator's number for an attempt, with or without an exchange between members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptId {
    /// Coordinator's run, which changes when its daemon restarts.
    pub run: u64,
    /// Grows with each attempt of the run.
    pub number: u64,
}

impl AttemptId {
    /// Returns `true` if `other` is this attempt, or an earlier one of the same run.
    pub const fn includes(self, other: Self) -> bool {
        self.run == other.run && self.number >= other.number
    }
}

/// Coordinator's number for one store's part in an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EnlistmentId(pub u64);

/// A store's own number for its part in an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MembershipId {
    /// The coordinator is this store.
    Here(EnlistmentId),
    /// The coordinator is another store. The member's I/O layer chose the number.
    Elsewhere(u64),
}

/// Store that helps to make a collective's target.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub struct Member {
    pub node: NodeId,
    pub address: SocketAddr,
}

/// A store's task in an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub struct Plan {
    /// Object to make, or the name of an exchange of parts.
    pub target: ObjectId,
    pub attempt: AttemptId,
    /// Put id of all members' copies.
    pub put: PutId,
    pub agreement: Agreement,
    /// Size in bytes of the result (in an all-to-all, of one rank's result). Each source has this
    /// size, or the size of a part.
    pub size_bytes: u64,
    /// Target's metadata. Sources have the same type, and in an allreduce the same shape.
    pub metadata: Metadata,
    pub schedule: Schedule,
    pub frame_bytes: u64,
    /// All members, in the schedule's order.
    pub members: Vec<Member>,
    pub index: usize,
    /// In a collective of parts, each member's ranks, in the order of its sources. Rank k owns the
    /// k-th part.
    pub ranks: Vec<Vec<usize>>,
    /// This member's sources by rank.
    pub sources: Vec<(ObjectId, PutId)>,
    /// Longest wait of the member for memory.
    pub timeout: Duration,
    /// Reasons for the schedule.
    pub explanation: String,
}

/// Describes a plan in words.
pub fn describe_plan(
    kind: Collective,
    schedule: &Schedule,
    explanation: &str,
    members: &[Member],
) -> String {
    let nodes: Vec<&str> = members.iter().map(|member| member.node.as_str()).collect();
    let schedule = name_schedule(kind, schedule, members.len());
    format!("{schedule}, {explanation}; order {}", nodes.join(" "))
}

fn name_schedule(kind: Collective, schedule: &Schedule, members: usize) -> String {
    match kind {
        Collective::AllToAll => format!("pairs of {members}"),
        _ => schedule.to_string(),
    }
}

impl Plan {
    /// Names the collective and its schedule.
    pub fn summary(&self) -> String {
        let kind = self.agreement.kind;
        format!("{kind}: {}", name_schedule(kind, &self.schedule, self.members.len()))
    }

    /// Returns this member's sends and receives, in order.
    pub fn program(&self) -> Program {
        match self.agreement.kind {
            Collective::Allreduce => return self.schedule.program(self.index, self.size_bytes),
            Collective::AllToAll => {
                return program_of_pairs(self.index, &self.ranks, length(&self.part(0)));
            }
            Collective::ReduceScatter | Collective::Allgather => {}
        }
        let of_member = |ranks: &Vec<usize>| ranks.iter().map(|rank| self.part(*rank)).collect();
        let parts: Vec<Vec<Range<u64>>> = self.ranks.iter().map(of_member).collect();
        program_of_parts(self.agreement.kind, self.index, &parts)
    }

    /// Properties of this kind of collective.
    pub const fn properties(&self) -> Properties {
        self.agreement.kind.properties()
    }

    /// Returns the steps whose received bytes are final in this member's result, in the program's
    /// order.
    pub fn finals(&self, program: &Program) -> Vec<usize> {
        let mut finals = program.finals();
        if self.agreement.kind == Collective::ReduceScatter {
            // Parts of other members' ranks are only forwarded.
            let own: Vec<Range<u64>> =
                self.ranks[self.index].iter().map(|rank| self.part(*rank)).collect();
            finals.retain(|step| own.contains(program.steps()[*step].range()));
        }
        finals
    }

    fn part(&self, rank: usize) -> Range<u64> {
        let part_bytes = self.size_bytes / u64::from(self.agreement.participants.max(1));
        let start = rank as u64 * part_bytes;
        start..start + part_bytes
    }

    /// Size of each source in bytes.
    pub fn source_bytes(&self) -> u64 {
        if self.properties().joins_sources { length(&self.part(0)) } else { self.size_bytes }
    }

    /// Returns `true` if the member combines its sources before the exchange.
    pub fn is_folded(&self) -> bool {
        self.sources.len() > 1 && self.properties().combines
    }

    /// Returns the index of the source that holds byte `at` of the member's data, and that source's
    /// start there. Only for uncombined sources.
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

    /// Returns the end of the part that contains byte `at` of the member's data. In an allreduce,
    /// all data is one part.
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

    /// Most bytes that any member receives. All members choose a transport by this number.
    pub fn most_bytes(&self) -> u64 {
        let ranks = if self.properties().is_paired {
            self.ranks.iter().map(Vec::len).max().unwrap_or(1) as u64
        } else {
            1
        };
        self.size_bytes.saturating_mul(ranks)
    }

    /// Size of the member's copy in bytes. A copy of parts ends with padding, because a store never
    /// forwards an incomplete copy's last bytes.
    pub fn copy_bytes(&self) -> u64 {
        let copies =
            if self.properties().is_paired { self.ranks[self.index].len() as u64 } else { 1 };
        let all_bytes = self.size_bytes.saturating_mul(copies);
        all_bytes.saturating_add(if self.properties().makes_target { 0 } else { 2 * BLOCK_BYTES })
    }
}

/// A member's report to the coordinator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// The member has all bytes and still sends. Members with parts, and the coordinator's own
    /// member, report it before the commit; others usually after it.
    Filled,
    /// The member has all bytes and has sent everything.
    Done,
    /// The member cannot get all bytes.
    Failed(Failure),
}

/// Reason why a member failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The node is unreachable or silent.
    Unreachable,
    /// Bytes of another member are unavailable.
    Peer {
        /// Other member's index.
        index: usize,
        /// Reason why the transfer ended.
        outcome: PullOutcome,
    },
    /// The node cannot take part.
    Refused(Error),
    /// The participants disagree about the operation.
    Disagrees(Error),
}

/// A coordinator's decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// The members' copies are the target. In a collective of parts, all members have their parts.
    Commit,
    /// The attempt is over without a target, or the target was deleted. Participants get this
    /// error.
    Stop(Error),
}

const fn length(range: &Range<u64>) -> u64 {
    range.end - range.start
}
