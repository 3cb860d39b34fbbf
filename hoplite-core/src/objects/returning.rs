//! Copies that return to the directory after their store was cut off or frozen.
//!
//! # Serving
//!
//! The store serves a copy while it has a lease ([`shard_sessions`](super::shard_sessions)) of a
//! shard that knows the copy. Otherwise gets wait as if there were no copy. A copy that no shard
//! was told of, or that is being produced here, needs no lease.
//!
//! # Returning
//!
//! A shard forgets deleted objects after a while, but no listed object, except in a restart. If it
//! no longer lists a put that it has listed in its present run, the put was deleted, or all its
//! copies were lost. The shard remembers losses (`shard/memory.rs`). So the store remembers which
//! runs of shards have listed the put, and marks the first publication of a new session with such a
//! run as *returning*. The shard answers `Deleted` if it has listed the put and has not lost it.
//!
//! A shard has certainly listed a put if it has accepted a publication, or has granted or sent the
//! object.
//!
//! After the store has lost contact with all shards of a copy, the copy *returns*: it is served
//! only after a shard has confirmed the put. The store first queries shards that have listed the
//! put in their present run, and then tells the others. It waits two seconds for unconnected shards
//! that have listed the put, because a restarted shard would list a deleted put again.

use super::Objects;
use super::notice::Deadline;
use crate::id::ObjectId;
use crate::message::{CopyId, Effect};
use crate::shard::{LocationState, ShardRun};
use crate::time::Time;
use crate::version::Version;

impl Objects {
    /// Returns `true` if the copy's put cannot have been deleted without this store's knowledge.
    pub(crate) fn may_serve(&self, copy: CopyId) -> bool {
        let local = &self.copies[&copy];
        let has_lease = |shard| self.ctx.sessions.has_lease(self.ctx.now(), shard);
        !local.is_public
            || local.location_state() == LocationState::Producing
            || !local.publication.was_told()
            || local.publication.watched_by().any(has_lease)
    }

    pub(crate) fn copy_to_serve(&self, id: &ObjectId) -> Option<CopyId> {
        self.copies.complete_copy(id).filter(|copy| self.may_serve(*copy))
    }

    /// Removes shards at which a copy may not be published yet: after lost contact, shards that
    /// listed its put must confirm it first.
    pub(crate) fn limit_to_witnesses(
        &mut self,
        copy: CopyId,
        mut shards: Vec<usize>,
    ) -> Vec<usize> {
        let local = &self.copies[&copy];
        let publication = &local.publication;
        if !publication.is_returning() || local.location_state() == LocationState::Producing {
            return shards;
        }
        let is_witness =
            |shard: &usize| publication.was_listed_by(*shard, self.ctx.sessions.run(*shard));
        let settled_at = self.ctx.sessions.settled_at();
        // The shards that listed a recovered put are unknown until they connect.
        let lacks_witness = publication.is_recovered() && !shards.iter().any(is_witness);
        let is_awaited =
            lacks_witness || publication.witnesses().any(|shard| !self.ctx.is_up(shard));
        let may_connect = self.ctx.now() < settled_at && is_awaited;
        if may_connect || shards.iter().any(is_witness) {
            shards.retain(|shard| is_witness(shard) || publication.is_known_at(*shard));
        }
        if may_connect {
            self.ctx.schedule(settled_at, Deadline::Settled);
        }
        shards
    }

    /// Publishes copies that waited for the shards that had listed them.
    pub(crate) fn sessions_settled(&mut self) {
        for copy in self.copies.live_copies() {
            if self.copies[&copy].publication.is_returning() {
                self.tell_missing_shards(copy);
            }
        }
    }

    pub(crate) fn is_listed_at(&mut self, copy: CopyId, shard: usize) {
        let run = self.ctx.sessions.run(shard);
        let publication = self.copies.publication_mut(copy);
        publication.is_known_to(shard);
        publication.verified(shard);
        if let Some(run) = run {
            publication.is_listed_by(shard, run);
        }
    }

    pub(crate) fn accepted(&mut self, copy: CopyId, shard: usize) {
        if let Some(run) = self.ctx.sessions.run(shard) {
            self.copies.publication_mut(copy).is_listed_by(shard, run);
        }
        self.copies.publication_mut(copy).accept(shard);
        self.verified(copy, shard);
    }

    pub(crate) fn verified(&mut self, copy: CopyId, shard: usize) {
        if self.copies.publication_mut(copy).verified(shard) {
            self.tell_missing_shards(copy);
            let id = self.copies[&copy].id.clone();
            self.wake(&id);
        }
    }

    pub(crate) fn shard_is_up(
        &mut self,
        shard: usize,
        run: ShardRun,
        asked_at: Time,
        version: Version,
    ) {
        let is_listed = shard < self.ctx.shard_count() && !self.ctx.sessions.is_removed(shard);
        if is_listed && !self.ctx.is_shutting_down() {
            if self.copies.spills() {
                self.ctx.push(Effect::NoteShardRun { run });
            }
            self.ctx.sessions.begin(self.ctx.now(), shard, run, asked_at, version);
            for until in self.ctx.sessions.doubted_until(shard) {
                self.ctx.schedule(until, Deadline::Trusted(shard));
            }
            self.shard_changed(shard);
        }
    }

    pub(crate) fn shard_is_down(&mut self, shard: usize) {
        if shard < self.ctx.shard_count() && !self.ctx.is_shutting_down() {
            self.ctx.sessions.end(self.ctx.now(), shard);
            self.shard_changed(shard);
        }
    }

    pub(crate) fn shard_answered(&mut self, shard: usize, pinged_at: Time) {
        if self.ctx.sessions.answered(self.ctx.now(), shard, pinged_at) {
            for id in self.calls.awaited() {
                self.wake(&id);
            }
        }
    }
}
