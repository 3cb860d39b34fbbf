//! Reduces that this store coordinates.
//!
//! A [`Reduction`] follows the locations of its sources and lets a [`Tree`] grow with them. Each vertex of the tree that
//! has something to combine is a *hop*, which this store asks the vertex's node to perform; the target is combined here, from
//! the streams that are left and from the sources that are here. Sources that are inline are fetched instead, unless they are
//! so many that the receiver's link would take longer than hops: most reduces of small objects have no hops.
//!
//! A failure costs only what depends on it: the source that cannot be had leaves the tree, the hops between it and the
//! receiver are begun anew at the offset that the target has reached, all others go on. If the same put of the source comes
//! back (another copy, or the same node again), the target goes on; if another put or another source takes its place, what
//! the target has is wrong and it is superseded by one under another put id.
//!
//! # Invariants
//! * Each byte of a target was computed from the same set of puts, each counted once.
//! * No hop outlives its reduction, and a reduction does not outlive its call.
//!
//! Source: Hoplite, section 4.3. Joining in any number of dimensions, mending and fixed order are ours.

mod grow;
mod mend;
mod record;
mod sources;
mod target;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::calls::{Call, CallKey};
use super::context::Deadline;
use super::{CallId, ClientId, Effect, Hop, HopId, Node, Reduce, ReduceOrder};
use crate::error::{Error, Operation, Result};
use crate::id::{NodeId, ObjectId, PutId};
use crate::plan::reduce::{Choice, Tree, VertexId};
use crate::shard::RequestId;
use crate::time::Time;
pub use record::ReduceRecord;
use sources::{Common, Source};
use target::Target;

/// How long a reduce waits for the directory to say what is ready, before it begins with what it knows: several round trips
/// to a shard that is busy.
const FIRST_NEWS_PATIENCE: Duration = Duration::from_millis(20);

/// A reduce under way.
#[derive(Debug)]
pub(super) struct Reduction {
    key: CallKey,
    request: Reduce,
    started: Time,
    sources: Vec<Source>,
    /// How many sources the directory has not spoken of yet.
    unheard: usize,
    /// The sources that are apart and may join, or be lost: all but those of which nothing is known.
    open: BTreeSet<usize>,
    /// How many sources are on their way to this store.
    fetching: usize,
    /// The sources that are in the reduce now, in joining order.
    joined: Vec<usize>,
    /// The question whether the target exists already.
    existence: Option<RequestId>,
    /// What all sources have in common, once one is known.
    common: Option<Common>,
    choice: Option<Choice>,
    tree: Tree<Run>,
    /// The vertices that are new or are to be done again; among them are all whose hop is to be begun.
    to_begin: BTreeSet<VertexId>,
    /// The latest vertex of each node.
    latest: BTreeMap<NodeId, VertexId>,
    target: Target,
    /// What failed and is to be mended at `mend_at`.
    faults: mend::Faults,
    /// When it is to be looked at again.
    wake_at: Option<Time>,
}

/// How far the hop of a vertex is.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Run {
    node: NodeId,
    address: std::net::SocketAddr,
    /// When the vertex joined.
    joined_at: Time,
    phase: RunPhase,
    /// The name of the output.
    output: ObjectId,
    put: PutId,
    offset_bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RunPhase {
    /// Not asked for; so is a plain vertex, for ever.
    Planned,
    /// Asked for.
    Running(HopId),
    /// All its output is there.
    Complete(HopId),
    /// It failed, and is to be ended.
    Failed(HopId),
    /// Its consumer has all of it, so it was ended.
    Released,
}

impl RunPhase {
    /// Whether it has taken in all that it ever needs.
    const fn has_all(self) -> bool {
        matches!(self, Self::Complete(_) | Self::Released)
    }

    const fn hop(self) -> Option<HopId> {
        match self {
            Self::Running(hop) | Self::Complete(hop) | Self::Failed(hop) => Some(hop),
            Self::Planned | Self::Released => None,
        }
    }
}

/// Where a hop belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DirectedHop {
    target: ObjectId,
    vertex: VertexId,
    /// Whether this store performs it.
    is_here: bool,
}

/// Whether a reduction goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    Going,
    Done,
}

impl Reduction {
    fn is_fixed(&self) -> bool {
        self.request.order == ReduceOrder::Fixed
    }

    fn wake_by(&mut self, time: Time) {
        self.wake_at = Some(self.wake_at.map_or(time, |earlier| earlier.min(time)));
    }
}

impl Node {
    pub(super) fn reduce(&mut self, key: CallKey, request: Reduce) {
        if let Err(error) = self.check_reduce(key.client, &request) {
            return self.reply(key, Err(error));
        }
        let target = request.target.clone();
        let call =
            Call::Reduce { target: target.clone(), sources: request.sources.len(), reduced: Vec::new() };
        self.enter(key, call, Operation::Reduce, request.timeout);
        let existence = Some(self.ask_target(&target));
        let ask = |(index, id): (usize, &ObjectId)| self.ask_source(id.clone(), &target, index);
        let asks: Vec<RequestId> = request.sources.iter().enumerate().map(ask).collect();
        let reduction = Reduction {
            key,
            started: self.ctx.now(),
            unheard: asks.len(),
            open: (0..asks.len()).filter(|index| self.live(&request.sources[*index]).is_some()).collect(),
            fetching: 0,
            sources: asks.into_iter().map(Source::new).collect(),
            joined: Vec::new(),
            existence,
            common: None,
            choice: None,
            tree: Tree::default(),
            to_begin: BTreeSet::new(),
            latest: BTreeMap::new(),
            target: Target::None,
            faults: mend::Faults::default(),
            wake_at: None,
            request,
        };
        self.reductions.insert(target.clone(), reduction);
        self.reconsider_reduce(&target);
    }

    fn check_reduce(&self, client: ClientId, request: &Reduce) -> Result<()> {
        let Reduce { target, sources, count, op: _, order: _, range: _, timeout: _ } = request;
        if sources.is_empty() {
            return Err(Error::invalid_request("a reduce needs at least one source"));
        }
        self.check_ids(client, sources)?;
        if !(1..=sources.len()).contains(count) {
            let reason = "the number of objects to reduce is between one and the number of sources";
            return Err(Error::invalid_request(reason));
        }
        let mut seen = BTreeSet::from([target]);
        if let Some(id) = sources.iter().find(|id| !seen.insert(id)) {
            return Err(Error::DuplicateId { id: id.clone() });
        }
        if self.live(target).is_some() || self.reductions.contains_key(target) {
            return Err(Error::AlreadyExists { id: target.clone() });
        }
        Ok(())
    }

    /// Lets a reduction take in what `change` tells it, and do what follows from that.
    fn change_reduction(
        &mut self,
        target: &ObjectId,
        change: impl FnOnce(&mut Self, &mut Reduction) -> Result<Progress>,
    ) {
        // Taken out meanwhile, so that nothing that follows from its own effects finds it half-changed.
        let Some(mut reduction) = self.reductions.remove(target) else { return };
        let outcome = change(self, &mut reduction).and_then(|progress| match progress {
            Progress::Going => self.drive(&mut reduction),
            Progress::Done => Ok(Progress::Done),
        });
        match outcome {
            Ok(Progress::Going) => {
                self.reductions.insert(target.clone(), reduction);
            }
            Ok(Progress::Done) => self.wake_no_more(&mut reduction),
            Err(error) => {
                let key = reduction.key;
                self.end_reduction(reduction);
                self.finish(key, Err(error));
            }
        }
    }

    /// Looks whether a reduction can go on.
    pub(super) fn reconsider_reduce(&mut self, target: &ObjectId) {
        self.change_reduction(target, |_, _| Ok(Progress::Going));
    }

    pub(super) fn fail_reduce(&mut self, target: &ObjectId, error: Error) {
        self.change_reduction(target, |_, _| Err(error));
    }

    /// Ends the reduction that would make an object that is being deleted; whether there was one.
    pub(super) fn delete_reduction(&mut self, target: &ObjectId) -> bool {
        let is_under_way = self.reductions.contains_key(target);
        self.fail_reduce(target, Error::Deleted { id: target.clone() });
        is_under_way
    }

    /// The call of a reduction has ended.
    pub(super) fn reduce_is_unwanted(&mut self, key: CallKey, target: &ObjectId) {
        if self.reductions.get(target).is_some_and(|reduction| reduction.key == key)
            && let Some(reduction) = self.reductions.remove(target)
        {
            self.end_reduction(reduction);
        } else if let Some((copy, local)) = self.live(target)
            && local.sealer == Some(key)
        {
            self.copy_mut(copy).sealer = None;
        }
    }

    /// Does all that can be done now.
    fn drive(&mut self, reduction: &mut Reduction) -> Result<Progress> {
        self.wake_no_more(reduction);
        if self.mend(reduction) == mend::Mending::Waits {
            return Ok(self.sleep(reduction));
        }
        if self.has_heard_enough(reduction) {
            self.join_ready(reduction)?;
            self.check_hope(reduction)?;
            self.supersede_if_wrong(reduction);
            // First room for the target: hops that wait for each other's target could wait for ever.
            if self.reserve_target(reduction)? {
                self.start_hops(reduction);
                self.start_target(reduction)?;
            }
        }
        Ok(self.sleep(reduction))
    }

    fn sleep(&mut self, reduction: &Reduction) -> Progress {
        if let Some(time) = reduction.wake_at {
            self.ctx.schedule(time, Deadline::Reduce(reduction.request.target.clone()));
        }
        Progress::Going
    }

    fn wake_no_more(&mut self, reduction: &mut Reduction) {
        if let Some(time) = reduction.wake_at.take() {
            self.ctx.unschedule(time, Deadline::Reduce(reduction.request.target.clone()));
        }
    }

    /// Whether the directory has said of all sources what it knows, so that those that are ready can be arranged well.
    fn has_heard_enough(&self, reduction: &mut Reduction) -> bool {
        let due = reduction.started + FIRST_NEWS_PATIENCE;
        let has_begun = !reduction.joined.is_empty() || self.ctx.now() >= due;
        if has_begun || reduction.unheard == 0 {
            return true;
        }
        reduction.wake_by(due);
        false
    }

    /// Gives back all that a reduction holds, here and elsewhere. A target that is not complete is aborted.
    fn end_reduction(&mut self, mut reduction: Reduction) {
        self.wake_no_more(&mut reduction);
        self.abort_target(&mut reduction);
        self.release_all(&mut reduction);
    }

    /// Ends the hop of a run in this phase, if there is one.
    fn end_hop(&mut self, phase: RunPhase) {
        let Some(hop) = phase.hop() else { return };
        match self.hops.remove(&hop) {
            Some(DirectedHop { is_here: true, .. }) => self.release_hop(super::hop::HopOwner::Here(hop)),
            Some(_) => self.ctx.push(Effect::EndHop { hop }),
            None => {}
        }
    }

    /// Asks a node to perform a hop.
    fn begin_directed_hop(&mut self, target: &ObjectId, vertex: VertexId, run: &Run, spec: Hop) -> HopId {
        let hop = HopId(self.ctx.next_number());
        let is_here = run.node == *self.ctx.node();
        self.hops.insert(hop, DirectedHop { target: target.clone(), vertex, is_here });
        if is_here {
            self.host(super::hop::HopOwner::Here(hop), spec);
        } else {
            self.ctx.push(Effect::StartHop { hop, node: run.node.clone(), address: run.address, spec });
        }
        hop
    }

    /// A source that is fetched has arrived, or cannot.
    pub(super) fn source_fetched(&mut self, call: CallId, response: Result<super::Response>) {
        match (self.source_calls.remove(&call), response) {
            (Some((target, index)), response) => {
                self.change_reduction(&target, |node, reduction| {
                    node.take_fetched(reduction, index, response)?;
                    Ok(Progress::Going)
                });
            }
            // Nobody waits for it any more.
            (None, Ok(super::Response::Object(view))) => self.release(super::ClientId::STORE, view.copy),
            (None, _) => {}
        }
    }
}
