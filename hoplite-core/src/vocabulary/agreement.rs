//! Parameters on which a collective's participants must agree.

use std::fmt;

use super::error::{Error, Result};
use super::id::ObjectId;
use super::op::ReduceOp;
use super::placement::mix;
use super::reduce::{Reduce, ReduceOrder};

/// A kind of collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Collective {
    /// Every participant gets the full result.
    #[default]
    Allreduce,
    /// Every participant gets its parts of the result.
    ReduceScatter,
    /// Every participant gets all parts.
    Allgather,
    /// Every participant gets its part from each participant.
    AllToAll,
}

/// Parameters of a collective that all participants must request alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub struct Agreement {
    pub kind: Collective,
    /// Operation on elements; meaningless for an allgather or all-to-all.
    pub op: ReduceOp,
    pub order: ReduceOrder,
    pub participants: u32,
    /// Digest of the source ids in rank order. It detects mistakes, not forgeries.
    pub sources: u64,
}

impl Agreement {
    /// Derives the agreement from a request.
    pub fn of(kind: Collective, request: &Reduce) -> Self {
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
        Self { kind, op: request.op, order: request.order, participants, sources: digest }
    }

    /// Checks that a participant's agreement equals the coordinator's.
    ///
    /// # Errors
    /// [`Error::TypeMismatch`].
    pub fn check(&self, target: &ObjectId, coordinator: &Self) -> Result<()> {
        if self == coordinator {
            return Ok(());
        }
        let same = if self.sources == coordinator.sources { "" } else { ", of other sources" };
        let reason = format!("a participant asks for {self}, rank 0 for {coordinator}{same}");
        Err(Error::TypeMismatch { id: target.clone(), reason: reason.into() })
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allreduce => "allreduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::Allgather => "allgather",
            Self::AllToAll => "all_to_all",
        })
    }
}

impl fmt::Display for Agreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = match self.order {
            ReduceOrder::Any => "any order",
            ReduceOrder::Fixed => "fixed order",
        };
        let Self { kind, op, participants, .. } = self;
        match kind {
            Collective::Allreduce => write!(f, "{op} of {participants} sources in {order}"),
            Collective::ReduceScatter => {
                write!(f, "parts of the {op} of {participants} sources in {order}")
            }
            Collective::Allgather => write!(f, "all of {participants} sources"),
            Collective::AllToAll => write!(f, "its parts of {participants} sources"),
        }
    }
}
