//! Local copies: their phases, who uses them, and when their space is free again.

use std::collections::{BTreeMap, BTreeSet};

use super::calls::CallKey;
use super::{ClientId, CombineId, CopyId, Deadline, Effect, Node, ObjectView, Producer, PullId, ServeId};
use crate::error::Error;
use crate::extent::Extent;
use crate::id::{NodeId, ObjectId, PutId};
use crate::metadata::Metadata;
use crate::shard::{GrantId, PullOutcome, Retention, UnpublishReason};
use crate::time::Time;

/// How far a copy is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Phase {
    /// A client writes it.
    Writing { client: ClientId },
    /// It is pulled from another node, or waits for a sender.
    Receiving { pull: Option<ActivePull>, valid_bytes: u64 },
    /// It is computed from other copies, or waits until that can go on.
    Combining { combine: Option<CombineId>, valid_bytes: u64 },
    /// All bytes are there.
    Complete,
}

/// A pull under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ActivePull {
    pub(super) pull: PullId,
    pub(super) sender: NodeId,
    /// Who granted the slot, and which slot; `None` once that shard's session is lost.
    pub(super) shard: usize,
    pub(super) grant: Option<GrantId>,
    /// How many bytes were there when it started.
    pub(super) offset_bytes: u64,
}

/// Who is told of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Visibility {
    /// The directory.
    Public,
    /// Nobody: only those who were told its name ask for it.
    Private,
}

/// What the directory thinks of a put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Standing {
    /// These shards have yet to say.
    Pending { shards: Vec<usize> },
    /// It is the put that counts, as far as anybody knows.
    Accepted,
}

/// One copy.
#[derive(Debug)]
pub(super) struct LocalCopy {
    pub(super) id: ObjectId,
    pub(super) put: PutId,
    pub(super) size_bytes: u64,
    pub(super) metadata: Metadata,
    pub(super) extent: Extent,
    pub(super) phase: Phase,
    pub(super) retention: Retention,
    pub(super) visibility: Visibility,
    /// Why it left the index; what its writer is told.
    pub(super) detached: Option<Error>,
    pub(super) references: u32,
    pub(super) serves: u32,
    pub(super) standing: Standing,
    /// Another put of the id was first; whether it is equal is found out once this copy is complete.
    pub(super) rival: Option<(PutId, (NodeId, std::net::SocketAddr))>,
    /// The call that waits for the directory's verdict.
    pub(super) sealer: Option<CallKey>,
    /// A comparison reads the bytes.
    pub(super) is_comparing: bool,
    /// The shards that were told of it in their present session.
    pub(super) known_at: Vec<usize>,
    /// When to publish it again, because a shard disagreed; and how often that was needed.
    pub(super) republish_at: Option<Time>,
    pub(super) disputes: u32,
    /// The deciding shard has accepted it since it was last published because of a dispute.
    pub(super) is_confirmed: bool,
}

impl LocalCopy {
    /// A copy that nobody uses yet. What a client writes or a reduce makes is a put: it stays, and the directory has yet to
    /// accept it.
    pub(super) fn begin(
        id: ObjectId,
        put: PutId,
        size_bytes: u64,
        metadata: Metadata,
        extent: Extent,
        phase: Phase,
    ) -> Self {
        let (retention, standing) = match phase {
            Phase::Writing { .. } | Phase::Combining { .. } => {
                (Retention::Pinned, Standing::Pending { shards: Vec::new() })
            }
            Phase::Receiving { .. } | Phase::Complete => (Retention::Evictable, Standing::Accepted),
        };
        Self {
            id,
            put,
            size_bytes,
            metadata,
            extent,
            phase,
            retention,
            visibility: Visibility::Public,
            detached: None,
            references: 0,
            serves: 0,
            standing,
            rival: None,
            sealer: None,
            is_comparing: false,
            known_at: Vec::new(),
            republish_at: None,
            disputes: 0,
            is_confirmed: false,
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.phase == Phase::Complete
    }

    pub(super) fn is_pinned(&self) -> bool {
        self.retention == Retention::Pinned
    }

    /// Whether it becomes complete by itself, without any other node.
    pub(super) fn is_produced_here(&self) -> bool {
        matches!(self.phase, Phase::Writing { .. } | Phase::Combining { .. })
    }

    fn is_idle(&self) -> bool {
        let is_filled = matches!(
            self.phase,
            Phase::Receiving { pull: Some(_), .. } | Phase::Combining { combine: Some(_), .. }
        );
        self.references == 0 && self.serves == 0 && !is_filled && !self.is_comparing
    }
}

impl Node {
    /// The live copy of `id`, complete or not.
    pub(super) fn live(&self, id: &ObjectId) -> Option<(CopyId, &LocalCopy)> {
        let copy = *self.index.get(id)?;
        Some((copy, &self.copies[&copy]))
    }

    /// The live copy of this very put.
    pub(super) fn live_put(&self, id: &ObjectId, put: PutId) -> Option<CopyId> {
        self.live(id).filter(|(_, copy)| copy.put == put).map(|(copy, _)| copy)
    }

    /// The live copy of this very put, unless it is one that no shard was told of, nor may speak of.
    pub(super) fn public_put(&self, id: &ObjectId, put: PutId) -> Option<CopyId> {
        self.live_put(id, put).filter(|copy| self.copies[copy].visibility == Visibility::Public)
    }

    pub(super) fn copy_mut(&mut self, copy: CopyId) -> &mut LocalCopy {
        self.copies.get_mut(&copy).expect("copies in the index, in pulls and in references exist")
    }

    /// Enters a copy into the table. Its space was allocated by the caller.
    pub(super) fn open(&mut self, opening: LocalCopy) -> CopyId {
        let copy = CopyId(self.next_number());
        let producer = match opening.phase {
            Phase::Writing { .. } => Producer::Worker,
            Phase::Combining { .. } => Producer::Reduce,
            Phase::Receiving { .. } | Phase::Complete => Producer::Store,
        };
        self.effects.push(Effect::CopyOpened {
            copy,
            extent: opening.extent,
            size_bytes: opening.size_bytes,
            producer,
        });
        let previous = self.index.insert(opening.id.clone(), copy);
        debug_assert!(previous.is_none(), "an id has one live copy");
        self.copies.insert(copy, opening);
        copy
    }

    /// Marks all bytes valid and answers those who waited for them.
    pub(super) fn complete(&mut self, copy: CopyId) {
        let local = self.copy_mut(copy);
        local.phase = Phase::Complete;
        let id = local.id.clone();
        self.effects.push(Effect::CopyCompleted { copy });
        self.wake(&id);
        self.settle(copy);
    }

    /// Takes a copy out of the index: nobody finds it any more, those who use it keep it until they let go.
    ///
    /// Local waiters are not told; that is the caller's decision.
    pub(super) fn detach(&mut self, copy: CopyId, error: Error) {
        let local = self.copy_mut(copy);
        if local.detached.is_some() {
            return;
        }
        local.detached = Some(error.clone());
        let id = local.id.clone();
        let filling = match &local.phase {
            Phase::Receiving { pull: Some(active), .. } => Some(Effect::CancelPull { pull: active.pull }),
            Phase::Combining { combine: Some(combine), .. } => {
                Some(Effect::CancelCombine { combine: *combine })
            }
            _ => None,
        };
        let is_target =
            local.visibility == Visibility::Public && matches!(local.phase, Phase::Combining { .. });
        let sealer = local.sealer.take();
        if let Some(time) = local.republish_at.take() {
            self.deadlines.remove(&(time, Deadline::Republish(copy)));
        }
        self.index.remove(&id);
        if let Some(bytes) = self.evictable.pop(&copy) {
            self.evictable_bytes -= bytes;
        }
        // A fetch for it would go on with nothing; whoever still waits starts another.
        self.end_fetch(&id);
        self.effects.push(Effect::CopyFailed { copy, error: error.clone() });
        self.effects.extend(filling);
        if let Some(key) = sealer {
            self.finish(key, Err(error.clone()));
        }
        if is_target {
            self.target_gone(&id, error);
        }
        self.settle(copy);
    }

    /// After a change in who uses a copy: frees it, or makes it evictable, or keeps it.
    pub(super) fn settle(&mut self, copy: CopyId) {
        let Some(local) = self.copies.get(&copy) else { return };
        if !local.is_idle() {
            if let Some(bytes) = self.evictable.pop(&copy) {
                self.evictable_bytes -= bytes;
            }
        } else if local.detached.is_some() {
            let extent = local.extent;
            self.copies.remove(&copy);
            self.effects.push(Effect::CopyClosed { copy });
            self.allocator.free(extent);
            self.has_new_space = true;
        } else if local.is_complete() && !local.is_pinned() {
            let bytes = local.extent.length_bytes;
            if self.evictable.put(copy, bytes).is_none() {
                self.evictable_bytes += bytes;
                self.has_new_space = true;
            }
        }
    }

    /// Detaches and unpublishes a copy that the store itself gives up.
    pub(super) fn abandon(&mut self, copy: CopyId, error: Error, reason: UnpublishReason) {
        self.unpublish(copy, reason);
        self.detach(copy, error);
    }

    /// Tells the directory that this store stops serving a copy, because the daemon ends.
    pub(super) fn withdraw(&mut self, copy: CopyId) {
        self.unpublish(copy, self.reason_to_leave(copy));
        self.detach(copy, Error::ShuttingDown);
    }

    /// What the directory is told when the store gives up a copy in this phase.
    pub(super) fn reason_to_leave(&self, copy: CopyId) -> UnpublishReason {
        match self.copies[&copy].phase {
            Phase::Writing { .. } | Phase::Combining { .. } => UnpublishReason::Aborted,
            Phase::Receiving { .. } => UnpublishReason::PullEnded,
            Phase::Complete => UnpublishReason::Evicted,
        }
    }

    pub(super) fn view(&self, copy: CopyId) -> ObjectView {
        let local = &self.copies[&copy];
        ObjectView {
            copy,
            extent: local.extent,
            put: local.put,
            size_bytes: local.size_bytes,
            metadata: local.metadata.clone(),
        }
    }

    /// Whether `client` may be given one more reference.
    pub(super) fn check_may_refer(&self, client: ClientId) -> Result<(), Error> {
        let limit = self.config.limits.max_references_per_client;
        match self.clients.get(&client) {
            Some(holder) if holder.reference_count >= limit && client != ClientId::STORE => {
                Err(Error::limit_exceeded("references of a client", limit as u64))
            }
            _ => Ok(()),
        }
    }

    /// Gives `client` one more reference.
    pub(super) fn refer(&mut self, client: ClientId, copy: CopyId) -> Result<ObjectView, Error> {
        self.check_may_refer(client)?;
        let holder = self.clients.entry(client).or_default();
        *holder.references.entry(copy).or_default() += 1;
        holder.reference_count += 1;
        self.copy_mut(copy).references += 1;
        self.settle(copy);
        Ok(self.view(copy))
    }

    /// A writer gives up its copy, also if the same client reads it and goes on to hold that reference.
    pub(super) fn give_up(&mut self, client: ClientId, copy: CopyId) {
        if self.copies.get(&copy).is_some_and(|local| local.phase == Phase::Writing { client }) {
            self.abort(copy);
        }
        self.release(client, copy);
    }

    /// Takes back one reference; unknown ones are ignored, for the client may have raced with its own release.
    pub(super) fn release(&mut self, client: ClientId, copy: CopyId) {
        let Some(holder) = self.clients.get_mut(&client) else { return };
        let Some(count) = holder.references.get_mut(&copy) else { return };
        *count -= 1;
        holder.reference_count -= 1;
        if *count == 0 {
            holder.references.remove(&copy);
        }
        self.copy_mut(copy).references -= 1;
        let is_last_of_writer = self.copies[&copy].phase == Phase::Writing { client }
            && !self.clients.get(&client).is_some_and(|holder| holder.references.contains_key(&copy));
        if is_last_of_writer {
            return self.abort(copy);
        }
        let id = self.copies[&copy].id.clone();
        self.reconsider_fetch(&id);
        self.settle(copy);
    }

    /// Keeps a copy from eviction for the store's own use.
    pub(super) fn hold(&mut self, copy: CopyId) {
        self.copy_mut(copy).references += 1;
        self.settle(copy);
    }

    /// Ends one [`Node::hold`].
    pub(super) fn let_go(&mut self, copy: CopyId) {
        let local = self.copy_mut(copy);
        local.references -= 1;
        let id = local.id.clone();
        self.reconsider_fetch(&id);
        self.settle(copy);
    }

    pub(super) fn serve_requested(&mut self, serve: ServeId, id: &ObjectId, put: PutId, awaits_hop: bool) {
        match self.live_put(id, put) {
            _ if self.is_shutting_down => self.effects.push(Effect::ServeRefused { serve }),
            Some(copy) => self.accept_serve(serve, copy),
            None if awaits_hop => self.awaiting_serves.push(serve, id),
            None => self.effects.push(Effect::ServeRefused { serve }),
        }
    }

    fn accept_serve(&mut self, serve: ServeId, copy: CopyId) {
        let local = self.copy_mut(copy);
        local.serves += 1;
        let size_bytes = local.size_bytes;
        self.serves.insert(serve, copy);
        self.settle(copy);
        self.effects.push(Effect::ServeAccepted { serve, copy, size_bytes });
    }

    /// Serves those who have been waiting for a hop to begin, which fills `copy` now.
    pub(super) fn accept_awaiting(&mut self, copy: CopyId) {
        for serve in self.awaiting_serves.take(&self.copies[&copy].id) {
            self.accept_serve(serve, copy);
        }
    }

    /// Refuses those who wait for a hop to begin: none will.
    pub(super) fn refuse_awaiting(&mut self) {
        for serve in std::mem::take(&mut self.awaiting_serves).outputs.into_keys() {
            self.effects.push(Effect::ServeRefused { serve });
        }
    }

    pub(super) fn serve_ended(&mut self, serve: ServeId) {
        self.awaiting_serves.remove(serve);
        let Some(copy) = self.serves.remove(&serve) else { return };
        self.copy_mut(copy).serves -= 1;
        self.settle(copy);
    }

    /// A pull no longer touches the memory of its copy. Returns the copy if it is still wanted.
    pub(super) fn pull_left(
        &mut self,
        pull: PullId,
        valid_bytes: u64,
        outcome: PullOutcome,
    ) -> Option<CopyId> {
        let copy = self.pulls.remove(&pull)?;
        let local = self.copy_mut(copy);
        let valid_bytes = if outcome == PullOutcome::Complete { local.size_bytes } else { valid_bytes };
        local.phase = Phase::Receiving { pull: None, valid_bytes: valid_bytes.min(local.size_bytes) };
        if local.detached.is_some() {
            self.settle(copy);
            return None;
        }
        Some(copy)
    }
}

/// Serves that wait for the output of a hop, which has not begun here yet.
#[derive(Debug, Default)]
pub(super) struct AwaitingServes {
    by_output: BTreeMap<ObjectId, BTreeSet<ServeId>>,
    outputs: BTreeMap<ServeId, ObjectId>,
}

impl AwaitingServes {
    fn push(&mut self, serve: ServeId, output: &ObjectId) {
        self.by_output.entry(output.clone()).or_default().insert(serve);
        self.outputs.insert(serve, output.clone());
    }

    fn take(&mut self, output: &ObjectId) -> BTreeSet<ServeId> {
        let serves = self.by_output.remove(output).unwrap_or_default();
        for serve in &serves {
            self.outputs.remove(serve);
        }
        serves
    }

    fn remove(&mut self, serve: ServeId) {
        let Some(output) = self.outputs.remove(&serve) else { return };
        let Some(serves) = self.by_output.get_mut(&output) else { return };
        serves.remove(&serve);
        if serves.is_empty() {
            self.by_output.remove(&output);
        }
    }
}
