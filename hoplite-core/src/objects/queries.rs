//! Queries to the directory. Each query waits at the first connected shard of its id, and moves
//! when another shard becomes the first. So the loss of a shard costs a delay and no call.

use std::collections::BTreeMap;

use super::context::Context;
use crate::id::ObjectId;
use crate::message::CallKey;
use crate::shard::{RequestId, ToShard};

/// A query that waits for its answer.
#[derive(Debug)]
pub(crate) struct OpenQuery {
    pub(crate) id: ObjectId,
    /// The shard at which it waits; `None` while no shard is connected.
    shard: Option<usize>,
    pub(crate) purpose: Purpose,
}

/// The purpose of a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To fetch the object.
    Fetch,
    /// To delete it for a call.
    Delete(CallKey),
    /// To tell a call where it is; the number is the object's place in the call.
    Locations(CallKey, usize),
    /// To tell the reduce or the collective that makes this object where one of its sources is, by its place in the request.
    Source(ObjectId, usize),
    /// To tell the reduce or the collective that makes this object that it exists or was deleted, until the directory knows it.
    Target,
}

/// All queries that wait for an answer.
#[derive(Debug, Default)]
pub(crate) struct Queries {
    open: BTreeMap<RequestId, OpenQuery>,
}

impl Queries {
    /// Enters a query, which the caller sends.
    pub(crate) fn enter(&mut self, ctx: &mut Context, id: ObjectId, purpose: Purpose) -> RequestId {
        let request = RequestId(ctx.next_number());
        let shard = ctx.first_shard(&id);
        self.open.insert(request, OpenQuery { id, shard, purpose });
        request
    }

    /// The shard at which a query waits, and the query; `None` if it is answered, or no shard is connected.
    pub(crate) fn sitting(&self, request: RequestId) -> Option<(usize, &OpenQuery)> {
        let query = self.open.get(&request)?;
        Some((query.shard?, query))
    }

    /// The object of a query that waits for its answer.
    pub(crate) fn id(&self, request: RequestId) -> Option<&ObjectId> {
        self.open.get(&request).map(|query| &query.id)
    }

    /// Ends a query that a shard has answered for good.
    pub(crate) fn answered(&mut self, shard: usize, request: RequestId) -> Option<OpenQuery> {
        if self.open.get(&request)?.shard == Some(shard) { self.open.remove(&request) } else { None }
    }

    /// Returns the purpose of a query that waits at this shard.
    pub(crate) fn purpose_at(&self, shard: usize, request: RequestId) -> Option<Purpose> {
        let (at, query) = self.sitting(request)?;
        (at == shard).then(|| query.purpose.clone())
    }

    /// Returns `true` if a query waits at this shard that the shard answers at every change.
    pub(crate) fn is_subscription_at(&self, shard: usize, request: RequestId) -> bool {
        let purpose = self.purpose_at(shard, request);
        purpose.is_some_and(|purpose| !matches!(purpose, Purpose::Fetch | Purpose::Delete(_)))
    }

    /// Withdraws a query.
    pub(crate) fn withdraw(&mut self, ctx: &mut Context, request: RequestId) {
        if let Some(OpenQuery { shard: Some(shard), purpose, .. }) = self.open.remove(&request) {
            withdraw_at(ctx, shard, request, &purpose);
        }
    }

    /// Moves queries to the shards that are responsible now that the session with `changed` came or
    /// went. Returns the queries that the caller sends again.
    pub(crate) fn rehome(&mut self, ctx: &mut Context, changed: usize) -> Vec<RequestId> {
        let mut moved = Vec::new();
        for (request, query) in &mut self.open {
            let responsible = ctx.first_shard(&query.id);
            if query.shard == responsible && query.shard != Some(changed) {
                continue;
            }
            if let Some(shard) = query.shard.filter(|shard| *shard != changed) {
                withdraw_at(ctx, shard, *request, &query.purpose);
            }
            query.shard = responsible;
            moved.push(*request);
        }
        moved
    }
}

fn withdraw_at(ctx: &mut Context, shard: usize, request: RequestId, purpose: &Purpose) {
    match purpose {
        // The deletion itself goes on. If the query comes back to this shard, its number must be free again.
        Purpose::Fetch | Purpose::Delete(_) => ctx.tell_shard(shard, ToShard::Cancel { request }),
        Purpose::Locations(..) | Purpose::Source(..) | Purpose::Target => {
            ctx.tell_shard(shard, ToShard::Unsubscribe { request });
        }
    }
}
