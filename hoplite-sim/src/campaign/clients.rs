//! Applications: they put, get, delete, wait, let go, and die. How they reduce is in `reduces`.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use bytes::Bytes;
use hoplite_core::node::{
    CallId, ClientId, Confirm, CopyId, Event, Inspection, ObjectView, Request, Response, Until,
};
use hoplite_core::session::ANSWER_TIMEOUT;
use hoplite_core::shard::Page;
use hoplite_core::{Dtype, Error, Metadata, ObjectId, Time};

use super::scenario::DTYPE;
use super::{Faults, Kind, Simulation};
use crate::cluster::{Answer, bytes_of};

/// How long after its deadline a call may be answered at the latest.
pub(super) const SLACK: Duration = Duration::from_millis(5);
/// The time that a message of the local plane takes.
const LOCAL_LATENCY: Duration = Duration::from_micros(10);
/// How often the calls are looked through for late ones.
const WATCH_INTERVAL: Duration = Duration::from_millis(100);
/// Before this time not all sessions are open, so that deletes may pass objects by.
pub(super) const SETTLED: Duration = Duration::from_millis(300);

/// A get of this length of an object that is there succeeds, unless something fails or everything is slow.
const ENOUGH_TIME: Duration = Duration::from_secs(1);

/// An inspection waits so long for a shard that does not answer, after the question has travelled.
const LISTING_TIME: Duration = ANSWER_TIMEOUT.saturating_add(Duration::from_secs(1));

/// So long a message between two stores takes at most, unless something fails.
const MEMBERS_HEAR_WITHIN: Duration = Duration::from_millis(60);

/// Sizes of objects: empty, inline, a few blocks, many blocks, odd ones.
const SIZES: [u64; 5] = [0, 100, 4095, 20_000, 65_000];
/// What may be put by one request: large enough to have a tag, and small enough for clients to do so.
const PUT_WHOLE: RangeInclusive<u64> = 8..=8192;

/// One process.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) store: usize,
    held: BTreeMap<CopyId, u32>,
    /// Whether it makes only one call.
    is_visitor: bool,
}

/// A call of a client.
pub(super) type CallKey = (u64, u64);

type Continuation = Box<dyn FnOnce(&mut Simulation, Answer)>;

/// What happens when a call is answered, and until when that must be. Subscriptions have neither.
pub(super) struct PendingCall {
    deadline: Time,
    what: String,
    then: Option<Continuation>,
}

/// A page of objects that a client asked for.
#[derive(Debug)]
pub(super) struct Listing {
    client: u64,
    after: Vec<u8>,
    limit: usize,
    started: Time,
}

/// A put under way.
#[derive(Debug, Clone)]
struct Put {
    client: u64,
    store: usize,
    id: ObjectId,
    tag: u64,
}

impl Simulation {
    /// The processes of a machine that has started.
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

    /// A client that somebody else lets make one call after `delay`.
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
                sim.app.clients.insert(client, Client { store, held: BTreeMap::new(), is_visitor: true });
                call(sim, client);
            }
        });
    }

    /// The processes of a machine that crashed are gone with it.
    pub(super) fn clients_of_crashed(&mut self, store: usize) {
        self.app.clients.retain(|_, client| client.store != store);
        let clients = &self.app.clients;
        self.app.calls.retain(|(client, _), _| clients.contains_key(client));
        self.app.listings.retain(|(client, _), _| clients.contains_key(client));
        self.end_reduces_of_gone();
    }

    /// A client dies; its store notices.
    pub(super) fn kill_client(&mut self, client: u64) {
        let Some(Client { store, held, is_visitor }) = self.app.clients.remove(&client) else { return };
        self.note(|_| format!("client {client} of store {store} dies"));
        self.app.calls.retain(|(owner, _), _| *owner != client);
        self.app.listings.retain(|(owner, _), _| *owner != client);
        self.end_reduces_of_gone();
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

    /// Looks for calls that should have been answered.
    pub(super) fn watch_calls(&mut self) {
        let now = self.now();
        for ((client, call), pending) in &self.app.calls {
            let is_late = pending.deadline != Time::NEVER && pending.deadline + SLACK < now;
            assert!(!is_late, "call {call} of client {client} is not answered in time: {}", pending.what);
        }
        // The final calls are few, and each is asked for.
        let interval = if self.app.is_winding_down { WATCH_INTERVAL * 50 } else { WATCH_INTERVAL };
        self.after(interval, Self::watch_calls);
    }

    /// How many calls are open, without subscriptions.
    pub(super) fn open_calls(&self) -> usize {
        self.app.calls.values().filter(|pending| pending.then.is_some()).count()
    }

    /// Makes a call; `then` is done with its answer, unless the client is gone by then.
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

    /// As [`call`](Self::call), under a number that is fresh.
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
            self.app.calls.insert((client, call), PendingCall { deadline: self.now() + timeout, what, then });
        }
        let request = Event::Request { client: ClientId(client), call: CallId(call), request };
        self.store_event(store, request);
        CallId(call)
    }

    /// A store answers.
    pub(super) fn call_answered(&mut self, store: usize, client: ClientId, call: CallId, answer: Answer) {
        self.note(|_| format!("store {store} answers call {} of client {}: {answer:?}", call.0, client.0));
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
        let Some(count) = owner.held.get_mut(&copy) else { panic!("client {client} holds {copy:?}") };
        *count -= 1;
        if *count == 0 {
            owner.held.remove(&copy);
        }
        self.copy(store, copy).references -= 1;
        self.call(client, Request::Release { copy }, None, None);
    }

    pub(super) fn release_later(&mut self, client: u64, copy: CopyId) {
        let delay =
            if self.random.chance(10) { self.random.millis(1..500) } else { self.random.millis(0..5) };
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

    /// An object that somebody may have put or made.
    fn any_object(&mut self) -> ObjectId {
        if !self.app.results.is_empty() && self.random.chance(20) {
            return self.random.pick(&self.app.results).clone();
        }
        let kinds = [Kind::Plain, Kind::Plain, Kind::Source, Kind::Target];
        let kind = *self.random.pick(&kinds);
        self.any_of(kind)
    }

    /// An object that somebody may put.
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

    // Puts.

    pub(super) fn put(&mut self, client: u64, id: ObjectId) {
        let is_plain = Kind::of(&id) == Kind::Plain;
        let known = self.app.history.contents_of(&id);
        let (tag, size_bytes) = if !known.is_empty() && self.random.chance(30) {
            *self.random.pick(&known)
        } else {
            let is_large = self.random.chance(25);
            let size_bytes = match is_plain {
                true if is_large => self.app.scenario.largest_bytes,
                true => *self.random.pick(&SIZES),
                false => self.any_size_to_reduce(),
            };
            // All empty objects are equal.
            (if size_bytes == 0 { 0 } else { self.fresh_number() }, size_bytes)
        };
        self.app.history.put_started(&id, tag, size_bytes);
        let store = self.app.clients[&client].store;
        self.app.history.writer_started(&id, store);
        let timeout = self.any_timeout();
        let dtype = if is_plain { Dtype::Opaque } else { DTYPE };
        let metadata = Metadata { dtype, ..Metadata::default() };
        let put = Put { client, store, id: id.clone(), tag };
        if PUT_WHOLE.contains(&size_bytes) && self.random.chance(50) {
            return self.put_whole(put, size_bytes, metadata, timeout);
        }
        let request = Request::Create { id, size_bytes, metadata, timeout };
        let then = move |sim: &mut Self, answer: Answer| sim.create_answered(put, answer);
        self.call(client, request, Some(timeout), Some(Box::new(then)));
    }

    fn create_answered(&mut self, put: Put, answer: Answer) {
        match answer {
            Ok(Response::Created(view)) => {
                let store = self.app.clients[&put.client].store;
                self.copy(store, view.copy).tag = Some(put.tag);
                self.write(put, view);
            }
            Ok(Response::Existing(view)) => self.exists_already(&put, &view),
            Ok(other) => panic!("a create is answered with {other:?}"),
            Err(_) => {
                self.put_ended(&put);
                self.act_later(put.client);
            }
        }
    }

    fn exists_already(&mut self, put: &Put, view: &ObjectView) {
        let store = self.app.clients[&put.client].store;
        let copy = self.copy(store, view.copy).clone();
        assert!(copy.is_complete && copy.size_bytes == view.size_bytes, "an existing copy is whole");
        self.check_contents(&put.id, copy.tag, view.size_bytes, self.now());
        self.put_ended(put);
        self.release_later(put.client, view.copy);
    }

    /// Puts a small object by one request.
    fn put_whole(&mut self, put: Put, size_bytes: u64, metadata: Metadata, timeout: Duration) {
        let confirm = if self.random.chance(70) { Confirm::Yes } else { Confirm::No };
        let bytes = bytes_of(Some(put.tag), size_bytes);
        let request = Request::Put { id: put.id.clone(), metadata, bytes, confirm, timeout };
        let client = put.client;
        let then = move |sim: &mut Self, answer: Answer| {
            match answer {
                Ok(Response::Sealed) if confirm == Confirm::Yes => {
                    sim.app.history.confirmed(&put.id, sim.now());
                    sim.put_ended(&put);
                }
                Ok(Response::Existing(view)) => return sim.exists_already(&put, &view),
                Ok(Response::Sealed) | Err(_) => sim.put_left_open(&put),
                Ok(other) => panic!("a put is answered with {other:?}"),
            }
            sim.act_later(client);
        };
        self.call(client, request, Some(timeout), Some(Box::new(then)));
    }

    fn put_ended(&mut self, put: &Put) {
        self.app.history.put_ended(&put.id, put.tag, self.now());
        self.app.history.writer_ended(&put.id, put.store, self.now());
    }

    fn put_left_open(&mut self, put: &Put) {
        self.app.history.put_left_open(&put.id, put.tag, self.now());
        self.app.history.writer_ended(&put.id, put.store, self.now());
    }

    /// Writes some blocks, and more later.
    fn write(&mut self, put: Put, view: ObjectView) {
        let Some(Client { store, .. }) = self.app.clients.get(&put.client) else { return };
        let store = *store;
        let chunk = self.random.number(4096..50_000);
        let copy = self.copy(store, view.copy);
        copy.valid_bytes = (copy.valid_bytes + chunk).min(copy.size_bytes);
        let is_done = copy.valid_bytes == copy.size_bytes;
        let delay = if self.random.chance(2) {
            self.random.millis(1..800)
        } else {
            self.random.micros(20..800) * self.app.scenario.slowness
        };
        self.after(delay, move |sim| {
            if !sim.app.clients.contains_key(&put.client) {
                return;
            }
            if is_done { sim.end_put(put, &view) } else { sim.write(put, view) }
        });
    }

    fn end_put(&mut self, put: Put, view: &ObjectView) {
        let (client, copy) = (put.client, view.copy);
        match self.random.number(0..100) {
            0..5 => {
                self.put_left_open(&put);
                self.kill_client(client);
            }
            5..10 => {
                self.put_left_open(&put);
                self.release(client, copy);
                self.act_later(client);
            }
            10..25 => {
                self.put_left_open(&put);
                self.call(client, Request::SealUnconfirmed { copy }, None, None);
                self.release_later(client, copy);
            }
            _ => {
                let timeout = self.random.millis(500..4000);
                let then = move |sim: &mut Self, answer: Answer| {
                    match answer {
                        Ok(Response::Sealed) => {
                            sim.app.history.confirmed(&put.id, sim.now());
                            sim.put_ended(&put);
                        }
                        Ok(other) => panic!("a seal is answered with {other:?}"),
                        Err(_) => sim.put_left_open(&put),
                    }
                    sim.release_later(client, copy);
                };
                let request = Request::Seal { copy, timeout };
                self.call(client, request, Some(timeout), Some(Box::new(then)));
            }
        }
    }

    // Gets.

    pub(super) fn get(&mut self, client: u64, id: ObjectId) {
        let (timeout, started) = (self.any_timeout(), self.now());
        let until = if self.random.chance(30) { Until::Started } else { Until::Complete };
        let request = Request::Get { id: id.clone(), until, timeout };
        let then = move |sim: &mut Self, answer: Answer| match answer {
            Ok(Response::Object(view)) if until == Until::Complete => {
                sim.check_view(client, &id, &view, started);
                sim.release_later(client, view.copy);
            }
            Ok(Response::Object(view)) => sim.follow(client, id, view, 0, started),
            Ok(other) => panic!("a get is answered with {other:?}"),
            Err(error) => {
                sim.check_refusal(client, &id, &error, started);
                sim.act_later(client);
            }
        };
        self.call(client, request, Some(timeout), Some(Box::new(then)));
    }

    /// Follows a copy until all of it is there, or it fails, or that takes too long.
    fn follow(&mut self, client: u64, id: ObjectId, view: ObjectView, beyond_bytes: u64, started: Time) {
        let (copy, timeout) = (view.copy, self.any_timeout());
        let then = move |sim: &mut Self, answer: Answer| match answer {
            Ok(Response::Progress { valid_bytes }) if valid_bytes == view.size_bytes => {
                let store = sim.app.clients[&client].store;
                // The end of what a store pulls is passed on before the copy is complete.
                if sim.copy(store, copy).is_complete {
                    sim.check_view(client, &id, &view, started);
                }
                sim.release_later(client, copy);
            }
            Ok(Response::Progress { valid_bytes }) => {
                assert!((beyond_bytes + 1..view.size_bytes).contains(&valid_bytes), "{valid_bytes} is news");
                sim.follow(client, id, view, valid_bytes, started);
            }
            Ok(other) => panic!("a follow is answered with {other:?}"),
            Err(_) => sim.release_later(client, copy),
        };
        let request = Request::Follow { copy, beyond_bytes, timeout };
        self.call(client, request, Some(timeout), Some(Box::new(then)));
    }

    /// Judges what a get returned.
    pub(super) fn check_view(&mut self, client: u64, id: &ObjectId, view: &ObjectView, started: Time) -> u64 {
        let store = self.app.clients[&client].store;
        let copy = self.copy(store, view.copy).clone();
        assert!(
            copy.is_complete && copy.valid_bytes == view.size_bytes && copy.size_bytes == view.size_bytes,
            "a get of {id} at store {store} returned an incomplete copy: {copy:?}"
        );
        self.check_contents(id, copy.tag, view.size_bytes, started);
        copy.tag.unwrap_or(0)
    }

    fn check_contents(&self, id: &ObjectId, tag: Option<u64>, size_bytes: u64, started: Time) {
        let tag = tag.unwrap_or(0);
        assert!(
            self.app.history.is_put(id, tag, size_bytes),
            "{id} was read as contents {tag} of {size_bytes} bytes, which nobody put"
        );
        if self.app.scenario.faults == Faults::None {
            // Members of a session that still make a target hear of its end from their coordinator, not from the directory.
            let grace = if Kind::of(id) == Kind::Target { MEMBERS_HEAR_WITHIN } else { Duration::ZERO };
            let started = Time::ZERO + started.since(Time::ZERO).saturating_sub(grace);
            assert!(
                !self.app.history.is_deleted(id, tag, started),
                "{id} was read as {tag}, which was deleted"
            );
        }
    }

    /// Judges a get that failed.
    fn check_refusal(&self, client: u64, id: &ObjectId, error: &Error, started: Time) {
        let store = self.app.clients[&client].store;
        let had_time = self.now().since(started) >= ENOUGH_TIME || !matches!(error, Error::Timeout { .. });
        let is_quick = self.app.scenario.faults == Faults::None && self.app.scenario.slowness <= 10;
        let had_space = self.app.lacked_space_at[store] < started;
        if is_quick
            && had_space
            && had_time
            && started.since(Time::ZERO) > SETTLED
            && !matches!(error, Error::StoreFull { .. })
        {
            let had_to_succeed = self.app.history.was_available(id, store, started);
            assert!(!had_to_succeed, "{id} was there, but a get at store {store} was answered with: {error}");
        }
    }

    fn cancelled_get(&mut self, client: u64) {
        let (id, timeout) = (self.any_object(), Duration::from_secs(4));
        let request = Request::Get { id, until: Until::Complete, timeout };
        let then = move |sim: &mut Self, answer: Answer| match answer {
            Ok(Response::Object(view)) => sim.release_later(client, view.copy),
            _ => sim.act_later(client),
        };
        let call = self.call(client, request, Some(timeout), Some(Box::new(then)));
        let delay = self.random.millis(0..50);
        self.after(delay, move |sim| {
            let key = (client, call.0);
            if sim.app.clients.contains_key(&client) && sim.app.calls.contains_key(&key) {
                sim.app.calls.remove(&key);
                sim.call(client, Request::Cancel { call }, None, None);
                sim.act_later(client);
            }
        });
    }

    // The rest.

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
        let is_settled = self.now().since(Time::ZERO) > SETTLED;
        let request = Request::Delete { ids: vec![id], timeout };
        let then = move |sim: &mut Self, answer: Answer| {
            if matches!(answer, Ok(Response::Deleted { .. })) && is_settled {
                sim.app.history.delete_done(&delete, sim.now());
                // A delete that timed out may still have effects.
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
            assert!(matches!(answer, Ok(Response::Ready { .. })), "a wait is answered with {answer:?}");
            sim.act_later(client);
        };
        let deadline = or_one_answer(timeout);
        self.call(client, Request::Wait { ids, count, timeout }, Some(deadline), Some(Box::new(then)));
    }

    fn locate(&mut self, client: u64) {
        let (id, timeout) = (self.any_object(), self.any_timeout());
        let then = move |sim: &mut Self, _: Answer| sim.act_later(client);
        let deadline = or_one_answer(timeout);
        self.call(client, Request::Locate { id, timeout }, Some(deadline), Some(Box::new(then)));
    }

    /// Asks for one page of the objects.
    fn list(&mut self, client: u64) {
        let after = if self.random.chance(50) { self.any_object().as_bytes().to_vec() } else { Vec::new() };
        let page = Listing { client, after, limit: self.random.index(20), started: self.now() };
        let inspection =
            Inspection::List { prefix: Bytes::new(), after: page.after.clone().into(), limit: page.limit };
        let call = self.call(client, Request::Inspect(inspection), Some(LISTING_TIME), None);
        self.app.listings.insert((client, call.0), page);
    }

    pub(super) fn listed(&mut self, key: CallKey, answer: Result<Page, Error>) {
        let Some(Listing { client, after, limit, started }) = self.app.listings.remove(&key) else { return };
        self.app.calls.remove(&key);
        if let Ok(Page { objects, more }) = answer {
            assert!(objects.len() <= limit, "{} objects in a page of {limit}", objects.len());
            assert!(objects.is_sorted_by(|one, next| one.id < next.id), "the objects are in order");
            assert!(objects.iter().all(|object| *object.id.as_bytes() > *after), "and after the one given");
            let end = objects.last().filter(|_| more).map(|object| object.id.clone());
            let is_in_page = |id: &ObjectId| {
                *id.as_bytes() > *after
                    && end.as_ref().is_none_or(|end| id <= end)
                    && (!more || end.is_some())
            };
            let is_settled = self.app.scenario.faults == Faults::None && started.since(Time::ZERO) > SETTLED;
            for id in self.app.history.available_since(started).filter(|id| is_settled && is_in_page(id)) {
                assert!(objects.iter().any(|object| object.id == *id), "{id} is there, but not listed");
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

/// How long a call may take whose timeout of zero stands for one answer of the directory.
fn or_one_answer(timeout: Duration) -> Duration {
    if timeout.is_zero() { Duration::from_secs(5) } else { timeout }
}
