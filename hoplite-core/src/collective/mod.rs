//! Collectives that several stores perform together.
//!
//! # An allreduce, from the call to the target
//!
//! 1. Every participant joins at its own store: it gets the target. Rank 0 also has its store *coordinate*.
//! 2. The coordinator looks for the sources ([`Sources`]). When all have a location, an attempt begins, however late the last source
//!    is, because an attempt moves 2S(n-1)/n bytes through the last node's link and the general path 2S. The coordinator takes the
//!    *general path*, one reduce and one broadcast, for sources of at most 64 KiB together, for a fixed order, for more than 256
//!    nodes or 64 sources at one node, if one node has all sources or rank 0's node has none, and for the other reasons in
//!    [`Sources::outlook`].
//! 3. The planner puts the members in the order of their groups, so that a ring enters each rack once, and takes the cheapest
//!    schedule: a ring, halving-doubling, or stages of rings ([`plan::collective`](crate::plan::collective)). Each node with
//!    sources is a *member* and gets a [`Plan`] over a connection of its own. From the schedule the member derives its *program*:
//!    the ranges that it gives to each member and takes from each member, in order.
//! 4. A member makes room for the target in a copy that the directory does not know, and exchanges ranges with its neighbours.
//!    [`Progress`] decides which range may be given next. Partial results live in the target. A stream that breaks resumes where
//!    its receiver is. Participants copy ranges as they become valid.
//! 5. When the coordinator's own member has all bytes, the coordinator *commits* ([`Attempt`]). Only then another member completes
//!    its copy and publishes it.
//!
//! `hoplite stat TARGET` shows the schedule, the reason for it, and the progress of each member.
//!
//! # Attempts
//!
//! A coordinator numbers the attempts of a collective ([`AttemptId`]). The general path is an attempt, too. Plans and rejections
//! carry the number; reports and decisions travel on the connection of their plan. A store remembers the attempts that are over
//! (`outcomes`). It refuses a plan of such an attempt or of an older one, and ignores a second rejection.
//!
//! # Failures
//!
//! Before the commit, a member that fails, refuses or finds no room aborts the attempt for good. All members drop their copies, and
//! the general path begins under another put id. A member that disagrees about the operation or the type fails the whole call
//! instead. After the commit, the target stands: members that miss bytes get them from the others. So no two ranks get different
//! bits. If the coordinator is lost before its commit reaches a member, the participants there look for the target elsewhere for
//! five seconds, then fail with `ObjectLost`. If rank 0's call fails, its store rejects the attempt: it tells the stores of the
//! other sources the error, and these fail the participants that wait there. If the ranks disagree, a participant that joins within
//! the next ten seconds waits for another attempt until they have passed, and at least two seconds. Then it fails with that
//! error, too.
//!
//! # Collectives of parts
//!
//! A reduce_scatter and an allgather run in the same way on a ring, but wait for the last source only as long as one member's part
//! takes on its link, and at least 2 ms. Their members exchange in private copies, from which each participant copies its parts. No
//! member waits for a commit, because each part is for one participant. When all members are done, when one has failed, or when no
//! attempt is made, the coordinator makes the target, an object without bytes. A participant that gets this object makes its part
//! itself: with a reduce of that range, or with gets.
//!
//! An all_to_all is a collective of parts whose sources are deleted afterwards. Participants go on together, when all members have
//! their bytes. If no attempt is made, or it fails, the target says so, and each pair of ranks exchanges an object of its own.
//! [`Properties`] lists all differences between the kinds.
//!
//! # Structure
//!
//! Events go into `Collectives`; `Action`s come out. The store performs them in order when the event is complete. Two parts
//! decide: the coordinator, and the members with the participants of this node. They exchange messages through the queue of
//! actions, as coordinator and members of two stores do over the wire. Nothing here changes the table of copies, the calls, or the
//! directory.
//!
//! # Invariants
//! * A member of an allreduce counts its bytes as the target only after the coordinator has committed, which it does once the member
//!   at its own store has all bytes. The general path begins only after the coordinator has aborted the attempt for good.
//! * The coordinator never takes a commit back.
//! * A member that has left an attempt never takes part in it again, because the bytes that others gave it may be overwritten.

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
mod sources;

use std::collections::BTreeMap;

pub(crate) use action::{Action, Context, Found};
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
pub use sources::{Members, Outlook, SourceMember, Sources, promises_attempt};

pub use crate::vocabulary::agreement::Agreement;

use crate::error::Error;
use crate::id::{NodeId, ObjectId, PutId};
use crate::plan::collective::Collective;
use crate::plan::link::LinkEstimate;
use crate::shard::{Locations, RequestId};
use crate::time::Time;
use crate::vocabulary::local::{ByteRange, CallKey, CombineId, CopyId};
use crate::vocabulary::reduce::Reduce;
use action::{Outbox, Step, Timer};
use coordinator::Coordinator;
use members::Memberships;

/// All collectives that this store coordinates, is a member of, or has participants of. See the [module documentation](self).
#[derive(Debug, Default)]
pub(crate) struct Collectives {
    coordinator: Coordinator,
    members: Memberships,
    outbox: Outbox,
}

impl Collectives {
    /// Takes in what coordinators, members and the shell say.
    pub(crate) fn apply(&mut self, ctx: Context<'_>, event: CollectiveEvent) {
        let world = &mut ctx.world(&mut self.outbox);
        match event {
            CollectiveEvent::Asked { membership, plan } => self.members.asked(world, membership, plan),
            CollectiveEvent::Told { membership, decision } => self.members.told(world, membership, decision),
            CollectiveEvent::Left { membership } => self.members.left(world, membership),
            CollectiveEvent::Filled { combine } => self.members.filled(world, combine),
            CollectiveEvent::Rejected { target, attempt, error } => {
                self.members.rejected(world, &target, attempt, &error);
            }
            CollectiveEvent::Reported { enlistment, report } => {
                self.coordinator.reported(world, enlistment, report);
            }
        }
    }

    /// Returns the next action, after the parts of the machine have told each other what follows.
    pub(crate) fn next_action(&mut self, mut ctx: Context<'_>) -> Option<Action> {
        loop {
            match self.outbox.next()? {
                Step::Act(action) => return Some(action),
                Step::Deliver(event) => self.apply(ctx.again(), event),
                Step::Seal(membership, sealer) => self.members.set_sealer(membership, sealer),
                Step::HasParts(put) => {
                    self.coordinator.answer_rank_0(&mut ctx.again().world(&mut self.outbox), put);
                }
                Step::Begins(target) => self.attempt_begins(ctx.again(), &target),
            }
        }
    }

    /// Takes in that time has passed.
    pub(crate) fn expire(&mut self, ctx: Context<'_>) {
        let mut ctx = ctx;
        while let Some(timer) = self.outbox.next_due(ctx.now) {
            let world = &mut ctx.again().world(&mut self.outbox);
            match timer {
                Timer::Search(target) => self.coordinator.reconsider(world, &target),
                Timer::Disagreement(target) => self.coordinator.end_disagreement(world, &target),
                Timer::Member(membership) => self.members.member_expired(world, membership),
                Timer::Orphan(target, attempt) => world.push(Action::RejectOrphan(target, attempt)),
                Timer::Join(key, target) => self.members.join_expired(world, key, target),
            }
        }
    }

    /// Returns the next deadline.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.outbox.next_deadline()
    }
}

/// A collective that this store coordinates.
impl Collectives {
    /// Coordinates a collective for a call. The directory was asked whether the target exists, and where each source is.
    pub(crate) fn coordinate(
        &mut self,
        ctx: Context<'_>,
        key: CallKey,
        request: (Collective, Reduce),
        existence: RequestId,
        asks: Vec<RequestId>,
    ) {
        self.coordinator.coordinate(&mut ctx.world(&mut self.outbox), key, request, existence, asks);
    }

    /// The directory told what it knows about a source. Returns the locations if they are those of a reduce.
    pub(crate) fn source_located(
        &mut self,
        ctx: Context<'_>,
        target: &ObjectId,
        index: usize,
        locations: Locations,
    ) -> Option<Locations> {
        self.coordinator.source_located(&mut ctx.world(&mut self.outbox), target, index, locations)
    }

    /// The directory told whether the target exists. Returns `true` if a collective makes it.
    pub(crate) fn target_located(&mut self, ctx: Context<'_>, locations: &Locations) -> bool {
        self.coordinator.target_located(&mut ctx.world(&mut self.outbox), locations)
    }

    /// The directory was asked where the sources of [`Action::Follow`] are.
    pub(crate) fn follows(&mut self, ctx: Context<'_>, target: &ObjectId, asks: BTreeMap<usize, RequestId>) {
        self.coordinator.follows(&mut ctx.world(&mut self.outbox), target, asks);
    }

    /// Another attempt to make a target begins. Rejections of earlier ones do not hold for it.
    pub(crate) fn attempt_begins(&mut self, ctx: Context<'_>, target: &ObjectId) {
        self.coordinator.end_disagreement(&mut ctx.world(&mut self.outbox), target);
        self.members.forget_rejections(target);
    }

    /// Ends the search or the undecided attempt that would make `target`, and its call.
    pub(crate) fn fail(&mut self, ctx: Context<'_>, target: &ObjectId, error: &Error) {
        self.coordinator.fail(&mut ctx.world(&mut self.outbox), target, error);
    }

    /// The call of a reduce or a collective has ended: with this error, if it has failed.
    pub(crate) fn call_ended(
        &mut self,
        ctx: Context<'_>,
        key: CallKey,
        target: &ObjectId,
        error: Option<&Error>,
    ) {
        self.coordinator.call_ended(&mut ctx.world(&mut self.outbox), key, target, error);
    }

    /// A target was deleted.
    pub(crate) fn target_deleted(&mut self, ctx: Context<'_>, target: &ObjectId) {
        self.coordinator.target_deleted(&mut ctx.world(&mut self.outbox), target);
    }

    /// The target is deleted before the directory knows that this store has announced it. Returns `true` if it has.
    pub(crate) fn withdraw_announcement(&mut self, ctx: Context<'_>, target: &ObjectId) -> bool {
        self.coordinator.withdraw_announcement(&mut ctx.world(&mut self.outbox), target)
    }

    /// Returns `true` if a search or an undecided attempt for this target is coordinated here.
    pub(crate) fn contains(&self, target: &ObjectId) -> bool {
        self.coordinator.contains(target)
    }

    /// Returns the time at which the search for a target ended, if participants wait for the target.
    pub(crate) fn awaited_since(&self, target: &ObjectId) -> Option<Time> {
        self.coordinator.participants(target).map(|participants| participants.since)
    }

    /// Returns the agreement of the participants of a target.
    pub(crate) fn agreement(&self, target: &ObjectId) -> Option<Agreement> {
        self.coordinator.participants(target).map(|participants| participants.agreement)
    }
}

/// An attempt in which this store is a member, and its participants.
impl Collectives {
    /// A participant is about to join. `is_here` looks for the copy of a source.
    ///
    /// # Errors
    /// The reason for which its target will not be made.
    pub(crate) fn join(
        &mut self,
        ctx: Context<'_>,
        target: &ObjectId,
        agreement: (Agreement, bool),
        is_here: impl Fn(&ObjectId, PutId) -> bool,
    ) -> Result<(), Error> {
        self.members.join(&mut ctx.world(&mut self.outbox), target, agreement, is_here)
    }

    /// A participant that has joined waits.
    pub(crate) fn joined(&mut self, ctx: Context<'_>, key: CallKey, target: &ObjectId) {
        self.members.joined(&mut ctx.world(&mut self.outbox), key, target);
    }

    /// Returns the plan of a member that waits for room.
    pub(crate) fn awaits_room(&self, membership: MembershipId) -> Option<&Plan> {
        self.members.awaits_room(membership)
    }

    /// The exchange of a member was started in this copy.
    pub(crate) fn began(
        &mut self,
        ctx: Context<'_>,
        membership: MembershipId,
        copy: CopyId,
        combine: CombineId,
    ) {
        self.members.began(&mut ctx.world(&mut self.outbox), membership, copy, combine);
    }

    /// A member cannot begin.
    pub(crate) fn refused(&mut self, ctx: Context<'_>, membership: MembershipId, failure: Failure) {
        self.members.refused(&mut ctx.world(&mut self.outbox), membership, failure);
    }

    /// A participant was given the copy of a member.
    pub(crate) fn answered(&mut self, ctx: Context<'_>, membership: MembershipId) {
        self.members.answered(&mut ctx.world(&mut self.outbox), membership);
    }

    /// The exchange of a member has ended. `failure` is the failure if bytes are missing, or `None` if the copy was given up before.
    pub(crate) fn exchange_ended(
        &mut self,
        ctx: Context<'_>,
        membership: MembershipId,
        failure: Option<Failure>,
    ) {
        self.members.exchange_ended(&mut ctx.world(&mut self.outbox), membership, failure);
    }

    /// A coordinator is lost, and its target cannot be found elsewhere.
    pub(crate) fn orphaned(&mut self, ctx: Context<'_>, target: &ObjectId, attempt: AttemptId) {
        let error = Error::ObjectLost { id: target.clone() };
        self.members.rejected(&mut ctx.world(&mut self.outbox), target, attempt, &error);
    }

    /// The daemon stops.
    pub(crate) fn shut_down(&mut self, ctx: Context<'_>) {
        self.members.shut_down(&mut ctx.world(&mut self.outbox));
    }

    /// Returns the member that fills a copy, and the order in which its bytes become valid, if participants get ranges of it.
    pub(crate) fn order_of(&self, copy: CopyId) -> Option<(MembershipId, Vec<ByteRange>)> {
        self.members.order_of(copy)
    }

    /// Returns `true` if this store was a member of the attempt that makes `put`, and has nothing to give any more.
    pub(crate) fn has_ended(&self, put: PutId) -> bool {
        self.members.has_ended(put)
    }
}

/// Descriptions for people.
impl Collectives {
    /// Returns the number of collectives that this store coordinates.
    pub(crate) fn coordinated(&self) -> usize {
        self.coordinator.len()
    }

    /// Returns the number of attempts in which this store is a member.
    pub(crate) fn memberships(&self) -> usize {
        self.members.len()
    }

    /// Returns the number of members whose reports to this store are not complete.
    pub(crate) fn enlistments(&self) -> usize {
        self.coordinator.enlistments()
    }

    /// Returns the request, the start, the number of members and the plan of each collective that this store coordinates.
    pub(crate) fn under_way(&self) -> impl Iterator<Item = (&Reduce, Time, usize, &str)> {
        self.coordinator.under_way()
    }

    /// Returns the sources for which a search waits, by their ranks.
    pub(crate) fn absent_sources(&self, target: &ObjectId) -> Option<BTreeMap<usize, ObjectId>> {
        self.coordinator.search_for(target).map(|search| search.sources.missing_sources())
    }

    /// Returns the stores that have not completed their part in the attempt that makes a target.
    pub(crate) fn unfinished_stores(&self, target: &ObjectId) -> Option<Vec<NodeId>> {
        self.coordinator.open_for(target).map(|(_, coordinated)| coordinated.unfinished_stores())
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
        let own = self.members.latest_for(target);
        let position = own.map(|(id, member)| records::position(id, member));
        Some(ReduceRecord { is_running: true, position, ..coordinated.record(link, now) })
    }

    /// Describes how this store makes `target` as a member for another one. A coordinator remembers more of an attempt that is over
    /// than its own member.
    pub(crate) fn record_member(
        &self,
        target: &ObjectId,
        link: LinkEstimate,
        now: Time,
    ) -> Option<ReduceRecord> {
        let (id, member) = self.members.latest_for(target)?;
        matches!(id, MembershipId::Elsewhere(_)).then(|| records::record_of(id, member, link, now))
    }

    /// Returns the members of the attempt that makes `target`, in their order, and the index of this store, if it is one of them.
    pub(crate) fn members_making(&self, target: &ObjectId) -> Option<(usize, &[Member])> {
        let plan = self.members.latest_for(target)?.1.plan();
        Some((plan.index, &plan.members))
    }
}

#[cfg(test)]
mod tests;
