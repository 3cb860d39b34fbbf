//! Searches: a coordinator looks for the sources of a collective, until an attempt can begin or the general path takes over.

use std::collections::BTreeMap;

use super::action::{Action, Found, Timer, World};
use super::message::AttemptId;
use super::records::ReduceRecord;
use super::sources::{Outlook, Sources};
use crate::id::ObjectId;
use crate::plan::collective::Collective;
use crate::plan::link::LinkEstimate;
use crate::shard::{Locations, RequestId};
use crate::time::Time;
use crate::vocabulary::local::CallKey;
use crate::vocabulary::reduce::Reduce;

/// Most late sources that are named.
const MAX_NAMED: usize = 4;

/// Rank 0's call.
#[derive(Debug)]
pub(super) struct CoordinatedCall {
    /// `None` once the call has ended, or was answered.
    pub(super) key: Option<CallKey>,
    pub(super) started: Time,
    pub(super) kind: Collective,
    pub(super) request: Reduce,
    /// The query whether the target exists, until this store has decided that it does.
    pub(super) existence: Option<RequestId>,
}

/// A collective whose sources are being looked for.
#[derive(Debug)]
pub(super) struct Search {
    pub(super) key: CallKey,
    pub(super) started: Time,
    pub(super) attempt: AttemptId,
    pub(super) sources: Sources,
    asks: Vec<RequestId>,
    /// The query whether the target exists.
    existence: RequestId,
    /// The directory has answered that the target does not exist.
    is_new: bool,
    due: Option<Time>,
}

/// The searches of a store, by target.
#[derive(Debug, Default)]
pub(super) struct Searches(BTreeMap<ObjectId, Search>);

impl Search {
    /// An attempt begins, or participants get their parts by themselves.
    pub(super) fn into_call(self, world: &mut World<'_>) -> CoordinatedCall {
        let Self { key, started, sources, asks, existence, .. } = self;
        world.withdraw(asks);
        let kind = sources.kind();
        let (request, _) = sources.into_found();
        CoordinatedCall { key: Some(key), started, kind, request, existence: Some(existence) }
    }

    /// A reduce takes over the queries and the answers.
    pub(super) fn into_reduce(self, world: &mut World<'_>, reason: &str) {
        let Self { key, started, sources, asks, existence, .. } = self;
        let (mut request, locations) = sources.into_found();
        request.timeout = request.timeout.saturating_sub(world.now.since(started));
        let found = Some(Found { existence, asks, locations });
        world.push(Action::Reduce { key, request, reason: reason.to_owned(), found });
    }

    /// Describes the search for people.
    pub(super) fn record(&self, link: LinkEstimate, now: Time) -> ReduceRecord {
        let request = self.sources.request();
        let missing = self.sources.missing_sources();
        let named: Vec<String> = missing.values().take(MAX_NAMED).map(ToString::to_string).collect();
        let more = if missing.len() > named.len() { " and others" } else { "" };
        let plan = if missing.is_empty() {
            "no plan yet: all sources are there".to_owned()
        } else {
            format!("no plan yet: waits for the sources {}{more}", named.join(" "))
        };
        let there = request.sources.len() - missing.len();
        let known = ReduceRecord::of_collective(request, self.started, link, now, 0, plan);
        ReduceRecord { reduced: (there, request.sources.len()), is_running: true, ..known }
    }

    /// Ends all queries.
    pub(super) fn withdraw(self, world: &mut World<'_>) {
        world.withdraw(self.asks.into_iter().chain([self.existence]));
    }
}

impl Searches {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn get(&self, target: &ObjectId) -> Option<&Search> {
        self.0.get(target)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Search> {
        self.0.values()
    }

    /// Begins a search. The directory was asked whether the target exists, and where each source is.
    pub(super) fn begin(
        &mut self,
        world: &mut World<'_>,
        key: CallKey,
        sources: Sources,
        existence: RequestId,
        asks: Vec<RequestId>,
    ) {
        let target = sources.request().target.clone();
        let (started, attempt) = (world.now, world.next_attempt());
        let search = Search { key, started, attempt, sources, asks, existence, is_new: false, due: None };
        self.0.insert(target, search);
    }

    /// The directory told what it knows about a source. Gives the locations back if there is no such search.
    pub(super) fn located(
        &mut self,
        now: Time,
        target: &ObjectId,
        index: usize,
        locations: Locations,
    ) -> Option<Locations> {
        match self.0.get_mut(target) {
            Some(search) => search.sources.located(now, index, locations),
            None => return Some(locations),
        }
        None
    }

    /// The directory told that the target does not exist.
    pub(super) fn target_is_new(&mut self, target: &ObjectId) {
        if let Some(search) = self.0.get_mut(target) {
            search.is_new = true;
        }
    }

    /// Ends a search if an attempt can begin, or the general path must: the outlook says so.
    pub(super) fn reconsider(
        &mut self,
        world: &mut World<'_>,
        target: &ObjectId,
    ) -> Option<(Search, Outlook)> {
        let search = self.0.get_mut(target)?;
        match search.sources.outlook(world.now, world.link, world.node) {
            Outlook::Waiting(due) => {
                if let Some(time) = due.filter(|_| search.due != due) {
                    search.due = due;
                    world.schedule(time, Timer::Search(target.clone()));
                }
                None
            }
            // The directory was asked about the target at the same time as about the sources.
            Outlook::Ready(_) if !search.is_new => None,
            outlook => Some((self.end(world, target)?, outlook)),
        }
    }

    /// Forgets a search.
    pub(super) fn end(&mut self, world: &mut World<'_>, target: &ObjectId) -> Option<Search> {
        let search = self.0.remove(target)?;
        if let Some(due) = search.due {
            world.unschedule(due, Timer::Search(target.clone()));
        }
        Some(search)
    }
}
