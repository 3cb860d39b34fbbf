//! Shards of version 8 ignore the terms of deletes and the quorum of puts.

use bytes::Bytes;
use hoplite_core::metadata::Replicas;
use hoplite_core::missing::Named;
use hoplite_core::node::*;
use hoplite_core::shard::{
    DeleteTerms, DeleteWait, RequestId, ShardRun, ToShard, ToStore, Verdict,
};
use hoplite_core::{Error, Metadata, NodeId, PutId, Time, Version};

use crate::harness::*;

fn old(shard: usize) -> Event {
    Event::ShardUp { shard, run: ShardRun(1), asked_at: Time::NEVER, version: Version::OLDEST }
}

fn with_old_second() -> (Harness, [usize; 2]) {
    let mut h = Harness::disconnected(2, limits());
    let [first, second] = h.shards.ranked(&id("x"))[..] else { panic!("there are two shards") };
    h.event(up(first));
    h.event(old(second));
    (h, [first, second])
}

/// The error as sent. The client, which decodes it, swaps its sides.
fn mismatch() -> Error {
    Error::VersionMismatch { ours: Version::OLDEST.number(), theirs: Version::WITH_TERMS }
}

fn delete(wait: DeleteWait) -> Request {
    Request::Delete { ids: vec![id("x")], timeout: LONG, wait }
}

fn put_with_quorum(h: &mut Harness) -> (ClientId, CallId) {
    let replicas = Replicas { quorum: true, ..Replicas::default() };
    let metadata = Metadata { replicas, ..Metadata::default() };
    let bytes = Bytes::from_static(b"bytes");
    h.request(A, Request::Put { id: id("x"), metadata, bytes, confirm: Confirm::No, timeout: LONG })
}

#[track_caller]
fn sent_delete(h: &mut Harness, shard: usize) -> (RequestId, DeleteTerms) {
    match &h.sent()[..] {
        [(at, ToShard::Delete { request, terms, .. })] if *at == shard => (*request, *terms),
        other => panic!("{other:?}"),
    }
}

fn deleted(
    h: &mut Harness,
    shard: usize,
    request: RequestId,
    put: Option<u64>,
    absent: Option<NodeId>,
) {
    let message = ToStore::DeleteDone { request, put: put.map(PutId), absent: Named::of(absent) };
    h.event(Event::FromShard { shard, message });
}

#[test]
fn a_delete_that_waits_for_all_is_refused_while_a_shard_of_the_id_is_old() {
    let (mut h, _) = with_old_second();
    let call = h.request(A, delete(DeleteWait::All));
    assert_eq!(h.error(call), mismatch());
    assert_eq!(h.told(), Vec::<String>::new(), "nothing is deleted");
}

#[test]
fn a_delete_that_waits_for_all_fails_when_it_moves_to_an_old_shard() {
    let mut h = Harness::disconnected(2, limits());
    let [first, second] = h.shards.ranked(&id("x")).try_into().unwrap();
    h.event(up(first));
    let call = h.request(A, delete(DeleteWait::All));
    let (_, terms) = sent_delete(&mut h, first);
    assert_eq!(terms, DeleteTerms { only: None, wait: DeleteWait::All });
    h.event(Event::ShardDown { shard: first });
    h.assert_waits(call);
    h.event(old(second));
    assert_eq!(h.error(call), mismatch());
    assert!(h.told().iter().all(|told| !told.contains("delete")), "the old shard would not wait");
}

#[test]
fn a_delete_that_waits_for_all_fails_when_an_old_shard_becomes_the_second_one() {
    let mut h = Harness::disconnected(2, limits());
    let [first, second] = h.shards.ranked(&id("x")).try_into().unwrap();
    h.event(up(first));
    let call = h.request(A, delete(DeleteWait::All));
    let (request, _) = sent_delete(&mut h, first);
    deleted(&mut h, first, request, Some(5), Some(node_id("absent")));
    h.event(old(second));
    h.assert_waits(call);
    deleted(&mut h, first, request, None, None);
    assert_eq!(h.error(call), mismatch());
}

#[test]
fn an_old_shard_forgets_the_deleted_put_and_keeps_a_newer_one() {
    let (mut h, [first, second]) = with_old_second();
    let call = h.delete(A, &["x"]);
    let (request, _) = sent_delete(&mut h, first);
    deleted(&mut h, first, request, Some(5), None);
    assert_eq!(h.sent(), [(second, ToShard::Forget { id: id("x"), put: PutId(5) })]);
    assert_eq!(h.answer(call), Some(Ok(Response::Deleted { count: 1, absent: Named::of([]) })));
}

#[test]
fn a_delete_that_moves_to_an_old_shard_spares_newer_puts() {
    let mut h = Harness::with_shards(2);
    let [first, second] = h.shards.ranked(&id("x")).try_into().unwrap();
    let call = h.delete(A, &["x"]);
    let (request, _) = sent_delete(&mut h, first);
    deleted(&mut h, first, request, Some(5), None);
    sent_delete(&mut h, second);
    h.event(Event::ShardDown { shard: first });
    h.event(Event::ShardDown { shard: second });
    h.assert_waits(call);
    h.event(old(second));
    assert!(h.told().iter().all(|told| *told == format!("{second} forget x")));
    assert_eq!(h.answer(call), Some(Ok(Response::Deleted { count: 1, absent: Named::of([]) })));
}

#[test]
fn an_old_shard_deletes_an_object_that_the_first_one_does_not_know() {
    let (mut h, [first, second]) = with_old_second();
    let call = h.delete(A, &["x"]);
    let (request, _) = sent_delete(&mut h, first);
    deleted(&mut h, first, request, None, None);
    let (request, terms) = sent_delete(&mut h, second);
    assert_eq!(terms, DeleteTerms::default());
    deleted(&mut h, second, request, Some(5), None);
    assert_eq!(h.answer(call), Some(Ok(Response::Deleted { count: 1, absent: Named::of([]) })));
}

#[test]
fn a_put_with_a_quorum_is_refused_while_a_shard_of_the_id_is_old() {
    let (mut h, _) = with_old_second();
    let call = put_with_quorum(&mut h);
    assert_eq!(h.error(call), mismatch());
    assert_eq!(h.told(), Vec::<String>::new());
    h.assert_empty();
}

#[test]
fn an_old_shard_hears_of_a_put_without_its_quorum() {
    let mut h = Harness::disconnected(3, limits());
    let [first, second, third] = h.shards.ranked(&id("x")).try_into().unwrap();
    h.event(up(first));
    h.event(up(second));
    h.event(old(third));
    let call = put_with_quorum(&mut h);
    for (shard, publish) in h.publications() {
        assert!(publish.metadata.replicas.quorum);
        h.verdict(shard, &publish, Verdict::Accepted);
    }
    assert_eq!(h.answer(call), Some(Ok(Response::Sealed)));
    h.event(Event::ShardDown { shard: first });
    let (shard, publish) = h.publication();
    assert_eq!((shard, publish.metadata.replicas.quorum), (third, false));
}
