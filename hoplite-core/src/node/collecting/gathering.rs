//! Collectives whose sources are being looked for, until a session can begin or there will be none.

use std::collections::BTreeMap;

use super::super::{Node, Reduce, ReduceRecord};
use super::{CoordinatedCall, record};
use crate::collective::{Agreement, Gathering, Outlook};
use crate::id::ObjectId;
use crate::message::CallKey;
use crate::objects::context::Context;
use crate::objects::notice::Deadline;
use crate::objects::queries::Purpose;
use crate::plan::collective::Collective;
use crate::reduction::{Fallback, what_to_query_for};
use crate::shard::{Locations, RequestId, Wants};
use crate::time::Time;

/// Most late sources that are named.
const MAX_NAMED: usize = 4;

/// The collectives whose sources are being looked for, by target.
#[derive(Debug, Default)]
pub(super) struct Gatherings(BTreeMap<ObjectId, Gathered>);

/// A collective whose sources are being looked for.
#[derive(Debug)]
pub(super) struct Gathered {
    key: CallKey,
    started: Time,
    gathering: Gathering,
    asks: Vec<RequestId>,
    /// The question whether there is a target, and whether it was answered: with no.
    existence: RequestId,
    is_new: bool,
    due: Option<Time>,
}

impl Gatherings {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn contains(&self, target: &ObjectId) -> bool {
        self.0.contains_key(target)
    }

    pub(super) fn get(&self, target: &ObjectId) -> Option<&Gathered> {
        self.0.get(target)
    }

    /// The sources of a target that are nowhere yet, by their ranks.
    pub(super) fn missing_sources(&self, target: &ObjectId) -> Option<BTreeMap<usize, ObjectId>> {
        self.0.get(target).map(|gathered| gathered.gathering.missing_sources())
    }

    /// Returns `true` if `target` is looked for by this call.
    pub(super) fn is_for(&self, key: CallKey, target: &ObjectId) -> bool {
        self.0.get(target).is_some_and(|gathered| gathered.key == key)
    }

    /// What was asked for, since when, among how many members by which plan: none yet.
    pub(super) fn under_way(&self) -> impl Iterator<Item = (&Reduce, Time, usize, &str)> {
        self.0.values().map(|one| (one.gathering.request(), one.started, 0, ""))
    }
}

impl Gathered {
    /// How far it is.
    pub(super) fn record(&self, ctx: &Context, now: Time) -> ReduceRecord {
        let request = self.gathering.request();
        let missing = self.gathering.missing_sources();
        let named: Vec<String> = missing.values().take(MAX_NAMED).map(ToString::to_string).collect();
        let more = if missing.len() > named.len() { " and others" } else { "" };
        let plan = if missing.is_empty() {
            "no plan yet: all sources are there".to_owned()
        } else {
            format!("no plan yet: waits for the sources {}{more}", named.join(" "))
        };
        let there = request.sources.len() - missing.len();
        let reduced = (there, request.sources.len());
        let known = record(ctx, request, self.started, 0, plan);
        ReduceRecord { reduced, elapsed: now.since(self.started), is_running: true, ..known }
    }

    fn into_call(self) -> CoordinatedCall {
        let Self { key, started, gathering, existence, .. } = self;
        let (kind, request) = (gathering.kind(), gathering.into_request());
        CoordinatedCall { key: Some(key), started, kind, request, existence: Some(existence) }
    }
}

impl Node {
    /// Coordinates a collective.
    pub(in super::super) fn coordinate(&mut self, key: CallKey, kind: Collective, request: Reduce) {
        if let Err(error) = self.check_reduce(key.client, &request) {
            return self.objects.ctx.reply(key, Err(error));
        }
        self.enter_reduce(key, &request);
        let target = request.target.clone();
        let existence = self.objects.query(target.clone(), Purpose::Target);
        let wants = match kind {
            Collective::Allreduce => what_to_query_for(&request),
            // The stores exchange the parts of others, or nobody coordinates.
            _ => Wants::Locations,
        };
        let ask =
            |(index, id): (usize, &ObjectId)| self.objects.query_source(id.clone(), &target, index, wants);
        let asks: Vec<RequestId> = request.sources.iter().enumerate().map(ask).collect();
        let (started, gathering) = (self.objects.ctx.now(), Gathering::new(kind, request));
        let gathered = Gathered { key, started, gathering, asks, existence, is_new: false, due: None };
        self.collectives.gatherings.0.insert(target.clone(), gathered);
        self.reconsider_gathering(&target);
    }

    /// The directory told what it knows about a source of a collective that looks for them.
    pub(super) fn gathered_source_located(&mut self, target: &ObjectId, index: usize, locations: Locations) {
        if let Some(gathered) = self.collectives.gatherings.0.get_mut(target) {
            gathered.gathering.located(self.objects.ctx.now(), index, locations);
            self.reconsider_gathering(target);
        }
    }

    /// The directory told that there is no target yet.
    pub(super) fn gathered_target_is_new(&mut self, target: &ObjectId) {
        if let Some(gathered) = self.collectives.gatherings.0.get_mut(target) {
            gathered.is_new = true;
            self.reconsider_gathering(target);
        }
    }

    /// Looks whether a session can begin, or there will be none.
    pub(in super::super) fn reconsider_gathering(&mut self, target: &ObjectId) {
        self.reconsider_late(target);
        let Some(gathered) = self.collectives.gatherings.0.get_mut(target) else { return };
        match gathered.gathering.outlook(
            self.objects.ctx.now(),
            self.objects.ctx.link(),
            self.objects.ctx.node(),
        ) {
            Outlook::Waiting(due) => {
                if due.is_some() && gathered.due != due {
                    gathered.due = due;
                    self.objects.ctx.schedule(due.unwrap_or(Time::NEVER), Deadline::Reduce(target.clone()));
                }
            }
            // Whether there is a target already was asked at the same time, so this is no wait in general.
            Outlook::Ready(_) if !gathered.is_new => {}
            Outlook::Ready(roster) => {
                if let Some(gathered) = self.end_gathering(target) {
                    self.withdraw_queries(&gathered.asks);
                    self.begin_session(gathered.into_call(), roster);
                }
            }
            Outlook::General(reason) => {
                if let Some(gathered) = self.end_gathering(target) {
                    self.do_without_session(gathered, reason);
                }
            }
        }
    }

    /// There will be no session. A reduce takes over what was asked of the directory, and what that has said.
    fn do_without_session(&mut self, gathered: Gathered, reason: &str) {
        if gathered.gathering.kind().is_of_parts() {
            self.withdraw_queries(&gathered.asks);
            return self.fall_back(gathered.into_call(), reason);
        }
        let Gathered { key, started, gathering, asks, existence, .. } = gathered;
        let kind = gathering.kind();
        let (mut request, news) = gathering.into_news();
        request.timeout = request.timeout.saturating_sub(self.objects.ctx.now().since(started));
        let target = request.target.clone();
        let fallback = Fallback { agreement: Agreement::of(kind, &request), reason: reason.to_owned() };
        self.reductions.begin(&mut self.objects, (key, request, Some(fallback)), (existence, asks));
        for (index, news) in news.into_iter().enumerate() {
            if let Some(news) = news {
                self.source_located(&target, index, news);
            }
        }
    }

    /// There will be neither a session nor a reduce. Answers with the call that waits.
    pub(super) fn drop_gathering(&mut self, target: &ObjectId) -> Option<CallKey> {
        let gathered = self.end_gathering(target)?;
        self.withdraw_queries(&gathered.asks);
        self.objects.withdraw_query(gathered.existence);
        Some(gathered.key)
    }

    fn end_gathering(&mut self, target: &ObjectId) -> Option<Gathered> {
        let gathered = self.collectives.gatherings.0.remove(target)?;
        self.collectives.audiences.open(self.objects.ctx.now(), gathered.key, &gathered.gathering);
        if let Some(due) = gathered.due {
            self.objects.ctx.unschedule(due, Deadline::Reduce(target.clone()));
        }
        Some(gathered)
    }

    fn withdraw_queries(&mut self, asks: &[RequestId]) {
        for ask in asks {
            self.objects.withdraw_query(*ask);
        }
    }
}
