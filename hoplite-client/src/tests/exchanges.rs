use std::time::Duration;

use futures::future::join_all;
use hoplite_core::node::{Confirm, Request as NodeRequest};
use hoplite_core::{Error as ObjectError, Metadata};
use hoplite_proto::local::Request;

use super::fake_store::State;
use super::{FakeStore, LONG, connect, pattern};
use crate::{
    Client, Confirmation, Dtype, Error, ErrorCode, ObjectId, PutOptions, Result, blocking,
};

fn within(timeout: Duration) -> PutOptions {
    PutOptions { timeout, ..PutOptions::default() }
}

fn part(from: usize, to: usize) -> Vec<u8> {
    let sizes = [0, 1, 5000, 300_001];
    pattern(sizes[(from + 3 * to) % sizes.len()], (16 * from + to) as u8)
}

fn parts(from: usize, participants: usize) -> Vec<Vec<u8>> {
    (0..participants).map(|to| part(from, to)).collect()
}

fn gets(state: &State) -> Vec<String> {
    let of_get = |request: &Request| match request {
        Request::Node(NodeRequest::Get { id, .. }) => Some(id.to_string()),
        _ => None,
    };
    state.requests.iter().filter_map(of_get).collect()
}

async fn ids(client: &Client) -> Vec<String> {
    let page = client.list("", "", 1000).await.unwrap();
    page.objects.iter().map(|object| object.id.to_string()).collect()
}

fn object_error<T>(result: Result<T>) -> ObjectError {
    match result.err().expect("it must fail") {
        Error::Object(error) => error,
        other => panic!("another error: {other}"),
    }
}

fn missing<T>(result: Result<T>) -> Vec<usize> {
    match result.err().expect("it must fail") {
        Error::RanksMissing { ranks, .. } => ranks,
        other => panic!("another error: {other}"),
    }
}

fn is_join(request: &Request) -> bool {
    matches!(request, Request::Node(NodeRequest::Join { .. }))
}

fn is_delete(request: &Request) -> bool {
    matches!(request, Request::Node(NodeRequest::Delete { .. }))
}

#[tokio::test]
async fn everybody_gets_what_everybody_has_for_it() {
    for participants in [1, 2, 5] {
        let store = FakeStore::start();
        let client = connect(&store).await;
        let metadata = Metadata { dtype: Dtype::I8, ..Metadata::default() };
        let options = PutOptions { metadata: metadata.clone(), ..PutOptions::default() };
        let calls = (0..participants).map(|rank| {
            let (client, options) = (client.clone(), options.clone());
            async move { client.all_to_all("m", &parts(rank, participants), rank, options).await }
        });
        for (rank, views) in join_all(calls).await.into_iter().enumerate() {
            let views = views.unwrap();
            assert_eq!(views.len(), participants);
            for (from, view) in views.iter().enumerate() {
                assert!(
                    view[..] == part(from, rank)[..],
                    "from {from} to {rank} of {participants}"
                );
                assert_eq!(*view.metadata(), metadata);
            }
        }
        assert_eq!(ids(&client).await, <[&str; 0]>::default());
        store.until("all references are back", |state| state.references() == 0).await;
    }
}

#[tokio::test]
async fn what_is_for_a_rank_stands_one_after_the_other() {
    let store = FakeStore::start();
    let client = connect(&store).await;
    let calls = (0..3).map(|rank| {
        let client = client.clone();
        async move {
            let mut out = vec![7; 700_000];
            let lengths =
                client.all_to_all_into("m", &parts(rank, 3), rank, &mut out, within(LONG)).await?;
            Ok::<_, Error>((lengths, out))
        }
    });
    for (rank, taken) in join_all(calls).await.into_iter().enumerate() {
        let (lengths, out) = taken.unwrap();
        let expected: Vec<_> = (0..3).map(|from| part(from, rank)).collect();
        assert_eq!(lengths, expected.iter().map(Vec::len).collect::<Vec<_>>());
        let expected = expected.concat();
        assert!(
            out[..expected.len()] == expected
                && out[expected.len()..].iter().all(|byte| *byte == 7)
        );
    }
    assert_eq!(ids(&client).await, <[&str; 0]>::default());

    let error =
        client.all_to_all_into("m", &[b"12345"], 0, &mut [0; 4], within(LONG)).await.unwrap_err();
    assert!(matches!(error, Error::BufferTooSmall { needed_bytes: 5, given_bytes: 4 }), "{error}");
    store.until("all references are back", |state| state.references() == 0).await;
}

#[tokio::test]
async fn ranks_begin_with_different_senders() {
    for (rank, expected) in [(1, ["m/2/1", "m/0/1", "m/1/1"]), (2, ["m/0/2", "m/1/2", "m/2/2"])] {
        let store = FakeStore::start();
        let client = connect(&store).await;
        store.produce("m", b"", 0);
        let all = client.all_to_all("m", &[b""; 3], rank, within(Duration::ZERO)).await;
        assert_eq!(missing(all).len(), 1);
        let begun = gets(&store.state());
        assert!(!begun.is_empty() && expected.map(str::to_owned).starts_with(&begun), "{begun:?}");
    }
}

#[tokio::test]
async fn a_part_that_was_taken_before_its_put_was_confirmed_is_put() {
    let store = FakeStore::start();
    let client = connect(&store).await;
    store.hold_answers();
    let options = PutOptions { confirm: Confirmation::Confirmed, ..within(LONG) };
    store.produce("m", b"", 0);
    let (all, ()) =
        tokio::join!(client.all_to_all("m", &[b"for 0", b"for 1"], 1, options), async {
            store.until("it has joined", |state| state.count(is_join) == 1).await;
            store.send_held();
            store.hold_answers();
            store.until("the source is deleted", |state| state.count(is_delete) == 1).await;
            store.send_held();
            store.hold_answers();
            store.until("all is asked for", |state| gets(state).len() == 2).await;
            store.send_response(
                4,
                Err(ObjectError::Deleted { id: ObjectId::new("m/1/0").unwrap() }),
            );
            store.produce("m/0/1", b"from 0", 6);
            store.send_held();
        });
    let views = all.unwrap();
    assert_eq!([&views[0][..], &views[1][..]], [&b"from 0"[..], b"for 1"]);
}

#[tokio::test]
async fn who_was_waited_for_is_named() {
    let store = FakeStore::start();
    let client = connect(&store).await;
    store.produce("m/1", b"from 1", 6);
    let mut out = [0; 100];
    let options = within(Duration::ZERO);
    let all = client.all_to_all_into("m", &[b"a", b"b", b"c"], 0, &mut out, options.clone()).await;
    assert_eq!(missing(all), [2]);
    store.produce("l", b"", 0);
    store.produce("l/1/2", b"from 1", 6);
    let all = client.all_to_all_into("l", &[b"a", b"b", b"c"], 2, &mut out, options.clone()).await;
    assert_eq!(missing(all), [0]);
    let error = client.all_to_all("n", &[b"a", b"b"], 0, options).await.unwrap_err();
    assert_eq!(error.to_string(), "n waited 0ns in vain for rank 1");
    assert_eq!(error.code(), ErrorCode::RanksMissing);
    assert!(!error.is_retryable());
    store.until("nothing waits", |state| !state.is_waiting()).await;
    store.until("all references are back", |state| state.references() == 0).await;
}

#[tokio::test]
async fn an_exchange_that_makes_no_sense_is_refused_before_anything_is_put() {
    let store = FakeStore::start();
    let client = connect(&store).await;
    let refused = async |name: &str, parts: &[&[u8]], rank| {
        object_error(client.all_to_all(name, parts, rank, PutOptions::default()).await)
    };
    assert!(matches!(refused("m", &[b"x", b"y"], 2).await, ObjectError::InvalidRequest { .. }));
    assert!(matches!(refused("m", &[], 0).await, ObjectError::InvalidRequest { .. }));
    assert!(matches!(refused("", &[b"x"], 0).await, ObjectError::InvalidId { .. }));
    let error = refused(&"m".repeat(252), &[b"x", b"y"], 0).await;
    assert_eq!(error, ObjectError::InvalidId { length_bytes: 256 });
    let many = vec![&b"x"[..]; (1 << 16) + 1];
    assert!(matches!(refused("m", &many, 0).await, ObjectError::LimitExceeded { .. }));
    let error =
        object_error(client.all_to_all_into("m", &[b"x"], 1, &mut [], PutOptions::default()).await);
    assert!(matches!(error, ObjectError::InvalidRequest { .. }));

    let refused = async |name: &str, participants, rank| {
        object_error(client.barrier(name, participants, rank, LONG).await)
    };
    assert!(matches!(refused("b", 2, 2).await, ObjectError::InvalidRequest { .. }));
    assert!(matches!(refused("b", 0, 0).await, ObjectError::InvalidRequest { .. }));
    assert!(matches!(refused("", 1, 0).await, ObjectError::InvalidId { .. }));
    assert!(matches!(
        refused(&"b".repeat(254), 1, 0).await,
        ObjectError::InvalidId { length_bytes: 256 }
    ));
    assert!(matches!(refused("b", usize::MAX, 0).await, ObjectError::LimitExceeded { .. }));
    assert!(store.state().requests.is_empty());
}

#[tokio::test]
async fn a_barrier_opens_when_all_have_called_and_leaves_its_name() {
    let store = FakeStore::start();
    let client = connect(&store).await;
    assert_eq!(missing(client.barrier("b", 3, 1, Duration::ZERO).await), [0, 2]);
    assert_eq!(missing(client.barrier("b", 3, 0, Duration::ZERO).await), [2]);
    let all = join_all((0..3).map(|rank| client.barrier("b", 3, rank, LONG))).await;
    assert!(all.iter().all(Result::is_ok), "{all:?}");
    assert_eq!(ids(&client).await, ["b"]);
    for rank in 0..3 {
        let error = object_error(client.barrier("b", 3, rank, LONG).await);
        assert_eq!(error, ObjectError::AlreadyExists { id: ObjectId::new("b").unwrap() });
    }
    assert_eq!(ids(&client).await, ["b"]);
    client.delete(["b"], LONG).await.unwrap();
    client.barrier("b", 1, 0, LONG).await.unwrap();
    store.until("all references are back", |state| state.references() == 0).await;
}

#[tokio::test]
async fn a_rank_that_calls_again_while_all_meet_leaves_nothing() {
    let store = FakeStore::start();
    let (client, others) = (connect(&store).await, connect(&store).await);
    fn is_locate(request: &Request) -> bool {
        matches!(request, Request::Node(NodeRequest::Locate { .. }))
    }
    assert_eq!(missing(client.barrier("b", 2, 1, Duration::ZERO).await), [0]);
    let asked = store.state().count(is_locate);
    store.hold_answers();
    let (met, ()) = tokio::join!(client.barrier("b", 2, 1, LONG), async {
        store.until("rank 1 has asked", move |state| state.count(is_locate) > asked).await;
        tokio::join!(async { others.put("b", b"").await.unwrap() }, async {
            store.until("all have met", |state| state.has("b")).await;
            let deleted = async { others.delete(["b/0", "b/1"], LONG).await.unwrap() };
            tokio::join!(deleted, async {
                store.until("rank 0 has deleted", |state| !state.has("b/1")).await;
                store.send_held();
            });
        });
    });
    met.unwrap();
    assert_eq!(ids(&client).await, ["b"]);
}

#[tokio::test]
async fn a_barrier_that_was_met_does_not_fail_because_deletes_take_long() {
    let store = FakeStore::start();
    let client = connect(&store).await;
    store.state().deletes_are_late = true;
    let all = join_all((0..3).map(|rank| client.barrier("b", 3, rank, LONG))).await;
    assert!(all.iter().all(Result::is_ok), "{all:?}");
    assert_eq!(ids(&client).await, ["b"]);
}

#[tokio::test]
async fn a_rank_asks_again_when_the_directory_has_what_it_has_put() {
    let store = FakeStore::start();
    let client = connect(&store).await;
    fn is_put(request: &Request) -> bool {
        matches!(request, Request::Node(NodeRequest::Put { confirm: Confirm::Yes, .. }))
    }
    fn is_locate(request: &Request) -> bool {
        matches!(request, Request::Node(NodeRequest::Locate { .. }))
    }
    store.hold_answers();
    let (met, ()) = tokio::join!(client.barrier("b", 2, 1, LONG), async {
        store.until("rank 1 has asked", |state| state.count(is_locate) == 1).await;
        store.send_response(1, Err(ObjectError::ObjectLost { id: ObjectId::new("b").unwrap() }));
        store
            .until("it puts and waits", |state| state.count(is_put) == 1 && gets(state) == ["b"])
            .await;
        assert_eq!(store.state().count(is_locate), 1);
        store.send_response(2, Err(ObjectError::Deleted { id: ObjectId::new("b/1").unwrap() }));
        store.until("it has asked again", |state| state.count(is_locate) == 2).await;
        store.produce("b", b"", 0);
        store.send_held();
    });
    met.unwrap();
    store.until("all references are back", |state| state.references() == 0).await;
}

#[test]
fn threads_exchange_and_meet_as_tasks_do() {
    let store = FakeStore::start();
    std::thread::scope(|scope| {
        for rank in 0..3 {
            let store = &store;
            scope.spawn(move || {
                let client = blocking::Client::connect(store.socket()).unwrap();
                let views = client.all_to_all("m", &parts(rank, 3), rank, within(LONG)).unwrap();
                assert!((0..3).all(|from| views[from][..] == part(from, rank)[..]));
                client.barrier("b", 3, rank, LONG).unwrap();
                let mut out = vec![0; 700_000];
                let lengths = client
                    .all_to_all_into("m", &parts(rank, 3), rank, &mut out, within(LONG))
                    .unwrap();
                assert_eq!(lengths[2], part(2, rank).len());
            });
        }
    });
}

#[test]
fn exchanges_may_be_moved_between_threads() {
    fn is_send(_: impl Send) {}
    let _ = |client: &'static Client| {
        is_send(client.all_to_all("m", &[b"x"], 0, PutOptions::default()));
        is_send(client.all_to_all_into("m", &[vec![1]], 0, &mut [], PutOptions::default()));
        is_send(client.barrier("b", 1, 0, LONG));
    };
}
