//! What coordinator and members say to each other.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::id::{NodeId, ObjectId, PutId};
use crate::metadata::Metadata;
use crate::node::{Reduce, ReduceOrder};
use crate::placement::mix;
use crate::plan::collective::{Kind, Program, Schedule};
use crate::reduce::ReduceOp;
use crate::shard::PullOutcome;

/// Most sources of one member, which combines them by itself: with the longest ids they fill a quarter of a frame.
pub const MAX_SOURCES_PER_MEMBER: usize = 64;

/// A member of a session that this store coordinates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EnlistmentId(pub u64);

/// A session in which this store is a member; chosen by the shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MembershipId(pub u64);

/// What all participants of a collective have to agree about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreement {
    /// The operation.
    pub op: ReduceOp,
    /// The order of the operands.
    pub order: ReduceOrder,
    /// How many participants there are.
    pub participants: u32,
    /// A digest of the ids of the sources, in the order of the ranks. It finds mistakes, not forgeries.
    pub sources: u64,
}

impl Agreement {
    /// What a participant that asks for this has agreed to.
    pub fn of(request: &Reduce) -> Self {
        let mut digest = 0;
        for id in &request.sources {
            digest = mix(digest ^ id.as_bytes().len() as u64);
            for chunk in id.as_bytes().chunks(8) {
                let mut word = [0; 8];
                word[..chunk.len()].copy_from_slice(chunk);
                digest = mix(digest ^ u64::from_le_bytes(word));
            }
        }
        let participants = u32::try_from(request.sources.len()).unwrap_or(u32::MAX);
        Self { op: request.op, order: request.order, participants, sources: digest }
    }

    /// Checks that a participant and the coordinator mean the same.
    ///
    /// # Errors
    /// [`Error::TypeMismatch`], which names both sides.
    pub fn check(&self, target: &ObjectId, coordinator: &Self) -> Result<()> {
        if self == coordinator {
            return Ok(());
        }
        let same = if self.sources == coordinator.sources { "" } else { ", of other sources" };
        let reason = format!("a participant asks for {self}, rank 0 for {coordinator}{same}");
        Err(Error::TypeMismatch { id: target.clone(), reason: reason.into() })
    }
}

impl fmt::Display for Agreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = match self.order {
            ReduceOrder::Any => "any order",
            ReduceOrder::Fixed => "fixed order",
        };
        write!(f, "{} of {} sources in {order}", self.op, self.participants)
    }
}

/// A member, as the others see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its node.
    pub node: NodeId,
    /// The address of the data plane of that node.
    pub address: SocketAddr,
}

/// What a member is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The object that all members make.
    pub target: ObjectId,
    /// Its put: of this attempt.
    pub put: PutId,
    /// What the participants agree about.
    pub agreement: Agreement,
    /// The size of the target and of each source.
    pub size_bytes: u64,
    /// The metadata of the target; the sources have its type and shape.
    pub metadata: Metadata,
    /// What the program is made from.
    pub schedule: Schedule,
    /// How long frames are.
    pub frame_bytes: u64,
    /// All members, in the order of the schedule.
    pub members: Vec<Member>,
    /// Which of them this is.
    pub index: usize,
    /// The member's own sources, in the order of their ranks: 1 to [`MAX_SOURCES_PER_MEMBER`].
    pub sources: Vec<(ObjectId, PutId)>,
    /// How long to wait for room.
    pub timeout: Duration,
}

impl Plan {
    /// The steps of this member.
    pub fn program(&self) -> Program {
        self.schedule.program(Kind::Allreduce, self.index, self.size_bytes)
    }
}

/// What a member says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// It has all bytes, and waits for the coordinator's word.
    Filled,
    /// It will never have them from this session.
    Failed(Failure),
}

/// Why a member failed.
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

/// What a coordinator says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Word {
    /// What the session makes is the target.
    Commit,
    /// It is not, and never will be, or it was deleted already; those who wait for the target are told this.
    Stop(Error),
}
