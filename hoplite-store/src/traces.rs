//! The spans of a store: one for each operation of a client, and one for each of its steps.
//!
//! An event may trigger work for several calls, so an effect belongs to the trace of an open call
//! for its object, else to the event's. Queries to shards, pulls, combinations and hops have
//! numbers, by which later events find their trace.

mod collective;

use std::collections::{BTreeMap, BTreeSet};

use hoplite_core::TraceContext;
use hoplite_core::collective::{EnlistmentId, MembershipId};
use hoplite_core::id::{NodeId, ObjectId, PutId};
use hoplite_core::node::{
    CallId, ClientId, CombineId, CombineInput, CombineOutcome, CopyId, Effect, Event, HopId,
    HopReport, HostingId, PullId, Request, Response, ServeId,
};
use hoplite_core::shard::{PullOutcome, RequestId, ToShard, ToStore};
use hoplite_daemon::metrics::label_of;
use hoplite_daemon::{Span, SpanKind, Tracer};

/// Most sources of a reduce whose work belongs to its call's trace.
const MAX_SOURCES: usize = 256;

/// Sees each event before the node handles it, and each effect afterwards.
#[derive(Debug)]
pub(crate) struct Traces {
    tracer: Tracer,
    node: String,
    cause: Option<TraceContext>,
    calls: BTreeMap<(ClientId, CallId), Span>,
    writes: BTreeMap<CopyId, Span>,
    callers: BTreeMap<ObjectId, BTreeMap<(ClientId, CallId), Option<TraceContext>>>,
    objects: BTreeMap<(ClientId, CallId), Vec<ObjectId>>,
    asks: BTreeMap<RequestId, Ask>,
    pulls: BTreeMap<PullId, Work>,
    combines: BTreeMap<CombineId, Work>,
    hops: BTreeMap<HopId, Work>,
    hostings: BTreeMap<HostingId, Span>,
    coordinating: BTreeSet<(ClientId, CallId)>,
    enlistments: BTreeMap<EnlistmentId, Work>,
    /// The put of the target, and the span if recorded.
    memberships: BTreeMap<MembershipId, (PutId, Option<Span>)>,
    serves: BTreeMap<ServeId, Span>,
}

#[derive(Debug)]
struct Work {
    span: Span,
    parent: TraceContext,
}

#[derive(Debug)]
struct Ask {
    work: Work,
    shard: usize,
    is_subscription: bool,
}

impl Traces {
    pub(crate) fn new(tracer: Tracer, node: &NodeId) -> Self {
        Self {
            tracer,
            node: node.to_string(),
            cause: None,
            calls: BTreeMap::new(),
            writes: BTreeMap::new(),
            callers: BTreeMap::new(),
            objects: BTreeMap::new(),
            asks: BTreeMap::new(),
            pulls: BTreeMap::new(),
            combines: BTreeMap::new(),
            hops: BTreeMap::new(),
            hostings: BTreeMap::new(),
            coordinating: BTreeSet::new(),
            enlistments: BTreeMap::new(),
            memberships: BTreeMap::new(),
            serves: BTreeMap::new(),
        }
    }

    /// `given` is the span of the request that caused the event.
    pub(crate) fn event(&mut self, event: &Event, given: Option<TraceContext>) {
        self.cause = match event {
            Event::Request { client, call, request } => {
                self.request((*client, *call), request, given)
            }
            Event::ClientGone { client } => {
                let of_client = (*client, CallId(0))..=(*client, CallId(u64::MAX));
                let open: Vec<_> =
                    self.objects.range(of_client.clone()).map(|(key, _)| *key).collect();
                open.into_iter().for_each(|key| self.forget(key));
                let open: Vec<_> = self.calls.range(of_client).map(|(key, _)| *key).collect();
                open.into_iter().for_each(|key| drop(self.calls.remove(&key)));
                None
            }
            // The node repeats these queries, or queries another shard.
            Event::ShardDown { shard } => {
                self.asks.retain(|_, ask| ask.shard != *shard);
                None
            }
            Event::FromShard { message, .. } => self.answered(message),
            Event::PullEnded { pull, valid_bytes, outcome } => {
                self.pulls.remove(pull).map(|mut pull| {
                    pull.span.set("hoplite.valid_bytes", number(*valid_bytes));
                    pull.end(label_of(outcome), *outcome == PullOutcome::Complete)
                })
            }
            Event::CombineEnded { combine, outcome, .. } => {
                let name = match outcome {
                    CombineOutcome::Complete => "complete",
                    CombineOutcome::Cancelled => "cancelled",
                    CombineOutcome::InputFailed { .. } => "input-failed",
                };
                let combine = self.combines.remove(combine);
                combine.map(|combine| {
                    combine.end(name.to_owned(), *outcome == CombineOutcome::Complete)
                })
            }
            Event::HopReported { hop, report: HopReport::Failed(failure) } => {
                self.hops.remove(hop).map(|hop| hop.end(format!("{failure:?}"), false))
            }
            Event::HopReported { hop, .. } => self.hops.get(hop).map(|hop| hop.parent),
            Event::HopRequested { hosting, hop } => given.and_then(|given| {
                let mut span = self.begin("perform hop", SpanKind::Server, Some(given))?;
                span.set("hoplite.size_bytes", number(hop.size_bytes));
                let context = span.context();
                self.hostings.insert(*hosting, span);
                Some(context)
            }),
            Event::HopReleased { hosting } => {
                self.hostings.remove(hosting);
                None
            }
            Event::Collective(event) => self.collective_event(event, given),
            Event::ServeRequested { serve, id, .. } => given.and_then(|given| {
                let span = self.begin_for("serve", SpanKind::Server, Some(given), id)?;
                let context = span.context();
                self.serves.insert(*serve, span);
                Some(context)
            }),
            Event::ServeEnded { serve } => {
                self.serves.remove(serve);
                None
            }
            _ => None,
        };
    }

    pub(crate) fn effect(&mut self, effect: &Effect) -> Option<TraceContext> {
        match effect {
            Effect::Reply { client, call, response } => {
                self.forget((*client, *call));
                let mut span = self.calls.remove(&(*client, *call))?;
                match response {
                    Ok(Response::Created(view)) => drop(self.writes.insert(view.copy, span)),
                    Ok(Response::Object(view) | Response::Contents { view, .. }) => {
                        span.set("hoplite.size_bytes", number(view.size_bytes))
                    }
                    Ok(_) => {}
                    Err(error) => span.fail(error.to_string()),
                }
                None
            }
            Effect::CopyClosed { copy } => {
                self.writes.remove(copy);
                None
            }
            Effect::ToShard { shard, message, .. } => self.tells(*shard, message),
            Effect::StartPull { pull, id, sender, size_bytes, offset_bytes, .. } => {
                let parent = self.parent([id])?;
                let mut span = self.begin_for("pull", SpanKind::Client, Some(parent), id)?;
                span.set("hoplite.sender", sender.to_string());
                span.set("hoplite.size_bytes", number(*size_bytes));
                span.set("hoplite.offset_bytes", number(*offset_bytes));
                Some(enter(&mut self.pulls, *pull, Work { span, parent }))
            }
            Effect::StartCombine { combine, inputs, .. } => {
                let ids = inputs.iter().filter_map(|input| match input {
                    CombineInput::Remote(input) => Some(&input.id),
                    CombineInput::Local { .. } => None,
                });
                let parent = self.parent(ids)?;
                let mut span = self.begin("combine", SpanKind::Internal, Some(parent))?;
                span.set("hoplite.inputs", number(inputs.len() as u64));
                Some(enter(&mut self.combines, *combine, Work { span, parent }))
            }
            Effect::StartHop { hop, node, spec, .. } => {
                let parent = self.parent(spec.inputs.iter().map(|input| &input.id))?;
                let mut span = self.begin("hop", SpanKind::Client, Some(parent))?;
                span.set("hoplite.host", node.to_string());
                Some(enter(&mut self.hops, *hop, Work { span, parent }))
            }
            Effect::EndHop { hop } => {
                self.hops.remove(hop);
                None
            }
            Effect::Collective(effect) => self.collective_effect(effect),
            Effect::HopReport { hosting, report: HopReport::Failed(failure) } => {
                if let Some(span) = self.hostings.get_mut(hosting) {
                    span.fail(format!("{failure:?}"));
                }
                None
            }
            _ => None,
        }
    }

    fn request(
        &mut self,
        key: (ClientId, CallId),
        request: &Request,
        given: Option<TraceContext>,
    ) -> Option<TraceContext> {
        if let Request::SealUnconfirmed { copy } = request {
            return self.writes.remove(copy).map(|span| span.context());
        }
        let span = self.asked(key, request, given);
        let context = span.as_ref().map(Span::context);
        let sources: &[ObjectId] = match request {
            Request::Reduce(reduce) | Request::Collective(_, reduce) => &reduce.sources,
            _ => &[],
        };
        let id = match request {
            Request::Get { id, .. } | Request::Locate { id, .. } => Some(id),
            Request::Join { target, .. } => Some(target),
            Request::Reduce(reduce) | Request::Collective(_, reduce) => Some(&reduce.target),
            _ => None,
        };
        if let Some(id) = id {
            self.forget(key);
            let ids: Vec<ObjectId> =
                [id].into_iter().chain(sources.iter().take(MAX_SOURCES)).cloned().collect();
            for id in &ids {
                self.callers.entry(id.clone()).or_default().insert(key, context);
            }
            self.objects.insert(key, ids);
            if matches!(request, Request::Collective(..)) {
                self.coordinating.insert(key);
            }
        }
        if let Some(span) = span {
            self.calls.insert(key, span);
        }
        context
    }

    fn forget(&mut self, key: (ClientId, CallId)) {
        self.coordinating.remove(&key);
        for id in self.objects.remove(&key).into_iter().flatten() {
            if let Some(callers) = self.callers.get_mut(&id) {
                callers.remove(&key);
                if callers.is_empty() {
                    self.callers.remove(&id);
                }
            }
        }
    }

    /// Span of an open call for one of `ids`, else the present event's.
    fn parent<'a>(&self, ids: impl IntoIterator<Item = &'a ObjectId>) -> Option<TraceContext> {
        let callers = ids.into_iter().find_map(|id| self.callers.get(id));
        callers.map_or(self.cause, |callers| callers.values().flatten().next().copied())
    }

    fn asked(
        &mut self,
        key: (ClientId, CallId),
        request: &Request,
        given: Option<TraceContext>,
    ) -> Option<Span> {
        match request {
            Request::Put { id, .. } | Request::Create { id, .. } => self.call("put", id, given),
            Request::Get { id, .. } => self.call("get", id, given),
            Request::Join { target, .. } => self.call("join", target, given),
            Request::Reduce(reduce) => self.call("reduce", &reduce.target, given),
            Request::Collective(_, reduce) => self.call("collective", &reduce.target, given),
            Request::Locate { id, .. } => self.call("locate", id, given),
            Request::Delete { .. } => self.begin("delete", SpanKind::Server, given),
            Request::Batch(_) => self.begin("batch", SpanKind::Server, given),
            Request::Wait { .. } => self.begin("wait", SpanKind::Server, given),
            Request::Seal { copy, .. } => self.writes.remove(copy),
            Request::Cancel { call } | Request::Unsubscribe { call } => {
                self.forget((key.0, *call));
                if let Some(mut span) = self.calls.remove(&(key.0, *call)) {
                    span.fail("cancelled".to_owned());
                }
                None
            }
            Request::Abort { copy } => {
                if let Some(mut span) = self.writes.remove(copy) {
                    span.fail("aborted".to_owned());
                }
                None
            }
            _ => None,
        }
    }

    fn call(&self, name: &'static str, id: &ObjectId, given: Option<TraceContext>) -> Option<Span> {
        self.begin_for(name, SpanKind::Server, given, id)
    }

    /// A repeated query keeps its span.
    fn tells(&mut self, shard: usize, message: &ToShard) -> Option<TraceContext> {
        let (id, request) = match message {
            ToShard::Query(query) => (&query.id, query.request),
            ToShard::Subscribe { request, id, .. } | ToShard::Delete { request, id, .. } => {
                (id, *request)
            }
            ToShard::Cancel { request } | ToShard::Unsubscribe { request } => {
                return self.asks.remove(request).map(|ask| ask.work.parent);
            }
            _ => return self.cause,
        };
        if let Some(ask) = self.asks.get_mut(&request) {
            ask.shard = shard;
            return Some(ask.work.span.context());
        }
        let parent = self.parent([id])?;
        let span = self.begin_for("ask directory", SpanKind::Client, Some(parent), id)?;
        let context = span.context();
        let is_subscription = matches!(message, ToShard::Subscribe { .. });
        self.asks.insert(request, Ask { work: Work { span, parent }, shard, is_subscription });
        Some(context)
    }

    fn answered(&mut self, message: &ToStore) -> Option<TraceContext> {
        let (request, failure) = match message {
            ToStore::Granted(grant) => (grant.request, None),
            ToStore::Inline { request, .. }
            | ToStore::DeleteDone { request, .. }
            | ToStore::Locations { request, .. } => (*request, None),
            ToStore::Failed { request, error } => (*request, Some(error)),
            _ => return None,
        };
        let ask = self.asks.get(&request)?;
        if ask.is_subscription {
            return Some(ask.work.parent);
        }
        let Work { mut span, parent } = self.asks.remove(&request)?.work;
        if let Some(error) = failure {
            span.fail(error.to_string());
        }
        if let ToStore::Granted(grant) = message {
            span.set("hoplite.sender", grant.sender.to_string());
        }
        Some(parent)
    }

    fn begin(
        &self,
        name: &'static str,
        kind: SpanKind,
        parent: Option<TraceContext>,
    ) -> Option<Span> {
        let mut span = self.tracer.begin(name, kind, parent)?;
        span.set("hoplite.node", self.node.clone());
        Some(span)
    }

    fn begin_for(
        &self,
        name: &'static str,
        kind: SpanKind,
        parent: Option<TraceContext>,
        id: &ObjectId,
    ) -> Option<Span> {
        let mut span = self.begin(name, kind, parent)?;
        span.set("hoplite.object", id.to_string());
        Some(span)
    }
}

impl Work {
    fn end(mut self, outcome: String, is_success: bool) -> TraceContext {
        if !is_success {
            self.span.fail(outcome.clone());
        }
        self.span.set("hoplite.outcome", outcome);
        self.parent
    }
}

fn enter<K: Ord>(works: &mut BTreeMap<K, Work>, key: K, work: Work) -> TraceContext {
    let context = work.span.context();
    works.insert(key, work);
    context
}

fn number(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
