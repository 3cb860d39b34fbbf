use std::time::Duration;

use hoplite_core::node::{ObjectView, Request, Response, Until};
use hoplite_core::{Error, ObjectId, Time};

use super::clients::SESSIONS_OPEN_AFTER;
use super::{Faults, Kind, Simulation};
use crate::cluster::Answer;

/// Shortest timeout with which a get of an available object must succeed in undisturbed runs.
const MIN_TIMEOUT_OF_SUCCESS: Duration = Duration::from_secs(1);

const MEMBER_NOTICE_TIME: Duration = Duration::from_millis(60);

impl Simulation {
    pub(super) fn get(&mut self, client: u64, id: ObjectId) {
        let (timeout, started) = (self.any_timeout(), self.now());
        let until = if self.random.chance(30) { Until::Started } else { Until::Complete };
        let request = Request::Get { id: id.clone(), until, timeout, allow_stale: false };
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

    fn follow(
        &mut self,
        client: u64,
        id: ObjectId,
        view: ObjectView,
        beyond_bytes: u64,
        started: Time,
    ) {
        let (copy, timeout) = (view.copy, self.any_timeout());
        let then = move |sim: &mut Self, answer: Answer| match answer {
            Ok(Response::Progress { valid_bytes }) if valid_bytes == view.size_bytes => {
                let store = sim.app.clients[&client].store;
                // Checks only a complete copy: readers see the last bytes slightly earlier.
                if sim.copy(store, copy).is_complete {
                    sim.check_view(client, &id, &view, started);
                }
                sim.release_later(client, copy);
            }
            Ok(Response::Progress { valid_bytes }) => {
                assert!(
                    (beyond_bytes + 1..view.size_bytes).contains(&valid_bytes),
                    "{valid_bytes} is progress"
                );
                sim.follow(client, id, view, valid_bytes, started);
            }
            Ok(other) => panic!("a follow is answered with {other:?}"),
            Err(_) => sim.release_later(client, copy),
        };
        let request = Request::Follow { copy, beyond_bytes, timeout };
        self.call(client, request, Some(timeout), Some(Box::new(then)));
    }

    pub(super) fn check_view(
        &mut self,
        client: u64,
        id: &ObjectId,
        view: &ObjectView,
        started: Time,
    ) -> u64 {
        let store = self.app.clients[&client].store;
        let copy = self.copy(store, view.copy).clone();
        assert!(
            copy.is_complete
                && copy.valid_bytes == view.size_bytes
                && copy.size_bytes == view.size_bytes,
            "a get of {id} at store {store} returned an incomplete copy: {copy:?}"
        );
        self.check_contents(id, copy.tag, view.size_bytes, started);
        copy.tag.unwrap_or(0)
    }

    pub(super) fn check_contents(
        &self,
        id: &ObjectId,
        tag: Option<u64>,
        size_bytes: u64,
        started: Time,
    ) {
        let tag = tag.unwrap_or(0);
        assert!(
            self.app.history.is_put(id, tag, size_bytes),
            "{id} was read as contents {tag} of {size_bytes} bytes, which no client put"
        );
        if self.app.scenario.faults == Faults::None {
            // A collective's other members learn of the target's delete later.
            let grace =
                if Kind::of(id) == Kind::Target { MEMBER_NOTICE_TIME } else { Duration::ZERO };
            let started = Time::ZERO + started.since(Time::ZERO).saturating_sub(grace);
            assert!(
                !self.app.history.is_deleted(id, tag, started),
                "{id} was read as {tag}, which was deleted"
            );
        }
    }

    fn check_refusal(&self, client: u64, id: &ObjectId, error: &Error, started: Time) {
        let store = self.app.clients[&client].store;
        let had_time = self.now().since(started) >= MIN_TIMEOUT_OF_SUCCESS
            || !matches!(error, Error::Timeout { .. });
        let is_quick = self.app.scenario.faults == Faults::None && self.app.scenario.slowness <= 10;
        let had_space = self.app.lacked_space_at[store] < started;
        if is_quick
            && had_space
            && had_time
            && started.since(Time::ZERO) > SESSIONS_OPEN_AFTER
            && !matches!(error, Error::StoreFull { .. })
        {
            let had_to_succeed = self.app.history.was_available(id, store, started);
            assert!(
                !had_to_succeed,
                "{id} was available, but a get at store {store} was answered with: {error}"
            );
        }
    }

    pub(super) fn cancelled_get(&mut self, client: u64) {
        let (id, timeout) = (self.any_object(), Duration::from_secs(4));
        let request = Request::Get { id, until: Until::Complete, timeout, allow_stale: false };
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
}
