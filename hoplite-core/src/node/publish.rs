//! Publication: each copy is known at the first two connected shards of its id.

use super::copies::{Phase, Standing};
use super::fetch::back_off;
use super::{CopyId, Deadline, Effect, Node};
use crate::error::Error;
use crate::id::{ObjectId, PutId};
use crate::shard::{DropReason, Publish, ToShard, UnpublishReason};

impl Node {
    /// The shards that know `id` while `up` are connected.
    fn replicas(&self, id: &ObjectId, up: &[bool]) -> Vec<usize> {
        self.config.shards.replicas(id, |shard| up[shard]).collect()
    }

    /// Tells all shards of a copy how far it is.
    pub(super) fn publish(&mut self, copy: CopyId) {
        for shard in self.replicas(&self.copies[&copy].id, &self.shards_up) {
            self.publish_at(copy, shard);
        }
    }

    /// Tells all shards of a copy how far it is, but for one that knows already.
    pub(super) fn publish_except(&mut self, copy: CopyId, informed: usize) {
        for shard in self.replicas(&self.copies[&copy].id, &self.shards_up) {
            if shard != informed {
                self.publish_at(copy, shard);
            }
        }
    }

    fn publish_at(&mut self, copy: CopyId, shard: usize) {
        let state = self.location_state(copy);
        let carries_bytes = self.copies[&copy].is_complete()
            && self.copies[&copy].is_pinned()
            && self.is_inline(self.copies[&copy].size_bytes);
        let local = self.copy_mut(copy);
        if let Standing::Pending { shards } = &mut local.standing
            && !shards.contains(&shard)
        {
            shards.push(shard);
        }
        let pulling_from = match &local.phase {
            Phase::Receiving { pull: Some(active), .. } => Some(active.sender.clone()),
            _ => None,
        };
        let message = ToShard::Publish(Publish {
            id: local.id.clone(),
            put: local.put,
            size_bytes: local.size_bytes,
            metadata: local.metadata.clone(),
            state,
            retention: local.retention,
            pulling_from,
            inline: None,
        });
        self.effects.push(Effect::ToShard { shard, message, inline_from: carries_bytes.then_some(copy) });
    }

    /// Publishes a copy again after a pause, because a shard did not agree with what others know.
    pub(super) fn publish_again_later(&mut self, copy: CopyId) {
        let now = self.now;
        let local = self.copy_mut(copy);
        if local.republish_at.is_some() || local.detached.is_some() {
            return;
        }
        local.disputes = local.disputes.saturating_add(1);
        let time = now + back_off(local.disputes.saturating_add(1));
        local.republish_at = Some(time);
        self.deadlines.insert((time, Deadline::Republish(copy)));
    }

    pub(super) fn publish_again(&mut self, copy: CopyId) {
        if let Some(local) = self.copies.get_mut(&copy) {
            local.republish_at = None;
            self.publish(copy);
        }
    }

    /// Tells all shards of a copy that it is gone.
    pub(super) fn unpublish(&mut self, copy: CopyId, reason: UnpublishReason) {
        let local = &self.copies[&copy];
        let (id, put) = (local.id.clone(), local.put);
        for shard in self.replicas(&id, &self.shards_up) {
            self.tell_shard(shard, ToShard::Unpublish { id: id.clone(), put, reason });
        }
    }

    pub(super) fn tell_shard(&mut self, shard: usize, message: ToShard) {
        self.effects.push(Effect::ToShard { shard, message, inline_from: None });
    }

    /// A session came or went: publishes copies at shards that are responsible only now, moves what was asked of
    /// others.
    pub(super) fn shard_changed(&mut self, shard: usize, is_up: bool) {
        if shard >= self.shards_up.len() || self.is_shutting_down {
            return;
        }
        let before = self.shards_up.clone();
        self.shards_up[shard] = is_up;
        let after = self.shards_up.clone();
        let live: Vec<CopyId> = self.index.values().copied().collect();
        for copy in live {
            let id = self.copies[&copy].id.clone();
            let known_at = self.replicas(&id, &before);
            let is_unpublished_yet = matches!(self.copies[&copy].phase, Phase::Writing { .. })
                && self.is_inline(self.copies[&copy].size_bytes);
            for responsible in self.replicas(&id, &after) {
                // A session that is new knows nothing, even if the same shard was there before.
                let is_new = !known_at.contains(&responsible) || (responsible == shard && is_up);
                if is_new && !is_unpublished_yet {
                    self.publish_at(copy, responsible);
                }
            }
            if !is_up {
                self.verdict_came(copy, shard);
            }
        }
        self.rehome_asks(shard);
    }

    /// The directory tells this store to drop a copy.
    pub(super) fn dropped(&mut self, shard: usize, id: &ObjectId, put: PutId, reason: DropReason) {
        match reason {
            DropReason::Deleted => self.dropped_as_deleted(id, put, shard),
            DropReason::Lost => {
                let Some(copy) = self.live_put(id, put) else { return };
                match self.copies[&copy].phase {
                    // The first shard knows better; this one may have lost a session that the other has.
                    Phase::Receiving { .. } if self.first_shard(id) != Some(shard) => {
                        self.publish_again_later(copy);
                    }
                    Phase::Receiving { .. } => {
                        let error = Error::ObjectLost { id: id.clone() };
                        self.abandon(copy, error.clone(), UnpublishReason::PullEnded);
                        self.fail_gets(id, &error);
                        self.wake(id);
                    }
                    // All bytes are here, so the object is not lost: say so again.
                    Phase::Complete => self.publish(copy),
                    Phase::Writing { .. } => {}
                }
            }
        }
    }

    /// Drops the copy of a deleted put, and says so to every shard that may count on it.
    pub(super) fn dropped_as_deleted(&mut self, id: &ObjectId, put: PutId, asked_by: usize) {
        let mut shards = self.replicas(id, &self.shards_up);
        if !shards.contains(&asked_by) {
            shards.push(asked_by);
        }
        for shard in shards {
            self.tell_shard(
                shard,
                ToShard::Unpublish { id: id.clone(), put, reason: UnpublishReason::Deleted },
            );
        }
        if let Some(copy) = self.live_put(id, put) {
            let error = Error::Deleted { id: id.clone() };
            self.detach(copy, error.clone());
            self.fail_gets(id, &error);
            self.wake(id);
        }
    }

    pub(super) fn promoted(&mut self, id: &ObjectId, put: PutId) {
        let Some(copy) = self.live_put(id, put) else { return };
        if self.copies[&copy].is_complete() {
            self.copy_mut(copy).retention = crate::shard::Retention::Pinned;
            if let Some(bytes) = self.evictable.pop(&copy) {
                self.evictable_bytes -= bytes;
            }
            self.publish(copy);
        }
    }
}
