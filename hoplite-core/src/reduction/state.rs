use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::parts::{Faults, Rerouting, Run, RunPhase, TargetState};
use super::source::{Common, Source};
use super::world::World;
use crate::collective::Agreement;
use crate::error::Result;
use crate::id::NodeId;
use crate::message::{CallKey, Reduce, ReduceOrder};
use crate::objects::notice::Deadline;
use crate::plan::Choice;
use crate::plan::reduce::{ReduceSchedule, Tree, VertexId};
use crate::shard::RequestId;
use crate::time::Time;
use crate::topology::place::Path;

/// Time for which a reduce waits for the directory's first answers: several round trips to a busy
/// shard.
const FIRST_ANSWERS_TIMEOUT: Duration = Duration::from_millis(20);

/// Agreement of an allreduce that became a reduce and a broadcast, and the reason.
#[derive(Debug)]
pub(crate) struct Fallback {
    pub(crate) agreement: Agreement,
    pub(crate) reason: String,
}

#[derive(Debug)]
pub(super) struct Reduction {
    key: CallKey,
    pub(super) request: Reduce,
    pub(super) started: Time,
    pub(super) own: Path,
    pub(super) fallback: Option<Fallback>,
    pub(super) sources: Vec<Source>,
    pub(super) unanswered: usize,
    /// Located sources that have not joined.
    pub(super) open: BTreeSet<usize>,
    pub(super) fetching: usize,
    pub(super) joined: Vec<usize>,
    pub(super) existence: Option<RequestId>,
    pub(super) common: Option<Common>,
    pub(super) choice: Option<Choice<ReduceSchedule>>,
    pub(super) tree: Tree<Run>,
    pub(super) to_begin: BTreeSet<VertexId>,
    pub(super) latest: BTreeMap<NodeId, VertexId>,
    pub(super) rerouting: Rerouting,
    pub(super) target: TargetState,
    pub(super) faults: Faults,
    wake_at: Option<Time>,
    pub(super) is_over: bool,
}

impl Reduction {
    pub(super) fn new(
        (key, request, fallback): (CallKey, Reduce, Option<Fallback>),
        (started, own): (Time, Path),
        (existence, queries): (RequestId, Vec<RequestId>),
        open: BTreeSet<usize>,
    ) -> Self {
        Self {
            key,
            request,
            started,
            own,
            fallback,
            unanswered: queries.len(),
            sources: queries.into_iter().map(Source::new).collect(),
            open,
            fetching: 0,
            joined: Vec::new(),
            existence: Some(existence),
            common: None,
            choice: None,
            tree: Tree::default(),
            to_begin: BTreeSet::new(),
            latest: BTreeMap::new(),
            rerouting: Rerouting::default(),
            target: TargetState::None,
            faults: Faults::default(),
            wake_at: None,
            is_over: false,
        }
    }

    pub(super) const fn key(&self) -> CallKey {
        self.key
    }

    pub(super) fn is_fixed(&self) -> bool {
        self.request.order == ReduceOrder::Fixed
    }

    pub(super) fn time_left(&self, now: Time) -> Duration {
        (self.started + self.request.timeout).since(now)
    }

    pub(super) fn drive(&mut self, world: &mut World<'_>) -> Result<()> {
        self.cancel_wake(world);
        if self.repair(world) && self.has_enough_answers(world) {
            self.join_ready(world)?;
            self.check_enough_sources(world)?;
            self.supersede_if_wrong(world);
            self.join_streams_of_groups(world);
            self.reroute_around_slow_links(world);
            if self.reserve_target(world)? {
                self.start_hops(world);
                self.start_target(world)?;
            }
        }
        if let Some(time) = self.wake_at {
            world.objects.ctx.schedule(time, Deadline::Reduce(self.request.target.clone()));
        }
        Ok(())
    }

    pub(super) fn wake_by(&mut self, time: Time) {
        self.wake_at = Some(self.wake_at.map_or(time, |earlier| earlier.min(time)));
    }

    pub(super) fn cancel_wake(&mut self, world: &mut World<'_>) {
        if let Some(time) = self.wake_at.take() {
            world.objects.ctx.unschedule(time, Deadline::Reduce(self.request.target.clone()));
        }
    }

    /// Returns `true` once all queries are answered, the reduce has waited long enough, or sources
    /// have joined.
    fn has_enough_answers(&mut self, world: &World<'_>) -> bool {
        let due = self.started + FIRST_ANSWERS_TIMEOUT;
        let has_begun = !self.joined.is_empty() || world.now() >= due;
        if has_begun || self.unanswered == 0 {
            return true;
        }
        self.wake_by(due);
        false
    }

    pub(super) fn end(&mut self, world: &mut World<'_>) {
        self.release_hops(world);
        self.abort_target(world);
        self.finish(world);
    }

    pub(super) fn finish(&mut self, world: &mut World<'_>) {
        self.cancel_wake(world);
        self.release_sources(world);
        self.is_over = true;
    }

    pub(super) fn release_hops(&mut self, world: &mut World<'_>) {
        let vertices: Vec<VertexId> = self.tree.iter().map(|(id, _)| id).collect();
        for vertex in vertices {
            self.release_vertex(world, vertex);
        }
    }

    /// Ends the combination at a vertex. It is repeated only if the tree changes.
    pub(super) fn release_vertex(&mut self, world: &mut World<'_>, vertex: VertexId) {
        if let Some(run) = self.tree.state_mut(vertex) {
            world.end_hop(run.set_phase(RunPhase::Released));
        }
    }
}
