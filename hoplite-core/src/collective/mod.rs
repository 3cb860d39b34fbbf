//! Collectives that several stores perform together.
//!
//! # An allreduce, from the call to the target
//!
//! 1. Every participant joins at its own store: it gets the target. Rank 0 also has its store
//!    *coordinate*.
//! 2. The coordinator looks for the sources (`Search`). When all have a location, an attempt
//!    begins. It waits for the last source, because an attempt moves 2S(n-1)/n bytes through the
//!    last node's link, and the *general path*, one reduce and one broadcast, 2S. The coordinator
//!    takes the general path for at most 64 KiB in all, a fixed order, more than 256 nodes or 64
//!    sources at one node, and for the other reasons in `Search::outlook`.
//! 3. The planner orders the members by their groups, so that a ring enters each rack once, and
//!    takes the cheapest schedule: a ring, halving-doubling, or stages of rings
//!    ([`plan::collective`](crate::plan::collective)). Each node with sources is a *member* and
//!    gets a [`Plan`] over a separate connection. The member derives its *program* from the
//!    schedule: the ranges that it gives and takes, in order.
//! 4. A member makes room for the target in a copy that the directory does not know, and exchanges
//!    ranges with its neighbours. [`Progress`] decides which range may be given next. Partial
//!    results live in the target. A broken stream resumes where its receiver is. Participants copy
//!    ranges as they become valid.
//! 5. When the coordinator's own member has all bytes, the coordinator *commits* ([`Attempt`]).
//!    Only then the other members complete and publish their copies.
//!
//! `hoplite stat TARGET` shows the schedule, the reason for it, and the progress of each member.
//!
//! # Attempts
//!
//! A coordinator numbers its attempts ([`AttemptId`]), the general path included. Plans and
//! rejections carry the number; reports and decisions travel on the connection of their plan. A
//! store remembers the attempts that are over (`outcomes`). It refuses their plans and older ones,
//! and ignores a second rejection.
//!
//! # Failures
//!
//! Before the commit, a member that fails, refuses or finds no room aborts the attempt for good.
//! All members drop their copies, and the general path begins under another put id. A disagreement
//! about the operation or the type fails the whole call instead. After the commit, the target
//! stands: members that miss bytes fetch them from the others. So no two ranks get different bits.
//!
//! If the coordinator is lost before its commit reaches a member, the participants there look for
//! the target elsewhere for five seconds, then fail with `ObjectLost`. If rank 0's call fails, its
//! store rejects the attempt at the stores of the other sources, which fail their participants. A
//! participant that joins within ten seconds after a disagreement waits for another attempt until
//! they have passed, and at least two seconds. Then it fails with the same error.
//!
//! # Collectives of parts
//!
//! A reduce_scatter and an allgather run in the same way on a ring, but wait for late sources only
//! for the time of one member's part on its link, and at least 2 ms. Members exchange in private
//! copies, from which participants copy their parts, and need no commit. When all members are done,
//! or one has failed, or there is no attempt, the coordinator makes the target, an object without
//! bytes. A participant that gets this object makes its part itself: with a reduce of that range,
//! or with gets.
//!
//! An all_to_all is a collective of parts whose sources are deleted afterwards. Participants
//! continue together, when all members have their bytes. Without a successful attempt, each pair of
//! ranks exchanges a separate object. [`Properties`] lists all differences between the kinds.
//!
//! # Structure
//!
//! Events go into `Collectives`; `Action`s come out, which the store performs in order when the
//! event is complete. The coordinator and the members of one store exchange messages through the
//! queue of actions; between two stores the messages go over the wire. Nothing here changes the copies, the
//! calls, or the directory.
//!
//! # Invariants
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
pub use progress::{BadBlock, Block, Lack, Progress, Reading, Stream, Work};
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

/// All collectives of this store. See the [module documentation](self).
#[derive(Debug, Default)]
pub(crate) struct Collectives {
    /// The collectives that this store coordinates.
    pub(crate) coordinator: Coordinator,
    /// The attempts in which this store is a member, and its participants.
    pub(crate) members: Memberships,
}

impl Collectives {
    /// Takes in a message of another store, or of the shell.
    pub(crate) fn apply(&mut self, ctx: &mut Context<'_>, event: CollectiveEvent) {
        match event {
            CollectiveEvent::Asked { membership, plan } => {
                let target = plan.target.clone();
                if self.members.asked(ctx, membership, plan) {
                    self.attempt_begins(ctx, &target);
                }
            }
            CollectiveEvent::Told { membership, decision } => self.members.told(ctx, membership, decision),
            CollectiveEvent::Left { membership } => self.members.left(ctx, membership),
            CollectiveEvent::Filled { combine } => self.members.filled(ctx, combine),
            CollectiveEvent::Rejected { target, attempt, error } => {
                self.members.rejected(ctx, &target, attempt, &error);
            }
            CollectiveEvent::Reported { enlistment, report } => {
                self.coordinator.reported(ctx, enlistment, report);
            }
        }
    }

    /// Returns the next action, after the coordinator and the members have told each other what
    /// follows.
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

    /// Performs the timers that are due.
    pub(crate) fn expire(&mut self, ctx: &mut Context<'_>) {
        while let Some(timer) = ctx.outbox.next_due(ctx.now) {
            match timer {
                Timer::Search(target) => self.coordinator.reconsider(ctx, &target),
                Timer::Disagreement(target) => self.coordinator.disagreements.end(ctx, &target),
                Timer::Member(membership) => self.members.member_expired(ctx, membership),
                Timer::Orphan(target, attempt) => ctx.push(Action::RejectOrphan(target, attempt)),
                Timer::Join(key, target) => self.members.join_expired(ctx, key, target),
            }
        }
    }

    /// Forgets rejections, which do not hold for another attempt to make a target.
    pub(crate) fn attempt_begins(&mut self, ctx: &mut Context<'_>, target: &ObjectId) {
        self.coordinator.disagreements.end(ctx, target);
        self.members.forget_rejections(target);
    }

    /// Describes how this store makes `target`, if it coordinates that.
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
        let position = self.members.latest_for(target).map(|(id, member)| records::position(id, member));
        Some(ReduceRecord { is_running: true, position, ..coordinated.record(link, now) })
    }
}

#[cfg(test)]
mod tests;
