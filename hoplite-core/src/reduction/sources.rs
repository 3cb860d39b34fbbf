use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;

use super::source::{Common, Readiness, SourcePlace};
use super::state::Reduction;
use super::world::World;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::id::ObjectId;
use crate::message::{CallId, CallKey, ClientId, CopyId, Reduce, ReduceOrder, Until};
use crate::metadata::Metadata;
use crate::objects::Objects;
use crate::objects::calls::GetTerms;
use crate::objects::context::Context;
use crate::objects::queries::Purpose;
use crate::plan::reduce::{ReduceSchedule, choose, estimate};
use crate::shard::{Location, LocationState, Locations, RequestId, Retention, Wants};
use crate::topology::place::level;

/// Time after which a joined source that the directory does not list counts as lost. A shard's
/// return or a replaced put takes less time.
const MISSING_TIMEOUT: Duration = Duration::from_secs(1);

/// Pause before a source is fetched again: some round trips to the directory.
const FETCH_PAUSE: Duration = Duration::from_millis(50);

/// Most bytes of all sources that the store fetches for a reduce: a small part of any store's
/// memory.
const MAX_FETCHED_BYTES: u64 = 4 << 20;
/// Estimated time to set up hops: a round trip.
const HOP_SETUP: Duration = Duration::from_micros(250);

impl Reduction {
    pub(super) fn source_located(
        &mut self,
        world: &mut World<'_>,
        index: usize,
        news: Locations,
    ) -> Result<()> {
        // Sources beyond the requested number may differ from the others.
        let may_join = self.joined.len() < self.request.count;
        if let Some(object) = news.object.as_ref().filter(|object| !object.lost && may_join) {
            self.examine(world, index, object.size_bytes, &object.metadata)?;
        }
        if let Some(source) = self.sources.get_mut(index) {
            let is_first = source.news.replace(news).is_none();
            self.unanswered -= usize::from(is_first);
            let is_there = source.is_known() && !source.is_lost();
            if source.is_apart() {
                self.open.insert(index);
            } else if let SourcePlace::Fetching(_) = source.place {
                if !is_there {
                    // The fetch would wait for another put, while its source keeps other sources
                    // out.
                    self.release_place(world, index);
                    self.open.insert(index);
                }
            } else if source.has_changed() {
                self.remove_lost_source(world, index);
            }
        }
        Ok(())
    }

    /// Compares a source with the first one, which sets the size and type.
    fn examine(
        &mut self,
        world: &World<'_>,
        index: usize,
        size_bytes: u64,
        metadata: &Metadata,
    ) -> Result<()> {
        let id = self.request.sources[index].clone();
        match &mut self.common {
            None => {
                let is_fetched = is_best_fetched(&world.objects.ctx, &self.request, size_bytes);
                let common = common_of(&self.request, id, size_bytes, metadata, is_fetched)?;
                self.common = Some(common);
            }
            Some(common) => {
                let is_alike = (common.size_bytes, common.dtype, &common.shape)
                    == (size_bytes, metadata.dtype, &metadata.shape);
                if !is_alike {
                    let reason = format!(
                        "it is {}, but {} is {}",
                        kind(size_bytes, metadata.dtype, metadata.shape.as_deref()),
                        common.first,
                        kind(common.size_bytes, common.dtype, common.shape.as_deref()),
                    );
                    return Err(Error::TypeMismatch { id, reason: Cow::Owned(reason) });
                }
                if common.user != metadata.user {
                    common.user = Bytes::new();
                }
            }
        }
        Ok(())
    }

    pub(super) fn examine_known(&mut self, world: &World<'_>, index: usize) -> Result<()> {
        let object = self.sources[index].news.as_ref().and_then(|news| news.object.clone());
        object.map_or(Ok(()), |object| {
            self.examine(world, index, object.size_bytes, &object.metadata)
        })
    }

    fn is_fetched(&self, world: &World<'_>, size_bytes: u64) -> bool {
        let decided = self.common.as_ref().map(|common| common.is_fetched);
        decided.unwrap_or_else(|| is_best_fetched(&world.objects.ctx, &self.request, size_bytes))
    }

    pub(super) fn readiness(&self, world: &World<'_>, index: usize) -> Option<Readiness> {
        let source = &self.sources[index];
        let id = &self.request.sources[index];
        let is_last = self.joined.len() + 1 == self.request.count;
        // Unpublished bytes of a collective are no input: they may become valid in any order, or
        // never.
        let live = world.objects.copies.live(id);
        if let Some((copy, local)) =
            live.filter(|(copy, local)| local.is_public && world.objects.may_serve(*copy))
        {
            let is_small = self.is_fetched(world, local.size_bytes);
            // In fixed order, only the last source can be combined here, after all others.
            let may_be_here = !self.is_fixed() || is_small || is_last;
            if may_be_here && !source.is_avoided(world.objects.ctx.node(), world.objects.ctx.now())
            {
                if local.is_resident() || source.address_at(world.objects.ctx.node()).is_some() {
                    return Some(Readiness::Here(copy));
                }
                // A spilled copy is streamed, which needs this store's address from a shard.
                return source.is_known().then_some(Readiness::Small);
            }
        }
        let news = source.news.as_ref()?;
        let object = news.object.as_ref().filter(|object| !object.lost)?;
        let usable = news.locations.iter().filter(|location| {
            let is_here = location.node == *world.objects.ctx.node();
            !source.is_avoided(&location.node, world.objects.ctx.now())
                && (!is_here
                    || (self.is_fixed() && world.objects.copies.live_put(id, object.put).is_some()))
        });
        let best = usable.min_by_key(|location| {
            (preference(location), level(self.own, location.path), location.node.clone())
        });
        let is_fetched = self.is_fetched(world, object.size_bytes);
        // The last source may be combined here even in fixed order.
        let may_fetch = !source.is_avoided(world.objects.ctx.node(), world.objects.ctx.now())
            && (is_fetched || is_last || !self.is_fixed());
        match best {
            Some(location) if !is_fetched => Some(Readiness::At(location.clone())),
            best => (may_fetch && (object.inline || best.is_some())).then_some(Readiness::Small),
        }
    }

    pub(super) fn join_here(
        &mut self,
        world: &mut World<'_>,
        index: usize,
        copy: CopyId,
    ) -> Result<()> {
        let local = &world.objects.copies[&copy];
        let (size_bytes, metadata, put) =
            (local.size_bytes, local.metadata.to_metadata(), local.put);
        self.examine(world, index, size_bytes, &metadata)?;
        world.objects.copies.hold(copy);
        let source = &mut self.sources[index];
        let address = source.address_at(world.objects.ctx.node());
        source.set_place(SourcePlace::Here { copy, address });
        source.joined_put = Some(put);
        self.open.remove(&index);
        self.joined.push(index);
        Ok(())
    }

    pub(super) fn fetch_source(&mut self, world: &mut World<'_>, index: usize) {
        let call = CallId(world.objects.ctx.next_number());
        self.sources[index].set_place(SourcePlace::Fetching(call));
        self.open.remove(&index);
        self.fetching += 1;
        world.shared.fetches.insert(call, (self.request.target.clone(), index));
        let id = self.request.sources[index].clone();
        let key = CallKey::of(ClientId::STORE, call);
        let terms = GetTerms { until: Until::Complete, join: None, allow_stale: false };
        world.objects.get(key, id, terms, self.time_left(world.now()));
    }

    pub(super) fn join_fetched(
        &mut self,
        world: &mut World<'_>,
        index: usize,
        fetched: Result<CopyId>,
    ) -> Result<()> {
        self.sources[index].place = SourcePlace::Apart;
        self.fetching -= 1;
        self.open.insert(index);
        match fetched {
            Ok(copy) => self.join_here(world, index, copy),
            Err(Error::ObjectLost { .. } | Error::Deleted { .. } | Error::Superseded { .. }) => {
                // After this pause, the directory reports the loss again, or another put.
                let until = world.objects.ctx.now() + FETCH_PAUSE;
                self.sources[index].avoid(world.objects.ctx.node().clone(), until);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    pub(super) fn check_enough_sources(&mut self, world: &mut World<'_>) -> Result<()> {
        if self.is_full() {
            return Ok(());
        }
        let mut lost = Vec::new();
        for index in self.open.clone() {
            let is_ready = self.readiness(world, index).is_some();
            let source = &mut self.sources[index];
            if is_ready {
                source.missing_since = None;
                continue;
            }
            let pauses =
                source.avoided.values().copied().filter(|until| *until > world.objects.ctx.now());
            let mut due = pauses.min();
            if source.is_lost() {
                lost.push(index);
            } else if source.is_expected && !source.is_known() {
                let lost_at =
                    *source.missing_since.get_or_insert(world.objects.ctx.now()) + MISSING_TIMEOUT;
                if lost_at <= world.objects.ctx.now() {
                    lost.push(index);
                }
                due = Some(due.map_or(lost_at, |pause| pause.min(lost_at)))
                    .filter(|due| *due > world.objects.ctx.now());
            } else if due.is_none() && !source.is_expected && !source.is_known() {
                // The source becomes open again when its locations change.
                self.open.remove(&index);
            }
            if let Some(due) = due {
                self.wake_by(due);
            }
        }
        match lost.first() {
            Some(first) if self.sources.len() - lost.len() < self.request.count => {
                Err(Error::ObjectLost { id: self.request.sources[*first].clone() })
            }
            _ => {
                self.supersede_if_from(world, &lost);
                Ok(())
            }
        }
    }

    pub(super) fn release_sources(&mut self, world: &mut World<'_>) {
        let queries = self.sources.iter_mut().filter_map(|source| source.query.take());
        for query in queries.chain(self.existence.take()) {
            world.objects.withdraw_query(query);
        }
        for index in 0..self.sources.len() {
            self.release_place(world, index);
        }
    }

    pub(super) fn release_place(&mut self, world: &mut World<'_>, index: usize) {
        match std::mem::replace(&mut self.sources[index].place, SourcePlace::Apart) {
            SourcePlace::Here { copy, .. } => world.objects.let_go(copy),
            SourcePlace::Fetching(call) => {
                self.fetching -= 1;
                world.shared.fetches.remove(&call);
                world.objects.forget_call(CallKey::of(ClientId::STORE, call));
            }
            SourcePlace::Apart | SourcePlace::Elsewhere => {}
        }
    }
}

/// Most sources for which a reduce also requests inline bytes. With more sources, other nodes may
/// combine most.
const MAX_FETCHED_SOURCES: usize = 16;

pub(crate) fn query(
    objects: &mut Objects,
    request: &Reduce,
    wants: Wants,
) -> (RequestId, Vec<RequestId>) {
    let Reduce { target, sources, .. } = request;
    let existence = objects.query(target.clone(), Purpose::Target);
    let query =
        |(index, id): (usize, &ObjectId)| objects.query_source(id.clone(), target, index, wants);
    (existence, sources.iter().enumerate().map(query).collect())
}

/// Returns the information to request about sources: locations, and also bytes if this store may
/// combine all small sources.
pub(crate) fn wanted_content(request: &Reduce) -> Wants {
    let are_all_needed = request.count == request.sources.len();
    if are_all_needed && request.sources.len() <= MAX_FETCHED_SOURCES {
        Wants::Bytes
    } else {
        Wants::Locations
    }
}

/// Returns `true` if this store should fetch small sources, because that takes hardly longer than
/// hops. In fixed order, the time does not count: a source whose bytes only the directory has
/// cannot join a chain.
fn is_best_fetched(ctx: &Context, request: &Reduce, size_bytes: u64) -> bool {
    let all_bytes = size_bytes.saturating_mul(request.count as u64);
    if !ctx.is_small(size_bytes) || all_bytes > MAX_FETCHED_BYTES {
        return false;
    }
    if request.order == ReduceOrder::Fixed {
        return true;
    }
    // Usually one source is at this store.
    let vertices = request.count.saturating_sub(1).max(1);
    let best = choose(vertices, size_bytes, ctx.link()).estimate;
    estimate(&ReduceSchedule::Star, vertices, size_bytes, ctx.link()) <= best + HOP_SETUP
}

const fn preference(location: &Location) -> (u8, bool) {
    let state = match location.state {
        LocationState::Complete => 0,
        LocationState::Producing => 1,
        LocationState::Partial => 2,
    };
    (state, matches!(location.retention, Retention::Evictable))
}

fn common_of(
    request: &Reduce,
    first: ObjectId,
    size_bytes: u64,
    metadata: &Metadata,
    is_fetched: bool,
) -> Result<Common> {
    let dtype = metadata.dtype;
    if !request.op.is_defined_for(dtype) {
        let reason = format!("{} is not defined for elements of type {dtype}", request.op);
        return Err(Error::TypeMismatch { id: first, reason: Cow::Owned(reason) });
    }
    let (base_bytes, length_bytes) =
        request.range.map_or((0, size_bytes), |range| (range.offset_bytes, range.length_bytes));
    let element_bytes = dtype.size_bytes();
    let is_aligned =
        base_bytes.is_multiple_of(element_bytes) && length_bytes.is_multiple_of(element_bytes);
    let is_inside = base_bytes.checked_add(length_bytes).is_some_and(|end| end <= size_bytes);
    if !is_aligned || !is_inside {
        let reason = format!(
            "it is {}, which the range of {length_bytes} bytes from byte {base_bytes} on does not fit",
            kind(size_bytes, dtype, metadata.shape.as_deref())
        );
        return Err(Error::TypeMismatch { id: first, reason: Cow::Owned(reason) });
    }
    let Metadata { shape, user, .. } = metadata.clone();
    Ok(Common { first, size_bytes, dtype, shape, user, base_bytes, length_bytes, is_fetched })
}

fn kind(size_bytes: u64, dtype: Dtype, shape: Option<&[u64]>) -> String {
    match shape {
        Some(shape) => format!("{dtype}{shape:?}"),
        None => format!("{dtype} of {size_bytes} bytes"),
    }
}
