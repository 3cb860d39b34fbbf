//! Open calls: who asked for what, until when, and the references that clients hold.
//!
//! What a call waits for is known elsewhere; here is only that it waits, and who is to be looked at again when the copies
//! of an object change.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;

use super::context::{Context, Deadline};
use super::queue::Queue;
use super::{CallId, ClientId, Confirm, CopyId, Until};
use crate::collective::Agreement;
use crate::error::{Error, Operation, Result};
use crate::id::ObjectId;
use crate::limits::Limits;
use crate::metadata::Metadata;
use crate::shard::RequestId;
use crate::time::Time;
pub(super) use crate::vocabulary::local::CallKey;

/// Most bytes of objects that wait with puts that have handed them over: they are beside the arena.
const MAX_WAITING_PUT_BYTES: usize = 64 << 20;

/// What a create asked for.
#[derive(Debug, Clone)]
pub(super) struct CreateCall {
    pub(super) id: ObjectId,
    pub(super) size_bytes: u64,
    pub(super) metadata: Metadata,
    /// The object, if the caller has handed over all of it.
    pub(super) contents: Option<Contents>,
}

/// The bytes of an object that is put by one request.
#[derive(Debug, Clone)]
pub(super) struct Contents {
    pub(super) bytes: Bytes,
    pub(super) confirm: Confirm,
}

/// A call that waits for something.
#[derive(Debug)]
pub(super) enum Call {
    Create(CreateCall),
    Seal {
        copy: CopyId,
    },
    Get {
        id: ObjectId,
        until: Until,
        /// What the caller has agreed to, if the object is the target of its allreduce.
        join: Option<Agreement>,
    },
    Follow {
        copy: CopyId,
    },
    Inspect,
    Delete(DeleteCall),
    Wait(WaitCall),
    Locate {
        ask: Option<RequestId>,
        wants: Wanted,
    },
    Subscription {
        ask: Option<RequestId>,
    },
    /// `sources`: how many; `reduced`: which of them, in joining order, once the target is complete.
    Reduce {
        target: ObjectId,
        sources: usize,
        reduced: Vec<usize>,
    },
}

/// What answers a locate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// A location, or the bytes.
    Location,
    /// The first word of the directory.
    FirstWord,
}

/// A delete whose questions are not all answered.
#[derive(Debug)]
pub(super) struct DeleteCall {
    asks: BTreeSet<RequestId>,
    deleted: usize,
}

/// A wait for the objects of a list.
#[derive(Debug)]
pub(super) struct WaitCall {
    /// How many are wanted.
    count: usize,
    /// The indices of those that are available.
    ready: BTreeSet<usize>,
    asks: BTreeSet<RequestId>,
    /// The indices of which the directory has not said anything yet, if its first word is enough.
    unanswered: Option<BTreeSet<usize>>,
}

impl DeleteCall {
    pub(super) fn new(asks: BTreeSet<RequestId>, deleted: usize) -> Self {
        Self { asks, deleted }
    }

    /// The questions that are not answered.
    pub(super) fn asks(&self) -> impl Iterator<Item = RequestId> {
        self.asks.iter().copied()
    }

    /// A question is answered: whether it named an object.
    pub(super) fn answered(&mut self, ask: RequestId, was_there: bool) {
        self.asks.remove(&ask);
        self.deleted += usize::from(was_there);
    }

    /// How many of the ids named an object, once all questions are answered.
    pub(super) fn outcome(&self) -> Option<usize> {
        self.asks.is_empty().then_some(self.deleted)
    }
}

impl WaitCall {
    pub(super) fn new(
        count: usize,
        ready: BTreeSet<usize>,
        asks: BTreeSet<RequestId>,
        unanswered: Option<BTreeSet<usize>>,
    ) -> Self {
        Self { count, ready, asks, unanswered }
    }

    /// The questions where the objects are.
    pub(super) fn asks(&self) -> impl Iterator<Item = RequestId> + Clone {
        self.asks.iter().copied()
    }

    /// The directory told whether the object with this index is available.
    pub(super) fn located(&mut self, index: usize, is_available: bool) {
        if is_available {
            self.ready.insert(index);
        } else {
            self.ready.remove(&index);
        }
        if let Some(unanswered) = &mut self.unanswered {
            unanswered.remove(&index);
        }
    }

    /// Returns `true` if enough are available, or the directory has said what it knows and that is enough.
    pub(super) fn is_over(&self) -> bool {
        self.ready.len() >= self.count || self.unanswered.as_ref().is_some_and(BTreeSet::is_empty)
    }

    /// The indices of those that are available.
    pub(super) fn ready(&self) -> Vec<usize> {
        self.ready.iter().copied().collect()
    }
}

impl Call {
    fn handed_over_bytes(&self) -> usize {
        let Self::Create(create) = self else { return 0 };
        create.contents.as_ref().map_or(0, |contents| contents.bytes.len())
    }

    /// How many ids of a list it still waits for.
    fn open_ids(&self) -> usize {
        match self {
            Self::Delete(DeleteCall { asks, .. }) | Self::Wait(WaitCall { asks, .. }) => asks.len(),
            Self::Reduce { sources, .. } => *sources,
            _ => 0,
        }
    }

    /// The questions to the directory that it waits for.
    pub(super) fn asks(&self) -> Vec<RequestId> {
        match self {
            Self::Delete(DeleteCall { asks, .. }) | Self::Wait(WaitCall { asks, .. }) => {
                asks.iter().copied().collect()
            }
            Self::Locate { ask, .. } | Self::Subscription { ask } => ask.iter().copied().collect(),
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
pub(super) enum Purpose {
    /// It reads a copy.
    Get,
    /// It writes a copy, or compares with one that is there already.
    Put,
}

/// What one client holds.
#[derive(Debug, Default)]
struct Client {
    references: BTreeMap<CopyId, u32>,
    /// The sum of `references`.
    reference_count: usize,
    calls: usize,
}

/// See the [module documentation](self).
#[derive(Debug, Default)]
pub(super) struct Calls {
    clients: BTreeMap<ClientId, Client>,
    open: BTreeMap<CallKey, OpenCall>,
    /// The creates and gets that wait for a change of the copies of an object.
    waiters: BTreeMap<ObjectId, Queue<CallKey>>,
    /// How many bytes of objects wait with the puts that have handed them over.
    handed_over_bytes: usize,
}

impl Calls {
    /// Checks that a client may open one more call.
    pub(super) fn check_limit(&self, limits: &Limits, client: ClientId) -> Result<()> {
        let limit = limits.max_requests_per_client;
        if self.clients.get(&client).is_some_and(|holder| holder.calls >= limit) {
            return Err(Error::limit_exceeded("open calls of a client", limit as u64));
        }
        Ok(())
    }

    /// Counts the open calls of a client.
    pub(super) fn open_calls(&self, client: ClientId) -> usize {
        self.clients.get(&client).map_or(0, |holder| holder.calls)
    }

    /// Checks that a client may ask for so many ids, given those that its open calls still wait for.
    pub(super) fn check_ids(&self, limits: &Limits, client: ClientId, ids: &[ObjectId]) -> Result<()> {
        let limit = limits.max_ids_per_request;
        let open: usize = self.of_client(client).map(|(_, open)| open.call.open_ids()).sum();
        if ids.len() + open > limit {
            return Err(Error::limit_exceeded("ids of a client's open requests", limit as u64));
        }
        Ok(())
    }

    /// Checks that a put that has to wait may leave so many bytes here.
    pub(super) fn check_room_for_bytes(&self, bytes: usize) -> Result<()> {
        if self.handed_over_bytes + bytes <= MAX_WAITING_PUT_BYTES {
            return Ok(());
        }
        Err(Error::limit_exceeded("bytes of small puts that wait", MAX_WAITING_PUT_BYTES as u64))
    }

    pub(super) fn contains(&self, key: CallKey) -> bool {
        self.open.contains_key(&key)
    }

    pub(super) fn get(&self, key: CallKey) -> Option<&Call> {
        self.open.get(&key).map(|open| &open.call)
    }

    pub(super) fn get_mut(&mut self, key: CallKey) -> Option<&mut Call> {
        self.open.get_mut(&key).map(|open| &mut open.call)
    }

    /// What a call was asked for, and how long it has been waiting.
    pub(super) fn waited(&self, key: CallKey, now: Time) -> Option<(Operation, Duration)> {
        self.open.get(&key).map(|open| (open.operation, now.since(open.started)))
    }

    /// The calls of clients that have waited for so long, and for how long.
    pub(super) fn waiting_for(
        &self,
        now: Time,
        limit: Duration,
    ) -> impl Iterator<Item = (CallKey, Operation, Duration)> {
        let calls = self.open.iter().filter(|(key, open)| {
            let is_wait = !matches!(open.call, Call::Subscription { .. } | Call::Inspect);
            key.client != ClientId::STORE && is_wait
        });
        let calls = calls.map(move |(key, open)| (*key, open.operation, now.since(open.started)));
        calls.filter(move |(_, _, waited)| *waited >= limit)
    }

    /// How much time a call has left.
    pub(super) fn time_left(&self, key: CallKey, now: Time) -> Duration {
        self.open.get(&key).map_or(Duration::ZERO, |open| open.deadline.since(now))
    }

    /// All open calls.
    pub(super) fn keys(&self) -> Vec<CallKey> {
        self.open.keys().copied().collect()
    }

    /// The open calls of a client.
    pub(super) fn keys_of(&self, client: ClientId) -> Vec<CallKey> {
        self.of_client(client).map(|(key, _)| *key).collect()
    }

    fn of_client(&self, client: ClientId) -> impl Iterator<Item = (&CallKey, &OpenCall)> {
        let first = CallKey { client, call: CallId(0) };
        let last = CallKey { client, call: CallId(u64::MAX) };
        self.open.range(first..=last)
    }

    /// Enters a call that has to wait.
    pub(super) fn enter(
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
        self.clients.entry(key.client).or_default().calls += 1;
        ctx.schedule(deadline, Deadline::Call(key));
    }

    /// Removes a call.
    pub(super) fn remove(&mut self, ctx: &mut Context, key: CallKey) -> Option<Call> {
        let OpenCall { call, deadline, .. } = self.open.remove(&key)?;
        ctx.unschedule(deadline, Deadline::Call(key));
        self.handed_over_bytes -= call.handed_over_bytes();
        if let Some(client) = self.clients.get_mut(&key.client) {
            client.calls -= 1;
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
    pub(super) fn wait_for_copy(&mut self, id: &ObjectId, key: CallKey) {
        self.waiters.entry(id.clone()).or_default().push(key);
    }

    /// Returns `true` if somebody waits for a change of `id`.
    pub(super) fn is_awaited(&self, id: &ObjectId) -> bool {
        self.waiters.contains_key(id)
    }

    /// The creates and gets that wait for a change of `id`, the first to come first.
    pub(super) fn waiting(&self, id: &ObjectId) -> Vec<CallKey> {
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
    pub(super) fn gets(&self, id: &ObjectId) -> Vec<CallKey> {
        self.waiting_gets(id).map(|(key, _)| key).collect()
    }

    /// Until when some get waits for `id`; `None` if none does.
    pub(super) fn last_get_deadline(&self, id: &ObjectId) -> Option<Time> {
        self.waiting_gets(id).map(|(_, deadline)| deadline).max()
    }

    /// Checks that `client` may be given one more reference.
    ///
    /// Puts have some references of their own, one for each call that a client may have open, so that a client that holds
    /// as many views as it may can still put.
    pub(super) fn check_may_refer(&self, limits: &Limits, client: ClientId, purpose: Purpose) -> Result<()> {
        let limit = limits.max_references_per_client;
        let reserve = match purpose {
            Purpose::Get => 0,
            Purpose::Put => limits.max_requests_per_client,
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
    pub(super) fn refers(&self, client: ClientId, copy: CopyId) -> bool {
        self.clients.get(&client).is_some_and(|holder| holder.references.contains_key(&copy))
    }

    /// Notes one more reference of `client`.
    pub(super) fn add_reference(&mut self, client: ClientId, copy: CopyId) {
        let holder = self.clients.entry(client).or_default();
        *holder.references.entry(copy).or_default() += 1;
        holder.reference_count += 1;
    }

    /// Takes one reference back. Answers whether there was one.
    pub(super) fn remove_reference(&mut self, client: ClientId, copy: CopyId) -> bool {
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
    pub(super) fn references(&self, client: ClientId) -> Vec<CopyId> {
        let held = self.clients.get(&client).into_iter().flat_map(|holder| &holder.references);
        held.flat_map(|(copy, count)| std::iter::repeat_n(*copy, *count as usize)).collect()
    }

    /// All copies to which clients refer, each once for a client.
    pub(super) fn all_references(&self) -> impl Iterator<Item = (ClientId, CopyId)> {
        self.clients
            .iter()
            .flat_map(|(client, holder)| holder.references.keys().map(move |copy| (*client, *copy)))
    }

    /// Forgets a client that holds nothing any more.
    pub(super) fn forget_client(&mut self, client: ClientId) {
        self.clients.remove(&client);
    }
}
