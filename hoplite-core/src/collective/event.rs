//! The events and effects of collectives.

use std::net::SocketAddr;

use super::{AttemptId, Decision, EnlistmentId, MembershipId, Plan, Report};
use crate::error::Error;
use crate::id::{NodeId, ObjectId};
use crate::vocabulary::local::{CombineId, CopyId};

/// A message of another store, or of the shell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CollectiveEvent {
    /// A coordinator elsewhere enlists this store. The store answers with at most one `Filled`, and
    /// with `Done` or `Failed`, after which no report comes.
    Asked {
        /// A number that the shell chose.
        membership: MembershipId,
        /// The task of the member.
        plan: Box<Plan>,
    },
    /// The coordinator has decided: at most one `Commit`, and then at most one `Stop`.
    Told {
        /// The number of the `Asked`.
        membership: MembershipId,
        /// The decision.
        decision: Decision,
    },
    /// The coordinator does not need this member any more, or is gone. It follows each `Asked`
    /// exactly once.
    Left {
        /// The number of the `Asked`.
        membership: MembershipId,
    },
    /// All bytes of the copy of a `StartExchange` are there. The member still gives to others.
    Filled {
        /// The number of the exchange.
        combine: CombineId,
    },
    /// A coordinator rejects an attempt, which will not make its target.
    Rejected {
        /// The target.
        target: ObjectId,
        /// The latest attempt. Its members hear a `Told` as well, before or after.
        attempt: AttemptId,
        /// The error for participants.
        error: Error,
    },
    /// A member of an attempt that this store coordinates has reported, or is lost. No report comes
    /// after `Done`, `Failed`, `Dismiss` or a `Tell` that stops.
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
    /// Ask another store to be a member, and bring its reports, until `Dismiss` or a `Tell` that
    /// stops.
    Enlist {
        /// The number of the new member.
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
    /// End the enlistment of a member.
    Dismiss {
        /// The member.
        enlistment: EnlistmentId,
    },
    /// Report to a coordinator.
    Report {
        /// The number of the `Asked`.
        membership: MembershipId,
        /// The report.
        report: Report,
    },
    /// Tell the store of participants that the attempt will not make its target.
    Reject {
        /// The store.
        node: NodeId,
        /// The address of its data plane.
        address: SocketAddr,
        /// The target.
        target: ObjectId,
        /// The latest attempt.
        attempt: AttemptId,
        /// The error for participants.
        error: Error,
    },
    /// Fill a copy as a member of an attempt. Say `Filled` when all bytes are there, and
    /// `CombineEnded` when the exchange touches the sources no more. `CancelCombine` ends it.
    StartExchange {
        /// The number of the new exchange.
        combine: CombineId,
        /// The copy to fill.
        copy: CopyId,
        /// The member's own sources, in this order.
        sources: Vec<CopyId>,
        /// The task of the member.
        plan: Box<Plan>,
    },
}
