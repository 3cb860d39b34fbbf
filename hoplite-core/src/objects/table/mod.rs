//! Copies and their users. The table knows nothing of the directory and of calls.
//!
//! It frees a copy's memory only when no client references it, no serve or comparison reads it, and
//! no pull or combination writes it.

mod awaiting;
mod charges;
mod copy;
mod recovery;
mod serves;
mod space;
mod spill;
mod spills;

use std::collections::BTreeMap;
use std::ops::{Bound, Index};

use lru::LruCache;

use super::context::Context;
use super::notice::SpaceWaiter;
use super::publication::Publication;
use super::queue::Queue;
use super::quotas::{Payer, Quotas};
use crate::error::Error;
use crate::extent::{Allocator, Extent};
use crate::id::{ObjectId, PutId};
use crate::message::{
    ClientId, CombineId, CopyId, Effect, NodeStatus, ObjectView, Producer, PullId, ServeId,
};
use crate::metadata::Replicas;
use crate::shard::{GrantId, PullOutcome, Retention};
use awaiting::AwaitingServes;
use copy::Reception;
pub(crate) use copy::{ActivePull, LocalCopy, Object, Phase};
use spills::Spills;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    Found(Extent),
    /// This copy, and maybe others, must be evicted first.
    AfterEvicting(CopyId),
    /// This copy, and maybe others, must leave the arena first, but stays in a spill file.
    AfterDropping(CopyId),
    None,
}

#[derive(Debug)]
pub(crate) struct Table {
    allocator: Allocator,
    /// Boxed, because the map's unused entries take memory too.
    copies: BTreeMap<CopyId, Box<LocalCopy>>,
    index: BTreeMap<ObjectId, CopyId>,
    /// Evictable copies and the lengths of their extents, in order of use.
    evictable: LruCache<CopyId, u64>,
    evictable_bytes: u64,
    pinned_bytes: u64,
    reserved_bytes: u64,
    pulls: BTreeMap<PullId, CopyId>,
    serves: BTreeMap<ServeId, CopyId>,
    awaiting_serves: AwaitingServes,
    space_waiters: Queue<SpaceWaiter>,
    has_new_space: bool,
    evictions: u64,
    spills: Option<Box<Spills>>,
    pub(crate) quotas: Quotas,
}

impl Table {
    pub(crate) fn new(capacity_bytes: u64) -> Self {
        Self {
            allocator: Allocator::new(capacity_bytes),
            copies: BTreeMap::new(),
            index: BTreeMap::new(),
            evictable: LruCache::unbounded(),
            evictable_bytes: 0,
            pinned_bytes: 0,
            reserved_bytes: 0,
            pulls: BTreeMap::new(),
            serves: BTreeMap::new(),
            awaiting_serves: AwaitingServes::default(),
            space_waiters: Queue::default(),
            has_new_space: false,
            evictions: 0,
            spills: None,
            quotas: Quotas::default(),
        }
    }

    pub(crate) fn status(&self) -> NodeStatus {
        NodeStatus {
            capacity_bytes: self.allocator.capacity_bytes(),
            free_bytes: self.allocator.free_bytes(),
            pinned_bytes: self.pinned_bytes,
            evictable_bytes: self.evictable_bytes,
            reserved_bytes: self.reserved_bytes,
            copies: self.copies.len(),
            pulls: self.pulls.len(),
            evictions: self.evictions,
            waiting_for_room: self.space_waiters.len(),
            spill: self.spill_status(),
            ..NodeStatus::default()
        }
    }

    pub(crate) fn get(&self, copy: &CopyId) -> Option<&LocalCopy> {
        self.copies.get(copy).map(Box::as_ref)
    }

    pub(crate) fn publication_mut(&mut self, copy: CopyId) -> &mut Publication {
        &mut self.copy_mut(copy).publication
    }

    pub(crate) fn set_reduced_by(&mut self, copy: CopyId, creator: ClientId) {
        let local = self.copy_mut(copy);
        (local.creator, local.is_reduced) = (creator, true);
    }

    fn copy_mut(&mut self, copy: CopyId) -> &mut LocalCopy {
        self.copies.get_mut(&copy).expect("copies in the index, in pulls and in references exist")
    }

    pub(crate) fn live(&self, id: &ObjectId) -> Option<(CopyId, &LocalCopy)> {
        let copy = *self.index.get(id)?;
        Some((copy, self.copies[&copy].as_ref()))
    }

    pub(crate) fn complete_copy(&self, id: &ObjectId) -> Option<CopyId> {
        self.live(id).filter(|(_, copy)| copy.is_complete()).map(|(copy, _)| copy)
    }

    pub(crate) fn live_put(&self, id: &ObjectId, put: PutId) -> Option<CopyId> {
        self.live(id).filter(|(_, copy)| copy.put == put).map(|(copy, _)| copy)
    }

    pub(crate) fn public_put(&self, id: &ObjectId, put: PutId) -> Option<CopyId> {
        self.live_put(id, put).filter(|copy| self.copies[copy].is_public)
    }

    pub(crate) fn is_live(&self, copy: CopyId) -> bool {
        self.copies.get(&copy).is_some_and(|local| local.detached.is_none())
    }

    pub(crate) fn live_from(
        &self,
        from: Bound<&[u8]>,
    ) -> impl Iterator<Item = (&ObjectId, CopyId)> {
        self.index.range::<[u8], _>((from, Bound::Unbounded)).map(|(id, copy)| (id, *copy))
    }

    pub(crate) fn live_copies(&self) -> Vec<CopyId> {
        self.index.values().copied().collect()
    }

    pub(crate) fn view(&self, copy: CopyId) -> ObjectView {
        let local = &self.copies[&copy];
        ObjectView {
            copy,
            extent: local.extent,
            put: local.put,
            size_bytes: local.size_bytes,
            metadata: local.metadata.to_metadata(),
            is_stale: false,
        }
    }

    pub(crate) fn open(&mut self, ctx: &mut Context, opening: LocalCopy) -> CopyId {
        let copy = CopyId(ctx.next_number());
        let producer = match opening.phase {
            Phase::Writing { .. } => Producer::Worker,
            Phase::Combining { .. } => Producer::Reduce,
            Phase::Receiving(_) | Phase::Complete => Producer::Store,
        };
        let (extent, size_bytes) = (opening.extent, opening.size_bytes);
        ctx.push(Effect::CopyOpened { copy, extent, size_bytes, producer });
        let previous = self.index.insert(opening.id.clone(), copy);
        debug_assert!(previous.is_none(), "an id has one live copy");
        self.reserved_bytes -= extent.length_bytes;
        if opening.is_pinned() {
            self.pinned_bytes += extent.length_bytes;
        }
        self.quotas.add(opening.charge());
        self.copies.insert(copy, Box::new(opening));
        copy
    }

    pub(crate) fn complete(&mut self, ctx: &mut Context, copy: CopyId) {
        self.copy_mut(copy).phase = Phase::Complete;
        ctx.push(Effect::CopyCompleted { copy });
        self.settle(ctx, copy);
    }

    /// Detaches a copy; its users keep the memory. Returns `false` if it was detached before.
    pub(crate) fn detach(&mut self, ctx: &mut Context, copy: CopyId, error: Error) -> bool {
        let local = self.copy_mut(copy);
        if local.detached.is_some() {
            return false;
        }
        local.detached = Some(Box::new(error.clone()));
        let pull = local.pull().map(|active| Effect::CancelPull { pull: active.pull });
        let combine = local.combination().map(|combine| Effect::CancelCombine { combine });
        let cancel = pull.or(combine);
        let id = local.id.clone();
        self.index.remove(&id);
        self.keep(copy);
        let is_away = self.copies[&copy].is_away();
        self.forget_spilled(ctx, copy);
        if !is_away {
            ctx.push(Effect::CopyFailed { copy, error });
        }
        if let Some(cancel) = cancel {
            ctx.push(cancel);
        }
        self.settle(ctx, copy);
        true
    }

    pub(crate) fn reveal(&mut self, copy: CopyId) {
        self.copy_mut(copy).is_public = true;
    }

    pub(crate) fn pin(&mut self, copy: CopyId) {
        let local = self.copy_mut(copy);
        if local.is_pinned() {
            return;
        }
        local.retention = Retention::Pinned;
        self.pinned_bytes += local.extent.length_bytes;
        self.keep(copy);
        self.offer_to_spill(copy);
    }

    pub(crate) fn unpin(&mut self, ctx: &mut Context, copy: CopyId) {
        let local = self.copy_mut(copy);
        if local.is_pinned() {
            local.retention = Retention::Evictable;
            self.pinned_bytes -= local.extent.length_bytes;
            self.keep(copy);
            // An unpinned copy is only a cache, so no quota is charged for it.
            self.quotas.subtract(self.copies[&copy].charge());
            self.copy_mut(copy).payer = Payer::Nobody;
            self.settle(ctx, copy);
        }
    }

    pub(crate) fn is_any_written(&self) -> bool {
        self.index.values().any(|copy| self.copies[copy].is_produced_here())
    }

    pub(crate) fn want_replicas(&mut self, copy: CopyId, replicas: Replicas) -> bool {
        let metadata = &mut self.copy_mut(copy).metadata;
        let is_more = replicas.wanted > metadata.replicas.wanted;
        if is_more {
            metadata.replicas.wanted = replicas.wanted;
        }
        is_more
    }

    /// Gives the copy the id of another put with equal bytes, and drops the first put's lifetime.
    pub(crate) fn rename_put(&mut self, copy: CopyId, put: PutId) {
        let local = self.copy_mut(copy);
        local.put = put;
        if local.metadata.lifetime.is_some() {
            local.metadata.lifetime = None;
        }
    }

    pub(crate) fn hold(&mut self, copy: CopyId) {
        self.copy_mut(copy).references += 1;
        self.keep(copy);
    }

    pub(crate) fn let_go(&mut self, ctx: &mut Context, copy: CopyId) {
        self.copy_mut(copy).references -= 1;
        self.settle(ctx, copy);
    }

    /// Wakes no waiter, because the search has freed no memory.
    pub(crate) fn let_go_after_search(&mut self, ctx: &mut Context, kept: &[CopyId]) {
        let earlier = (self.has_new_space, self.quotas.has_new_room);
        for copy in kept {
            self.let_go(ctx, *copy);
        }
        (self.has_new_space, self.quotas.has_new_room) = earlier;
    }

    pub(crate) fn touch(&mut self, copy: CopyId) {
        self.evictable.promote(&copy);
        if let Some(spills) = &mut self.spills {
            spills.idle.touch(copy);
            self.quotas.touch_idle(self.copies[&copy].charge(), copy);
        }
    }

    pub(crate) fn begin_pull(&mut self, copy: CopyId, active: ActivePull) {
        self.pulls.insert(active.pull, copy);
        let local = self.copy_mut(copy);
        let valid_bytes = local.received_bytes();
        local.phase = Phase::Receiving(Box::new(Reception { pull: Some(active), valid_bytes }));
    }

    pub(crate) fn end_pull(
        &mut self,
        ctx: &mut Context,
        pull: PullId,
        valid_bytes: u64,
        outcome: PullOutcome,
    ) -> Option<(CopyId, ActivePull)> {
        let copy = self.pulls.remove(&pull)?;
        let local = self.copy_mut(copy);
        let size_bytes = local.size_bytes;
        let Phase::Receiving(reception) = &mut local.phase else { return None };
        let active = reception.pull.take()?;
        let valid_bytes = if outcome == PullOutcome::Complete { size_bytes } else { valid_bytes };
        reception.valid_bytes = valid_bytes.min(size_bytes);
        self.settle(ctx, copy);
        Some((copy, active))
    }

    pub(crate) fn pulled(&self) -> impl Iterator<Item = (CopyId, &ObjectId)> {
        self.pulls.values().filter_map(|copy| Some((*copy, &self.get(copy)?.id)))
    }

    /// Forgets a lost shard's grants. Their pulls continue.
    pub(crate) fn forget_grants_of(&mut self, shard: usize) {
        for copy in self.pulls.values() {
            if let Some(active) = self.copies.get_mut(copy).and_then(|local| local.pull_mut())
                && active.shard == shard
            {
                active.grant = None;
            }
        }
    }

    /// Ends the pull of this grant if a local client or a shard's order needs the copy. Another
    /// receiver can then use the sender.
    pub(crate) fn give_way(
        &mut self,
        ctx: &mut Context,
        shard: usize,
        grant: GrantId,
        is_called_for: impl Fn(&ObjectId) -> bool,
    ) {
        for copy in self.pulls.values() {
            if let Some(local) = self.copies.get_mut(copy)
                && (local.is_referenced() || is_called_for(&local.id))
                && let Some(active) = local.pull_mut()
                && (active.shard, active.grant) == (shard, Some(grant))
            {
                active.end_as(ctx, PullOutcome::GaveWay);
            }
        }
    }

    /// Ends the pull from a sender that itself waits for this store's bytes.
    pub(crate) fn leave_sender(&mut self, ctx: &mut Context, copy: CopyId) {
        if let Some(active) = self.copy_mut(copy).pull_mut() {
            active.end_as(ctx, PullOutcome::SenderStalled);
        }
    }

    pub(crate) fn begin_combine(&mut self, copy: CopyId, combine: CombineId) {
        self.copy_mut(copy).phase = Phase::Combining { combine: Some(combine) };
    }

    pub(crate) fn end_combine(&mut self, ctx: &mut Context, copy: CopyId, valid_bytes: u64) -> u64 {
        let local = self.copy_mut(copy);
        let valid_bytes = valid_bytes.min(local.size_bytes);
        // A complete copy stays complete while the collective continues for others.
        if matches!(local.phase, Phase::Combining { .. }) {
            local.phase = Phase::Combining { combine: None };
        }
        self.settle(ctx, copy);
        valid_bytes
    }

    pub(crate) fn begin_compare(&mut self, copy: CopyId) -> bool {
        let is_first = !std::mem::replace(&mut self.copy_mut(copy).is_comparing, true);
        self.keep(copy);
        is_first
    }

    pub(crate) fn end_compare(&mut self, ctx: &mut Context, copy: CopyId) -> bool {
        let was_comparing =
            self.copies.get_mut(&copy).is_some_and(|local| std::mem::take(&mut local.is_comparing));
        self.settle(ctx, copy);
        was_comparing
    }

    /// Ends the writing of a copy. Only references and serves then keep its memory.
    pub(crate) fn end_writing(&mut self, ctx: &mut Context, copy: CopyId) {
        self.copy_mut(copy).phase = Phase::awaiting_sender();
        self.settle(ctx, copy);
    }

    fn keep(&mut self, copy: CopyId) {
        if let Some(bytes) = self.evictable.pop(&copy) {
            self.evictable_bytes -= bytes;
        }
        if let (Some(spills), Some(local)) = (&mut self.spills, self.copies.get(&copy))
            && spills.idle.remove(copy)
        {
            self.quotas.remove_idle(local.charge(), copy);
        }
    }

    fn settle(&mut self, ctx: &mut Context, copy: CopyId) {
        let Some(local) = self.copies.get(&copy) else { return };
        if !local.is_idle() {
            self.keep(copy);
        } else if local.detached.is_some() {
            let (extent, is_pinned) = (local.extent, local.is_pinned());
            self.quotas.subtract(local.charge());
            self.copies.remove(&copy);
            if is_pinned {
                self.pinned_bytes -= extent.length_bytes;
            }
            // A copy that is only in a spill file has no memory to free.
            if extent.length_bytes > 0 {
                ctx.push(Effect::CopyClosed { copy });
                self.free(extent);
            }
        } else if local.is_pinned() {
            self.offer_to_spill(copy);
        } else if local.is_complete() && local.is_resident() {
            let bytes = local.extent.length_bytes;
            if self.evictable.put(copy, bytes).is_none() {
                self.evictable_bytes += bytes;
                self.has_new_space = true;
            }
        }
    }
}

impl Index<&CopyId> for Table {
    type Output = LocalCopy;

    fn index(&self, copy: &CopyId) -> &LocalCopy {
        &self.copies[copy]
    }
}
