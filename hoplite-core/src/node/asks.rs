//! What is asked of the directory: each question sits at the first connected shard of its id, and moves when that
//! changes, so that the loss of a shard costs a delay and no call.

use std::time::Duration;

use super::calls::CallKey;
use super::{Effect, Node};
use crate::error::Error;
use crate::id::{ObjectId, PutId};
use crate::metadata::Metadata;
use crate::shard::{PullOutcome, Query, RequestId, ToShard, ToStore, UnpublishReason};

/// How long a question may wait that is asked only for clients who follow a copy that has lost its sender. It is asked
/// again when that has passed.
const FOLLOWERS_PATIENCE: Duration = Duration::from_secs(10);

/// A question that waits for its answer.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) id: ObjectId,
    /// Where it sits; nowhere while no shard is connected.
    pub(super) shard: Option<usize>,
    pub(super) purpose: Purpose,
}

/// Why a question was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To fetch the object.
    Fetch,
    /// To delete it for a call.
    Delete(CallKey),
    /// To tell a call where it is; the number is the object's place in the call.
    Locations(CallKey, usize),
    /// To tell the reduce that makes this object where one of its sources is, by its place in the request.
    Source(ObjectId, usize),
    /// To tell the reduce that makes this object whether there is one.
    Target,
}

impl Node {
    fn ask(&mut self, id: ObjectId, purpose: Purpose) -> RequestId {
        let request = RequestId(self.ctx.next_number());
        let shard = self.ctx.first_shard(&id);
        self.asks.insert(request, Ask { id, shard, purpose });
        self.send_ask(request);
        request
    }

    pub(super) fn ask_for_sender(&mut self, id: &ObjectId) -> RequestId {
        self.ask(id.clone(), Purpose::Fetch)
    }

    pub(super) fn ask_delete(&mut self, id: ObjectId, key: CallKey) -> RequestId {
        self.ask(id, Purpose::Delete(key))
    }

    pub(super) fn ask_locations(&mut self, id: ObjectId, key: CallKey, index: usize) -> RequestId {
        self.ask(id, Purpose::Locations(key, index))
    }

    pub(super) fn ask_source(&mut self, id: ObjectId, target: &ObjectId, index: usize) -> RequestId {
        self.ask(id, Purpose::Source(target.clone(), index))
    }

    pub(super) fn ask_target(&mut self, target: &ObjectId) -> RequestId {
        self.ask(target.clone(), Purpose::Target)
    }

    fn send_ask(&mut self, request: RequestId) {
        let Some(Ask { id, shard: Some(shard), purpose }) = self.asks.get(&request) else { return };
        let (id, shard) = (id.clone(), *shard);
        let message = match purpose {
            Purpose::Fetch => {
                let timeout =
                    self.calls.last_get_deadline(&id).unwrap_or(self.ctx.now()).since(self.ctx.now());
                let live = self.live(&id);
                // Those who follow the copy have no deadline that the store knows.
                let is_followed = live.is_some_and(|(_, copy)| copy.references > 0);
                let timeout = if is_followed { timeout.max(FOLLOWERS_PATIENCE) } else { timeout };
                let resume = live.map(|(_, copy)| copy.put);
                let avoid = self.fetches.get(&id).map(|fetch| fetch.avoid.clone()).unwrap_or_default();
                ToShard::Query(Query { request, id, timeout, resume, avoid })
            }
            Purpose::Delete(_) => ToShard::Delete { request, id },
            Purpose::Locations(..) | Purpose::Source(..) | Purpose::Target => {
                ToShard::Subscribe { request, id }
            }
        };
        self.ctx.tell_shard(shard, message);
    }

    /// Takes a question back.
    pub(super) fn withdraw_ask(&mut self, request: RequestId) {
        if let Some(Ask { shard: Some(shard), purpose, .. }) = self.asks.remove(&request) {
            self.withdraw_at(shard, request, &purpose);
        }
    }

    fn withdraw_at(&mut self, shard: usize, request: RequestId, purpose: &Purpose) {
        match purpose {
            // The deletion itself goes on. If the question comes back to this shard, its number must be free again.
            Purpose::Fetch | Purpose::Delete(_) => self.ctx.tell_shard(shard, ToShard::Cancel { request }),
            Purpose::Locations(..) | Purpose::Source(..) | Purpose::Target => {
                self.ctx.tell_shard(shard, ToShard::Unsubscribe { request });
            }
        }
    }

    /// Moves questions to the shards that are responsible now that the session with `changed` came or went.
    pub(super) fn rehome_asks(&mut self, changed: usize) {
        let requests: Vec<RequestId> = self.asks.keys().copied().collect();
        for request in requests {
            let Some(ask) = self.asks.get(&request) else { continue };
            let (asked, purpose) = (ask.shard, ask.purpose.clone());
            let responsible = self.ctx.first_shard(&ask.id);
            if asked == responsible && asked != Some(changed) {
                continue;
            }
            if let Some(shard) = asked
                && shard != changed
            {
                self.withdraw_at(shard, request, &purpose);
            }
            if let Some(ask) = self.asks.get_mut(&request) {
                ask.shard = responsible;
            }
            self.send_ask(request);
        }
        self.copies.forget_grants_of(changed);
    }

    /// The purpose of a question that this shard was asked and that still waits; removes it if `is_last` answer.
    fn answered(&mut self, shard: usize, request: RequestId) -> Option<Ask> {
        if self.asks.get(&request)?.shard == Some(shard) { self.asks.remove(&request) } else { None }
    }

    pub(super) fn shard_said(&mut self, shard: usize, message: ToStore) {
        if self.ctx.is_shutting_down() || shard >= self.ctx.shard_count() {
            return;
        }
        match message {
            ToStore::Published { id, put, verdict } => self.published(shard, &id, put, verdict),
            ToStore::Granted(grant) => match self.answered(shard, grant.request) {
                Some(Ask { purpose: Purpose::Fetch, .. }) => self.granted(shard, grant),
                _ => self.return_slot(shard, grant.grant, PullOutcome::Cancelled),
            },
            ToStore::Inline { request, id, put, metadata, bytes } => {
                let is_wanted =
                    self.answered(shard, request).is_some_and(|ask| ask.purpose == Purpose::Fetch);
                if is_wanted {
                    self.inline_came(shard, &id, put, metadata, bytes);
                } else {
                    self.decline_inline(shard, &id, put);
                }
            }
            ToStore::Failed { request, error } => match self.answered(shard, request) {
                Some(Ask { id, purpose: Purpose::Fetch, .. }) => self.fetch_failed(&id, error),
                Some(Ask { purpose: Purpose::Delete(key) | Purpose::Locations(key, _), .. }) => {
                    self.finish(key, Err(error));
                }
                Some(Ask { id: target, purpose: Purpose::Target, .. })
                | Some(Ask { purpose: Purpose::Source(target, _), .. }) => self.fail_reduce(&target, error),
                None => {}
            },
            ToStore::Drop { id, put, reason } => self.dropped(shard, &id, put, reason),
            ToStore::Promote { id, put } => self.promoted(&id, put),
            ToStore::TakeOver { id, put, metadata, bytes } => self.take_over(&id, put, metadata, bytes),
            ToStore::DeleteDone { request, put } => {
                if let Some(Ask { id, purpose: Purpose::Delete(key), .. }) = self.answered(shard, request) {
                    if let Some(put) = put {
                        self.remember_deletion(&id, put);
                        self.tell_other_shards(shard, &id, put);
                    }
                    self.delete_answered(key, request, put.is_some());
                }
            }
            ToStore::Locations { request, locations } => {
                let ask = self.asks.get(&request).filter(|ask| ask.shard == Some(shard));
                match ask.map(|ask| ask.purpose.clone()) {
                    Some(Purpose::Locations(key, index)) => self.located(key, index, locations),
                    Some(Purpose::Source(target, index)) => {
                        self.reductions.source_located(
                            &mut self.ctx,
                            &self.copies,
                            &target,
                            index,
                            locations,
                        );
                        self.perform_actions();
                    }
                    Some(Purpose::Target) => {
                        self.reductions.target_located(&mut self.ctx, &self.copies, &locations);
                        self.perform_actions();
                    }
                    _ => {}
                }
            }
        }
    }

    /// Also shards that are not responsible now may know the object from a time when another was away.
    fn tell_other_shards(&mut self, shard: usize, id: &ObjectId, put: PutId) {
        for other in 0..self.ctx.shard_count() {
            if other != shard && self.ctx.is_up(other) {
                self.ctx.tell_shard(other, ToShard::Forget { id: id.clone(), put });
            }
        }
    }

    /// The shard counts this store as a location of bytes that it answered with; that is not so.
    pub(super) fn decline_inline(&mut self, shard: usize, id: &ObjectId, put: PutId) {
        if self.live_put(id, put).is_none() {
            let reason = UnpublishReason::Evicted;
            self.ctx.tell_shard(shard, ToShard::Unpublish { id: id.clone(), put, reason });
        }
    }

    pub(super) fn return_slot(&mut self, shard: usize, grant: crate::shard::GrantId, outcome: PullOutcome) {
        self.ctx.tell_shard(shard, ToShard::ReturnSlot { grant, outcome });
    }

    /// Writes the bytes of an inline object into its copy.
    pub(super) fn fill(&mut self, copy: super::CopyId, bytes: bytes::Bytes) {
        self.ctx.push(Effect::Fill { copy, bytes });
    }

    /// What an object that exceeds a limit of this store is answered with.
    pub(super) fn check_incoming(
        &self,
        id: &ObjectId,
        size_bytes: u64,
        metadata: &Metadata,
    ) -> Result<(), Error> {
        metadata.validate(size_bytes)?;
        self.check_size(id, size_bytes)
    }
}
