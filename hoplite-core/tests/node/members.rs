//! Sessions of allreduces: what a member does for a coordinator elsewhere, and what this node decides as a coordinator.

use std::time::Duration;

use hoplite_core::collective::{
    Agreement, CollectiveEffect, CollectiveEvent, EnlistmentId, Failure, Member, MembershipId, Plan, Report,
    Word,
};
use hoplite_core::node::*;
use hoplite_core::plan::collective::{Kind, Schedule};
use hoplite_core::shard::{DropReason, LocationState, PullOutcome, Retention, ToShard, ToStore, Verdict};
use hoplite_core::{Error, PutId};

use crate::harness::*;
use crate::reducing::*;

pub(crate) const PUT: PutId = PutId(900);
pub(crate) const MEMBERSHIP: MembershipId = MembershipId(1);

/// The part of this node in the allreduce of `a`, which is here, and `b`, which is at `n1`.
fn plan(a: PutId) -> Box<Plan> {
    let member = |name: &str| Member { node: node_id(name), address: address(name) };
    Box::new(Plan {
        target: id("t"),
        put: PUT,
        agreement: Agreement::of(Kind::Allreduce, &reduce("t", &["a", "b"])),
        size_bytes: SIZE,
        metadata: f32s(),
        schedule: Schedule::ring(2),
        frame_bytes: 16384,
        members: vec![member("n1"), member("here")],
        ranks: Vec::new(),
        index: 1,
        sources: vec![(id("a"), a)],
        timeout: Duration::from_secs(2),
    })
}

fn join(h: &mut Harness) -> (ClientId, CallId) {
    let agreement = Agreement::of(Kind::Allreduce, &reduce("t", &["a", "b"]));
    h.request(A, Request::Join { target: id("t"), agreement, is_again: false, timeout: LONG })
}

pub(crate) fn collective(h: &mut Harness, event: CollectiveEvent) {
    h.event(Event::Collective(event));
}

pub(crate) fn ask(h: &mut Harness, a: PutId) {
    collective(h, CollectiveEvent::Asked { membership: MEMBERSHIP, plan: plan(a) });
}

pub(crate) fn tell(h: &mut Harness, word: Word) {
    collective(h, CollectiveEvent::Told { membership: MEMBERSHIP, word });
}

pub(crate) fn leave(h: &mut Harness) {
    collective(h, CollectiveEvent::Left { membership: MEMBERSHIP });
}

/// What the node did for sessions since the last look.
pub(crate) fn performed(h: &mut Harness) -> Vec<CollectiveEffect> {
    let effects = std::mem::take(&mut h.effects);
    let performed = effects.into_iter().filter_map(|effect| match effect {
        Effect::Collective(effect) => Some(effect),
        _ => None,
    });
    performed.collect()
}

pub(crate) fn reports(h: &mut Harness) -> Vec<Report> {
    let reports = performed(h).into_iter().filter_map(|effect| match effect {
        CollectiveEffect::Report { report, .. } => Some(report),
        _ => None,
    });
    reports.collect()
}

/// The exchange that the node has started since the last look.
pub(crate) fn exchange(h: &mut Harness) -> CombineId {
    let started = performed(h).into_iter().find_map(|effect| match effect {
        CollectiveEffect::StartExchange { combine, .. } => Some(combine),
        _ => None,
    });
    started.expect("an exchange was started")
}

pub(crate) fn end(h: &mut Harness, combine: CombineId, outcome: CombineOutcome) {
    let valid_bytes = if outcome == CombineOutcome::Complete { SIZE } else { 0 };
    h.event(Event::CombineEnded { combine, valid_bytes, outcome });
}

#[test]
fn a_member_completes_its_copy_only_on_the_word_of_the_coordinator() {
    let mut h = Harness::new();
    let a = h.put_f32("a", SIZE);
    let joined = join(&mut h);
    ask(&mut h, a.put);
    let (combine, view) = (exchange(&mut h), h.view(joined));
    collective(&mut h, CollectiveEvent::Filled { combine });
    assert_eq!(reports(&mut h), [Report::Filled]);
    tell(&mut h, Word::Commit);
    assert!(h.effects.contains(&Effect::CopyCompleted { copy: view.copy }));
    end(&mut h, combine, CombineOutcome::Complete);
    leave(&mut h);
    assert_eq!(h.node.status().hops, 0);
}

#[test]
fn a_member_without_room_waits_for_it_and_refuses_in_the_end() {
    let mut h = Harness::new();
    // The source could be evicted, but for being the source.
    let a = h.fetch(A, "a", 5, SIZE);
    let held: Vec<_> = (0..9).map(|number| h.put_held(B, &format!("x{number}"), SIZE)).collect();
    ask(&mut h, a.put);
    assert_eq!(reports(&mut h), []);
    h.pass(Duration::from_secs(3));
    let said = reports(&mut h);
    assert!(matches!(said[..], [Report::Failed(Failure::Refused(Error::StoreFull { .. }))]), "{said:?}");
    leave(&mut h);
    assert!(h.node.status().evictable_bytes > 0 && held.len() == 9, "the source is still there");
}

#[test]
fn a_member_with_nothing_to_give_any_more_says_so_to_those_who_ask() {
    let mut h = Harness::new();
    let a = h.put_f32("a", SIZE);
    let early = h.ask_to_serve(id("t"), PUT, true);
    assert!(!h.is_served(early) && !h.is_refused(early), "the plan may be on its way");
    ask(&mut h, a.put);
    assert!(h.is_served(early));
    let combine = exchange(&mut h);
    let outcome = CombineOutcome::InputFailed { index: 0, outcome: PullOutcome::SenderUnreachable };
    end(&mut h, combine, outcome);
    let failure = Failure::Peer { index: 0, outcome: PullOutcome::SenderUnreachable };
    assert_eq!(reports(&mut h), [Report::Failed(failure)]);
    let late = h.ask_to_serve(id("t"), PUT, true);
    assert!(h.is_refused(late), "it has failed");
    leave(&mut h);
    let later = h.ask_to_serve(id("t"), PUT, true);
    assert!(h.is_refused(later), "it was left");
    let of_another = h.ask_to_serve(id("t"), PutId(901), true);
    assert!(!h.is_refused(of_another), "the next attempt may begin");
}

#[test]
fn those_who_wait_for_a_member_that_cannot_begin_are_told() {
    let mut h = Harness::new();
    let early = h.ask_to_serve(id("t"), PUT, true);
    ask(&mut h, PutId(77));
    assert!(h.is_refused(early));
    let said = reports(&mut h);
    assert!(matches!(said[..], [Report::Failed(Failure::Refused(Error::ObjectLost { .. }))]), "{said:?}");
    leave(&mut h);
}

#[test]
fn a_target_that_is_deleted_while_a_member_makes_it_fails_there() {
    let mut h = Harness::new();
    let a = h.put_f32("a", SIZE);
    let joined = join(&mut h);
    ask(&mut h, a.put);
    let (combine, view) = (exchange(&mut h), h.view(joined));
    tell(&mut h, Word::Commit);
    tell(&mut h, Word::Stop(Error::Superseded { id: id("t") }));
    assert!(!h.is_failed(view.copy), "what was decided stands");
    tell(&mut h, Word::Stop(Error::Deleted { id: id("t") }));
    assert!(h.is_failed(view.copy));
    leave(&mut h);
    end(&mut h, combine, CombineOutcome::Cancelled);
    assert_eq!(h.node.status().hops, 0);
}

/// This node has `a` and coordinates; `n1` has `b`. Answers the call, the two members, the exchange here, and its put.
fn coordinate(h: &mut Harness) -> ((ClientId, CallId), [EnlistmentId; 2], CombineId, PutId) {
    coordinate_a(h, Kind::Allreduce)
}

/// As [`coordinate`], of any collective.
pub(crate) fn coordinate_a(
    h: &mut Harness,
    kind: Kind,
) -> ((ClientId, CallId), [EnlistmentId; 2], CombineId, PutId) {
    let a = h.put_f32("a", SIZE);
    let call = h.request(A, Request::Collective(kind, reduce("t", &["a", "b"])));
    for (shard, message) in h.sent() {
        let ToShard::Subscribe { request, id: object } = message else { continue };
        let locations = match object.to_string().as_str() {
            "a" => located("a", a.put.0, LocationState::Complete, &["here"]),
            "b" => located("b", 8, LocationState::Complete, &["n1"]),
            _ => hoplite_core::shard::Locations { id: object, object: None, locations: Vec::new() },
        };
        h.event(Event::FromShard { shard, message: ToStore::Locations { request, locations } });
    }
    let plans: Vec<(EnlistmentId, Box<Plan>)> = performed(h)
        .into_iter()
        .map(|effect| match effect {
            CollectiveEffect::Enlist { enlistment, plan } => (enlistment, plan),
            other => panic!("{other:?}"),
        })
        .collect();
    let [(own, plan), (other, _)] = plans.try_into().expect("there are two members");
    let put = plan.put;
    collective(h, CollectiveEvent::Asked { membership: MEMBERSHIP, plan });
    let combine = exchange(h);
    (call, [own, other], combine, put)
}

/// The member here fails after the other one has all bytes.
fn fail_after_commit(h: &mut Harness) -> ((ClientId, CallId), EnlistmentId, PutId) {
    let (call, [own, other], combine, put) = coordinate(h);
    collective(h, CollectiveEvent::Reported { enlistment: other, report: Report::Filled });
    let outcome = PullOutcome::SenderHasNoCopy;
    end(h, combine, CombineOutcome::InputFailed { index: 1, outcome });
    let report = Report::Failed(Failure::Peer { index: 1, outcome });
    collective(h, CollectiveEvent::Reported { enlistment: own, report });
    (call, other, put)
}

#[test]
fn a_coordinator_whose_own_part_fails_after_its_word_gets_the_target_and_keeps_it() {
    let mut h = Harness::new();
    let (call, other, put) = fail_after_commit(&mut h);
    h.assert_waits(call);
    let pull = h.grant_f32("t", put.0);
    h.pull_ended(&pull, SIZE, PullOutcome::Complete);
    h.assert_waits(call);
    let published = h.publications().pop().map(|(shard, publish)| (shard, publish.retention, publish));
    let Some((shard, Retention::Pinned, publish)) = published else { panic!("it is pinned: {published:?}") };
    h.verdict(shard, &publish, Verdict::Accepted);
    assert_eq!(h.answer(call), Some(Ok(Response::Reduced { indices: vec![0, 1] })));
    assert!(h.node.reduce_record(&id("t")).is_some_and(|record| record.plan.starts_with("ring of 2")));
    assert!(performed(&mut h).contains(&CollectiveEffect::Dismiss { enlistment: other }));
    leave(&mut h);
    assert_eq!((h.node.status().reductions, h.node.status().hops), (0, 0));
}

#[test]
fn a_coordinator_answers_that_the_target_is_lost_if_it_is_while_it_gets_it() {
    for is_told_by_directory in [true, false] {
        let mut h = Harness::new();
        let (call, other, put) = fail_after_commit(&mut h);
        h.assert_waits(call);
        if is_told_by_directory {
            let (shard, query) = h.query_of("t");
            assert_eq!(
                query.resume,
                Some(put),
                "if that one is deleted already, there is nothing to wait for"
            );
            let message =
                ToStore::Failed { request: query.request, error: Error::ObjectLost { id: id("t") } };
            h.event(Event::FromShard { shard, message });
        } else {
            let report = Report::Failed(Failure::Unreachable);
            collective(&mut h, CollectiveEvent::Reported { enlistment: other, report });
        }
        assert_eq!(h.error(call), Error::ObjectLost { id: id("t") });
        leave(&mut h);
        assert_eq!((h.node.status().reductions, h.node.status().hops), (0, 0));
    }
}

#[test]
fn a_coordinator_whose_client_goes_away_gets_nothing_more() {
    let mut h = Harness::new();
    let (_, other, _) = fail_after_commit(&mut h);
    h.gone(A);
    assert!(performed(&mut h).contains(&CollectiveEffect::Dismiss { enlistment: other }));
    leave(&mut h);
    assert_eq!((h.node.status().reductions, h.node.status().hops), (0, 0));
}

#[test]
fn a_coordinator_whose_target_is_deleted_stops_those_who_still_make_it() {
    let mut h = Harness::new();
    let (call, [own, other], combine, _) = coordinate(&mut h);
    collective(&mut h, CollectiveEvent::Filled { combine });
    collective(&mut h, CollectiveEvent::Reported { enlistment: own, report: Report::Filled });
    end(&mut h, combine, CombineOutcome::Complete);
    let (shard, publish) = h.publication();
    h.verdict(shard, &publish, Verdict::Accepted);
    assert!(matches!(h.answer(call), Some(Ok(Response::Reduced { .. }))));
    h.drop_put(shard, "t", publish.put, DropReason::Deleted);
    let stop = CollectiveEffect::Tell { enlistment: other, word: Word::Stop(Error::Deleted { id: id("t") }) };
    assert!(performed(&mut h).contains(&stop));
    leave(&mut h);
}

#[test]
fn a_session_is_in_the_order_of_the_groups_of_its_members() {
    let mut h = Harness::new();
    let a = h.put_f32("a", SIZE);
    h.request(A, Request::Collective(Kind::Allreduce, reduce("t", &["a", "b", "c", "d"])));
    for (shard, message) in h.sent() {
        let ToShard::Subscribe { request, id: object } = message else { continue };
        let (put, node, rack) = match object.to_string().as_str() {
            "a" => (a.put.0, "here", 1),
            "b" => (8, "n1", 2),
            "c" => (9, "n2", 1),
            "d" => (10, "n3", 2),
            _ => (0, "", 0),
        };
        let name = object.to_string();
        let mut locations = if put == 0 { unknown(&name) } else { complete(&name, put, &[node]) };
        for location in &mut locations.locations {
            location.path = [0, 0, rack, 0];
        }
        h.event(Event::FromShard { shard, message: ToStore::Locations { request, locations } });
    }
    let order: Vec<Vec<String>> = performed(&mut h)
        .into_iter()
        .filter_map(|effect| match effect {
            CollectiveEffect::Enlist { plan, .. } => Some(plan.members),
            _ => None,
        })
        .map(|members| members.iter().map(|member| member.node.to_string()).collect())
        .collect();
    assert_eq!(order, [["here", "n2", "n1", "n3"]; 4]);
}
