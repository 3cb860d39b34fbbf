use std::collections::BTreeSet;
use std::time::Duration;

use super::Objects;
use super::calls::{Call, Contents, CreateCall, GetTerms, WaitCall, Wanted};
use super::notice::Notice;
use super::notice::SpaceWaiter;
use super::queries::Purpose;
use crate::error::Missing;
use crate::error::{Error, Operation, Result};
use crate::id::ObjectId;
use crate::message::{CallKey, ClientId, CopyId, Effect, Inspection, Reduce, Request, Response};
use crate::session::ANSWER_TIMEOUT;
use crate::shard::Locations;

/// Replaces a timeout of zero by the time limit for the directory's answer.
const fn or_one_answer(timeout: Duration) -> Duration {
    if timeout.is_zero() { ANSWER_TIMEOUT } else { timeout }
}

/// Removes metadata that only stores may set.
fn of_client(mut request: Request) -> Request {
    if let Request::Create { metadata, .. } | Request::Put { metadata, .. } = &mut request {
        metadata.agreement = None;
    }
    request
}

impl Objects {
    /// Serves a checked request. [`node`](crate::node) serves reduces, collectives, and deletes,
    /// which may end reduces.
    pub(crate) fn request(&mut self, key: CallKey, request: Request) {
        match self.with_default_replicas(of_client(request)) {
            Request::Create { id, size_bytes, metadata, timeout } => {
                self.create(key, CreateCall { id, size_bytes, metadata, contents: None }, timeout);
            }
            Request::Put { id, metadata, bytes, confirm, timeout } => {
                let (size_bytes, contents) =
                    (bytes.len() as u64, Some(Contents { bytes, confirm }));
                self.create(key, CreateCall { id, size_bytes, metadata, contents }, timeout);
            }
            Request::Seal { copy, timeout } => self.seal(key, copy, Some(timeout)),
            Request::Get { id, until, timeout, allow_stale } => {
                self.get(key, id, GetTerms { until, join: None, allow_stale }, timeout);
            }
            Request::Follow { copy, beyond_bytes, timeout } => {
                self.follow(key, copy, beyond_bytes, timeout)
            }
            Request::Wait { ids, count, timeout } => self.wait(key, &ids, count, timeout),
            Request::Locate { id, timeout } => self.locate(key, id, timeout),
            Request::Subscribe { id } => self.subscribe(key, id),
            Request::Inspect(inspection) => self.inspect(key, inspection),
            Request::Drain { timeout } => {
                self.calls.enter(
                    &mut self.ctx,
                    key,
                    Call::Drain,
                    Operation::Connect,
                    Duration::MAX,
                );
                self.drain(Some(key), timeout);
            }
            Request::DrainProgress => {
                let report = self.drain_report();
                self.ctx.reply(key, Ok(Response::Drain(report)));
            }
            Request::ListOwnerless { prefix, after, limit } => {
                let page = self.ownerless(&prefix, &after, limit);
                self.ctx.reply(key, Ok(Response::Ownerless(page)));
            }
            Request::ListQuotas => {
                let quotas = self.copies.quotas.list().collect();
                self.ctx.reply(key, Ok(Response::Quotas(quotas)));
            }
            Request::SetQuota { subject, limits } => {
                let quota = self.copies.set_quota(subject, limits);
                self.ctx.reply(key, quota.map(|quota| Response::Quotas(vec![quota])));
            }
            request => self.take_back(key, &request),
        }
    }

    fn with_default_replicas(&self, mut request: Request) -> Request {
        if let Request::Create { metadata, .. } | Request::Put { metadata, .. } = &mut request {
            self.set_default_replicas(metadata);
        }
        request
    }

    pub(crate) fn check_request(&self, key: CallKey, request: &Request) -> Result<()> {
        if !request.is_answered() {
            return Ok(());
        }
        if self.ctx.is_shutting_down() {
            return Err(Error::ShuttingDown);
        }
        let makes_object = matches!(
            request,
            Request::Create { .. }
                | Request::Put { .. }
                | Request::Reduce(_)
                | Request::Collective(..)
        );
        if makes_object {
            self.check_accepts_puts()?;
        }
        if key.is_item() {
            return Ok(());
        }
        self.calls.check_limit(self.ctx.limits(), key.client)?;
        if self.calls.contains(key) || self.ctx.batches.contains(key) {
            return Err(Error::invalid_request("the call id is in use"));
        }
        Ok(())
    }

    fn take_back(&mut self, key: CallKey, request: &Request) {
        match request {
            Request::SealUnconfirmed { copy } => self.seal(key, *copy, None),
            Request::Abort { copy } => self.give_up(key.client, *copy),
            Request::Release { copy } => self.release(key.client, *copy),
            Request::Unsubscribe { call } | Request::Cancel { call } => {
                let key = CallKey::of(key.client, *call);
                self.forget_batch(key);
                self.forget_call(key);
            }
            _ => {}
        }
    }

    pub(crate) fn finish(&mut self, key: CallKey, response: Result<Response>) {
        let waited =
            self.calls.waited(key, self.ctx.now()).map_or(Duration::ZERO, |(_, waited)| waited);
        self.end_call(key, response.as_ref().err().cloned());
        self.ctx.reply_after(waited, key, response);
    }

    pub(crate) fn forget_call(&mut self, key: CallKey) {
        if let Some(Call::Reduce { target, .. }) = self.calls.get(key) {
            let id = target.clone();
            return self.end_call(key, Some(Error::ObjectLost { id }));
        }
        self.end_call(key, None);
    }

    fn end_call(&mut self, key: CallKey, error: Option<Error>) {
        let Some(call) = self.calls.remove(&mut self.ctx, key) else { return };
        for query in call.queries() {
            self.withdraw_query(query);
        }
        match call {
            Call::Create(_) => self.copies.stop_waiting_for_space(&SpaceWaiter::Create(key)),
            Call::Seal { copy } => self.forget_sealer(copy, key),
            Call::Get { id, .. } => self.reconsider_fetch(&id),
            Call::Drain => self.forget_drain_caller(key),
            Call::Follow { .. } | Call::Inspect => {
                self.ctx.push(Effect::CallEnded { client: key.client, call: key.call });
            }
            Call::Reduce { target, .. } => {
                if let Some((copy, _)) = self.copies.live(&target) {
                    self.forget_sealer(copy, key);
                }
                self.ctx.notify(Notice::ReduceEnded(key, target, error));
            }
            Call::Delete(_) | Call::Wait(_) | Call::Locate { .. } | Call::Subscription { .. } => {}
        }
    }

    pub(crate) fn call_expired(&mut self, key: CallKey, missing: Option<Missing>) {
        let Some((operation, waited)) = self.calls.waited(key, self.ctx.now()) else { return };
        let response = match self.calls.get(key) {
            Some(Call::Wait(wait)) => Ok(Response::Ready { indices: wait.ready() }),
            Some(Call::Locate { wants: Wanted::FirstAnswer, .. }) => Err(self.no_answer(key)),
            _ => Err(match missing {
                Some(Missing::Room { needed_bytes, free_bytes, capacity_bytes }) => {
                    Error::StoreFull {
                        needed_bytes,
                        free_bytes,
                        capacity_bytes,
                        holders: String::new(),
                    }
                }
                Some(Missing::Quota { excess }) => Error::QuotaExceeded(excess),
                missing => Error::Timeout { operation, waited, missing: missing.map(Box::new) },
            }),
        };
        match (self.calls.get(key), response) {
            (Some(&Call::Seal { copy }), Err(error)) if self.awaits_quorum(copy, key) => {
                self.take_back_put(copy, error);
            }
            (_, response) => self.finish(key, response),
        }
    }

    pub(crate) fn end_calls(&mut self) {
        for key in self.calls.keys() {
            self.finish(key, Err(Error::ShuttingDown));
        }
    }

    pub(crate) fn client_gone(&mut self, client: ClientId) {
        self.forget_batches(client);
        for key in self.calls.keys_of(client) {
            self.forget_call(key);
        }
        for copy in self.calls.references(client) {
            self.release(client, copy);
        }
        self.calls.forget_client(client);
        self.conflicts.forget_client(client);
        self.lifetimes.client_gone(&mut self.ctx, client);
        self.copies.quotas.client_gone(client);
    }

    pub(crate) fn changed(&mut self, id: &ObjectId) {
        if self.ctx.is_shutting_down() {
            return;
        }
        for key in self.calls.waiting(id) {
            match self.calls.get(key) {
                Some(Call::Get { terms, .. }) => self.retry_get(key, id, *terms),
                Some(Call::Create(_)) => self.retry_create(key),
                _ => {}
            }
        }
    }

    pub(crate) fn fail_gets(&mut self, id: &ObjectId, error: &Error) {
        for key in self.calls.gets(id) {
            self.finish(key, Err(error.clone()));
        }
    }

    /// Waits until the daemon sees more bytes of a growing copy in shared memory.
    fn follow(&mut self, key: CallKey, copy: CopyId, beyond_bytes: u64, timeout: Duration) {
        if !self.calls.refers(key.client, copy) {
            return self.ctx.reply(key, Err(Error::UnknownReference { reference: copy.0 }));
        }
        self.calls.enter(&mut self.ctx, key, Call::Follow { copy }, Operation::Get, timeout);
        let CallKey { client, call, .. } = key;
        self.ctx.push(Effect::Follow { client, call, copy, beyond_bytes });
    }

    pub(crate) fn followed(&mut self, key: CallKey, progress: Result<u64>) {
        if matches!(self.calls.get(key), Some(Call::Follow { .. })) {
            self.calls.remove(&mut self.ctx, key);
            self.ctx.reply(key, progress.map(|valid_bytes| Response::Progress { valid_bytes }));
        }
    }

    pub(crate) fn enter_reduce(&mut self, key: CallKey, request: &Reduce) {
        let (target, sources) = (request.target.clone(), request.sources.len());
        let call = Call::Reduce { target, sources, reduced: Vec::new() };
        self.calls.enter(&mut self.ctx, key, call, Operation::Reduce, request.timeout);
    }

    /// Begins an inspection. The daemon queries the shards and applies the time limit.
    fn inspect(&mut self, key: CallKey, inspection: Inspection) {
        let shards: Vec<usize> = match &inspection {
            Inspection::Describe { id } => self.ctx.responsible_shards(id).collect(),
            Inspection::List { .. }
            | Inspection::Status
            | Inspection::Cluster
            | Inspection::Probe { .. }
            | Inspection::DrainNode { .. }
            | Inspection::Shards
            | Inspection::ChangeShards { .. }
            | Inspection::ProbeProgress => self.ctx.config().shards.listed().collect(),
        };
        if shards.is_empty() {
            let error = match &inspection {
                Inspection::Describe { id } => self.no_shard(id),
                _ => Error::unavailable("the directory"),
            };
            return self.ctx.reply(key, Err(error));
        }
        self.calls.enter(&mut self.ctx, key, Call::Inspect, Operation::Connect, Duration::MAX);
        let CallKey { client, call, .. } = key;
        self.ctx.push(Effect::Inspect { client, call, inspection, shards });
    }

    pub(crate) fn inspected(&mut self, key: CallKey) {
        if matches!(self.calls.get(key), Some(Call::Inspect)) {
            self.calls.remove(&mut self.ctx, key);
        }
    }

    fn wait(&mut self, key: CallKey, ids: &[ObjectId], count: usize, timeout: Duration) {
        if let Err(error) = self.calls.check_ids(self.ctx.limits(), key, ids.len()) {
            return self.ctx.reply(key, Err(error));
        }
        if count > ids.len() {
            let reason = "more objects to wait for than ids given";
            return self.ctx.reply(key, Err(Error::invalid_request(reason)));
        }
        let is_here = |index: &usize| self.copy_to_serve(&ids[*index]).is_some();
        let (ready, absent): (BTreeSet<usize>, BTreeSet<usize>) = (0..ids.len()).partition(is_here);
        if ready.len() >= count {
            let indices = ready.into_iter().collect();
            return self.ctx.reply(key, Ok(Response::Ready { indices }));
        }
        let unanswered = timeout.is_zero().then(|| absent.clone());
        let queries = absent
            .into_iter()
            .map(|index| self.query(ids[index].clone(), Purpose::Locations(key, index)))
            .collect();
        let call = Call::Wait(WaitCall { count, ready, queries, unanswered });
        self.calls.enter(&mut self.ctx, key, call, Operation::Wait, or_one_answer(timeout));
    }

    fn locate(&mut self, key: CallKey, id: ObjectId, timeout: Duration) {
        let wants = if timeout.is_zero() { Wanted::FirstAnswer } else { Wanted::Location };
        let call = Call::Locate { query: self.query(id, Purpose::Locations(key, 0)), wants };
        self.calls.enter(&mut self.ctx, key, call, Operation::Locate, or_one_answer(timeout));
    }

    fn subscribe(&mut self, key: CallKey, id: ObjectId) {
        let call = Call::Subscription { query: self.query(id, Purpose::Locations(key, 0)) };
        self.calls.enter(&mut self.ctx, key, call, Operation::Locate, Duration::MAX);
    }

    pub(crate) fn located(&mut self, key: CallKey, index: usize, locations: Locations) {
        let is_lost = locations.object.as_ref().is_some_and(|object| object.lost);
        let is_located = locations.is_available() || !locations.locations.is_empty();
        match self.calls.get_mut(key) {
            Some(Call::Wait(wait)) => {
                wait.located(index, locations.is_available());
                if wait.is_over() {
                    let indices = wait.ready();
                    self.finish(key, Ok(Response::Ready { indices }));
                }
            }
            Some(Call::Locate { wants, .. }) if *wants == Wanted::FirstAnswer || is_located => {
                self.finish(key, Ok(Response::Locations(locations)));
            }
            Some(Call::Locate { .. }) if is_lost => {
                self.finish(key, Err(Error::ObjectLost { id: locations.id }));
            }
            Some(Call::Subscription { .. }) => {
                self.ctx.reply(key, Ok(Response::Locations(locations)))
            }
            _ => {}
        }
    }
}

impl Request {
    const fn is_answered(&self) -> bool {
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
