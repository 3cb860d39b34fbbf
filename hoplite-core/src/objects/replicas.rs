//! Copies that a shard orders this store to keep, and puts that wait for copies at other stores.

use super::Objects;
use super::fetch::FetchStep;
use super::orders::Order;
use crate::error::Error;
use crate::id::{ObjectId, PutId};
use crate::message::CopyId;
use crate::metadata::{Metadata, Replicas};
use crate::shard::{Lead, Obstacle, Replicate, Replication, ToShard};

impl Objects {
    pub(crate) fn set_default_replicas(&self, metadata: &mut Metadata) {
        if metadata.replicas.wanted == 0 && self.ctx.config().replicas > 1 {
            metadata.replicas.wanted = self.ctx.config().replicas;
        }
    }

    pub(crate) fn replicate(&mut self, shard: usize, order: Replicate) {
        let Replicate { id, put, size_bytes, metadata } = order;
        let refusal = match self.copies.live(&id) {
            _ if self.ctx.is_draining() => Some(Obstacle::NoNode),
            Some((copy, local)) if local.put == put && local.is_complete() && local.is_public => {
                self.copies.want_replicas(copy, metadata.replicas);
                return self.promoted(shard, &id, put);
            }
            Some((_, local)) if local.put == put && local.is_received() && local.is_public => None,
            Some(_) => Some(Obstacle::Failed),
            None if self.check_incoming(&id, size_bytes, &metadata).is_err() => {
                Some(Obstacle::NoRoom)
            }
            None if !self.copies.may_fit(size_bytes) => Some(Obstacle::NoRoom),
            None => None,
        };
        if let Some(reason) = refusal {
            return self.ctx.tell_shard(shard, ToShard::NotReplicated { id, put, reason });
        }
        if let Some(earlier) = self.orders.insert(id.clone(), Order { shard, put })
            && earlier.put != put
        {
            let (put, reason) = (earlier.put, Obstacle::Failed);
            self.ctx
                .tell_shard(earlier.shard, ToShard::NotReplicated { id: id.clone(), put, reason });
        }
        self.fetch(&id);
        if matches!(self.fetches.step(&id), Some(FetchStep::WaitingForSpace { .. })) {
            self.decline_order(&id, Obstacle::NoRoom);
        }
    }

    /// Pins the copy and returns `true` if a shard ordered this store to keep it.
    pub(crate) fn keep_ordered(&mut self, copy: CopyId) -> bool {
        let (id, put) = (self.copies[&copy].id.clone(), self.copies[&copy].put);
        if self.orders.get(&id).is_none_or(|order| order.put != put) {
            return false;
        }
        if let Some(order) = self.orders.remove(&id) {
            self.copies.publication_mut(copy).is_known_to(order.shard);
        }
        self.pin(copy);
        true
    }

    pub(crate) fn decline_order(&mut self, id: &ObjectId, reason: Obstacle) {
        if let Some(Order { shard, put }) = self.orders.remove(id) {
            self.ctx.tell_shard(shard, ToShard::NotReplicated { id: id.clone(), put, reason });
        }
    }

    pub(crate) fn decline_order_of_other(&mut self, id: &ObjectId, put: PutId) {
        if self.orders.get(id).is_some_and(|order| order.put != put) {
            self.decline_order(id, Obstacle::Failed);
        }
    }

    pub(crate) fn replicated(&mut self, shard: usize, news: Replication) {
        let Some(copy) = self.copies.public_put(&news.id, news.put) else { return };
        if self.ctx.first_shard(&news.id) != Some(shard) {
            return;
        }
        let (id, present) = (news.id.clone(), u64::from(news.nodes));
        self.drain_told(shard, copy, &news);
        self.copies.publication_mut(copy).set_replication(news);
        let local = &self.copies[&copy];
        let wanted = local.metadata.replicas.to_keep() as u64;
        if wanted > 1
            && wanted > present
            && local.is_complete()
            && local.publication.sealer().is_some()
        {
            return self.take_back_put(copy, Error::NotEnoughNodes { wanted, present });
        }
        self.answer_sealer(copy);
        self.wake(&id);
    }

    pub(crate) fn take_back_put(&mut self, copy: CopyId, error: Error) {
        let local = &self.copies[&copy];
        let (id, put) = (local.id.clone(), local.put);
        let shards = local.publication.known_at().collect::<Vec<_>>();
        self.remember_deletion(&id, put);
        for shard in shards {
            self.ctx.tell_shard(shard, ToShard::Forget { id: id.clone(), put });
        }
        self.detach(copy, error);
        self.wake(&id);
    }

    pub(crate) fn has_awaited_copies(&self, copy: CopyId, replicas: Replicas) -> bool {
        let awaited = replicas.to_await();
        awaited <= 1 || self.present_copies(copy) >= awaited
    }

    pub(crate) fn present_copies(&self, copy: CopyId) -> usize {
        let told = self.copies[&copy].publication.replication();
        told.map_or(0, |told| usize::try_from(told.copies).unwrap_or(usize::MAX))
    }

    /// Requests once the number of stores that can keep a copy. Returns `true` once the answer is
    /// here.
    pub(crate) fn has_counted_nodes(&mut self, copy: CopyId) -> bool {
        let publication = self.copies.publication_mut(copy);
        if std::mem::replace(&mut publication.counts_nodes, true) {
            let is_told = publication.replication().is_some();
            publication.counts_nodes = !is_told;
            return is_told;
        }
        publication.set_lead(None);
        self.tell_lead(copy);
        false
    }

    pub(crate) fn check_nodes(&self, copy: CopyId, replicas: Replicas) -> Option<Error> {
        let told = self.copies[&copy].publication.replication()?;
        let (wanted, present) = (replicas.to_keep() as u64, u64::from(told.nodes));
        (wanted > 1 && wanted > present).then_some(Error::NotEnoughNodes { wanted, present })
    }

    pub(crate) fn tell_lead(&mut self, copy: CopyId) {
        let local = &self.copies[&copy];
        let is_tracked = local.metadata.replicas.to_keep() > 1
            || self.ctx.is_draining()
            || local.publication.counts_nodes;
        if !is_tracked || !local.is_pinned() {
            return;
        }
        let publication = &local.publication;
        let first = self.ctx.first_shard(&local.id).filter(|shard| publication.is_known_at(*shard));
        let earlier = publication.lead();
        if first.is_none() || first == earlier {
            return;
        }
        let is_new = !local.is_complete() || publication.sealer().is_some();
        let (id, put) = (local.id.clone(), local.put);
        let lead =
            |leads| ToShard::Lead(Lead { id: id.clone(), put, leads, is_new: is_new && leads });
        if let Some(earlier) = earlier.filter(|shard| self.ctx.is_up(*shard)) {
            self.ctx.tell_shard(earlier, lead(false));
        }
        if let Some(first) = first {
            self.ctx.tell_shard(first, lead(true));
        }
        self.copies.publication_mut(copy).set_lead(first);
    }
}
