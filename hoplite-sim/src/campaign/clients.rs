use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use hoplite_core::node::{CallId, ClientId, CopyId, Event, Inspection, Request, Response};
use hoplite_core::session::ANSWER_TIMEOUT;
use hoplite_core::shard::{DeleteWait, Page};
use hoplite_core::{Error, ObjectId, Time};

use super::{Faults, Kind, Simulation};
use crate::cluster::Answer;

/// Longest excess of an answered call over its deadline.
pub(super) const SLACK: Duration = Duration::from_millis(5);
const LOCAL_LATENCY: Duration = Duration::from_micros(10);
const WATCH_INTERVAL: Duration = Duration::from_millis(100);
/// Time by which all stores are connected to all shards. Earlier deletes may miss objects.
pub(super) const SESSIONS_OPEN_AFTER: Duration = Duration::from_millis(300);

/// Longest time of a request to list objects: the wait for a silent shard, and messages' travel.
const LISTING_TIME: Duration = ANSWER_TIMEOUT.saturating_add(Duration::from_secs(1));

#[derive(Debug)]
pub(super) struct Client {
    pub(super) store: usize,
    held: BTreeMap<CopyId, u32>,
    is_visitor: bool,
}

pub(super) type CallKey = (u64, u64);

type Continuation = Box<dyn FnOnce(&mut Simulation, Answer)>;

pub(super) struct PendingCall {
    deadline: Time,
    what: String,
    then: Option<Continuation>,
}

#[derive(Debug)]
pub(super) struct Listing {
    client: u64,
    after: Vec<u8>,
    limit: usize,
    started: Time,
}

impl Simulation {
    pub(super) fn spawn_clients(&mut self, store: usize) {
        for _ in 0..self.app.scenario.clients_per_store {
            self.spawn_client(store);
        }
    }

    pub(super) fn spawn_client(&mut self, store: usize) -> u64 {
        let client = self.fresh_number();
        self.app.clients.insert(client, Client { store, held: BTreeMap::new(), is_visitor: false });
        let delay = self.random.millis(0..100);
        self.after(delay, move |sim| sim.act(client));
        client
    }

    pub(super) fn visit(
        &mut self,
        store: usize,
        delay: Duration,
        call: impl FnOnce(&mut Self, u64) + 'static,
    ) {
        let run = self.stores[store].run;
        self.after(delay, move |sim| {
            if sim.stores[store].is_running(run) && !sim.app.is_winding_down {
                let client = sim.fresh_number();
                sim.app
                    .clients
                    .insert(client, Client { store, held: BTreeMap::new(), is_visitor: true });
                call(sim, client);
            }
        });
    }

    pub(super) fn clients_of_crashed(&mut self, store: usize) {
        self.app.clients.retain(|_, client| client.store != store);
        let clients = &self.app.clients;
        self.app.calls.retain(|(client, _), _| clients.contains_key(client));
        self.app.listings.retain(|(client, _), _| clients.contains_key(client));
        self.end_reduces_of_crashed();
    }

    pub(super) fn kill_client(&mut self, client: u64) {
        let Some(Client { store, held, is_visitor }) = self.app.clients.remove(&client) else {
            return;
        };
        self.note(|_| format!("client {client} of store {store} dies"));
        self.app.calls.retain(|(owner, _), _| *owner != client);
        self.app.listings.retain(|(owner, _), _| *owner != client);
        self.end_reduces_of_crashed();
        for (copy, count) in held {
            self.copy(store, copy).references -= count;
        }
        self.store_event(store, Event::ClientGone { client: ClientId(client) });
        if !self.app.is_winding_down && !is_visitor {
            let run = self.stores[store].run;
            let delay = self.random.millis(1..100);
            self.after(delay, move |sim| {
                if sim.stores[store].is_running(run) && !sim.app.is_winding_down {
                    sim.spawn_client(store);
                }
            });
        }
    }

    pub(super) fn all_clients(&self) -> Vec<u64> {
        self.app.clients.keys().copied().collect()
    }

    pub(super) fn watch_calls(&mut self) {
        let now = self.now();
        for ((client, call), pending) in &self.app.calls {
            let is_late = pending.deadline != Time::NEVER && pending.deadline + SLACK < now;
            assert!(
                !is_late,
                "call {call} of client {client} is not answered in time: {}",
                pending.what
            );
        }
        let interval = if self.app.is_winding_down { WATCH_INTERVAL * 50 } else { WATCH_INTERVAL };
        self.after(interval, Self::watch_calls);
    }

    pub(super) fn open_calls(&self) -> usize {
        self.app.calls.values().filter(|pending| pending.then.is_some()).count()
    }

    pub(super) fn call(
        &mut self,
        client: u64,
        request: Request,
        timeout: Option<Duration>,
        then: Option<Continuation>,
    ) -> CallId {
        let number = self.fresh_number();
        self.call_as(number, client, request, timeout, then)
    }

    pub(super) fn call_as(
        &mut self,
        call: u64,
        client: u64,
        request: Request,
        timeout: Option<Duration>,
        then: Option<Continuation>,
    ) -> CallId {
        let store = self.app.clients[&client].store;
        self.note(|_| format!("client {client} of store {store} calls {call}: {request:?}"));
        if let Some(timeout) = timeout {
            let what = format!("store {store}: {request:?}");
            self.app
                .calls
                .insert((client, call), PendingCall { deadline: self.now() + timeout, what, then });
        }
        let request = Event::Request { client: ClientId(client), call: CallId(call), request };
        self.store_event(store, request);
        CallId(call)
    }

    pub(super) fn call_answered(
        &mut self,
        store: usize,
        client: ClientId,
        call: CallId,
        answer: Answer,
    ) {
        self.note(|_| {
            format!("store {store} answers call {} of client {}: {answer:?}", call.0, client.0)
        });
        match &answer {
            Ok(_) => self.app.summary.successes += 1,
            Err(_) => self.app.summary.errors += 1,
        }
        let Some(owner) = self.app.clients.get_mut(&client.0) else {
            panic!("client {} is gone and still answered", client.0)
        };
        if let Ok(
            Response::Created(view)
            | Response::Existing(view)
            | Response::Object(view)
            | Response::Ranges { view, .. },
        ) = &answer
        {
            *owner.held.entry(view.copy).or_default() += 1;
            let copy = view.copy;
            self.copy(store, copy).references += 1;
        }
        let key = (client.0, call.0);
        let Some(pending) = self.app.calls.get_mut(&key) else {
            panic!("call {} of client {} is answered, but not open: {answer:?}", call.0, client.0)
        };
        if pending.then.is_none() && answer.is_ok() {
            return;
        }
        let then = pending.then.take();
        self.app.calls.remove(&key);
        if let Some(then) = then {
            self.after(LOCAL_LATENCY, move |sim| {
                if sim.app.clients.contains_key(&key.0) {
                    then(sim, answer);
                }
            });
        }
    }

    pub(super) fn release(&mut self, client: u64, copy: CopyId) {
        let Some(owner) = self.app.clients.get_mut(&client) else { return };
        let store = owner.store;
        let Some(count) = owner.held.get_mut(&copy) else {
            panic!("client {client} holds {copy:?}")
        };
        *count -= 1;
        if *count == 0 {
            owner.held.remove(&copy);
        }
        self.copy(store, copy).references -= 1;
        self.call(client, Request::Release { copy }, None, None);
    }

    pub(super) fn release_later(&mut self, client: u64, copy: CopyId) {
        let delay = if self.random.chance(10) {
            self.random.millis(1..500)
        } else {
            self.random.millis(0..5)
        };
        self.after(delay, move |sim| {
            if sim.app.clients.contains_key(&client) {
                sim.release(client, copy);
                sim.act_later(client);
            }
        });
    }

    pub(super) fn act_later(&mut self, client: u64) {
        let delay = self.random.millis(1..60);
        self.after(delay, move |sim| sim.act(client));
    }

    fn act(&mut self, client: u64) {
        if self.app.is_winding_down || !self.app.clients.contains_key(&client) {
            return;
        }
        if self.app.clients.get(&client).is_some_and(|client| client.is_visitor) {
            return self.kill_client(client);
        }
        match self.random.number(0..100) {
            0..33 => {
                let id = self.any_to_put();
                self.put(client, id);
            }
            33..60 => {
                let id = self.any_object();
                self.get(client, id);
            }
            60..80 => self.reduce(client),
            80..85 => {
                let id = self.any_object();
                self.delete(client, id);
            }
            85..88 => self.wait(client),
            88..91 => self.locate(client),
            91..94 => self.subscribe(client),
            94..96 => self.cancelled_get(client),
            96 => self.list(client),
            _ => self.kill_client(client),
        }
    }

    pub(super) fn any_object(&mut self) -> ObjectId {
        if !self.app.results.is_empty() && self.random.chance(20) {
            return self.random.pick(&self.app.results).clone();
        }
        let kinds = [Kind::Plain, Kind::Plain, Kind::Source, Kind::Target];
        let kind = *self.random.pick(&kinds);
        self.any_of(kind)
    }

    fn any_to_put(&mut self) -> ObjectId {
        let kind = match self.random.number(0..100) {
            0..45 => Kind::Plain,
            45..97 => Kind::Source,
            _ => Kind::Target,
        };
        self.any_of(kind)
    }

    pub(super) fn any_of(&mut self, kind: Kind) -> ObjectId {
        let number = self.random.index(self.app.scenario.count_of(kind));
        kind.object(number)
    }

    pub(super) fn any_timeout(&mut self) -> Duration {
        if self.random.chance(5) { Duration::ZERO } else { self.random.millis(20..4000) }
    }

    pub(super) fn delete(&mut self, client: u64, id: ObjectId) {
        self.delete_and_then(client, id, Self::act_later);
    }

    pub(super) fn delete_and_then(
        &mut self,
        client: u64,
        id: ObjectId,
        then: impl FnOnce(&mut Self, u64) + 'static,
    ) {
        let timeout = self.any_timeout();
        let delete = self.app.history.delete_started(&id, self.now());
        self.app.history.removal_started(&id);
        let deleted = id.clone();
        let is_settled = self.now().since(Time::ZERO) > SESSIONS_OPEN_AFTER;
        let request = Request::Delete { ids: vec![id], timeout, wait: DeleteWait::Reachable };
        let then = move |sim: &mut Self, answer: Answer| {
            if matches!(answer, Ok(Response::Deleted { .. })) && is_settled {
                sim.app.history.delete_done(&delete, sim.now());
                sim.app.history.removal_ended(&deleted);
            }
            then(sim, client);
        };
        self.call(client, request, Some(timeout), Some(Box::new(then)));
    }

    fn wait(&mut self, client: u64) {
        let ids: Vec<ObjectId> = (0..3).map(|_| self.any_object()).collect();
        let (timeout, count) = (self.any_timeout(), 1 + self.random.index(3));
        let then = move |sim: &mut Self, answer: Answer| {
            assert!(
                matches!(answer, Ok(Response::Ready { .. })),
                "a wait is answered with {answer:?}"
            );
            sim.act_later(client);
        };
        let deadline = or_one_answer(timeout);
        self.call(
            client,
            Request::Wait { ids, count, timeout },
            Some(deadline),
            Some(Box::new(then)),
        );
    }

    fn locate(&mut self, client: u64) {
        let (id, timeout) = (self.any_object(), self.any_timeout());
        let then = move |sim: &mut Self, _: Answer| sim.act_later(client);
        let deadline = or_one_answer(timeout);
        self.call(client, Request::Locate { id, timeout }, Some(deadline), Some(Box::new(then)));
    }

    fn list(&mut self, client: u64) {
        let after =
            if self.random.chance(50) { self.any_object().as_bytes().to_vec() } else { Vec::new() };
        let page = Listing { client, after, limit: self.random.index(20), started: self.now() };
        let inspection = Inspection::List {
            prefix: Bytes::new(),
            after: page.after.clone().into(),
            limit: page.limit,
        };
        let call = self.call(client, Request::Inspect(inspection), Some(LISTING_TIME), None);
        self.app.listings.insert((client, call.0), page);
    }

    pub(super) fn listed(&mut self, key: CallKey, answer: Result<Page, Error>) {
        let Some(Listing { client, after, limit, started }) = self.app.listings.remove(&key) else {
            return;
        };
        self.app.calls.remove(&key);
        if let Ok(Page { objects, more }) = answer {
            assert!(objects.len() <= limit, "{} objects in a page of {limit}", objects.len());
            assert!(objects.is_sorted_by(|one, next| one.id < next.id), "the objects are sorted");
            assert!(
                objects.iter().all(|object| *object.id.as_bytes() > *after),
                "an object comes before the start of the page"
            );
            let end = objects.last().filter(|_| more).map(|object| object.id.clone());
            let is_in_page = |id: &ObjectId| {
                *id.as_bytes() > *after
                    && end.as_ref().is_none_or(|end| id <= end)
                    && (!more || end.is_some())
            };
            let is_settled = self.app.scenario.faults == Faults::None
                && started.since(Time::ZERO) > SESSIONS_OPEN_AFTER;
            for id in
                self.app.history.available_since(started).filter(|id| is_settled && is_in_page(id))
            {
                assert!(
                    objects.iter().any(|object| object.id == *id),
                    "{id} is available, but not listed"
                );
            }
        }
        self.act_later(client);
    }

    fn subscribe(&mut self, client: u64) {
        let id = self.any_object();
        let call = self.call(client, Request::Subscribe { id }, Some(Duration::MAX), None);
        let delay = self.random.millis(1..300);
        self.after(delay, move |sim| {
            if sim.app.clients.contains_key(&client) {
                sim.app.calls.remove(&(client, call.0));
                sim.call(client, Request::Unsubscribe { call }, None, None);
                sim.act_later(client);
            }
        });
    }
}

fn or_one_answer(timeout: Duration) -> Duration {
    if timeout.is_zero() { Duration::from_secs(5) } else { timeout }
}
