//! Collectives that several stores perform together.
//!
//! # An allreduce
//!
//! 1. Every participant joins and gets the target at its own store. Rank 0's store also
//!    *coordinates*.
//! 2. The coordinator looks for the sources (`Search`). When all have a location, an attempt to
//!    exchange their bytes begins, or the *general path* (a reduce and a broadcast) for the reasons
//!    in `Search::state`.
//! 3. Each node with sources is a *member*. The planner orders the members by group (zone, rack,
//!    host), so that a ring enters each rack once, and takes the cheapest schedule
//!    ([`plan::collective`](crate::plan::collective)). Each member derives its *program* from its
//!    [`Plan`]: the ranges that it sends and receives, in order.
//! 4. A member makes a copy that the directory does not know, and exchanges ranges with neighbours.
//!    [`Progress`] decides which range may be sent next. Partial results live in the copy. A broken
//!    stream resumes. Participants copy ranges as they become valid.
//! 5. When the member at the coordinator's store has all bytes, the coordinator *commits*
//!    ([`Attempt`]). Then the other members publish their copies.
//!
//! # Attempts and failures
//!
//! Attempts have numbers ([`AttemptId`]), also on the general path. A store refuses plans of ended
//! attempts (`outcomes`), and of older ones.
//!
//! Before the commit, a member that fails aborts the attempt. All members drop their copies, and
//! the general path begins under another put id. A disagreement about the operation or type fails
//! the whole call. After the commit, members that miss bytes fetch them from others. So no two
//! ranks get different bits.
//!
//! If the coordinator is lost before its commit arrives, participants look for the target elsewhere
//! for five seconds, then fail with `ObjectLost`; earlier if a shard loses the coordinator's store.
//! If rank 0's call fails, its store sends the error to the stores of the other sources.
//!
//! # Collectives of parts
//!
//! Members of a reduce_scatter or an allgather exchange on a ring, in private copies from which
//! participants copy their parts. These collectives need no commit. At the end, or after a failure,
//! the coordinator makes an empty target. A participant that gets this target instead of its part
//! makes the part with a reduce or with gets.
//!
//! An all_to_all also deletes its sources, and its participants end together. Without a successful
//! attempt, each pair of ranks exchanges a separate object. See [`Properties`].
//!
//! # Structure
//!
//! Events go into `Collectives`; the store performs the `Action`s afterwards. Nothing here changes
//! copies, calls, or the directory. The coordinator and the members of one store exchange messages
//! through the queue of actions.
//!
//! # Invariants
//!
//! * A member of an allreduce counts its bytes as the target only after the commit. The general
//!   path begins only after the coordinator has aborted the attempt for good.
//! * The coordinator never takes a commit back.
//! * A member that has left an attempt never returns, because others may overwrite the bytes that
//!   it needs.

mod action;
mod arrange;
mod attempt;
mod coordinator;
mod event;
mod kind;
mod member;
mod members;
mod message;
mod outcomes;
mod participants;
mod progress;
mod records;
mod resume;
mod search;

pub(crate) use action::{Action, Context, Found, Outbox};
pub use attempt::{Attempt, AttemptAction, AttemptState};
pub use event::{CollectiveEffect, CollectiveEvent};
pub use kind::{MAX_STAR_BYTES, Properties};
pub use member::{MemberStage, Membership};
pub use message::{
    AttemptId, Decision, EnlistmentId, Failure, MAX_EXPLANATION_BYTES, MAX_PAIRS_PER_MEMBER,
    MAX_SOURCES_PER_MEMBER, Member, MembershipId, Plan, Report, describe_plan,
};
pub use progress::{BadBlock, Block, Dependency, Progress, Reading, Stream, Work};
pub use records::{Position, ReduceRecord};
pub use resume::{Break, Resumes};
pub(crate) use search::promises_attempt;

pub use crate::vocabulary::agreement::Agreement;

use crate::id::ObjectId;
use crate::plan::link::LinkEstimate;
use crate::time::Time;
use action::{Step, Timer};
use coordinator::Coordinator;
use members::Memberships;

#[derive(Debug, Default)]
pub(crate) struct Collectives {
    pub(crate) coordinator: Coordinator,
    pub(crate) members: Memberships,
}

impl Collectives {
    pub(crate) fn apply(&mut self, ctx: &mut Context<'_>, event: CollectiveEvent) {
        match event {
            CollectiveEvent::Asked { membership, plan } => {
                let target = plan.target.clone();
                if self.members.enlisted(ctx, membership, plan) {
                    self.attempt_begins(ctx, &target);
                }
            }
            CollectiveEvent::Told { membership, decision } => {
                self.members.decided(ctx, membership, decision)
            }
            CollectiveEvent::Left { membership } => self.members.coordinator_left(ctx, membership),
            CollectiveEvent::Filled { combine } => self.members.filled(ctx, combine),
            CollectiveEvent::Rejected { target, attempt, error } => {
                self.members.rejected(ctx, &target, attempt, &error);
            }
            CollectiveEvent::Reported { enlistment, report } => {
                self.coordinator.reported(ctx, enlistment, report);
            }
        }
    }

    pub(crate) fn next_action(&mut self, ctx: &mut Context<'_>) -> Option<Action> {
        loop {
            match ctx.outbox.next()? {
                Step::Act(action) => return Some(action),
                Step::Deliver(event) => self.apply(ctx, event),
                Step::Commit(membership, call) => self.members.commit(ctx, membership, call),
                Step::HasParts(put) => self.coordinator.answer_rank_0(ctx, put),
            }
        }
    }

    pub(crate) fn expire(&mut self, ctx: &mut Context<'_>) {
        while let Some(timer) = ctx.outbox.next_due(ctx.now) {
            match timer {
                Timer::Search(target) => self.coordinator.reconsider(ctx, &target),
                Timer::Disagreement(target) => self.coordinator.disagreements.end(ctx, &target),
                Timer::Member(membership) => self.members.member_expired(ctx, membership),
                Timer::Orphan(target) => self.members.orphan_expired(ctx, target),
                Timer::Join(key, target) => self.members.join_expired(ctx, key, target),
            }
        }
    }

    pub(crate) fn attempt_begins(&mut self, ctx: &mut Context<'_>, target: &ObjectId) {
        self.coordinator.disagreements.end(ctx, target);
        self.members.forget_rejections(target);
    }

    pub(crate) fn record_coordinated(
        &self,
        target: &ObjectId,
        link: LinkEstimate,
        now: Time,
    ) -> Option<ReduceRecord> {
        if let Some(search) = self.coordinator.search_for(target) {
            return Some(search.record(link, now));
        }
        let (_, coordinated) = self.coordinator.open_for(target)?;
        let position =
            self.members.latest_for(target).map(|(id, member)| records::position(id, member));
        Some(ReduceRecord { is_running: true, position, ..coordinated.record(link, now) })
    }
}

#[cfg(test)]
mod tests;
