//! Two machines exchange messages, without stores.

use std::time::Duration;

use super::*;
use crate::error::Error;
use crate::id::{NodeId, PutId};
use crate::plan::collective::{Collective, SchedulePreference};
use crate::shard::{Location, LocationState, Locations, ObjectSummary, RequestId, Retention};
use crate::vocabulary::local::{CallId, CallKey, ClientId, CombineId, CopyId};
use crate::vocabulary::number::Numbers;
use crate::vocabulary::reduce::{Reduce, ReduceOrder};
use crate::{Dtype, Metadata};

const KEY: CallKey = CallKey::of(ClientId(1), CallId(1));
const SIZE: u64 = 1 << 20;
const EXISTENCE: RequestId = RequestId(100);
const COPY: CopyId = CopyId(7);
const EXCHANGE: CombineId = CombineId(8);

fn id(name: &str) -> ObjectId {
    ObjectId::new(name).unwrap()
}

fn lost() -> Error {
    Error::ObjectLost { id: id("t") }
}

fn request() -> Reduce {
    Reduce {
        target: id("t"),
        sources: vec![id("a"), id("b")],
        count: 2,
        op: crate::reduce::ReduceOp::Sum,
        order: ReduceOrder::Any,
        range: None,
        replicas: 0,
        timeout: Duration::from_secs(9),
    }
}

struct Store {
    machine: Collectives,
    node: NodeId,
    numbers: Numbers,
    outbox: Outbox,
    now: Time,
}

impl Store {
    fn new(name: &str, seed: u64) -> Self {
        let node = NodeId::new(name).unwrap();
        let (machine, numbers, outbox) =
            (Collectives::default(), Numbers::new(seed), Outbox::default());
        Self { machine, node, numbers, outbox, now: Time::ZERO }
    }

    fn feed(&mut self, event: impl FnOnce(&mut Collectives, &mut Context<'_>)) -> Vec<Action> {
        let Self { machine, node, numbers, outbox, now } = self;
        let (link, preference) = (LinkEstimate::default(), SchedulePreference::Auto);
        let mut ctx = Context { now: *now, node, link, preference, numbers, outbox };
        event(machine, &mut ctx);
        std::iter::from_fn(|| machine.next_action(&mut ctx)).collect()
    }

    /// Coordinates a collective of source `a` here and source `b` at `n1`.
    fn coordinate(&mut self, kind: Collective) -> Vec<Action> {
        let source_queries = vec![RequestId(101), RequestId(102)];
        let mut actions = self.feed(|machine, ctx| {
            machine.coordinator.coordinate(ctx, KEY, (kind, request()), EXISTENCE, source_queries)
        });
        for (index, (name, node)) in [("a", "here"), ("b", "n1")].into_iter().enumerate() {
            let located = |machine: &mut Collectives, ctx: &mut Context<'_>| {
                assert_eq!(
                    machine.coordinator.source_located(ctx, &id("t"), index, located(name, node)),
                    None
                );
            };
            actions.extend(self.feed(located));
        }
        let unknown = Locations { id: id("t"), object: None, locations: Vec::new() };
        actions.extend(
            self.feed(|machine, ctx| assert!(machine.coordinator.target_located(ctx, &unknown))),
        );
        actions
    }

    fn filled(&mut self) -> Vec<Action> {
        self.feed(|machine, ctx| machine.apply(ctx, CollectiveEvent::Filled { combine: EXCHANGE }))
    }
}

fn located(name: &str, node: &str) -> Locations {
    let location = Location {
        node: NodeId::new(node).unwrap(),
        data_address: "127.0.0.1:1".parse().unwrap(),
        state: LocationState::Complete,
        retention: Retention::Pinned,
        pulling_from: None,
        path: [0; 4],
        slow_peers: Vec::new(),
    };
    let metadata = Metadata { dtype: Dtype::F32, ..Metadata::default() };
    let object = ObjectSummary {
        put: PutId(1),
        size_bytes: SIZE,
        metadata,
        inline: false,
        lost: false,
        origin: None,
    };
    Locations { id: id(name), object: Some(object), locations: vec![location] }
}

/// Returns the store, its own member, and the member at `n1` with its plan.
fn coordinated(kind: Collective) -> (Store, MembershipId, EnlistmentId, Box<Plan>) {
    let mut store = Store::new("here", 1);
    let actions = store.coordinate(kind);
    let [
        Action::Withdraw(RequestId(101)),
        Action::Withdraw(RequestId(102)),
        Action::Perform(CollectiveEffect::Enlist { enlistment, plan }),
        Action::Open(membership),
    ] = &actions[..]
    else {
        panic!("the other store is asked, and this one begins: {actions:?}")
    };
    let (membership, enlistment, plan) = (*membership, *enlistment, plan.clone());
    assert_eq!(
        store.machine.members.awaits_space(membership).map(|own| own.attempt),
        Some(plan.attempt)
    );
    assert_eq!(
        store
            .feed(|machine, ctx| machine.members.exchange_started(ctx, membership, COPY, EXCHANGE)),
        []
    );
    (store, membership, enlistment, plan)
}

#[test]
fn the_coordinators_member_completes_the_target_before_the_commit_is_sent() {
    let (mut store, _, enlistment, _) = coordinated(Collective::Allreduce);
    let actions = store.filled();
    let [
        Action::Withdraw(EXISTENCE),
        Action::Remember(record),
        Action::CompleteTarget(COPY, Some((KEY, 2))),
        Action::Perform(CollectiveEffect::Tell {
            enlistment: committed,
            decision: Decision::Commit,
        }),
    ] = &actions[..]
    else {
        panic!("{actions:?}")
    };
    assert_eq!((record.hops, *committed), (2, enlistment));
}

#[test]
fn a_store_frees_its_copy_of_parts_before_it_announces_the_end() {
    let (mut store, membership, enlistment, _) = coordinated(Collective::ReduceScatter);
    assert_eq!(store.filled(), [Action::Answer(KEY, Ok(2))]);
    let referred = store.feed(|machine, ctx| machine.members.answered(ctx, membership));
    assert_eq!(referred, [], "the other member has not reported");
    let report = CollectiveEvent::Reported { enlistment, report: Report::Filled };
    let actions = store.feed(|machine, ctx| machine.apply(ctx, report));
    let at =
        |predicate: fn(&Action) -> bool| actions.iter().position(predicate).expect("it is done");
    let ended = at(|action| matches!(action, Action::EndMember { copy: Some(COPY), .. }));
    let announced = at(|action| matches!(action, Action::Announce(..)));
    assert!(ended < announced, "{actions:?}");
    assert!(actions.contains(&Action::Cancel(EXCHANGE)));
}

#[test]
fn an_attempt_ends_at_both_stores() {
    let (mut store, _, _, plan) = coordinated(Collective::Allreduce);
    let mut other = Store::new("n1", 2);
    let asked = |plan: &Plan| CollectiveEvent::Asked {
        membership: MembershipId::Elsewhere(1),
        plan: Box::new(plan.clone()),
    };
    let opened = other.feed(|machine, ctx| machine.apply(ctx, asked(&plan)));
    assert_eq!(opened, [Action::Open(MembershipId::Elsewhere(1))]);
    let actions = store
        .feed(|machine, ctx| machine.coordinator.call_ended(ctx, KEY, &id("t"), Some(&lost())));
    let fails = |actions: &[Action]| {
        let fail = Action::FailParticipants(id("t"), None, lost());
        actions.iter().filter(|action| **action == fail).count()
    };
    assert!(fails(&actions) > 0, "{actions:?}");
    let rejected = actions.iter().find_map(|action| match action {
        Action::Perform(CollectiveEffect::Reject { target, attempt, error, .. }) => {
            let (target, error) = (target.clone(), error.clone());
            Some(CollectiveEvent::Rejected { target, attempt: *attempt, error })
        }
        _ => None,
    });
    let rejected = rejected.expect("the other store is told");
    assert!(fails(&other.feed(|machine, ctx| machine.apply(ctx, rejected.clone()))) > 0);
    assert_eq!(other.feed(|machine, ctx| machine.apply(ctx, rejected)), [], "it knows that");
    let again = CollectiveEvent::Asked { membership: MembershipId::Elsewhere(2), plan };
    let actions = other.feed(|machine, ctx| machine.apply(ctx, again));
    let refused = Failure::Refused(Error::Superseded { id: id("t") });
    let report = CollectiveEffect::Report {
        membership: MembershipId::Elsewhere(2),
        report: Report::Failed(refused),
    };
    assert_eq!(actions, [Action::Perform(report)]);
}

#[test]
fn participants_of_a_later_attempt_outlive_the_loss_of_an_earlier_coordinator() {
    #[derive(Debug, PartialEq)]
    enum Later {
        Never,
        After,
        Before,
    }
    for later in [Later::Never, Later::After, Later::Before] {
        let (_, _, _, plan) = coordinated(Collective::Allreduce);
        let mut other = Store::new("n1", 2);
        let [first, second] = [1, 2].map(MembershipId::Elsewhere);
        let mut apply = |event| other.feed(|machine, ctx| machine.apply(ctx, event));
        apply(CollectiveEvent::Asked { membership: first, plan: plan.clone() });
        if later != Later::Before {
            apply(CollectiveEvent::Left { membership: first });
        }
        if later != Later::Never {
            let attempt = AttemptId { run: plan.attempt.run + 1, number: 1 };
            let later = Plan { attempt, put: PutId(77), ..(*plan).clone() };
            let opened =
                apply(CollectiveEvent::Asked { membership: second, plan: Box::new(later) });
            assert_eq!(opened, [Action::Open(second)]);
            apply(CollectiveEvent::Left { membership: first });
            let decision = Decision::Stop(Error::Superseded { id: id("t") });
            apply(CollectiveEvent::Told { membership: second, decision });
            apply(CollectiveEvent::Left { membership: second });
        }
        for (seconds, is_late) in [(4, false), (5, true), (60, false)] {
            other.now = Time::ZERO + Duration::from_secs(seconds);
            let rejected = [Action::RejectOrphan(id("t"), plan.attempt)];
            let expected = if is_late && later == Later::Never { &rejected[..] } else { &[] };
            assert_eq!(
                other.feed(|machine, ctx| machine.expire(ctx)),
                expected,
                "{later:?} {seconds}"
            );
        }
    }
}

#[test]
fn a_failed_search_rejects_its_participants() {
    let mut store = Store::new("here", 1);
    let source_queries = vec![RequestId(101), RequestId(102)];
    let kind = Collective::Allreduce;
    store.feed(|machine, ctx| {
        machine.coordinator.coordinate(ctx, KEY, (kind, request()), EXISTENCE, source_queries)
    });
    store.feed(|machine, ctx| {
        drop(machine.coordinator.source_located(ctx, &id("t"), 1, located("b", "n1")))
    });
    let error = Error::AlreadyExists { id: id("t") };
    let actions = store
        .feed(|machine, ctx| assert!(machine.coordinator.target_located(ctx, &located("t", "n2"))));
    assert!(actions.ends_with(&[Action::Answer(KEY, Err(error.clone()))]), "{actions:?}");
    let actions =
        store.feed(|machine, ctx| machine.coordinator.call_ended(ctx, KEY, &id("t"), Some(&error)));
    let is_rejected = |action: &Action| match action {
        Action::Perform(CollectiveEffect::Reject { node, error: rejection, .. }) => {
            node.as_str() == "n1" && *rejection == error
        }
        _ => false,
    };
    assert!(actions.iter().any(is_rejected), "{actions:?}");
}
