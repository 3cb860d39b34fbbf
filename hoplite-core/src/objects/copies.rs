use super::Objects;
use super::calls::Access;
use super::notice::{Deadline, Notice};
use super::quotas::Payer;
use super::table::{LocalCopy, Object, Phase, Room, Table};
use crate::error::Error;
use crate::extent::Extent;
use crate::id::ObjectId;
use crate::limits::Limits;
use crate::message::{ClientId, CopyId, ObjectView};
use crate::shard::{LocationState, UnpublishReason};

impl Objects {
    pub(crate) fn allocate(&mut self, size_bytes: u64) -> Option<Extent> {
        self.make_room(|copies, limits| copies.find_room(limits, size_bytes))
    }

    /// Allocates memory for an existing copy, without the limit on the number of objects.
    pub(crate) fn allocate_again(&mut self, size_bytes: u64) -> Option<Extent> {
        self.make_room(|copies, _| copies.find_extent(size_bytes))
    }

    fn make_room(&mut self, mut find: impl FnMut(&mut Table, &Limits) -> Room) -> Option<Extent> {
        loop {
            match find(&mut self.copies, self.ctx.limits()) {
                Room::Found(extent) => return Some(extent),
                Room::AfterEvicting(copy) => {
                    self.copies.count_eviction();
                    let id = self.copies[&copy].id.clone();
                    self.abandon(
                        copy,
                        Error::ObjectLost { id: id.clone() },
                        UnpublishReason::Evicted,
                    );
                    // Gets that waited for this copy now fetch the object.
                    self.wake(&id);
                }
                Room::AfterDropping(copy) => self.copies.drop_memory(&mut self.ctx, copy),
                Room::None if self.give_up_stalled() => {}
                Room::None => return None,
            }
        }
    }

    pub(crate) fn allocate_keeping(&mut self, kept: &[CopyId], size_bytes: u64) -> Option<Extent> {
        for copy in kept {
            self.copies.hold(*copy);
        }
        let room = self.allocate(size_bytes);
        self.copies.let_go_after_search(&mut self.ctx, kept);
        room
    }

    pub(crate) fn open(
        &mut self,
        object: Object,
        room: Extent,
        phase: Phase,
        payer: Payer,
    ) -> CopyId {
        self.copies.open(&mut self.ctx, LocalCopy::begin(object, room, phase).paid_by(payer))
    }

    pub(crate) fn wake(&mut self, id: &ObjectId) {
        if self.calls.is_awaited(id) {
            self.ctx.notify(Notice::Changed(id.clone()));
        }
    }

    pub(crate) fn complete(&mut self, copy: CopyId) {
        let id = self.copies[&copy].id.clone();
        self.copies.complete(&mut self.ctx, copy);
        self.wake(&id);
    }

    /// Hides a copy from new users, and frees it after its present users. The caller wakes the
    /// waiting calls.
    pub(crate) fn detach(&mut self, copy: CopyId, error: Error) {
        let local = &self.copies[&copy];
        if local.is_live() {
            // Waiting calls start another fetch.
            self.end_fetch(&local.id.clone());
            self.detach_copy(copy, error);
        }
    }

    fn detach_copy(&mut self, copy: CopyId, error: Error) {
        let local = &self.copies[&copy];
        let id = local.id.clone();
        let is_target = local.is_public && local.is_combined();
        self.forget_left(copy);
        self.lifetimes.forget(&mut self.ctx, copy);
        let publication = self.copies.publication_mut(copy);
        let (sealer, republish_at) = (publication.take_sealer(), publication.take_republish_time());
        if let Some(time) = republish_at {
            self.ctx.unschedule(time, Deadline::Republish(copy));
        }
        self.copies.detach(&mut self.ctx, copy, error.clone());
        if let Some(key) = sealer {
            self.finish(key, Err(error.clone()));
        }
        if is_target || matches!(error, Error::Deleted { .. }) {
            self.ctx.notify(Notice::Gone(id, copy, error));
        }
    }

    pub(crate) fn drop_private(&mut self, copy: CopyId, error: Error) {
        self.copies.detach(&mut self.ctx, copy, error);
    }

    pub(crate) fn abandon(&mut self, copy: CopyId, error: Error, reason: UnpublishReason) {
        self.unpublish(copy, reason);
        self.detach(copy, error);
    }

    /// Gives up a partial copy. The fetch of its object goes on.
    pub(crate) fn abandon_received(&mut self, copy: CopyId, error: Error) {
        self.unpublish(copy, UnpublishReason::PullEnded);
        self.detach_copy(copy, error);
    }

    pub(crate) fn withdraw_copies(&mut self) {
        for copy in self.copies.live_copies() {
            self.unpublish(copy, self.reason_to_leave(copy));
            self.detach(copy, Error::ShuttingDown);
        }
    }

    pub(crate) fn reason_to_leave(&self, copy: CopyId) -> UnpublishReason {
        match self.copies[&copy].location_state() {
            LocationState::Producing => UnpublishReason::Aborted,
            LocationState::Partial => UnpublishReason::PullEnded,
            LocationState::Complete => UnpublishReason::Evicted,
        }
    }

    pub(crate) fn refer(
        &mut self,
        client: ClientId,
        copy: CopyId,
        access: Access,
    ) -> Result<ObjectView, Error> {
        self.calls.check_may_refer(self.ctx.limits(), client, access)?;
        self.calls.add_reference(client, copy);
        self.copies.hold(copy);
        Ok(self.copies.view(copy))
    }

    pub(crate) fn give_up(&mut self, client: ClientId, copy: CopyId) {
        if self.copies.get(&copy).is_some_and(|local| local.is_written_by(client)) {
            self.abort(copy);
        }
        self.release(client, copy);
    }

    /// Releases a client's reference. Ignores an unknown one.
    pub(crate) fn release(&mut self, client: ClientId, copy: CopyId) {
        if !self.calls.remove_reference(client, copy) {
            return;
        }
        let is_last = !self.calls.refers(client, copy);
        if is_last && self.copies[&copy].is_written_by(client) {
            self.abort(copy);
        }
        self.let_go(copy);
    }

    pub(crate) fn let_go(&mut self, copy: CopyId) {
        let local = &self.copies[&copy];
        let fetched = local.is_received().then(|| local.id.clone());
        self.copies.let_go(&mut self.ctx, copy);
        if let Some(id) = fetched {
            self.reconsider_fetch(&id);
        }
    }
}
