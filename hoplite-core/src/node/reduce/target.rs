//! The target of a reduce: opened when enough sources have joined, combined here, and superseded if it turns out wrong.

use std::collections::BTreeSet;

use super::super::{CombineOutcome, CopyId};
use super::grow::stream;
use super::reduction::{Progress, Reduction};
use super::sources::SourcePlace;
use super::{Action, TargetInput, World};
use crate::error::{Error, Result};
use crate::extent::Extent;
use crate::id::PutId;
use crate::plan::reduce::VertexId;
use crate::shard::Locations;

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
pub(super) enum TargetState {
    /// Not begun.
    None,
    /// There is room for it.
    Reserved { room: Extent },
    /// Being combined.
    Combining { copy: CopyId, ingredients: Ingredients, streams: Vec<Stream> },
    /// Waits until it can go on from the first `valid_bytes`.
    Stopped { copy: CopyId, ingredients: Ingredients, valid_bytes: u64 },
}

impl TargetState {
    const fn copy(&self) -> Option<CopyId> {
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

    /// The copy that is being made.
    pub(super) const fn target_copy(&self) -> Option<CopyId> {
        self.target.copy()
    }

    /// How large the target will be, once that is known.
    pub(super) fn target_size(&self) -> Option<u64> {
        Some(self.common.as_ref()?.length_bytes)
    }

    /// At which offset hops are begun now: where the target has got to. `None` as long as it is open whether it goes on.
    pub(super) fn offset_of_new_hops(&self) -> Option<u64> {
        match &self.target {
            TargetState::Stopped { valid_bytes, .. } => self.is_full().then_some(*valid_bytes),
            _ => Some(0),
        }
    }

    fn ingredients(&self) -> Ingredients {
        let put = |index: &usize| (*index, self.sources[*index].joined_put.unwrap_or(PutId(0)));
        self.joined.iter().map(put).collect()
    }

    /// The directory told whether the target exists.
    pub(super) fn target_located(&mut self, news: &Locations) -> Result<Progress> {
        let exists = news.object.as_ref().is_some_and(|object| !object.lost);
        if exists && self.target.copy().is_none() {
            return Err(Error::AlreadyExists { id: news.id.clone() });
        }
        Ok(Progress::Going)
    }

    /// The directory knows the target by now, so a delete of it arrives as one of any object does.
    pub(super) fn leave_target(&mut self, world: &mut World<'_>) {
        if let Some(ask) = self.existence.take() {
            world.act(Action::Withdraw(ask));
        }
    }

    /// Gives up a target that has some bytes, if what has joined by now is not what they were made of.
    pub(super) fn supersede_if_wrong(&mut self, world: &mut World<'_>) {
        let TargetState::Stopped { copy, ingredients, .. } = &self.target else { return };
        let copy = *copy;
        if !self.is_full() || *ingredients == self.ingredients() {
            return;
        }
        self.faults.restarts += 1;
        self.target = TargetState::None;
        // What the directory says of the one that is given up must not be taken for another's.
        self.leave_target(world);
        world.act(Action::Supersede { target: self.request.target.clone(), copy });
        let late = self.tree.iter().filter(|(_, vertex)| vertex.state.offset_bytes > 0);
        let late: Vec<VertexId> = late.map(|(vertex, _)| vertex).collect();
        for vertex in late {
            self.redo(world, vertex);
        }
    }

    /// Asks for room for the target, before anything elsewhere is made for it; whether that has to be waited for.
    pub(super) fn reserve_target(&mut self, world: &mut World<'_>) -> Result<bool> {
        let is_needed = self.is_full() || self.tree.iter().next().is_some();
        let Some(common) = &self.common else { return Ok(false) };
        if self.target != TargetState::None || !is_needed {
            return Ok(false);
        }
        let target = self.request.target.clone();
        let size_bytes = common.length_bytes;
        common.target_metadata().validate(size_bytes)?;
        world.table.check_size(world.ctx.limits(), &target, size_bytes)?;
        world.act(Action::Reserve { target, size_bytes });
        Ok(true)
    }

    /// There is room for the target; answers it if none is needed.
    pub(super) fn reserved(&mut self, room: Extent) -> Option<Extent> {
        if self.target != TargetState::None {
            return Some(room);
        }
        self.target = TargetState::Reserved { room };
        None
    }

    /// The target is open, without any byte yet.
    pub(super) fn opened(&mut self, copy: CopyId) {
        self.target = TargetState::Stopped { copy, ingredients: self.ingredients(), valid_bytes: 0 };
    }

    /// Combines what has joined into the target, if that is all.
    pub(super) fn start_target(&mut self, world: &mut World<'_>) {
        let Some(common) = self.common.as_ref().filter(|_| self.is_full()) else { return };
        let target = self.request.target.clone();
        match &self.target {
            TargetState::None | TargetState::Combining { .. } => {}
            TargetState::Reserved { room } => world.act(Action::Open {
                target,
                size_bytes: common.length_bytes,
                metadata: common.target_metadata(),
                extent: *room,
            }),
            TargetState::Stopped { copy, valid_bytes, .. } => {
                let (copy, offset_bytes) = (*copy, *valid_bytes);
                let streams = self.target_streams();
                let inputs = streams.iter().filter_map(|of| self.target_input(*of)).collect::<Vec<_>>();
                debug_assert_eq!(inputs.len(), streams.len(), "each stream is somewhere");
                let (op, dtype) = (self.request.op, common.dtype);
                world.act(Action::Combine { target, copy, op, dtype, offset_bytes, inputs });
                let ingredients = self.ingredients();
                self.target = TargetState::Combining { copy, ingredients, streams };
            }
        }
    }

    /// What the target is combined from, in this order.
    fn target_streams(&self) -> Vec<Stream> {
        let streams = self.tree.loose().iter().map(|vertex| Stream::Vertex(*vertex));
        let is_here = |index: &usize| matches!(self.sources[*index].place, SourcePlace::Here { .. });
        let mut here: Vec<usize> = self.joined.iter().copied().filter(is_here).collect();
        if self.is_fixed() {
            here.sort_unstable();
        }
        streams.chain(here.into_iter().map(Stream::Source)).collect()
    }

    fn target_input(&self, of: Stream) -> Option<TargetInput> {
        match of {
            Stream::Vertex(vertex) => stream(self, vertex).map(TargetInput::Stream),
            Stream::Source(index) => match self.sources[index].place {
                SourcePlace::Here { copy } => {
                    Some(TargetInput::Here { copy, base_bytes: self.common.as_ref()?.base_bytes })
                }
                _ => None,
            },
        }
    }

    /// The combination of the target has ended.
    pub(super) fn combined(
        &mut self,
        world: &mut World<'_>,
        valid_bytes: u64,
        outcome: CombineOutcome,
    ) -> Progress {
        let TargetState::Combining { copy, ingredients, streams } = &self.target else {
            return Progress::Going;
        };
        let (copy, ingredients, streams) = (*copy, ingredients.clone(), streams.clone());
        if outcome == CombineOutcome::Complete {
            self.complete_target(world, copy);
            return Progress::Done;
        }
        self.target = TargetState::Stopped { copy, ingredients, valid_bytes };
        if let CombineOutcome::InputFailed { index, outcome } = outcome
            && let Some(stream) = streams.get(index)
        {
            let here = world.ctx.node().clone();
            self.input_failed(world, *stream, outcome, &here);
        }
        Progress::Going
    }

    fn complete_target(&mut self, world: &mut World<'_>, copy: CopyId) {
        let record = self.record(world.ctx.link(), world.now());
        world.records.push(record);
        let mut reduced = self.joined.clone();
        if self.is_fixed() {
            // Small ones arrive in any order; that in which they were combined is what matters.
            reduced.sort_unstable();
        }
        debug_assert_eq!(reduced.len(), self.request.count, "as many are reduced as were asked for");
        self.target = TargetState::None;
        self.release_all(world);
        world.act(Action::Complete { key: self.key(), copy, reduced });
    }

    /// Aborts a target that is not complete, everywhere.
    pub(super) fn abort_target(&mut self, world: &mut World<'_>) {
        let state = std::mem::replace(&mut self.target, TargetState::None);
        let room = match state {
            TargetState::Reserved { room } => Some(room),
            _ => None,
        };
        let target = self.request.target.clone();
        world.act(Action::Abort { target, room, copy: state.copy() });
    }
}
