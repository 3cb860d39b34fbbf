//! How collectives are made, for those who ask: at rank 0's store, at the members, and at those who wait for them.

use std::time::Duration;

use super::super::{Node, Position, ReduceRecord};
use crate::collective::{Agreement, Member, MemberStage, Membership, MembershipId, Plan, describe_plan};
use crate::id::ObjectId;
use crate::objects::calls::Call;
use crate::plan::link::LinkEstimate;
use crate::reduce::ReduceOp;
use crate::time::Time;

impl Node {
    /// How `target` is made, or was, as far as this store knows: because it coordinates that, is a member of the session, or has
    /// participants that wait for it. Of what is over it remembers the latest.
    pub fn how_made(&self, target: &ObjectId, now: Time) -> Option<ReduceRecord> {
        let link = self.objects.ctx.link();
        self.collectives
            .gatherings
            .get(target)
            .map(|gathered| gathered.record(&self.objects.ctx, now))
            .or_else(|| self.record_session(target, now))
            .or_else(|| self.reductions.running_for(target, link, now))
            .or_else(|| {
                // Rank 0's store remembers more of a session that it has ended than its own member knows.
                let member = self.collectives.memberships.latest_for(target);
                let (id, member) = member.filter(|(id, _)| matches!(id, MembershipId::Elsewhere(_)))?;
                Some(self.record_membership(id, member, now))
            })
            .or_else(|| {
                // Those who wait mean no round that is over.
                let remembered = self.reduce_record(target).filter(|known| known.has_failed());
                remembered.cloned().or_else(|| self.record_waiting(target))
            })
            .or_else(|| self.reduce_record(target).cloned())
    }

    /// The members of the session that makes `target`, in their order, if this store is one of them, and which of them.
    pub fn members_making(&self, target: &ObjectId) -> Option<(usize, &[Member])> {
        let plan = self.collectives.memberships.latest_for(target)?.1.plan();
        Some((plan.index, &plan.members))
    }

    /// A session that is not decided is coordinated here.
    fn record_session(&self, target: &ObjectId, now: Time) -> Option<ReduceRecord> {
        let sessions = &self.collectives.sessions;
        let known = sessions.get(sessions.open_for(target)?)?.record_running(&self.objects.ctx, now);
        let own = self.collectives.memberships.latest_for(target);
        Some(ReduceRecord { position: own.map(|(id, member)| position(id, member)), ..known })
    }

    fn record_membership(&self, id: MembershipId, member: &Membership, now: Time) -> ReduceRecord {
        let Plan { target, agreement, schedule, account, members, .. } = member.plan();
        let plan = describe_plan(agreement.kind, schedule, account, members);
        ReduceRecord {
            reduced: (agreement.participants as usize, agreement.participants as usize),
            hops: members.len(),
            plan,
            elapsed: member.ended_at().unwrap_or(now).since(member.asked_at()),
            is_running: !matches!(member.stage(), MemberStage::Complete | MemberStage::Over),
            position: Some(position(id, member)),
            ..self.record_elsewhere(target, agreement)
        }
    }

    /// Participants of this node wait for what they have not heard of.
    fn record_waiting(&self, target: &ObjectId) -> Option<ReduceRecord> {
        let mut calls =
            self.objects.calls.gets(target).into_iter().filter_map(|key| self.objects.calls.get(key));
        let agreement = calls.find_map(|call| match call {
            Call::Get { join: Some(agreement), .. } => Some(*agreement),
            _ => None,
        })?;
        let plan = "not known here yet: participants of this node wait for the store of rank 0".to_owned();
        Some(ReduceRecord { plan, is_running: true, ..self.record_elsewhere(target, &agreement) })
    }

    /// What is known of what another store coordinates. What that takes links for is not.
    fn record_elsewhere(&self, target: &ObjectId, agreement: &Agreement) -> ReduceRecord {
        let op: ReduceOp = agreement.op;
        ReduceRecord {
            target: target.clone(),
            op,
            reduced: (0, agreement.participants as usize),
            hops: 0,
            plan: String::new(),
            link: LinkEstimate { bytes_per_second: 0, latency: Duration::ZERO, ..self.objects.ctx.link() },
            elapsed: Duration::ZERO,
            mendings: 0,
            restarts: 0,
            is_running: false,
            position: None,
        }
    }

    /// A session is over for this store. What rank 0's store remembers of its own says more.
    pub(super) fn remember_membership(&mut self, id: MembershipId) {
        if let MembershipId::Elsewhere(_) = id
            && let Some(member) = self.collectives.memberships.get(id)
        {
            let known = self.record_membership(id, member, self.objects.ctx.now());
            let position = known.position.map(|position| Position { copy: None, ..position });
            self.reductions.remember(ReduceRecord { is_running: false, position, ..known });
        }
    }
}

fn position(id: MembershipId, member: &Membership) -> Position {
    let plan = member.plan();
    let is_at_rank_0 = matches!(id, MembershipId::Here(_));
    let (stage, is_full) = match member.stage() {
        MemberStage::AwaitingRoom { .. } => ("waits for room", false),
        MemberStage::Exchanging { .. } => ("gives and takes", false),
        MemberStage::Filled { .. } if plan.agreement.kind.ends_together() => {
            ("has its parts, and waits until all have theirs", true)
        }
        MemberStage::Filled { .. } if plan.is_of_parts() => ("has its parts", true),
        MemberStage::Filled { .. } if is_at_rank_0 => ("has all bytes", true),
        MemberStage::Filled { .. } => ("has all bytes, and waits for the word of the store of rank 0", true),
        MemberStage::Complete if plan.is_of_parts() => ("has its parts, as all have", true),
        MemberStage::Complete => ("has the target", true),
        MemberStage::Over => match member.failure() {
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
    let reason = member.failure().map_or(String::new(), |reason| format!(": {reason}"));
    Position {
        member: plan.index,
        members: plan.members.len(),
        stage: format!("{stage}{reason}"),
        copy: member.growing_copy(),
        final_bytes: if is_full { size_bytes } else { 0 },
        size_bytes,
    }
}
