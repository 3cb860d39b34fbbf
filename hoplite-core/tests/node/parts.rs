use std::time::Duration;

use hoplite_core::collective::{
    Agreement, CollectiveEffect, CollectiveEvent, Decision, Failure, Member, Plan, Report,
};
use hoplite_core::node::*;
use hoplite_core::plan::collective::{Collective, Schedule};
use hoplite_core::shard::{DeleteWait, DropReason, LocationState, Locations, ToShard, ToStore};
use hoplite_core::{Error, PutId, Time};

use crate::harness::*;
use crate::members::*;
use crate::reducing::*;

const KINDS: [Collective; 2] = [Collective::ReduceScatter, Collective::Allgather];

const NOBODY_JOINS: Duration = Duration::from_secs(1);
const OWN: ByteRange = ByteRange { offset_bytes: SIZE / 2, length_bytes: SIZE / 2 };
const OTHER: ByteRange = ByteRange { offset_bytes: 0, length_bytes: SIZE / 2 };

/// Plan with `b` (rank 1) at this node and `a` at `n1`.
fn plan(kind: Collective, b: PutId) -> Box<Plan> {
    let member = |name: &str| Member { node: node_id(name), address: address(name) };
    Box::new(Plan {
        target: id("t"),
        attempt: ATTEMPT,
        put: PUT,
        agreement: Agreement::of(kind, &reduce("t", &["a", "b"])),
        size_bytes: SIZE,
        metadata: f32s(),
        schedule: Schedule::ring(2),
        frame_bytes: 16384,
        members: vec![member("here"), member("n1")],
        ranks: vec![vec![1], vec![0]],
        index: 0,
        sources: vec![(id("b"), b)],
        timeout: Duration::from_secs(2),
        explanation: String::new(),
    })
}

fn asked(h: &mut Harness, kind: Collective) -> CombineId {
    let size_bytes = if kind == Collective::Allgather { SIZE / 2 } else { SIZE };
    let b = h.put_f32("b", size_bytes);
    collective(h, CollectiveEvent::Asked { membership: MEMBERSHIP, plan: plan(kind, b.put) });
    exchange(h)
}

fn join(h: &mut Harness, kind: Collective) -> (ClientId, CallId) {
    let agreement = Agreement::of(kind, &reduce("t", &["a", "b"]));
    let (target, is_again, source_bytes) = (id("t"), false, SIZE);
    h.request(A, Request::Join { target, agreement, is_again, source_bytes, timeout: LONG })
}

#[test]
fn a_member_says_that_it_has_its_parts_when_its_participants_have_called() {
    for kind in KINDS {
        let mut h = Harness::new();
        let combine = asked(&mut h, kind);
        collective(&mut h, CollectiveEvent::Filled { combine });
        assert_eq!(reports(&mut h), []);
        let joined = join(&mut h, kind);
        let Some(Ok(Response::Ranges { view, order })) = h.answer(joined) else {
            panic!("it has them")
        };
        assert_eq!(order, [if kind == Collective::Allgather { OTHER } else { OWN }]);
        assert!(view.size_bytes > SIZE, "the end is kept back of what is not complete");
        assert_eq!(reports(&mut h), [Report::Filled]);
        end(&mut h, combine, CombineOutcome::Complete);
        leave(&mut h);
        assert!(h.is_failed(view.copy), "nobody joins it any more");
        assert_eq!(h.node.status().hops, 0);
        let how = h
            .node
            .how_made(&id("t"), Time::ZERO)
            .and_then(|how| how.position)
            .expect("it remembers");
        assert_eq!(
            (&*how.stage, how.final_bytes, how.size_bytes),
            ("has its parts", SIZE / 2, SIZE / 2)
        );
    }
}

#[test]
fn a_member_does_not_wait_long_for_a_participant_that_never_calls() {
    for kind in KINDS {
        let mut h = Harness::new();
        let combine = asked(&mut h, kind);
        collective(&mut h, CollectiveEvent::Filled { combine });
        h.pass(Duration::from_millis(999));
        assert_eq!(reports(&mut h), []);
        h.pass(Duration::from_millis(1));
        assert_eq!(reports(&mut h), [Report::Filled]);
        end(&mut h, combine, CombineOutcome::Complete);
        leave(&mut h);
        let late = join(&mut h, kind);
        h.assert_waits(late);
    }
}

#[test]
fn who_joined_an_exchange_that_is_given_up_is_told_to_join_again() {
    for kind in KINDS {
        let mut h = Harness::new();
        let combine = asked(&mut h, kind);
        let joined = join(&mut h, kind);
        let Some(Ok(Response::Ranges { view, .. })) = h.answer(joined) else {
            panic!("it has begun")
        };
        tell(&mut h, Decision::Stop(Error::Superseded { id: id("t") }));
        assert!(h.is_failed(view.copy));
        end(&mut h, combine, CombineOutcome::Cancelled);
        leave(&mut h);
        assert_eq!(reports(&mut h), []);
    }
}

fn published_end(h: &mut Harness) -> bool {
    h.publications().iter().any(|(_, publish)| publish.id == id("t") && publish.size_bytes == 0)
}

#[test]
fn when_all_have_their_parts_the_target_says_so() {
    let mut h = Harness::new();
    let (call, other, combine) = coordinate_a(&mut h, Collective::ReduceScatter);
    h.assert_waits(call);
    collective(&mut h, CollectiveEvent::Filled { combine });
    assert_eq!(
        h.answer(call),
        Some(Ok(Response::Reduced { indices: vec![0, 1] })),
        "it has its parts"
    );
    h.pass(NOBODY_JOINS);
    assert_eq!(performed(&mut h), [], "the other one has not all");
    collective(&mut h, CollectiveEvent::Reported { enlistment: other, report: Report::Filled });
    assert!(published_end(&mut h));
    assert!(h.effects.contains(&Effect::CancelCombine { combine }));
    assert_eq!(performed(&mut h), [CollectiveEffect::Dismiss { enlistment: other }]);
    end(&mut h, combine, CombineOutcome::Complete);
    let late = join(&mut h, Collective::ReduceScatter);
    assert!(matches!(h.answer(late), Some(Ok(Response::Object(view))) if view.size_bytes == 0));
    assert_eq!((h.node.status().reductions, h.node.status().hops), (0, 0));
}

#[test]
fn so_does_the_target_of_an_exchange_that_fails_even_if_the_call_is_gone() {
    for is_gone in [false, true] {
        let mut h = Harness::new();
        let (call, other, combine) = coordinate_a(&mut h, Collective::ReduceScatter);
        if is_gone {
            collective(&mut h, CollectiveEvent::Filled { combine });
            h.gone(A);
            assert_eq!(performed(&mut h), [], "the others go on");
        }
        let report = Report::Failed(Failure::Unreachable);
        collective(&mut h, CollectiveEvent::Reported { enlistment: other, report });
        assert!(published_end(&mut h));
        assert!(
            h.effects.contains(&Effect::CancelCombine { combine }),
            "the member here is stopped too"
        );
        if !is_gone {
            assert_eq!(h.answer(call), Some(Ok(Response::Reduced { indices: vec![0, 1] })));
        }
        let outcome = if is_gone { CombineOutcome::Complete } else { CombineOutcome::Cancelled };
        end(&mut h, combine, outcome);
        assert!(
            h.node
                .reduce_record(&id("t"))
                .is_some_and(|record| record.plan.starts_with("general path"))
        );
        assert_eq!((h.node.status().reductions, h.node.status().hops), (0, 0));
    }
}

#[test]
fn an_exchange_whose_call_ends_before_the_parts_are_here_ends_too() {
    let mut h = Harness::new();
    let (_, other, combine) = coordinate_a(&mut h, Collective::ReduceScatter);
    h.gone(A);
    assert!(h.effects.contains(&Effect::CancelCombine { combine }));
    let decision = Decision::Stop(Error::ObjectLost { id: id("t") });
    assert!(performed(&mut h).contains(&CollectiveEffect::Tell { enlistment: other, decision }));
    assert!(!published_end(&mut h));
    end(&mut h, combine, CombineOutcome::Cancelled);
    assert_eq!((h.node.status().reductions, h.node.status().hops), (0, 0));
}

#[test]
fn a_participant_of_a_later_round_does_not_join_the_parts_of_an_earlier_one() {
    for kind in KINDS {
        let mut h = Harness::new();
        let size_bytes = if kind == Collective::Allgather { SIZE / 2 } else { SIZE };
        let b = h.put_f32("b", size_bytes);
        collective(
            &mut h,
            CollectiveEvent::Asked { membership: MEMBERSHIP, plan: plan(kind, b.put) },
        );
        let combine = exchange(&mut h);
        let joined = join(&mut h, kind);
        let Some(Ok(Response::Ranges { view, .. })) = h.answer(joined) else {
            panic!("it has begun")
        };
        collective(&mut h, CollectiveEvent::Filled { combine });
        end(&mut h, combine, CombineOutcome::Complete);
        h.drop_put(0, "b", b.put, DropReason::Deleted);
        h.put_f32("b", size_bytes);
        let later = join(&mut h, kind);
        h.assert_waits(later);
        assert!(h.is_failed(view.copy));
        leave(&mut h);
    }
}

#[test]
fn a_delete_before_the_directory_knows_the_target_takes_it_away() {
    let mut h = Harness::new();
    let (_, other, combine) = coordinate_a(&mut h, Collective::ReduceScatter);
    collective(&mut h, CollectiveEvent::Filled { combine });
    h.pass(NOBODY_JOINS);
    collective(&mut h, CollectiveEvent::Reported { enlistment: other, report: Report::Filled });
    assert!(published_end(&mut h));
    h.request(
        B,
        Request::Delete { ids: vec![id("t")], timeout: LONG, wait: DeleteWait::Reachable },
    );
    end(&mut h, combine, CombineOutcome::Complete);
    let late = join(&mut h, Collective::ReduceScatter);
    h.assert_waits(late);
}

#[test]
fn a_delete_ends_an_exchange_without_a_target() {
    let mut h = Harness::new();
    let (call, other, combine) = coordinate_a(&mut h, Collective::ReduceScatter);
    h.request(
        B,
        Request::Delete { ids: vec![id("t")], timeout: LONG, wait: DeleteWait::Reachable },
    );
    let error = Error::Deleted { id: id("t") };
    assert_eq!(h.error(call), error);
    assert!(h.effects.contains(&Effect::CancelCombine { combine }));
    assert!(
        performed(&mut h).contains(&CollectiveEffect::Tell {
            enlistment: other,
            decision: Decision::Stop(error)
        })
    );
    assert!(!published_end(&mut h));
    end(&mut h, combine, CombineOutcome::Cancelled);
    assert_eq!((h.node.status().reductions, h.node.status().hops), (0, 0));
}

fn is_complete(h: &Harness, copy: CopyId) -> bool {
    h.effects.contains(&Effect::CopyCompleted { copy })
}

#[test]
fn in_an_all_to_all_nobody_goes_on_before_all_have_what_is_for_them() {
    let mut h = Harness::new();
    let (call, other, combine) = coordinate_a(&mut h, Collective::AllToAll);
    let joined = join(&mut h, Collective::AllToAll);
    let Some(Ok(Response::Ranges { view, order })) = h.answer(joined) else {
        panic!("it has begun")
    };
    assert_eq!(order, [OWN], "what rank 1 has for rank 0");
    collective(&mut h, CollectiveEvent::Filled { combine });
    h.assert_waits(call);
    assert!(!is_complete(&h, view.copy));
    collective(&mut h, CollectiveEvent::Reported { enlistment: other, report: Report::Filled });
    assert_eq!(h.answer(call), Some(Ok(Response::Reduced { indices: vec![0, 1] })));
    assert!(is_complete(&h, view.copy), "those who have joined go on");
    let tell = CollectiveEffect::Tell { enlistment: other, decision: Decision::Commit };
    assert_eq!(performed(&mut h), [tell, CollectiveEffect::Dismiss { enlistment: other }]);
    assert!(!published_end(&mut h), "nobody looks for it");
    end(&mut h, combine, CombineOutcome::Cancelled);
    assert_eq!((h.node.status().reductions, h.node.status().hops), (0, 0));
}

#[test]
fn a_member_of_an_all_to_all_that_does_not_hear_the_word_looks_for_the_target() {
    let mut h = Harness::new();
    let combine = asked(&mut h, Collective::AllToAll);
    let joined = join(&mut h, Collective::AllToAll);
    let Some(Ok(Response::Ranges { view, .. })) = h.answer(joined) else { panic!("it has begun") };
    collective(&mut h, CollectiveEvent::Filled { combine });
    assert_eq!(reports(&mut h), [Report::Filled]);
    leave(&mut h);
    assert!(h.is_failed(view.copy) && !is_complete(&h, view.copy));
    end(&mut h, combine, CombineOutcome::Cancelled);
    let again = join(&mut h, Collective::AllToAll);
    h.assert_waits(again);
    h.pass(Duration::from_secs(5));
    assert_eq!(h.answer(again), Some(Err(Error::ObjectLost { id: id("t") })));
}

#[test]
fn a_member_of_an_all_to_all_that_hears_the_word_is_done() {
    let mut h = Harness::new();
    let combine = asked(&mut h, Collective::AllToAll);
    let joined = join(&mut h, Collective::AllToAll);
    let Some(Ok(Response::Ranges { view, .. })) = h.answer(joined) else { panic!("it has begun") };
    collective(&mut h, CollectiveEvent::Filled { combine });
    tell(&mut h, Decision::Commit);
    assert!(is_complete(&h, view.copy));
    leave(&mut h);
    end(&mut h, combine, CombineOutcome::Cancelled);
    assert_eq!(reports(&mut h), [Report::Filled]);
    assert_eq!(h.node.status().hops, 0);
}

#[test]
fn parts_that_differ_are_for_each_pair_alone() {
    let mut h = Harness::new();
    let call = h.request(A, Request::Collective(Collective::AllToAll, reduce("t", &["a", "b"])));
    for (shard, message) in h.sent() {
        let ToShard::Subscribe { request, id: object, .. } = message else { continue };
        let locations = match object.to_string().as_str() {
            "a" => {
                let mut locations = located("a", 7, LocationState::Complete, &["here"]);
                locations.object.as_mut().unwrap().size_bytes = 0;
                locations
            }
            _ => Locations { id: object, object: None, locations: Vec::new() },
        };
        h.event(Event::FromShard { shard, message: ToStore::Locations { request, locations } });
    }
    assert_eq!(h.answer(call), Some(Ok(Response::Reduced { indices: vec![0, 1] })));
    assert!(published_end(&mut h), "though the other one is not there");
}
