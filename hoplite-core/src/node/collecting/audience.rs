//! Who may wait for the target of a collective that is coordinated here, and what they are told if there will be none.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::super::{Effect, Node};
use crate::collective::{Agreement, CollectiveEffect, Gathering, Member};
use crate::error::Error;
use crate::id::{ObjectId, PutId};
use crate::message::CallKey;
use crate::objects::calls::Call;
use crate::objects::notice::Deadline;
use crate::plan::collective::MAX_MEMBERS;
use crate::shard::{Locations, RequestId, Wants};
use crate::time::Time;

/// The time that it is remembered that there will be no target: far longer than a client takes to join again.
const DENIAL_TTL: Duration = Duration::from_secs(10);
/// The time that a participant waits at least for another attempt, however old the disagreement is: for ranks that try again at the same
/// time, and a store that is busy.
pub(super) const MIN_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);
/// Most targets that are remembered as such.
const MAX_DENIALS: usize = 256;

/// The participants of the collectives that this store coordinates, and what it has heard of targets that will not be made.
#[derive(Debug, Default)]
pub(super) struct Audiences {
    /// By target, as long as rank 0's call is open.
    open: BTreeMap<ObjectId, Audience>,
    /// By target, after participants have disagreed.
    late: BTreeMap<ObjectId, Late>,
    /// Targets of which this store has heard lately that there will be none, and when, oldest first.
    denials: VecDeque<(ObjectId, Time, Error)>,
    /// Sessions of which this store has heard that they were given up, and that there will be no target, oldest first.
    given_up: VecDeque<PutId>,
}

/// Where participants are: at the nodes of their sources.
#[derive(Debug)]
struct Audience {
    key: CallKey,
    /// The time at which the sources had been looked for.
    since: Time,
    /// The session that is to make the target, if there is one.
    put: Option<PutId>,
    agreement: Agreement,
    members: Vec<Member>,
    /// The sources that are nowhere yet, by their ranks.
    missing: BTreeMap<usize, ObjectId>,
}

/// Participants that are told of a disagreement when their sources appear.
#[derive(Debug)]
struct Late {
    error: Error,
    until: Time,
    /// What is asked of the directory, by ranks.
    asks: BTreeMap<usize, RequestId>,
}

impl Audiences {
    /// The sources have been looked for, and from now on the collective is made.
    pub(super) fn open(&mut self, now: Time, key: CallKey, gathering: &Gathering) {
        let (agreement, members) = (gathering.agreement(), gathering.known_members());
        let missing = gathering.missing_sources();
        let audience = Audience { key, since: now, put: None, agreement, members, missing };
        self.open.insert(gathering.request().target.clone(), audience);
    }

    /// The call is about to end that a collective is for.
    fn close(&mut self, key: CallKey, target: &ObjectId) -> Option<Audience> {
        self.open.get(target).filter(|audience| audience.key == key)?;
        self.open.remove(target)
    }

    /// A session is to make a target from now on, or none.
    pub(super) fn note_session(&mut self, target: &ObjectId, put: Option<PutId>) {
        if let Some(audience) = self.open.get_mut(target) {
            audience.put = put;
        }
    }

    /// A source that was missing is somewhere.
    pub(super) fn note_source(&mut self, target: &ObjectId, rank: usize, locations: &Locations) {
        let Some(audience) = self.open.get_mut(target) else { return };
        if locations.locations.is_empty() || audience.missing.remove(&rank).is_none() {
            return;
        }
        for member in members_at(locations) {
            if !audience.members.contains(&member) && audience.members.len() < MAX_MEMBERS {
                audience.members.push(member);
            }
        }
    }

    /// Returns `true` if this store has heard of that, or has found it out itself. Remembers it.
    fn remember_denial(&mut self, now: Time, target: &ObjectId, error: &Error) -> bool {
        let is_old = |(_, at, _): &(ObjectId, Time, Error)| now.since(*at) > DENIAL_TTL + MIN_ATTEMPT_TIMEOUT;
        while self.denials.front().is_some_and(is_old) {
            self.denials.pop_front();
        }
        if self.denials.iter().any(|(id, _, known)| id == target && known == error) {
            return true;
        }
        if self.denials.len() >= MAX_DENIALS {
            self.denials.pop_front();
        }
        self.denials.push_back((target.clone(), now, error.clone()));
        false
    }

    /// Returns `true` if this store has heard that the session was given up which was to make `put`.
    pub(super) fn is_given_up(&self, put: PutId) -> bool {
        self.given_up.contains(&put)
    }

    /// As [`Audiences::is_given_up`], and remembers it.
    pub(super) fn remember_given_up(&mut self, put: PutId) -> bool {
        if self.is_given_up(put) {
            return true;
        }
        if self.given_up.len() >= MAX_DENIALS {
            self.given_up.pop_front();
        }
        self.given_up.push_back(put);
        false
    }

    /// Returns the time at which the sources of a target had been looked for, if participants wait for it.
    pub(super) fn since(&self, target: &ObjectId) -> Option<Time> {
        self.open.get(target).map(|audience| audience.since)
    }

    /// What the participants agree about of whose collective this is to be the target.
    pub(super) fn agreement(&self, target: &ObjectId) -> Option<Agreement> {
        self.open.get(target).map(|audience| audience.agreement)
    }

    /// What this store has heard last of a target that will not be made.
    pub(super) fn denial(&self, target: &ObjectId) -> Option<Error> {
        let found = self.denials.iter().rev().find(|(id, ..)| id == target);
        found.map(|(_, _, error)| error.clone())
    }

    /// What this store has heard of participants that disagree about a target, and when it is too old to tell newcomers, unless
    /// another attempt has begun here.
    pub(super) fn disagreement(&self, target: &ObjectId) -> Option<(Time, &Error)> {
        let is_told = |(id, _, error): &&(ObjectId, Time, Error)| id == target && is_disagreement(error);
        self.denials.iter().rev().find(is_told).map(|(_, at, error)| (*at + DENIAL_TTL, error))
    }
}

fn is_disagreement(error: &Error) -> bool {
    matches!(error, Error::TypeMismatch { .. })
}

fn members_at(locations: &Locations) -> impl Iterator<Item = Member> {
    let member = |location: &crate::shard::Location| Member {
        node: location.node.clone(),
        address: location.data_address,
    };
    locations.locations.iter().map(member)
}

impl Node {
    /// A call is about to end. If it was for a collective that has failed, those who wait for the target elsewhere are told.
    pub(in super::super) fn end_audience(&mut self, key: CallKey, target: &ObjectId, error: Option<&Error>) {
        if error.is_some() && self.collectives.gatherings.is_for(key, target) {
            self.drop_gathering(target);
        }
        let Some(Audience { put, members, missing, .. }) = self.collectives.audiences.close(key, target)
        else {
            return;
        };
        let Some(error) = error else { return };
        if self.collectives.sessions.is_committed_for(key) {
            // The call ends, but not what it was for.
            return;
        }
        let error = error.clone();
        // The members of the session hear the same on the connections that they have.
        self.session_unwanted(key, &error);
        self.deny(members.into_iter(), (target, put), &error);
        self.denied(target, put, &error);
        if is_disagreement(&error) && !missing.is_empty() {
            self.await_late(target.clone(), error, missing);
        }
    }

    fn deny(
        &mut self,
        members: impl Iterator<Item = Member>,
        (target, put): (&ObjectId, Option<PutId>),
        error: &Error,
    ) {
        for Member { node, address } in members {
            if node != *self.objects.ctx.node() {
                let (target, error) = (target.clone(), error.clone());
                let deny = CollectiveEffect::Deny { node, address, target, put, error };
                self.objects.ctx.push(Effect::Collective(deny));
            }
        }
    }

    /// Has participants whose sources come later told that the others disagree.
    fn await_late(&mut self, target: ObjectId, error: Error, missing: BTreeMap<usize, ObjectId>) {
        if self.collectives.audiences.late.len() >= MAX_DENIALS {
            return;
        }
        let until = self.objects.ctx.now() + DENIAL_TTL;
        let ask = |(rank, id): (usize, ObjectId)| {
            (rank, self.objects.query_source(id, &target, rank, Wants::Locations))
        };
        let asks = missing.into_iter().map(ask).collect();
        self.objects.ctx.schedule(until, Deadline::Reduce(target.clone()));
        self.collectives.audiences.late.insert(target, Late { error, until, asks });
    }

    /// The directory told where a source is. Whether it is one of which only that is of interest.
    pub(super) fn deny_late(&mut self, target: &ObjectId, rank: usize, locations: &Locations) -> bool {
        let Some(late) = self.collectives.audiences.late.get_mut(target) else { return false };
        if locations.locations.is_empty() {
            return true;
        }
        let (error, ask) = (late.error.clone(), late.asks.remove(&rank));
        if late.asks.is_empty() {
            self.end_late(target);
        }
        if let Some(ask) = ask {
            self.objects.withdraw_query(ask);
            self.deny(members_at(locations), (target, None), &error);
        }
        true
    }

    /// Nobody is told any more of a disagreement that is too old.
    pub(super) fn reconsider_late(&mut self, target: &ObjectId) {
        let late = self.collectives.audiences.late.get(target);
        if late.is_some_and(|late| late.until <= self.objects.ctx.now()) {
            self.end_late(target);
        }
    }

    fn end_late(&mut self, target: &ObjectId) {
        let Some(late) = self.collectives.audiences.late.remove(target) else { return };
        self.objects.ctx.unschedule(late.until, Deadline::Reduce(target.clone()));
        for ask in late.asks.into_values() {
            self.objects.withdraw_query(ask);
        }
    }

    /// Another attempt to make a target begins: what was said of earlier ones does not hold for it.
    pub(in super::super) fn forget_denials(&mut self, target: &ObjectId) {
        self.end_late(target);
        self.collectives.audiences.denials.retain(|(denied, ..)| denied != target);
    }

    /// There will be no target: those who have joined for it are told why. Who has joined since this store knew of a disagreement
    /// means another attempt, or is told when that is too old. So does who has joined since it knew of the end of the session.
    pub(super) fn denied(&mut self, target: &ObjectId, put: Option<PutId>, error: &Error) {
        if let Some(put) = put {
            self.give_up_membership(put, error);
            if self.collectives.audiences.remember_given_up(put) {
                return;
            }
        }
        let is_known = self.collectives.audiences.remember_denial(self.objects.ctx.now(), target, error);
        if !is_known || !is_disagreement(error) {
            self.fail_joins(target, error);
        }
    }

    /// This store has found out that a participant here and the coordinator disagree.
    pub(super) fn note_disagreement(&mut self, target: &ObjectId, error: &Error) {
        self.collectives.audiences.remember_denial(self.objects.ctx.now(), target, error);
    }

    /// Answers the participants that wait here for a target. Others who wait for an object of that id go on.
    pub(super) fn fail_joins(&mut self, target: &ObjectId, error: &Error) {
        for key in self.objects.calls.gets(target) {
            if let Some(Call::Get { join: Some(_), .. }) = self.objects.calls.get(key) {
                self.objects.finish(key, Err(error.clone()));
            }
        }
    }

    /// A participant that came after a disagreement was told has waited long enough for another attempt.
    pub(in super::super) fn join_expired(&mut self, key: CallKey) {
        let Some(Call::Get { id, join: Some(_), .. }) = self.objects.calls.get(key) else { return };
        if let Some((_, error)) = self.collectives.audiences.disagreement(id) {
            let error = error.clone();
            self.objects.finish(key, Err(error));
        }
    }
}
