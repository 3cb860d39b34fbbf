use std::time::Duration;

use hoplite_core::missing::Named;
use hoplite_core::node::*;
use hoplite_core::shard::{DeleteWait, DropReason, PullOutcome, ToShard, ToStore, Verdict};
use hoplite_core::{Error, Limits, Metadata, PutId};

use crate::harness::*;

fn put(name: &str, size_bytes: u64) -> Request {
    put_as(name, size_bytes, Confirm::No)
}

fn put_as(name: &str, size_bytes: u64, confirm: Confirm) -> Request {
    let bytes = vec![1; usize::try_from(size_bytes).expect("objects of tests are small")].into();
    Request::Put { id: id(name), metadata: Metadata::default(), bytes, confirm, timeout: LONG }
}

fn get(name: &str, timeout: Duration) -> Request {
    Request::Get { id: id(name), until: Until::Contents, timeout, allow_stale: false }
}

fn batch(h: &mut Harness, requests: Vec<Request>) -> (ClientId, CallId) {
    h.request(A, Request::Batch(requests))
}

#[track_caller]
fn answers(h: &mut Harness, call: (ClientId, CallId)) -> Vec<Answer> {
    match h.answer(call) {
        Some(Ok(Response::Batch(answers))) => answers,
        other => panic!("expected answers to a batch, got {other:?}"),
    }
}

#[test]
fn every_item_has_its_own_result() {
    let mut h = Harness::new();
    h.put(A, "taken", SIZE);
    let requests = vec![put("a", SMALL), put("taken", SMALL), put("b", SMALL), get("taken", LONG)];
    let call = batch(&mut h, requests);
    let answers = answers(&mut h, call);
    assert_eq!(answers[0], Ok(Response::Sealed));
    assert_eq!(answers[1], Err(Error::AlreadyExists { id: id("taken") }));
    assert_eq!(answers[2], Ok(Response::Sealed));
    let Ok(Response::Object(view)) = &answers[3] else { panic!("{:?} is no view", answers[3]) };
    assert_eq!(view.size_bytes, SIZE);
    h.release(A, view.copy);
}

#[test]
fn small_objects_come_as_bytes_without_a_reference() {
    let mut h = Harness::new();
    h.put(A, "small", SMALL);
    let call = batch(&mut h, vec![get("small", LONG), get("small", LONG)]);
    for answer in answers(&mut h, call) {
        assert!(matches!(answer, Ok(Response::Contents { .. })), "{answer:?}");
    }
    let (client, references) = (A, h.checker.references(A));
    assert!(references.is_empty(), "{client:?} holds {references:?}");
}

#[test]
fn a_batch_waits_for_its_last_item_and_holds_the_others() {
    let mut h = Harness::new();
    h.fetch(B, "here", 3, SIZE);
    let call = batch(&mut h, vec![get("here", LONG), get("later", LONG)]);
    h.assert_waits(call);
    assert_eq!(h.node.status().evictable_bytes, 0, "the batch holds the copy that is there");
    let pull = h.grant("later", 4, SIZE, "sender");
    h.pull_ended(&pull, SIZE, PullOutcome::Complete);
    h.accept_all();
    let views = answers(&mut h, call);
    assert!(views.iter().all(|answer| matches!(answer, Ok(Response::Object(_)))), "{views:?}");
    h.gone(A);
    assert_eq!(h.node.status().evictable_bytes, 2 * (SIZE + 64));
}

#[test]
fn at_the_deadline_only_missing_items_fail() {
    let mut h = Harness::new();
    h.put(A, "here", SMALL);
    let timeout = Duration::from_secs(2);
    let call = batch(&mut h, vec![get("absent", timeout), get("here", timeout)]);
    h.pass(timeout);
    let answers = answers(&mut h, call);
    assert!(matches!(answers[0], Err(Error::Timeout { .. })), "{answers:?}");
    assert!(matches!(answers[1], Ok(Response::Contents { .. })), "{answers:?}");
}

#[test]
fn a_batch_of_deletes_tells_which_ids_named_objects() {
    let mut h = Harness::new();
    h.put(A, "a", SMALL);
    h.sent();
    let delete = |name: &str| Request::Delete {
        ids: vec![id(name)],
        timeout: LONG,
        wait: DeleteWait::Reachable,
    };
    let call = batch(&mut h, vec![delete("a"), delete("b")]);
    let deletes = h.sent().into_iter().filter_map(|(shard, message)| match message {
        ToShard::Delete { request, id, .. } => Some((shard, request, id)),
        _ => None,
    });
    for (shard, request, asked) in deletes.collect::<Vec<_>>() {
        let put = (asked == id("a")).then_some(PutId(5));
        h.event(Event::FromShard {
            shard,
            message: ToStore::DeleteDone { request, put, absent: Named::of([]) },
        });
    }
    let expected = vec![
        Ok(Response::Deleted { count: 1, absent: Named::of([]) }),
        Ok(Response::Deleted { count: 0, absent: Named::of([]) }),
    ];
    assert_eq!(answers(&mut h, call), expected);
}

#[test]
fn a_confirmed_put_of_a_batch_waits_for_the_directory() {
    let mut h = Harness::new();
    let call = batch(&mut h, vec![put("a", SMALL), put_as("b", SMALL, Confirm::Yes)]);
    h.assert_waits(call);
    for (shard, publish) in h.publications() {
        let verdict = if publish.id == id("b") { Verdict::ShardFull } else { Verdict::Accepted };
        h.verdict(shard, &publish, verdict);
    }
    let answers = answers(&mut h, call);
    assert_eq!(answers[0], Ok(Response::Sealed));
    assert!(matches!(answers[1], Err(Error::LimitExceeded { .. })), "{answers:?}");
}

#[test]
fn nothing_is_left_of_a_cancelled_batch_or_of_a_client_that_left() {
    for leaves in [false, true] {
        let mut h = Harness::new();
        h.fetch(B, "here", 3, SIZE);
        let (client, call) = batch(&mut h, vec![get("here", LONG), get("absent", LONG)]);
        h.sent();
        if leaves {
            h.gone(client);
        } else {
            h.request(client, Request::Cancel { call });
        }
        assert_eq!(h.node.status().evictable_bytes, SIZE + 64);
        assert_eq!(h.told(), ["0 cancel"], "the query for the missing object ends");
        h.pass(LONG);
        assert_eq!(h.answer((client, call)), None);
    }
}

#[test]
fn the_items_of_open_batches_are_limited_before_anything_is_done() {
    let mut h = Harness::with_limits(Limits { max_ids_per_request: 3, ..Limits::default() });
    let waiting = batch(&mut h, vec![get("x", LONG), get("y", LONG)]);
    let refused = batch(&mut h, vec![put("a", SMALL), put("b", SMALL)]);
    assert!(matches!(h.error(refused), Error::LimitExceeded { maximum: 3, .. }));
    assert_eq!(h.node.status().copies, 0, "no item was performed");
    let fits = batch(&mut h, vec![put("a", SMALL)]);
    assert_eq!(answers(&mut h, fits), [Ok(Response::Sealed)]);
    let (client, call) = waiting;
    h.request(client, Request::Cancel { call });
    let fits = batch(&mut h, vec![put("b", SMALL), put("c", SMALL)]);
    assert_eq!(answers(&mut h, fits).len(), 2);
}

#[test]
fn an_object_that_is_deleted_meanwhile_stays_readable() {
    let mut h = Harness::new();
    let view = h.put(B, "gone", SIZE);
    let call = batch(&mut h, vec![get("gone", LONG), get("absent", Duration::from_secs(1))]);
    h.drop_put(0, "gone", view.put, DropReason::Deleted);
    h.pass(Duration::from_secs(1));
    let answers = answers(&mut h, call);
    assert!(
        matches!(&answers[0], Ok(Response::Object(held)) if held.copy == view.copy),
        "{answers:?}"
    );
    assert_eq!(h.node.status().copies, 1);
    h.release(A, view.copy);
    assert_eq!(h.node.status().copies, 0);
}

#[test]
fn a_shutdown_answers_every_item() {
    let mut h = Harness::new();
    let call = batch(&mut h, vec![get("a", LONG), put("b", SMALL)]);
    h.event(Event::ShutDown);
    assert_eq!(answers(&mut h, call), [Err(Error::ShuttingDown), Ok(Response::Sealed)]);
}

#[test]
fn a_client_cannot_release_what_its_batch_holds() {
    let mut h = Harness::new();
    let view = h.fetch(A, "here", 3, SMALL);
    let call = batch(&mut h, vec![get("here", LONG), get("later", LONG)]);
    h.release(A, view.copy);
    assert_eq!(h.node.status().evictable_bytes, 0);
    let pull = h.grant("later", 4, SMALL, "sender");
    h.pull_ended(&pull, SMALL, PullOutcome::Complete);
    assert!(
        answers(&mut h, call).iter().all(|answer| matches!(answer, Ok(Response::Contents { .. })))
    );
    h.release(A, view.copy);
}

#[test]
fn a_batch_beyond_the_references_of_its_client_fails_in_part() {
    let mut h = Harness::with_limits(Limits { max_references_per_client: 1, ..limits() });
    h.put(A, "a", SIZE);
    h.put(A, "b", SIZE);
    let call = batch(&mut h, vec![get("a", LONG), get("b", LONG)]);
    let answers = answers(&mut h, call);
    assert!(matches!(answers[0], Ok(Response::Object(_))), "{answers:?}");
    assert!(matches!(answers[1], Err(Error::LimitExceeded { maximum: 1, .. })), "{answers:?}");
}
