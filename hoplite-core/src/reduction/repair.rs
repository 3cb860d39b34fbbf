use std::time::Duration;

use super::parts::{Faults, Run, RunPhase, Stream, TargetState};
use super::source::SourcePlace;
use super::state::Reduction;
use super::world::World;
use crate::id::NodeId;
use crate::message::{HopFailure, HopId, HopReport};
use crate::objects::fetch::back_off;
use crate::plan::reduce::{Vertex, VertexId};
use crate::shard::PullOutcome;
use crate::time::Time;

/// Time for which a repair waits for reports of the same failure: its hop and the hop's consumers
/// notice it within a round trip.
const REPAIR_DELAY: Duration = Duration::from_millis(2);
/// Shortest time for which a source is pulled from other nodes after one failed to send it.
const MIN_AVOIDED: Duration = Duration::from_millis(100);

impl Reduction {
    pub(super) fn hop_reported(
        &mut self,
        world: &mut World<'_>,
        hop: HopId,
        vertex: VertexId,
        report: HopReport,
    ) {
        let Some(run) = self.tree.state_mut(vertex) else { return };
        match report {
            HopReport::Complete => {
                run.phase = RunPhase::Complete(hop);
                self.release_inputs(world, vertex);
            }
            HopReport::Failed(failure) => {
                run.phase = RunPhase::Failed(hop);
                self.hop_failed(world, vertex, failure);
            }
        }
    }

    fn release_inputs(&mut self, world: &mut World<'_>, vertex: VertexId) {
        let inputs = self.tree.get(vertex).map(|vertex| vertex.inputs.clone()).unwrap_or_default();
        for input in inputs {
            self.faults.vertices.remove(&input);
            self.faults.unfit.remove(&input);
            if self.tree.get(input).is_some_and(|input| input.state.phase != RunPhase::Planned) {
                self.release_vertex(world, input);
            }
        }
    }

    fn hop_failed(&mut self, world: &mut World<'_>, vertex: VertexId, failure: HopFailure) {
        let Some(entry) = self.tree.get(vertex) else { return };
        let consumer = entry.consumer.and_then(|consumer| self.tree.get(consumer));
        if consumer.is_some_and(|consumer| consumer.state.phase.has_all()) {
            return self.release_vertex(world, vertex);
        }
        let node = entry.state.node.clone();
        let (inputs, sources) = (entry.inputs.clone(), entry.sources.clone());
        match failure {
            HopFailure::Unreachable => {
                for source in sources {
                    self.source_failed(world, source, &node);
                }
                self.faults.vertices.insert(vertex);
            }
            HopFailure::Input { index, outcome } => {
                self.faults.vertices.insert(vertex);
                let streams = inputs.into_iter().map(Stream::Vertex);
                let stream = streams.chain(sources.into_iter().map(Stream::Source)).nth(index);
                if let Some(stream) = stream {
                    self.input_failed(world, stream, outcome, &node);
                }
            }
            HopFailure::Refused(_) => {
                self.faults.unfit.insert(vertex);
            }
        }
    }

    pub(super) fn input_failed(
        &mut self,
        world: &mut World<'_>,
        stream: Stream,
        outcome: PullOutcome,
        node: &NodeId,
    ) {
        match stream {
            Stream::Source(source) => self.source_failed(world, source, node),
            Stream::Vertex(vertex) => {
                let Some(entry) = self.tree.get(vertex) else { return };
                let (is_plain, at) = (entry.is_plain(), entry.state.node.clone());
                let source = entry.sources.first().copied();
                match source {
                    Some(source) if is_plain && outcome != PullOutcome::Cancelled => {
                        self.source_failed(world, source, &at);
                    }
                    _ => {
                        self.faults.vertices.insert(vertex);
                    }
                }
            }
        }
    }

    fn source_failed(&mut self, world: &mut World<'_>, source: usize, node: &NodeId) {
        let period = back_off(self.faults.attempts.saturating_add(2)).max(MIN_AVOIDED);
        let until = world.objects.ctx.now() + period;
        self.faults.is_first_failure |= !self.sources[source].has_failed_at(node);
        self.sources[source].avoid(node.clone(), until);
        self.faults.sources.insert(source);
    }

    /// Removes a joined source whose put is lost, unless a consumer already pulls it: the consumer
    /// notices a loss, and may have the last copy.
    pub(super) fn remove_lost_source(&mut self, world: &mut World<'_>, source: usize) {
        let is_combining = matches!(self.target, TargetState::Combining { .. });
        let is_unused = match self.sources[source].place {
            SourcePlace::Here { copy, .. } => {
                !is_combining && !world.objects.copies[&copy].is_live()
            }
            SourcePlace::Elsewhere => {
                let vertex = self.tree.vertex_of(source).and_then(|vertex| self.tree.get(vertex));
                vertex.is_some_and(|vertex| {
                    match vertex.consumer.and_then(|id| self.tree.get(id)) {
                        _ if !vertex.is_plain() => false,
                        Some(consumer) => consumer.state.phase == RunPhase::Planned,
                        None => !is_combining,
                    }
                })
            }
            SourcePlace::Apart | SourcePlace::Fetching(_) => false,
        };
        if is_unused {
            self.faults.sources.insert(source);
        }
    }

    /// Removes failed sources and vertices, and plans hops again. Returns `false` if the repair
    /// must wait for further reports, or for the target's combination to stop.
    pub(super) fn repair(&mut self, world: &mut World<'_>) -> bool {
        if self.faults.is_empty() {
            return true;
        }
        let attempts = self.faults.attempts;
        let pause = if attempts < 2 || self.faults.is_first_failure {
            REPAIR_DELAY
        } else {
            back_off(attempts)
        };
        let due = self.faults.repair_at.unwrap_or(Time::NEVER).min(world.objects.ctx.now() + pause);
        self.faults.repair_at = Some(due);
        if world.objects.ctx.now() < due {
            self.wake_by(due);
            return false;
        }
        if let TargetState::Combining { copy, .. } = self.target
            && world.objects.cancel_combine(copy)
        {
            // The repair continues when the cancelled combination has ended.
            return false;
        }
        let faults = std::mem::take(&mut self.faults);
        let valid_bytes = match &self.target {
            TargetState::Stopped { valid_bytes, .. } => *valid_bytes,
            _ => 0,
        };
        let has_progress = valid_bytes > faults.valid_bytes || faults.is_first_failure;
        let attempts = if has_progress { 1 } else { faults.attempts + 1 };
        self.faults = Faults {
            valid_bytes,
            attempts,
            repairs: faults.repairs + 1,
            restarts: faults.restarts,
            ..Faults::default()
        };
        for vertex in faults.unfit {
            self.dissolve(world, vertex);
        }
        for vertex in faults.vertices {
            for changed in self.tree.way_to_receiver(vertex) {
                self.redo(world, changed);
            }
        }
        for source in faults.sources {
            self.remove_source(world, source);
        }
        self.redo_orphans(world);
        true
    }

    /// Repeats finished combinations whose output the consumer has lost.
    fn redo_orphans(&mut self, world: &mut World<'_>) {
        let is_missed = |vertex: &Vertex<Run>| {
            let consumer = vertex.consumer.and_then(|consumer| self.tree.get(consumer));
            vertex.state.phase == RunPhase::Released
                && !consumer.is_some_and(|consumer| consumer.state.phase.has_all())
        };
        let missed: Vec<VertexId> =
            self.tree.iter().filter(|(_, vertex)| is_missed(vertex)).map(|(id, _)| id).collect();
        for vertex in missed {
            self.redo(world, vertex);
        }
    }

    fn remove_source(&mut self, world: &mut World<'_>, source: usize) {
        let mut leaving = vec![source];
        if self.is_fixed() {
            // Later sources are combined after this one, so they must join again.
            let takes_all = self.request.count == self.sources.len();
            let is_later = |other: &usize| *other != source && (!takes_all || *other > source);
            leaving.extend(self.joined.iter().copied().filter(is_later));
        }
        for source in leaving {
            self.joined.retain(|other| *other != source);
            let was_elsewhere = self.sources[source].place == SourcePlace::Elsewhere;
            self.release_place(world, source);
            self.open.insert(source);
            if was_elsewhere {
                let (changed, gone) = self.tree.remove_source(source);
                if let Some(run) = gone {
                    world.end_hop(run.phase.hop());
                }
                for vertex in changed {
                    self.redo(world, vertex);
                }
            }
        }
    }

    pub(super) fn dissolve(&mut self, world: &mut World<'_>, vertex: VertexId) {
        let Some(entry) = self.tree.get(vertex) else { return };
        let run = entry.state.clone();
        let (changed, gone) = self.tree.dissolve(vertex, |_| run.planned_again());
        if let Some(run) = gone {
            world.end_hop(run.phase.hop());
        }
        for vertex in changed {
            self.redo(world, vertex);
        }
    }

    /// Plans the hop of a vertex again, and the ended hops of its inputs.
    pub(super) fn redo(&mut self, world: &mut World<'_>, vertex: VertexId) {
        let mut pending = vec![vertex];
        while let Some(vertex) = pending.pop() {
            let Some(run) = self.tree.state_mut(vertex) else { continue };
            let hop = run.set_phase(RunPhase::Planned);
            run.offset_bytes = 0;
            self.to_begin.insert(vertex);
            world.end_hop(hop);
            let released = |input: &VertexId| {
                self.tree.get(*input).is_some_and(|input| input.state.phase == RunPhase::Released)
            };
            let inputs =
                self.tree.get(vertex).map(|vertex| vertex.inputs.clone()).unwrap_or_default();
            pending.extend(inputs.into_iter().filter(released));
        }
    }
}
