//! Clients and their calls: entering, answering, deadlines, and what a client leaves behind.

use std::collections::BTreeSet;
use std::time::Duration;

use super::context::{Deadline, Notice};
use super::table::SpaceWaiter;
use super::{CallId, ClientId, CopyId, Effect, Node, Request, Response, Until};
use crate::error::{Error, Operation, Result};
use crate::id::ObjectId;
use crate::metadata::Metadata;
use crate::shard::{Locations, RequestId};
use crate::time::Time;

/// How long the directory may take to say what it knows now.
const DIRECTORY_ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a call may take: a timeout of zero stands for one answer of the directory.
const fn or_one_answer(timeout: Duration) -> Duration {
    if timeout.is_zero() { DIRECTORY_ANSWER_TIMEOUT } else { timeout }
}

/// A call, unique in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct CallKey {
    pub(super) client: ClientId,
    pub(super) call: CallId,
}

/// What a create asked for.
#[derive(Debug, Clone)]
pub(super) struct CreateCall {
    pub(super) id: ObjectId,
    pub(super) size_bytes: u64,
    pub(super) metadata: Metadata,
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
    },
    Delete {
        asks: BTreeSet<RequestId>,
        count: usize,
    },
    /// `unanswered`: the indices of which the directory has not said anything yet, if its first word is enough.
    Wait {
        count: usize,
        ready: BTreeSet<usize>,
        asks: BTreeSet<RequestId>,
        unanswered: Option<BTreeSet<usize>>,
    },
    Locate {
        ask: Option<RequestId>,
        patience: Patience,
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

/// Whether a locate waits for a location or takes what is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    UntilLocated,
    None,
}

impl Call {
    /// How many ids of a list it still waits for.
    fn open_ids(&self) -> usize {
        match self {
            Self::Delete { asks, .. } | Self::Wait { asks, .. } => asks.len(),
            Self::Reduce { sources, .. } => *sources,
            _ => 0,
        }
    }
}

/// A call and its deadline.
#[derive(Debug)]
pub(super) struct PendingCall {
    pub(super) call: Call,
    pub(super) operation: Operation,
    pub(super) started: Time,
    pub(super) deadline: Time,
}

impl Node {
    pub(super) fn request(&mut self, key: CallKey, request: Request) {
        if self.ctx.is_shutting_down() {
            return self.refuse(key, &request, Error::ShuttingDown);
        }
        let limit = self.ctx.limits().max_requests_per_client;
        if self.clients.entry(key.client).or_default().calls >= limit {
            return self.refuse(key, &request, Error::limit_exceeded("open calls of a client", limit as u64));
        }
        if self.calls.contains_key(&key) && request.is_answered() {
            return self.reply(key, Err(Error::invalid_request("the call id is in use")));
        }
        match request {
            Request::Create { id, size_bytes, metadata, timeout } => {
                self.create(key, CreateCall { id, size_bytes, metadata }, timeout);
            }
            Request::Seal { copy, timeout } => self.seal(key, copy, Some(timeout)),
            Request::SealUnconfirmed { copy } => self.seal(key, copy, None),
            Request::Abort { copy } => self.give_up(key.client, copy),
            Request::Release { copy } => self.release(key.client, copy),
            Request::Get { id, until, timeout } => self.get(key, id, until, timeout),
            Request::Delete { ids, timeout } => self.delete(key, ids, timeout),
            Request::Wait { ids, count, timeout } => self.wait(key, &ids, count, timeout),
            Request::Locate { id, timeout } => self.locate(key, id, timeout),
            Request::Reduce(request) => self.reduce(key, request),
            Request::Subscribe { id } => self.subscribe(key, id),
            Request::Unsubscribe { call } | Request::Cancel { call } => {
                self.forget_call(CallKey { client: key.client, call });
            }
        }
    }

    fn refuse(&mut self, key: CallKey, request: &Request, error: Error) {
        match request {
            Request::Abort { copy } => self.give_up(key.client, *copy),
            Request::Release { copy } => self.release(key.client, *copy),
            Request::SealUnconfirmed { copy } => self.seal(key, *copy, None),
            Request::Unsubscribe { call } | Request::Cancel { call } => {
                self.forget_call(CallKey { client: key.client, call: *call });
            }
            _ => self.reply(key, Err(error)),
        }
    }

    /// Enters a call that may have to wait.
    pub(super) fn enter(&mut self, key: CallKey, call: Call, operation: Operation, timeout: Duration) {
        let deadline = self.ctx.now() + timeout;
        self.calls.insert(key, PendingCall { call, operation, started: self.ctx.now(), deadline });
        self.clients.entry(key.client).or_default().calls += 1;
        self.ctx.schedule(deadline, Deadline::Call(key));
    }

    /// Answers a call and forgets it.
    pub(super) fn finish(&mut self, key: CallKey, response: Result<Response>) {
        self.forget_call(key);
        self.reply(key, response);
    }

    /// Answers a call that was never entered, or goes on.
    pub(super) fn reply(&mut self, key: CallKey, response: Result<Response>) {
        if key.client == ClientId::STORE {
            return self.ctx.notify(Notice::Answer(key.call, response));
        }
        self.ctx.push(Effect::Reply { client: key.client, call: key.call, response });
    }

    /// Removes all traces of a call.
    pub(super) fn forget_call(&mut self, key: CallKey) {
        let Some(pending) = self.calls.remove(&key) else { return };
        self.ctx.unschedule(pending.deadline, Deadline::Call(key));
        if let Some(client) = self.clients.get_mut(&key.client) {
            client.calls -= 1;
        }
        match pending.call {
            Call::Create(create) => {
                self.stop_waiting_for_space(&SpaceWaiter::Create(key));
                self.stop_waiting_for_copy(&create.id, key);
            }
            Call::Seal { copy } => {
                if let Some(local) = self.copies.get_mut(&copy) {
                    local.sealer = None;
                }
            }
            Call::Get { id, .. } => {
                self.stop_waiting_for_copy(&id, key);
                self.reconsider_fetch(&id);
            }
            Call::Delete { asks, .. } | Call::Wait { asks, .. } => {
                for request in asks {
                    self.withdraw_ask(request);
                }
            }
            Call::Reduce { target, .. } => {
                if let Some((copy, local)) = self.live(&target)
                    && local.sealer == Some(key)
                {
                    self.copy_mut(copy).sealer = None;
                }
                self.ctx.notify(Notice::ReduceUnwanted(key, target));
            }
            Call::Locate { ask, .. } | Call::Subscription { ask } => {
                if let Some(request) = ask {
                    self.withdraw_ask(request);
                }
            }
        }
    }

    pub(super) fn call_expired(&mut self, key: CallKey) {
        let Some(pending) = self.calls.get(&key) else { return };
        let waited = self.ctx.now().since(pending.started);
        let timeout = Error::Timeout { operation: pending.operation, waited };
        let response = match &pending.call {
            Call::Create(create) => Err(self.create_expired(key, create, waited)),
            Call::Get { id, .. } => Err(self.fetch_lacks_space(id).unwrap_or(timeout)),
            Call::Reduce { target, .. } => Err(self.reduce_lacks_space(target).unwrap_or(timeout)),
            Call::Wait { ready, .. } => Ok(Response::Ready { indices: ready.iter().copied().collect() }),
            Call::Locate { patience: Patience::None, .. } => Err(Error::unavailable("the directory")),
            _ => Err(timeout),
        };
        self.finish(key, response);
    }

    pub(super) fn client_gone(&mut self, client: ClientId) {
        let mut keys: Vec<CallKey> = self.calls_of(client).map(|(key, _)| *key).collect();
        // A get that ends may let a create go on, which must not be of the same client.
        keys.sort_by_key(|key| matches!(self.calls[key].call, Call::Get { .. }));
        for key in keys {
            self.forget_call(key);
        }
        let Some(holder) = self.clients.get(&client) else { return };
        let held: Vec<(CopyId, u32)> =
            holder.references.iter().map(|(copy, count)| (*copy, *count)).collect();
        for (copy, count) in held {
            for _ in 0..count {
                self.release(client, copy);
            }
        }
        self.clients.remove(&client);
    }

    /// Makes a create or a get wait for the next change of the copies of `id`.
    pub(super) fn wait_for_copy(&mut self, id: &ObjectId, key: CallKey) {
        self.waiters.entry(id.clone()).or_default().push(key);
    }

    fn stop_waiting_for_copy(&mut self, id: &ObjectId, key: CallKey) {
        if let Some(waiting) = self.waiters.get_mut(id) {
            waiting.remove(&key);
            if waiting.is_empty() {
                self.waiters.remove(id);
            }
        }
    }

    /// Looks again at all calls that wait for a change of `id`.
    pub(super) fn wake(&mut self, id: &ObjectId) {
        if self.ctx.is_shutting_down() {
            return;
        }
        let waiting: Vec<CallKey> =
            self.waiters.get(id).into_iter().flat_map(|queue| queue.iter()).copied().collect();
        for key in waiting {
            match self.calls.get(&key).map(|pending| &pending.call) {
                Some(Call::Get { id, until }) => {
                    let (id, until) = (id.clone(), *until);
                    self.retry_get(key, &id, until);
                }
                Some(Call::Create(_)) => self.retry_create(key),
                _ => {}
            }
        }
    }

    /// The keys of the gets that wait for `id`.
    pub(super) fn waiting_gets(&self, id: &ObjectId) -> impl Iterator<Item = CallKey> {
        let is_get = |key: &&CallKey| {
            self.calls.get(key).is_some_and(|pending| matches!(pending.call, Call::Get { .. }))
        };
        self.waiters.get(id).into_iter().flat_map(|queue| queue.iter()).filter(is_get).copied()
    }

    pub(super) fn fail_gets(&mut self, id: &ObjectId, error: &Error) {
        let waiting: Vec<CallKey> = self.waiting_gets(id).collect();
        for key in waiting {
            self.finish(key, Err(error.clone()));
        }
    }

    fn delete(&mut self, key: CallKey, ids: Vec<ObjectId>, timeout: Duration) {
        if let Err(error) = self.check_ids(key.client, &ids) {
            return self.reply(key, Err(error));
        }
        let distinct: BTreeSet<ObjectId> = ids.into_iter().collect();
        let ended = distinct.iter().filter(|id| self.delete_reduction(id)).count();
        self.enter(key, Call::Delete { asks: BTreeSet::new(), count: ended }, Operation::Delete, timeout);
        let requests: BTreeSet<RequestId> = distinct.into_iter().map(|id| self.ask_delete(id, key)).collect();
        if let Some(PendingCall { call: Call::Delete { asks, .. }, .. }) = self.calls.get_mut(&key) {
            *asks = requests;
        }
        self.delete_went_on(key, None);
    }

    /// One id of a delete is done: whether it named an object is what `was_there` tells.
    pub(super) fn delete_went_on(&mut self, key: CallKey, done: Option<(RequestId, usize)>) {
        let Some(PendingCall { call: Call::Delete { asks, count }, .. }) = self.calls.get_mut(&key) else {
            return;
        };
        if let Some((request, deleted)) = done {
            asks.remove(&request);
            *count += deleted;
        }
        if asks.is_empty() {
            let count = *count;
            self.finish(key, Ok(Response::Deleted { count }));
        }
    }

    fn wait(&mut self, key: CallKey, ids: &[ObjectId], count: usize, timeout: Duration) {
        let checked = self.check_ids(key.client, ids).and_then(|()| {
            if count > ids.len() {
                Err(Error::invalid_request("more objects to wait for than ids given"))
            } else {
                Ok(())
            }
        });
        if let Err(error) = checked {
            return self.reply(key, Err(error));
        }
        let is_here = |id: &ObjectId| self.live(id).is_some_and(|(_, copy)| copy.is_complete());
        let ready: BTreeSet<usize> = (0..ids.len()).filter(|&index| is_here(&ids[index])).collect();
        let is_enough = ready.len() >= count;
        let absent: BTreeSet<usize> = (0..ids.len()).filter(|index| !ready.contains(index)).collect();
        let unanswered = timeout.is_zero().then(|| absent.clone());
        let timeout = or_one_answer(timeout);
        let call = Call::Wait { count, ready, asks: BTreeSet::new(), unanswered };
        self.enter(key, call, Operation::Wait, timeout);
        if is_enough {
            return self.wait_is_over(key);
        }
        let requests =
            absent.into_iter().map(|index| self.ask_locations(ids[index].clone(), key, index)).collect();
        if let Some(PendingCall { call: Call::Wait { asks, .. }, .. }) = self.calls.get_mut(&key) {
            *asks = requests;
        }
    }

    fn wait_is_over(&mut self, key: CallKey) {
        if let Some(PendingCall { call: Call::Wait { ready, .. }, .. }) = self.calls.get(&key) {
            let indices = ready.iter().copied().collect();
            self.finish(key, Ok(Response::Ready { indices }));
        }
    }

    /// Whether a client may ask for so many ids, given those that its open calls still wait for.
    pub(super) fn check_ids(&self, client: ClientId, ids: &[ObjectId]) -> Result<()> {
        let limit = self.ctx.limits().max_ids_per_request;
        let open: usize = self.calls_of(client).map(|(_, pending)| pending.call.open_ids()).sum();
        if ids.len() + open > limit {
            return Err(Error::limit_exceeded("ids of a client's open requests", limit as u64));
        }
        Ok(())
    }

    fn calls_of(&self, client: ClientId) -> impl Iterator<Item = (&CallKey, &PendingCall)> {
        let first = CallKey { client, call: CallId(0) };
        let last = CallKey { client, call: CallId(u64::MAX) };
        self.calls.range(first..=last)
    }

    fn locate(&mut self, key: CallKey, id: ObjectId, timeout: Duration) {
        let patience = if timeout.is_zero() { Patience::None } else { Patience::UntilLocated };
        self.enter(key, Call::Locate { ask: None, patience }, Operation::Locate, or_one_answer(timeout));
        let request = self.ask_locations(id, key, 0);
        if let Some(PendingCall { call: Call::Locate { ask, .. }, .. }) = self.calls.get_mut(&key) {
            *ask = Some(request);
        }
    }

    fn subscribe(&mut self, key: CallKey, id: ObjectId) {
        self.enter(key, Call::Subscription { ask: None }, Operation::Locate, Duration::MAX);
        let request = self.ask_locations(id, key, 0);
        if let Some(PendingCall { call: Call::Subscription { ask }, .. }) = self.calls.get_mut(&key) {
            *ask = Some(request);
        }
    }

    /// The directory told what it knows about the object that is number `index` of a call.
    pub(super) fn located(&mut self, key: CallKey, index: usize, locations: Locations) {
        let is_lost = locations.object.as_ref().is_some_and(|object| object.lost);
        match self.calls.get_mut(&key).map(|pending| &mut pending.call) {
            Some(Call::Wait { count, ready, unanswered, .. }) => {
                if locations.is_available() {
                    ready.insert(index);
                } else {
                    ready.remove(&index);
                }
                let has_heard_all = unanswered.as_mut().is_some_and(|unanswered| {
                    unanswered.remove(&index);
                    unanswered.is_empty()
                });
                if ready.len() >= *count || has_heard_all {
                    self.wait_is_over(key);
                }
            }
            Some(Call::Locate { patience, .. }) => {
                let is_located = locations.is_available() || !locations.locations.is_empty();
                if *patience == Patience::None || is_located {
                    self.finish(key, Ok(Response::Locations(locations)));
                } else if is_lost {
                    self.finish(key, Err(Error::ObjectLost { id: locations.id }));
                }
            }
            Some(Call::Subscription { .. }) => self.reply(key, Ok(Response::Locations(locations))),
            _ => {}
        }
    }
}

impl Request {
    /// Whether a client waits for an answer.
    pub(super) const fn is_answered(&self) -> bool {
        !matches!(
            self,
            Self::SealUnconfirmed { .. }
                | Self::Abort { .. }
                | Self::Release { .. }
                | Self::Unsubscribe { .. }
                | Self::Cancel { .. }
        )
    }
}
