//! Collectives of parts. Participants get their parts, or make them after a failure.

use hoplite_core::collective::{Agreement, Plan};
use hoplite_core::node::{ByteRange, ObjectView, Reduce, ReduceOrder, Request, Response};
use hoplite_core::plan::collective::Collective;
use hoplite_core::reduce::ReduceOp;
use hoplite_core::{Error, ObjectId, Time};

use super::reduces::ReducedContents;
use super::{Kind, Simulation};
use crate::cluster::contents::EMPTY;
use crate::cluster::{Answer, Piece};

#[derive(Debug, Clone)]
pub(super) struct PartsCall {
    kind: Collective,
    request: Reduce,
    started: Time,
    store: usize,
}

#[derive(Debug, Clone)]
struct Participant {
    client: u64,
    target: ObjectId,
    agreement: Agreement,
    deadline: Time,
}

impl Simulation {
    pub(super) fn exchange(&mut self) {
        let target = Kind::End.object(self.app.exchanges.len());
        let kind = *self.random.pick(&[Collective::ReduceScatter, Collective::Allgather]);
        let ranks = self.any_ranks();
        let sources: Vec<ObjectId> = ranks.iter().map(|(source, _)| source.clone()).collect();
        let (count, op, timeout) =
            (sources.len(), *self.random.pick(ReduceOp::ALL), self.any_timeout());
        let order = if self.random.chance(5) { ReduceOrder::Fixed } else { ReduceOrder::Any };
        let request = Reduce {
            target: target.clone(),
            sources,
            count,
            op,
            order,
            range: None,
            replicas: 0,
            timeout,
        };
        let exchange =
            PartsCall { kind, request: request.clone(), started: self.now(), store: ranks[0].1 };
        self.app.exchanges.insert(target.clone(), exchange);
        // Rank 0's store may put the target at any time.
        self.app.history.put_started(&target, EMPTY, 0);
        self.surround(&target);
        for (rank, (_, store)) in ranks.into_iter().enumerate() {
            let (request, delay) = (request.clone(), self.random.millis(0..60));
            if rank > 0 && self.random.chance(10) {
                continue;
            }
            self.visit(store, delay, move |sim, client| {
                sim.participate_in_exchange(client, kind, &request);
                if rank == 0 {
                    sim.coordinate(client, kind, request);
                }
            });
        }
    }

    fn participate_in_exchange(&mut self, client: u64, kind: Collective, request: &Reduce) {
        let is_mistaken = self.app.scenario.has_mistakes && self.random.chance(10);
        let kind = if is_mistaken { Collective::Allreduce } else { kind };
        let agreement = Agreement::of(kind, request);
        let timeout = if self.random.chance(10) { self.any_timeout() } else { request.timeout };
        let (deadline, target) = (self.now() + timeout, request.target.clone());
        self.join_exchange(Participant { client, target, agreement, deadline }, false);
        if self.random.chance(6) {
            let delay =
                self.random.micros(0..50_000 * u64::from(self.app.scenario.slowness.min(20)));
            self.after(delay, move |sim| sim.kill_client(client));
        }
    }

    fn coordinate(&mut self, client: u64, kind: Collective, request: Reduce) {
        let (timeout, target) = (request.timeout, request.target.clone());
        let key = (client, self.fresh_number());
        let then = move |sim: &mut Self, answer: Answer| match answer {
            Ok(Response::Reduced { .. }) => {}
            Ok(other) => panic!("a coordinator is answered with {other:?}"),
            Err(error) => sim.check_end(&target, &error),
        };
        let request = Request::Collective(kind, request);
        let call = self.call_as(key.1, client, request, Some(timeout), Some(Box::new(then)));
        if self.random.chance(20) {
            let delay =
                self.random.micros(0..50_000 * u64::from(self.app.scenario.slowness.min(20)));
            self.after(delay, move |sim| {
                if sim.app.calls.remove(&key).is_some() {
                    sim.call(client, Request::Cancel { call }, None, None);
                }
            });
        }
    }

    fn join_exchange(&mut self, participant: Participant, is_again: bool) {
        let timeout = participant.deadline.since(self.now());
        let Participant { client, target, agreement, .. } = participant.clone();
        let source_bytes = *self.random.pick(&[0, u64::MAX]);
        let request = Request::Join { target, agreement, is_again, source_bytes, timeout };
        let then = move |sim: &mut Self, answer: Answer| match answer {
            Ok(Response::Object(view)) => {
                assert_eq!(view.size_bytes, 0, "the end of an exchange has no bytes");
                assert_eq!(
                    view.metadata.agreement,
                    Some(agreement),
                    "the end has the participant's agreement"
                );
                sim.app.summary.parts_left += 1;
                sim.release_later(client, view.copy);
            }
            Ok(Response::Ranges { view, order }) => sim.follow_parts(participant, &view, &order),
            Ok(other) => panic!("a participant is answered with {other:?}"),
            Err(error) => {
                sim.check_end(&participant.target, &error);
                sim.act_later(client);
            }
        };
        self.call(client, request, Some(timeout), Some(Box::new(then)));
    }

    fn follow_parts(&mut self, participant: Participant, view: &ObjectView, order: &[ByteRange]) {
        let (client, copy) = (participant.client, view.copy);
        let counted_bytes: u64 = order.iter().map(|range| range.length_bytes).sum();
        let timeout = participant.deadline.since(self.now());
        let then = move |sim: &mut Self, answer: Answer| match answer {
            Ok(Response::Progress { valid_bytes }) => {
                assert!(valid_bytes >= counted_bytes, "{valid_bytes} of {counted_bytes} bytes");
                sim.app.summary.parts += 1;
                sim.release_later(client, copy);
            }
            Ok(other) => panic!("a follow is answered with {other:?}"),
            Err(Error::Superseded { .. }) if participant.deadline > sim.now() => {
                sim.release(client, copy);
                sim.join_exchange(participant, true);
            }
            Err(error) => {
                sim.release_later(client, copy);
                sim.check_end(&participant.target, &error);
                sim.act_later(client);
            }
        };
        let request =
            Request::Follow { copy, beyond_bytes: counted_bytes.saturating_sub(1), timeout };
        self.call(client, request, Some(timeout), Some(Box::new(then)));
    }

    fn check_end(&self, target: &ObjectId, error: &Error) {
        let exchange = &self.app.exchanges[target];
        let is_expected = match error {
            Error::ObjectLost { id } => id == target || exchange.request.sources.contains(id),
            Error::Deleted { id } | Error::Superseded { id } => id == target,
            Error::AlreadyExists { id } => id == target,
            Error::TypeMismatch { .. } => self.app.scenario.has_mistakes,
            Error::StoreFull { .. } => !self.app.scenario.is_roomy,
            Error::Timeout { .. } => true,
            _ => false,
        };
        assert!(is_expected, "an exchange of {target} is answered with: {error:?}");
    }

    pub(super) fn exchange_member_requested(&mut self, store: usize, plan: &Plan) {
        let exchange = self.app.exchanges.get(&plan.target);
        let Some(PartsCall { kind, store: coordinator, .. }) = exchange else {
            panic!("store {store} asks for members of {plan:?}, without an open call")
        };
        assert_eq!((plan.agreement.kind, store), (*kind, *coordinator), "{plan:?}");
    }

    pub(super) fn member_filled(&mut self, plan: &Plan, pieces: &[Piece]) {
        let Some(PartsCall { kind, request, started, .. }) =
            self.app.exchanges.get(&plan.target).cloned()
        else {
            return;
        };
        let part_bytes = plan.size_bytes / request.sources.len() as u64;
        for rank in 0..request.sources.len() {
            let (start, is_own) =
                (rank as u64 * part_bytes, plan.ranks[plan.index].contains(&rank));
            if is_own == (kind == Collective::Allgather) {
                continue;
            }
            let mut there_bytes = 0;
            for (range, tag, shape) in pieces {
                let (from, to) = (range.start.max(start), range.end.min(start + part_bytes));
                if from >= to {
                    continue;
                }
                there_bytes += to - from;
                let made = ReducedContents { tag: *tag, shape: *shape };
                let is_right = match kind {
                    Collective::Allgather => {
                        let known = self.app.history.contents_of(&request.sources[rank]);
                        known.iter().any(|(known, _)| known == tag)
                    }
                    _ => self.is_reduction(&request, started, made, None),
                };
                assert!(is_right, "part {rank} of {plan:?} is {}", self.contents.describe(*tag));
            }
            assert_eq!(there_bytes, part_bytes, "part {rank} of {plan:?} is complete: {pieces:?}");
        }
        self.app.summary.exchanged += 1;
    }
}
