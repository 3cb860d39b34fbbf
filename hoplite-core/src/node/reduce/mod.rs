//! Reduces that this store coordinates.
//!
//! # From the call to the target
//!
//! 1. The coordinator subscribes to the locations of each source, and asks whether the target exists. Other stores hear of the
//!    reduce only when their sources are ready.
//! 2. A source is *ready* when it has a location, or is inline. It joins from a local copy, is fetched here if it is small and that
//!    is no slower, or joins where it is (`sources`). A source that differs from the first one fails the call with `TypeMismatch`.
//! 3. Ready sources join until there are as many as the call asks for (`grow`). Sources at one node make one vertex of the
//!    [`Tree`](crate::plan::reduce::Tree). A new vertex takes in streams as the schedule says: one in a chain, two in a tree, none in
//!    a star. The coordinator chose the schedule for the number of vertices, the size and the measured links when the first vertex
//!    joined. The first vertices wait for at most 20 ms until the directory has answered for all sources.
//! 4. A vertex that has something to combine is a *hop*. The coordinator asks the vertex's node to perform it, over a connection of
//!    the data plane that lasts as long as the hop is needed. All hops start at once. The coordinator reserves room for the
//!    target first, because reduces whose hops wait for each other's targets could wait for ever.
//! 5. The hop's node finds room for the output and combines each piece that all inputs have. The output is served while it grows.
//! 6. When enough sources have joined, the coordinator opens the target and publishes it as being produced (`target`). It combines
//!    the streams that are left and the sources that are here. Its last block is published only when it is complete.
//!
//! With n sources on n other nodes and objects of S bytes, a chain moves S into and out of each node; a tree moves 2 S into a node.
//! Most reduces of small objects have no hops: the coordinator fetches the sources.
//!
//! # Failures
//!
//! * **A node dies.** The coordinator collects failures for two milliseconds, and up to a second after repairs that brought no byte,
//!   and repairs them together (`mend`). The sources of the dead node leave the tree. The consumer of its vertex takes in the streams
//!   that this vertex took in. The hops between there and the receiver restart at the
//!   offset that the target has reached. Other hops go on.
//! * **The same put of a source comes back**, from another copy or the same node: the target goes on at its offset.
//! * **Another put or another source takes its place**: the bytes of the target are wrong. A target under another put id supersedes
//!   it, and all starts from the first byte.
//! * **A source is lost**: the call fails with `ObjectLost`, unless enough other sources are left.
//! * **A hop finds no room** for two seconds, or half of the time that the call has left: its consumer, in the end the
//!   coordinator, takes in its inputs.
//! * **The connection of a hop breaks, but its node lives**: its sources join again after a tenth of a second.
//! * **The coordinator or its client dies, the call times out, or the target is deleted**: the connections to the hops close, and
//!   each node frees what it held.
//!
//! # Structure
//!
//! Events go into [`Reductions`]; [`Action`]s come out, which the node performs in order. Nothing here changes the table of copies,
//! the calls, or what the directory is told.
//!
//! # Invariants
//! * Each byte of a target was computed from the same set of puts, each counted once.
//! * A hop ends with its reduction, and a reduction with its call.
//!
//! Source: Hoplite, section 4.3. Joining in any number of dimensions, repair and fixed order are ours.

mod detours;
mod grow;
mod lack;
mod mend;
mod record;
mod reduction;
mod sources;
mod target;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::calls::CallKey;
use super::context::Context;
use super::table::Table;
use super::{CallId, CombineOutcome, CopyId, Effect, Hop, HopId, HopInput, HopReport, Reduce};
use crate::collective::ReduceRecord;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::extent::Extent;
use crate::id::ObjectId;
use crate::metadata::Metadata;
use crate::plan::reduce::VertexId;
use crate::reduce::ReduceOp;
use crate::shard::{Locations, RequestId};
use crate::time::Time;
pub(super) use lack::Lack;
use record::Records;
use reduction::{Progress, Reduction, Run};

/// What a reduction needs done.
#[derive(Debug)]
pub(super) enum Action {
    /// Keep a copy that is a source from eviction.
    Hold(CopyId),
    /// End one `Hold`.
    LetGo(CopyId),
    /// Fetch a source; the answer goes to [`Reductions::fetched`].
    Fetch {
        call: CallId,
        id: ObjectId,
        timeout: Duration,
    },
    CancelFetch(CallId),
    /// Take back a question.
    Withdraw(RequestId),
    /// Perform a hop here; reports go to [`Reductions::hop_reported`].
    Host {
        hop: HopId,
        spec: Hop,
    },
    /// Release a hop that is performed here.
    Release(HopId),
    /// Find room for a target, and tell [`Reductions::reserved`] when there is.
    Reserve {
        target: ObjectId,
        size_bytes: u64,
    },
    /// Open a target in the room that was found, and tell [`Reductions::opened`].
    Open {
        target: ObjectId,
        size_bytes: u64,
        metadata: Metadata,
        extent: Extent,
    },
    /// Combine inputs into a target from a byte on, and tell [`Reductions::combined`].
    Combine {
        target: ObjectId,
        copy: CopyId,
        op: ReduceOp,
        dtype: Dtype,
        offset_bytes: u64,
        inputs: Vec<TargetInput>,
    },
    /// Drop a target that is about to be made anew.
    Supersede {
        target: ObjectId,
        copy: CopyId,
    },
    /// Declare a target complete, and answer the call once the directory has accepted it.
    Complete {
        key: CallKey,
        copy: CopyId,
        reduced: Vec<usize>,
    },
    /// Give up a target, or the room for it.
    Abort {
        target: ObjectId,
        room: Option<Extent>,
        copy: Option<CopyId>,
    },
    /// Answer the call: the reduce has failed.
    Fail(CallKey, Error),
    /// Look whether a reduction can go on, now that all before this is done: [`Reductions::reconsider`].
    Reconsider(ObjectId),
}

/// What goes into a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TargetInput {
    /// A stream, from wherever it is when the combination starts.
    Stream(HopInput),
    /// A source that is here.
    Here { copy: CopyId, base_bytes: u64 },
}

/// Where a hop belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
struct DirectedHop {
    target: ObjectId,
    vertex: VertexId,
    /// `true` if this store performs it.
    is_here: bool,
}

/// All reductions of a store. See the [module documentation](self).
#[derive(Debug, Default)]
pub(super) struct Reductions {
    by_target: BTreeMap<ObjectId, Reduction>,
    hops: BTreeMap<HopId, DirectedHop>,
    /// Which sources, of the reduces of which targets, are being fetched.
    fetches: BTreeMap<CallId, (ObjectId, usize)>,
    records: Records,
    actions: VecDeque<Action>,
}

/// What one reduction sees of the node, and what it acts on.
struct World<'a> {
    ctx: &'a mut Context,
    table: &'a Table,
    hops: &'a mut BTreeMap<HopId, DirectedHop>,
    fetches: &'a mut BTreeMap<CallId, (ObjectId, usize)>,
    records: &'a mut Records,
    actions: &'a mut VecDeque<Action>,
}

impl World<'_> {
    fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    fn now(&self) -> Time {
        self.ctx.now()
    }

    /// Asks a node to perform the hop of a vertex.
    fn begin_hop(&mut self, target: &ObjectId, vertex: VertexId, run: &Run, spec: Hop) -> HopId {
        let hop = HopId(self.ctx.next_number());
        let is_here = run.node == *self.ctx.node();
        self.hops.insert(hop, DirectedHop { target: target.clone(), vertex, is_here });
        if is_here {
            self.act(Action::Host { hop, spec });
        } else {
            self.ctx.push(Effect::StartHop { hop, node: run.node.clone(), address: run.address, spec });
        }
        hop
    }

    /// Ends a hop, if there is one.
    fn end_hop(&mut self, hop: Option<HopId>) {
        let Some(hop) = hop else { return };
        match self.hops.remove(&hop) {
            Some(DirectedHop { is_here: true, .. }) => self.act(Action::Release(hop)),
            Some(_) => self.ctx.push(Effect::EndHop { hop }),
            None => {}
        }
    }
}

impl Reductions {
    /// How many reduces are under way.
    pub(super) fn len(&self) -> usize {
        self.by_target.len()
    }

    /// Returns the number of hops that are performed for them, here or elsewhere.
    pub(super) fn hop_count(&self) -> usize {
        self.hops.len()
    }

    pub(super) fn contains(&self, target: &ObjectId) -> bool {
        self.by_target.contains_key(target)
    }

    pub(super) fn record(&self, target: &ObjectId) -> Option<&ReduceRecord> {
        self.records.latest(target)
    }

    /// Notes how something went that took the place of a reduce.
    pub(super) fn remember(&mut self, record: ReduceRecord) {
        self.records.push(record);
    }

    /// All sources of a reduce were there before it began: those that are not any more are lost.
    pub(super) fn expect_sources(&mut self, target: &ObjectId) {
        if let Some(reduction) = self.by_target.get_mut(target) {
            reduction.sources.iter_mut().for_each(sources::Source::expect);
        }
    }

    /// Notes why a reduce is one, and not a session.
    pub(super) fn note(&mut self, target: &ObjectId, reason: &str) {
        if let Some(reduction) = self.by_target.get_mut(target) {
            reduction.note = Some(reason.to_owned());
        }
    }

    /// What is to be done next.
    pub(super) fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Begins a reduce, whose request was checked. The directory was asked about the target, which it tells of as long as it
    /// does not know it as one of this store, and where each source is.
    pub(super) fn begin(
        &mut self,
        ctx: &mut Context,
        table: &Table,
        (key, request): (CallKey, Reduce),
        existence: RequestId,
        asks: Vec<RequestId>,
    ) {
        let target = request.target.clone();
        let is_here =
            |index: &usize| table.live(&request.sources[*index]).is_some_and(|(_, local)| local.is_public());
        let open = (0..asks.len()).filter(is_here).collect();
        let reduction = Reduction::new(key, request, (ctx.now(), ctx.config().path), existence, asks, open);
        self.by_target.insert(target.clone(), reduction);
        self.reconsider(ctx, table, &target);
    }

    /// Lets a reduction take in what `change` tells it, and do what follows from that.
    fn change(
        &mut self,
        ctx: &mut Context,
        table: &Table,
        target: &ObjectId,
        change: impl FnOnce(&mut Reduction, &mut World<'_>) -> Result<Progress>,
    ) {
        let Some(reduction) = self.by_target.get_mut(target) else { return };
        let Self { hops, fetches, records, actions, .. } = self;
        let mut world = World { ctx, table, hops, fetches, records, actions };
        match change(reduction, &mut world) {
            Ok(Progress::Going) => return,
            Ok(Progress::Done) => reduction.wake_no_more(&mut world),
            Err(error) => {
                reduction.end(&mut world);
                world.act(Action::Fail(reduction.key(), error));
            }
        }
        self.by_target.remove(target);
    }

    /// Lets a reduction take in what `change` tells it, and go on once what follows from that is done: what it gives back
    /// may be gone then, and must not be chosen again.
    fn drive(
        &mut self,
        ctx: &mut Context,
        table: &Table,
        target: &ObjectId,
        change: impl FnOnce(&mut Reduction, &mut World<'_>) -> Result<Progress>,
    ) {
        self.change(ctx, table, target, change);
        if self.by_target.contains_key(target) {
            self.actions.push_back(Action::Reconsider(target.clone()));
        }
    }

    /// Looks whether a reduction can go on.
    pub(super) fn reconsider(&mut self, ctx: &mut Context, table: &Table, target: &ObjectId) {
        self.change(ctx, table, target, |reduction, world| reduction.drive(world));
    }

    /// Ends a reduction with an error.
    pub(super) fn fail(&mut self, ctx: &mut Context, table: &Table, target: &ObjectId, error: Error) {
        self.change(ctx, table, target, |_, _| Err(error));
    }

    /// The copy of a target was deleted, or lost against another put of the id. One that the reduction has given up by itself
    /// is not its target any more.
    pub(super) fn target_gone(
        &mut self,
        ctx: &mut Context,
        table: &Table,
        target: &ObjectId,
        copy: CopyId,
        error: Error,
    ) {
        self.change(ctx, table, target, |reduction, _| {
            if reduction.target_copy() == Some(copy) { Err(error) } else { Ok(Progress::Going) }
        });
    }

    /// The call of a reduction has ended.
    pub(super) fn call_ended(&mut self, ctx: &mut Context, table: &Table, key: CallKey, target: &ObjectId) {
        self.change(ctx, table, target, |reduction, world| {
            if reduction.key() != key {
                return Ok(Progress::Going);
            }
            reduction.end(world);
            Ok(Progress::Done)
        });
    }

    /// The directory told what it knows about a source.
    pub(super) fn source_located(
        &mut self,
        ctx: &mut Context,
        table: &Table,
        target: &ObjectId,
        index: usize,
        news: Locations,
    ) {
        self.drive(ctx, table, target, |reduction, world| reduction.source_located(world, index, news));
    }

    /// The directory told whether the target exists.
    pub(super) fn target_located(&mut self, ctx: &mut Context, table: &Table, news: &Locations) {
        self.drive(ctx, table, &news.id, |reduction, _| reduction.target_located(news));
    }

    /// The directory has accepted the target, as one that is being produced.
    pub(super) fn target_published(&mut self, ctx: &mut Context, table: &Table, target: &ObjectId) {
        self.change(ctx, table, target, |reduction, world| {
            reduction.leave_target(world);
            Ok(Progress::Going)
        });
    }

    /// A source that is fetched has arrived in this copy, or cannot. The caller keeps the copy until the actions are done.
    pub(super) fn fetched(
        &mut self,
        ctx: &mut Context,
        table: &Table,
        call: CallId,
        fetched: Result<CopyId>,
    ) {
        let Some((target, index)) = self.fetches.remove(&call) else { return };
        self.drive(ctx, table, &target, |reduction, world| {
            reduction.take_fetched(world, index, fetched)?;
            Ok(Progress::Going)
        });
    }

    /// What the node of a hop says of it.
    pub(super) fn hop_reported(&mut self, ctx: &mut Context, table: &Table, hop: HopId, report: HopReport) {
        let Some(DirectedHop { target, vertex, .. }) = self.hops.get(&hop).cloned() else { return };
        self.drive(ctx, table, &target, |reduction, world| {
            reduction.hop_reported(world, hop, vertex, report);
            Ok(Progress::Going)
        });
    }

    /// There is room for a target. Answers the room if it is not needed any more.
    pub(super) fn reserved(
        &mut self,
        ctx: &mut Context,
        table: &Table,
        target: &ObjectId,
        room: Extent,
    ) -> Option<Extent> {
        let mut left = Some(room);
        self.change(ctx, table, target, |reduction, world| {
            left = reduction.reserved(room);
            reduction.go_on(world)
        });
        left
    }

    /// A target was opened in this copy.
    pub(super) fn opened(&mut self, ctx: &mut Context, table: &Table, target: &ObjectId, copy: CopyId) {
        self.change(ctx, table, target, |reduction, world| {
            reduction.opened(copy);
            reduction.go_on(world)
        });
    }

    /// The combination that fills a target has ended.
    pub(super) fn combined(
        &mut self,
        ctx: &mut Context,
        table: &Table,
        target: &ObjectId,
        (valid_bytes, outcome): (u64, CombineOutcome),
    ) {
        self.drive(ctx, table, target, |reduction, world| {
            Ok(reduction.combined(world, valid_bytes, outcome))
        });
    }

    /// How large a target is to be that waits for room.
    pub(super) fn target_size(&self, target: &ObjectId) -> Option<u64> {
        self.by_target.get(target)?.target_size()
    }

    /// What a reduce waits for.
    pub(super) fn lack(&self, target: &ObjectId) -> Option<Lack> {
        self.by_target.get(target).map(Reduction::lack)
    }
}
