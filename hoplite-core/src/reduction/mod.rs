//! Reduces that this store coordinates, and hops that it performs.
//!
//! # From the call to the target
//!
//! 1. The caller's store, the *coordinator*, subscribes to the locations of the sources and of the
//!    target, which must not exist.
//! 2. A *ready* source joins from a local copy, is fetched if it is small, or joins at its own node
//!    (`sources`). A source that differs from the first in type, shape or size fails the call with
//!    `TypeMismatch`.
//! 3. Sources join until there are enough (`grow`). Sources of one node make one vertex of the
//!    [`Tree`](crate::plan::reduce::Tree). The schedule gives the number of streams that a new
//!    vertex takes in: one in a chain, two in a tree, none in a star. The coordinator chooses it
//!    when the first vertex joins, by the number of vertices, the size and the measured links.
//! 4. A vertex with inputs to combine is a *hop*, which its node performs. Its data plane
//!    connection lasts as long as the hop is needed. The coordinator reserves memory for the target
//!    first, because hops that wait for each other's targets could wait for ever.
//! 5. The hop combines each range that all inputs have, and serves its growing output.
//! 6. With enough sources, the coordinator opens and publishes the target (`target`), and combines
//!    the remaining streams and local sources in it.
//!
//! # Failures
//!
//! * **A node dies.** The coordinator collects failures for two milliseconds, and longer after vain
//!   repairs, then repairs them together (`repair`). The dead node's sources leave the tree, and
//!   the consumer of its vertex takes in the vertex's streams. Hops on the way to the receiver
//!   restart after the target's valid bytes.
//! * **The same put of a source comes back**: the target goes on after its valid bytes.
//! * **Another put or source takes its place**: a target under another put id supersedes the old
//!   target, whose bytes are wrong.
//! * **A source is lost**: if enough others are left, a target with its bytes ends at once.
//!   Otherwise, the call fails with `ObjectLost`.
//! * **A hop finds no memory**: its consumer, in the end the coordinator, takes in its inputs.
//! * **A hop's connection breaks**: its sources join again after a tenth of a second.
//! * **The coordinator, its client or the call ends, or the target is deleted**: the connections
//!   close, and each node frees its outputs.
//!
//! # Invariants
//!
//! * Each byte of a target was computed from the same set of puts, each counted once.
//! * A hop ends with its reduction, and a reduction with its call.
//!
//! Source: the Hoplite paper, section 4.3.

mod grow;
mod hosting;
mod missing_inputs;
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
pub(crate) use missing_inputs::MissingInputs;
pub(crate) use sources::{query, wanted_content};
pub(crate) use state::Fallback;

use crate::error::{Error, Result};
use crate::id::ObjectId;
use crate::message::{
    CallId, CallKey, ClientId, CombineOutcome, CopyId, HopId, HopReport, Reduce, ReduceRecord,
    Response,
};
use crate::objects::Objects;
use crate::plan::link::LinkEstimate;
use crate::shard::{Locations, RequestId};
use crate::time::Time;
use source::Source;
use state::Reduction;
use world::{DirectedHop, Shared, World};

#[derive(Debug, Default)]
pub(crate) struct Reductions {
    by_target: BTreeMap<ObjectId, Reduction>,
    shared: Shared,
}

impl Reductions {
    pub(crate) fn len(&self) -> usize {
        self.by_target.len()
    }

    pub(crate) fn hop_count(&self) -> usize {
        self.shared.hops.len()
    }

    pub(crate) fn contains(&self, target: &ObjectId) -> bool {
        self.by_target.contains_key(target)
    }

    pub(crate) fn record(&self, target: &ObjectId) -> Option<&ReduceRecord> {
        self.shared.records.latest(target)
    }

    pub(crate) fn remember(&mut self, record: ReduceRecord) {
        self.shared.records.push(record);
    }

    /// Makes the reduce of `target` treat unlisted sources as lost, because all existed before the
    /// reduce began.
    pub(crate) fn expect_sources(&mut self, target: &ObjectId) {
        if let Some(reduction) = self.by_target.get_mut(target) {
            reduction.sources.iter_mut().for_each(Source::expect);
        }
    }

    pub(crate) fn hostings(&mut self) -> &mut Hostings {
        &mut self.shared.hostings
    }

    pub(crate) fn hosting_count(&self) -> usize {
        self.shared.hostings.len()
    }

    pub(crate) fn start(
        &mut self,
        objects: &mut Objects,
        key: CallKey,
        request: Reduce,
        fallback: Option<Fallback>,
    ) {
        let queries = query(objects, &request, wanted_content(&request));
        self.begin(objects, (key, request, fallback), queries);
    }

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
        self.by_target
            .insert(target.clone(), Reduction::new(call, now, (existence, queries), open));
        self.reconsider(objects, &target);
    }

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

    fn drive(
        &mut self,
        objects: &mut Objects,
        target: &ObjectId,
        change: impl FnOnce(&mut Reduction, &mut World<'_>) -> Result<()>,
    ) {
        self.change(objects, target, change);
        self.reconsider(objects, target);
    }

    pub(crate) fn reconsider(&mut self, objects: &mut Objects, target: &ObjectId) {
        self.change(objects, target, |reduction, world| reduction.drive(world));
    }

    pub(crate) fn fail(&mut self, objects: &mut Objects, target: &ObjectId, error: Error) {
        self.change(objects, target, |_, _| Err(error));
    }

    pub(crate) fn target_lost(
        &mut self,
        objects: &mut Objects,
        target: &ObjectId,
        copy: CopyId,
        error: Error,
    ) {
        self.change(objects, target, |reduction, _| {
            if reduction.target_copy() == Some(copy) { Err(error) } else { Ok(()) }
        });
    }

    pub(crate) fn call_ended(&mut self, objects: &mut Objects, key: CallKey, target: &ObjectId) {
        self.change(objects, target, |reduction, world| {
            if reduction.key() == key {
                reduction.end(world);
            }
            Ok(())
        });
    }

    pub(crate) fn source_located(
        &mut self,
        objects: &mut Objects,
        target: &ObjectId,
        index: usize,
        news: Locations,
    ) {
        self.drive(objects, target, |reduction, world| {
            reduction.source_located(world, index, news)
        });
    }

    pub(crate) fn target_located(&mut self, objects: &mut Objects, news: &Locations) {
        self.drive(objects, &news.id, |reduction, _| reduction.target_located(news));
    }

    pub(crate) fn target_published(&mut self, objects: &mut Objects, target: &ObjectId) {
        self.change(objects, target, |reduction, world| {
            reduction.end_target_query(world);
            Ok(())
        });
    }

    pub(crate) fn fetched(
        &mut self,
        objects: &mut Objects,
        call: CallId,
        response: Result<Response>,
    ) {
        let fetched = match response {
            Ok(Response::Object(view)) => Ok(view.copy),
            Ok(_) => return,
            Err(error) => Err(error),
        };
        let copy = fetched.as_ref().ok().copied();
        if let Some((target, index)) = self.shared.fetches.remove(&call) {
            self.drive(objects, &target, |reduction, world| {
                reduction.join_fetched(world, index, fetched)
            });
        }
        if let Some(copy) = copy {
            objects.release(ClientId::STORE, copy);
        }
    }

    pub(crate) fn hop_reported(&mut self, objects: &mut Objects, hop: HopId, report: HopReport) {
        let Some(DirectedHop { target, vertex, .. }) = self.shared.hops.get(&hop).cloned() else {
            return;
        };
        self.drive(objects, &target, |reduction, world| {
            reduction.hop_reported(world, hop, vertex, report);
            Ok(())
        });
    }

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

    pub(crate) fn target_size(&self, target: &ObjectId) -> Option<u64> {
        self.by_target.get(target)?.target_size()
    }

    pub(crate) fn missing_inputs(&self, target: &ObjectId) -> Option<MissingInputs> {
        self.by_target.get(target).map(Reduction::missing_inputs)
    }

    pub(crate) fn running(
        &self,
        link: LinkEstimate,
        now: Time,
    ) -> impl Iterator<Item = ReduceRecord> {
        self.by_target.values().map(move |reduction| reduction.record(link, now))
    }

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
