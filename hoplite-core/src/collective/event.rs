//! The events and effects of collectives.

use std::net::SocketAddr;

use super::{AttemptId, Decision, EnlistmentId, MembershipId, Plan, Report};
use crate::error::Error;
use crate::id::{NodeId, ObjectId};
use crate::vocabulary::local::{CombineId, CopyId};

/// A message of another store or the shell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CollectiveEvent {
    /// A remote coordinator enlists this store, which answers with at most one `Filled`, and
    /// finally `Done` or `Failed`.
    Asked {
        /// Chosen by the shell.
        membership: MembershipId,
        /// The member's task.
        plan: Box<Plan>,
    },
    /// The decision: at most one `Commit`, then at most one `Stop`.
    Told {
        /// From `Asked`.
        membership: MembershipId,
        /// The decision.
        decision: Decision,
    },
    /// The coordinator dismissed this member or is gone. Follows each `Asked` exactly once.
    Left {
        /// From `Asked`.
        membership: MembershipId,
    },
    /// The copy of a `StartExchange` has all bytes. The member still gives.
    Filled {
        /// The exchange.
        combine: CombineId,
    },
    /// A coordinator rejects an attempt.
    Rejected {
        /// The target.
        target: ObjectId,
        /// The latest attempt. Its members also hear a `Told`, before or after.
        attempt: AttemptId,
        /// For participants.
        error: Error,
    },
    /// A member has reported or is lost. Nothing follows `Done`, `Failed`, `Dismiss` or a `Tell`
    /// that stops.
    Reported {
        /// The member.
        enlistment: EnlistmentId,
        /// The report.
        report: Report,
    },
}

/// An effect that the shell performs for a collective.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CollectiveEffect {
    /// Enlist another store and bring its reports, until `Dismiss` or a `Tell` that stops.
    Enlist {
        /// The new member's number.
        enlistment: EnlistmentId,
        /// The plan, which names the node.
        plan: Box<Plan>,
    },
    /// Tell a member the decision. `Stop` also ends the enlistment.
    Tell {
        /// The member.
        enlistment: EnlistmentId,
        /// The decision.
        decision: Decision,
    },
    /// End an enlistment.
    Dismiss {
        /// The member.
        enlistment: EnlistmentId,
    },
    /// Report to a coordinator.
    Report {
        /// From `Asked`.
        membership: MembershipId,
        /// The report.
        report: Report,
    },
    /// Reject an attempt at its participants' store.
    Reject {
        /// The store.
        node: NodeId,
        /// Its data plane.
        address: SocketAddr,
        /// The target.
        target: ObjectId,
        /// The latest attempt.
        attempt: AttemptId,
        /// For participants.
        error: Error,
    },
    /// Fill a copy. Say `Filled` when it has all bytes, and `CombineEnded` when the sources are not
    /// used any more. `CancelCombine` ends it.
    StartExchange {
        /// The new exchange's number.
        combine: CombineId,
        /// The copy to fill.
        copy: CopyId,
        /// The member's sources, in order.
        sources: Vec<CopyId>,
        /// The member's task.
        plan: Box<Plan>,
    },
}
