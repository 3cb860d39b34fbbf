//! The messages of collectives that the shell brings and takes.

use std::net::SocketAddr;

use super::{AttemptId, Decision, EnlistmentId, MembershipId, Plan, Report};
use crate::error::Error;
use crate::id::{NodeId, ObjectId};
use crate::vocabulary::local::{CombineId, CopyId};

/// A message of another store, or of the shell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CollectiveEvent {
    /// A coordinator elsewhere asks this store to be a member. Answered by reports: at most `Filled`, and any time `Done` or
    /// `Failed`, after which there are no more.
    Asked {
        /// A number that the shell chose.
        membership: MembershipId,
        /// What to do.
        plan: Box<Plan>,
    },
    /// The coordinator has decided. It sends `Stop` at most once, and `Commit` at most once, before.
    Told {
        /// The number of the `Asked`.
        membership: MembershipId,
        /// The decision.
        decision: Decision,
    },
    /// The coordinator needs this member no longer, or is gone. It follows each `Asked` exactly once.
    Left {
        /// The number of the `Asked`.
        membership: MembershipId,
    },
    /// All bytes of the copy that a `StartExchange` fills are there. The member still gives to others.
    Filled {
        /// The number of the exchange.
        combine: CombineId,
    },
    /// A coordinator rejects: an attempt will not make its target.
    Rejected {
        /// The target.
        target: ObjectId,
        /// The latest attempt. Its members are told by `Told` too, before or after.
        attempt: AttemptId,
        /// The error for participants.
        error: Error,
    },
    /// The report of a member of an attempt that this store coordinates, or that it cannot be heard any more. No report comes
    /// after `Done` or `Failed`, nor after `Dismiss` or a `Tell` that stops.
    Reported {
        /// The member.
        enlistment: EnlistmentId,
        /// What it says.
        report: Report,
    },
}

/// An effect that the shell performs for a collective.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CollectiveEffect {
    /// Ask another store to be a member, until `Dismiss` or a `Tell` that stops, and bring its reports.
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
    /// A member is not needed any more.
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
    /// Tell a store of participants that the attempt will not make its target.
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
    /// Fill a copy as a member of an attempt; say `Filled` when all bytes are there, and `CombineEnded` when nothing touches the
    /// sources any more. It can be ended by `CancelCombine`.
    StartExchange {
        /// The number of the new exchange.
        combine: CombineId,
        /// The copy to fill.
        copy: CopyId,
        /// The member's own sources, in this order.
        sources: Vec<CopyId>,
        /// What to do.
        plan: Box<Plan>,
    },
}
