//! Queries to the directory. Each waits at the first connected shard of its id, and moves when
//! another becomes the first: the loss of a shard delays calls, but fails none.

use std::collections::BTreeMap;

use super::context::Context;
use super::deletion::DeleteStep;
use crate::id::ObjectId;
use crate::message::CallKey;
use crate::shard::{RequestId, ToShard};

#[derive(Debug)]
pub(crate) struct OpenQuery {
    pub(crate) id: ObjectId,
    /// `None` while no shard of the id is connected.
    shard: Option<usize>,
    pub(crate) purpose: Purpose,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Purpose {
    Fetch,
    Delete(CallKey, DeleteStep),
    /// The call, and the object's index.
    Locations(CallKey, usize),
    /// A reduce's target, and the source's index.
    Source(ObjectId, usize),
    /// The first copy of a reduce's target, or its delete.
    Target,
}

impl Purpose {
    /// Returns `true` if a connected shard may have begun this delete. A restarted one first holds
    /// deletes of unknown ids.
    fn is_performed_at(&self, ctx: &Context, shard: usize) -> bool {
        let Self::Delete(_, step) = self else { return false };
        ctx.is_up(shard)
            && (ctx.sessions.is_trusted(shard) || step.has_found() || step.is_confirmation())
    }

    fn shard(&self, ctx: &Context, id: &ObjectId) -> Option<usize> {
        if matches!(self, Self::Delete(..)) { ctx.first_shard(id) } else { ctx.reading_shard(id) }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Queries {
    open: BTreeMap<RequestId, OpenQuery>,
}

impl Queries {
    pub(crate) fn enter(&mut self, ctx: &mut Context, id: ObjectId, purpose: Purpose) -> RequestId {
        let request = RequestId(ctx.next_number());
        let shard = purpose.shard(ctx, &id);
        self.open.insert(request, OpenQuery { id, shard, purpose });
        request
    }

    pub(crate) fn sitting(&self, request: RequestId) -> Option<(usize, &OpenQuery)> {
        let query = self.open.get(&request)?;
        Some((query.shard?, query))
    }

    pub(crate) fn id(&self, request: RequestId) -> Option<&ObjectId> {
        self.open.get(&request).map(|query| &query.id)
    }

    pub(crate) fn answered(&mut self, shard: usize, request: RequestId) -> Option<OpenQuery> {
        if self.open.get(&request)?.shard == Some(shard) {
            self.open.remove(&request)
        } else {
            None
        }
    }

    pub(crate) fn purpose_at(&self, shard: usize, request: RequestId) -> Option<Purpose> {
        let (at, query) = self.sitting(request)?;
        (at == shard).then(|| query.purpose.clone())
    }

    pub(crate) fn is_subscription_at(&self, shard: usize, request: RequestId) -> bool {
        let purpose = self.purpose_at(shard, request);
        purpose.is_some_and(|purpose| !matches!(purpose, Purpose::Fetch | Purpose::Delete(..)))
    }

    pub(crate) fn confirm_at(
        &mut self,
        shard: usize,
        request: RequestId,
        key: CallKey,
        step: DeleteStep,
    ) {
        if let Some(query) = self.open.get_mut(&request) {
            (query.shard, query.purpose) = (Some(shard), Purpose::Delete(key, step));
        }
    }

    pub(crate) fn withdraw(&mut self, ctx: &mut Context, request: RequestId) {
        if let Some(OpenQuery { shard: Some(shard), purpose, .. }) = self.open.remove(&request) {
            withdraw_at(ctx, shard, request, &purpose);
        }
    }

    /// Moves queries to the responsible shards, and returns those to send again. `changed` is a
    /// shard whose session began or ended.
    pub(crate) fn rehome(&mut self, ctx: &mut Context, changed: Option<usize>) -> Vec<RequestId> {
        let mut moved = Vec::new();
        for (request, query) in &mut self.open {
            let responsible = query.purpose.shard(ctx, &query.id);
            let is_changed = query.shard.is_some() && query.shard == changed;
            // A delete stays: if the shard has removed the object, no other knows that it existed.
            let is_deleting =
                query.shard.is_some_and(|shard| query.purpose.is_performed_at(ctx, shard));
            if (query.shard == responsible || is_deleting) && !is_changed {
                continue;
            }
            if let Some(shard) = query.shard.filter(|_| !is_changed) {
                withdraw_at(ctx, shard, *request, &query.purpose);
            }
            if let Purpose::Delete(_, step) = &mut query.purpose {
                step.begin_again();
            }
            query.shard = responsible;
            moved.push(*request);
        }
        moved
    }
}

fn withdraw_at(ctx: &mut Context, shard: usize, request: RequestId, purpose: &Purpose) {
    match purpose {
        // The shard still completes a delete. It must forget the query's number, because the query
        // may come back.
        Purpose::Fetch | Purpose::Delete(..) => ctx.tell_shard(shard, ToShard::Cancel { request }),
        Purpose::Locations(..) | Purpose::Source(..) | Purpose::Target => {
            ctx.tell_shard(shard, ToShard::Unsubscribe { request });
        }
    }
}
