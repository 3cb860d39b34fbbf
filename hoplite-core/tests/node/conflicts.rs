use std::time::Duration;

use hoplite_core::metadata::Replicas;
use hoplite_core::node::*;
use hoplite_core::shard::{DropReason, Equality, LocationState, Publish, Verdict};
use hoplite_core::{Error, Metadata, PutId};

use crate::harness::*;

const WINNER: PutId = PutId(77);

fn conflict(equality: Equality) -> Verdict {
    Verdict::Conflict { winner: WINNER, equality }
}

fn unknown() -> Verdict {
    conflict(Equality::Unknown { holder: Some((node_id("holder"), address("holder"))) })
}

fn sealed(h: &mut Harness, size_bytes: u64) -> (ObjectView, (ClientId, CallId), Publish) {
    let call = h.create(A, "x", size_bytes);
    let view = h.view(call);
    h.sent();
    let call = h.seal(A, view.copy);
    let publish = h.publication().1;
    (view, call, publish)
}

fn compares(h: &Harness) -> usize {
    h.effects
        .iter()
        .filter(|effect| matches!(effect, Effect::Compare { winner: WINNER, .. }))
        .count()
}

#[test]
fn an_equal_put_takes_the_place_of_the_first() {
    let mut h = Harness::new();
    let (view, call, publish) = sealed(&mut h, SMALL);
    h.verdict(0, &publish, conflict(Equality::Equal));
    let publish = h.publication().1;
    assert_eq!((publish.put, publish.state), (WINNER, LocationState::Complete));
    h.assert_waits(call);
    h.verdict(0, &publish, Verdict::Accepted);
    assert_eq!(h.answer(call), Some(Ok(Response::Sealed)));
    assert!(!h.is_failed(view.copy));
    assert!(h.serve("x", WINNER).is_some() && h.serve("x", view.put).is_none());
}

#[test]
fn a_different_put_fails_and_its_copy_is_dropped() {
    let mut h = Harness::new();
    let (view, call, publish) = sealed(&mut h, SMALL);
    h.verdict(0, &publish, conflict(Equality::Different));
    assert_eq!(h.error(call), Error::AlreadyExists { id: id("x") });
    assert!(h.is_failed(view.copy));
    assert_eq!(h.node.status().put_conflicts, 1);
    h.release(A, view.copy);
    h.assert_empty();
}

#[test]
fn a_comparison_keeps_the_memory_of_a_deleted_put() {
    let mut h = Harness::new();
    let (view, call, publish) = sealed(&mut h, SIZE);
    h.verdict(0, &publish, unknown());
    h.drop_put(0, "x", view.put, DropReason::Deleted);
    assert_eq!(h.error(call), Error::Deleted { id: id("x") });
    h.release(A, view.copy);
    assert!(!h.is_closed(view.copy));
    h.event(Event::Compared { copy: view.copy, equal: Some(true) });
    h.assert_empty();
}

#[test]
fn a_report_of_a_comparison_that_nobody_asked_for_changes_nothing() {
    let mut h = Harness::new();
    let view = h.put(A, "x", SIZE);
    h.event(Event::Compared { copy: view.copy, equal: Some(false) });
    assert!(!h.is_failed(view.copy));
}

#[test]
fn a_put_that_is_accepted_while_it_is_compared_keeps_its_name() {
    let mut h = Harness::disconnected(2, limits());
    let ranked = h.shards.ranked(&id("x"));
    h.event(up(ranked[1]));
    let (view, call, publish) = sealed(&mut h, SIZE);
    h.verdict(ranked[1], &publish, unknown());
    assert_eq!(compares(&h), 1);
    h.event(up(ranked[0]));
    h.verdict(ranked[0], &publish, Verdict::Accepted);
    assert_eq!(h.answer(call), Some(Ok(Response::Sealed)));
    h.event(Event::Compared { copy: view.copy, equal: Some(true) });
    assert!(h.serve("x", view.put).is_some() && h.serve("x", WINNER).is_none());
}

#[test]
fn a_conflict_that_comes_back_during_a_comparison_is_not_forgotten() {
    let mut h = Harness::new();
    let (view, _, publish) = sealed(&mut h, SIZE);
    h.verdict(0, &publish, unknown());
    h.verdict(0, &publish, Verdict::Accepted);
    h.verdict(0, &publish, unknown());
    h.event(Event::Compared { copy: view.copy, equal: Some(true) });
    h.sent();
    h.pass(std::time::Duration::from_secs(1));
    let publish = h.publication().1;
    h.verdict(0, &publish, unknown());
    assert_eq!(compares(&h), 2);
}

#[test]
fn a_put_that_is_accepted_during_a_comparison_returns_to_the_shard_of_its_rival() {
    let mut h = Harness::disconnected(2, limits());
    let ranked = h.shards.ranked(&id("x"));
    h.event(up(ranked[1]));
    let (view, _, publish) = sealed(&mut h, SIZE);
    h.verdict(ranked[1], &publish, unknown());
    h.event(up(ranked[0]));
    h.verdict(ranked[0], &publish, Verdict::Accepted);
    h.sent();
    h.event(Event::Compared { copy: view.copy, equal: None });
    h.pass(Duration::from_secs(1));
    let shards: Vec<usize> = h.publications().iter().map(|(shard, _)| *shard).collect();
    assert!(shards.contains(&ranked[1]), "{shards:?}");
}

#[test]
fn a_put_outlives_an_earlier_one_whose_bytes_no_node_has() {
    let mut h = Harness::new();
    let (view, call, publish) = sealed(&mut h, SIZE);
    h.verdict(0, &publish, conflict(Equality::Unknown { holder: None }));
    h.assert_waits(call);
    h.sent();
    h.pass(Duration::from_secs(1));
    let publish = h.publication().1;
    assert_eq!(publish.put, view.put);
    h.verdict(0, &publish, Verdict::Accepted);
    assert_eq!(h.answer(call), Some(Ok(Response::Sealed)));
}

#[test]
fn an_acceptance_is_void_once_the_shard_that_decides_knows_another_put() {
    let mut h = Harness::disconnected(2, limits());
    let ranked = h.shards.ranked(&id("x"));
    h.event(up(ranked[1]));
    let call = h.create(A, "x", SIZE);
    let view = h.view(call);
    let publish = h.publication().1;
    h.verdict(ranked[1], &publish, Verdict::Accepted);
    h.event(up(ranked[0]));
    h.verdict(ranked[0], &publish, unknown());
    let sealed = h.seal(A, view.copy);
    h.assert_waits(sealed);
    h.event(Event::Compared { copy: view.copy, equal: Some(false) });
    assert_eq!(h.error(sealed), Error::AlreadyExists { id: id("x") });
}

#[test]
fn the_first_shard_decides_between_two_puts() {
    let mut h = Harness::with_shards(2);
    let ranked = h.shards.ranked(&id("x"));
    let call = h.create(A, "x", SIZE);
    let view = h.view(call);
    let publish = h.publications().remove(0).1;
    h.verdict(ranked[0], &publish, Verdict::Accepted);
    h.verdict(ranked[1], &publish, conflict(Equality::Different));
    let sealed = h.seal(A, view.copy);
    assert_eq!(h.answer(sealed), Some(Ok(Response::Sealed)));
    h.sent();
    h.pass(std::time::Duration::from_secs(5));
    let shards: Vec<usize> = h.publications().iter().map(|(shard, _)| *shard).collect();
    assert!(
        shards.contains(&ranked[1]),
        "the second shard is told again until it agrees: {shards:?}"
    );
    assert!(!h.is_failed(view.copy));
}

#[test]
fn a_put_that_lost_is_withdrawn_from_the_other_shard() {
    let mut h = Harness::with_shards(2);
    let ranked = h.shards.ranked(&id("x"));
    let call = h.create(A, "x", SIZE);
    h.view(call);
    let publish = h.publications().remove(0).1;
    h.verdict(ranked[1], &publish, Verdict::Accepted);
    h.verdict(ranked[0], &publish, conflict(Equality::Different));
    let told = h.told();
    assert!(told.contains(&format!("{} unpublish x Aborted", ranked[1])), "{told:?}");
}

#[test]
fn a_seal_waits_when_the_last_shard_goes_during_the_comparison() {
    let mut h = Harness::new();
    let (view, call, publish) = sealed(&mut h, SIZE);
    h.verdict(0, &publish, unknown());
    h.event(Event::ShardDown { shard: 0 });
    h.assert_waits(call);
    h.event(Event::Compared { copy: view.copy, equal: Some(true) });
    h.assert_waits(call);
    h.event(up(0));
    h.accept_all();
    assert_eq!(h.answer(call), Some(Ok(Response::Sealed)));
}

#[test]
fn what_was_given_up_here_is_no_rival() {
    let mut h = Harness::new();
    let call = h.create(A, "x", SIZE);
    let first = h.view(call);
    h.request(A, Request::Abort { copy: first.copy });
    let (view, call, publish) = sealed(&mut h, SIZE);
    let equality = Equality::Unknown { holder: None };
    h.verdict(0, &publish, Verdict::Conflict { winner: first.put, equality });
    assert_eq!(h.told(), ["0 unpublish x Aborted"]);
    h.assert_waits(call);
    h.pass(Duration::from_millis(50));
    let again = h.publication().1;
    assert_eq!(again.put, view.put);
    h.verdict(0, &again, Verdict::Accepted);
    assert_eq!(h.answer(call), Some(Ok(Response::Sealed)));
}

#[test]
fn a_put_that_was_accepted_and_has_lost_is_reported_once_to_its_client() {
    let mut h = Harness::disconnected(2, limits());
    h.event(Event::ClientConnected { client: A, user: 1, owners: Vec::new() });
    let ranked = h.shards.ranked(&id("x"));
    h.event(up(ranked[1]));
    let (view, call, publish) = sealed(&mut h, SIZE);
    h.verdict(ranked[1], &publish, Verdict::Accepted);
    assert_eq!(h.answer(call), Some(Ok(Response::Sealed)));
    h.release(A, view.copy);
    h.event(up(ranked[0]));
    h.verdict(ranked[0], &publish, conflict(Equality::Different));
    assert_eq!(h.effects.iter().filter(|effect| is_lost(effect)).count(), 1);
    let other = h.get(B, "x");
    h.assert_waits(other);
    let told = h.get(A, "x");
    assert_eq!(h.error(told), Error::PutConflict { id: id("x") });
    let again = h.get(A, "x");
    h.assert_waits(again);
}

fn put_without_the_first_shard(h: &mut Harness) -> (ObjectView, usize, Publish) {
    let ranked = h.shards.ranked(&id("x"));
    h.event(Event::ShardDown { shard: ranked[0] });
    let (view, call, publish) = sealed(h, SIZE);
    h.verdict(ranked[1], &publish, Verdict::Accepted);
    assert_eq!(h.answer(call), Some(Ok(Response::Sealed)));
    h.release(A, view.copy);
    h.event(up(ranked[0]));
    let (shard, publish) = h.publication();
    assert_eq!(shard, ranked[0]);
    (view, shard, publish)
}

const fn is_lost(effect: &Effect) -> bool {
    matches!(effect, Effect::PutLost { winner: WINNER, .. })
}

#[test]
fn an_accepted_put_outlasts_the_memory_of_a_shard_that_was_away() {
    for equality in [Equality::Different, Equality::Unknown { holder: None }, Equality::Equal] {
        for other_is_lost in [false, true] {
            let mut h = Harness::with_shards(2);
            let (view, shard, publish) = put_without_the_first_shard(&mut h);
            if other_is_lost {
                h.event(Event::ShardDown { shard: 1 - shard });
            }
            h.verdict(shard, &publish, conflict(equality.clone()));
            assert_eq!(h.node.status().put_conflicts, 0);
            h.pass(Duration::from_millis(50));
            let again = h.publications().into_iter().find(|(at, _)| *at == shard).unwrap().1;
            // The shard knows that the other put is deleted.
            h.verdict(shard, &again, Verdict::Accepted);
            h.pass(LONG);
            assert!(h.serve("x", view.put).is_some());
        }
    }
}

#[test]
fn a_new_put_waits_for_the_end_of_doubts_about_a_shard_that_was_away() {
    for is_deleted in [false, true] {
        let mut h = Harness::with_shards(2);
        let first = h.shards.ranked(&id("x"))[0];
        h.event(Event::ShardDown { shard: first });
        h.event(up(first));
        let call = h.create(A, "x", SIZE);
        let view = h.view(call);
        let call = h.seal(A, view.copy);
        for rounds in 0..30 {
            for (shard, publish) in h.publications() {
                let is_refused = shard == first && (!is_deleted || rounds < 5);
                let refusal = conflict(Equality::Different);
                h.verdict(shard, &publish, if is_refused { refusal } else { Verdict::Accepted });
            }
            h.pass(Duration::from_millis(100));
        }
        let expected = if is_deleted {
            Ok(Response::Sealed)
        } else {
            Err(Error::AlreadyExists { id: id("x") })
        };
        assert_eq!(h.answer(call), Some(expected));
    }
}

#[test]
fn an_accepted_put_loses_to_a_put_that_outlasts_the_return_of_its_shard() {
    for other_is_lost in [false, true] {
        let mut h = Harness::with_shards(2);
        let (view, shard, publish) = put_without_the_first_shard(&mut h);
        if other_is_lost {
            h.event(Event::ShardDown { shard: 1 - shard });
        }
        h.verdict(shard, &publish, conflict(Equality::Different));
        for passed in 1..=30 {
            h.pass(Duration::from_millis(100));
            for (_, again) in h.publications().into_iter().filter(|(at, _)| *at == shard) {
                h.verdict(shard, &again, conflict(Equality::Different));
            }
            assert!(passed > 19 || !h.effects.iter().any(is_lost), "after {passed}00 ms");
        }
        assert_eq!(h.effects.iter().filter(|effect| is_lost(effect)).count(), 1);
        assert!(
            !h.told().iter().any(|line| line.contains("forget")),
            "the other put is not deleted"
        );
        assert!(h.serve("x", view.put).is_none());
    }
}

#[test]
fn the_conflict_of_a_put_that_was_never_accepted_is_not_reported() {
    let mut h = Harness::new();
    let (_, call, publish) = sealed(&mut h, SMALL);
    h.verdict(0, &publish, conflict(Equality::Different));
    assert_eq!(h.error(call), Error::AlreadyExists { id: id("x") });
    let get = h.get(A, "x");
    h.assert_waits(get);
}

fn put_with_quorum(h: &mut Harness, timeout: Duration) -> (ClientId, CallId) {
    let replicas = Replicas { quorum: true, ..Replicas::default() };
    let metadata = Metadata { replicas, ..Metadata::default() };
    let (id, bytes) = (id("x"), bytes::Bytes::from_static(b"bytes"));
    h.request(A, Request::Put { id, metadata, bytes, confirm: Confirm::No, timeout })
}

#[test]
fn a_put_with_a_quorum_waits_for_both_shards() {
    let mut h = Harness::with_shards(3);
    let call = put_with_quorum(&mut h, LONG);
    let publications = h.publications();
    assert_eq!(publications.len(), 2);
    let (first, publish) = &publications[0];
    h.verdict(*first, publish, Verdict::Accepted);
    h.assert_waits(call);
    let repeated = put_with_quorum(&mut h, LONG);
    h.assert_waits(repeated);
    let (second, publish) = &publications[1];
    h.verdict(*second, publish, Verdict::Accepted);
    assert_eq!(h.answer(call), Some(Ok(Response::Sealed)));
    assert!(matches!(h.answer(repeated), Some(Ok(Response::Existing(_)))));
}

#[test]
fn a_put_with_a_quorum_fails_if_a_shard_of_the_id_cannot_be_reached() {
    let mut h = Harness::with_shards(3);
    let ranked = h.shards.ranked(&id("x"));
    let call = put_with_quorum(&mut h, LONG);
    let publish = h.publications().remove(0).1;
    h.verdict(ranked[0], &publish, Verdict::Accepted);
    h.event(Event::ShardDown { shard: ranked[1] });
    let error = h.error(call);
    assert!(
        matches!(error, Error::Unavailable { .. }) && error.to_string().contains("shard-"),
        "{error}"
    );
    assert!(h.told().contains(&format!("{} forget x", ranked[0])), "the put is taken back");
    let refused = put_with_quorum(&mut h, LONG);
    assert_eq!(h.error(refused), error);
    h.assert_empty();
}

fn create_with_quorum(h: &mut Harness) -> ObjectView {
    let replicas = Replicas { quorum: true, ..Replicas::default() };
    let metadata = Metadata { replicas, ..Metadata::default() };
    let create = Request::Create { id: id("x"), size_bytes: SIZE, metadata, timeout: LONG };
    let call = h.request(A, create);
    h.view(call)
}

#[test]
fn a_seal_with_a_quorum_fails_if_a_shard_was_lost_before() {
    let mut h = Harness::with_shards(2);
    let view = create_with_quorum(&mut h);
    h.event(Event::ShardDown { shard: 1 });
    let call = h.seal(A, view.copy);
    let error = h.error(call);
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    assert!(h.told().contains(&"0 forget x".to_owned()), "the put is taken back");
    h.release(A, view.copy);
    h.assert_empty();
}

#[test]
fn a_seal_with_a_quorum_is_taken_back_at_its_timeout() {
    let mut h = Harness::with_shards(2);
    let view = create_with_quorum(&mut h);
    let publish = h.publications().remove(0).1;
    h.verdict(0, &publish, Verdict::Accepted);
    let call = h.seal(A, view.copy);
    h.pass(LONG);
    let error = h.error(call);
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    let told = h.told();
    assert!((0..2).all(|shard| told.contains(&format!("{shard} forget x"))), "{told:?}");
    h.release(A, view.copy);
    h.assert_empty();
}
