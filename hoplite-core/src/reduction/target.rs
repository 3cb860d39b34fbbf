use super::grow::{source_input, stream};
use super::parts::{InputPuts, Stream, TargetState};
use super::source::{Common, SourcePlace};
use super::state::Reduction;
use super::world::World;
use crate::error::{Error, Result};
use crate::id::PutId;
use crate::message::{CombineInput, CombineOutcome, CopyId};
use crate::metadata::{Metadata, Replicas};
use crate::objects::combinations::CombineUser;
use crate::objects::notice::{Notice, SpaceWaiter};
use crate::plan::reduce::VertexId;
use crate::shard::{Locations, UnpublishReason};

impl Reduction {
    pub(super) fn is_full(&self) -> bool {
        self.joined.len() == self.request.count && self.fetching == 0
    }

    pub(super) const fn target_copy(&self) -> Option<CopyId> {
        self.target.copy()
    }

    pub(super) fn target_size(&self) -> Option<u64> {
        Some(self.common.as_ref()?.length_bytes)
    }

    /// Offset in the target at which new hops begin. `None` while a stopped target misses sources.
    pub(super) fn offset_of_new_hops(&self) -> Option<u64> {
        match &self.target {
            TargetState::Stopped { valid_bytes, .. } => self.is_full().then_some(*valid_bytes),
            _ => Some(0),
        }
    }

    fn input_puts(&self) -> InputPuts {
        let put = |index: &usize| (*index, self.sources[*index].joined_put.unwrap_or(PutId(0)));
        self.joined.iter().map(put).collect()
    }

    pub(super) fn target_located(&mut self, news: &Locations) -> Result<()> {
        let exists = news.object.as_ref().is_some_and(|object| !object.lost);
        if exists && self.target.copy().is_none() {
            return Err(Error::AlreadyExists { id: news.id.clone() });
        }
        Ok(())
    }

    /// Withdraws the query for the target. The target's copy then tells of a delete.
    pub(super) fn end_target_query(&mut self, world: &mut World<'_>) {
        if let Some(query) = self.existence.take() {
            world.objects.withdraw_query(query);
        }
    }

    pub(super) fn supersede_if_wrong(&mut self, world: &mut World<'_>) {
        let TargetState::Stopped { input_puts, .. } = &self.target else { return };
        if self.is_full() && *input_puts != self.input_puts() {
            self.supersede(world);
        }
    }

    /// Gives up a target with bytes of a lost source.
    pub(super) fn supersede_if_from(&mut self, world: &mut World<'_>, lost: &[usize]) {
        if let TargetState::Stopped { input_puts, .. } = &self.target
            && input_puts.iter().any(|(index, _)| lost.contains(index))
        {
            self.supersede(world);
        }
    }

    fn supersede(&mut self, world: &mut World<'_>) {
        let Some(copy) = self.target.copy() else { return };
        self.faults.restarts += 1;
        self.target = TargetState::None;
        // An answer about the old target must not be taken for one about the next.
        self.end_target_query(world);
        let late = self.tree.iter().filter(|(_, vertex)| vertex.state.offset_bytes > 0);
        let late: Vec<VertexId> = late.map(|(vertex, _)| vertex).collect();
        for vertex in late {
            self.redo(world, vertex);
        }
        world.objects.unpublish(copy, UnpublishReason::Superseded);
        world.objects.detach(copy, Error::Superseded { id: self.request.target.clone() });
    }

    pub(super) fn reserve_target(&mut self, world: &mut World<'_>) -> Result<bool> {
        let is_needed = self.is_full() || self.tree.iter().next().is_some();
        let Some(common) =
            self.common.as_ref().filter(|_| is_needed && self.target == TargetState::None)
        else {
            return Ok(true);
        };
        let (target, size_bytes) = (&self.request.target, common.length_bytes);
        let objects = &mut *world.objects;
        self.target_metadata(common).validate(size_bytes)?;
        objects.copies.check_size(objects.ctx.limits(), target, size_bytes)?;
        let waiter = SpaceWaiter::Target(target.clone());
        let payer = objects.copies.quotas.payer(self.key().client);
        if !objects.make_quota_room(payer, target, size_bytes)? {
            objects.copies.wait_for_quota(waiter);
            objects.ctx.notify(Notice::TargetLacksRoom(target.clone()));
            return Ok(false);
        }
        let Some(extent) = objects.allocate(size_bytes) else {
            objects.copies.wait_for_space(waiter);
            objects.ctx.notify(Notice::TargetLacksRoom(target.clone()));
            return Ok(false);
        };
        objects.copies.stop_waiting_for_space(&waiter);
        objects.copies.reserve_quota(payer, target, extent);
        self.target = TargetState::Reserved { extent };
        Ok(true)
    }

    pub(super) fn start_target(&mut self, world: &mut World<'_>) -> Result<()> {
        let Some(common) = self.common.clone().filter(|_| self.is_full()) else { return Ok(()) };
        if let TargetState::Reserved { extent } = self.target {
            let metadata = self.target_metadata(&common);
            let copy = world.objects.open_target(
                &self.request.target,
                common.length_bytes,
                metadata,
                extent,
            )?;
            self.target =
                TargetState::Stopped { copy, input_puts: self.input_puts(), valid_bytes: 0 };
        }
        let TargetState::Stopped { copy, valid_bytes, .. } = self.target else { return Ok(()) };
        let streams = self.target_streams();
        let inputs =
            streams.iter().filter_map(|of| self.target_input(world, *of)).collect::<Vec<_>>();
        debug_assert_eq!(inputs.len(), streams.len(), "each stream is somewhere");
        let user = CombineUser::Target(self.request.target.clone());
        world.objects.start_combine(
            copy,
            (self.request.op, common.dtype),
            valid_bytes,
            inputs,
            user,
        );
        let input_puts = self.input_puts();
        self.target = TargetState::Combining { copy, input_puts, streams };
        Ok(())
    }

    fn target_metadata(&self, common: &Common) -> Metadata {
        let agreement = self.fallback.as_ref().map(|fallback| fallback.agreement);
        let replicas = Replicas { wanted: self.request.replicas, ..Replicas::default() };
        Metadata { agreement, replicas, ..common.target_metadata() }
    }

    fn target_streams(&self) -> Vec<Stream> {
        let streams = self.tree.loose().iter().map(|vertex| Stream::Vertex(*vertex));
        let is_here =
            |index: &usize| matches!(self.sources[*index].place, SourcePlace::Here { .. });
        let mut here: Vec<usize> = self.joined.iter().copied().filter(is_here).collect();
        if self.is_fixed() {
            here.sort_unstable();
        }
        streams.chain(here.into_iter().map(Stream::Source)).collect()
    }

    fn target_input(&self, world: &World<'_>, of: Stream) -> Option<CombineInput> {
        match of {
            Stream::Vertex(vertex) => {
                let input = stream(self, vertex)?;
                Some(world.objects.resolve_input(&input).unwrap_or(CombineInput::Remote(input)))
            }
            Stream::Source(index) => match self.sources[index].place {
                SourcePlace::Here { copy, address: Some(address) }
                    if !world.objects.copies[&copy].is_resident() =>
                {
                    let at = (world.objects.ctx.node(), address);
                    Some(CombineInput::Remote(source_input(self, index, at)))
                }
                SourcePlace::Here { copy, .. } => {
                    Some(CombineInput::Local { copy, base_bytes: self.common.as_ref()?.base_bytes })
                }
                _ => None,
            },
        }
    }

    pub(super) fn combined(
        &mut self,
        world: &mut World<'_>,
        valid_bytes: u64,
        outcome: CombineOutcome,
    ) {
        let TargetState::Combining { copy, input_puts, streams } = &self.target else {
            return;
        };
        let (copy, input_puts, streams) = (*copy, input_puts.clone(), streams.clone());
        if outcome == CombineOutcome::Complete {
            return self.complete_target(world, copy);
        }
        self.target = TargetState::Stopped { copy, input_puts, valid_bytes };
        if let CombineOutcome::InputFailed { index, outcome } = outcome
            && let Some(stream) = streams.get(index)
        {
            let here = world.objects.ctx.node().clone();
            self.input_failed(world, *stream, outcome, &here);
        }
    }

    fn complete_target(&mut self, world: &mut World<'_>, copy: CopyId) {
        let record = self.record(world.objects.ctx.link(), world.now());
        world.shared.records.push(record);
        let mut reduced = self.joined.clone();
        if self.is_fixed() {
            // Sources were combined by index, whatever the order of fetching.
            reduced.sort_unstable();
        }
        debug_assert_eq!(
            reduced.len(),
            self.request.count,
            "as many are reduced as were asked for"
        );
        self.target = TargetState::None;
        self.release_hops(world);
        self.finish(world);
        world.objects.complete_target(self.key(), copy, reduced);
    }

    pub(super) fn abort_target(&mut self, world: &mut World<'_>) {
        let (objects, target) = (&mut *world.objects, &self.request.target);
        objects.copies.stop_waiting_for_space(&SpaceWaiter::Target(target.clone()));
        let state = std::mem::replace(&mut self.target, TargetState::None);
        if let TargetState::Reserved { extent } = state {
            objects.copies.give_back(extent);
            objects.copies.quotas.end_reservation(target);
        }
        match state.copy() {
            Some(copy) if objects.copies.is_live(copy) => objects.abandon_put(copy),
            Some(_) => {}
            // Calls may still wait for a superseded target.
            None => objects.wake(target),
        }
    }
}
