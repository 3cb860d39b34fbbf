use std::collections::BTreeSet;
use std::time::Duration;

use hoplite_core::collective::{Agreement, Plan};
use hoplite_core::node::{ByteRange, ObjectView, Producer, Reduce, ReduceOrder, Request, Response};
use hoplite_core::plan::collective;
use hoplite_core::reduce::ReduceOp;
use hoplite_core::{Error, ObjectId, PutId, Time};

use super::clients::SESSIONS_OPEN_AFTER;
use super::history::LATE_EFFECTS_TIME;
use super::reduces::{LAST_REDUCES, ReduceCall, ReducedContents, Way};
use super::scenario::MAX_RESULTS;
use super::{Faults, Kind, Simulation};
use crate::cluster::{Answer, Copy};

/// Shortest timeout with which a participant must succeed in undisturbed runs, if the target was
/// available for this time.
const MIN_TIMEOUT_OF_SUCCESS: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct SessionRecord {
    call: ReduceCall,
    made: Option<ReducedContents>,
}

#[derive(Debug, Clone)]
struct Participant {
    client: u64,
    target: ObjectId,
    agreement: Agreement,
    started: Time,
    deadline: Time,
    is_only: bool,
}

impl Simulation {
    pub(super) fn allreduce(&mut self, client: u64) {
        if self.app.scenario.has_exchanges
            && self.app.exchanges.len() < MAX_RESULTS
            && self.random.chance(50)
        {
            self.exchange();
            return self.act_later(client);
        }
        if self.app.results.len() < MAX_RESULTS - LAST_REDUCES && self.random.chance(70) {
            let timeout = self.any_timeout();
            self.start_allreduce(timeout, 60);
            return self.act_later(client);
        }
        let target = self.any_of(Kind::Target);
        self.delete_and_then(client, target.clone(), |sim, client| {
            let timeout = sim.any_timeout();
            sim.begin_allreduce(target, false, timeout, 60);
            sim.act_later(client);
        });
    }

    pub(super) fn start_allreduce(&mut self, timeout: Duration, spread_ms: u64) {
        let target = Kind::Result.object(self.app.results.len());
        self.app.results.push(target.clone());
        self.begin_allreduce(target, true, timeout, spread_ms);
    }

    fn begin_allreduce(
        &mut self,
        target: ObjectId,
        is_only: bool,
        timeout: Duration,
        spread_ms: u64,
    ) {
        let ranks = self.any_ranks();
        let sources: Vec<ObjectId> = ranks.iter().map(|(source, _)| source.clone()).collect();
        let order = if self.random.chance(10) { ReduceOrder::Fixed } else { ReduceOrder::Any };
        let (count, op) = (sources.len(), *self.random.pick(ReduceOp::ALL));
        let request =
            Reduce { target, sources, count, op, order, range: None, replicas: 0, timeout };
        for (rank, (_, store)) in ranks.into_iter().enumerate() {
            let (request, delay) = (request.clone(), self.random.millis(0..spread_ms));
            if rank > 0 && self.random.chance(10) {
                continue;
            }
            self.visit(store, delay, move |sim, client| {
                sim.participate(client, &request, is_only);
                if rank == 0 {
                    sim.start_reduce(client, request, is_only, Way::Allreduce);
                }
            });
        }
    }

    pub(super) fn any_ranks(&mut self) -> Vec<(ObjectId, usize)> {
        let most = self.app.scenario.sources.max(2);
        let mut sources = BTreeSet::new();
        for _ in 0..2 + self.random.index(most) {
            sources.insert(self.random.index(self.app.scenario.sources));
        }
        let mut ranks: Vec<(ObjectId, usize)> = Vec::new();
        for number in sources {
            let source = Kind::Source.object(number);
            let is_put = |copy: &Copy| {
                copy.id.as_ref() == Some(&source)
                    && copy.producer == Producer::Worker
                    && copy.failure.is_none()
            };
            let found = self.stores.iter().position(|host| host.copies.values().any(is_put));
            let store = found.unwrap_or_else(|| self.random.index(self.app.scenario.stores));
            if found.is_none() {
                let (id, delay) = (source.clone(), self.random.millis(0..20));
                self.visit(store, delay, move |sim, client| sim.put(client, id));
            }
            let is_away = self.random.chance(5);
            let store = if is_away { self.random.index(self.app.scenario.stores) } else { store };
            ranks.push((source, store));
        }
        let first = self.random.index(ranks.len());
        ranks.swap(0, first);
        ranks
    }

    fn participate(&mut self, client: u64, request: &Reduce, is_only: bool) {
        let is_mistaken = self.app.scenario.has_mistakes && self.random.chance(10);
        let op = if is_mistaken { *self.random.pick(ReduceOp::ALL) } else { request.op };
        let agreement =
            Agreement::of(collective::Collective::Allreduce, &Reduce { op, ..request.clone() });
        let timeout = if self.random.chance(10) { self.any_timeout() } else { request.timeout };
        let (started, target) = (self.now(), request.target.clone());
        let deadline = started + timeout;
        self.join(Participant { client, target, agreement, started, deadline, is_only }, false);
        if self.random.chance(6) {
            let delay =
                self.random.micros(0..50_000 * u64::from(self.app.scenario.slowness.min(20)));
            self.after(delay, move |sim| sim.kill_client(client));
        }
    }

    fn join(&mut self, participant: Participant, is_again: bool) {
        let timeout = participant.deadline.since(self.now());
        let Participant { client, target, agreement, .. } = participant.clone();
        let source_bytes = *self.random.pick(&[0, u64::MAX]);
        let request = Request::Join { target, agreement, is_again, source_bytes, timeout };
        let then = move |sim: &mut Self, answer: Answer| match answer {
            Ok(Response::Object(view)) => {
                assert_eq!(
                    view.metadata.agreement,
                    Some(agreement),
                    "a participant gets the target of its own agreement"
                );
                sim.follow_target(participant, view, 0);
            }
            Ok(Response::Ranges { view, order }) => {
                assert_eq!(
                    view.metadata.agreement,
                    Some(agreement),
                    "a participant gets the target of its own agreement"
                );
                check_order(&order, view.size_bytes);
                sim.follow_target(participant, view, 0);
            }
            Ok(other) => panic!("a participant is answered with {other:?}"),
            Err(error) => sim.participant_failed(&participant, &error),
        };
        self.call(client, request, Some(timeout), Some(Box::new(then)));
    }

    fn follow_target(&mut self, participant: Participant, view: ObjectView, beyond_bytes: u64) {
        let (client, copy) = (participant.client, view.copy);
        let timeout = participant.deadline.since(self.now());
        let then = move |sim: &mut Self, answer: Answer| match answer {
            Ok(Response::Progress { valid_bytes }) if valid_bytes == view.size_bytes => {
                sim.check_only_put(&participant.target, view.put);
                let store = sim.app.clients[&client].store;
                // Checks only a complete copy: readers see the last bytes slightly earlier.
                if sim.copy(store, copy).is_complete {
                    sim.check_view(client, &participant.target, &view, participant.started);
                }
                sim.app.summary.participants += 1;
                sim.release_later(client, copy);
            }
            Ok(Response::Progress { valid_bytes }) => {
                sim.follow_target(participant, view, valid_bytes)
            }
            Ok(other) => panic!("a follow is answered with {other:?}"),
            Err(Error::Superseded { .. }) if participant.deadline > sim.now() => {
                sim.release(client, copy);
                sim.join(participant, true);
            }
            Err(error) => {
                sim.release_later(client, copy);
                sim.participant_failed(&participant, &error);
            }
        };
        let request = Request::Follow { copy, beyond_bytes, timeout };
        self.call(client, request, Some(timeout), Some(Box::new(then)));
    }

    fn participant_failed(&mut self, participant: &Participant, error: &Error) {
        self.app.summary.failed_participants += 1;
        let Participant { client, target, started, deadline, is_only, .. } = participant;
        self.act_later(*client);
        let is_expected = match error {
            Error::ObjectLost { .. } | Error::Deleted { .. } | Error::Superseded { .. } => true,
            Error::AlreadyExists { id } => id == target,
            // Another object may still have the target's id somewhere.
            Error::TypeMismatch { .. } => self.app.scenario.has_mistakes || !is_only,
            Error::StoreFull { .. } => !self.app.scenario.is_roomy,
            Error::Timeout { .. } => true,
            _ => false,
        };
        assert!(is_expected, "a participant of {target} is answered with: {error:?}");
        let is_easy = self.app.scenario.faults == Faults::None
            && self.app.scenario.slowness <= 10
            && self.app.scenario.is_roomy
            && !self.app.scenario.has_mistakes;
        let since = self.now().since(Time::ZERO).saturating_sub(MIN_TIMEOUT_OF_SUCCESS);
        let is_had = *is_only
            && started.since(Time::ZERO) > SESSIONS_OPEN_AFTER
            && self.app.history.available_since(Time::ZERO + since).any(|id| id == target);
        let is_in_time = matches!(error, Error::Timeout { .. })
            && deadline.since(*started) < MIN_TIMEOUT_OF_SUCCESS;
        assert!(
            !is_easy || !is_had || is_in_time,
            "{target} has been there, but a participant is answered with: {error}"
        );
    }

    pub(super) fn member_requested(&mut self, store: usize, plan: &Plan) {
        if !plan.properties().makes_target {
            return self.exchange_member_requested(store, plan);
        }
        if self.app.sessions.contains_key(&plan.put) {
            return;
        }
        let calls = self.app.reduces.iter();
        let mut calls =
            calls.filter(|(_, call)| call.store == store && call.request.target == plan.target);
        let Some((_, call)) = calls.next_back() else {
            panic!("store {store} asks for members of {plan:?}, without an open call")
        };
        self.app.sessions.insert(plan.put, SessionRecord { call: call.clone(), made: None });
    }

    pub(super) fn member_completed(
        &mut self,
        target: &ObjectId,
        put: PutId,
        size_bytes: u64,
        made: ReducedContents,
    ) {
        let Some(SessionRecord { call, made: before }) = self.app.sessions.get(&put) else {
            return;
        };
        if let Some(before) = before {
            assert_eq!(*before, made, "all members produce the same {target}");
            return;
        }
        assert!(
            self.is_reduced(call, made, None),
            "{} was made by the session of {:?}",
            self.contents.describe(made.tag),
            call.request
        );
        self.app.summary.sessions += 1;
        self.app.history.put_started(target, made.tag, size_bytes);
        let open = self.app.reduces.values_mut().find(|other| {
            other.request.target == *target && other.started == call.started && other.made.is_none()
        });
        match open {
            Some(open) => open.made = Some(made),
            None => self.app.history.put_ended(target, made.tag, self.now() + LATE_EFFECTS_TIME),
        }
        if let Some(session) = self.app.sessions.get_mut(&put) {
            session.made = Some(made);
        }
    }

    pub(super) fn check_only_put(&mut self, target: &ObjectId, put: PutId) {
        if !matches!(Kind::of(target), Kind::Result | Kind::Part) {
            return;
        }
        let known = *self.app.only_puts.entry(target.clone()).or_insert(put);
        assert_eq!(known, put, "all nodes have the same {target}");
    }
}

fn check_order(order: &[ByteRange], size_bytes: u64) {
    let mut ranges: Vec<&ByteRange> = order.iter().collect();
    ranges.sort_by_key(|range| range.offset_bytes);
    let mut end_bytes = 0;
    for range in ranges {
        assert_eq!(range.offset_bytes, end_bytes, "{order:?}");
        end_bytes += range.length_bytes;
    }
    assert_eq!(end_bytes, size_bytes, "{order:?}");
}
