//! Queries to the directory's shards, and messages from them.
//!
//! # Failures
//!
//! * **A sender dies or sends damaged bytes.** The receiver queries for another sender, with pauses
//!   if failures repeat, and resumes at its offset (`gets.rs`).
//! * **A sender freezes.** Idle senders send keepalives, so five seconds of silence end the pull.
//! * **A transfer stalls although its sender lives.** A receiver without a byte or a new sign of
//!   life of the producer for ten seconds leaves its sender ([`stall`](crate::transfer::stall)).
//! * **Two stores pull from each other.** A store leaves a sender that requests bytes from the
//!   store, and serves that sender (`gets.rs`).
//! * **A client dies.** Its connection closes. The node ends its calls, releases its references and
//!   aborts its unsealed puts (`requests.rs`).
//! * **A store dies.** Its shards notice a closed connection, or six seconds without an answer to a
//!   ping. They send receivers elsewhere, and after another second count its copies as lost
//!   (`shard/session.rs`, `shard/loss.rs`). A complete copy elsewhere is pinned instead. If a shard
//!   has the bytes of a small object, another store keeps them (`shard/orphans.rs`). Otherwise gets
//!   fail with `ObjectLost`.
//! * **A shard dies, or answers no ping for two seconds.** The node moves its open queries and
//!   publications to the next shard of each id (`publish.rs`), and back later. A restarted shard at
//!   first holds deletes of unknown ids (`shard/delete.rs`), and the other shard of each id
//!   decides, if connected (`shard_sessions.rs`).
//! * **The list of shards changes.** A new shard is filled like a restarted one. A removed shard is
//!   handled like a dead one (`shard/shards.rs`).

use std::time::Duration;

use super::Objects;
use super::notice::{Deadline, Notice};
use super::queries::{OpenQuery, Purpose};
use super::shard_sessions::SETTLING;
use super::table::Object;
use crate::error::Error;
use crate::id::{NodeId, ObjectId, PutId};
use crate::message::Effect;
use crate::metadata::Metadata;
use crate::placement::{ShardList, ShardMapChange};
use crate::shard::{
    InlineBytes, Placed, PullOutcome, Query, RequestId, ToShard, ToStore, UnpublishReason, Wants,
};
use crate::version::Version;

/// Shortest time limit of a query while clients read the growing copy, or a shard ordered it. At
/// the limit, the store repeats the query.
const FOLLOWERS_TIMEOUT: Duration = Duration::from_secs(10);

impl Objects {
    pub(crate) fn query(&mut self, id: ObjectId, purpose: Purpose) -> RequestId {
        let request = self.queries.enter(&mut self.ctx, id, purpose);
        self.send_query(request);
        request
    }

    pub(crate) fn query_source(
        &mut self,
        id: ObjectId,
        target: &ObjectId,
        index: usize,
        wants: Wants,
    ) -> RequestId {
        let request =
            self.queries.enter(&mut self.ctx, id.clone(), Purpose::Source(target.clone(), index));
        if let Some((shard, _)) = self.queries.sitting(request) {
            let message = ToShard::Subscribe { request, id, wants, makes: false };
            self.ctx.tell_shard(shard, message);
        }
        request
    }

    pub(super) fn send_query(&mut self, request: RequestId) {
        let Some((shard, query)) = self.queries.sitting(request) else { return };
        let id = query.id.clone();
        let message = match query.purpose {
            Purpose::Fetch => {
                let timeout = self
                    .calls
                    .last_get_deadline(&id)
                    .unwrap_or(self.ctx.now())
                    .since(self.ctx.now());
                let live = self.copies.live(&id);
                // Clients that read a growing copy have no open get with a deadline.
                let is_followed = live.is_some_and(|(_, copy)| copy.is_referenced());
                let is_followed = is_followed || self.orders.contains_key(&id);
                let timeout = if is_followed { timeout.max(FOLLOWERS_TIMEOUT) } else { timeout };
                let resume = live.map(|(_, copy)| copy.put);
                let avoid = self.fetches.avoided(&id).to_vec();
                ToShard::Query(Query { request, id, timeout, resume, avoid })
            }
            Purpose::Delete(key, step) => return self.send_delete(shard, (request, id), key, step),
            Purpose::Locations(..) | Purpose::Source(..) | Purpose::Target => {
                let makes = query.purpose == Purpose::Target;
                ToShard::Subscribe { request, id, wants: Wants::Locations, makes }
            }
        };
        self.ctx.tell_shard(shard, message);
    }

    pub(crate) fn withdraw_query(&mut self, request: RequestId) {
        self.queries.withdraw(&mut self.ctx, request);
    }

    pub(crate) fn rehome_queries(&mut self, changed: usize) {
        self.move_queries(Some(changed));
        // A lost shard forgets its grants, so none is reported.
        self.copies.forget_grants_of(changed);
    }

    fn move_queries(&mut self, changed: Option<usize>) {
        for request in self.queries.rehome(&mut self.ctx, changed) {
            self.send_query(request);
        }
    }

    pub(crate) fn shard_trusted(&mut self, shard: usize) {
        if !self.ctx.sessions.trust(self.ctx.now(), shard) {
            return;
        }
        for copy in self.copies.live_copies() {
            self.tell_lead(copy);
            self.settle_publication(copy);
        }
        self.move_queries(None);
        self.finish_deletes();
    }

    pub(crate) fn shard_said(&mut self, shard: usize, message: ToStore) {
        if self.ctx.is_shutting_down() || shard >= self.ctx.shard_count() {
            return;
        }
        // A shard removed from the directory is not told of deletes, so it may list deleted
        // objects.
        if self.ctx.sessions.is_removed(shard)
            && matches!(
                message,
                ToStore::TakeOver { .. } | ToStore::Replicate(_) | ToStore::Promote { .. }
            )
        {
            return;
        }
        match message {
            ToStore::Published { id, put, verdict } => self.published(shard, &id, put, verdict),
            ToStore::Granted(grant) => match self.queries.answered(shard, grant.request) {
                Some(OpenQuery { purpose: Purpose::Fetch, .. }) => self.granted(shard, grant),
                _ => self.return_slot(shard, grant.grant, PullOutcome::Cancelled),
            },
            ToStore::Inline { request, id, put, metadata, bytes }
                if self.queries.is_subscription_at(shard, request) =>
            {
                self.source_came(shard, inline(id, put, metadata, &bytes), bytes.into());
            }
            ToStore::Inline { request, id, put, metadata, bytes } => {
                let is_wanted = self
                    .queries
                    .answered(shard, request)
                    .is_some_and(|query| query.purpose == Purpose::Fetch);
                if is_wanted {
                    self.inline_came(shard, inline(id, put, metadata, &bytes), bytes.into());
                } else {
                    self.decline_inline(shard, &id, put);
                }
            }
            ToStore::Failed { request, error } => self.query_failed(shard, request, error),
            ToStore::Drop { id, put, reason } => self.dropped(shard, &id, put, reason),
            ToStore::Promote { id, put } => self.promoted(shard, &id, put),
            ToStore::Placed(placed) => self.placed(shard, placed),
            ToStore::GiveWay { grant } => {
                let (calls, orders) = (&self.calls, &self.orders);
                let is_called_for = |id: &ObjectId| {
                    calls.last_get_deadline(id).is_some() || orders.contains_key(id)
                };
                self.copies.give_way(&mut self.ctx, shard, grant, is_called_for);
            }
            ToStore::TakeOver { id, put, metadata, bytes } => {
                self.take_over(shard, inline(id, put, metadata, &bytes), bytes.into());
            }
            ToStore::Replicate(order) => self.replicate(shard, order),
            ToStore::Shards(list) => self.shards_learnt(&list),
            ToStore::Replication(news) => self.replicated(shard, news),
            ToStore::DeleteDone { request, put, absent } => {
                self.delete_done(shard, request, put, absent)
            }
            ToStore::Locations { request, locations } => {
                match self.queries.purpose_at(shard, request) {
                    Some(Purpose::Locations(key, index)) => self.located(key, index, locations),
                    Some(Purpose::Source(target, index)) => {
                        self.ctx.notify(Notice::SourceLocated(target, index, locations));
                    }
                    Some(Purpose::Target) => self.ctx.notify(Notice::TargetLocated(locations)),
                    _ => {}
                }
            }
        }
    }

    fn query_failed(&mut self, shard: usize, request: RequestId, error: Error) {
        if let Error::Deleted { id } = &error
            && self.queries.is_subscription_at(shard, request)
        {
            // This id was deleted without a put. Only work that makes the object must end.
            if self.queries.purpose_at(shard, request) == Some(Purpose::Target) {
                self.ctx.notify(Notice::TargetDeleted(id.clone()));
            }
            return;
        }
        match self.queries.answered(shard, request) {
            Some(OpenQuery { id, purpose: Purpose::Fetch, .. }) => self.fetch_failed(&id, error),
            Some(OpenQuery {
                purpose: Purpose::Delete(key, _) | Purpose::Locations(key, _),
                ..
            }) => {
                self.finish(key, Err(error));
            }
            Some(OpenQuery { id: target, purpose: Purpose::Target, .. })
            | Some(OpenQuery { purpose: Purpose::Source(target, _), .. }) => {
                self.ctx.notify(Notice::QueryFailed(target, error));
            }
            None => {}
        }
    }

    fn placed(&mut self, shard: usize, placed: Placed) {
        if self.ctx.be_placed(placed) {
            for other in (0..self.ctx.shard_count()).filter(|other| *other != shard) {
                self.tell_place(other);
            }
        }
    }

    /// Copies and queries move to new shards once these are connected. A removed shard gets no new
    /// requests, but two seconds to answer deletes.
    fn shards_learnt(&mut self, list: &ShardList) {
        let Some(ShardMapChange { added, removed }) = self.ctx.adopt_shards(list) else { return };
        for shard in removed {
            self.faults.shard_reached(shard);
            self.ctx.schedule(self.ctx.now() + SETTLING, Deadline::Left(shard));
        }
        self.ctx.push(Effect::ShardsChanged { added, left: Vec::new() });
        for shard in 0..self.ctx.shard_count() {
            self.tell_list(shard);
        }
        for copy in self.copies.live_copies() {
            self.tell_missing_shards(copy);
            self.tell_lead(copy);
            self.settle_publication(copy);
        }
        self.move_queries(None);
    }

    pub(crate) fn shard_left(&mut self, shard: usize) {
        self.shard_is_down(shard);
        self.ctx.push(Effect::ShardsChanged { added: Vec::new(), left: vec![shard] });
    }

    /// Sends a shard the list of shards, unless the list is still the configured one.
    pub(crate) fn tell_list(&mut self, shard: usize) {
        let shards = &self.ctx.config().shards;
        if shards.version() > 0 && self.ctx.sessions.knows(shard, Version::WITH_SHARD_CHANGES) {
            let list = shards.list();
            self.ctx.tell_shard(shard, ToShard::Shards(list));
        }
    }

    pub(crate) fn tell_place(&mut self, shard: usize) {
        let placed = self.ctx.place();
        if placed.version > 0 && self.ctx.is_up(shard) {
            self.ctx.tell_shard(shard, ToShard::Placed(placed));
        }
    }

    pub(crate) fn has_slow_links(&mut self, peers: Vec<NodeId>) {
        self.ctx.set_slow_peers(peers);
        for shard in 0..self.ctx.shard_count() {
            self.tell_slow_links(shard);
        }
    }

    pub(crate) fn tell_slow_links(&mut self, shard: usize) {
        if self.ctx.is_up(shard) {
            let peers = self.ctx.slow_peers().to_vec();
            self.ctx.tell_shard(shard, ToShard::SlowLinks { peers });
        }
    }

    pub(crate) fn decline_inline(&mut self, shard: usize, id: &ObjectId, put: PutId) {
        if self.copies.live_put(id, put).is_none() {
            self.fetches.decline(id);
            let reason = UnpublishReason::Evicted;
            self.ctx.tell_shard(shard, ToShard::Unpublish { id: id.clone(), put, reason });
        }
    }

    pub(crate) fn return_slot(
        &mut self,
        shard: usize,
        grant: crate::shard::GrantId,
        outcome: PullOutcome,
    ) {
        self.ctx.tell_shard(shard, ToShard::ReturnSlot { grant, outcome });
    }

    pub(crate) fn check_incoming(
        &self,
        id: &ObjectId,
        size_bytes: u64,
        metadata: &Metadata,
    ) -> Result<(), Error> {
        metadata.validate(size_bytes)?;
        self.copies.check_size(self.ctx.limits(), id, size_bytes)
    }
}

fn inline(id: ObjectId, put: PutId, metadata: Metadata, bytes: &InlineBytes) -> Object {
    Object { id, put, size_bytes: bytes.len() as u64, metadata }
}
