use std::collections::BTreeMap;

use super::action::{Action, Context, Timer};
use super::event::{CollectiveEffect, CollectiveEvent};
use super::message::{AttemptId, Member};
use super::outcomes::{MAX_REJECTIONS, REJECTION_TTL, is_disagreement};
use super::search::Search;
use crate::error::Error;
use crate::id::ObjectId;
use crate::plan::collective::MAX_MEMBERS;
use crate::shard::{Location, Locations, RequestId};
use crate::time::Time;
use crate::vocabulary::local::CallKey;

/// Participants of one collective, until rank 0's call ends.
#[derive(Debug)]
pub(crate) struct Participants {
    pub(crate) key: Option<CallKey>,
    /// Time since which the target waits for memory or its quota.
    pub(crate) lacks_room_since: Option<Time>,
    pub(super) attempt: AttemptId,
    members: Vec<Member>,
    missing: BTreeMap<usize, ObjectId>,
}

impl Participants {
    pub(super) fn new(search: &Search) -> Self {
        Self {
            key: search.call.key,
            lacks_room_since: None,
            attempt: search.attempt,
            members: search.known_members(),
            missing: search.missing_sources(),
        }
    }

    pub(super) fn note_source(&mut self, rank: usize, locations: &Locations) {
        if locations.locations.is_empty() || self.missing.remove(&rank).is_none() {
            return;
        }
        for member in members_at(locations) {
            if !self.members.contains(&member) && self.members.len() < MAX_MEMBERS {
                self.members.push(member);
            }
        }
    }
}

/// Recent disagreements of ranks, by target. The stores of sources that appear later are told.
#[derive(Debug, Default)]
pub(crate) struct Disagreements(BTreeMap<ObjectId, Disagreement>);

#[derive(Debug)]
struct Disagreement {
    attempt: AttemptId,
    error: Error,
    until: Time,
    source_queries: BTreeMap<usize, RequestId>,
}

impl Disagreements {
    pub(super) fn reject(
        &mut self,
        ctx: &mut Context<'_>,
        target: &ObjectId,
        participants: Participants,
        error: &Error,
    ) {
        let Participants { attempt, members, missing, .. } = participants;
        reject_at(ctx, members, (target, attempt), error);
        let (target, error) = (target.clone(), error.clone());
        ctx.deliver(CollectiveEvent::Rejected {
            target: target.clone(),
            attempt,
            error: error.clone(),
        });
        if is_disagreement(&error) && !missing.is_empty() && self.0.len() < MAX_REJECTIONS {
            let until = ctx.now + REJECTION_TTL;
            ctx.schedule(until, Timer::Disagreement(target.clone()));
            self.0.insert(
                target.clone(),
                Disagreement { attempt, error, until, source_queries: BTreeMap::new() },
            );
            ctx.push(Action::Follow(target, missing));
        }
    }

    pub(crate) fn follows(
        &mut self,
        ctx: &mut Context<'_>,
        target: &ObjectId,
        source_queries: BTreeMap<usize, RequestId>,
    ) {
        match self.0.get_mut(target) {
            Some(disagreement) => disagreement.source_queries = source_queries,
            None => ctx.withdraw(source_queries.into_values()),
        }
    }

    pub(super) fn located(
        &mut self,
        ctx: &mut Context<'_>,
        target: &ObjectId,
        rank: usize,
        locations: &Locations,
    ) -> bool {
        let Some(disagreement) = self.0.get_mut(target) else { return false };
        if !locations.locations.is_empty()
            && let Some(query) = disagreement.source_queries.remove(&rank)
        {
            ctx.withdraw([query]);
            reject_at(
                ctx,
                members_at(locations),
                (target, disagreement.attempt),
                &disagreement.error,
            );
            if disagreement.source_queries.is_empty() {
                self.end(ctx, target);
            }
        }
        true
    }

    pub(super) fn end(&mut self, ctx: &mut Context<'_>, target: &ObjectId) {
        let Some(disagreement) = self.0.remove(target) else { return };
        ctx.unschedule(disagreement.until, Timer::Disagreement(target.clone()));
        ctx.withdraw(disagreement.source_queries.into_values());
    }
}

fn members_at(locations: &Locations) -> impl Iterator<Item = Member> {
    let member = |location: &Location| Member {
        node: location.node.clone(),
        address: location.data_address,
    };
    locations.locations.iter().map(member)
}

fn reject_at(
    ctx: &mut Context<'_>,
    members: impl IntoIterator<Item = Member>,
    (target, attempt): (&ObjectId, AttemptId),
    error: &Error,
) {
    for Member { node, address } in members {
        if node != *ctx.node {
            let (target, error) = (target.clone(), error.clone());
            ctx.perform(CollectiveEffect::Reject { node, address, target, attempt, error });
        }
    }
}
