//! Open calls, and clients' references to copies. Calls that wait for a change of an object's
//! copies queue here.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;

use super::context::Context;
use super::deletion::DeleteCall;
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

/// Most bytes that puts waiting for memory may hold outside the arena.
const MAX_WAITING_PUT_BYTES: usize = 64 << 20;

#[derive(Debug, Clone)]
pub(crate) struct CreateCall {
    pub(crate) id: ObjectId,
    pub(crate) size_bytes: u64,
    pub(crate) metadata: Metadata,
    pub(crate) contents: Option<Contents>,
}

#[derive(Debug, Clone)]
pub(crate) struct Contents {
    pub(crate) bytes: Bytes,
    pub(crate) confirm: Confirm,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct GetTerms {
    pub(crate) until: Until,
    pub(crate) join: Option<Agreement>,
    pub(crate) allow_stale: bool,
}

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
    /// `reduced`: indices of the reduced sources, once the target is complete.
    Reduce {
        target: ObjectId,
        sources: usize,
        reduced: Vec<usize>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    Location,
    FirstAnswer,
}

#[derive(Debug)]
pub(crate) struct WaitCall {
    pub(crate) count: usize,
    pub(crate) ready: BTreeSet<usize>,
    pub(crate) queries: BTreeSet<RequestId>,
    /// Objects about which the directory has not answered; `None` if the call waits for the objects
    /// themselves.
    pub(crate) unanswered: Option<BTreeSet<usize>>,
}

impl WaitCall {
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

    pub(crate) fn is_over(&self) -> bool {
        self.ready.len() >= self.count || self.unanswered.as_ref().is_some_and(BTreeSet::is_empty)
    }

    pub(crate) fn ready(&self) -> Vec<usize> {
        self.ready.iter().copied().collect()
    }
}

impl Call {
    fn handed_over_bytes(&self) -> usize {
        let Self::Create(create) = self else { return 0 };
        create.contents.as_ref().map_or(0, |contents| contents.bytes.len())
    }

    fn open_ids(&self) -> usize {
        match self {
            Self::Delete(DeleteCall { queries, .. }) | Self::Wait(WaitCall { queries, .. }) => {
                queries.len()
            }
            Self::Reduce { sources, .. } => *sources,
            _ => 0,
        }
    }

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

#[derive(Debug)]
struct OpenCall {
    call: Call,
    operation: Operation,
    started: Time,
    deadline: Time,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    /// The client writes the copy, or compares its bytes.
    Write,
}

#[derive(Debug, Default)]
struct Client {
    references: BTreeMap<CopyId, u32>,
    reference_count: usize,
    calls: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Calls {
    clients: BTreeMap<ClientId, Client>,
    open: BTreeMap<CallKey, OpenCall>,
    waiters: BTreeMap<ObjectId, Queue<CallKey>>,
    handed_over_bytes: usize,
}

impl Calls {
    pub(crate) fn check_limit(&self, limits: &Limits, client: ClientId) -> Result<()> {
        let limit = limits.max_requests_per_client;
        if self.clients.get(&client).is_some_and(|holder| holder.calls >= limit) {
            return Err(Error::limit_exceeded("open calls of a client", limit as u64));
        }
        Ok(())
    }

    pub(crate) fn open_calls(&self, client: ClientId) -> usize {
        self.clients.get(&client).map_or(0, |holder| holder.calls)
    }

    /// Checks a client's ids in open requests. A batch's items were checked together.
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

    pub(crate) fn waited(&self, key: CallKey, now: Time) -> Option<(Operation, Duration)> {
        self.open.get(&key).map(|open| (open.operation, now.since(open.started)))
    }

    pub(crate) fn waiting_for(
        &self,
        now: Time,
        limit: Duration,
    ) -> impl Iterator<Item = (CallKey, Operation, Duration)> {
        let calls = self.open.iter().filter(|(key, open)| {
            let is_wait =
                !matches!(open.call, Call::Subscription { .. } | Call::Inspect | Call::Drain);
            key.client != ClientId::STORE && is_wait
        });
        let calls = calls.map(move |(key, open)| (*key, open.operation, now.since(open.started)));
        calls.filter(move |(_, _, waited)| *waited >= limit)
    }

    fn begun_by(&self, since: Time) -> impl Iterator<Item = &OpenCall> {
        self.open.values().filter(move |open| {
            let is_work =
                !matches!(open.call, Call::Subscription { .. } | Call::Inspect | Call::Drain);
            is_work && open.started <= since
        })
    }

    pub(crate) fn has_open_since(&self, since: Time) -> bool {
        self.begun_by(since).next().is_some()
    }

    pub(crate) fn open_since(&self, since: Time) -> usize {
        self.begun_by(since).count()
    }

    pub(crate) fn time_left(&self, key: CallKey, now: Time) -> Duration {
        self.open.get(&key).map_or(Duration::ZERO, |open| open.deadline.since(now))
    }

    pub(crate) fn keys(&self) -> Vec<CallKey> {
        self.open.keys().copied().collect()
    }

    pub(crate) fn keys_of(&self, client: ClientId) -> Vec<CallKey> {
        self.of_client(client).map(|(key, _)| *key).collect()
    }

    fn of_client(&self, client: ClientId) -> impl Iterator<Item = (&CallKey, &OpenCall)> {
        let first = CallKey::of(client, CallId(0));
        let last = CallKey { client, call: CallId(u64::MAX), item: u32::MAX };
        self.open.range(first..=last)
    }

    pub(crate) fn enter(
        &mut self,
        ctx: &mut Context,
        key: CallKey,
        mut call: Call,
        operation: Operation,
        timeout: Duration,
    ) {
        if let Call::Create(CreateCall { contents: Some(contents), .. }) = &mut call {
            // Copied, to free the connection's much larger receive buffer.
            contents.bytes = Bytes::copy_from_slice(&contents.bytes);
        }
        self.handed_over_bytes += call.handed_over_bytes();
        let (started, deadline) = (ctx.now(), ctx.now() + timeout);
        self.open.insert(key, OpenCall { call, operation, started, deadline });
        self.clients.entry(key.client).or_default().calls += usize::from(!key.is_item());
        ctx.schedule(deadline, Deadline::Call(key));
    }

    pub(crate) fn enter_batch(&mut self, key: CallKey) {
        self.clients.entry(key.client).or_default().calls += 1;
    }

    pub(crate) fn leave_batch(&mut self, key: CallKey) {
        if let Some(client) = self.clients.get_mut(&key.client) {
            client.calls -= 1;
        }
    }

    pub(crate) fn items_of(&self, batch: CallKey) -> Vec<CallKey> {
        let items = CallKey { item: 1, ..batch }..=CallKey { item: u32::MAX, ..batch };
        self.open.range(items).map(|(key, _)| *key).collect()
    }

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

    pub(crate) fn wait_for_copy(&mut self, id: &ObjectId, key: CallKey) {
        self.waiters.entry(id.clone()).or_default().push(key);
    }

    pub(crate) fn is_awaited(&self, id: &ObjectId) -> bool {
        self.waiters.contains_key(id)
    }

    pub(crate) fn awaited(&self) -> Vec<ObjectId> {
        self.waiters.keys().cloned().collect()
    }

    pub(crate) fn waiting(&self, id: &ObjectId) -> Vec<CallKey> {
        self.waiters.get(id).into_iter().flat_map(Queue::iter).copied().collect()
    }

    fn waiting_gets(&self, id: &ObjectId) -> impl Iterator<Item = (CallKey, Time)> {
        let get = |key: &CallKey| match self.open.get(key) {
            Some(OpenCall { call: Call::Get { .. }, deadline, .. }) => Some((*key, *deadline)),
            _ => None,
        };
        self.waiters.get(id).into_iter().flat_map(Queue::iter).filter_map(get)
    }

    pub(crate) fn gets(&self, id: &ObjectId) -> Vec<CallKey> {
        self.waiting_gets(id).map(|(key, _)| key).collect()
    }

    pub(crate) fn last_get_deadline(&self, id: &ObjectId) -> Option<Time> {
        self.waiting_gets(id).map(|(_, deadline)| deadline).max()
    }

    /// Checks the limit of a client's references. `Write` may exceed it by one reference for each
    /// possible open call.
    pub(crate) fn check_may_refer(
        &self,
        limits: &Limits,
        client: ClientId,
        access: Access,
    ) -> Result<()> {
        let limit = limits.max_references_per_client;
        let reserve = match access {
            Access::Read => 0,
            Access::Write => limits.max_requests_per_client,
        };
        match self.clients.get(&client) {
            Some(holder)
                if holder.reference_count >= limit.saturating_add(reserve)
                    && client != ClientId::STORE =>
            {
                Err(Error::limit_exceeded("references of a client", limit as u64))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn refers(&self, client: ClientId, copy: CopyId) -> bool {
        self.clients.get(&client).is_some_and(|holder| holder.references.contains_key(&copy))
    }

    pub(crate) fn add_reference(&mut self, client: ClientId, copy: CopyId) {
        let holder = self.clients.entry(client).or_default();
        *holder.references.entry(copy).or_default() += 1;
        holder.reference_count += 1;
    }

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

    pub(crate) fn references(&self, client: ClientId) -> Vec<CopyId> {
        let held = self.clients.get(&client).into_iter().flat_map(|holder| &holder.references);
        held.flat_map(|(copy, count)| std::iter::repeat_n(*copy, *count as usize)).collect()
    }

    pub(crate) fn all_references(&self) -> impl Iterator<Item = (ClientId, CopyId)> {
        self.clients
            .iter()
            .flat_map(|(client, holder)| holder.references.keys().map(move |copy| (*client, *copy)))
    }

    pub(crate) fn clients(&self) -> impl Iterator<Item = ClientId> {
        self.clients.keys().copied()
    }

    pub(crate) fn forget_client(&mut self, client: ClientId) {
        self.clients.remove(&client);
    }
}
