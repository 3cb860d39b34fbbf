use std::time::Duration;

use hoplite_core::collective::{
    Agreement, AttemptId, CollectiveEffect, CollectiveEvent, Decision, EnlistmentId, Failure,
    Member, MembershipId, Plan, Report,
};
use hoplite_core::node::*;
use hoplite_core::plan::collective::{Collective, Schedule};
use hoplite_core::shard::{
    DropReason, LocationState, PullOutcome, Retention, ToShard, ToStore, Verdict,
};
use hoplite_core::{Error, PutId, Time};

use crate::harness::*;
use crate::reducing::*;

pub(crate) const PUT: PutId = PutId(900);
pub(crate) const ATTEMPT: AttemptId = attempt(50);

pub(crate) const fn attempt(number: u64) -> AttemptId {
    AttemptId { run: 1, number }
}

pub(crate) const MEMBERSHIP: MembershipId = MembershipId::Elsewhere(1);

/// Plan with source `a` at this node and `b` at `n1`.
pub(crate) fn plan(a: PutId) -> Box<Plan> {
    let member = |name: &str| Member { node: node_id(name), address: address(name) };
    Box::new(Plan {
        target: id("t"),
        attempt: ATTEMPT,
        put: PUT,
        agreement: Agreement::of(Collective::Allreduce, &reduce("t", &["a", "b"])),
        size_bytes: SIZE,
        metadata: f32s(),
        schedule: Schedule::ring(2),
        frame_bytes: 16384,
        members: vec![member("n1"), member("here")],
        ranks: Vec::new(),
        index: 1,
        sources: vec![(id("a"), a)],
        timeout: Duration::from_secs(2),
        explanation: "as it was planned".to_owned(),
    })
}

pub(crate) fn join(h: &mut Harness) -> (ClientId, CallId) {
    let agreement = Agreement::of(Collective::Allreduce, &reduce("t", &["a", "b"]));
    let (target, is_again, source_bytes) = (id("t"), false, SIZE);
    h.request(A, Request::Join { target, agreement, is_again, source_bytes, timeout: LONG })
}

pub(crate) fn collective(h: &mut Harness, event: CollectiveEvent) {
    h.event(Event::Collective(event));
}

pub(crate) fn ask(h: &mut Harness, a: PutId) {
    collective(h, CollectiveEvent::Asked { membership: MEMBERSHIP, plan: plan(a) });
}

pub(crate) fn tell(h: &mut Harness, decision: Decision) {
    collective(h, CollectiveEvent::Told { membership: MEMBERSHIP, decision });
}

pub(crate) fn leave(h: &mut Harness) {
    collective(h, CollectiveEvent::Left { membership: MEMBERSHIP });
}

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
    assert_eq!(reports(&mut h), []);
    tell(&mut h, Decision::Commit);
    assert!(h.effects.contains(&Effect::CopyCompleted { copy: view.copy }));
    assert_eq!(reports(&mut h), [Report::Filled], "somebody still takes from it");
    end(&mut h, combine, CombineOutcome::Complete);
    assert_eq!(reports(&mut h), [Report::Done]);
    leave(&mut h);
    assert_eq!(h.node.status().hops, 0);
}

#[test]
fn a_member_is_done_when_it_has_given_all_and_was_told_that_this_counts() {
    for is_told_first in [false, true] {
        let mut h = Harness::new();
        let a = h.put_f32("a", SIZE);
        ask(&mut h, a.put);
        let combine = exchange(&mut h);
        if is_told_first {
            tell(&mut h, Decision::Commit);
        }
        collective(&mut h, CollectiveEvent::Filled { combine });
        end(&mut h, combine, CombineOutcome::Complete);
        if !is_told_first {
            assert_eq!(reports(&mut h), []);
            tell(&mut h, Decision::Commit);
        }
        assert_eq!(reports(&mut h).last(), Some(&Report::Done));
        leave(&mut h);
        assert_eq!(h.node.status().hops, 0);
    }
}

#[test]
fn a_member_that_has_left_does_not_take_part_again() {
    for has_left in [false, true] {
        let mut h = Harness::new();
        let a = h.put_f32("a", SIZE);
        ask(&mut h, a.put);
        let combine = exchange(&mut h);
        if has_left {
            leave(&mut h);
            end(&mut h, combine, CombineOutcome::Cancelled);
        }
        let again = MembershipId::Elsewhere(2);
        collective(&mut h, CollectiveEvent::Asked { membership: again, plan: plan(a.put) });
        let said = reports(&mut h);
        assert!(
            matches!(said[..], [Report::Failed(Failure::Refused(Error::Superseded { .. }))]),
            "{said:?}"
        );
        collective(&mut h, CollectiveEvent::Left { membership: again });
        assert_eq!(h.node.status().hops, usize::from(!has_left), "the first one goes on");
    }
}

/// Target so small that participants copy it only when complete.
const SMALL: u64 = 32 << 10;

pub(crate) fn asked_for_a_small_target(h: &mut Harness) -> ((ClientId, CallId), CombineId) {
    let a = h.put_f32("a", SMALL);
    let joined = join(h);
    let plan = Box::new(Plan { size_bytes: SMALL, ..*plan(a.put) });
    collective(h, CollectiveEvent::Asked { membership: MEMBERSHIP, plan });
    (joined, exchange(h))
}

#[test]
fn a_participant_hears_of_a_small_target_when_it_is_complete() {
    let mut h = Harness::new();
    let (joined, combine) = asked_for_a_small_target(&mut h);
    collective(&mut h, CollectiveEvent::Filled { combine });
    h.event(Event::CombineEnded { combine, valid_bytes: SMALL, outcome: CombineOutcome::Complete });
    h.assert_waits(joined);
    tell(&mut h, Decision::Commit);
    assert_eq!(h.view(joined).size_bytes, SMALL);
    leave(&mut h);
}

#[test]
fn a_participant_whose_small_target_is_given_up_gets_it_from_elsewhere() {
    let mut h = Harness::new();
    let (joined, combine) = asked_for_a_small_target(&mut h);
    h.event(Event::CombineEnded { combine, valid_bytes: 0, outcome: CombineOutcome::Cancelled });
    h.assert_waits(joined);
    assert_eq!(h.query_of("t").1.resume, None);
    leave(&mut h);
}

#[test]
fn a_participant_that_expects_a_session_asks_the_directory_only_after_a_while() {
    for source_bytes in [SIZE, 32 << 10] {
        let mut h = Harness::new();
        h.put_f32("a", SIZE);
        h.sent();
        let agreement = Agreement::of(Collective::Allreduce, &reduce("t", &["a", "b"]));
        let (target, is_again) = (id("t"), false);
        let request = Request::Join { target, agreement, is_again, source_bytes, timeout: LONG };
        let joined = h.request(A, request);
        if source_bytes == SIZE {
            h.pass(Duration::from_millis(9));
            assert_eq!(h.told(), [""; 0]);
            h.pass(Duration::from_millis(1));
        }
        h.query_of("t");
        h.assert_waits(joined);
    }
}

#[test]
fn a_member_without_room_waits_for_it_and_refuses_in_the_end() {
    let mut h = Harness::new();
    let a = h.fetch(A, "a", 5, SIZE);
    let held: Vec<_> = (0..9).map(|number| h.put_held(B, &format!("x{number}"), SIZE)).collect();
    ask(&mut h, a.put);
    assert_eq!(reports(&mut h), []);
    h.pass(Duration::from_secs(3));
    let said = reports(&mut h);
    assert!(
        matches!(said[..], [Report::Failed(Failure::Refused(Error::StoreFull { .. }))]),
        "{said:?}"
    );
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
    assert!(
        matches!(said[..], [Report::Failed(Failure::Refused(Error::ObjectLost { .. }))]),
        "{said:?}"
    );
    leave(&mut h);
}

#[test]
fn a_target_that_is_deleted_while_a_member_makes_it_fails_there() {
    let mut h = Harness::new();
    let a = h.put_f32("a", SIZE);
    let joined = join(&mut h);
    ask(&mut h, a.put);
    let (combine, view) = (exchange(&mut h), h.view(joined));
    tell(&mut h, Decision::Commit);
    tell(&mut h, Decision::Stop(Error::Superseded { id: id("t") }));
    assert!(!h.is_failed(view.copy), "what was decided stands");
    tell(&mut h, Decision::Stop(Error::Deleted { id: id("t") }));
    assert!(h.is_failed(view.copy));
    leave(&mut h);
    end(&mut h, combine, CombineOutcome::Cancelled);
    assert_eq!(h.node.status().hops, 0);
}

pub(crate) fn coordinate(h: &mut Harness) -> ((ClientId, CallId), EnlistmentId, CombineId) {
    coordinate_a(h, Collective::Allreduce)
}

pub(crate) fn coordinate_a(
    h: &mut Harness,
    kind: Collective,
) -> ((ClientId, CallId), EnlistmentId, CombineId) {
    let (call, enlistment, combine, _) = coordinate_attempt(h, kind);
    (call, enlistment, combine)
}

pub(crate) fn coordinate_attempt(
    h: &mut Harness,
    kind: Collective,
) -> ((ClientId, CallId), EnlistmentId, CombineId, AttemptId) {
    let a = h.put_f32("a", SIZE);
    let call = h.request(A, Request::Collective(kind, reduce("t", &["a", "b"])));
    for (shard, message) in h.sent() {
        let ToShard::Subscribe { request, id: object, .. } = message else { continue };
        let locations = match object.to_string().as_str() {
            "a" => located("a", a.put.0, LocationState::Complete, &["here"]),
            "b" => located("b", 8, LocationState::Complete, &["n1"]),
            _ => hoplite_core::shard::Locations { id: object, object: None, locations: Vec::new() },
        };
        h.event(Event::FromShard { shard, message: ToStore::Locations { request, locations } });
    }
    let begun = performed(h);
    let [
        CollectiveEffect::Enlist { enlistment, plan },
        CollectiveEffect::StartExchange { combine, .. },
    ] = &begun[..]
    else {
        panic!("the other one is asked, and this one begins: {begun:?}")
    };
    assert_eq!(plan.members[plan.index].node, node_id("n1"));
    (call, *enlistment, *combine, plan.attempt)
}

#[test]
fn an_allreduce_waits_for_the_last_source_and_who_want_parts_do_not() {
    for kind in [Collective::Allreduce, Collective::ReduceScatter, Collective::Allgather] {
        let mut h = Harness::new();
        let a = h.put_f32("a", SIZE);
        let call = h.request(A, Request::Collective(kind, reduce("t", &["a", "b"])));
        let mut late = Vec::new();
        for (shard, message) in h.sent() {
            let ToShard::Subscribe { request, id: object, .. } = message else { continue };
            let mut tell = |locations| {
                h.event(Event::FromShard {
                    shard,
                    message: ToStore::Locations { request, locations },
                });
            };
            match object.to_string().as_str() {
                "a" => tell(located("a", a.put.0, LocationState::Complete, &["here"])),
                "b" => late.push((shard, request)),
                name => tell(unknown(name)),
            }
        }
        h.pass(LONG / 2);
        let how = h.node.how_made(&id("t"), Time::ZERO).map(|how| how.plan);
        if kind != Collective::Allreduce {
            assert_eq!(
                how.as_deref(),
                Some("general path: not all sources came in time"),
                "{kind:?}"
            );
            continue;
        }
        assert_eq!(how.as_deref(), Some("no plan yet: waits for the sources b"));
        h.assert_waits(call);
        assert_eq!(performed(&mut h), []);
        for (shard, request) in late {
            let locations = located("b", 8, LocationState::Complete, &["n1"]);
            h.event(Event::FromShard { shard, message: ToStore::Locations { request, locations } });
        }
        assert!(
            matches!(&performed(&mut h)[..], [CollectiveEffect::Enlist { .. }, _]),
            "it begins"
        );
    }
}

#[test]
fn more_than_256_members_do_without_a_session() {
    for members in [256, 257] {
        let mut h = Harness::new();
        let a = h.put_f32("s0", SIZE);
        let sources: Vec<String> = (0..members).map(|rank| format!("s{rank}")).collect();
        let sources: Vec<&str> = sources.iter().map(String::as_str).collect();
        h.request(A, Request::Collective(Collective::Allreduce, reduce("t", &sources)));
        for (shard, message) in h.sent() {
            let ToShard::Subscribe { request, id: object, .. } = message else { continue };
            let locations = match object.to_string().as_str() {
                "t" => unknown("t"),
                "s0" => located("s0", a.put.0, LocationState::Complete, &["here"]),
                source => {
                    located(source, 8, LocationState::Complete, &[&format!("n{}", &source[1..])])
                }
            };
            h.event(Event::FromShard { shard, message: ToStore::Locations { request, locations } });
        }
        let asked = performed(&mut h)
            .into_iter()
            .filter(|it| matches!(it, CollectiveEffect::Enlist { .. }));
        assert_eq!(asked.count(), if members > 256 { 0 } else { members - 1 });
        let plan = h.node.how_made(&id("t"), Time::ZERO).map_or(String::new(), |how| how.plan);
        assert_eq!(
            plan.starts_with("no session, since there are too many members"),
            members > 256,
            "{plan}"
        );
    }
}

#[test]
fn a_coordinator_decides_when_its_own_member_has_all_bytes() {
    let mut h = Harness::new();
    let (call, other, combine) = coordinate(&mut h);
    collective(&mut h, CollectiveEvent::Filled { combine });
    let commit = CollectiveEffect::Tell { enlistment: other, decision: Decision::Commit };
    assert_eq!(performed(&mut h), [commit]);
    h.assert_waits(call);
    let (shard, publish) = h.publication();
    assert_eq!((&publish.id, publish.retention), (&id("t"), Retention::Pinned));
    h.verdict(shard, &publish, Verdict::Accepted);
    assert_eq!(h.answer(call), Some(Ok(Response::Reduced { indices: vec![0, 1] })));
    assert!(
        h.node.reduce_record(&id("t")).is_some_and(|record| record.plan.starts_with("ring of 2"))
    );
    end(&mut h, combine, CombineOutcome::Complete);
    collective(&mut h, CollectiveEvent::Reported { enlistment: other, report: Report::Done });
    assert_eq!(performed(&mut h), [], "nobody has to be told a thing");
    assert_eq!((h.node.status().reductions, h.node.status().hops), (0, 0));
}

#[test]
fn a_member_that_still_gives_is_let_go_when_all_have_all_bytes() {
    let mut h = Harness::new();
    let (_, other, combine) = coordinate(&mut h);
    collective(&mut h, CollectiveEvent::Filled { combine });
    performed(&mut h);
    collective(&mut h, CollectiveEvent::Reported { enlistment: other, report: Report::Filled });
    assert!(
        h.effects.contains(&Effect::CancelCombine { combine }),
        "nobody takes from this one either"
    );
    assert_eq!(performed(&mut h), [CollectiveEffect::Dismiss { enlistment: other }]);
    end(&mut h, combine, CombineOutcome::Complete);
    assert_eq!((h.node.status().reductions, h.node.status().hops), (0, 0));
}

#[test]
fn a_coordinator_whose_own_member_fails_before_its_word_does_without_a_session() {
    let mut h = Harness::new();
    let (call, other, combine) = coordinate(&mut h);
    let outcome = PullOutcome::SenderHasNoCopy;
    end(&mut h, combine, CombineOutcome::InputFailed { index: 1, outcome });
    let decision = Decision::Stop(Error::Superseded { id: id("t") });
    assert_eq!(performed(&mut h), [CollectiveEffect::Tell { enlistment: other, decision }]);
    h.assert_waits(call);
    assert_eq!((h.node.status().reductions, h.node.status().hops), (1, 0), "it is a reduce now");
    h.gone(A);
    assert_eq!(h.node.status().reductions, 0);
}

#[test]
fn a_coordinator_whose_client_goes_away_ends_what_is_not_decided() {
    for is_decided in [false, true] {
        let mut h = Harness::new();
        let (_, other, combine) = coordinate(&mut h);
        if is_decided {
            collective(&mut h, CollectiveEvent::Filled { combine });
        }
        performed(&mut h);
        h.gone(A);
        let decision = Decision::Stop(Error::ObjectLost { id: id("t") });
        let stopped =
            performed(&mut h).contains(&CollectiveEffect::Tell { enlistment: other, decision });
        assert_eq!(stopped, !is_decided);
        if is_decided {
            collective(
                &mut h,
                CollectiveEvent::Reported { enlistment: other, report: Report::Done },
            );
        }
        let outcome = if is_decided { CombineOutcome::Complete } else { CombineOutcome::Cancelled };
        end(&mut h, combine, outcome);
        assert_eq!((h.node.status().reductions, h.node.status().hops), (0, 0));
    }
}

#[test]
fn a_coordinator_whose_target_is_deleted_stops_those_who_still_make_it() {
    let mut h = Harness::new();
    let (call, other, combine) = coordinate(&mut h);
    collective(&mut h, CollectiveEvent::Filled { combine });
    end(&mut h, combine, CombineOutcome::Complete);
    let (shard, publish) = h.publication();
    h.verdict(shard, &publish, Verdict::Accepted);
    assert!(matches!(h.answer(call), Some(Ok(Response::Reduced { .. }))));
    h.drop_put(shard, "t", publish.put, DropReason::Deleted);
    let stop = CollectiveEffect::Tell {
        enlistment: other,
        decision: Decision::Stop(Error::Deleted { id: id("t") }),
    };
    assert!(performed(&mut h).contains(&stop));
    assert_eq!((h.node.status().reductions, h.node.status().hops), (0, 0));
}

#[test]
fn what_was_asked_for_a_session_is_not_asked_again_for_a_reduce() {
    const FEW_BYTES: u64 = 1000;
    let mut h = Harness::new();
    let a = h.put_f32("a", FEW_BYTES);
    h.request(A, Request::Collective(Collective::Allreduce, reduce("t", &["a", "b"])));
    for (shard, message) in h.sent() {
        let ToShard::Subscribe { request, id: object, .. } = message else { continue };
        let mut locations = match object.to_string().as_str() {
            "a" => located("a", a.put.0, LocationState::Complete, &["here"]),
            "b" => located("b", 8, LocationState::Complete, &["n1"]),
            name => unknown(name),
        };
        locations.object.iter_mut().for_each(|object| object.size_bytes = FEW_BYTES);
        h.event(Event::FromShard { shard, message: ToStore::Locations { request, locations } });
    }
    let sent = h.sent();
    assert!(matches!(&sent[..], [(_, ToShard::Query(query))] if query.id == id("b")), "{sent:?}");
}

#[test]
fn a_session_is_in_the_order_of_the_groups_of_its_members() {
    let mut h = Harness::new();
    let a = h.put_f32("a", SIZE);
    h.request(A, Request::Collective(Collective::Allreduce, reduce("t", &["a", "b", "c", "d"])));
    for (shard, message) in h.sent() {
        let ToShard::Subscribe { request, id: object, .. } = message else { continue };
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
    assert_eq!(order, [["here", "n2", "n1", "n3"]; 3]);
}
