use std::time::Duration;

use hoplite_core::collective::CollectiveEffect;
use hoplite_core::error::Missing;
use hoplite_core::load::TroubleKind;
use hoplite_core::missing::{Absent, Named};
use hoplite_core::node::*;
use hoplite_core::peer::ROOM_TIMEOUT;
use hoplite_core::plan::collective::Collective;
use hoplite_core::shard::PullOutcome;
use hoplite_core::{Error, Operation};

use crate::harness::*;
use crate::members::*;
use crate::reducing::*;

fn missing(error: &Error) -> Missing {
    let Error::Timeout { missing: Some(missing), .. } = error else { panic!("{error:?}") };
    (**missing).clone()
}

fn refused() -> Error {
    Error::permission_denied("another token")
}

#[test]
fn a_get_of_an_unknown_object_says_so() {
    let mut h = Harness::new();
    let call = h.get(A, "x");
    h.pass(LONG);
    assert_eq!(missing(&h.error(call)), Missing::Object { id: id("x") });
}

#[test]
fn calls_name_the_shard_that_refuses_this_store() {
    let mut h = Harness::new();
    h.put(A, "held", SIZE);
    h.event(Event::ShardDown { shard: 0 });
    h.event(Event::ShardFailed { shard: 0, error: refused() });
    let is_named = |error: &Error| match missing(error) {
        Missing::Shard { reason, .. } => *reason == refused(),
        _ => false,
    };
    let get = h.get(A, "x");
    let delete = h.delete(A, &["held"]);
    let created = h.create(A, "y", SIZE);
    let copy = h.view(created).copy;
    let seal = h.seal(A, copy);
    let reduce = h.request(A, Request::Reduce(reduce("t", &["a", "b"])));
    assert_eq!(h.troubles().shards[0].fault.error, refused());
    h.pass(LONG);
    for call in [get, delete, seal, reduce] {
        let error = h.error(call);
        assert!(is_named(&error), "{error}");
    }
    h.event(up(0));
    assert!(h.troubles().shards.is_empty());
}

#[test]
fn a_get_names_the_store_that_refuses_this_one() {
    let mut h = Harness::new();
    let call = h.get(A, "x");
    let pull = h.grant("x", 1, SIZE, "n1");
    h.event(Event::PeerFailed { peer: node_id("n1"), error: refused() });
    h.pull_ended(&pull, 0, PullOutcome::SenderUnreachable);
    h.pass(LONG);
    let expected = Missing::Peer { node: node_id("n1"), reason: Box::new(refused()) };
    assert_eq!(missing(&h.error(call)), expected);
}

#[test]
fn a_failure_of_a_store_is_forgotten_when_it_is_reached() {
    let mut h = Harness::new();
    h.event(Event::PeerFailed { peer: node_id("n1"), error: refused() });
    assert_eq!(h.troubles().peers.len(), 1);
    h.event(Event::PeerReached { peer: node_id("n1") });
    assert!(h.troubles().peers.is_empty());
}

#[test]
fn a_reduce_names_the_source_without_a_location() {
    let mut h = Harness::new();
    let call = h.request(A, Request::Reduce(reduce("t", &["a", "b"])));
    for name in ["t", "b"] {
        h.tell(unknown(name));
    }
    h.ready("a", 1, "n1");
    h.pass(LONG);
    assert_eq!(missing(&h.error(call)), Missing::Sources { sources: Named::of([id("b")]) });
}

#[test]
fn a_collective_names_the_participant_that_has_not_joined_to_all() {
    let mut h = Harness::new();
    let call =
        h.request(A, Request::Collective(Collective::Allreduce, reduce("t", &["a", "b", "c"])));
    for name in ["t", "c"] {
        h.tell(unknown(name));
    }
    h.ready("a", 1, "n1");
    h.ready("b", 2, "n2");
    h.pass(LONG);
    let error = h.error(call);
    let participants = Named::of([Absent { rank: 2, source: id("c") }]);
    assert_eq!(missing(&error), Missing::Participants { participants });
    let told = performed(&mut h).into_iter().filter_map(|effect| match effect {
        CollectiveEffect::Reject { node, error, .. } => Some((node, error)),
        _ => None,
    });
    assert_eq!(told.collect::<Vec<_>>(), [(node_id("n1"), error.clone()), (node_id("n2"), error)]);
}

#[test]
fn a_participant_says_that_it_waits_for_rank_0() {
    let mut h = Harness::new();
    h.put_f32("a", SIZE);
    let call = join(&mut h);
    h.pass(LONG);
    assert_eq!(missing(&h.error(call)), Missing::Coordinator { target: id("t") });
}

#[test]
fn a_put_of_an_id_that_another_client_writes_says_so() {
    let mut h = Harness::new();
    h.create(A, "x", SIZE);
    let second = h.create(B, "x", SIZE);
    h.pass(LONG);
    assert_eq!(missing(&h.error(second)), Missing::Seal { id: id("x") });
}

#[test]
fn long_waits_are_shown_with_their_cause() {
    let mut h = Harness::new();
    h.get(A, "x");
    h.pass(LONG_WAIT - Duration::from_secs(1));
    assert_eq!(h.troubles().long_waits, 0);
    h.pass(Duration::from_secs(1));
    let troubles = h.troubles();
    let wait = &troubles.waits[0];
    assert_eq!((troubles.long_waits, wait.operation), (1, Operation::Get));
    assert_eq!(wait.missing, Some(Missing::Object { id: id("x") }));
    let told =
        ["1 calls wait for more than 10 s", "a get has waited for 10 s: no store offers object x"];
    let troubles = h.load().troubles;
    assert!(troubles.iter().all(|trouble| trouble.kind == TroubleKind::Wait));
    assert_eq!(troubles.iter().map(|trouble| &trouble.text[..]).collect::<Vec<_>>(), told);
}

#[test]
fn a_collective_without_room_at_rank_0_ends_soon_at_all() {
    let mut h = Harness::new();
    let sources = reduce("t", &["a", "b"]);
    let call = h.request(A, Request::Collective(Collective::Allreduce, sources));
    h.tell(unknown("t"));
    let filler = h.free_objects();
    for number in 0..filler {
        h.put_f32(&format!("filler{number}"), SIZE);
    }
    for (name, put) in [("a", 1), ("b", 2)] {
        h.ready(name, put, &format!("n{put}"));
    }
    h.assert_waits(call);
    h.pass(ROOM_TIMEOUT + Duration::from_millis(10));
    let error = h.error(call);
    assert!(matches!(error, Error::StoreFull { .. }), "{error}");
    let denials = performed(&mut h).into_iter().filter(|effect| match effect {
        CollectiveEffect::Reject { error: told, .. } => *told == error,
        _ => false,
    });
    assert_eq!(denials.count(), 2);
}
