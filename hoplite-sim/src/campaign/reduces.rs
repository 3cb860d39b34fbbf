use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hoplite_core::node::{ByteRange, CopyId, Producer, Reduce, ReduceOrder, Request, Response};
use hoplite_core::placement::ShardMap;
use hoplite_core::plan::collective;
use hoplite_core::reduce::ReduceOp;
use hoplite_core::{Error, ObjectId, Time};

use super::clients::{CallKey, SESSIONS_OPEN_AFTER, SLACK};
use super::history::LATE_EFFECTS_TIME;
use super::scenario::{ELEMENT_BYTES, MAX_RESULTS};
use super::{Faults, Kind, Simulation};
use crate::cluster::contents::{EMPTY, part, shape_of};
use crate::cluster::{Answer, Copy, shard_name};

/// Shortest timeout with which a reduce of available sources must succeed in undisturbed runs.
const MIN_TIMEOUT_OF_SUCCESS: Duration = Duration::from_secs(3);
/// Time after a fault in which the directory and reduces recover.
const RECOVERED: Duration = Duration::from_secs(7);
const LAST_TIMEOUT: Duration = Duration::from_secs(9);
pub(super) const LAST_REDUCES: usize = 4;
const MAX_SOURCES: usize = 14;

#[derive(Debug, Clone)]
pub(super) struct ReduceCall {
    pub(super) store: usize,
    pub(super) request: Reduce,
    pub(super) started: Time,
    way: Way,
    pub(super) is_only: bool,
    pub(super) made: Option<ReducedContents>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Reduce,
    Allreduce,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReducedContents {
    pub(super) tag: u64,
    pub(super) shape: u64,
}

impl Simulation {
    pub(super) fn reduce(&mut self, client: u64) {
        if self.random.chance(25) {
            return self.allreduce(client);
        }
        let is_only = self.app.results.len() < MAX_RESULTS - LAST_REDUCES && self.random.chance(50);
        let elements = self.app.scenario.reduced_bytes / ELEMENT_BYTES;
        let range = (is_only && elements > 0 && self.random.chance(30)).then(|| {
            let first = self.random.number(0..elements);
            let length = self.random.number(0..elements - first + 1);
            ByteRange { offset_bytes: first * ELEMENT_BYTES, length_bytes: length * ELEMENT_BYTES }
        });
        let target = if is_only {
            let kind = if range.is_some() { Kind::Part } else { Kind::Result };
            kind.object(self.app.results.len())
        } else {
            self.any_of(Kind::Target)
        };
        let request = self.any_reduce(target.clone(), range);
        if is_only {
            self.app.results.push(target);
            self.start_reduce(client, request, true, Way::Reduce);
        } else if self.random.chance(80) {
            self.delete_and_then(client, target, |sim, client| {
                sim.start_reduce(client, request, false, Way::Reduce);
            });
        } else {
            self.start_reduce(client, request, false, Way::Reduce);
        }
    }

    pub(super) fn any_size_to_reduce(&mut self) -> u64 {
        let is_mistaken = self.app.scenario.has_mistakes && self.random.chance(3);
        self.app.scenario.reduced_bytes + if is_mistaken { ELEMENT_BYTES } else { 0 }
    }

    fn any_reduce(&mut self, target: ObjectId, range: Option<ByteRange>) -> Reduce {
        let mut sources: Vec<ObjectId> = Vec::new();
        let most = MAX_SOURCES.min(self.app.scenario.sources + 2);
        for _ in 0..1 + self.random.index(most) {
            let id = match self.random.number(0..100) {
                0..10 => self.any_of(Kind::Target),
                10..20 if !self.app.results.is_empty() => {
                    self.random.pick(&self.app.results).clone()
                }
                _ => self.any_of(Kind::Source),
            };
            let id = if Kind::of(&id) == Kind::Part { self.any_of(Kind::Source) } else { id };
            if id != target && !sources.contains(&id) {
                sources.push(id);
            }
        }
        if sources.is_empty() {
            sources.push(self.any_of(Kind::Source));
        }
        let count = if self.random.chance(60) {
            sources.len()
        } else {
            1 + self.random.index(sources.len())
        };
        Reduce {
            target,
            sources,
            count,
            op: *self.random.pick(ReduceOp::ALL),
            order: if self.random.chance(30) { ReduceOrder::Fixed } else { ReduceOrder::Any },
            range,
            replicas: 0,
            timeout: self.any_timeout(),
        }
    }

    pub(super) fn surround(&mut self, target: &ObjectId) {
        let longest = 100 * u64::from(self.app.scenario.slowness.min(20));
        for _ in 0..self.random.number(0..3) {
            let (id, delay) = (target.clone(), self.random.millis(0..longest));
            let reader = self.random.index(self.app.scenario.stores);
            self.visit(reader, delay, move |sim, client| sim.get(client, id));
        }
        if self.random.chance(8) {
            let (id, delay) = (target.clone(), self.random.millis(0..longest));
            let deleter = self.random.index(self.app.scenario.stores);
            self.visit(deleter, delay, move |sim, client| sim.delete(client, id));
        }
    }

    pub(super) fn put_sources(&mut self) {
        for number in 0..self.app.scenario.sources {
            let (store, delay) =
                (self.random.index(self.app.scenario.stores), self.random.millis(0..200));
            self.visit(store, delay, move |sim, client| {
                sim.put(client, Kind::Source.object(number))
            });
        }
    }

    pub(super) fn start_last_reduces(&mut self) {
        for number in 0..LAST_REDUCES {
            if number % 2 == 1 {
                self.start_allreduce(LAST_TIMEOUT, 10);
                continue;
            }
            let target = Kind::Result.object(self.app.results.len());
            self.app.results.push(target.clone());
            let request = Reduce { timeout: LAST_TIMEOUT, ..self.any_reduce(target, None) };
            let (store, delay) =
                (self.random.index(self.app.scenario.stores), self.random.millis(0..10));
            self.visit(store, delay, move |sim, client| {
                sim.start_reduce(client, request, true, Way::Reduce);
            });
        }
    }

    pub(super) fn start_reduce(&mut self, client: u64, request: Reduce, is_only: bool, way: Way) {
        let (store, timeout, target) =
            (self.app.clients[&client].store, request.timeout, request.target.clone());
        self.surround(&target);
        self.app.history.writer_started(&target, store);
        let call = ReduceCall {
            store,
            request: request.clone(),
            started: self.now(),
            way,
            is_only,
            made: None,
        };
        let key: CallKey = (client, self.fresh_number());
        self.app.reduces.insert(key, call);
        let then = move |sim: &mut Self, answer: Answer| sim.reduce_answered(key, answer);
        let request = match way {
            Way::Reduce => Request::Reduce(request),
            Way::Allreduce => Request::Collective(collective::Collective::Allreduce, request),
        };
        let call = self.call_as(key.1, client, request, Some(timeout), Some(Box::new(then)));
        let delay = self.random.micros(0..50_000 * u64::from(self.app.scenario.slowness.min(20)));
        match self.random.number(0..100) {
            0..6 => self.after(delay, move |sim| {
                if sim.app.calls.contains_key(&key) {
                    sim.kill_client(client);
                }
            }),
            6..10 => self.after(delay, move |sim| {
                if sim.app.calls.remove(&key).is_some() {
                    sim.call(client, Request::Cancel { call }, None, None);
                    sim.end_reduce(key, LATE_EFFECTS_TIME);
                    sim.act_later(client);
                }
            }),
            _ => {}
        }
    }

    pub(super) fn copy_completed(&mut self, store: usize, copy: CopyId) {
        let copy = self.copy(store, copy).clone();
        if copy.producer != Producer::Reduce || copy.is_of_hop() {
            return;
        }
        let (Some(target), Some(put)) = (&copy.id, copy.put) else {
            panic!("store {store} completes {copy:?} of no object")
        };
        let made = ReducedContents { tag: copy.tag.unwrap_or(EMPTY), shape: copy.shape };
        self.check_only_put(target, put);
        if self.app.sessions.contains_key(&put) {
            return self.member_completed(target, put, copy.size_bytes, made);
        }
        let is_open = |key: &CallKey| self.app.calls.contains_key(key);
        let calls = self.app.reduces.iter().filter(|(key, call)| {
            is_open(key)
                && call.store == store
                && call.request.target == *target
                && call.made.is_none()
        });
        let mut keys =
            calls.filter(|(_, call)| self.is_reduced(call, made, None)).map(|(key, _)| *key);
        let Some(key) = keys.next() else {
            self.note(|sim| {
                let known = |id: &ObjectId| -> Vec<String> {
                    let contents = sim.app.history.contents_of(id).into_iter();
                    contents.map(|(tag, _)| sim.contents.describe(tag)).collect()
                };
                let calls = sim.app.reduces.values().filter(|call| call.request.target == *target);
                let sources =
                    calls.map(|call| call.request.sources.iter().map(known).collect::<Vec<_>>());
                let sources: Vec<_> = sources.collect();
                format!("it is {}, made of {sources:?}", sim.contents.describe(made.tag))
            });
            panic!(
                "store {store} made {copy:?}, which no client requested: {:?}",
                self.app.reduces
            );
        };
        let Some(call) = self.app.reduces.get_mut(&key) else { return };
        call.made = Some(made);
        self.app.history.put_started(target, made.tag, copy.size_bytes);
    }

    /// Returns `true` if `made` combines the requested number of sources (exactly `indices`, if
    /// given), in the requested order if fixed.
    pub(super) fn is_reduced(
        &self,
        call: &ReduceCall,
        made: ReducedContents,
        indices: Option<&[usize]>,
    ) -> bool {
        self.is_reduction(&call.request, call.started, made, indices)
    }

    pub(super) fn is_reduction(
        &self,
        request: &Reduce,
        started: Time,
        made: ReducedContents,
        indices: Option<&[usize]>,
    ) -> bool {
        let Reduce { sources, count, op, order, range, .. } = request;
        if made.tag == EMPTY {
            let length_bytes =
                range.map_or(self.app.scenario.reduced_bytes, |range| range.length_bytes);
            return length_bytes == 0;
        }
        let Some(operands) = self.contents.operands(*op, made.tag, *count) else { return false };
        let may_be = |index: usize, operand: u64| {
            let id = &sources[index];
            indices.is_none_or(|indices| indices.contains(&index))
                && self.app.history.contents_of(id).into_iter().any(|(tag, size_bytes)| {
                    let range =
                        range.unwrap_or(ByteRange { offset_bytes: 0, length_bytes: size_bytes });
                    let is_deleted = self.app.scenario.faults == Faults::None
                        && self.app.history.is_deleted(id, tag, started);
                    part(tag, size_bytes, range) == operand && !is_deleted
                })
        };
        let candidates: Vec<(u64, Vec<usize>)> = operands
            .into_iter()
            .map(|operand| {
                (operand, (0..sources.len()).filter(|index| may_be(*index, operand)).collect())
            })
            .collect();
        let is_in_order = |chosen: &BTreeMap<usize, u64>| {
            *order == ReduceOrder::Any || shape_of(chosen.values().copied()) == made.shape
        };
        choose_sources(&candidates, &mut BTreeMap::new(), &is_in_order)
    }

    fn reduce_answered(&mut self, key: CallKey, answer: Answer) {
        let Some(call) = self.app.reduces.get(&key).cloned() else { return };
        match answer {
            Ok(Response::Reduced { indices }) => {
                self.check_reduced(&call, &indices);
                self.count_reduce(&call);
                // If the coordinator's own copy has failed, only other stores have the target, and
                // may evict it.
                let is_here = |copy: &Copy| {
                    copy.id.as_ref() == Some(&call.request.target) && copy.is_complete
                };
                if self.stores[call.store].copies.values().any(is_here) {
                    self.app.history.confirmed(&call.request.target, self.now());
                }
                self.end_reduce(key, Duration::ZERO);
                if self.random.chance(30) {
                    return self.get(key.0, call.request.target);
                }
            }
            Ok(other) => panic!("a reduce is answered with {other:?}"),
            Err(error) => {
                self.app.summary.failed_reduces += 1;
                self.check_failure(&call, &error);
                self.end_reduce(key, LATE_EFFECTS_TIME);
            }
        }
        self.act_later(key.0);
    }

    fn count_reduce(&mut self, call: &ReduceCall) {
        if call.way == Way::Allreduce {
            self.app.summary.allreduces += 1;
        }
        let record = self.stores[call.store].node.reduce_record(&call.request.target);
        let Some(record) = record else { panic!("a store remembers how a reduce went") };
        self.app.summary.reduces += 1;
        self.app.summary.repaired_reduces += u64::from(record.mendings > 0);
        self.app.summary.restarted_reduces += u64::from(record.restarts > 0);
    }

    fn check_reduced(&self, call: &ReduceCall, indices: &[usize]) {
        let request = &call.request;
        let distinct: BTreeSet<usize> = indices.iter().copied().collect();
        assert!(
            distinct.len() == request.count && indices.len() == request.count,
            "the result has the requested number of sources: {indices:?} of {request:?}"
        );
        let is_sorted = request.order == ReduceOrder::Any || indices.is_sorted();
        assert!(is_sorted, "in fixed order the indices ascend: {indices:?}");
        let Some(made) = call.made else { panic!("{request:?} has succeeded without a target") };
        assert!(
            self.is_reduced(call, made, Some(indices)),
            "{indices:?} of {request:?} were reported, but {} was made",
            self.contents.describe(made.tag)
        );
    }

    fn check_failure(&self, call: &ReduceCall, error: &Error) {
        let Reduce { target, sources, count, order, timeout, .. } = &call.request;
        let elapsed = self.now().since(call.started);
        let is_expected = match error {
            Error::ObjectLost { id } => sources.contains(id) || id == target,
            Error::Deleted { id } => id == target,
            Error::AlreadyExists { id } => id == target && !(call.is_only && call.made.is_none()),
            // Participants may disagree about the type with each other, or with an earlier
            // allreduce of the target.
            Error::TypeMismatch { id, .. } if id == target => {
                self.app.scenario.has_mistakes || !call.is_only
            }
            Error::TypeMismatch { id, .. } => {
                sources.contains(id) && self.app.scenario.has_mistakes
            }
            Error::StoreFull { .. } => !self.app.scenario.is_roomy,
            Error::Timeout { .. } => elapsed >= *timeout,
            _ => false,
        };
        assert!(is_expected, "{:?} is answered with: {error:?}", call.request);
        let is_wanted = call.is_only && !matches!(error, Error::Deleted { .. });
        let is_easy = self.app.scenario.slowness <= 10
            && self.app.scenario.is_roomy
            && !self.app.scenario.has_mistakes;
        if !is_wanted || !is_easy {
            return;
        }
        let had_time = elapsed >= MIN_TIMEOUT_OF_SUCCESS || !matches!(error, Error::Timeout { .. });
        let is_quiet = self.app.scenario.faults == Faults::None
            && call.started.since(Time::ZERO) > SESSIONS_OPEN_AFTER;
        let has_recovered =
            self.app.healed_at.is_some_and(|healed_at| self.now().since(healed_at) >= RECOVERED);
        let available = if is_quiet && had_time {
            let is_there =
                |id: &&ObjectId| self.app.history.was_available(id, call.store, call.started);
            sources.iter().filter(is_there).count()
        } else if has_recovered {
            sources.iter().filter(|id| self.is_whole_somewhere(id)).count()
        } else {
            0
        };
        assert!(
            available < *count,
            "{available} sources were available, but {:?} is answered with: {error}",
            call.request
        );
        // Once hops have combined sources, their reduce may succeed without these sources.
        let has_hops = *order == ReduceOrder::Fixed
            || self.now().since(self.app.ended_hop_at[call.store]) < SLACK;
        let lost = sources.iter().filter(|id| self.is_lost(id)).count();
        assert!(
            !has_recovered
                || has_hops
                || sources.len() - lost >= *count
                || !matches!(error, Error::Timeout { .. }),
            "{lost} sources were lost, but {:?} has waited on",
            call.request
        );
    }

    fn is_lost(&self, id: &ObjectId) -> bool {
        let listed = self.listed_shards();
        let names = listed.iter().map(|shard| shard_name(*shard));
        let first = listed[ShardMap::new(names).ranked(id)[0]];
        let (objects, _) = self.shards[first].shard.list(id.as_bytes(), b"", 1);
        objects
            .iter()
            .any(|found| found.id == *id && found.object.as_ref().is_some_and(|object| object.lost))
    }

    fn is_whole_somewhere(&self, id: &ObjectId) -> bool {
        let is_whole = |copy: &Copy| {
            let is_of_it =
                copy.id.as_ref() == Some(id) && copy.size_bytes == self.app.scenario.reduced_bytes;
            is_of_it
                && copy.is_complete
                && copy.failure.is_none()
                && copy.completed_at + RECOVERED / 2 < self.now()
        };
        self.stores.iter().any(|host| host.copies.values().any(is_whole))
    }

    /// Ends the record of a reduce whose client is gone. Its target may still appear within
    /// `aftermath`.
    fn end_reduce(&mut self, key: CallKey, aftermath: Duration) {
        let Some(ReduceCall { store, request, made, .. }) = self.app.reduces.remove(&key) else {
            return;
        };
        self.app.history.writer_ended(&request.target, store, self.now());
        if let Some(made) = made {
            self.app.history.put_ended(&request.target, made.tag, self.now() + aftermath);
        }
    }

    pub(super) fn end_reduces_of_crashed(&mut self) {
        let clients = &self.app.clients;
        let left: Vec<CallKey> = self
            .app
            .reduces
            .keys()
            .filter(|(client, _)| !clients.contains_key(client))
            .copied()
            .collect();
        for key in left {
            self.end_reduce(key, LATE_EFFECTS_TIME);
        }
    }
}

/// Finds a different source for each operand. Sources may have equal bytes, because a reduce of one
/// object copies it.
fn choose_sources(
    operands: &[(u64, Vec<usize>)],
    chosen: &mut BTreeMap<usize, u64>,
    is_accepted: &dyn Fn(&BTreeMap<usize, u64>) -> bool,
) -> bool {
    let Some(((operand, candidates), others)) = operands.split_first() else {
        return is_accepted(chosen);
    };
    for index in candidates {
        if !chosen.contains_key(index) {
            chosen.insert(*index, *operand);
            if choose_sources(others, chosen, is_accepted) {
                return true;
            }
            chosen.remove(index);
        }
    }
    false
}
