//! One reduce under way, and the order of its steps.

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

/// The time that a reduce waits for the first answers of the directory, before it begins with the
/// known sources: several round trips to a shard that is busy.
const FIRST_NEWS_TIMEOUT: Duration = Duration::from_millis(20);

/// A collective whose target a reduce makes, because no session does.
#[derive(Debug)]
pub(crate) struct Fallback {
    pub(crate) agreement: Agreement,
    /// The reason for which there is no session.
    pub(crate) reason: String,
}

/// See the [module documentation](self).
#[derive(Debug)]
pub(super) struct Reduction {
    key: CallKey,
    pub(super) request: Reduce,
    pub(super) started: Time,
    /// The groups that this store is in.
    pub(super) own: Path,
    /// The collective whose target it makes.
    pub(super) fallback: Option<Fallback>,
    pub(super) sources: Vec<Source>,
    /// The number of sources that the directory has not spoken of yet.
    pub(super) unheard: usize,
    /// The sources that are apart and may join, or be lost: all but unknown sources.
    pub(super) open: BTreeSet<usize>,
    /// The number of sources that are on their way to this store.
    pub(super) fetching: usize,
    /// The sources that are in the reduce now, in joining order.
    pub(super) joined: Vec<usize>,
    /// The query whether the target exists already.
    pub(super) existence: Option<RequestId>,
    /// The properties that all sources share, once one source is known.
    pub(super) common: Option<Common>,
    pub(super) choice: Option<Choice<ReduceSchedule>>,
    pub(super) tree: Tree<Run>,
    /// The vertices that are new or restart. Among them are all vertices whose hops are planned.
    pub(super) to_begin: BTreeSet<VertexId>,
    /// The latest vertex of each node.
    pub(super) latest: BTreeMap<NodeId, VertexId>,
    pub(super) rerouting: Rerouting,
    pub(super) target: TargetState,
    /// Failures, and counts of repairs.
    pub(super) faults: Faults,
    /// The time at which the reduction goes on.
    wake_at: Option<Time>,
    /// `true` once it holds nothing any more.
    pub(super) is_over: bool,
}

impl Reduction {
    /// A reduce that knows only the `open` sources, which are here.
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
            unheard: queries.len(),
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

    /// The call that asked for it.
    pub(super) const fn key(&self) -> CallKey {
        self.key
    }

    pub(super) fn is_fixed(&self) -> bool {
        self.request.order == ReduceOrder::Fixed
    }

    /// Returns the time that the call has left.
    pub(super) fn time_left(&self, now: Time) -> Duration {
        (self.started + self.request.timeout).since(now)
    }

    /// Does all that can be done now.
    pub(super) fn drive(&mut self, world: &mut World<'_>) -> Result<()> {
        self.wake_no_more(world);
        if self.repair(world) && self.has_heard_enough(world) {
            self.join_ready(world)?;
            self.check_hope(world)?;
            self.supersede_if_wrong(world);
            self.join_streams_of_groups(world);
            self.go_around_slow_links(world);
            // The target gets room first, because hops that wait for each other's targets could
            // wait for ever.
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

    /// Wakes the reduction at this time at the latest.
    pub(super) fn wake_by(&mut self, time: Time) {
        self.wake_at = Some(self.wake_at.map_or(time, |earlier| earlier.min(time)));
    }

    pub(super) fn wake_no_more(&mut self, world: &mut World<'_>) {
        if let Some(time) = self.wake_at.take() {
            world.objects.ctx.unschedule(time, Deadline::Reduce(self.request.target.clone()));
        }
    }

    /// Returns `true` if the directory has answered for all sources, so that the ready ones can be
    /// arranged well.
    fn has_heard_enough(&mut self, world: &World<'_>) -> bool {
        let due = self.started + FIRST_NEWS_TIMEOUT;
        let has_begun = !self.joined.is_empty() || world.now() >= due;
        if has_begun || self.unheard == 0 {
            return true;
        }
        self.wake_by(due);
        false
    }

    /// Gives back all that it holds, here and elsewhere. A target that is not complete is aborted.
    pub(super) fn end(&mut self, world: &mut World<'_>) {
        self.release_hops(world);
        self.abort_target(world);
        self.leave(world);
    }

    /// Lets go of all sources, after the target and the hops are done with.
    pub(super) fn leave(&mut self, world: &mut World<'_>) {
        self.wake_no_more(world);
        self.leave_sources(world);
        self.is_over = true;
    }

    /// Ends all hops.
    pub(super) fn release_hops(&mut self, world: &mut World<'_>) {
        let vertices: Vec<VertexId> = self.tree.iter().map(|(id, _)| id).collect();
        for vertex in vertices {
            self.release_vertex(world, vertex);
        }
    }

    /// Ends the hop of a vertex for good, unless the tree changes.
    pub(super) fn release_vertex(&mut self, world: &mut World<'_>, vertex: VertexId) {
        if let Some(run) = self.tree.state_mut(vertex) {
            world.end_hop(run.turn(RunPhase::Released));
        }
    }
}
