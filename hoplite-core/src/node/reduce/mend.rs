//! What a reduce does about failures.

use std::collections::BTreeSet;
use std::time::Duration;

use super::super::fetch::back_off;
use super::super::{HopFailure, HopId, HopReport, Node};
use super::grow::planned;
use super::sources::Place;
use super::target::{Stream, Target};
use super::{DirectedHop, Progress, Reduction, Run, RunPhase};
use crate::id::NodeId;
use crate::plan::reduce::{Vertex, VertexId};
use crate::shard::PullOutcome;
use crate::time::Time;

/// One failure shows in several places within a round trip: at the hop, and at those that take in its stream. What they
/// report in this time is mended as one.
const GATHERING: Duration = Duration::from_millis(2);
/// For so long at least, a source is not sought again at a node where it could not be had.
const LEAST_SHUNNED: Duration = Duration::from_millis(100);

/// What failed and is not mended yet, and what was.
#[derive(Debug, Default)]
pub(super) struct Faults {
    /// Sources that cannot be had where they were.
    sources: BTreeSet<usize>,
    /// Vertices whose hop is to be begun anew.
    vertices: BTreeSet<VertexId>,
    /// Vertices whose node cannot combine.
    unfit: BTreeSet<VertexId>,
    /// Whether one of the sources had never failed where it was. A node that dies does so once, so many of them are no reason
    /// to wait.
    is_news: bool,
    mend_at: Option<Time>,
    /// How many bytes the target had at the last mending.
    valid_bytes: u64,
    /// Mendings in a row that brought no byte, since the latest news.
    attempts: u32,
    /// How often something was mended.
    pub(super) mendings: u32,
    /// How often the target was superseded.
    pub(super) restarts: u32,
}

impl Faults {
    fn is_empty(&self) -> bool {
        self.sources.is_empty() && self.vertices.is_empty() && self.unfit.is_empty()
    }
}

/// Whether a reduction can go on with something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mending {
    /// Nothing is broken.
    Done,
    /// Waits for further reports, or for the target to stop.
    Waits,
}

impl Node {
    pub(in super::super) fn hop_reported(&mut self, hop: HopId, report: HopReport) {
        let Some(DirectedHop { target, vertex, .. }) = self.hops.get(&hop).cloned() else { return };
        self.change_reduction(&target, |node, reduction| {
            let Some(run) = reduction.tree.state_mut(vertex) else { return Ok(Progress::Going) };
            match report {
                HopReport::Complete => {
                    run.phase = RunPhase::Complete(hop);
                    node.release_inputs(reduction, vertex);
                }
                HopReport::Failed(failure) => {
                    run.phase = RunPhase::Failed(hop);
                    node.hop_failed_elsewhere(reduction, vertex, failure);
                }
            }
            Ok(Progress::Going)
        });
    }

    /// A hop has all its output: nobody needs what it was computed from, unless it is lost.
    fn release_inputs(&mut self, reduction: &mut Reduction, vertex: VertexId) {
        let inputs = reduction.tree.get(vertex).map(|vertex| vertex.inputs.clone()).unwrap_or_default();
        for input in inputs {
            reduction.faults.vertices.remove(&input);
            reduction.faults.unfit.remove(&input);
            if let Some(run) = reduction.tree.state_mut(input)
                && run.phase != RunPhase::Planned
            {
                let phase = std::mem::replace(&mut run.phase, RunPhase::Released);
                self.end_hop(phase);
            }
        }
    }

    fn hop_failed_elsewhere(&mut self, reduction: &mut Reduction, vertex: VertexId, failure: HopFailure) {
        let Some(entry) = reduction.tree.get(vertex) else { return };
        let consumer = entry.consumer.and_then(|consumer| reduction.tree.get(consumer));
        if consumer.is_some_and(|consumer| consumer.state.phase.has_all()) {
            // Nobody needs it any more; if that changes, it is begun anew.
            if let Some(run) = reduction.tree.state_mut(vertex) {
                let phase = std::mem::replace(&mut run.phase, RunPhase::Released);
                self.end_hop(phase);
            }
            return;
        }
        let node = entry.state.node.clone();
        let (inputs, sources) = (entry.inputs.clone(), entry.sources.clone());
        match failure {
            HopFailure::Unreachable => {
                for source in sources {
                    self.source_failed(reduction, source, &node);
                }
                reduction.faults.vertices.insert(vertex);
            }
            HopFailure::Input { index, outcome } => {
                reduction.faults.vertices.insert(vertex);
                let streams = inputs.into_iter().map(Stream::Vertex);
                let stream = streams.chain(sources.into_iter().map(Stream::Source)).nth(index);
                if let Some(stream) = stream {
                    self.input_failed(reduction, stream, outcome, &node);
                }
            }
            HopFailure::Refused(_) => {
                reduction.faults.unfit.insert(vertex);
            }
        }
    }

    /// What a hop at `node`, or the target, takes in cannot be had.
    pub(super) fn input_failed(
        &mut self,
        reduction: &mut Reduction,
        stream: Stream,
        outcome: PullOutcome,
        node: &NodeId,
    ) {
        match stream {
            Stream::Source(source) => self.source_failed(reduction, source, node),
            Stream::Vertex(vertex) => {
                let Some(entry) = reduction.tree.get(vertex) else { return };
                let (is_plain, at) = (entry.is_plain(), entry.state.node.clone());
                let source = entry.sources.first().copied();
                match source {
                    Some(source) if is_plain && outcome != PullOutcome::Cancelled => {
                        self.source_failed(reduction, source, &at);
                    }
                    _ => {
                        reduction.faults.vertices.insert(vertex);
                    }
                }
            }
        }
    }

    fn source_failed(&mut self, reduction: &mut Reduction, source: usize, node: &NodeId) {
        let period = back_off(reduction.faults.attempts.saturating_add(2)).max(LEAST_SHUNNED);
        let until = self.ctx.now() + period;
        reduction.faults.is_news |= !reduction.sources[source].has_failed_at(node);
        reduction.sources[source].shun(node.clone(), until);
        reduction.faults.sources.insert(source);
    }

    /// The directory knows no copy of the put of a source any more that has joined. If nobody takes it in yet, nobody else
    /// would notice. Those who do know better: theirs may be the last copy.
    pub(super) fn joined_source_gone(&mut self, reduction: &mut Reduction, source: usize) {
        let is_combining = matches!(reduction.target, Target::Combining { .. });
        let is_unused = match reduction.sources[source].place {
            Place::Here { copy } => !is_combining && self.copies[&copy].detached.is_some(),
            Place::Elsewhere => {
                let vertex = reduction.tree.vertex_of(source).and_then(|vertex| reduction.tree.get(vertex));
                vertex.is_some_and(|vertex| match vertex.consumer.and_then(|id| reduction.tree.get(id)) {
                    _ if !vertex.is_plain() => false,
                    Some(consumer) => consumer.state.phase == RunPhase::Planned,
                    None => !is_combining,
                })
            }
            Place::Apart | Place::Fetching(_) => false,
        };
        if is_unused {
            reduction.faults.sources.insert(source);
        }
    }

    /// Takes out what failed, and prepares what depends on it to be done again.
    pub(super) fn mend(&mut self, reduction: &mut Reduction) -> Mending {
        if reduction.faults.is_empty() {
            return Mending::Done;
        }
        let attempts = reduction.faults.attempts;
        let pause = if attempts < 2 || reduction.faults.is_news { GATHERING } else { back_off(attempts) };
        let due = reduction.faults.mend_at.unwrap_or(Time::NEVER).min(self.ctx.now() + pause);
        reduction.faults.mend_at = Some(due);
        if self.ctx.now() < due {
            reduction.wake_by(due);
            return Mending::Waits;
        }
        if let Target::Combining { copy, .. } = reduction.target
            && self.cancel_combine(copy)
        {
            // It reports that it has ended.
            return Mending::Waits;
        }
        let faults = std::mem::take(&mut reduction.faults);
        let valid_bytes = match &reduction.target {
            Target::Stopped { valid_bytes, .. } => *valid_bytes,
            _ => 0,
        };
        let has_progress = valid_bytes > faults.valid_bytes || faults.is_news;
        let attempts = if has_progress { 1 } else { faults.attempts + 1 };
        reduction.faults = Faults {
            valid_bytes,
            attempts,
            mendings: faults.mendings + 1,
            restarts: faults.restarts,
            ..Faults::default()
        };
        for vertex in faults.unfit {
            self.dissolve(reduction, vertex);
        }
        for vertex in faults.vertices {
            for changed in reduction.tree.way_to_receiver(vertex) {
                self.redo(reduction, changed);
            }
        }
        for source in faults.sources {
            self.take_out(reduction, source);
        }
        self.redo_heirs(reduction);
        Mending::Done
    }

    /// Prepares those to be done again that were released, since what took them in had all of it, and that is gone.
    fn redo_heirs(&mut self, reduction: &mut Reduction) {
        let is_missed = |vertex: &Vertex<Run>| {
            let consumer = vertex.consumer.and_then(|consumer| reduction.tree.get(consumer));
            vertex.state.phase == RunPhase::Released
                && !consumer.is_some_and(|consumer| consumer.state.phase.has_all())
        };
        let missed: Vec<VertexId> =
            reduction.tree.iter().filter(|(_, vertex)| is_missed(vertex)).map(|(id, _)| id).collect();
        for vertex in missed {
            self.redo(reduction, vertex);
        }
    }

    /// Takes a source out of the reduce; it can join again.
    fn take_out(&mut self, reduction: &mut Reduction, source: usize) {
        let mut leaving = vec![source];
        if reduction.is_fixed() {
            // Those that come after it in the order join after it again.
            let takes_all = reduction.request.count == reduction.sources.len();
            let is_later = |other: &usize| *other != source && (!takes_all || *other > source);
            leaving.extend(reduction.joined.iter().copied().filter(is_later));
        }
        for source in leaving {
            reduction.joined.retain(|other| *other != source);
            let was_elsewhere = reduction.sources[source].place == Place::Elsewhere;
            self.leave_place(reduction, source);
            reduction.open.insert(source);
            if was_elsewhere {
                let (changed, gone) = reduction.tree.remove_source(source);
                if let Some(run) = gone {
                    self.end_hop(run.phase);
                }
                for vertex in changed {
                    self.redo(reduction, vertex);
                }
            }
        }
    }

    /// Lets the consumer of a vertex combine in its place.
    pub(super) fn dissolve(&mut self, reduction: &mut Reduction, vertex: VertexId) {
        let Some(entry) = reduction.tree.get(vertex) else { return };
        let (node, address) = (entry.state.node.clone(), entry.state.address);
        let (changed, gone) = reduction.tree.dissolve(vertex, |_| planned(node.clone(), address));
        if let Some(run) = gone {
            self.end_hop(run.phase);
        }
        for vertex in changed {
            self.redo(reduction, vertex);
        }
    }

    /// Ends the hop of a vertex, which is begun anew later. What it takes in and was released already is needed again.
    pub(super) fn redo(&mut self, reduction: &mut Reduction, vertex: VertexId) {
        let mut pending = vec![vertex];
        while let Some(vertex) = pending.pop() {
            let Some(run) = reduction.tree.state_mut(vertex) else { continue };
            let phase = std::mem::replace(&mut run.phase, RunPhase::Planned);
            run.offset_bytes = 0;
            reduction.to_begin.insert(vertex);
            self.end_hop(phase);
            let released = |input: &VertexId| {
                reduction.tree.get(*input).is_some_and(|input| input.state.phase == RunPhase::Released)
            };
            let inputs = reduction.tree.get(vertex).map(|vertex| vertex.inputs.clone()).unwrap_or_default();
            pending.extend(inputs.into_iter().filter(released));
        }
    }
}
