//! What follows from changes of copies for those who wait for them, and for the directory.

use super::calls::Purpose;
use super::context::{Deadline, Notice};
use super::table::{Room, SpaceWaiter};
use super::{ClientId, CopyId, Node, ObjectView};
use crate::error::Error;
use crate::extent::Extent;
use crate::id::ObjectId;
use crate::shard::{LocationState, UnpublishReason};

impl Node {
    /// Finds room for an object, evicting what may be evicted, least recently used first.
    pub(super) fn allocate(&mut self, size_bytes: u64) -> Option<Extent> {
        loop {
            match self.copies.find_room(self.ctx.limits(), size_bytes) {
                Room::Found(extent) => return Some(extent),
                Room::AfterEvicting(copy) => {
                    self.copies.count_eviction();
                    let id = self.copies[&copy].id.clone();
                    self.abandon(copy, Error::ObjectLost { id }, UnpublishReason::Evicted);
                }
                Room::None => return None,
            }
        }
    }

    /// As [`Node::allocate`], without evicting `kept`, which the object is computed from.
    pub(super) fn allocate_keeping(&mut self, kept: &[CopyId], size_bytes: u64) -> Option<Extent> {
        for copy in kept {
            self.copies.hold(*copy);
        }
        let room = self.allocate(size_bytes);
        self.copies.let_go_after_search(&mut self.ctx, kept);
        room
    }

    /// Has all calls looked at again that wait for a change of `id`.
    pub(super) fn wake(&mut self, id: &ObjectId) {
        if self.calls.is_awaited(id) {
            self.ctx.notify(Notice::Changed(id.clone()));
        }
    }

    /// Marks all bytes valid and answers those who waited for them.
    pub(super) fn complete(&mut self, copy: CopyId) {
        let id = self.copies[&copy].id.clone();
        self.copies.complete(&mut self.ctx, copy);
        self.wake(&id);
    }

    /// Takes a copy out of the index: nobody finds it any more, those who use it keep it until they let go.
    ///
    /// Local waiters are not told; that is the caller's decision.
    pub(super) fn detach(&mut self, copy: CopyId, error: Error) {
        let local = &self.copies[&copy];
        if local.is_live() {
            // A fetch for it has nothing to go on with. Calls that still wait start another one.
            self.end_fetch(&local.id.clone());
            self.detach_copy(copy, error);
        }
    }

    fn detach_copy(&mut self, copy: CopyId, error: Error) {
        let local = &self.copies[&copy];
        let id = local.id.clone();
        let is_target = local.is_public() && local.is_combined();
        let publication = self.copies.publication_mut(copy);
        let (sealer, republish_at) = (publication.take_sealer(), publication.take_republish_time());
        if let Some(time) = republish_at {
            self.ctx.unschedule(time, Deadline::Republish(copy));
        }
        self.copies.detach(&mut self.ctx, copy, error.clone());
        if let Some(key) = sealer {
            self.finish(key, Err(error.clone()));
        }
        if matches!(error, Error::Deleted { .. }) {
            self.ctx.notify(Notice::Deleted(id.clone()));
        }
        if is_target {
            self.ctx.notify(Notice::TargetGone(id, copy, error));
        }
    }

    /// Detaches and unpublishes a copy that the store itself gives up.
    pub(super) fn abandon(&mut self, copy: CopyId, error: Error, reason: UnpublishReason) {
        self.unpublish(copy, reason);
        self.detach(copy, error);
    }

    /// As [`Node::abandon`], for what was received of an object whose fetch goes on.
    pub(super) fn abandon_received(&mut self, copy: CopyId, error: Error) {
        self.unpublish(copy, UnpublishReason::PullEnded);
        self.detach_copy(copy, error);
    }

    /// Tells the directory that this store stops serving a copy, because the daemon ends.
    pub(super) fn withdraw(&mut self, copy: CopyId) {
        self.unpublish(copy, self.reason_to_leave(copy));
        self.detach(copy, Error::ShuttingDown);
    }

    /// What the directory is told when the store gives up a copy now.
    pub(super) fn reason_to_leave(&self, copy: CopyId) -> UnpublishReason {
        match self.copies[&copy].location_state() {
            LocationState::Producing => UnpublishReason::Aborted,
            LocationState::Partial => UnpublishReason::PullEnded,
            LocationState::Complete => UnpublishReason::Evicted,
        }
    }

    /// Gives `client` one more reference, to read.
    pub(super) fn refer(&mut self, client: ClientId, copy: CopyId) -> Result<ObjectView, Error> {
        self.refer_for(client, copy, Purpose::Get)
    }

    /// Gives `client` one more reference.
    pub(super) fn refer_for(
        &mut self,
        client: ClientId,
        copy: CopyId,
        purpose: Purpose,
    ) -> Result<ObjectView, Error> {
        self.calls.check_may_refer(self.ctx.limits(), client, purpose)?;
        self.calls.add_reference(client, copy);
        self.copies.hold(copy);
        Ok(self.copies.view(copy))
    }

    /// A writer gives up its copy, even if the same client reads it and keeps that reference.
    pub(super) fn give_up(&mut self, client: ClientId, copy: CopyId) {
        if self.copies.get(&copy).is_some_and(|local| local.is_written_by(client)) {
            self.abort(copy);
        }
        self.release(client, copy);
    }

    /// Takes back one reference; unknown ones are ignored, for the client may have raced with its own release.
    pub(super) fn release(&mut self, client: ClientId, copy: CopyId) {
        if !self.calls.remove_reference(client, copy) {
            return;
        }
        let is_last = !self.calls.refers(client, copy);
        if is_last && self.copies[&copy].is_written_by(client) {
            self.abort(copy);
        }
        self.let_go(copy);
    }

    /// Ends one [`Table::hold`](super::table::Table::hold).
    pub(super) fn let_go(&mut self, copy: CopyId) {
        let local = &self.copies[&copy];
        let fetched = local.is_received().then(|| local.id.clone());
        self.copies.let_go(&mut self.ctx, copy);
        if let Some(id) = fetched {
            self.reconsider_fetch(&id);
        }
    }

    /// Tries again for those who wait for room, in the order of their arrival. One that still does not fit does not
    /// hold up the others: a huge object that waits must not stop every small one. Whether there was new room.
    pub(super) fn retry_space(&mut self) -> bool {
        let Some(waiters) = self.copies.take_space_waiters() else { return false };
        for waiter in waiters {
            match waiter {
                SpaceWaiter::Create(key) => self.retry_create(key),
                SpaceWaiter::Fetch(id) => self.fetch_has_space(&id),
                SpaceWaiter::Hop(owner) => self.begin_hop(owner),
                SpaceWaiter::Target(id) => self.reconsider_reduce(&id),
                SpaceWaiter::Membership(membership) => self.open_member(membership),
            }
        }
        true
    }
}
