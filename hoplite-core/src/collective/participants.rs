//! The participants of the collectives that a store coordinates, and how they are told that a collective has failed.

use std::collections::BTreeMap;

use super::action::{Action, Timer, World};
use super::event::{CollectiveEffect, CollectiveEvent};
use super::message::{AttemptId, Member};
use super::outcomes::{MAX_REJECTIONS, REJECTION_TTL, is_disagreement};
use super::search::Search;
use crate::error::Error;
use crate::id::ObjectId;
use crate::plan::collective::MAX_MEMBERS;
use crate::shard::{Location, Locations, RequestId};
use crate::time::Time;
use crate::vocabulary::agreement::Agreement;
use crate::vocabulary::local::CallKey;

/// The participants of a collective, which are at the nodes of its sources, as long as rank 0's call is open.
#[derive(Debug)]
pub(super) struct Participants {
    pub(super) key: CallKey,
    /// The time at which the search ended.
    pub(super) since: Time,
    /// The latest attempt to make the target.
    pub(super) attempt: AttemptId,
    pub(super) agreement: Agreement,
    members: Vec<Member>,
    /// The sources that are nowhere yet, by their ranks.
    missing: BTreeMap<usize, ObjectId>,
}

impl Participants {
    /// The participants of a search that has ended.
    pub(super) fn new(now: Time, search: &Search) -> Self {
        Self {
            key: search.key,
            since: now,
            attempt: search.attempt,
            agreement: search.sources.agreement(),
            members: search.sources.known_members(),
            missing: search.sources.missing_sources(),
        }
    }

    /// A source that was missing is somewhere.
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

/// The collectives in which participants have disagreed, by target: participants whose sources appear later are told, too.
#[derive(Debug, Default)]
pub(super) struct Disagreements(BTreeMap<ObjectId, Disagreement>);

#[derive(Debug)]
struct Disagreement {
    attempt: AttemptId,
    error: Error,
    until: Time,
    /// The queries for the sources that were missing, by ranks.
    asks: BTreeMap<usize, RequestId>,
}

impl Disagreements {
    /// A collective has failed: tells the stores of the participants, and this store.
    pub(super) fn reject(
        &mut self,
        world: &mut World<'_>,
        target: &ObjectId,
        participants: Participants,
        error: &Error,
    ) {
        let Participants { attempt, members, missing, .. } = participants;
        reject_at(world, members, (target, attempt), error);
        let (target, error) = (target.clone(), error.clone());
        world.deliver(CollectiveEvent::Rejected { target: target.clone(), attempt, error: error.clone() });
        if is_disagreement(&error) && !missing.is_empty() && self.0.len() < MAX_REJECTIONS {
            let until = world.now + REJECTION_TTL;
            world.schedule(until, Timer::Disagreement(target.clone()));
            self.0.insert(target.clone(), Disagreement { attempt, error, until, asks: BTreeMap::new() });
            world.push(Action::Follow(target, missing));
        }
    }

    /// The directory was asked where the missing sources are.
    pub(super) fn follows(
        &mut self,
        world: &mut World<'_>,
        target: &ObjectId,
        asks: BTreeMap<usize, RequestId>,
    ) {
        match self.0.get_mut(target) {
            Some(disagreement) => disagreement.asks = asks,
            None => world.withdraw(asks.into_values()),
        }
    }

    /// The directory told where a source is. Tells the participants there. Returns `false` if there is no such disagreement.
    pub(super) fn located(
        &mut self,
        world: &mut World<'_>,
        target: &ObjectId,
        rank: usize,
        locations: &Locations,
    ) -> bool {
        let Some(disagreement) = self.0.get_mut(target) else { return false };
        if !locations.locations.is_empty()
            && let Some(ask) = disagreement.asks.remove(&rank)
        {
            world.withdraw([ask]);
            reject_at(world, members_at(locations), (target, disagreement.attempt), &disagreement.error);
            if disagreement.asks.is_empty() {
                self.end(world, target);
            }
        }
        true
    }

    /// A disagreement is too old to tell participants that come now, or another attempt begins.
    pub(super) fn end(&mut self, world: &mut World<'_>, target: &ObjectId) {
        let Some(disagreement) = self.0.remove(target) else { return };
        world.unschedule(disagreement.until, Timer::Disagreement(target.clone()));
        world.withdraw(disagreement.asks.into_values());
    }
}

fn members_at(locations: &Locations) -> impl Iterator<Item = Member> {
    let member = |location: &Location| Member { node: location.node.clone(), address: location.data_address };
    locations.locations.iter().map(member)
}

/// Tells other stores that a target will not be made.
fn reject_at(
    world: &mut World<'_>,
    members: impl IntoIterator<Item = Member>,
    (target, attempt): (&ObjectId, AttemptId),
    error: &Error,
) {
    for Member { node, address } in members {
        if node != *world.node {
            let (target, error) = (target.clone(), error.clone());
            world.perform(CollectiveEffect::Reject { node, address, target, attempt, error });
        }
    }
}
