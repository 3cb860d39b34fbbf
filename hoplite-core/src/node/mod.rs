//! The state machine of one store.
//!
//! This file routes each event, deadline and notice to its machine:
//!
//! * `objects`: copies, calls of clients, fetches, queries and publication.
//! * `reduction`: reduces that this store coordinates, and hops that it performs.
//! * [`collective`](crate::collective): collectives that this store coordinates or is a member of.
//!   `collectives` performs their actions.
//!
//! **Calls go down, notices go up.** A machine calls machines of lower levels. It informs others
//! through a `Notice`, which the router delivers after the current event, so no machine is entered
//! while its state is half changed.
//!
//! # Invariants
//! * An extent is freed only when no client references the copy, no serve reads it and no pull
//!   writes it.
//! * At most one copy of an id is in the index; a copy leaves the index once (deleted, lost, lost a
//!   conflict, evicted) and never comes back.
//! * Every `StartPull` is followed by one `PullEnded` before its memory is used for anything else.
//! * Every request is answered exactly once, unless its client is gone or its documentation says
//!   otherwise.

mod collectives;
mod inspect;
mod missing;

pub use crate::fault::Fault;
pub use crate::message::*;
pub use crate::objects::{ClientUse, Holder, Holders};
pub use crate::transfer::forwardable::{forwardable, is_news};
pub use missing::{LONG_WAIT, MAX_LONG_WAITS};

use std::collections::BTreeSet;
use std::time::Duration;

use crate::collective::{Collectives, Member};
use crate::error::{Error, Result};
use crate::id::{ObjectId, PutId};
use crate::load::{Load, MAX_REPORTED};
use crate::objects::Objects;
use crate::objects::combinations::CombineUser;
use crate::objects::notice::{Deadline, Notice, SpaceWaiter};
use crate::placement::ShardMap;
use crate::plan::collective::Collective;
use crate::reduction::Reductions;
use crate::shard::DeleteWait;
use crate::time::Time;
use crate::version::Version;
use collectives::Adapter;
use missing::View;

/// State machine of one store.
#[derive(Debug)]
pub struct Node {
    objects: Objects,
    reductions: Reductions,
    collectives: Collectives,
}

impl Node {
    /// Makes an empty store.
    pub fn new(config: NodeConfig) -> Self {
        Self {
            objects: Objects::new(config),
            reductions: Reductions::default(),
            collectives: Collectives::default(),
        }
    }

    /// Handles an event at `now`, and appends its effects to `effects`.
    pub fn apply(&mut self, now: Time, event: Event, effects: &mut Vec<Effect>) {
        self.objects.ctx.advance(now);
        self.take(event);
        self.deliver_notices();
        self.expire();
        loop {
            self.deliver_notices();
            if !self.retry_space() {
                break;
            }
        }
        self.objects.spill_cold();
        debug_assert!(self.objects.copies.are_quotas_exact(), "each copy is charged once");
        if self.objects.ctx.is_draining() {
            let status = self.status();
            self.objects.settle_drain(status.reductions + status.hops + status.directed_hops > 0);
        }
        self.objects.ctx.take_effects(effects);
    }

    #[expect(clippy::too_many_lines, reason = "one arm for each event")]
    fn take(&mut self, event: Event) {
        let objects = &mut self.objects;
        match event {
            Event::Request { client, call, request } => {
                self.request(CallKey::of(client, call), request)
            }
            Event::Followed { client, call, progress } => {
                objects.followed(CallKey::of(client, call), progress);
            }
            Event::Inspected { client, call } => objects.inspected(CallKey::of(client, call)),
            Event::ClientConnected { client, user, owners } => {
                objects.copies.quotas.client_connected(client, user);
                objects.lifetimes.client_connected(&mut objects.ctx, client, owners);
            }
            Event::ClientGone { client } => objects.client_gone(client),
            Event::ShardUp { shard, run, asked_at, version } => {
                objects.shard_is_up(shard, run, asked_at, version)
            }
            Event::ShardAnswered { shard, pinged_at } => objects.shard_answered(shard, pinged_at),
            Event::ShardDown { shard } => objects.shard_is_down(shard),
            Event::ShardFailed { shard, error } => {
                objects.faults.shard_failed(&objects.ctx, shard, error)
            }
            Event::PeerFailed { peer, error } => {
                objects.faults.peer_failed(&objects.ctx, &peer, error)
            }
            Event::PeerReached { peer } => objects.faults.peer_reached(&peer),
            Event::Incompatible { error } => objects.faults.refused_version(&objects.ctx, error),
            Event::FromShard { shard, message } => objects.shard_said(shard, message),
            Event::PullEnded { pull, valid_bytes, outcome } => {
                objects.pull_ended(pull, valid_bytes, outcome)
            }
            Event::ServeRequested { serve, peer, id, put, awaits_hop: false } => {
                objects.serve_receiver(serve, &peer, &id, put);
            }
            Event::ServeRequested { serve, id, put, awaits_hop: true, .. } => {
                let is_expected = !self.collectives.members.has_ended(put);
                objects.copies.serve(&mut objects.ctx, serve, &id, put, is_expected);
            }
            Event::ServeEnded { serve } => objects.copies.end_serve(&mut objects.ctx, serve),
            Event::Compared { copy, equal } => objects.compared(copy, equal),
            Event::Spilled { file, outcome } => objects.spilled(file, outcome),
            Event::Loaded { copy, outcome } => objects.loaded(copy, outcome),
            Event::RecordFailed { copy, record, fault } => {
                objects.record_failed(copy, record, &fault)
            }
            Event::Recover(recovered) => objects.recover(recovered),
            Event::CombineEnded { combine, valid_bytes, outcome } => {
                match objects.combine_ended(combine, valid_bytes, outcome) {
                    Some((CombineUser::Target(target), Some(valid_bytes))) => {
                        self.reductions.combined(objects, &target, (valid_bytes, outcome));
                    }
                    Some((CombineUser::Hop(owner), Some(_))) => {
                        self.reductions.hostings().combined(objects, owner, outcome);
                    }
                    Some((CombineUser::Membership(membership), valid_bytes)) => {
                        self.adapter().exchange_ended(membership, valid_bytes.map(|_| outcome));
                    }
                    Some((_, None)) | None => {}
                }
            }
            Event::HopRequested { hosting, hop } => {
                self.reductions.hostings().accept(objects, HopOwner::Elsewhere(hosting), hop);
            }
            Event::HopReleased { hosting } => {
                self.reductions.hostings().release(objects, HopOwner::Elsewhere(hosting));
            }
            Event::HopReported { hop, report } => {
                self.reductions.hop_reported(objects, hop, report)
            }
            Event::Collective(event) => {
                self.collectives.apply(&mut objects.ctx.of_collectives(), event)
            }
            Event::Measured { link } => objects.ctx.set_link(link),
            Event::SlowLinks { peers } => objects.has_slow_links(peers),
            Event::Tick => {}
            Event::Drain { timeout } => objects.drain(None, timeout),
            Event::ShutDown => self.shut_down(),
        }
    }

    fn request(&mut self, key: CallKey, request: Request) {
        if let Err(error) = self.objects.check_request(key, &request) {
            return self.objects.ctx.reply(key, Err(error));
        }
        if let Some(id) = self.objects.conflicts.take(key.client, &request) {
            return self.objects.ctx.reply(key, Err(Error::PutConflict { id }));
        }
        match request {
            Request::Reduce(request) => self.reduce(key, request),
            Request::Collective(kind, request) => self.coordinate(key, kind, request),
            Request::Join { target, agreement, is_again, source_bytes, timeout } => {
                self.adapter().join(key, target, (agreement, is_again), source_bytes, timeout);
            }
            Request::Delete { ids, timeout, wait } => self.delete(key, ids, timeout, wait),
            Request::Batch(requests) => self.batch(key, requests),
            request => self.objects.request(key, request),
        }
    }

    fn batch(&mut self, key: CallKey, requests: Vec<Request>) {
        if let Err(error) = self.objects.open_batch(key, &requests) {
            return self.objects.ctx.reply(key, Err(error));
        }
        for (item, request) in (1..).zip(requests) {
            self.request(CallKey { item, ..key }, request);
        }
    }

    fn delete(&mut self, key: CallKey, ids: Vec<ObjectId>, timeout: Duration, wait: DeleteWait) {
        if let Err(error) = self.objects.calls.check_ids(self.objects.ctx.limits(), key, ids.len())
        {
            return self.objects.ctx.reply(key, Err(error));
        }
        let ids: BTreeSet<ObjectId> = ids.into_iter().collect();
        if let Err(error) = self.objects.check_wait(&ids, wait) {
            return self.objects.ctx.reply(key, Err(error));
        }
        let ended = ids.iter().filter(|id| self.delete_target(id)).count();
        self.objects.delete(key, ids, ended, (timeout, wait));
    }

    fn reduce(&mut self, key: CallKey, request: Reduce) {
        if let Err(error) = self.check_reduce(key, &request) {
            return self.objects.ctx.reply(key, Err(error));
        }
        self.enter_reduce(key, &request);
        self.reductions.start(&mut self.objects, key, request, None);
    }

    fn coordinate(&mut self, key: CallKey, kind: Collective, request: Reduce) {
        if let Err(error) = self.check_reduce(key, &request) {
            return self.objects.ctx.reply(key, Err(error));
        }
        self.enter_reduce(key, &request);
        self.adapter().coordinate(key, kind, request);
    }

    fn check_reduce(&self, key: CallKey, request: &Reduce) -> Result<()> {
        request.check()?;
        self.objects.calls.check_ids(self.objects.ctx.limits(), key, request.sources.len())?;
        let target = &request.target;
        if self.objects.copies.live(target).is_some() || self.makes(target) {
            return Err(Error::AlreadyExists { id: target.clone() });
        }
        Ok(())
    }

    fn enter_reduce(&mut self, key: CallKey, request: &Reduce) {
        self.collectives.attempt_begins(&mut self.objects.ctx.of_collectives(), &request.target);
        self.objects.enter_reduce(key, request);
    }

    fn makes(&self, target: &ObjectId) -> bool {
        self.reductions.contains(target) || self.collectives.coordinator.contains(target)
    }

    fn reconsider_target(&mut self, target: &ObjectId) {
        self.adapter().give_up_without_room(target);
        self.reductions.reconsider(&mut self.objects, target);
    }

    /// Returns `true` if there was a reduce or collective to end.
    fn delete_target(&mut self, target: &ObjectId) -> bool {
        let is_under_way = self.makes(target);
        self.adapter().withdraw_announcement(target);
        self.adapter().fail_target(target, Error::Deleted { id: target.clone() });
        is_under_way
    }

    fn deliver_notices(&mut self) {
        loop {
            self.adapter().perform_all();
            let Some(notice) = self.objects.ctx.next_notice() else { return };
            let objects = &mut self.objects;
            match notice {
                Notice::Answer(call, response) => {
                    if !objects.doomed_deleted(call) {
                        self.reductions.fetched(objects, call, response);
                    }
                }
                Notice::BatchAnswered(key) => objects.end_batch(key),
                Notice::Report(hop, report) => self.reductions.hop_reported(objects, hop, report),
                Notice::Changed(id) => {
                    objects.changed(&id);
                    self.adapter().refer_participants(&id);
                }
                Notice::TargetPublished(target) => {
                    self.reductions.target_published(objects, &target)
                }
                Notice::TargetLacksRoom(target) => self.adapter().give_up_without_room(&target),
                Notice::Gone(id, copy, error) => {
                    if matches!(error, Error::Deleted { .. }) {
                        self.collectives
                            .coordinator
                            .target_deleted(&mut objects.ctx.of_collectives(), &id);
                    }
                    self.reductions.target_lost(&mut self.objects, &id, copy, error);
                }
                Notice::ReduceEnded(key, target, error) => {
                    let ctx = &mut objects.ctx.of_collectives();
                    self.collectives.coordinator.call_ended(ctx, key, &target, error.as_ref());
                    self.reductions.call_ended(&mut self.objects, key, &target);
                }
                Notice::SourceLocated(target, index, locations) => {
                    self.adapter().source_located(&target, index, locations);
                }
                Notice::TargetLocated(locations) => self.adapter().target_located(&locations),
                Notice::TargetDeleted(target) => {
                    self.delete_target(&target);
                }
                Notice::QueryFailed(target, error) => self.adapter().fail_target(&target, error),
            }
        }
    }

    fn expire(&mut self) {
        while let Some(deadline) = self.objects.ctx.next_due() {
            match deadline {
                Deadline::Call(key) => {
                    let missing = self.view().missing(key);
                    self.objects.call_expired(key, missing);
                }
                Deadline::Retry(id) => self.objects.retry_fetch(&id),
                Deadline::Republish(copy) => self.objects.publish_again(copy),
                Deadline::Settled => self.objects.sessions_settled(),
                Deadline::Trusted(shard) => self.objects.shard_trusted(shard),
                Deadline::Left(shard) => self.objects.shard_left(shard),
                Deadline::Hop(owner) => {
                    self.reductions.hostings().expired(&mut self.objects, owner)
                }
                Deadline::Reduce(target) => self.reconsider_target(&target),
                Deadline::Drain => self.objects.drain_expired(),
                // The store spills after each event.
                Deadline::Spill => {}
                Deadline::Lifetime(copy) => self.objects.lifetime_due(copy),
                Deadline::Owner(owner) => self.objects.owner_due(&owner),
            }
        }
        self.collectives.expire(&mut self.objects.ctx.of_collectives());
    }

    /// Lets waiters for memory, then waiters for a quota, try again in the order of arrival.
    /// Waiters that fit pass the others. Returns `true` if there was new space.
    fn retry_space(&mut self) -> bool {
        let Some(waiters) = self.objects.copies.take_space_waiters() else { return false };
        for waiter in waiters {
            match waiter {
                SpaceWaiter::Create(key) => self.objects.retry_create(key),
                SpaceWaiter::Fetch(id) => self.objects.fetch_has_space(&id),
                SpaceWaiter::Hop(owner) => {
                    self.reductions.hostings().begin(&mut self.objects, owner)
                }
                SpaceWaiter::Target(id) => self.reconsider_target(&id),
                SpaceWaiter::Membership(membership) => self.adapter().open_member(membership),
                SpaceWaiter::Load(copy) => self.objects.retry_load(copy),
            }
        }
        true
    }

    fn shut_down(&mut self) {
        self.objects.ctx.begin_shutdown();
        self.objects.end_calls();
        self.reductions.hostings().shut_down(&mut self.objects);
        self.collectives.members.shut_down(&mut self.objects.ctx.of_collectives());
        self.adapter().perform_all();
        self.objects.withdraw_copies();
    }

    /// Latest time for the next [`Event::Tick`].
    pub fn next_deadline(&self) -> Option<Time> {
        self.objects.ctx.next_deadline()
    }

    /// Returns the protocol version of the session with a shard.
    pub fn shard_version(&self, shard: usize) -> Option<Version> {
        self.objects.ctx.sessions.version(shard)
    }

    /// Describes the store's contents.
    pub fn status(&self) -> NodeStatus {
        NodeStatus {
            reductions: self.reductions.len() + self.collectives.coordinator.len(),
            hops: self.reductions.hosting_count() + self.collectives.members.len(),
            directed_hops: self.reductions.hop_count() + self.collectives.coordinator.enlistments(),
            ..self.objects.status()
        }
    }

    /// Shards, with an index for each.
    pub const fn shards(&self) -> &ShardMap {
        &self.objects.ctx.config().shards
    }

    /// Describes the drain under way, or the last one.
    pub fn drain_report(&self) -> DrainReport {
        self.objects.drain_report()
    }

    /// Describes the state machine's load. The data plane knows the rest.
    pub fn load(&self, now: Time) -> Load {
        self.view().load(&self.status(), now)
    }

    /// Describes this store's troubles.
    pub fn troubles(&self, now: Time) -> Troubles {
        self.view().troubles(now)
    }

    fn adapter(&mut self) -> Adapter<'_> {
        let Self { objects, reductions, collectives } = self;
        Adapter { objects, reductions, collectives }
    }

    fn view(&self) -> View<'_> {
        let Self { objects, reductions, collectives, .. } = self;
        View { objects, reductions, collectives }
    }

    /// Returns clients with references to deleted or evictable copies.
    pub fn holders(&self) -> Holders {
        self.objects.holders()
    }

    /// Returns each client's references and calls, most bytes first.
    pub fn client_uses(&self) -> Vec<ClientUse> {
        self.objects.client_uses()
    }

    /// Returns at most [`MAX_REPORTED`] running pulls.
    pub fn pulled(&self) -> impl Iterator<Item = (CopyId, &ObjectId)> {
        self.objects.copies.pulled().take(MAX_REPORTED)
    }

    /// Returns a copy's object and put until its space is free.
    pub fn object_of(&self, copy: CopyId) -> Option<(&ObjectId, PutId)> {
        self.objects.copies.get(&copy).map(|copy| (&copy.id, copy.put))
    }

    /// Describes the rest of an object's lifetime, if this store deletes the object at its end.
    pub fn lifetime(&self, id: &ObjectId, now: Time) -> Option<LifetimeReport> {
        self.objects.lifetime(id, now)
    }

    /// Returns the latest reduce of this target that this store coordinated and remembers.
    pub fn reduce_record(&self, target: &ObjectId) -> Option<&ReduceRecord> {
        self.reductions.record(target)
    }

    /// Describes the making of `target` if this store coordinates it, is a member, or has waiting
    /// participants.
    pub fn how_made(&self, target: &ObjectId, now: Time) -> Option<ReduceRecord> {
        self.view().how_made(target, now)
    }

    /// Returns the members that make `target`, and this store's index among them.
    pub fn members_making(&self, target: &ObjectId) -> Option<(usize, &[Member])> {
        self.collectives.members.members_making(target)
    }
}
