//! What is asked of the directory: each question sits at the first connected shard of its id, and moves when that
//! changes, so that the loss of a shard costs a delay and no call.

use std::collections::BTreeMap;

use super::context::Context;
use crate::id::ObjectId;
use crate::message::CallKey;
use crate::shard::{RequestId, ToShard};

/// A question that waits for its answer.
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) id: ObjectId,
    /// Where it sits; nowhere while no shard is connected.
    shard: Option<usize>,
    pub(crate) purpose: Purpose,
}

/// The reason for which a question was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To fetch the object.
    Fetch,
    /// To delete it for a call.
    Delete(CallKey),
    /// To tell a call where it is; the number is the object's place in the call.
    Locations(CallKey, usize),
    /// To tell the reduce that makes this object where one of its sources is, by its place in the request.
    Source(ObjectId, usize),
    /// To tell the reduce that makes this object whether there is one, or it was deleted, until the directory knows it.
    Target,
}

/// All questions that wait for an answer.
#[derive(Debug, Default)]
pub(crate) struct Asks {
    open: BTreeMap<RequestId, Ask>,
}

impl Asks {
    /// Enters a question. It is to be sent.
    pub(crate) fn enter(&mut self, ctx: &mut Context, id: ObjectId, purpose: Purpose) -> RequestId {
        let request = RequestId(ctx.next_number());
        let shard = ctx.first_shard(&id);
        self.open.insert(request, Ask { id, shard, purpose });
        request
    }

    /// Where a question sits, and what it is; `None` if it is answered, or no shard is connected.
    pub(crate) fn sitting(&self, request: RequestId) -> Option<(usize, &Ask)> {
        let ask = self.open.get(&request)?;
        Some((ask.shard?, ask))
    }

    /// The object that a question is about, if it waits for its answer.
    pub(crate) fn id(&self, request: RequestId) -> Option<&ObjectId> {
        self.open.get(&request).map(|ask| &ask.id)
    }

    /// A shard has answered a question for good.
    pub(crate) fn answered(&mut self, shard: usize, request: RequestId) -> Option<Ask> {
        if self.open.get(&request)?.shard == Some(shard) { self.open.remove(&request) } else { None }
    }

    /// Returns the reason for which a question was asked that sits at this shard, and goes on.
    pub(crate) fn purpose_at(&self, shard: usize, request: RequestId) -> Option<Purpose> {
        let (at, ask) = self.sitting(request)?;
        (at == shard).then(|| ask.purpose.clone())
    }

    /// Returns `true` if a question sits at this shard that is answered again and again.
    pub(crate) fn is_subscription_at(&self, shard: usize, request: RequestId) -> bool {
        let purpose = self.purpose_at(shard, request);
        purpose.is_some_and(|purpose| !matches!(purpose, Purpose::Fetch | Purpose::Delete(_)))
    }

    /// Takes a question back.
    pub(crate) fn withdraw(&mut self, ctx: &mut Context, request: RequestId) {
        if let Some(Ask { shard: Some(shard), purpose, .. }) = self.open.remove(&request) {
            withdraw_at(ctx, shard, request, &purpose);
        }
    }

    /// Moves questions to the shards that are responsible now that the session with `changed` came or went. Answers those that
    /// are to be sent again.
    pub(crate) fn rehome(&mut self, ctx: &mut Context, changed: usize) -> Vec<RequestId> {
        let mut moved = Vec::new();
        for (request, ask) in &mut self.open {
            let responsible = ctx.first_shard(&ask.id);
            if ask.shard == responsible && ask.shard != Some(changed) {
                continue;
            }
            if let Some(shard) = ask.shard.filter(|shard| *shard != changed) {
                withdraw_at(ctx, shard, *request, &ask.purpose);
            }
            ask.shard = responsible;
            moved.push(*request);
        }
        moved
    }
}

fn withdraw_at(ctx: &mut Context, shard: usize, request: RequestId, purpose: &Purpose) {
    match purpose {
        // The deletion itself goes on. If the question comes back to this shard, its number must be free again.
        Purpose::Fetch | Purpose::Delete(_) => ctx.tell_shard(shard, ToShard::Cancel { request }),
        Purpose::Locations(..) | Purpose::Source(..) | Purpose::Target => {
            ctx.tell_shard(shard, ToShard::Unsubscribe { request });
        }
    }
}
