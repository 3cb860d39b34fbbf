//! Spans of a shard: one for each message in a trace, until the answer.

use std::collections::BTreeMap;

use hoplite_core::TraceContext;
use hoplite_core::id::{NodeId, ObjectId};
use hoplite_core::shard::{RequestId, ToShard, ToStore};
use hoplite_daemon::metrics::label_of;
use hoplite_daemon::{Span, SpanKind, Tracer};

#[derive(Debug)]
pub(crate) struct Traces {
    tracer: Tracer,
    open: BTreeMap<(NodeId, RequestId), Span>,
}

impl Traces {
    pub(crate) fn new(tracer: Tracer) -> Self {
        Self { tracer, open: BTreeMap::new() }
    }

    /// Returns the message's new span if no answer will come: the caller drops the span once the
    /// shard has handled the message.
    pub(crate) fn received(
        &mut self,
        node: &NodeId,
        message: &ToShard,
        trace: Option<TraceContext>,
    ) -> Option<Span> {
        if let ToShard::Cancel { request } | ToShard::Unsubscribe { request } = message {
            self.open.remove(&(node.clone(), *request));
        }
        // A shard continues traces but begins none.
        let mut span = self.tracer.begin(message.kind(), SpanKind::Server, Some(trace?))?;
        span.set("hoplite.caller", node.to_string());
        let (id, request) = object_and_request_of(message);
        if let Some(id) = id {
            span.set("hoplite.object", id.to_string());
        }
        match request {
            Some(request) => {
                self.open.insert((node.clone(), request), span);
                None
            }
            None => Some(span),
        }
    }

    pub(crate) fn answers(&mut self, node: &NodeId, message: &ToStore) {
        if self.open.is_empty() {
            return;
        }
        let (request, answer) = match message {
            ToStore::Granted(grant) => (grant.request, grant.sender.to_string()),
            ToStore::Inline { request, .. } => (*request, "the bytes".to_owned()),
            ToStore::Failed { request, error } => (*request, error.to_string()),
            ToStore::DeleteDone { request, .. } => (*request, "deleted".to_owned()),
            ToStore::Locations { request, locations } => {
                (*request, format!("{} locations", locations.locations.len()))
            }
            _ => return,
        };
        let Some(mut span) = self.open.remove(&(node.clone(), request)) else { return };
        match message {
            ToStore::Granted(grant) => {
                span.set("hoplite.sender", answer);
                span.set("hoplite.reason", label_of(grant.reason));
            }
            ToStore::Failed { .. } => span.fail(answer),
            _ => span.set("hoplite.answer", answer),
        }
    }

    pub(crate) fn forget_node(&mut self, node: &NodeId) {
        self.open.retain(|(requester, _), _| requester != node);
    }
}

fn object_and_request_of(message: &ToShard) -> (Option<&ObjectId>, Option<RequestId>) {
    match message {
        ToShard::Query(query) => (Some(&query.id), Some(query.request)),
        ToShard::Delete { request, id, .. } | ToShard::Subscribe { request, id, .. } => {
            (Some(id), Some(*request))
        }
        ToShard::Publish(publish) => (Some(&publish.id), None),
        ToShard::Lead(lead) => (Some(&lead.id), None),
        ToShard::Unpublish { id, .. }
        | ToShard::Forget { id, .. }
        | ToShard::NotReplicated { id, .. } => (Some(id), None),
        ToShard::Cancel { .. }
        | ToShard::ReturnSlot { .. }
        | ToShard::Unsubscribe { .. }
        | ToShard::Placed(_)
        | ToShard::SlowLinks { .. }
        | ToShard::Drain { .. }
        | ToShard::Shards(_) => (None, None),
    }
}
