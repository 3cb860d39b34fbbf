//! The sources of a reduce: what is known of them, and which are ready.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use super::super::{CallId, CopyId, Reduce, ReduceOrder};
use super::reduction::{Progress, Reduction};
use super::{Action, World};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::id::{NodeId, ObjectId, PutId};
use crate::metadata::Metadata;
use crate::objects::context::Context;
use crate::plan::reduce::{ReduceSchedule, choose, estimate};
use crate::shard::{Location, LocationState, Locations, RequestId, Retention};
use crate::time::Time;
use crate::topology::place::level;

/// The time that a source that was in the reduce may be known to nobody before it counts as lost. A shard that has just come back,
/// or a put that replaces the one that is gone, takes less.
const MISSING_TIMEOUT: Duration = Duration::from_secs(1);

/// The time to wait before a source is fetched again that was lost on the way: some round trips to the directory.
const FETCH_PAUSE: Duration = Duration::from_millis(50);

/// Most bytes of all sources together that are fetched to the receiver instead of being reduced on their way: a small part of
/// any store.
const MAX_FETCHED_BYTES: u64 = 4 << 20;
/// How much longer than reducing on the way fetching may be expected to take: it needs no hops to be set up, each of which is
/// a request to another store and its answer.
const HOP_SETUP: Duration = Duration::from_micros(250);

/// One source.
#[derive(Debug)]
pub(super) struct Source {
    ask: Option<RequestId>,
    /// What the directory said last.
    news: Option<Locations>,
    pub(super) place: SourcePlace,
    /// Nodes from which it could not be had lately, and until when they are left alone.
    avoided: BTreeMap<NodeId, Time>,
    /// Which put of it was in the reduce last.
    pub(super) joined_put: Option<PutId>,
    /// `true` if it was in the reduce, or on its way into it, at some time.
    was_taken: bool,
    missing_since: Option<Time>,
}

/// Where a source enters the reduce.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SourcePlace {
    /// It has not joined.
    Apart,
    /// It is being fetched to this store, and counts as one that joins.
    Fetching(CallId),
    /// In this copy of this store, which is held.
    Here { copy: CopyId },
    /// At a vertex of the tree.
    Elsewhere,
}

/// What all sources have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Common {
    /// The first one that was known.
    first: ObjectId,
    pub(super) size_bytes: u64,
    pub(super) dtype: Dtype,
    shape: Option<Vec<u64>>,
    /// The bytes of the application, if they are the same in all that were seen.
    user: Bytes,
    /// Where in each source the part begins that is reduced.
    pub(super) base_bytes: u64,
    /// The length of that part: the size of the target.
    pub(super) length_bytes: u64,
    /// `true` if sources are fetched to the receiver. Decided once, so that an order that is asked for is kept.
    is_fetched: bool,
}

impl Common {
    /// The metadata of the target: that of the sources, without a shape if only a part of them is reduced.
    pub(super) fn target_metadata(&self) -> Metadata {
        let is_whole = self.length_bytes == self.size_bytes;
        let shape = if is_whole { self.shape.clone() } else { None };
        Metadata { dtype: self.dtype, shape, user: self.user.clone(), agreement: None }
    }
}

/// How a source can join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Readiness {
    /// It is in this store.
    Here(CopyId),
    /// Its bytes are fetched to this store.
    Small,
    /// It is at this location.
    At(Location),
}

impl Source {
    pub(super) fn new(ask: RequestId) -> Self {
        Self {
            ask: Some(ask),
            news: None,
            place: SourcePlace::Apart,
            avoided: BTreeMap::new(),
            joined_put: None,
            was_taken: false,
            missing_since: None,
        }
    }

    /// It was there before the reduce began: if it is known to nobody any more, it is lost.
    pub(super) const fn expect(&mut self) {
        self.was_taken = true;
    }

    pub(super) const fn is_apart(&self) -> bool {
        matches!(self.place, SourcePlace::Apart)
    }

    /// Leaves a node alone until then.
    pub(super) fn avoid(&mut self, node: NodeId, until: Time) {
        self.avoided.insert(node, until);
    }

    fn is_avoided(&self, node: &NodeId, now: Time) -> bool {
        self.avoided.get(node).is_some_and(|until| now < *until)
    }

    /// Returns `true` if it could not be had there before, lately or long ago.
    pub(super) fn has_failed_at(&self, node: &NodeId) -> bool {
        self.avoided.contains_key(node)
    }

    /// It joins the reduce at a vertex, as the put that the directory knows.
    pub(super) fn join_elsewhere(&mut self) {
        self.take(SourcePlace::Elsewhere);
        self.joined_put = self.known_put();
    }

    fn take(&mut self, place: SourcePlace) {
        self.place = place;
        self.was_taken = true;
        self.missing_since = None;
    }

    /// The nodes from which it could not be had.
    pub(super) fn avoided(&self) -> impl Iterator<Item = &NodeId> {
        self.avoided.keys()
    }

    /// Which put the directory knows.
    fn known_put(&self) -> Option<PutId> {
        self.news.as_ref()?.object.as_ref().map(|object| object.put)
    }

    fn is_lost(&self) -> bool {
        self.news.as_ref().and_then(|news| news.object.as_ref()).is_some_and(|object| object.lost)
    }

    /// Returns `true` if the directory knows no copy of the put that has joined.
    fn is_gone(&self) -> bool {
        self.is_lost() || self.known_put() != self.joined_put
    }

    pub(super) fn is_known(&self) -> bool {
        self.news.as_ref().is_some_and(|news| news.object.is_some())
    }
}

impl Reduction {
    /// The directory told what it knows about a source.
    pub(super) fn source_located(
        &mut self,
        world: &mut World<'_>,
        index: usize,
        news: Locations,
    ) -> Result<Progress> {
        // Those that are not needed need not be like the others.
        let may_join = self.joined.len() < self.request.count;
        if let Some(object) = news.object.as_ref().filter(|object| !object.lost && may_join) {
            self.examine(world, index, object.size_bytes, &object.metadata)?;
        }
        if let Some(source) = self.sources.get_mut(index) {
            let is_first = source.news.replace(news).is_none();
            self.unheard -= usize::from(is_first);
            let is_there = source.is_known() && !source.is_lost();
            if source.is_apart() {
                self.open.insert(index);
            } else if let SourcePlace::Fetching(_) = source.place {
                if !is_there {
                    // The call would wait for another put of it, and keep others from joining.
                    self.leave_place(world, index);
                    self.open.insert(index);
                }
            } else if source.is_gone() {
                self.joined_source_gone(world, index);
            }
        }
        Ok(Progress::Going)
    }

    /// Checks that a source is like the others, or notes what it is like if it is the first.
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
                let is_fetched = is_best_fetched(world.ctx, &self.request, size_bytes);
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

    /// Checks what the directory says of a source that is about to join.
    pub(super) fn examine_known(&mut self, world: &World<'_>, index: usize) -> Result<()> {
        let object = self.sources[index].news.as_ref().and_then(|news| news.object.clone());
        object.map_or(Ok(()), |object| self.examine(world, index, object.size_bytes, &object.metadata))
    }

    /// Returns `true` if sources, which are of this size, are fetched to the receiver.
    fn is_fetched(&self, world: &World<'_>, size_bytes: u64) -> bool {
        let decided = self.common.as_ref().map(|common| common.is_fetched);
        decided.unwrap_or_else(|| is_best_fetched(world.ctx, &self.request, size_bytes))
    }

    /// How a source that is apart can join now, if it can.
    pub(super) fn readiness(&self, world: &World<'_>, index: usize) -> Option<Readiness> {
        let source = &self.sources[index];
        let id = &self.request.sources[index];
        let is_last = self.joined.len() + 1 == self.request.count;
        // What a session fills is not valid from its first byte on, and may yet be given up.
        if let Some((copy, local)) = world.table.live(id).filter(|(_, local)| local.is_public()) {
            let is_small = self.is_fetched(world, local.size_bytes);
            // In fixed order only the last one is combined after all others.
            let may_be_here = !self.is_fixed() || is_small || is_last;
            if may_be_here && !source.is_avoided(world.ctx.node(), world.ctx.now()) {
                return Some(Readiness::Here(copy));
            }
        }
        let news = source.news.as_ref()?;
        let object = news.object.as_ref().filter(|object| !object.lost)?;
        let usable = news.locations.iter().filter(|location| {
            let is_here = location.node == *world.ctx.node();
            !source.is_avoided(&location.node, world.ctx.now())
                && (!is_here || (self.is_fixed() && world.table.live_put(id, object.put).is_some()))
        });
        let best = usable.min_by_key(|location| {
            (preference(location), level(self.own, location.path), location.node.clone())
        });
        let is_fetched = self.is_fetched(world, object.size_bytes);
        // Into a chain in fixed order, too, only the last one can come from here.
        let may_fetch = !source.is_avoided(world.ctx.node(), world.ctx.now())
            && (is_fetched || is_last || !self.is_fixed());
        match best {
            Some(location) if !is_fetched => Some(Readiness::At(location.clone())),
            best => (may_fetch && (object.inline || best.is_some())).then_some(Readiness::Small),
        }
    }

    /// Takes a copy of this store as a source.
    pub(super) fn join_here(&mut self, world: &mut World<'_>, index: usize, copy: CopyId) -> Result<()> {
        let local = &world.table[&copy];
        let (size_bytes, metadata, put) = (local.size_bytes, local.metadata.clone(), local.put);
        self.examine(world, index, size_bytes, &metadata)?;
        world.act(Action::Hold(copy));
        let source = &mut self.sources[index];
        source.take(SourcePlace::Here { copy });
        source.joined_put = Some(put);
        self.open.remove(&index);
        self.joined.push(index);
        Ok(())
    }

    /// Fetches a source to this store.
    pub(super) fn fetch_source(&mut self, world: &mut World<'_>, index: usize) {
        let call = CallId(world.ctx.next_number());
        self.sources[index].take(SourcePlace::Fetching(call));
        self.open.remove(&index);
        self.fetching += 1;
        world.fetches.insert(call, (self.request.target.clone(), index));
        let id = self.request.sources[index].clone();
        world.act(Action::Fetch { call, id, timeout: self.time_left(world.now()) });
    }

    /// A source that was fetched is here, or cannot be had.
    pub(super) fn take_fetched(
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
                // The directory will say the same, or knows of another put by now.
                let until = world.ctx.now() + FETCH_PAUSE;
                self.sources[index].avoid(world.ctx.node().clone(), until);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Ends a reduce that can no longer have enough sources.
    pub(super) fn check_hope(&mut self, world: &mut World<'_>) -> Result<()> {
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
            let pauses = source.avoided.values().copied().filter(|until| *until > world.ctx.now());
            let mut due = pauses.min();
            if source.is_lost() {
                lost.push(index);
            } else if source.was_taken && !source.is_known() {
                let lost_at = *source.missing_since.get_or_insert(world.ctx.now()) + MISSING_TIMEOUT;
                if lost_at <= world.ctx.now() {
                    lost.push(index);
                }
                due = Some(due.map_or(lost_at, |pause| pause.min(lost_at)))
                    .filter(|due| *due > world.ctx.now());
            } else if due.is_none() && !source.was_taken && !source.is_known() {
                // The directory tells when there is something.
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
            _ => Ok(()),
        }
    }

    /// Stops following the sources, and lets go of those that are here.
    pub(super) fn leave_sources(&mut self, world: &mut World<'_>) {
        let asks = self.sources.iter_mut().filter_map(|source| source.ask.take());
        let asks: Vec<RequestId> = asks.chain(self.existence.take()).collect();
        for ask in asks {
            world.act(Action::Withdraw(ask));
        }
        for index in 0..self.sources.len() {
            self.leave_place(world, index);
        }
    }

    /// Takes a source out of its place, apart from the tree.
    pub(super) fn leave_place(&mut self, world: &mut World<'_>, index: usize) {
        match std::mem::replace(&mut self.sources[index].place, SourcePlace::Apart) {
            SourcePlace::Here { copy } => world.act(Action::LetGo(copy)),
            SourcePlace::Fetching(call) => {
                self.fetching -= 1;
                world.fetches.remove(&call);
                world.act(Action::CancelFetch(call));
            }
            SourcePlace::Apart | SourcePlace::Elsewhere => {}
        }
    }
}

/// Returns `true` if fetching is the best way: for small sources, if all of them together are not much, and do not take much longer
/// through the receiver's link than reducing them on the way. In fixed order how long it takes does not count: what has lost its
/// copies, but not its bytes in the directory, could not join a chain in its place.
fn is_best_fetched(ctx: &Context, request: &Reduce, size_bytes: u64) -> bool {
    let all_bytes = size_bytes.saturating_mul(request.count as u64);
    if !ctx.is_small(size_bytes) || all_bytes > MAX_FETCHED_BYTES {
        return false;
    }
    if request.order == ReduceOrder::Fixed {
        return true;
    }
    // One of them is mostly here.
    let vertices = request.count.saturating_sub(1).max(1);
    let best = choose(vertices, size_bytes, ctx.link()).estimate;
    estimate(&ReduceSchedule::Star, vertices, size_bytes, ctx.link()) <= best + HOP_SETUP
}

/// Which location of a source is best, the smallest first: one that stays, and is complete.
const fn preference(location: &Location) -> (u8, bool) {
    let state = match location.state {
        LocationState::Complete => 0,
        LocationState::Producing => 1,
        LocationState::Partial => 2,
    };
    (state, matches!(location.retention, Retention::Evictable))
}

/// What the sources are like, if the first one that is known is to be reduced.
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
    let is_aligned = base_bytes.is_multiple_of(element_bytes) && length_bytes.is_multiple_of(element_bytes);
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

/// A type in words: `f32[2, 3]`, `f32 of 24 bytes`.
fn kind(size_bytes: u64, dtype: Dtype, shape: Option<&[u64]>) -> String {
    match shape {
        Some(shape) => format!("{dtype}{shape:?}"),
        None => format!("{dtype} of {size_bytes} bytes"),
    }
}
