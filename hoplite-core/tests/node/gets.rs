use std::time::Duration;

use hoplite_core::error::Missing;
use hoplite_core::node::*;
use hoplite_core::shard::{
    DropReason, GrantId, LocationState, PullOutcome, Retention, ToStore, Verdict,
};
use hoplite_core::{Error, Operation, PutId};

use crate::harness::*;

#[test]
fn a_get_asks_pulls_publishes_and_returns_the_slot() {
    let mut h = Harness::with_shards(2);
    let first = h.shards.ranked(&id("x"))[0];
    let call = h.get(A, "x");
    let pull = h.grant("x", 5, SIZE, "n1");
    assert_eq!((pull.sender.as_str(), pull.offset_bytes), ("n1", 0));
    let (shard, publish) = h.publication();
    assert_eq!(shard, 1 - first);
    assert_eq!((publish.state, publish.retention), (LocationState::Partial, Retention::Evictable));
    assert_eq!(publish.pulling_from, Some(node_id("n1")));
    h.assert_waits(call);
    h.pull_ended(&pull, SIZE, PullOutcome::Complete);
    let view = h.view(call);
    assert_eq!((view.copy, view.put, view.size_bytes), (pull.copy, PutId(5), SIZE));
    let publications = h.publications();
    assert!(
        publications.iter().all(|(_, publish)| !publish.wants_answer),
        "nobody waits for the verdicts"
    );
    let told: Vec<_> = publications
        .iter()
        .map(|(shard, publish)| (*shard, publish.state, publish.slot.is_some()))
        .collect();
    assert_eq!(
        told,
        [(first, LocationState::Complete, true), (1 - first, LocationState::Complete, false)]
    );
    assert_eq!(h.told(), Vec::<String>::new());
}

#[test]
fn a_small_object_is_answered_with_its_bytes_and_nothing_refers_to_it() {
    let mut h = Harness::new();
    let get = |h: &mut Harness, name| {
        h.request(
            A,
            Request::Get {
                id: id(name),
                until: Until::Contents,
                timeout: LONG,
                allow_stale: false,
            },
        )
    };
    for (name, size_bytes) in [("small", MAX_CONTENTS_BYTES), ("large", MAX_CONTENTS_BYTES + 1)] {
        let call = get(&mut h, name);
        let pull = h.grant(name, 5, size_bytes, "n1");
        h.assert_waits(call);
        h.pull_ended(&pull, size_bytes, PullOutcome::Complete);
        let again = get(&mut h, name);
        for call in [call, again] {
            let is_small = size_bytes == MAX_CONTENTS_BYTES;
            match h.answer(call) {
                Some(Ok(Response::Contents { view, .. })) if is_small => {
                    assert_eq!(view.copy, pull.copy)
                }
                Some(Ok(Response::Object(view))) if !is_small => assert_eq!(view.copy, pull.copy),
                other => panic!("{name} is answered with {other:?}"),
            }
        }
    }
    let held = h.checker.references(A);
    assert_eq!(held.len(), 1, "only the large copy is referred to: {held:?}");
}

#[test]
fn a_client_with_many_open_calls_gets_references_to_small_objects() {
    let mut h = Harness::new();
    let get = |h: &mut Harness, name| {
        h.request(
            A,
            Request::Get {
                id: id(name),
                until: Until::Contents,
                timeout: LONG,
                allow_stale: false,
            },
        )
    };
    let calls: Vec<_> = (0..65).map(|_| get(&mut h, "x")).collect();
    let pull = h.grant("x", 5, SIZE.min(MAX_CONTENTS_BYTES), "n1");
    h.pull_ended(&pull, SIZE.min(MAX_CONTENTS_BYTES), PullOutcome::Complete);
    let answers: Vec<_> = calls.into_iter().map(|call| h.answer(call).unwrap().unwrap()).collect();
    let references = answers.iter().filter(|answer| matches!(answer, Response::Object(_))).count();
    let contents =
        answers.iter().filter(|answer| matches!(answer, Response::Contents { .. })).count();
    assert_eq!((references, contents), (1, 64));
}

#[test]
fn a_receiver_that_gives_way_goes_on_where_it_is_and_holds_nothing_against_its_sender() {
    let mut h = Harness::new();
    let call = h.get(A, "x");
    let mut pull = h.grant("x", 5, SIZE, "n1");
    let give_way = |grant| Event::FromShard { shard: 0, message: ToStore::GiveWay { grant } };
    h.event(give_way(GrantId(u64::MAX)));
    assert!(!h.is_cancelled(&pull), "that is the slot of another");
    for valid_bytes in [0, 0, 0, 100, 100] {
        h.event(give_way(pull.grant));
        assert!(h.is_cancelled(&pull));
        h.pull_ended(&pull, valid_bytes, PullOutcome::Cancelled);
        let (shard, query) = h.query();
        assert_eq!((query.resume, query.avoid.len()), (Some(PutId(5)), 0));
        assert_eq!(h.told(), ["0 return GaveWay"]);
        pull = h.grant_query(shard, query.request, "x", 5, SIZE, "n2").unwrap();
        assert_eq!(pull.offset_bytes, valid_bytes);
    }
    h.event(give_way(pull.grant));
    h.pull_ended(&pull, SIZE, PullOutcome::Complete);
    assert_eq!(h.view(call).put, PutId(5));
    assert!(h.publications().iter().any(|(_, publish)| publish.slot == Some(pull.grant)));
}

#[test]
fn a_receiver_in_a_cycle_of_pulls_requests_another_sender_or_ends_an_unwanted_copy() {
    for is_wanted in [true, false] {
        let mut h = Harness::with_shards(2);
        let call = h.get(A, "x");
        let pull = h.grant("x", 5, SIZE, "n1");
        if !is_wanted {
            h.request(A, Request::Cancel { call: call.1 });
        }
        let (shard, publish) = h.publication();
        assert_eq!(publish.pulling_from, Some(node_id("n1")));
        h.verdict(shard, &publish, Verdict::Cyclic { sender: node_id("n2") });
        assert!(!h.is_cancelled(&pull), "the verdict concerns an earlier sender");
        h.verdict(shard, &publish, Verdict::Cyclic { sender: node_id("n1") });
        assert!(h.is_cancelled(&pull));
        h.sent();
        h.pull_ended(&pull, 4096, PullOutcome::Cancelled);
        if is_wanted {
            let query = h.query().1;
            assert_eq!((query.resume, query.avoid), (Some(PutId(5)), vec![node_id("n1")]));
        } else {
            let told = h.told().into_iter().filter(|told| told.contains("unpublish x PullEnded"));
            assert_eq!(told.count(), 2, "both shards send its receivers elsewhere");
        }
    }
}

#[test]
fn a_serve_that_waits_for_a_fetch_ends_with_it() {
    let mut h = Harness::new();
    let call = h.get(A, "cancelled");
    let serve = h.ask_to_serve(id("cancelled"), PutId(5), false);
    h.request(A, Request::Cancel { call: call.1 });
    assert!(h.is_refused(serve));
    h.sent();
    h.get(A, "lost");
    let serve = h.ask_to_serve(id("lost"), PutId(5), false);
    h.fail_query(Error::ObjectLost { id: id("lost") });
    assert!(h.is_refused(serve));
    h.put_held(A, "all", CAPACITY - 64);
    h.sent();
    h.get(A, "too much");
    let serve = h.ask_to_serve(id("too much"), PutId(5), false);
    let (shard, query) = h.query();
    assert_eq!(
        h.grant_query(shard, query.request, "too much", 5, SIZE, "n1"),
        None,
        "there is no room"
    );
    assert!(h.is_refused(serve));
    assert_eq!(h.told(), ["0 return Cancelled"]);
}

#[test]
fn many_gets_of_one_object_make_one_query_and_one_pull() {
    let mut h = Harness::new();
    let calls: Vec<_> = (0..10).map(|client| h.get(ClientId(client), "x")).collect();
    let pull = h.grant("x", 5, SIZE, "n1");
    let late = h.get(ClientId(11), "x");
    assert_eq!(h.count_queries(), 0);
    h.pull_ended(&pull, SIZE, PullOutcome::Complete);
    for call in calls.into_iter().chain([late]) {
        assert_eq!(h.view(call).copy, pull.copy);
    }
}

#[test]
fn an_inline_answer_is_a_complete_copy() {
    let mut h = Harness::with_shards(2);
    let call = h.get(A, "x");
    let shard = h.shards.ranked(&id("x"))[0];
    h.answer_inline("x", 5, b"bytes");
    let view = h.view(call);
    assert_eq!(view.size_bytes, 5);
    assert_eq!(h.told(), [format!("{} publish x Complete", 1 - shard)]);
    h.release(A, view.copy);
    assert_eq!(h.node.status().evictable_bytes, view.extent.length_bytes);
}

#[test]
fn an_empty_remote_object_arrives() {
    let mut h = Harness::new();
    assert_eq!(h.fetch(A, "x", 5, 0).size_bytes, 0);
}

#[test]
fn a_get_times_out() {
    let mut h = Harness::new();
    let call = h.get_within(A, "x", Duration::from_millis(700));
    h.pass(Duration::from_millis(699));
    h.assert_waits(call);
    h.pass(Duration::from_millis(1));
    let waited = Duration::from_millis(700);
    let missing = Some(Box::new(Missing::Object { id: id("x") }));
    assert_eq!(h.error(call), Error::Timeout { operation: Operation::Get, waited, missing });
    assert_eq!(h.told(), ["0 query x", "0 cancel"]);
    h.assert_empty();
}

#[test]
fn a_get_with_a_zero_timeout_answers_at_once() {
    let mut h = Harness::new();
    h.put(A, "here", SIZE);
    let here = h.get_within(A, "here", Duration::ZERO);
    h.view(here);
    let absent = h.get_within(A, "absent", Duration::ZERO);
    assert!(matches!(h.error(absent), Error::Timeout { .. }));
}

#[test]
fn a_later_deadline_makes_the_question_be_asked_again() {
    let mut h = Harness::new();
    let short = h.get_within(A, "x", Duration::from_secs(1));
    let (shard, query) = h.query();
    assert_eq!(query.timeout, Duration::from_secs(1));
    let long = h.get_within(B, "x", Duration::from_secs(3));
    h.pass(Duration::from_secs(1));
    h.error(short);
    let error = Error::timeout(Operation::Get, query.timeout);
    h.event(Event::FromShard { shard, message: ToStore::Failed { request: query.request, error } });
    assert_eq!(h.query().1.timeout, Duration::from_secs(2));
    h.assert_waits(long);
}

#[test]
fn a_fetch_that_backs_off_ends_with_its_last_call() {
    let mut h = Harness::new();
    let call = h.get_within(A, "x", Duration::from_secs(1));
    for _ in 0..2 {
        let pull = h.grant("x", 5, SIZE, "n1");
        h.pull_ended(&pull, 0, PullOutcome::SenderStalled);
    }
    h.request(A, Request::Cancel { call: call.1 });
    h.assert_empty();
}

#[test]
fn a_follower_keeps_the_fetch_going_without_hammering_the_shard() {
    let mut h = Harness::new();
    let call = h.get_started(A, "x");
    let pull = h.grant("x", 5, SIZE, "n1");
    let view = h.view(call);
    h.pull_ended(&pull, 4096, PullOutcome::SenderUnreachable);
    let (_, query) = h.query();
    assert!(query.timeout >= Duration::from_secs(1), "{:?}", query.timeout);
    h.release(A, view.copy);
    h.assert_empty();
}

#[test]
fn a_delete_leaves_referenced_memory_to_its_holders() {
    let mut h = Harness::new();
    let view = h.put_held(A, "x", SIZE);
    h.drop_put(0, "x", view.put, DropReason::Deleted);
    assert!(h.is_failed(view.copy) && !h.is_closed(view.copy));
    assert_eq!(h.serve("x", view.put), None);
    let call = h.get(B, "x");
    h.assert_waits(call);
    h.request(B, Request::Cancel { call: call.1 });
    h.release(A, view.copy);
    h.assert_empty();
}

#[test]
fn a_promoted_copy_is_pinned() {
    let mut h = Harness::new();
    let view = h.fetch(A, "x", 5, SIZE);
    h.sent();
    h.event(Event::FromShard {
        shard: 0,
        message: ToStore::Promote { id: id("x"), put: PutId(5) },
    });
    assert_eq!(h.publication().1.retention, Retention::Pinned);
    let status = h.node.status();
    assert_eq!((status.evictable_bytes, status.pinned_bytes), (0, view.extent.length_bytes));
    let call = h.create(A, "all", CAPACITY - 64);
    h.assert_waits(call);
}

#[test]
fn an_object_that_nobody_else_has_is_taken_over() {
    let take_over = |name: &str| ToStore::TakeOver {
        id: id(name),
        put: PutId(5),
        metadata: hoplite_core::Metadata::default(),
        bytes: bytes::Bytes::from_static(b"bytes").into(),
    };
    let mut h = Harness::with_shards(2);
    let call = h.get(A, "x");
    h.sent();
    h.event(Event::FromShard { shard: 1, message: take_over("x") });
    let view = h.view(call);
    assert_eq!((view.put, view.size_bytes), (PutId(5), 5));
    assert_eq!(h.inline().len(), 2, "both shards get the bytes, should they not have them");
    h.release(A, view.copy);
    let status = h.node.status();
    assert_eq!((status.evictable_bytes, status.pinned_bytes), (0, view.extent.length_bytes));
    h.sent();
    h.event(Event::FromShard { shard: 0, message: take_over("x") });
    assert!(h.publications().iter().all(|(_, publish)| publish.retention == Retention::Pinned));
    h.drop_put(0, "x", PutId(5), DropReason::Deleted);
    h.put_held(B, "all", CAPACITY - 64);
    h.sent();
    h.event(Event::FromShard { shard: 0, message: take_over("y") });
    assert_eq!(h.told(), Vec::<String>::new());
}

#[test]
fn a_shard_that_hands_an_object_over_hears_who_keeps_it_even_if_others_are_responsible_now() {
    for shard in 0..3 {
        let mut h = Harness::with_shards(3);
        h.sent();
        for time in ["first", "again"] {
            let metadata = hoplite_core::Metadata::default();
            let bytes = bytes::Bytes::from_static(b"bytes").into();
            let message = ToStore::TakeOver { id: id("x"), put: PutId(5), metadata, bytes };
            h.event(Event::FromShard { shard, message });
            let told: Vec<usize> = h.publications().into_iter().map(|(told, _)| told).collect();
            assert!(told.contains(&shard) && told.len() >= 2, "{time}: {shard} of {told:?}");
        }
        h.drop_put((shard + 1) % 3, "x", PutId(5), DropReason::Deleted);
        let told = h.told();
        assert!(told.contains(&format!("{shard} unpublish x Deleted")), "{told:?}");
    }
}

#[test]
fn a_shard_that_hands_over_an_earlier_put_than_the_accepted_one_is_told_to_forget_it() {
    for has_accepted in [true, false] {
        let mut h = Harness::with_shards(2);
        let second = h.shards.ranked(&id("x"))[1];
        let call = h.create(A, "x", SIZE);
        let view = h.view(call);
        h.seal(A, view.copy);
        if has_accepted {
            h.accept_all();
        }
        h.sent();
        let message = ToStore::TakeOver {
            id: id("x"),
            put: PutId(5),
            metadata: hoplite_core::Metadata::default(),
            bytes: bytes::Bytes::from_static(b"bytes").into(),
        };
        h.event(Event::FromShard { shard: second, message });
        let told = if has_accepted { vec![format!("{second} forget x")] } else { Vec::new() };
        assert_eq!(h.told(), told);
        assert_eq!(h.node.status().pinned_bytes, view.extent.length_bytes);
    }
}

#[test]
fn a_served_copy_keeps_its_memory_after_its_deletion() {
    let mut h = Harness::new();
    let view = h.put(A, "x", SIZE);
    let serves: Vec<_> =
        (0..2).map(|_| h.serve("x", view.put).expect("a complete copy is served")).collect();
    h.drop_put(0, "x", view.put, DropReason::Deleted);
    for serve in serves {
        assert!(!h.is_closed(view.copy));
        h.event(Event::ServeEnded { serve });
    }
    h.assert_empty();
}

#[test]
fn a_client_that_dies_in_a_get_leaves_no_trace() {
    let mut h = Harness::new();
    h.get(A, "x");
    h.gone(A);
    h.assert_empty();
    h.sent();
    h.get(A, "x");
    let pull = h.grant("x", 5, SIZE, "n1");
    h.gone(A);
    h.pull_ended(&pull, 0, PullOutcome::SenderUnreachable);
    h.assert_empty();
    let view = h.fetch_held(A, "x", 5, SIZE);
    let call = h.get(A, "x");
    assert_eq!(h.view(call).copy, view.copy);
    h.gone(A);
    assert_eq!(h.node.status().evictable_bytes, view.extent.length_bytes);
}

#[test]
fn an_object_without_bytes_is_not_read_before_its_seal() {
    let mut h = Harness::new();
    let call = h.create(A, "x", 0);
    let view = h.view(call);
    let early = h.get_started(B, "x");
    h.assert_waits(early);
    h.seal(A, view.copy);
    assert_eq!(h.view(early).copy, view.copy);
}

#[test]
fn a_sender_is_replaceable_while_another_holder_has_not_failed() {
    let mut h = Harness::new();
    h.get(A, "x");
    let pull = h.grant("x", 5, SIZE, "n1");
    h.pull_ended(&pull, 0, PullOutcome::SenderStalled);
    h.grant("x", 5, SIZE, "n2");
    let replaceable = h.effects.iter().filter_map(|effect| match effect {
        Effect::StartPull { is_replaceable, .. } => Some(*is_replaceable),
        _ => None,
    });
    assert_eq!(replaceable.collect::<Vec<_>>(), [true, false]);
}
