//! Puts: create, seal and abort.
//!
//! A put of up to 8 KiB carries its bytes in its request, and is sealed at once. A larger put, and
//! every writer, takes these steps:
//!
//! 1. The client sends `Create`. If the store has a complete copy of equal size and metadata, the
//!    client compares the bytes with it. A copy of another size or metadata fails the call with
//!    `AlreadyExists`. The call waits for an incomplete copy.
//! 2. The node allocates memory (`table/space.rs`). If the arena is full, it evicts unpinned,
//!    unreferenced copies, the least recently used first, if these free enough. Otherwise the call
//!    waits.
//! 3. The node publishes the copy as *producing* at the first two connected shards of the id. It
//!    publishes small objects, below 64 KiB by default, only when complete.
//! 4. The client copies the bytes into the arena and advances the progress in the extent's header.
//!    If a flag there says that the store waits for progress, the client sends a doorbell message.
//! 5. The client seals the object. The node completes the copy and publishes it again, with its
//!    bytes if it is inline.
//!
//! The seal of a large object, or of a confirmed put, is answered once the directory has accepted
//! the object; other seals at once.

use std::time::Duration;

use super::Objects;
use super::calls::{Access, Call, Contents, CreateCall};
use super::notice::{Notice, SpaceWaiter};
use super::spill::Fetched;
use super::table::{Object, Phase};
use crate::error::{Error, Operation, Result};
use crate::extent::Extent;
use crate::id::ObjectId;
use crate::message::{CallKey, Confirm, CopyId, Effect, Response};
use crate::metadata::{Metadata, Replicas};
use crate::shard::UnpublishReason;
use crate::version::Version;

#[derive(Debug, PartialEq, Eq)]
enum Attempt {
    Answered(Result<Response>),
    /// Another put of the id is unfinished, or not yet accepted by the directory.
    IsBusy,
    LacksSpace,
    LacksQuota,
}

impl Objects {
    pub(crate) fn create(&mut self, key: CallKey, create: CreateCall, timeout: Duration) {
        if let Err(error) = self.check_incoming(&create.id, create.size_bytes, &create.metadata) {
            return self.ctx.reply(key, Err(error));
        }
        let error = self.check_quorum(&create.id, create.metadata.replicas).err();
        if let Some(error) = error.or_else(|| self.lifetimes.check(&create.metadata).err()) {
            return self.ctx.reply(key, Err(error));
        }
        match self.try_create(key, &create) {
            Attempt::Answered(response) => self.answer_create(key, create, response, timeout),
            attempt => {
                if let Some(contents) = &create.contents
                    && let Err(error) = self.calls.check_room_for_bytes(contents.bytes.len())
                {
                    return self.ctx.reply(key, Err(error));
                }
                let id = create.id.clone();
                self.calls.enter(&mut self.ctx, key, Call::Create(create), Operation::Put, timeout);
                self.wait_to_create(&id, key, &attempt);
            }
        }
    }

    pub(crate) fn retry_create(&mut self, key: CallKey) {
        let Some(Call::Create(create)) = self.calls.get(key) else { return };
        let create = create.clone();
        match self.try_create(key, &create) {
            Attempt::Answered(response) => {
                let left = self.calls.time_left(key, self.ctx.now());
                self.forget_call(key);
                self.answer_create(key, create, response, left);
            }
            attempt => self.wait_to_create(&create.id, key, &attempt),
        }
    }

    fn try_create(&mut self, key: CallKey, create: &CreateCall) -> Attempt {
        let client = key.client;
        if let Some((copy, local)) = self.copies.live(&create.id) {
            let may_be_deleted = local.is_complete() && !self.may_serve(copy);
            if self.is_in_doubt(copy) || may_be_deleted {
                return Attempt::IsBusy;
            }
            if local.size_bytes != create.size_bytes
                || !local.metadata.describes_same(&create.metadata)
            {
                return Attempt::Answered(Err(Error::AlreadyExists { id: create.id.clone() }));
            }
            let awaits_verdict =
                create.contents.as_ref().is_some_and(|whole| whole.confirm == Confirm::Yes)
                    && self.is_put(copy)
                    && !self.is_accepted(copy);
            let lacks_quorum = create.metadata.replicas.quorum
                && self.is_put(copy)
                && !self.is_accepted_by_both(copy);
            if !local.is_complete() || awaits_verdict || lacks_quorum {
                return Attempt::IsBusy;
            }
            match self.bring(copy) {
                Fetched::Here => {}
                Fetched::Coming => return Attempt::IsBusy,
                Fetched::Failed(error) => return Attempt::Answered(Err(error)),
            }
            if let Some(attempt) = self.repeat_replicated(copy, create.metadata.replicas) {
                return attempt;
            }
            return Attempt::Answered(
                self.refer(key.holder(), copy, Access::Write).map(Response::Existing),
            );
        }
        if let Err(error) = self.calls.check_may_refer(self.ctx.limits(), client, Access::Write) {
            return Attempt::Answered(Err(error));
        }
        let payer = self.copies.quotas.payer(client);
        match self.make_quota_room(payer, &create.id, create.size_bytes) {
            Ok(true) => {}
            Ok(false) => return Attempt::LacksQuota,
            Err(error) => return Attempt::Answered(Err(error)),
        }
        let Some(room) = self.allocate(create.size_bytes) else { return Attempt::LacksSpace };
        // Calls that wait for the fetch get this copy.
        self.end_fetch(&create.id);
        let put = self.ctx.next_put();
        let phase = Phase::Writing { client };
        let CreateCall { id, size_bytes, metadata, contents: _ } = create.clone();
        let copy = self.open(Object { id, put, size_bytes, metadata }, room, phase, payer);
        Attempt::Answered(self.refer(client, copy, Access::Write).map(Response::Created))
    }

    /// Requests further copies for a repeated put. Returns `None` if the put need not wait for
    /// them.
    fn repeat_replicated(&mut self, copy: CopyId, replicas: Replicas) -> Option<Attempt> {
        if replicas.to_keep() == 1 || !self.is_put(copy) {
            return None;
        }
        let local = &self.copies[&copy];
        let is_more = replicas.wanted > local.metadata.replicas.wanted;
        // A shard of an older version does not report all stores that could keep a copy.
        let first = self.ctx.first_shard(&local.id);
        let tells_all =
            first.is_none_or(|shard| self.ctx.sessions.knows(shard, Version::WITH_TERMS));
        if is_more && !tells_all {
            self.copies.want_replicas(copy, replicas);
            self.copies.publication_mut(copy).set_lead(None);
            self.publish(copy);
            return Some(Attempt::IsBusy);
        }
        if is_more && !self.has_counted_nodes(copy) {
            return Some(Attempt::IsBusy);
        }
        if let Some(error) = self.check_nodes(copy, replicas) {
            return Some(Attempt::Answered(Err(error)));
        }
        if self.copies.want_replicas(copy, replicas) {
            self.publish(copy);
        }
        (!self.has_awaited_copies(copy, replicas)).then_some(Attempt::IsBusy)
    }

    fn answer_create(
        &mut self,
        key: CallKey,
        create: CreateCall,
        response: Result<Response>,
        left: Duration,
    ) {
        let created = match &response {
            Ok(Response::Created(view)) => Some((view.copy, view.size_bytes)),
            _ => None,
        };
        if let (Some((copy, _)), Some(contents)) = (created, create.contents) {
            return self.put_whole(key, copy, contents, left);
        }
        self.ctx.reply(key, response);
        if let Some((copy, size_bytes)) = created {
            if !self.ctx.is_small(size_bytes) {
                self.publish(copy);
            }
            self.wake(&create.id);
        }
    }

    fn put_whole(&mut self, key: CallKey, copy: CopyId, contents: Contents, left: Duration) {
        let Contents { bytes, confirm } = contents;
        let awaits_directory = self.copies[&copy].metadata.replicas.awaits_directory();
        match confirm {
            Confirm::No if !awaits_directory => self.ctx.reply(key, Ok(Response::Sealed)),
            _ => self.await_verdict(key, copy, left),
        }
        self.ctx.push(Effect::Fill { copy, bytes });
        self.complete_put(copy);
        self.release(key.client, copy);
    }

    fn wait_to_create(&mut self, id: &ObjectId, key: CallKey, attempt: &Attempt) {
        self.calls.wait_for_copy(id, key);
        let waiter = SpaceWaiter::Create(key);
        match attempt {
            Attempt::LacksSpace => self.copies.wait_for_space(waiter),
            Attempt::LacksQuota => self.copies.wait_for_quota(waiter),
            Attempt::IsBusy | Attempt::Answered(_) => self.copies.stop_waiting_for_space(&waiter),
        }
    }

    /// With `confirm`, answers once the directory accepts or rejects the put, or after this time.
    pub(crate) fn seal(&mut self, key: CallKey, copy: CopyId, confirm: Option<Duration>) {
        let is_writer = self.copies.get(&copy).is_some_and(|local| local.is_written_by(key.client));
        if !is_writer {
            if confirm.is_some() {
                self.ctx.reply(key, Err(Error::UnknownReference { reference: copy.0 }));
            }
            return;
        }
        if let Some(error) = self.copies[&copy].detached.as_deref().cloned() {
            self.copies.end_writing(&mut self.ctx, copy);
            if confirm.is_some() {
                self.ctx.reply(key, Err(error));
            }
            return;
        }
        if let Some(timeout) = confirm {
            self.await_verdict(key, copy, timeout);
        }
        self.complete_put(copy);
    }

    fn await_verdict(&mut self, key: CallKey, copy: CopyId, timeout: Duration) {
        self.calls.enter(&mut self.ctx, key, Call::Seal { copy }, Operation::Put, timeout);
        self.copies.publication_mut(copy).set_sealer(key);
    }

    pub(crate) fn complete_put(&mut self, copy: CopyId) {
        self.complete(copy);
        self.begin_lifetime(copy);
        self.publish(copy);
        if let Some(rival) = self.copies[&copy].publication.rival().cloned() {
            self.compare(copy, rival);
        }
        self.answer_sealer(copy);
        self.reconsider_quorum(copy);
    }

    pub(crate) fn open_target(
        &mut self,
        id: &ObjectId,
        size_bytes: u64,
        mut metadata: Metadata,
        room: Extent,
    ) -> Result<CopyId> {
        self.set_default_replicas(&mut metadata);
        if self.copies.live(id).is_some() {
            return Err(Error::AlreadyExists { id: id.clone() });
        }
        self.end_fetch(id);
        let payer = self.copies.quotas.take_reservation(id);
        let put = self.ctx.next_put();
        let object = Object { id: id.clone(), put, size_bytes, metadata };
        let copy = self.open(object, room, Phase::Combining { combine: None }, payer);
        if !self.ctx.is_small(size_bytes) {
            self.publish(copy);
        }
        self.wake(id);
        Ok(copy)
    }

    /// Once the directory accepts the target, the call is answered with `reduced`, the reduced
    /// sources' indices.
    pub(crate) fn complete_target(&mut self, key: CallKey, copy: CopyId, reduced: Vec<usize>) {
        if let Some(Call::Reduce { reduced: indices, .. }) = self.calls.get_mut(key) {
            *indices = reduced;
        }
        self.copies.set_reduced_by(copy, key.client);
        self.copies.publication_mut(copy).set_sealer(key);
        self.complete_put(copy);
    }

    pub(crate) fn abort(&mut self, copy: CopyId) {
        let Some(local) = self.copies.get(&copy) else { return };
        if !local.is_written() {
            return;
        }
        let is_live = local.is_live();
        self.copies.end_writing(&mut self.ctx, copy);
        if is_live {
            self.abandon_put(copy);
        }
    }

    pub(crate) fn abandon_put(&mut self, copy: CopyId) {
        let local = &self.copies[&copy];
        let id = local.id.clone();
        // If no shard knows this put, or another put exists, waiting calls keep waiting.
        let is_all_there_was = local.publication.is_only_known_put();
        let error = Error::ObjectLost { id: id.clone() };
        self.abandon(copy, error.clone(), UnpublishReason::Aborted);
        if is_all_there_was {
            self.fail_gets(&id, &error);
        }
        self.wake(&id);
    }

    pub(crate) fn is_accepted(&self, copy: CopyId) -> bool {
        let local = &self.copies[&copy];
        let decisive = self.ctx.first_shard(&local.id);
        decisive.is_some_and(|decisive| local.publication.is_accepted_by(decisive))
    }

    /// Answers calls that wait for the put, if its id's first shard has accepted it.
    pub(crate) fn settle_publication(&mut self, copy: CopyId) {
        if self.is_accepted(copy) {
            self.copies.publication_mut(copy).settle();
            let id = self.copies[&copy].id.clone();
            if self.copies[&copy].is_combined() {
                self.ctx.notify(Notice::TargetPublished(id.clone()));
            }
            self.answer_sealer(copy);
            // A repeated put of the id may wait for this acceptance.
            self.wake(&id);
        }
    }

    pub(crate) fn forget_sealer(&mut self, copy: CopyId, key: CallKey) {
        if self.copies.get(&copy).is_some_and(|local| local.publication.sealer() == Some(key)) {
            self.copies.publication_mut(copy).take_sealer();
        }
    }

    /// Answers once enough copies exist, and the id's first shard, or both its shards for a quorum,
    /// have accepted the put.
    pub(crate) fn answer_sealer(&mut self, copy: CopyId) {
        if self.copies[&copy].is_complete()
            && self.is_accepted(copy)
            && self.has_awaited_copies(copy, self.copies[&copy].metadata.replicas)
            && self.has_quorum(copy)
            && let Some(key) = self.copies.publication_mut(copy).take_sealer()
        {
            let response = match self.calls.get(key) {
                Some(Call::Reduce { reduced, .. }) => {
                    Response::Reduced { indices: reduced.clone() }
                }
                _ => Response::Sealed,
            };
            self.finish(key, Ok(response));
        }
    }
}
