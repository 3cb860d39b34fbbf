use std::net::SocketAddr;

use super::{AttemptId, Decision, EnlistmentId, MembershipId, Plan, Report};
use crate::error::Error;
use crate::id::{NodeId, ObjectId};
use crate::vocabulary::local::{CombineId, CopyId};

/// Message to this store's collectives, from another store or the I/O layer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub enum CollectiveEvent {
    /// A remote coordinator enlists this store. The store answers with at most one `Filled`, and
    /// finally `Done` or `Failed`.
    Asked {
        /// Number that this store's I/O layer chose for the member.
        membership: MembershipId,
        plan: Box<Plan>,
    },
    /// Coordinator's decision: at most one `Commit`, then at most one `Stop`.
    Told {
        /// Member's number in `Asked`.
        membership: MembershipId,
        decision: Decision,
    },
    /// The coordinator dismissed this member, or the connection to the coordinator is lost. Exactly
    /// one for each `Asked`.
    Left { membership: MembershipId },
    /// The copy of a `StartExchange` has all bytes. The exchange still sends bytes to other
    /// members.
    Filled { combine: CombineId },
    /// A remote coordinator reports that its attempt at a collective failed.
    Rejected {
        target: ObjectId,
        /// Latest failed attempt. Its members also receive a `Told`, earlier or later.
        attempt: AttemptId,
        error: Error,
    },
    /// A member has reported or is lost. No event for this enlistment follows `Done`, `Failed`,
    /// `Dismiss`, or a `Tell` with `Stop`.
    Reported { enlistment: EnlistmentId, report: Report },
}

/// Action of the I/O layer for a collective.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub enum CollectiveEffect {
    /// Enlist another store and deliver its reports, until `Dismiss` or a `Tell` with `Stop`.
    Enlist { enlistment: EnlistmentId, plan: Box<Plan> },
    /// Tell a member the decision. `Stop` also ends the enlistment.
    Tell { enlistment: EnlistmentId, decision: Decision },
    /// End the enlistment of an unneeded member.
    Dismiss { enlistment: EnlistmentId },
    /// Report to this member's coordinator at another store.
    Report { membership: MembershipId, report: Report },
    /// Tell another store's participants that an attempt failed.
    Reject { node: NodeId, address: SocketAddr, target: ObjectId, attempt: AttemptId, error: Error },
    /// Start a member's exchange, which fills a copy. `CancelCombine` ends it. Send `Filled` when
    /// the copy has all bytes, and `CombineEnded` when the exchange no longer uses its sources.
    StartExchange {
        combine: CombineId,
        copy: CopyId,
        /// Member's sources, in order.
        sources: Vec<CopyId>,
        plan: Box<Plan>,
    },
}
