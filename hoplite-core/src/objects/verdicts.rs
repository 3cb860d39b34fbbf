//! Conflicts with another put of the same id.

use super::Objects;
use super::publication::Rival;
use super::spill::Fetched;
use crate::error::Error;
use crate::id::{ObjectId, PutId};
use crate::message::{ClientId, CopyId, Effect, Unrecovered};
use crate::shard::{Equality, UnpublishReason, Verdict};

impl Objects {
    pub(crate) fn published(&mut self, shard: usize, id: &ObjectId, put: PutId, verdict: Verdict) {
        let Some(copy) = self.copies.public_put(id, put) else { return };
        let is_decisive = self.ctx.first_shard(id) == Some(shard);
        if matches!(verdict, Verdict::ShardFull | Verdict::Conflict { .. }) {
            self.copies.publication_mut(copy).is_not_listed_by(shard);
        }
        if verdict == Verdict::ShardFull {
            self.verified(copy, shard);
        }
        match verdict {
            Verdict::Deleted if self.is_in_doubt(copy) => {
                self.drop_recovered(copy, Unrecovered::Deleted)
            }
            Verdict::Conflict { winner, .. } if self.is_in_doubt(copy) => {
                self.drop_recovered(copy, Unrecovered::Conflict { winner });
            }
            Verdict::Deleted => self.dropped_as_deleted(id, put, shard),
            Verdict::Accepted | Verdict::Cyclic { .. } => {
                // The other shard's answer may concern an earlier sender.
                if let Verdict::Cyclic { sender } = &verdict
                    && self.copies[&copy].sender() == Some(sender)
                {
                    self.copies.leave_sender(&mut self.ctx, copy);
                }
                self.accepted(copy, shard);
                self.settle_publication(copy);
            }
            Verdict::ShardFull if !is_decisive => {}
            Verdict::Conflict { winner, .. } if !is_decisive => self.disputed(copy, shard, winner),
            Verdict::Conflict { winner, .. } if self.tell_end(shard, id, winner) => {
                self.publish_again_later(copy);
            }
            // The winning put may have ended while the shard was away. Another store will tell the
            // shard.
            Verdict::Conflict { .. }
                if self.ctx.sessions.has_just_returned(shard)
                    && (self.copies[&copy].publication.was_accepted()
                        || self.ctx.reading_shard(id) != Some(shard)) =>
            {
                self.copies.publication_mut(copy).contest();
                self.publish_again_later(copy);
            }
            Verdict::ShardFull => {
                if let Some(key) = self.copies.publication_mut(copy).take_sealer() {
                    let limit = self.ctx.limits().max_objects as u64;
                    let error = Error::limit_exceeded("objects of a directory shard", limit);
                    self.finish(key, Err(error.clone()));
                    self.abandon(copy, error, UnpublishReason::Aborted);
                }
            }
            Verdict::Conflict { winner, equality } => match equality {
                Equality::Equal => self.adopt(copy, winner),
                Equality::Unknown { holder: Some(holder) } if self.is_put(copy) => {
                    // Another shard may have accepted the put while the deciding shard was away.
                    self.copies.publication_mut(copy).contest();
                    let is_complete = self.copies[&copy].is_complete();
                    match if is_complete { self.bring(copy) } else { Fetched::Coming } {
                        Fetched::Here => self.compare(copy, Box::new((winner, holder))),
                        Fetched::Coming => {
                            let rival = Box::new((winner, holder));
                            self.copies.publication_mut(copy).set_rival(rival);
                        }
                        Fetched::Failed(_) => self.publish_again_later(copy),
                    }
                }
                // No connected node has the earlier put, which may return or count as lost soon.
                Equality::Unknown { holder: None }
                    if self.is_put(copy)
                        && !self.copies[&copy].publication.is_disputed_for_long() =>
                {
                    self.copies.publication_mut(copy).contest();
                    self.publish_again_later(copy);
                }
                Equality::Different | Equality::Unknown { .. } => self.lost_conflict(copy, winner),
            },
        }
    }

    pub(super) fn is_put(&self, copy: CopyId) -> bool {
        !self.copies[&copy].is_received() && self.copies[&copy].is_pinned()
    }

    pub(super) fn compare(&mut self, copy: CopyId, rival: Rival) {
        let local = &self.copies[&copy];
        if local.is_comparing {
            // One comparison at a time. A later publication reports a third put again.
            if local.publication.rival().is_none_or(|compared| compared.0 != rival.0) {
                self.publish_again_later(copy);
            }
            return;
        }
        let id = local.id.clone();
        self.copies.begin_compare(copy);
        let (winner, holder) = (*rival).clone();
        self.copies.publication_mut(copy).set_rival(rival);
        self.ctx.push(Effect::Compare { copy, id, winner, holder });
    }

    pub(crate) fn compared(&mut self, copy: CopyId, equal: Option<bool>) {
        if !self.copies.end_compare(&mut self.ctx, copy) {
            return;
        }
        if !self.copies.is_live(copy) {
            return;
        }
        let Some(rival) = self.copies.publication_mut(copy).take_rival() else {
            // The id's first shard has accepted the put. A shard that lists the rival needs this
            // put again.
            if self.copies[&copy].publication.lacks_acceptances() {
                self.publish_again_later(copy);
            }
            return;
        };
        match equal {
            Some(true) => self.adopt(copy, rival.0),
            Some(false) => self.lost_conflict(copy, rival.0),
            // The next publication's verdict decides.
            None => self.publish_again_later(copy),
        }
    }

    fn adopt(&mut self, copy: CopyId, winner: PutId) {
        // The id's second shard may still list the copy under its old put id.
        self.unpublish(copy, UnpublishReason::Conceded);
        self.lifetimes.forget(&mut self.ctx, copy);
        self.copies.rename_put(copy, winner);
        self.copies.publication_mut(copy).rename();
        if self.copies[&copy].is_complete() {
            self.publish(copy);
            self.answer_sealer(copy);
        }
    }

    fn lost_conflict(&mut self, copy: CopyId, winner: PutId) {
        self.put_conflicts += 1;
        let local = &self.copies[&copy];
        let (id, put) = (local.id.clone(), local.put);
        if local.publication.was_accepted() {
            let is_told = |client: &ClientId| {
                local.publication.sealer().is_none() && self.lifetimes.owners.is_connected(*client)
            };
            let writer = local.creator().filter(is_told);
            self.ctx.push(Effect::PutLost { id: id.clone(), put, winner });
            if let Some(writer) = writer {
                self.conflicts.note(writer, id.clone());
            }
        }
        // Waiting calls get the first put.
        let reason = match self.reason_to_leave(copy) {
            UnpublishReason::Evicted => UnpublishReason::Conceded,
            unfinished => unfinished,
        };
        self.unpublish(copy, reason);
        self.detach(copy, Error::AlreadyExists { id: id.clone() });
        self.wake(&id);
    }
}
