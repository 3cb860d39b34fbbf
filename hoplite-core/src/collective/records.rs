use std::time::Duration;

use super::member::{MemberStage, Membership};
use super::message::{MembershipId, Plan, describe_plan};
use crate::id::ObjectId;
use crate::plan::link::LinkEstimate;
use crate::reduce::ReduceOp;
use crate::time::Time;
use crate::vocabulary::agreement::Agreement;
use crate::vocabulary::local::CopyId;

/// Plan and progress of a reduce or collective, for reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReduceRecord {
    /// Object that the reduce or collective makes.
    pub target: ObjectId,
    /// Operation on the sources.
    pub op: ReduceOp,
    /// Numbers of reduced sources and of all sources.
    pub reduced: (usize, usize),
    /// Number of nodes that combine, without the target's node; in a collective, of members.
    pub hops: usize,
    /// Schedule, its predicted time, and the runner-up.
    pub plan: String,
    /// Plan's estimate of the links.
    pub link: LinkEstimate,
    /// Time from the call (at a member, its enlistment) to the last byte or now.
    pub elapsed: Duration,
    /// Number of repairs after failures.
    pub mendings: u32,
    /// Number of restarts of the target because a lost source was replaced.
    pub restarts: u32,
    /// `true` until the call ends.
    pub is_running: bool,
    /// This store's progress as a member.
    pub position: Option<Position>,
}

impl ReduceRecord {
    /// Makes a member's record, without the coordinator's estimate of the links.
    pub(crate) fn of_another_store(
        target: &ObjectId,
        agreement: &Agreement,
        link: LinkEstimate,
    ) -> Self {
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

    /// Returns `true` if this store took part in a collective, but did not get all bytes.
    pub fn has_failed(&self) -> bool {
        let short = |position: &Position| position.final_bytes < position.size_bytes;
        !self.is_running && self.position.as_ref().is_some_and(short)
    }
}

/// A member's progress in a collective.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub struct Position {
    pub member: usize,
    pub members: usize,
    /// Member's stage in words.
    pub stage: String,
    /// Copy that the member fills.
    pub copy: Option<CopyId>,
    /// Number of final bytes in the copy.
    pub final_bytes: u64,
    /// Size of the result in bytes.
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
        elapsed: member.ended_at.unwrap_or(now).since(member.enlisted_at),
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
            None => {
                ("was told to do without, for which the store of rank 0 knows the reason", false)
            }
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
