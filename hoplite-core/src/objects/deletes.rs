//! Deletes of clients.
//!
//! 1. One shard of an id removes the put, and waits until the stores with a copy have dropped it.
//! 2. The id's other shard removes the same put, because some stores may reach only that shard.
//! 3. The store answers the call. If only restarted shards took part, it first waits until the
//!    leases of their earlier runs have ended.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Objects;
use super::calls::Call;
use super::deletion::{DeleteCall, DeleteStep};
use super::queries::Purpose;
use crate::error::{Operation, Result};
use crate::id::{NodeId, ObjectId, PutId};
use crate::message::{CallKey, Response};
use crate::missing::Named;
use crate::shard::{DeleteWait, RequestId, ToShard};
use crate::version::Version;

impl Objects {
    /// `ended` counts unfinished reduces and collectives of these ids that the caller has ended.
    pub(crate) fn delete(
        &mut self,
        key: CallKey,
        ids: BTreeSet<ObjectId>,
        ended: usize,
        (timeout, wait): (Duration, DeleteWait),
    ) {
        let purpose = Purpose::Delete(key, DeleteStep::new(wait));
        let queries = ids.into_iter().map(|id| self.query(id, purpose.clone())).collect();
        let call = Call::Delete(DeleteCall::new(queries, ended));
        self.calls.enter(&mut self.ctx, key, call, Operation::Delete, timeout);
        self.finish_delete(key);
    }

    /// # Errors
    /// [`Error::VersionMismatch`](crate::Error::VersionMismatch) if a connected shard of protocol
    /// version 8 cannot wait for unreachable stores.
    pub(crate) fn check_wait(&self, ids: &BTreeSet<ObjectId>, wait: DeleteWait) -> Result<()> {
        if wait == DeleteWait::Reachable {
            return Ok(());
        }
        let mut shards = ids.iter().flat_map(|id| self.ctx.responsible_shards(id));
        shards.try_for_each(|shard| self.ctx.sessions.require(shard, Version::WITH_TERMS))
    }

    /// A shard of protocol version 8 ignores the put and stores that a delete names, and might
    /// remove a newer put. So it is only told to forget the put, and a delete that waits for
    /// unreachable stores fails.
    pub(super) fn send_delete(
        &mut self,
        shard: usize,
        (request, id): (RequestId, ObjectId),
        key: CallKey,
        step: DeleteStep,
    ) {
        let terms = step.terms();
        if let Err(error) = self.ctx.sessions.require(shard, Version::WITH_TERMS) {
            if terms.wait == DeleteWait::All {
                return self.finish(key, Err(error));
            }
            if let Some(put) = terms.only {
                self.ctx.tell_shard(shard, ToShard::Forget { id, put });
                return self.delete_ended(shard, request, key, step);
            }
        }
        self.ctx.tell_shard(shard, ToShard::Delete { request, id, terms });
    }

    pub(crate) fn delete_done(
        &mut self,
        shard: usize,
        request: RequestId,
        put: Option<PutId>,
        absent: Named<NodeId>,
    ) {
        let Some(Purpose::Delete(key, mut step)) = self.queries.purpose_at(shard, request) else {
            return;
        };
        let Some(id) = self.queries.id(request).cloned() else { return };
        let is_over = !step.waits_for(&absent);
        let news = put.filter(|put| step.put() != Some(*put));
        step.found(put);
        if let Some(Call::Delete(delete)) = self.calls.get_mut(key) {
            delete.note_absent(request, shard, absent);
        }
        let next = self.ctx.responsible_shards(&id).find(|other| *other != shard);
        let next = next
            .filter(|next| is_over && !step.is_confirmation() && self.must_confirm(*next, step));
        if let Some(put) = news {
            self.remember_deletion(&id, put);
            self.tell_other_shards((shard, next), &id, put);
        }
        match next {
            Some(next) => {
                step.confirm(shard);
                self.queries.confirm_at(next, request, key, step);
                self.send_query(request);
            }
            None if is_over => self.delete_ended(shard, request, key, step),
            None => self.queries.confirm_at(shard, request, key, step),
        }
    }

    /// Returns `true` if this shard must confirm another shard's delete. A just restarted shard
    /// cannot confirm that no put exists.
    fn must_confirm(&self, shard: usize, step: DeleteStep) -> bool {
        step.has_found() || self.ctx.sessions.is_trusted(shard)
    }

    /// Tells further shards to forget the put, which they may list after another shard's outage.
    fn tell_other_shards(&mut self, (by, next): (usize, Option<usize>), id: &ObjectId, put: PutId) {
        for other in 0..self.ctx.shard_count() {
            if other != by && Some(other) != next && self.ctx.is_up(other) {
                self.ctx.tell_shard(other, ToShard::Forget { id: id.clone(), put });
            }
        }
    }

    fn delete_ended(&mut self, shard: usize, request: RequestId, key: CallKey, step: DeleteStep) {
        self.queries.answered(shard, request);
        let is_young = |shard: &usize| !self.ctx.sessions.is_trusted(*shard);
        let young = step.done_by(shard).all(|shard| is_young(&shard)).then_some(shard);
        if let Some(Call::Delete(delete)) = self.calls.get_mut(key) {
            delete.answered(request, step.has_found(), young);
            self.finish_delete(key);
        }
    }

    pub(crate) fn finish_deletes(&mut self) {
        for key in self.calls.keys() {
            self.finish_delete(key);
        }
    }

    fn finish_delete(&mut self, key: CallKey) {
        if let Some(Call::Delete(delete)) = self.calls.get(key)
            && let Some(count) = delete.outcome(&self.ctx.sessions)
        {
            let absent = delete.absent();
            self.finish(key, Ok(Response::Deleted { count, absent }));
        }
    }
}
