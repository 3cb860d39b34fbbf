//! Collectives as a part of the node: those that this store coordinates, and those in which it is a member.
//!
//! [`collective`](crate::collective) describes them from the first to the last step. Each file below owns its fields: `gathering`
//! follows the sources, `session` coordinates the members, `fallback` takes the general path, `member` is this store's part, `join`
//! admits participants, `audience` tells participants that a collective has failed, and `inspect` describes them all to tools.

mod audience;
mod fallback;
mod gathering;
mod inspect;
mod join;
mod member;
mod session;

use std::collections::BTreeMap;

use super::{Node, Reduce, ReduceRecord};
use crate::collective::{Agreement, CollectiveEvent};
use crate::error::Error;
use crate::id::{NodeId, ObjectId, PutId};
use crate::message::CallKey;
use crate::objects::context::Context;
use crate::plan::collective::Collective;
use crate::shard::{Locations, RequestId};
use crate::time::Time;
use audience::Audiences;
use fallback::Announcements;
use gathering::Gatherings;
use member::Memberships;
use session::{Coordinated, Sessions};

/// All collectives that this store coordinates, or has a part in.
#[derive(Debug, Default)]
pub(super) struct Collectives {
    gatherings: Gatherings,
    sessions: Sessions,
    announcements: Announcements,
    memberships: Memberships,
    audiences: Audiences,
}

/// The call of rank 0, which a collective is for.
#[derive(Debug)]
struct CoordinatedCall {
    /// `None` once it has ended, or was answered.
    key: Option<CallKey>,
    started: Time,
    kind: Collective,
    request: Reduce,
    /// The question whether there is a target, until it is decided here that there is.
    existence: Option<RequestId>,
}

impl CoordinatedCall {
    /// How the collective went among so many members.
    fn record(&self, ctx: &Context, members: usize, plan: String) -> ReduceRecord {
        record(ctx, &self.request, self.started, members, plan)
    }
}

/// How a collective went among so many members.
fn record(ctx: &Context, request: &Reduce, started: Time, members: usize, plan: String) -> ReduceRecord {
    let sources = request.sources.len();
    ReduceRecord {
        target: request.target.clone(),
        op: request.op,
        reduced: (sources, sources),
        hops: members,
        plan,
        link: ctx.link(),
        elapsed: ctx.now().since(started),
        mendings: 0,
        restarts: 0,
        is_running: false,
        position: None,
    }
}

impl Collectives {
    /// How many this store coordinates.
    pub(super) fn coordinated(&self) -> usize {
        self.gatherings.len() + self.sessions.len()
    }

    /// What is coordinated here: what was asked for, since when, among how many members by which plan, once there is one.
    pub(super) fn under_way(&self) -> impl Iterator<Item = (&Reduce, Time, usize, &str)> {
        self.gatherings.under_way().chain(self.sessions.under_way())
    }

    pub(super) fn memberships(&self) -> usize {
        self.memberships.len()
    }

    pub(super) fn enlistments(&self) -> usize {
        self.sessions.enlistments()
    }

    /// The sources for which a collective waits before it begins, by their ranks.
    pub(super) fn absent_sources(&self, target: &ObjectId) -> Option<BTreeMap<usize, ObjectId>> {
        self.gatherings.missing_sources(target)
    }

    /// The stores that have not done their part in the session that makes a target.
    pub(super) fn unfinished_stores(&self, target: &ObjectId) -> Option<Vec<NodeId>> {
        let put = self.sessions.open_for(target)?;
        self.sessions.get(put).map(Coordinated::unfinished_stores)
    }

    /// Returns `true` if a target is being made here that does not stand yet.
    pub(super) fn contains(&self, target: &ObjectId) -> bool {
        self.gatherings.contains(target) || self.sessions.open_for(target).is_some()
    }

    /// What the participants agree about of whose collective this is to be the target.
    pub(super) fn agreement_about(&self, target: &ObjectId) -> Option<Agreement> {
        self.audiences.agreement(target)
    }

    /// Returns `true` if this store has been a member of the attempt that makes `put`, and has nothing to give any more.
    pub(super) fn has_ended(&self, put: PutId) -> bool {
        self.memberships.has_ended(put)
    }
}

impl Node {
    /// Takes in what happened in a session.
    pub(super) fn collective(&mut self, event: CollectiveEvent) {
        match event {
            CollectiveEvent::Asked { membership, plan } => self.asked(membership, plan),
            CollectiveEvent::Told { membership, word } => self.told(membership, word),
            CollectiveEvent::Left { membership } => self.left(membership),
            CollectiveEvent::Filled { combine } => self.filled(combine),
            CollectiveEvent::Denied { target, put, error } => self.denied(&target, put, &error),
            CollectiveEvent::Reported { enlistment, report } => self.reported(enlistment, report),
        }
    }

    /// The directory told what it knows about a source.
    pub(super) fn source_located(&mut self, target: &ObjectId, index: usize, locations: Locations) {
        if self.collectives.gatherings.contains(target) {
            return self.gathered_source_located(target, index, locations);
        }
        if self.deny_late(target, index, &locations) {
            return;
        }
        self.collectives.audiences.note_source(target, index, &locations);
        self.reductions.source_located(&mut self.objects, target, index, locations);
    }

    /// The directory told whether there is a target.
    pub(super) fn target_located(&mut self, locations: &Locations) {
        let target = &locations.id;
        if locations.object.is_some() && self.end_announcement(target) {
            return;
        }
        if self.collectives.contains(target) {
            if locations.object.as_ref().is_some_and(|object| !object.lost) {
                self.fail_collective(target, &Error::AlreadyExists { id: target.clone() });
            } else {
                self.gathered_target_is_new(target);
            }
            return;
        }
        self.reductions.target_located(&mut self.objects, locations);
    }

    /// Ends what would make `target`, if that is open, and its call.
    pub(super) fn fail_collective(&mut self, target: &ObjectId, error: &Error) {
        if let Some(key) = self.drop_gathering(target) {
            self.objects.finish(key, Err(error.clone()));
        }
        if let Some(put) = self.collectives.sessions.open_for(target) {
            let key = self.give_up_session(put, error);
            if let Some(key) = key {
                self.objects.finish(key, Err(error.clone()));
            }
        }
    }

    /// The call has ended that a collective is for.
    pub(super) fn collective_unwanted(&mut self, key: CallKey, target: &ObjectId) {
        if self.collectives.gatherings.is_for(key, target) {
            self.drop_gathering(target);
        }
        let error = Error::ObjectLost { id: target.clone() };
        self.end_audience(key, target, Some(&error));
        self.session_unwanted(key, &error);
    }
}
