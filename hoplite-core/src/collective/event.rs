//! What a [`Node`](crate::node::Node) hears of collectives, and what the shell does for them.

use std::net::SocketAddr;

use super::{AttemptId, Decision, EnlistmentId, MembershipId, Plan, Report};
use crate::error::Error;
use crate::id::{NodeId, ObjectId};
use crate::vocabulary::local::{CombineId, CopyId};

/// What happened in a session of a collective.
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
    /// The coordinator has decided. Said at most once.
    Told {
        /// The number of the `Asked`.
        membership: MembershipId,
        /// The decision.
        decision: Decision,
    },
    /// The coordinator needs this member no longer, or is gone. Said exactly once for each `Asked`.
    Left {
        /// The number of the `Asked`.
        membership: MembershipId,
    },
    /// All bytes of the copy that a `StartExchange` fills are there. What others need of them is still given.
    Filled {
        /// The number of the exchange.
        combine: CombineId,
    },
    /// The coordinator of a collective says that there will be no target.
    Rejected {
        /// The target.
        target: ObjectId,
        /// The latest attempt. Its members are told by `Told` too, before or after.
        attempt: AttemptId,
        /// What those who wait for it are told.
        error: Error,
    },
    /// The report of a member of a session that this store coordinates, or that it cannot be heard any more. No report comes
    /// after `Done` or `Failed`, nor after `Dismiss` or a `Tell` that stops.
    Reported {
        /// The member.
        enlistment: EnlistmentId,
        /// What it says.
        report: Report,
    },
}

/// What the shell must do for a session of a collective.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CollectiveEffect {
    /// Ask another store to be a member, until `Dismiss` or a `Tell` that stops, and report what it says.
    Enlist {
        /// The number of the new member.
        enlistment: EnlistmentId,
        /// What it is to do; it names its node.
        plan: Box<Plan>,
    },
    /// Tell a member what was decided. A member that is stopped is not needed any more.
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
    /// Tell a coordinator how far this member is.
    Report {
        /// The number of the `Asked`.
        membership: MembershipId,
        /// How far it is.
        report: Report,
    },
    /// Tell a store where participants may wait that there will be no target.
    Reject {
        /// The store.
        node: NodeId,
        /// The address of its data plane.
        address: SocketAddr,
        /// The target.
        target: ObjectId,
        /// The latest attempt.
        attempt: AttemptId,
        /// What those who wait for it are told.
        error: Error,
    },
    /// Fill a copy as a member of a session; say `Filled` when all bytes are there, and `CombineEnded` when nothing touches the
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
