//! Descriptions of reduces and collectives for people.

use std::time::Duration;

use super::member::{MemberStage, Membership};
use super::message::{MembershipId, Plan, describe_plan};
use crate::id::ObjectId;
use crate::plan::link::LinkEstimate;
use crate::reduce::ReduceOp;
use crate::time::Time;
use crate::vocabulary::agreement::Agreement;
use crate::vocabulary::local::CopyId;

/// The plan and the progress of a reduce or a collective.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReduceRecord {
    /// The object that it makes.
    pub target: ObjectId,
    /// The operation.
    pub op: ReduceOp,
    /// The number of sources that were reduced, and the number of all sources.
    pub reduced: (usize, usize),
    /// The number of nodes that combine, beside the receiver.
    pub hops: usize,
    /// The schedule with its estimated time, and the runner-up.
    pub plan: String,
    /// The estimate of links at the time of the plan.
    pub link: LinkEstimate,
    /// The time from the call to the last byte.
    pub elapsed: Duration,
    /// The number of repairs.
    pub mendings: u32,
    /// The number of times that the target was begun again.
    pub restarts: u32,
    /// `true` until it ends.
    pub is_running: bool,
    /// The progress of this store, if it is a member of an attempt that makes the target.
    pub position: Option<Position>,
}

impl ReduceRecord {
    /// Describes a collective that another store coordinates, with an estimate of links that is
    /// unknown here.
    pub(crate) fn of_another_store(target: &ObjectId, agreement: &Agreement, link: LinkEstimate) -> Self {
        Self {
            target: target.clone(),
            op: agreement.op,
            reduced: (0, agreement.participants as usize),
            hops: 0,
            plan: String::new(),
            link: LinkEstimate { bytes_per_second: 0, latency: Duration::ZERO, ..link },
            elapsed: Duration::ZERO,
            mendings: 0,
            restarts: 0,
            is_running: false,
            position: None,
        }
    }

    /// Returns `true` if this store was a member of an attempt that failed.
    pub fn has_failed(&self) -> bool {
        let short = |position: &Position| position.final_bytes < position.size_bytes;
        !self.is_running && self.position.as_ref().is_some_and(short)
    }
}

/// The progress of a member of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
    /// The index of the member in the schedule, from 0.
    pub member: usize,
    /// The number of members.
    pub members: usize,
    /// The activity of the member, or its end.
    pub stage: String,
    /// The copy that the member fills. The data plane knows how many bytes of it are there.
    pub copy: Option<CopyId>,
    /// The number of final bytes here.
    pub final_bytes: u64,
    /// The size of the result here.
    pub size_bytes: u64,
}

pub(super) fn record_of(
    id: MembershipId,
    member: &Membership,
    link: LinkEstimate,
    now: Time,
) -> ReduceRecord {
    let Plan { target, agreement, schedule, explanation, members, .. } = &*member.plan;
    let plan = describe_plan(agreement.kind, schedule, explanation, members);
    ReduceRecord {
        reduced: (agreement.participants as usize, agreement.participants as usize),
        hops: members.len(),
        plan,
        elapsed: member.ended_at.unwrap_or(now).since(member.asked_at),
        is_running: !member.has_ended(),
        position: Some(position(id, member)),
        ..ReduceRecord::of_another_store(target, agreement, link)
    }
}

pub(super) fn position(id: MembershipId, member: &Membership) -> Position {
    let plan = &member.plan;
    let kind = plan.properties();
    let is_at_rank_0 = matches!(id, MembershipId::Here(_));
    let (stage, is_full) = match member.stage() {
        MemberStage::AwaitingRoom => ("waits for room", false),
        MemberStage::Exchanging { .. } => ("gives and takes", false),
        MemberStage::Filled { .. } if kind.ends_together() => {
            ("has its parts, and waits until all have theirs", true)
        }
        MemberStage::Filled { .. } if !kind.makes_target => ("has its parts", true),
        MemberStage::Filled { .. } if is_at_rank_0 => ("has all bytes", true),
        MemberStage::Filled { .. } => {
            ("has all bytes, and waits for the decision of the store of rank 0", true)
        }
        MemberStage::Complete if !kind.makes_target => ("has its parts, as all have", true),
        MemberStage::Complete => ("has the target", true),
        MemberStage::Over => match &member.failure {
            Some(_) => ("has failed", false),
            None => ("was told to do without, for which the store of rank 0 knows the reason", false),
        },
    };
    let program = plan.program();
    let lengths = plan.finals(&program).into_iter().map(|step| {
        let range = program.steps()[step].range();
        range.end - range.start
    });
    let size_bytes = lengths.sum();
    let reason = member.failure.as_ref().map_or(String::new(), |reason| format!(": {reason}"));
    Position {
        member: plan.index,
        members: plan.members.len(),
        stage: format!("{stage}{reason}"),
        copy: member.growing_copy(),
        final_bytes: if is_full { size_bytes } else { 0 },
        size_bytes,
    }
}
