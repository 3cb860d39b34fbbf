use std::time::Duration;

use hoplite_core::error::Missing;
use hoplite_core::metadata::Replicas;
use hoplite_core::node::*;
use hoplite_core::shard::{
    Lead, LocationState, Obstacle, PullOutcome, Replicate, Replication, Retention, ToShard,
    ToStore, Verdict,
};
use hoplite_core::{Error, Metadata, PutId};

use crate::harness::*;

fn wanting(wanted: u8, awaited: u8) -> Metadata {
    Metadata { replicas: Replicas { wanted, awaited, quorum: false }, ..Metadata::default() }
}

impl Harness {
    fn put_wanting(&mut self, name: &str, metadata: Metadata) -> (ObjectView, (ClientId, CallId)) {
        let create = Request::Create { id: id(name), size_bytes: SIZE, metadata, timeout: LONG };
        let call = self.request(A, create);
        let view = self.view(call);
        let timeout = Duration::from_secs(1);
        (view.clone(), self.request(A, Request::Seal { copy: view.copy, timeout }))
    }

    fn say_copies(&mut self, shard: usize, name: &str, put: PutId, copies: u32, nodes: u32) {
        let news =
            Replication { id: id(name), put, copies, nodes, is_draining: false, obstacle: None };
        self.event(Event::FromShard { shard, message: ToStore::Replication(news) });
    }

    fn order(&mut self, shard: usize, name: &str, put: u64, size_bytes: u64) {
        let order =
            Replicate { id: id(name), put: PutId(put), size_bytes, metadata: wanting(2, 0) };
        self.event(Event::FromShard { shard, message: ToStore::Replicate(order) });
    }

    fn leads(&mut self) -> Vec<(usize, bool, bool)> {
        let sent = self.sent();
        let lead = |(shard, message): &(usize, ToShard)| match message {
            ToShard::Lead(Lead { leads, is_new, .. }) => Some((*shard, *leads, *is_new)),
            _ => None,
        };
        sent.iter().filter_map(lead).collect()
    }

    fn refusals(&mut self) -> Vec<Obstacle> {
        let sent = self.sent();
        let refusal = |(_, message): &(usize, ToShard)| match message {
            ToShard::NotReplicated { reason, .. } => Some(*reason),
            _ => None,
        };
        sent.iter().filter_map(refusal).collect()
    }
}

#[test]
fn a_put_waits_until_all_copies_exist() {
    let mut h = Harness::new();
    let (view, sealed) = h.put_wanting("x", wanting(3, 0));
    h.accept_all();
    assert_eq!(h.leads(), [(0, true, true)]);
    h.assert_waits(sealed);
    for copies in [1, 2] {
        h.say_copies(0, "x", view.put, copies, 3);
        h.assert_waits(sealed);
    }
    h.say_copies(0, "x", view.put, 3, 3);
    assert_eq!(h.answer(sealed), Some(Ok(Response::Sealed)));
}

#[test]
fn a_put_may_return_after_some_copies() {
    for (awaited, copies) in [(1, 0), (2, 2)] {
        let mut h = Harness::new();
        let (view, sealed) = h.put_wanting("x", wanting(3, awaited));
        if copies > 0 {
            h.say_copies(0, "x", view.put, copies, 3);
            h.assert_waits(sealed);
        }
        h.accept_all();
        assert_eq!(h.answer(sealed), Some(Ok(Response::Sealed)), "after {awaited} copies");
    }
}

#[test]
fn a_small_put_that_wants_copies_waits_for_them_too() {
    let mut h = Harness::new();
    let bytes = bytes::Bytes::from(vec![1; 10]);
    let request = |confirm| Request::Put {
        id: id("x"),
        metadata: wanting(2, 0),
        bytes: bytes.clone(),
        confirm,
        timeout: LONG,
    };
    let call = h.request(A, request(Confirm::No));
    h.assert_waits(call);
    let (_, publish) = h.publication();
    h.verdict(0, &publish, Verdict::Accepted);
    h.say_copies(0, "x", publish.put, 1, 2);
    let again = h.request(B, request(Confirm::Yes));
    h.assert_waits(again);
    h.say_copies(0, "x", publish.put, 2, 2);
    assert_eq!(h.answer(call), Some(Ok(Response::Sealed)));
    assert!(
        matches!(h.answer(again), Some(Ok(Response::Existing(_)))),
        "a repeated put waits as long"
    );
}

#[test]
fn a_repeated_put_that_wants_more_copies_asks_for_the_number_of_nodes() {
    let put = |wanted| Request::Put {
        id: id("x"),
        metadata: wanting(wanted, 0),
        bytes: bytes::Bytes::from_static(&[1; 10]),
        confirm: Confirm::Yes,
        timeout: LONG,
    };
    for before in [1, 2] {
        let mut h = Harness::new();
        let call = h.request(A, put(before));
        let (_, publish) = h.publication();
        h.verdict(0, &publish, Verdict::Accepted);
        h.say_copies(0, "x", publish.put, before.into(), 2);
        assert_eq!(h.answer(call), Some(Ok(Response::Sealed)));
        h.sent();
        let refused = h.request(A, put(4));
        assert_eq!(h.leads(), [(0, true, false)]);
        h.assert_waits(refused);
        h.say_copies(0, "x", publish.put, before.into(), 3);
        assert_eq!(h.error(refused), Error::NotEnoughNodes { wanted: 4, present: 3 });
        assert!(h.publications().is_empty(), "the shard hears of no wish");
        let more = h.request(A, put(3));
        assert_eq!(h.leads(), [(0, true, false)]);
        h.say_copies(0, "x", publish.put, before.into(), 3);
        let (_, again) = h.publication();
        assert_eq!(again.metadata.replicas.wanted, 3);
        h.assert_waits(more);
        h.say_copies(0, "x", publish.put, 3, 3);
        assert!(matches!(h.answer(more), Some(Ok(Response::Existing(_)))), "from {before}");
    }
}

#[test]
fn a_put_that_wants_more_copies_than_nodes_fails_and_leaves_nothing() {
    let mut h = Harness::new();
    let (view, sealed) = h.put_wanting("x", wanting(3, 0));
    h.accept_all();
    h.say_copies(0, "x", view.put, 1, 2);
    assert_eq!(h.error(sealed), Error::NotEnoughNodes { wanted: 3, present: 2 });
    let forgotten =
        h.sent().into_iter().any(|(_, message)| matches!(message, ToShard::Forget { .. }));
    assert!(forgotten, "the directory forgets the put");
    h.release(A, view.copy);
    h.assert_empty();
}

#[test]
fn a_timeout_says_how_many_copies_exist() {
    let mut h = Harness::new();
    let (view, sealed) = h.put_wanting("x", wanting(3, 0));
    h.accept_all();
    h.say_copies(0, "x", view.put, 2, 3);
    h.pass(Duration::from_secs(1));
    let Error::Timeout { missing, .. } = h.error(sealed) else { panic!("another error") };
    let missing = missing.map(|missing| *missing);
    assert_eq!(missing, Some(Missing::Replicas { id: id("x"), wanted: 3, present: 2 }));
    assert!(missing.is_some_and(|missing| missing.to_string().contains("2 of 3 copies")));
}

#[test]
fn the_first_connected_shard_is_told_and_its_successor() {
    let mut h = Harness::with_shards(2);
    let (view, sealed) = h.put_wanting("x", wanting(2, 0));
    h.accept_all();
    let first = h.shards.replicas(&id("x"), |_| true).next().unwrap();
    let second = 1 - first;
    assert_eq!(h.leads(), [(first, true, true)]);
    h.say_copies(second, "x", view.put, 2, 2);
    h.assert_waits(sealed);
    h.event(Event::ShardDown { shard: first });
    assert_eq!(h.leads(), [(second, true, true)]);
    h.say_copies(second, "x", view.put, 2, 2);
    assert_eq!(h.answer(sealed), Some(Ok(Response::Sealed)));
    h.event(up(first));
    assert_eq!(h.leads(), [(second, false, false), (first, true, false)]);
}

#[test]
fn without_replicas_no_shard_is_told_more_than_before() {
    let mut h = Harness::with_shards(2);
    h.put(A, "x", SIZE);
    assert_eq!(h.leads(), []);
    h.event(Event::ShardDown { shard: 0 });
    h.event(up(0));
    assert_eq!(h.leads(), []);
}

#[test]
fn an_ordered_object_is_fetched_and_kept() {
    let mut h = Harness::new();
    h.order(0, "x", 5, SIZE);
    let pull = h.grant("x", 5, SIZE, "sender");
    h.pull_ended(&pull, SIZE, PullOutcome::Complete);
    let (_, publish) = h.publication();
    assert_eq!((publish.state, publish.retention), (LocationState::Complete, Retention::Pinned));
    let call = h.create(A, "all", CAPACITY - 64);
    h.assert_waits(call);
}

#[test]
fn an_ordered_object_may_come_as_bytes_or_be_here_already() {
    let mut h = Harness::new();
    h.order(0, "x", 5, 5);
    h.answer_inline("x", 5, b"bytes");
    assert_eq!(h.publication().1.retention, Retention::Pinned);
    h.fetch(A, "y", 6, SIZE);
    h.sent();
    h.order(0, "y", 6, SIZE);
    assert_eq!(h.publication().1.retention, Retention::Pinned);
}

#[test]
fn an_order_that_cannot_be_followed_is_declined_with_the_reason() {
    let mut h = Harness::new();
    h.order(0, "huge", 5, CAPACITY);
    assert_eq!(h.refusals(), [Obstacle::NoRoom]);
    h.put(A, "mine", SIZE);
    h.sent();
    h.order(0, "mine", 5, SIZE);
    assert_eq!(h.refusals(), [Obstacle::Failed], "another put of the id is here");
    h.order(0, "gone", 6, SIZE);
    h.fail_query(Error::ObjectLost { id: id("gone") });
    assert_eq!(h.refusals(), [Obstacle::Failed]);
    h.order(0, "late", 7, SIZE);
    h.fail_query(Error::timeout(hoplite_core::Operation::Get, Duration::from_secs(10)));
    assert_eq!(h.refusals(), [Obstacle::Failed], "the shard looks for another store");
    h.order(0, "other", 8, SIZE);
    let (shard, query) = h.query();
    h.grant_query(shard, query.request, "other", 9, SIZE, "sender");
    assert_eq!(h.refusals(), [Obstacle::Failed], "another put has its id now");
    h.put_held(A, "most", CAPACITY - 3 * SIZE);
    h.sent();
    h.order(0, "full", 10, 3 * SIZE);
    assert_eq!(h.refusals(), [Obstacle::NoRoom]);
}

#[test]
fn a_get_of_an_ordered_object_shares_its_transfer() {
    let mut h = Harness::new();
    h.order(0, "x", 5, SIZE);
    let call = h.get(A, "x");
    let pull = h.grant("x", 5, SIZE, "sender");
    h.request(A, Request::Cancel { call: call.1 });
    assert!(!h.is_cancelled(&pull), "the order needs it");
    h.pull_ended(&pull, 4096, PullOutcome::SenderUnreachable);
    assert_eq!(h.count_queries(), 1, "the order is followed without the get");
}
