//! Open calls of clients with their deadlines, and the references that clients hold.
//!
//! The calls that wait for a change of an object's copies stand here in the order of their arrival.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;

use super::context::Context;
use super::notice::Deadline;
use super::queue::Queue;
use crate::collective::Agreement;
use crate::error::{Error, Operation, Result};
use crate::id::ObjectId;
use crate::limits::Limits;
use crate::message::{CallId, CallKey, ClientId, Confirm, CopyId, Until};
use crate::metadata::Metadata;
use crate::shard::RequestId;
use crate::time::Time;

/// Most bytes of objects that wait with puts that have handed them over: they are beside the arena.
const MAX_WAITING_PUT_BYTES: usize = 64 << 20;

/// The request of a create.
#[derive(Debug, Clone)]
pub(crate) struct CreateCall {
    pub(crate) id: ObjectId,
    pub(crate) size_bytes: u64,
    pub(crate) metadata: Metadata,
    /// The object, if the caller has handed over all of it.
    pub(crate) contents: Option<Contents>,
}

/// The bytes of an object that is put by one request.
#[derive(Debug, Clone)]
pub(crate) struct Contents {
    pub(crate) bytes: Bytes,
    pub(crate) confirm: Confirm,
}

/// The conditions for the answer of a get.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GetTerms {
    pub(crate) until: Until,
    /// The agreement of the participant, if the object is the target of its collective.
    pub(crate) join: Option<Agreement>,
    /// `true` if a complete copy that may not be served now is an answer too.
    pub(crate) allow_stale: bool,
}

/// A call that waits for something.
#[derive(Debug)]
pub(crate) enum Call {
    Create(CreateCall),
    Seal {
        copy: CopyId,
    },
    Get {
        id: ObjectId,
        terms: GetTerms,
    },
    Follow {
        copy: CopyId,
    },
    Inspect,
    Drain,
    Delete(DeleteCall),
    Wait(WaitCall),
    Locate {
        query: RequestId,
        wants: Wanted,
    },
    Subscription {
        query: RequestId,
    },
    /// `sources`: how many; `reduced`: which of them, in joining order, once the target is complete.
    Reduce {
        target: ObjectId,
        sources: usize,
        reduced: Vec<usize>,
    },
}

/// The answer that ends a locate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// A location, or the bytes.
    Location,
    /// The first answer of the directory.
    FirstAnswer,
}

/// A delete with open queries.
#[derive(Debug)]
pub(crate) struct DeleteCall {
    pub(crate) queries: BTreeSet<RequestId>,
    /// The number of ids that named an object.
    pub(crate) deleted: usize,
}

/// A wait for the objects of a list.
#[derive(Debug)]
pub(crate) struct WaitCall {
    /// The number of objects that end the wait.
    pub(crate) count: usize,
    /// The indices of the available objects.
    pub(crate) ready: BTreeSet<usize>,
    pub(crate) queries: BTreeSet<RequestId>,
    /// The indices of objects for which the directory has not answered yet, if its first answer is
    /// enough.
    pub(crate) unanswered: Option<BTreeSet<usize>>,
}

impl DeleteCall {
    /// Notes the answer to a query: `was_there` if its id named an object.
    pub(crate) fn answered(&mut self, query: RequestId, was_there: bool) {
        self.queries.remove(&query);
        self.deleted += usize::from(was_there);
    }

    /// Returns the number of ids that named an object, once all queries are answered.
    pub(crate) fn outcome(&self) -> Option<usize> {
        self.queries.is_empty().then_some(self.deleted)
    }
}

impl WaitCall {
    /// Notes an answer of the directory about the object with this index.
    pub(crate) fn located(&mut self, index: usize, is_available: bool) {
        if is_available {
            self.ready.insert(index);
        } else {
            self.ready.remove(&index);
        }
        if let Some(unanswered) = &mut self.unanswered {
            unanswered.remove(&index);
        }
    }

    /// Returns `true` if enough objects are available, or if first answers are enough and all have
    /// come.
    pub(crate) fn is_over(&self) -> bool {
        self.ready.len() >= self.count || self.unanswered.as_ref().is_some_and(BTreeSet::is_empty)
    }

    /// The indices of the available objects.
    pub(crate) fn ready(&self) -> Vec<usize> {
        self.ready.iter().copied().collect()
    }
}

impl Call {
    fn handed_over_bytes(&self) -> usize {
        let Self::Create(create) = self else { return 0 };
        create.contents.as_ref().map_or(0, |contents| contents.bytes.len())
    }

    /// Returns the number of ids of a list that are open.
    fn open_ids(&self) -> usize {
        match self {
            Self::Delete(DeleteCall { queries, .. }) | Self::Wait(WaitCall { queries, .. }) => queries.len(),
            Self::Reduce { sources, .. } => *sources,
            _ => 0,
        }
    }

    /// Returns the open queries of the call.
    pub(crate) fn queries(&self) -> Vec<RequestId> {
        match self {
            Self::Delete(DeleteCall { queries, .. }) | Self::Wait(WaitCall { queries, .. }) => {
                queries.iter().copied().collect()
            }
            Self::Locate { query, .. } | Self::Subscription { query } => vec![*query],
            _ => Vec::new(),
        }
    }
}

/// A call and its deadline.
#[derive(Debug)]
struct OpenCall {
    call: Call,
    operation: Operation,
    started: Time,
    deadline: Time,
}

/// The reason for which a client is given a reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// It reads a copy.
    Read,
    /// It writes a copy, or compares with one that is there already.
    Write,
}

/// The references and calls of one client.
#[derive(Debug, Default)]
struct Client {
    references: BTreeMap<CopyId, u32>,
    /// The sum of `references`.
    reference_count: usize,
    calls: usize,
}

/// See the [module documentation](self).
#[derive(Debug, Default)]
pub(crate) struct Calls {
    clients: BTreeMap<ClientId, Client>,
    open: BTreeMap<CallKey, OpenCall>,
    /// The creates and gets that wait for a change of the copies of an object.
    waiters: BTreeMap<ObjectId, Queue<CallKey>>,
    /// The number of bytes that waiting puts have handed over.
    handed_over_bytes: usize,
}

impl Calls {
    /// Checks that a client may open one more call.
    pub(crate) fn check_limit(&self, limits: &Limits, client: ClientId) -> Result<()> {
        let limit = limits.max_requests_per_client;
        if self.clients.get(&client).is_some_and(|holder| holder.calls >= limit) {
            return Err(Error::limit_exceeded("open calls of a client", limit as u64));
        }
        Ok(())
    }

    /// Counts the open calls of a client.
    pub(crate) fn open_calls(&self, client: ClientId) -> usize {
        self.clients.get(&client).map_or(0, |holder| holder.calls)
    }

    /// Checks that a client may wait for so many ids in addition to the ids of its open calls.
    ///
    /// An item of a batch was checked with its batch.
    pub(crate) fn check_ids(&self, limits: &Limits, key: CallKey, ids: usize) -> Result<()> {
        if key.is_item() {
            return Ok(());
        }
        let limit = limits.max_ids_per_request;
        let calls = self.of_client(key.client).filter(|(key, _)| !key.is_item());
        let open: usize = calls.map(|(_, open)| open.call.open_ids()).sum();
        if ids.saturating_add(open) > limit {
            return Err(Error::limit_exceeded("ids of a client's open requests", limit as u64));
        }
        Ok(())
    }

    /// Checks that a put that has to wait may leave so many bytes here.
    pub(crate) fn check_room_for_bytes(&self, bytes: usize) -> Result<()> {
        if self.handed_over_bytes + bytes <= MAX_WAITING_PUT_BYTES {
            return Ok(());
        }
        Err(Error::limit_exceeded("bytes of small puts that wait", MAX_WAITING_PUT_BYTES as u64))
    }

    pub(crate) fn contains(&self, key: CallKey) -> bool {
        self.open.contains_key(&key)
    }

    pub(crate) fn get(&self, key: CallKey) -> Option<&Call> {
        self.open.get(&key).map(|open| &open.call)
    }

    pub(crate) fn get_mut(&mut self, key: CallKey) -> Option<&mut Call> {
        self.open.get_mut(&key).map(|open| &mut open.call)
    }

    /// Returns the operation of a call and the time that the call has waited.
    pub(crate) fn waited(&self, key: CallKey, now: Time) -> Option<(Operation, Duration)> {
        self.open.get(&key).map(|open| (open.operation, now.since(open.started)))
    }

    /// Returns the calls of clients that have waited for at least `limit`, and their times.
    pub(crate) fn waiting_for(
        &self,
        now: Time,
        limit: Duration,
    ) -> impl Iterator<Item = (CallKey, Operation, Duration)> {
        let calls = self.open.iter().filter(|(key, open)| {
            let is_wait = !matches!(open.call, Call::Subscription { .. } | Call::Inspect | Call::Drain);
            key.client != ClientId::STORE && is_wait
        });
        let calls = calls.map(move |(key, open)| (*key, open.operation, now.since(open.started)));
        calls.filter(move |(_, _, waited)| *waited >= limit)
    }

    /// The calls of clients that began at `since` or before, and have to be answered.
    fn begun_by(&self, since: Time) -> impl Iterator<Item = &OpenCall> {
        self.open.values().filter(move |open| {
            let is_work = !matches!(open.call, Call::Subscription { .. } | Call::Inspect | Call::Drain);
            is_work && open.started <= since
        })
    }

    /// Returns `true` if a call that began at `since` or before is open.
    pub(crate) fn has_open_since(&self, since: Time) -> bool {
        self.begun_by(since).next().is_some()
    }

    /// Counts the open calls that began at `since` or before.
    pub(crate) fn open_since(&self, since: Time) -> usize {
        self.begun_by(since).count()
    }

    /// Returns the time that a call has left.
    pub(crate) fn time_left(&self, key: CallKey, now: Time) -> Duration {
        self.open.get(&key).map_or(Duration::ZERO, |open| open.deadline.since(now))
    }

    /// All open calls.
    pub(crate) fn keys(&self) -> Vec<CallKey> {
        self.open.keys().copied().collect()
    }

    /// The open calls of a client.
    pub(crate) fn keys_of(&self, client: ClientId) -> Vec<CallKey> {
        self.of_client(client).map(|(key, _)| *key).collect()
    }

    fn of_client(&self, client: ClientId) -> impl Iterator<Item = (&CallKey, &OpenCall)> {
        let first = CallKey::of(client, CallId(0));
        let last = CallKey { client, call: CallId(u64::MAX), item: u32::MAX };
        self.open.range(first..=last)
    }

    /// Enters a call that has to wait.
    pub(crate) fn enter(
        &mut self,
        ctx: &mut Context,
        key: CallKey,
        mut call: Call,
        operation: Operation,
        timeout: Duration,
    ) {
        if let Call::Create(CreateCall { contents: Some(contents), .. }) = &mut call {
            // The bytes as they came are a part of the buffer of a connection, which is much larger.
            contents.bytes = Bytes::copy_from_slice(&contents.bytes);
        }
        self.handed_over_bytes += call.handed_over_bytes();
        let (started, deadline) = (ctx.now(), ctx.now() + timeout);
        self.open.insert(key, OpenCall { call, operation, started, deadline });
        self.clients.entry(key.client).or_default().calls += usize::from(!key.is_item());
        ctx.schedule(deadline, Deadline::Call(key));
    }

    /// Counts a batch as one call. Its items are not counted.
    pub(crate) fn enter_batch(&mut self, key: CallKey) {
        self.clients.entry(key.client).or_default().calls += 1;
    }

    /// Ends [`Calls::enter_batch`].
    pub(crate) fn leave_batch(&mut self, key: CallKey) {
        if let Some(client) = self.clients.get_mut(&key.client) {
            client.calls -= 1;
        }
    }

    /// The open items of a batch.
    pub(crate) fn items_of(&self, batch: CallKey) -> Vec<CallKey> {
        let items = CallKey { item: 1, ..batch }..=CallKey { item: u32::MAX, ..batch };
        self.open.range(items).map(|(key, _)| *key).collect()
    }

    /// Removes a call.
    pub(crate) fn remove(&mut self, ctx: &mut Context, key: CallKey) -> Option<Call> {
        let OpenCall { call, deadline, .. } = self.open.remove(&key)?;
        ctx.unschedule(deadline, Deadline::Call(key));
        self.handed_over_bytes -= call.handed_over_bytes();
        if let Some(client) = self.clients.get_mut(&key.client) {
            client.calls -= usize::from(!key.is_item());
        }
        if let Call::Create(CreateCall { id, .. }) | Call::Get { id, .. } = &call
            && let Some(waiting) = self.waiters.get_mut(id)
        {
            waiting.remove(&key);
            if waiting.is_empty() {
                self.waiters.remove(id);
            }
        }
        Some(call)
    }

    /// Makes a create or a get wait for the next change of the copies of `id`.
    pub(crate) fn wait_for_copy(&mut self, id: &ObjectId, key: CallKey) {
        self.waiters.entry(id.clone()).or_default().push(key);
    }

    /// Returns `true` if a call waits for a change of `id`.
    pub(crate) fn is_awaited(&self, id: &ObjectId) -> bool {
        self.waiters.contains_key(id)
    }

    /// Returns the objects whose change some call awaits.
    pub(crate) fn awaited(&self) -> Vec<ObjectId> {
        self.waiters.keys().cloned().collect()
    }

    /// The creates and gets that wait for a change of `id`, the first to come first.
    pub(crate) fn waiting(&self, id: &ObjectId) -> Vec<CallKey> {
        self.waiters.get(id).into_iter().flat_map(Queue::iter).copied().collect()
    }

    /// The gets that wait for `id`, and their deadlines.
    fn waiting_gets(&self, id: &ObjectId) -> impl Iterator<Item = (CallKey, Time)> {
        let get = |key: &CallKey| match self.open.get(key) {
            Some(OpenCall { call: Call::Get { .. }, deadline, .. }) => Some((*key, *deadline)),
            _ => None,
        };
        self.waiters.get(id).into_iter().flat_map(Queue::iter).filter_map(get)
    }

    /// The gets that wait for `id`.
    pub(crate) fn gets(&self, id: &ObjectId) -> Vec<CallKey> {
        self.waiting_gets(id).map(|(key, _)| key).collect()
    }

    /// Returns the last deadline of the gets that wait for `id`.
    pub(crate) fn last_get_deadline(&self, id: &ObjectId) -> Option<Time> {
        self.waiting_gets(id).map(|(_, deadline)| deadline).max()
    }

    /// Checks that `client` may be given one more reference.
    ///
    /// A client at its limit of views can still put, because puts have extra references: one for
    /// each call that the client may have open.
    pub(crate) fn check_may_refer(&self, limits: &Limits, client: ClientId, access: Access) -> Result<()> {
        let limit = limits.max_references_per_client;
        let reserve = match access {
            Access::Read => 0,
            Access::Write => limits.max_requests_per_client,
        };
        match self.clients.get(&client) {
            Some(holder)
                if holder.reference_count >= limit.saturating_add(reserve) && client != ClientId::STORE =>
            {
                Err(Error::limit_exceeded("references of a client", limit as u64))
            }
            _ => Ok(()),
        }
    }

    /// Returns `true` if `client` holds a reference to this copy.
    pub(crate) fn refers(&self, client: ClientId, copy: CopyId) -> bool {
        self.clients.get(&client).is_some_and(|holder| holder.references.contains_key(&copy))
    }

    /// Notes one more reference of `client`.
    pub(crate) fn add_reference(&mut self, client: ClientId, copy: CopyId) {
        let holder = self.clients.entry(client).or_default();
        *holder.references.entry(copy).or_default() += 1;
        holder.reference_count += 1;
    }

    /// Takes one reference back. Answers whether there was one.
    pub(crate) fn remove_reference(&mut self, client: ClientId, copy: CopyId) -> bool {
        let Some(holder) = self.clients.get_mut(&client) else { return false };
        let Some(count) = holder.references.get_mut(&copy) else { return false };
        *count -= 1;
        if *count == 0 {
            holder.references.remove(&copy);
        }
        holder.reference_count -= 1;
        true
    }

    /// The references of a client, each as often as it holds it.
    pub(crate) fn references(&self, client: ClientId) -> Vec<CopyId> {
        let held = self.clients.get(&client).into_iter().flat_map(|holder| &holder.references);
        held.flat_map(|(copy, count)| std::iter::repeat_n(*copy, *count as usize)).collect()
    }

    /// Returns the copies to which clients refer, each once for each client.
    pub(crate) fn all_references(&self) -> impl Iterator<Item = (ClientId, CopyId)> {
        self.clients
            .iter()
            .flat_map(|(client, holder)| holder.references.keys().map(move |copy| (*client, *copy)))
    }

    /// All clients that have references or calls.
    pub(crate) fn clients(&self) -> impl Iterator<Item = ClientId> {
        self.clients.keys().copied()
    }

    /// Forgets a client that holds nothing any more.
    pub(crate) fn forget_client(&mut self, client: ClientId) {
        self.clients.remove(&client);
    }
}
