//! The target of a reduce: opened when enough sources have joined, combined here, and superseded if it turns out wrong.

use std::collections::BTreeSet;

use super::super::calls::{Call, PendingCall};
use super::super::combine::CombineUser;
use super::super::table::{LocalCopy, Phase, SpaceWaiter};
use super::super::{CombineInput, CombineOutcome, CopyId, Node};
use super::grow::stream;
use super::sources::Place;
use super::{Progress, Reduction, RunPhase};
use crate::error::{Error, Result};
use crate::extent::Extent;
use crate::id::{ObjectId, PutId};
use crate::plan::reduce::VertexId;
use crate::shard::{Locations, UnpublishReason};

/// From where the target, or a hop, takes an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    /// From a vertex.
    Vertex(VertexId),
    /// From a source that is at the same node.
    Source(usize),
}

/// Which puts of which sources went into a target.
type Ingredients = BTreeSet<(usize, PutId)>;

/// How far the target is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    /// Not begun.
    None,
    /// There is room for it.
    Reserved { extent: Extent },
    /// Being combined.
    Combining { copy: CopyId, ingredients: Ingredients, streams: Vec<Stream> },
    /// Waits until it can go on from the first `valid_bytes`.
    Stopped { copy: CopyId, ingredients: Ingredients, valid_bytes: u64 },
}

impl Target {
    pub(super) const fn copy(&self) -> Option<CopyId> {
        match self {
            Self::None | Self::Reserved { .. } => None,
            Self::Combining { copy, .. } | Self::Stopped { copy, .. } => Some(*copy),
        }
    }
}

impl Reduction {
    pub(super) fn is_full(&self) -> bool {
        self.joined.len() == self.request.count && self.fetching == 0
    }

    /// At which offset hops are begun now: where the target has got to. `None` as long as it is open whether it goes on.
    pub(super) fn offset_of_new_hops(&self) -> Option<u64> {
        match &self.target {
            Target::Stopped { valid_bytes, .. } => self.is_full().then_some(*valid_bytes),
            _ => Some(0),
        }
    }

    /// How much room is set aside for its target.
    pub(in super::super) const fn reserved_bytes(&self) -> u64 {
        match self.target {
            Target::Reserved { extent } => extent.length_bytes,
            _ => 0,
        }
    }

    fn ingredients(&self) -> Ingredients {
        let put = |index: &usize| (*index, self.sources[*index].joined_put.unwrap_or(PutId(0)));
        self.joined.iter().map(put).collect()
    }
}

impl Node {
    /// The directory told whether the target exists, when the reduce began.
    pub(in super::super) fn target_located(&mut self, news: &Locations) {
        self.change_reduction(&news.id, |node, reduction| {
            if let Some(ask) = reduction.existence.take() {
                node.withdraw_ask(ask);
            }
            let exists = news.object.as_ref().is_some_and(|object| !object.lost);
            if exists && reduction.target.copy().is_none() {
                return Err(Error::AlreadyExists { id: news.id.clone() });
            }
            Ok(Progress::Going)
        });
    }

    /// Gives up a target that has some bytes, if what has joined by now is not what they were made of.
    pub(super) fn supersede_if_wrong(&mut self, reduction: &mut Reduction) {
        if let Target::Stopped { copy, ingredients, .. } = &reduction.target
            && reduction.is_full()
            && *ingredients != reduction.ingredients()
        {
            let copy = *copy;
            self.supersede_target(reduction, copy);
        }
    }

    fn supersede_target(&mut self, reduction: &mut Reduction, copy: CopyId) {
        reduction.faults.restarts += 1;
        reduction.target = Target::None;
        let id = reduction.request.target.clone();
        self.unpublish(copy, UnpublishReason::Superseded);
        self.detach(copy, Error::Superseded { id });
        let late: Vec<VertexId> = reduction
            .tree
            .iter()
            .filter(|(_, vertex)| vertex.state.offset_bytes > 0)
            .map(|(vertex, _)| vertex)
            .collect();
        for vertex in late {
            self.redo(reduction, vertex);
        }
    }

    /// Combines what has joined into the target, if that is all.
    pub(super) fn start_target(&mut self, reduction: &mut Reduction) -> Result<()> {
        if !reduction.is_full() || matches!(reduction.target, Target::Combining { .. }) {
            return Ok(());
        }
        let Some(common) = reduction.common.clone() else { return Ok(()) };
        let (copy, offset_bytes) = match &reduction.target {
            Target::Stopped { copy, valid_bytes, .. } => (*copy, *valid_bytes),
            _ => match self.open_target(reduction)? {
                Some(copy) => (copy, 0),
                None => return Ok(()),
            },
        };
        let mut streams: Vec<Stream> =
            reduction.tree.loose().iter().map(|vertex| Stream::Vertex(*vertex)).collect();
        let is_here = |index: &usize| matches!(reduction.sources[*index].place, Place::Here { .. });
        let mut here: Vec<usize> = reduction.joined.iter().copied().filter(is_here).collect();
        if reduction.is_fixed() {
            here.sort_unstable();
        }
        streams.extend(here.into_iter().map(Stream::Source));
        let input = |of: &Stream| match of {
            Stream::Vertex(vertex) => {
                let input = stream(reduction, *vertex)?;
                // One that should be here and is not is waited for, or fails, like any other.
                let resolved =
                    self.resolve_inputs(std::slice::from_ref(&input)).ok().and_then(|mut one| one.pop());
                Some(resolved.unwrap_or(CombineInput::Remote(input)))
            }
            Stream::Source(index) => match reduction.sources[*index].place {
                Place::Here { copy } => Some(CombineInput::Local { copy, base_bytes: common.base_bytes }),
                _ => None,
            },
        };
        let inputs: Vec<CombineInput> = streams.iter().filter_map(input).collect();
        debug_assert_eq!(inputs.len(), streams.len(), "each stream is somewhere");
        let operation = (reduction.request.op, common.dtype);
        let user = CombineUser::Target(reduction.request.target.clone());
        self.start_combine(copy, operation, offset_bytes, inputs, user);
        let ingredients = reduction.ingredients();
        reduction.target = Target::Combining { copy, ingredients, streams };
        Ok(())
    }

    /// Makes room for the target, before anything elsewhere is made for it; whether there is room. If not, it waits.
    pub(super) fn reserve_target(&mut self, reduction: &mut Reduction) -> Result<bool> {
        let is_needed = reduction.is_full() || reduction.tree.iter().next().is_some();
        if reduction.target != Target::None || !is_needed {
            return Ok(true);
        }
        let Some(common) = &reduction.common else { return Ok(true) };
        let id = reduction.request.target.clone();
        let size_bytes = common.length_bytes;
        common.target_metadata().validate(size_bytes)?;
        self.check_size(&id, size_bytes)?;
        let Some(extent) = self.allocate(size_bytes) else {
            self.wait_for_space(SpaceWaiter::Target(id));
            return Ok(false);
        };
        self.stop_waiting_for_space(&SpaceWaiter::Target(id));
        reduction.target = Target::Reserved { extent };
        Ok(true)
    }

    /// Opens the target in the room that was made for it, and publishes it as one that is being produced.
    fn open_target(&mut self, reduction: &mut Reduction) -> Result<Option<CopyId>> {
        let (Some(common), Target::Reserved { extent }) = (&reduction.common, &reduction.target) else {
            return Ok(None);
        };
        let id = reduction.request.target.clone();
        let (size_bytes, metadata, extent) = (common.length_bytes, common.target_metadata(), *extent);
        if self.live(&id).is_some() {
            return Err(Error::AlreadyExists { id });
        }
        // From here on it belongs to the copy.
        reduction.target = Target::None;
        // Whoever waits here for the object gets this one.
        self.end_fetch(&id);
        let put = self.ctx.next_put();
        let phase = Phase::Combining { combine: None, valid_bytes: 0 };
        let copy = self.open(LocalCopy::begin(id.clone(), put, size_bytes, metadata, extent, phase));
        if !self.ctx.is_inline(size_bytes) {
            self.publish(copy);
        }
        self.wake(&id);
        Ok(Some(copy))
    }

    pub(in super::super) fn target_combined(
        &mut self,
        target: &ObjectId,
        copy: CopyId,
        valid_bytes: u64,
        outcome: CombineOutcome,
    ) {
        self.change_reduction(target, |node, reduction| {
            let Target::Combining { ingredients, streams, .. } = &reduction.target else {
                return Ok(Progress::Going);
            };
            let (ingredients, streams) = (ingredients.clone(), streams.clone());
            if outcome == CombineOutcome::Complete {
                node.complete_target(reduction, copy);
                return Ok(Progress::Done);
            }
            reduction.target = Target::Stopped { copy, ingredients, valid_bytes };
            if let CombineOutcome::InputFailed { index, outcome } = outcome
                && let Some(stream) = streams.get(index)
            {
                let here = node.ctx.node().clone();
                node.input_failed(reduction, *stream, outcome, &here);
            }
            Ok(Progress::Going)
        });
    }

    fn complete_target(&mut self, reduction: &mut Reduction, copy: CopyId) {
        self.record_reduce(reduction);
        let key = reduction.key;
        if let Some(PendingCall { call: Call::Reduce { reduced, .. }, .. }) = self.calls.get_mut(&key) {
            reduced.clone_from(&reduction.joined);
            if reduction.is_fixed() {
                // Small ones arrive in any order; that in which they were combined is what matters.
                reduced.sort_unstable();
            }
        }
        reduction.target = Target::None;
        debug_assert_eq!(
            reduction.joined.len(),
            reduction.request.count,
            "as many are reduced as were asked for"
        );
        self.release_all(reduction);
        self.copy_mut(copy).sealer = Some(key);
        self.complete_put(copy);
    }

    /// Ends all hops and lets go of all sources.
    pub(super) fn release_all(&mut self, reduction: &mut Reduction) {
        self.leave_sources(reduction);
        let vertices: Vec<VertexId> = reduction.tree.iter().map(|(id, _)| id).collect();
        for vertex in vertices {
            if let Some(run) = reduction.tree.state_mut(vertex) {
                let phase = std::mem::replace(&mut run.phase, RunPhase::Released);
                self.end_hop(phase);
            }
        }
    }

    /// Aborts a target that is not complete, everywhere.
    pub(super) fn abort_target(&mut self, reduction: &mut Reduction) {
        let id = reduction.request.target.clone();
        self.stop_waiting_for_space(&SpaceWaiter::Target(id.clone()));
        let target = std::mem::replace(&mut reduction.target, Target::None);
        if let Target::Reserved { extent } = target {
            self.copies.free(extent);
        }
        // One that was given up before another was begun has left those who wait for it with nothing.
        let Some(copy) = target.copy() else { return self.wake(&id) };
        let Some(local) = self.copies.get(&copy).filter(|local| local.detached.is_none()) else { return };
        // As for a put: if nobody heard of it, those who wait for the object may still get another.
        let is_all_there_was = !local.known_at.is_empty() && local.rival.is_none();
        let error = Error::ObjectLost { id: id.clone() };
        self.abandon(copy, error.clone(), UnpublishReason::Aborted);
        if is_all_there_was {
            self.fail_gets(&id, &error);
        }
        self.wake(&id);
    }

    /// The target was deleted, or lost against another put of the id.
    pub(in super::super) fn target_gone(&mut self, target: &ObjectId, error: Error) {
        self.fail_reduce(target, error);
    }

    /// The error of a reduce that ran out of time because there was no room for the target, or for a small source.
    pub(in super::super) fn reduce_lacks_space(&self, target: &ObjectId) -> Option<Error> {
        let reduction = self.reductions.get(target)?;
        if self.copies.is_waiting_for_space(&SpaceWaiter::Target(target.clone())) {
            return Some(self.store_full(reduction.common.as_ref()?.length_bytes));
        }
        let sources = reduction.request.sources.iter().zip(&reduction.sources);
        let mut fetched = sources.filter(|(_, source)| matches!(source.place, Place::Fetching(_)));
        fetched.find_map(|(id, _)| self.fetch_lacks_space(id))
    }
}
