//! Reduces that this store coordinates, and hops that it performs.
//!
//! # From the call to the target
//!
//! 1. The coordinator subscribes to the locations of each source and of the target, which must not
//!    exist yet. Other stores hear of the reduce only when their sources are ready.
//! 2. A source is *ready* when it has a location, or is inline. It joins from a local copy, is fetched here if it is small and that
//!    is no slower, or joins where it is (`sources`). A source that differs from the first one fails the call with `TypeMismatch`.
//! 3. Ready sources join until there are as many as the call requests (`grow`). Sources at one node make one vertex of the
//!    [`Tree`](crate::plan::reduce::Tree). A new vertex takes in streams as the schedule says: one in a chain, two in a tree, none in
//!    a star. The coordinator chose the schedule for the number of vertices, the size and the measured links when the first vertex
//!    joined. The first vertices wait for at most 20 ms until the directory has answered for all sources.
//! 4. A vertex with inputs to combine is a *hop*. The coordinator directs the vertex's node to perform it, over a connection of
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
//!   and repairs them together (`repair`). The sources of the dead node leave the tree. The consumer of its vertex takes in the streams
//!   that this vertex took in. The hops between there and the receiver restart at the
//!   offset that the target has reached. Other hops go on.
//! * **The same put of a source comes back**, from another copy or the same node: the target goes on at its offset.
//! * **Another put or another source takes its place**: the bytes of the target are wrong. A target under another put id supersedes
//!   it, and all starts from the first byte.
//! * **A source is lost**: the call fails with `ObjectLost`, unless enough other sources are left.
//! * **A hop finds no room** for two seconds, or half of the time that the call has left: its consumer, in the end the
//!   coordinator, takes in its inputs.
//! * **The connection of a hop breaks, but its node lives**: its sources join again after a tenth of a second.
//! * **The coordinator or its client dies, the call times out, or the target is deleted**: the
//!   connections to the hops close, and each node frees the outputs of its hops.
//!
//! # Structure
//!
//! [`Reductions`] holds all reductions. A reduction changes copies and calls through [`Objects`].
//! Later notices and events tell it the consequences. `hosting` performs hops, for this store and
//! for coordinators elsewhere.
//!
//! # Invariants
//! * Each byte of a target was computed from the same set of puts, each counted once.
//! * A hop ends with its reduction, and a reduction with its call.
//!
//! Source: Hoplite, section 4.3. Joining in any number of dimensions, repair and fixed order are ours.

mod grow;
mod hosting;
mod lack;
mod parts;
mod record;
mod records;
mod repair;
mod rerouting;
mod source;
mod sources;
mod state;
mod target;
mod world;

use std::collections::BTreeMap;

pub(crate) use hosting::Hostings;
pub(crate) use lack::Lack;
pub(crate) use sources::{query, what_to_query_for};
pub(crate) use state::Fallback;

use crate::error::{Error, Result};
use crate::id::ObjectId;
use crate::message::{
    CallId, CallKey, ClientId, CombineOutcome, CopyId, HopId, HopReport, Reduce, ReduceRecord, Response,
};
use crate::objects::Objects;
use crate::plan::link::LinkEstimate;
use crate::shard::{Locations, RequestId};
use crate::time::Time;
use source::Source;
use state::Reduction;
use world::{DirectedHop, Shared, World};

/// All reductions of a store. See the [module documentation](self).
#[derive(Debug, Default)]
pub(crate) struct Reductions {
    by_target: BTreeMap<ObjectId, Reduction>,
    shared: Shared,
}

impl Reductions {
    /// Returns the number of reduces that are under way.
    pub(crate) fn len(&self) -> usize {
        self.by_target.len()
    }

    /// Returns the number of hops that are performed for them, here or elsewhere.
    pub(crate) fn hop_count(&self) -> usize {
        self.shared.hops.len()
    }

    pub(crate) fn contains(&self, target: &ObjectId) -> bool {
        self.by_target.contains_key(target)
    }

    pub(crate) fn record(&self, target: &ObjectId) -> Option<&ReduceRecord> {
        self.shared.records.latest(target)
    }

    /// Remembers the record of a collective.
    pub(crate) fn remember(&mut self, record: ReduceRecord) {
        self.shared.records.push(record);
    }

    /// Counts sources that are gone as lost, because all sources were there before the reduce
    /// began.
    pub(crate) fn expect_sources(&mut self, target: &ObjectId) {
        if let Some(reduction) = self.by_target.get_mut(target) {
            reduction.sources.iter_mut().for_each(Source::expect);
        }
    }

    /// The hops that this store performs.
    pub(crate) fn hostings(&mut self) -> &mut Hostings {
        &mut self.shared.hostings
    }

    /// Returns the number of hops that this store performs, failed ones included that were not released yet.
    pub(crate) fn hosting_count(&self) -> usize {
        self.shared.hostings.len()
    }

    /// Begins a reduce for a call that was entered, whose request was checked.
    pub(crate) fn start(
        &mut self,
        objects: &mut Objects,
        key: CallKey,
        request: Reduce,
        fallback: Option<Fallback>,
    ) {
        let queries = query(objects, &request, what_to_query_for(&request));
        self.begin(objects, (key, request, fallback), queries);
    }

    /// Begins a reduce with the queries for the target and for each source.
    pub(crate) fn begin(
        &mut self,
        objects: &mut Objects,
        call: (CallKey, Reduce, Option<Fallback>),
        (existence, queries): (RequestId, Vec<RequestId>),
    ) {
        let target = call.1.target.clone();
        let live = |index: &usize| objects.copies.live(&call.1.sources[*index]);
        let is_here = |index: &usize| live(index).is_some_and(|(_, local)| local.is_public);
        let open = (0..queries.len()).filter(is_here).collect();
        let now = (objects.ctx.now(), objects.ctx.config().path);
        self.by_target.insert(target.clone(), Reduction::new(call, now, (existence, queries), open));
        self.reconsider(objects, &target);
    }

    /// Lets a reduction take in what `change` tells it.
    fn change(
        &mut self,
        objects: &mut Objects,
        target: &ObjectId,
        change: impl FnOnce(&mut Reduction, &mut World<'_>) -> Result<()>,
    ) {
        let Some(reduction) = self.by_target.get_mut(target) else { return };
        let mut world = World { objects, shared: &mut self.shared };
        if let Err(error) = change(reduction, &mut world) {
            reduction.end(&mut world);
            let key = reduction.key();
            if world.objects.calls.contains(key) {
                world.objects.finish(key, Err(error));
            }
        }
        if reduction.is_over {
            self.by_target.remove(target);
        }
    }

    /// Lets a reduction take in what `change` tells it, and go on.
    fn drive(
        &mut self,
        objects: &mut Objects,
        target: &ObjectId,
        change: impl FnOnce(&mut Reduction, &mut World<'_>) -> Result<()>,
    ) {
        self.change(objects, target, change);
        self.reconsider(objects, target);
    }

    /// Looks whether a reduction can go on.
    pub(crate) fn reconsider(&mut self, objects: &mut Objects, target: &ObjectId) {
        self.change(objects, target, |reduction, world| reduction.drive(world));
    }

    /// Ends a reduction with an error.
    pub(crate) fn fail(&mut self, objects: &mut Objects, target: &ObjectId, error: Error) {
        self.change(objects, target, |_, _| Err(error));
    }

    /// The copy of a target was deleted, or lost against another put of the id. A copy that the
    /// reduction has given up is not its target any more.
    pub(crate) fn target_gone(
        &mut self,
        objects: &mut Objects,
        target: &ObjectId,
        copy: CopyId,
        error: Error,
    ) {
        self.change(
            objects,
            target,
            |reduction, _| {
                if reduction.target_copy() == Some(copy) { Err(error) } else { Ok(()) }
            },
        );
    }

    /// The call of a reduction has ended.
    pub(crate) fn call_ended(&mut self, objects: &mut Objects, key: CallKey, target: &ObjectId) {
        self.change(objects, target, |reduction, world| {
            if reduction.key() == key {
                reduction.end(world);
            }
            Ok(())
        });
    }

    /// Takes in the locations of a source.
    pub(crate) fn source_located(
        &mut self,
        objects: &mut Objects,
        target: &ObjectId,
        index: usize,
        news: Locations,
    ) {
        self.drive(objects, target, |reduction, world| reduction.source_located(world, index, news));
    }

    /// Takes in the answer of the directory about the target.
    pub(crate) fn target_located(&mut self, objects: &mut Objects, news: &Locations) {
        self.drive(objects, &news.id, |reduction, _| reduction.target_located(news));
    }

    /// The directory has accepted the target, as one that is being produced.
    pub(crate) fn target_published(&mut self, objects: &mut Objects, target: &ObjectId) {
        self.change(objects, target, |reduction, world| {
            reduction.leave_target(world);
            Ok(())
        });
    }

    /// A source that is fetched has arrived, or cannot.
    pub(crate) fn fetched(&mut self, objects: &mut Objects, call: CallId, response: Result<Response>) {
        let fetched = match response {
            Ok(Response::Object(view)) => Ok(view.copy),
            Ok(_) => return,
            Err(error) => Err(error),
        };
        let copy = fetched.as_ref().ok().copied();
        if let Some((target, index)) = self.shared.fetches.remove(&call) {
            self.drive(objects, &target, |reduction, world| reduction.take_fetched(world, index, fetched));
        }
        if let Some(copy) = copy {
            objects.release(ClientId::STORE, copy);
        }
    }

    /// Takes in the report of the node that performs a hop.
    pub(crate) fn hop_reported(&mut self, objects: &mut Objects, hop: HopId, report: HopReport) {
        let Some(DirectedHop { target, vertex, .. }) = self.shared.hops.get(&hop).cloned() else { return };
        self.drive(objects, &target, |reduction, world| {
            reduction.hop_reported(world, hop, vertex, report);
            Ok(())
        });
    }

    /// The combination that fills a target has ended.
    pub(crate) fn combined(
        &mut self,
        objects: &mut Objects,
        target: &ObjectId,
        (valid_bytes, outcome): (u64, CombineOutcome),
    ) {
        self.drive(objects, target, |reduction, world| {
            reduction.combined(world, valid_bytes, outcome);
            Ok(())
        });
    }

    /// Returns the size of a target that waits for room.
    pub(crate) fn target_size(&self, target: &ObjectId) -> Option<u64> {
        self.by_target.get(target)?.target_size()
    }

    /// Returns the things for which a reduce waits.
    pub(crate) fn lack(&self, target: &ObjectId) -> Option<Lack> {
        self.by_target.get(target).map(Reduction::lack)
    }

    /// Describes the reduces that are under way.
    pub(crate) fn running(&self, link: LinkEstimate, now: Time) -> impl Iterator<Item = ReduceRecord> {
        self.by_target.values().map(move |reduction| reduction.record(link, now))
    }

    /// Describes the reduce that makes this target.
    pub(crate) fn running_for(
        &self,
        target: &ObjectId,
        link: LinkEstimate,
        now: Time,
    ) -> Option<ReduceRecord> {
        let reduction = self.by_target.get(target)?;
        Some(ReduceRecord { is_running: true, ..reduction.record(link, now) })
    }
}
