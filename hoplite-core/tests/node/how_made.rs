use hoplite_core::collective::{CollectiveEvent, Decision};
use hoplite_core::node::*;
use hoplite_core::plan::collective::Collective;
use hoplite_core::shard::PullOutcome;
use hoplite_core::time::Time;

use crate::harness::*;
use crate::members::{ask, collective, coordinate, end, exchange, join, leave, tell};
use crate::reducing::*;

fn how(h: &Harness) -> ReduceRecord {
    h.node.how_made(&id("t"), Time::ZERO).expect("the node knows something of the target")
}

fn stage(h: &Harness) -> (String, u64, bool) {
    let ReduceRecord { position, is_running, .. } = how(h);
    let position = position.expect("it is a member");
    assert_eq!((position.member, position.members, position.size_bytes), (1, 2, SIZE));
    (position.stage, position.final_bytes, is_running)
}

#[test]
fn a_member_tells_the_plan_and_how_far_it_is() {
    let mut h = Harness::new();
    assert_eq!(h.node.how_made(&id("t"), Time::ZERO), None);
    let a = h.put_f32("a", SIZE);
    join(&mut h);
    let waiting = how(&h);
    assert!(
        waiting.is_running && waiting.plan.contains("wait for the store of rank 0"),
        "{waiting:?}"
    );
    assert_eq!(waiting.reduced, (0, 2));
    ask(&mut h, a.put);
    let combine = exchange(&mut h);
    assert_eq!(how(&h).plan, "ring of 2, as it was planned; order n1 here");
    assert!(how(&h).position.is_some_and(|position| position.copy.is_some()));
    assert_eq!(stage(&h), ("gives and takes".to_owned(), 0, true));
    collective(&mut h, CollectiveEvent::Filled { combine });
    let waits = "has all bytes, and waits for the decision of the store of rank 0".to_owned();
    assert_eq!(stage(&h), (waits, SIZE, true));
    tell(&mut h, Decision::Commit);
    assert_eq!(stage(&h), ("has the target".to_owned(), SIZE, false));
    end(&mut h, combine, CombineOutcome::Complete);
    leave(&mut h);
    assert_eq!(h.node.status().hops, 0);
    assert_eq!(stage(&h), ("has the target".to_owned(), SIZE, false), "it is remembered");
    assert_eq!(how(&h).plan, "ring of 2, as it was planned; order n1 here");
}

#[test]
fn a_member_that_has_failed_remembers_why() {
    let mut h = Harness::new();
    let a = h.put_f32("a", SIZE);
    ask(&mut h, a.put);
    let combine = exchange(&mut h);
    let outcome = PullOutcome::SenderUnreachable;
    end(&mut h, combine, CombineOutcome::InputFailed { index: 0, outcome });
    leave(&mut h);
    let failed = "has failed: member 1 could not take from member 0: SenderUnreachable".to_owned();
    assert_eq!(stage(&h), (failed, 0, false));
}

#[test]
fn a_member_that_is_told_to_do_without_says_who_knows_why() {
    let mut h = Harness::new();
    let a = h.put_f32("a", SIZE);
    ask(&mut h, a.put);
    tell(&mut h, Decision::Stop(hoplite_core::Error::Superseded { id: id("t") }));
    leave(&mut h);
    let (stage, final_bytes, is_running) = stage(&h);
    assert!(stage.starts_with("was told to do without"), "{stage}");
    assert_eq!((final_bytes, is_running), (0, false));
}

#[test]
fn a_coordinator_tells_for_whom_it_waits_and_how_far_its_own_member_is() {
    let mut h = Harness::new();
    h.put_f32("a", SIZE);
    h.request(A, Request::Collective(Collective::Allreduce, reduce("t", &["a", "b"])));
    let gathering = how(&h);
    assert!(
        gathering.is_running && gathering.plan.contains("waits for the sources"),
        "{gathering:?}"
    );
    let mut h = Harness::new();
    let (_, _, combine) = coordinate(&mut h);
    let made = how(&h);
    assert!(made.is_running && made.hops == 2, "{made:?}");
    assert!(made.plan.starts_with("ring of 2, estimated to take "), "{}", made.plan);
    assert!(made.plan.contains("; rank 0 at here; order "), "{}", made.plan);
    let position = made.position.expect("it is a member too");
    assert_eq!((&position.stage[..], position.members), ("gives and takes", 2));
    collective(&mut h, CollectiveEvent::Filled { combine });
    assert!(!how(&h).is_running, "from now on it is the target");
}
