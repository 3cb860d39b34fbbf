use std::time::Duration;

use hoplite_core::node::*;
use hoplite_core::shard::{DropReason, LocationState, Retention, Verdict};
use hoplite_core::{Error, Metadata};

use crate::harness::*;

#[test]
fn a_put_is_published_when_it_starts_and_when_it_is_sealed() {
    let mut h = Harness::new();
    let call = h.create(A, "x", SIZE);
    let view = h.view(call);
    let (shard, publish) = h.publication();
    assert_eq!((publish.state, publish.retention), (LocationState::Producing, Retention::Pinned));
    h.verdict(shard, &publish, Verdict::Accepted);

    let sealed = h.seal(A, view.copy);
    assert_eq!(h.answer(sealed), Some(Ok(Response::Sealed)));
    assert_eq!(h.publication().1.state, LocationState::Complete);
    assert_eq!(h.checker.references(A), [view.copy]);
    assert_eq!(h.node.status().pinned_bytes, view.extent.length_bytes);
}

#[test]
fn a_seal_that_the_directory_does_not_confirm_times_out_and_the_object_stays() {
    let mut h = Harness::new();
    let call = h.create(A, "x", SIZE);
    let view = h.view(call);
    let sealed = h.request(A, Request::Seal { copy: view.copy, timeout: Duration::from_secs(1) });
    h.pass(Duration::from_secs(1));
    assert!(matches!(h.error(sealed), Error::Timeout { .. }));
    let call = h.get(B, "x");
    assert_eq!(h.view(call).copy, view.copy);
}

#[test]
fn an_object_whose_put_is_not_confirmed_is_published_once_when_it_is_sealed() {
    let mut h = Harness::new();
    let call = h.create(A, "x", UNCONFIRMED);
    let view = h.view(call);
    assert_eq!(h.told(), Vec::<String>::new());
    let sealed = h.seal(A, view.copy);
    let (shard, publish) = h.publication();
    assert_eq!(publish.state, LocationState::Complete);
    assert!(h.inline().is_empty(), "it is too large for the directory");
    h.verdict(shard, &publish, Verdict::Accepted);
    assert_eq!(h.answer(sealed), Some(Ok(Response::Sealed)));
}

#[test]
fn an_inline_object_is_published_only_when_sealed_and_with_its_bytes() {
    let mut h = Harness::new();
    let call = h.create(A, "x", SMALL);
    let view = h.view(call);
    assert_eq!(h.told(), Vec::<String>::new());
    let sealed = h.seal(A, view.copy);
    assert_eq!(h.inline(), [view.copy]);
    h.accept_all();
    assert_eq!(h.answer(sealed), Some(Ok(Response::Sealed)));
}

#[test]
fn an_unconfirmed_seal_is_not_answered() {
    let mut h = Harness::new();
    let call = h.create(A, "x", SMALL);
    let view = h.view(call);
    let sealed = h.request(A, Request::SealUnconfirmed { copy: view.copy });
    h.accept_all();
    h.assert_waits(sealed);
    let call = h.get(B, "x");
    assert_eq!(h.view(call).copy, view.copy);
}

fn whole(name: &str, size_bytes: u64, confirm: Confirm) -> Request {
    let bytes = vec![7; usize::try_from(size_bytes).expect("it is small")].into();
    Request::Put { id: id(name), metadata: Metadata::default(), bytes, confirm, timeout: LONG }
}

#[test]
fn a_put_by_one_request_is_answered_at_once_unless_it_is_to_be_confirmed() {
    let mut h = Harness::new();
    let unconfirmed = h.request(A, whole("x", SMALL, Confirm::No));
    assert_eq!(h.answer(unconfirmed), Some(Ok(Response::Sealed)));
    assert_eq!(h.inline().len(), 1, "it is published with its bytes, once");
    let confirmed = h.request(A, whole("y", SMALL, Confirm::Yes));
    h.assert_waits(confirmed);
    h.accept_all();
    assert_eq!(h.answer(confirmed), Some(Ok(Response::Sealed)));
    assert_eq!(h.checker.references(A), []);
    assert_eq!(h.node.status().pinned_bytes, 2 * (SMALL + 64).next_multiple_of(64));
    let call = h.get(B, "x");
    assert_eq!(h.view(call).size_bytes, SMALL);
}

#[test]
fn a_put_by_one_request_of_what_exists_is_referred_to_it_or_refused() {
    let mut h = Harness::new();
    let put = h.put(A, "x", SMALL);
    let call = h.request(B, whole("x", SMALL, Confirm::Yes));
    assert_eq!(h.answer(call), Some(Ok(Response::Existing(put))));
    let call = h.request(B, whole("x", SMALL + 1, Confirm::Yes));
    assert_eq!(h.error(call), Error::AlreadyExists { id: id("x") });
}

#[test]
fn a_put_that_is_confirmed_only_when_it_is_repeated_waits_for_the_directory_too() {
    let mut h = Harness::new();
    let first = h.request(A, whole("x", SMALL, Confirm::Yes));
    h.pass(LONG);
    assert!(matches!(h.error(first), Error::Timeout { .. }));
    let again = [A, B].map(|client| h.request(client, whole("x", SMALL, Confirm::Yes)));
    for call in again {
        h.assert_waits(call);
    }
    let unconfirmed = h.request(B, whole("x", SMALL, Confirm::No));
    assert!(matches!(h.answer(unconfirmed), Some(Ok(Response::Existing(_)))));
    h.accept_all();
    for call in again {
        assert!(matches!(h.answer(call), Some(Ok(Response::Existing(_)))));
    }
    let third = h.request(B, whole("x", SMALL, Confirm::Yes));
    assert!(matches!(h.answer(third), Some(Ok(Response::Existing(_)))), "it is known");
}

#[test]
fn a_put_by_one_request_waits_for_room_and_has_one_deadline() {
    let mut h = Harness::new();
    let full = h.put(A, "full", CAPACITY - 64);
    let call = h.request(A, whole("x", SMALL, Confirm::Yes));
    h.assert_waits(call);
    h.pass(LONG - Duration::from_secs(1));
    h.drop_put(0, "full", full.put, DropReason::Deleted);
    h.assert_waits(call);
    assert_eq!(h.inline().len(), 1, "there is room now");
    h.pass(Duration::from_secs(1));
    assert!(matches!(h.error(call), Error::Timeout { .. }), "the directory has not answered");
}

#[test]
fn puts_that_wait_leave_a_bounded_number_of_bytes_here() {
    const PART: u64 = 256 << 10;
    let mut h = Harness::new();
    h.put(A, "full", CAPACITY - 64);
    let mut waiting = Vec::new();
    for number in 0..256 {
        waiting.push(h.request(A, whole(&format!("x-{number}"), PART, Confirm::No)));
    }
    let refused = h.request(A, whole("y", 1, Confirm::No));
    assert!(matches!(h.error(refused), Error::LimitExceeded { .. }));
    h.request(A, Request::Cancel { call: waiting[0].1 });
    let call = h.request(A, whole("z", PART, Confirm::No));
    h.assert_waits(call);
}

#[test]
fn an_empty_object_is_an_object() {
    let mut h = Harness::new();
    let put = h.put(A, "x", 0);
    let call = h.get(B, "x");
    let view = h.view(call);
    assert_eq!((view.copy, view.size_bytes), (put.copy, 0));
}

#[test]
fn an_object_that_exists_with_another_size_is_refused() {
    let mut h = Harness::new();
    h.put(A, "x", SIZE);
    let call = h.create(B, "x", SIZE + 1);
    assert_eq!(h.error(call), Error::AlreadyExists { id: id("x") });
}

#[test]
fn an_object_that_exists_with_other_metadata_is_refused() {
    let mut h = Harness::new();
    h.put(A, "x", SIZE);
    let metadata = Metadata { shape: Some(vec![SIZE]), ..Metadata::default() };
    let call =
        h.request(B, Request::Create { id: id("x"), size_bytes: SIZE, metadata, timeout: LONG });
    assert_eq!(h.error(call), Error::AlreadyExists { id: id("x") });
}

#[test]
fn metadata_that_disagrees_with_the_size_is_refused() {
    let mut h = Harness::new();
    let metadata = Metadata { shape: Some(vec![3]), ..Metadata::default() };
    let call =
        h.request(A, Request::Create { id: id("x"), size_bytes: SIZE, metadata, timeout: LONG });
    assert!(matches!(h.error(call), Error::InvalidMetadata(_)));
    h.assert_empty();
}

#[test]
fn a_second_create_times_out_while_the_first_writer_goes_on() {
    let mut h = Harness::new();
    let first = h.create(A, "x", SIZE);
    h.view(first);
    let second = h.create_within(B, "x", SIZE, Duration::from_secs(1));
    h.pass(Duration::from_secs(1));
    assert!(matches!(h.error(second), Error::Timeout { .. }));
}

#[test]
fn a_second_create_takes_over_when_the_first_writer_aborts() {
    let mut h = Harness::new();
    let first = h.create(A, "x", SIZE);
    let old = h.view(first);
    let second = h.create(B, "x", SIZE);
    h.sent();
    h.request(A, Request::Abort { copy: old.copy });
    match h.answer(second) {
        Some(Ok(Response::Created(view))) => assert_ne!(view.put, old.put),
        other => panic!("{other:?}"),
    }
    assert_eq!(h.told(), ["0 unpublish x Aborted", "0 publish x Producing"]);
    assert!(h.is_closed(old.copy));
}

#[test]
fn of_two_waiting_creates_only_one_takes_over() {
    let mut h = Harness::new();
    let first = h.create(A, "x", SIZE);
    let old = h.view(first);
    let second = h.create(B, "x", SIZE);
    let third = h.create(ClientId(3), "x", SIZE);
    h.request(A, Request::Abort { copy: old.copy });
    let view = h.view(second);
    h.assert_waits(third);
    h.seal(B, view.copy);
    assert_eq!(h.answer(third), Some(Ok(Response::Existing(view))));
}

#[test]
fn a_writer_that_dies_aborts_its_object_everywhere() {
    let mut h = Harness::with_shards(3);
    let call = h.create(A, "x", SIZE);
    let view = h.view(call);
    let get = h.get(B, "x");
    h.sent();
    h.gone(A);
    assert_eq!(h.error(get), Error::ObjectLost { id: id("x") });
    let told = h.told();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told.iter().all(|line| line.ends_with("unpublish x Aborted")), "{told:?}");
    assert!(h.is_closed(view.copy));
    h.assert_empty();
}

#[test]
fn those_who_wait_for_a_put_that_nobody_heard_of_ask_for_another() {
    let mut h = Harness::new();
    let call = h.create(A, "x", SMALL);
    h.view(call);
    let get = h.get(B, "x");
    assert_eq!(h.told(), Vec::<String>::new());
    h.gone(A);
    h.assert_waits(get);
    h.answer_inline("x", 5, b"another");
    assert_eq!(h.view(get).size_bytes, 7);
}

#[test]
fn a_writer_that_dies_while_it_is_served_leaves_the_memory_to_the_serve() {
    let mut h = Harness::new();
    let call = h.create(A, "x", SIZE);
    let view = h.view(call);
    let serve = h.serve("x", view.put).expect("a copy in progress is served");
    h.gone(A);
    assert!(h.is_failed(view.copy) && !h.is_closed(view.copy));
    h.event(Event::ServeEnded { serve });
    h.assert_empty();
}

#[test]
fn a_writer_that_dies_while_it_waits_for_room_or_for_a_verdict_leaves_nothing() {
    let mut h = Harness::new();
    let call = h.create(A, "x", CAPACITY - 64);
    let view = h.view(call);
    h.create(B, "y", SIZE);
    h.gone(B);
    h.seal(A, view.copy);
    h.gone(A);
    assert_eq!(h.node.status().copies, 1, "a sealed object stays");
    h.drop_put(0, "x", view.put, DropReason::Deleted);
    h.assert_empty();
}

#[test]
fn only_the_writer_seals_and_only_once() {
    let mut h = Harness::new();
    let call = h.create(A, "x", SIZE);
    let view = h.view(call);
    let foreign = h.seal(B, view.copy);
    assert_eq!(h.error(foreign), Error::UnknownReference { reference: view.copy.0 });
    h.accept_all();
    let sealed = h.seal(A, view.copy);
    assert_eq!(h.answer(sealed), Some(Ok(Response::Sealed)));
    let again = h.seal(A, view.copy);
    assert_eq!(h.error(again), Error::UnknownReference { reference: view.copy.0 });
    let unknown = h.seal(A, CopyId(999));
    assert_eq!(h.error(unknown), Error::UnknownReference { reference: 999 });
}

#[test]
fn a_put_that_is_deleted_while_it_is_written_fails_at_the_seal() {
    let mut h = Harness::new();
    let call = h.create(A, "x", SIZE);
    let view = h.view(call);
    h.drop_put(0, "x", view.put, DropReason::Deleted);
    assert!(h.is_failed(view.copy) && !h.is_closed(view.copy));
    let sealed = h.seal(A, view.copy);
    assert_eq!(h.error(sealed), Error::Deleted { id: id("x") });
    h.release(A, view.copy);
    h.assert_empty();
}

#[test]
fn a_put_that_was_deleted_and_is_abandoned_frees_its_memory() {
    let mut h = Harness::new();
    let call = h.create(A, "x", SIZE);
    let view = h.view(call);
    h.drop_put(0, "x", view.put, DropReason::Deleted);
    h.gone(A);
    h.assert_empty();
}

#[test]
fn a_full_shard_fails_the_put() {
    let mut h = Harness::new();
    let call = h.create(A, "x", SMALL);
    let view = h.view(call);
    let sealed = h.seal(A, view.copy);
    let (shard, publish) = h.publication();
    h.verdict(shard, &publish, Verdict::ShardFull);
    assert!(matches!(h.error(sealed), Error::LimitExceeded { .. }));
    h.release(A, view.copy);
    h.assert_empty();
}

#[test]
fn an_abort_counts_although_its_client_reads_the_object() {
    let mut h = Harness::new();
    let call = h.create(A, "x", SIZE);
    let view = h.view(call);
    let reader = h.get_started(A, "x");
    assert_eq!(h.view(reader), view);
    let get = h.get(B, "x");
    h.request(A, Request::Abort { copy: view.copy });
    assert!(h.is_failed(view.copy), "who follows it is told");
    assert_eq!(h.error(get), Error::ObjectLost { id: id("x") });
    assert!(!h.is_closed(view.copy));
    h.release(A, view.copy);
    h.assert_empty();
}
