//! Publishes copies: the first two connected shards of an id must know each copy.

use std::time::Duration;

use super::Objects;
use super::notice::Deadline;
use crate::error::Error;
use crate::id::{ObjectId, PutId};
use crate::message::{CopyId, Effect, Urgency};
use crate::shard::{
    DropReason, GrantId, LocationState, Publish, PullOutcome, ToShard, UnpublishReason,
};
use crate::version::Version;

impl Objects {
    fn informed_shards(&self, copy: CopyId) -> Vec<usize> {
        let local = &self.copies[&copy];
        let responsible = self.ctx.responsible_shards(&local.id);
        let mut shards: Vec<usize> = responsible.collect();
        shards.extend(local.publication.known_at().filter(|shard| self.ctx.is_up(*shard)));
        let mut seen = Vec::new();
        shards.retain(|shard| {
            !seen.contains(shard) && {
                seen.push(*shard);
                true
            }
        });
        shards
    }

    pub(crate) fn publish(&mut self, copy: CopyId) {
        self.publish_and_return(copy, None);
    }

    pub(crate) fn publish_and_return(&mut self, copy: CopyId, mut slot: Option<(usize, GrantId)>) {
        if self.copies[&copy].is_public {
            let shards = self.informed_shards(copy);
            for shard in self.limit_to_witnesses(copy, shards) {
                let returned = slot.take_if(|(granted_by, _)| *granted_by == shard);
                self.publish_at(copy, shard, returned.map(|(_, slot)| slot));
            }
        }
        if let Some((shard, slot)) = slot {
            self.return_slot(shard, slot, PullOutcome::Complete);
        }
    }

    /// Publishes at all shards except `answered_by`, which already lists the copy.
    pub(crate) fn publish_elsewhere(&mut self, copy: CopyId, answered_by: usize) {
        self.is_listed_at(copy, answered_by);
        for shard in self.informed_shards(copy) {
            if shard != answered_by {
                self.publish_at(copy, shard, None);
            }
        }
    }

    fn publish_at(&mut self, copy: CopyId, shard: usize, slot: Option<GrantId>) {
        let carries_bytes = self.copies[&copy].is_complete()
            && self.copies[&copy].is_resident()
            && self.copies[&copy].is_pinned()
            && self.ctx.is_inline(self.copies[&copy].size_bytes);
        let returning = self.begin_publication(copy, shard);
        let local = &self.copies[&copy];
        // The store acts on the verdict about a put, an unverified copy or a disputed copy.
        let must_answer = local.is_pinned() || local.publication.is_unverified_at(shard);
        let wants_answer = must_answer || local.publication.is_disputed();
        let mut metadata = local.metadata.to_metadata();
        metadata.replicas.quorum &= self.ctx.sessions.knows(shard, Version::WITH_TERMS);
        let message = ToShard::Publish(Publish {
            id: local.id.clone(),
            put: local.put,
            size_bytes: local.size_bytes,
            metadata,
            state: local.location_state(),
            retention: local.retention,
            pulling_from: local.sender().cloned(),
            inline: None,
            slot,
            wants_answer,
            returning,
        });
        let is_patient =
            self.ctx.is_small(local.size_bytes) && local.publication.sealer().is_none();
        let is_awaited = slot.is_some() || (wants_answer && !is_patient);
        let urgency = if is_awaited { Urgency::Prompt } else { Urgency::Deferrable };
        let inline_from = carries_bytes.then_some(copy);
        self.ctx.push(Effect::ToShard { shard, message, inline_from, urgency });
        self.note_left(copy);
        self.tell_lead(copy);
    }

    /// Notes a publication at a shard. If this run of the shard had listed the put, returns the
    /// time since contact was lost.
    fn begin_publication(&mut self, copy: CopyId, shard: usize) -> Option<Duration> {
        let local = &self.copies[&copy];
        let publication = &local.publication;
        let is_produced = local.location_state() == LocationState::Producing;
        let is_first = !publication.is_known_at(shard) || publication.is_unverified_at(shard);
        let is_witness = publication.was_listed_by(shard, self.ctx.sessions.run(shard));
        let returns = is_first && is_witness && !is_produced;
        let must_verify = returns || (publication.is_returning() && !is_produced);
        // With an absence of zero, the shard rejects a recovered put that it neither lists nor
        // remembers as lost.
        let absence = if self.ctx.sessions.is_first(shard) {
            Duration::ZERO
        } else {
            self.ctx.sessions.absence(self.ctx.now(), shard)
        };
        let publication = self.copies.publication_mut(copy);
        publication.is_known_to(shard);
        if must_verify {
            publication.verify_at(shard);
        }
        returns.then_some(absence)
    }

    pub(crate) fn tell_missing_shards(&mut self, copy: CopyId) {
        let local = &self.copies[&copy];
        let is_unpublished =
            !local.is_public || (local.is_produced_here() && self.ctx.is_small(local.size_bytes));
        if is_unpublished {
            return;
        }
        let known_at: Vec<usize> = local.publication.known_at().collect();
        let shards = self.informed_shards(copy);
        for shard in self.limit_to_witnesses(copy, shards) {
            if !known_at.contains(&shard) {
                self.publish_at(copy, shard, None);
            }
        }
    }

    pub(crate) fn publish_again_later(&mut self, copy: CopyId) {
        if self.copies.is_live(copy)
            && let Some(time) = self.copies.publication_mut(copy).dispute(self.ctx.now())
        {
            self.ctx.schedule(time, Deadline::Republish(copy));
        }
    }

    /// Publishes a copy again after a conflict at a shard that is not its id's first. Only the
    /// first may reject puts: shards that hear of two puts in different order would reject both.
    pub(crate) fn disputed(&mut self, copy: CopyId, shard: usize, winner: PutId) {
        let local = &self.copies[&copy];
        if local.publication.has_outlasted_rivals() {
            let id = local.id.clone();
            self.ctx.tell_shard(shard, ToShard::Forget { id, put: winner });
        }
        self.publish_again_later(copy);
    }

    pub(crate) fn publish_again(&mut self, copy: CopyId) {
        if self.copies.is_live(copy) {
            self.copies.publication_mut(copy).begin_again();
            self.publish(copy);
        }
    }

    pub(crate) fn unpublish(&mut self, copy: CopyId, reason: UnpublishReason) {
        let local = &self.copies[&copy];
        let message = ToShard::Unpublish { id: local.id.clone(), put: local.put, reason };
        for shard in 0..self.ctx.shard_count() {
            // A shard may have sent the put's inline bytes to a store while another shard was away.
            // Unless told, this shard would send the bytes again, and revive the put once the
            // winning put is deleted.
            let has_bytes = reason == UnpublishReason::Conceded && self.ctx.is_up(shard);
            if has_bytes || local.publication.is_known_at(shard) {
                self.ctx.tell_shard(shard, message.clone());
            }
        }
        if matches!(reason, UnpublishReason::Aborted | UnpublishReason::Superseded) {
            self.remember_end(message);
        }
    }

    /// Publishes copies at newly responsible shards, and moves queries.
    pub(crate) fn shard_changed(&mut self, shard: usize) {
        let is_up = self.ctx.is_up(shard);
        if is_up {
            self.faults.shard_reached(shard);
            self.tell_list(shard);
            if self.ctx.is_draining() {
                self.tell_drain(shard);
            }
            self.tell_place(shard);
            if !self.ctx.slow_peers().is_empty() {
                self.tell_slow_links(shard);
            }
            self.tell_recent_ends(shard);
        }
        for copy in self.copies.live_copies() {
            self.copies.publication_mut(copy).session_changed(shard);
            self.recognize(copy, shard);
            self.tell_missing_shards(copy);
            self.tell_lead(copy);
            if !is_up {
                self.settle_publication(copy);
                self.reconsider_quorum(copy);
            }
        }
        self.hold_delete();
        self.rehome_queries(shard);
    }

    pub(crate) fn remember_end(&mut self, message: ToShard) {
        // A disconnected shard must learn of ended puts later.
        if self.ctx.sessions.are_all_up() {
            self.recent_ends.forget_older(self.ctx.now(), self.ctx.limits().tombstone_ttl);
        }
        self.recent_ends.push(self.ctx.now(), message);
    }

    pub(crate) fn remember_deletion(&mut self, id: &ObjectId, put: PutId) {
        self.remember_end(ToShard::Forget { id: id.clone(), put });
    }

    /// Tells a shard of a put's end. Returns `false` if the store no longer remembers it.
    pub(crate) fn tell_end(&mut self, shard: usize, id: &ObjectId, put: PutId) -> bool {
        let message = self.recent_ends.of(id, put).cloned();
        message.map(|message| self.ctx.tell_shard(shard, message)).is_some()
    }

    fn tell_recent_ends(&mut self, shard: usize) {
        let now = self.ctx.now();
        let age = self.ctx.limits().tombstone_ttl.max(self.ctx.sessions.absence(now, shard));
        for message in self.recent_ends.latest(now, age) {
            self.ctx.tell_shard(shard, message.clone());
        }
    }

    pub(crate) fn dropped(&mut self, shard: usize, id: &ObjectId, put: PutId, reason: DropReason) {
        match reason {
            DropReason::Deleted => self.dropped_as_deleted(id, put, shard),
            DropReason::Superseded => self.dropped_as_superseded(id, put),
            DropReason::Lost => {
                let Some(copy) = self.copies.public_put(id, put) else { return };
                match self.copies[&copy].location_state() {
                    // Only the id's first shard decides. This shard may have no session with a
                    // store that has the bytes.
                    LocationState::Partial if self.ctx.first_shard(id) != Some(shard) => {
                        self.publish_again_later(copy);
                    }
                    LocationState::Partial => {
                        let error = Error::ObjectLost { id: id.clone() };
                        self.abandon(copy, error.clone(), UnpublishReason::PullEnded);
                        self.fail_gets(id, &error);
                        self.wake(id);
                    }
                    LocationState::Complete => self.publish(copy),
                    LocationState::Producing => {}
                }
            }
        }
    }

    /// Drops a put that another put replaces. Calls for the whole object then wait for the new put.
    fn dropped_as_superseded(&mut self, id: &ObjectId, put: PutId) {
        let Some(copy) = self.copies.public_put(id, put) else { return };
        if self.copies[&copy].is_received() {
            let error = Error::Superseded { id: id.clone() };
            self.abandon(copy, error, UnpublishReason::PullEnded);
            self.wake(id);
        }
    }

    pub(crate) fn dropped_as_deleted(&mut self, id: &ObjectId, put: PutId, asked_by: usize) {
        self.remember_deletion(id, put);
        let copy = self.copies.public_put(id, put);
        let mut shards = match copy {
            Some(copy) => self.informed_shards(copy),
            None => self.ctx.responsible_shards(id).collect(),
        };
        if !shards.contains(&asked_by) {
            shards.push(asked_by);
        }
        for shard in shards {
            self.ctx.tell_shard(
                shard,
                ToShard::Unpublish { id: id.clone(), put, reason: UnpublishReason::Deleted },
            );
        }
        if let Some(copy) = copy {
            let error = Error::Deleted { id: id.clone() };
            // While the copy was returning, gets waited without its bytes. They look for a newer
            // put.
            let was_served = self.may_serve(copy);
            self.detach(copy, error.clone());
            if was_served {
                self.fail_gets(id, &error);
            }
            self.wake(id);
        }
    }

    pub(crate) fn promoted(&mut self, shard: usize, id: &ObjectId, put: PutId) {
        let Some(copy) = self.copies.public_put(id, put) else { return };
        if self.copies[&copy].is_complete() {
            self.pin(copy);
            self.publish_as_kept(shard, copy);
        }
    }

    /// Publishes a pinned copy, also to `shard`, which ordered it: it then stops its orders.
    pub(crate) fn publish_as_kept(&mut self, shard: usize, copy: CopyId) {
        self.is_listed_at(copy, shard);
        self.publish(copy);
    }
}
