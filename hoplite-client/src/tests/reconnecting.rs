use std::convert::Infallible;
use std::future::Future;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use hoplite_core::Error as ObjectError;
use hoplite_core::node::Request as NodeRequest;
use hoplite_core::reduce::ReduceOp;
use hoplite_proto::local::Request;
use hoplite_proto::{PROTOCOL_VERSION, v1};

use super::fake_store::Greeting;
use super::{FakeStore, LONG, connect};
use crate::connection::TIMEOUT_SLACK;
use crate::{
    AfterLoss, AllreduceOptions, Client, ConnectFailure, ConnectOptions, Error, LostCall, Notice,
    PutOptions, Result, StoreAfterLoss, blocking,
};

const BRIEF: Duration = Duration::from_millis(200);

fn is_put(request: &Request) -> bool {
    matches!(request, Request::Node(NodeRequest::Put { .. }))
}

fn replace(store: &FakeStore, other: &FakeStore) {
    std::fs::rename(other.socket(), store.socket()).unwrap();
    store.close_all();
}

fn options(socket: &Path) -> ConnectOptions {
    ConnectOptions { socket: socket.to_owned(), timeout: LONG, ..ConnectOptions::default() }
}

#[tokio::test]
async fn the_next_call_connects_again_and_says_so() {
    static NOTICES: Mutex<Vec<Notice>> = Mutex::new(Vec::new());
    let (store, other) = (FakeStore::start(), FakeStore::start());
    let listener = |notice: &Notice| NOTICES.lock().unwrap().push(notice.clone());
    let client = Client::connect_with(ConnectOptions { listener, ..options(&store.socket()) })
        .await
        .unwrap();
    client.put("a", b"1").await.unwrap();
    store.close_all();
    client.put("b", b"2").await.unwrap();
    assert_eq!(client.get_vec("a", LONG).await.unwrap(), b"1");
    replace(&store, &other);
    client.put("c", b"3").await.unwrap();
    assert!(!client.contains("a").await.unwrap());
    assert!(client.is_connected());
    let stores: Vec<_> = NOTICES
        .lock()
        .unwrap()
        .iter()
        .map(|notice| match notice {
            Notice::Reconnected { path, node, store: found } => {
                assert_eq!((path, node.as_str()), (&store.socket(), "fake"));
                *found
            }
            notice => panic!("{notice}"),
        })
        .collect();
    assert_eq!(stores, [StoreAfterLoss::Same, StoreAfterLoss::StartedAnew]);
    assert_eq!(
        (store.state().count(is_put), other.state().count(is_put)),
        (2, 1),
        "each was sent once"
    );
}

#[test]
fn a_blocking_client_connects_again_though_nobody_has_received_the_end() {
    let (store, other) = (FakeStore::start(), FakeStore::start());
    let client = blocking::Client::connect(store.socket()).unwrap();
    client.put("a", b"1").unwrap();
    let view = client.get("a", LONG).unwrap();
    replace(&store, &other);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| client.put("b", b"2").unwrap());
        }
    });
    assert_eq!(&view[..], b"1", "a view outlives its store");
    assert_eq!(client.get_vec("b", LONG).unwrap(), b"2");
    drop(client);
    other.wait_until("one connection served all", |state| state.ended_clients == 1);
}

#[tokio::test]
async fn a_runtime_that_was_busy_while_the_store_went_makes_no_difference() {
    let (store, other) = (FakeStore::start(), FakeStore::start());
    let client = connect(&store).await;
    replace(&store, &other);
    client.put("a", b"1").await.unwrap();
    assert!(other.state().has("a"));
}

fn is_put_in_the_rest_of_the_time(request: &Request) -> bool {
    matches!(request, Request::Node(NodeRequest::Put { timeout, .. }) if *timeout <= LONG - BRIEF)
}

fn return_later(store: &FakeStore, other: &FakeStore) {
    std::fs::remove_file(store.socket()).unwrap();
    store.close_all();
    let (from, to) = (other.socket(), store.socket());
    std::thread::spawn(move || {
        std::thread::sleep(BRIEF);
        std::fs::rename(from, to).unwrap();
    });
}

#[tokio::test]
async fn the_wait_for_a_store_counts_towards_the_timeout() {
    let (store, other) = (FakeStore::start(), FakeStore::start());
    let client = Client::connect_with(options(&store.socket())).await.unwrap();
    return_later(&store, &other);
    let put = PutOptions { timeout: LONG, ..PutOptions::default() };
    client.put_with("a", b"1", put).await.unwrap();
    assert_eq!(other.state().count(is_put_in_the_rest_of_the_time), 1);
}

#[test]
fn the_wait_for_a_store_counts_towards_the_timeout_of_a_blocking_call() {
    let (store, other) = (FakeStore::start(), FakeStore::start());
    let client = blocking::Client::connect_with(options(&store.socket())).unwrap();
    return_later(&store, &other);
    let put = PutOptions { timeout: LONG, ..PutOptions::default() };
    client.put_with("a", b"1", put.clone()).unwrap();
    assert_eq!(other.state().count(is_put_in_the_rest_of_the_time), 1);
    client.put_with("b", b"2", put).unwrap();
    assert_eq!(other.state().count(is_put_in_the_rest_of_the_time), 1, "it had not to wait");
}

#[tokio::test]
async fn a_crowd_connects_once() {
    let (store, other) = (FakeStore::start(), FakeStore::start());
    let client = connect(&store).await;
    replace(&store, &other);
    let puts = (0..50).map(|number| {
        let client = client.clone();
        async move { client.put(format!("{number}"), b"x").await }
    });
    futures::future::try_join_all(puts).await.unwrap();
    drop(client);
    other.until("the one connection has ended", |state| state.ended_clients == 1).await;
}

#[tokio::test]
async fn a_store_that_stays_away_costs_the_patience_once() {
    let store = FakeStore::start();
    let options = ConnectOptions { timeout: BRIEF, ..options(&store.socket()) };
    let client = Client::connect_with(options).await.unwrap();
    std::fs::remove_file(store.socket()).unwrap();
    store.close_all();
    for call in 0..200 {
        let error = client.put("a", b"1").await.unwrap_err();
        let is_absent = matches!(error, Error::Connect { kind: ConnectFailure::NoSuchSocket, .. });
        assert!(is_absent && error.is_retryable(), "call {call}: {error}");
        assert!(!client.is_connected());
    }
    let other = FakeStore::start();
    replace(&store, &other);
    let deadline = std::time::Instant::now() + LONG;
    while let Err(error) = client.put("a", b"1").await {
        assert!(error.is_retryable() && std::time::Instant::now() < deadline, "{error}");
    }
    assert!(client.is_connected());
}

#[test]
fn a_store_that_comes_back_late_is_waited_for() {
    let (store, other) = (FakeStore::start(), FakeStore::start());
    let client = blocking::Client::connect(store.socket()).unwrap();
    std::fs::remove_file(store.socket()).unwrap();
    store.close_all();
    std::thread::scope(|scope| {
        let put = scope.spawn(|| client.put("a", b"1"));
        std::thread::sleep(BRIEF);
        replace(&store, &other);
        put.join().unwrap().unwrap();
    });
}

#[tokio::test]
async fn a_call_waits_for_a_store_no_longer_than_its_timeout() {
    let (store, other) = (FakeStore::start(), FakeStore::start());
    let client = Client::connect_with(options(&store.socket())).await.unwrap();
    std::fs::remove_file(store.socket()).unwrap();
    store.close_all();
    let patient = client.put("a", b"1");
    let brief = async {
        let (before, after) = (client.get("a", BRIEF).await, client.get("a", BRIEF).await);
        replace(&store, &other);
        [before, after].map(Result::unwrap_err)
    };
    let (put, errors) = futures::join!(patient, brief);
    put.unwrap();
    assert!(errors.iter().all(|error| matches!(error, Error::Connect { .. })), "{errors:?}");
}

#[test]
fn a_blocking_call_waits_for_a_store_no_longer_than_its_timeout() {
    let (store, other) = (FakeStore::start(), FakeStore::start());
    let client = blocking::Client::connect_with(options(&store.socket())).unwrap();
    std::fs::remove_file(store.socket()).unwrap();
    store.close_all();
    std::thread::scope(|scope| {
        let patient = scope.spawn(|| client.put("a", b"1"));
        let no_pause = || Ok::<_, Infallible>(());
        let driven =
            client.drive(BRIEF, LONG, no_pause, async |client| client.get("a", BRIEF).await);
        let Ok(driven) = driven;
        for error in [client.get("a", BRIEF).unwrap_err(), driven.unwrap_err()] {
            assert!(matches!(error, Error::Connect { .. }), "{error}");
        }
        assert!(!patient.is_finished());
        replace(&store, &other);
        patient.join().unwrap().unwrap();
    });
}

#[tokio::test]
async fn brief_calls_share_the_wait_for_a_store() {
    let store = FakeStore::start();
    let timeout = 2 * TIMEOUT_SLACK;
    let client =
        Client::connect_with(ConnectOptions { timeout, ..options(&store.socket()) }).await.unwrap();
    std::fs::remove_file(store.socket()).unwrap();
    store.close_all();
    let started = Instant::now();
    let quick_after = loop {
        let asked_at = Instant::now();
        client.get("a", BRIEF).await.unwrap_err();
        if asked_at.elapsed() < TIMEOUT_SLACK / 2 {
            break started.elapsed();
        }
    };
    assert!(quick_after >= timeout, "{quick_after:?}");
    for _ in 0..1000 {
        client.get("a", BRIEF).await.unwrap_err();
    }
    assert!(started.elapsed() < 500 * TIMEOUT_SLACK, "not each call waits");
}

#[tokio::test]
async fn connecting_again_checks_all_that_connecting_checks() {
    let store = FakeStore::start();
    let client = Client::connect_with(options(&store.socket())).await.unwrap();
    let hello = v1::ServerHello {
        version: PROTOCOL_VERSION + 1,
        node: "fake".to_owned(),
        ..Default::default()
    };
    let other = FakeStore::greeting(Greeting::Hello(Box::new(hello)));
    replace(&store, &other);
    let error = client.put("a", b"1").await.unwrap_err();
    let mismatch =
        ObjectError::VersionMismatch { ours: PROTOCOL_VERSION, theirs: PROTOCOL_VERSION + 1 };
    assert!(
        matches!(&error, Error::Connect { kind: ConnectFailure::Refused(refused), .. } if *refused == mismatch),
        "{error}"
    );
}

#[tokio::test]
async fn a_client_that_shall_not_connect_again_does_not() {
    let store = FakeStore::start();
    let options = ConnectOptions { after_loss: AfterLoss::Fail, ..options(&store.socket()) };
    let client = Client::connect_with(options.clone()).await.unwrap();
    let threads = blocking::Client::connect_with(options).unwrap();
    store.close_all();
    for _ in 0..2 {
        for result in [client.put("a", b"1").await, threads.put("a", b"1")] {
            let error = result.unwrap_err();
            assert!(
                matches!(error, Error::ConnectionLost { call: LostCall::Ended, .. }),
                "{error}"
            );
            assert!(!error.is_retryable());
        }
    }
    assert!(!client.is_connected() && !threads.is_connected());
}

async fn lost<T: Future<Output = Result<()>>>(
    what: &str,
    begin: impl FnOnce(Client) -> T,
) -> LostCall {
    let store = FakeStore::start();
    let client = connect(&store).await;
    store.produce("source", &[0; 8], 8);
    store.hold_answers();
    let call = begin(client);
    let closing = async {
        store.until("the call is in flight", |state| !state.requests.is_empty()).await;
        store.close_all();
    };
    let (ended, ()) = tokio::join!(call, closing);
    match ended.unwrap_err() {
        Error::ConnectionLost { call, .. } => call,
        error => panic!("{what}: {error}"),
    }
}

#[tokio::test]
async fn each_call_in_flight_says_if_it_may_be_made_again() {
    macro_rules! check {
        ($state:ident, $client:ident: $($call:expr),* $(,)?) => {
            $(
                let what = stringify!($call);
                let state = lost(what, |$client| async move { $call.await.map(drop) }).await;
                assert_eq!(state, LostCall::$state, "{what}");
            )*
        };
    }
    let put = PutOptions::default;
    let reduce = AllreduceOptions::default;
    check!(
        Repeatable, client:
        client.get("x", LONG),
        client.get_into("x", &mut [0; 8], LONG),
        client.get_vec("x", LONG),
        client.get_reader("x", LONG),
        client.gather(["x", "y"], LONG),
        client.gather_into(["x", "y"], &mut [0; 8], LONG),
        client.wait(["x"], 1, LONG),
        client.locate("x", LONG),
        client.contains("x"),
        client.list("", "", 10),
        client.describe("x"),
        client.status(),
        client.put("x", b"1"),
        client.put("x", &vec![0; 1 << 20]),
        client.create("x", 8, put()),
        client.allgather(["x", "y"], 0, b"1", put()),
    );
    check!(
        MayHaveHappened, client:
        client.delete(["x"], LONG),
        client.reduce("x", ["y", "z"], ReduceOp::Sum, LONG),
        client.allreduce("x", ["source", "y"], 0, reduce()),
        client.reduce_scatter("x", ["source", "y"], 0, reduce()),
        client.allgather_into("x", ["source", "y"], 0, &mut [0; 16], LONG),
        client.all_to_all("x", &[b"1", b"2"], 0, put()),
        client.barrier("x", 2, 0, LONG),
    );
}

#[tokio::test]
async fn readers_and_writers_end_with_their_connection() {
    let store = FakeStore::start();
    let client = connect(&store).await;
    store.produce("half", &[0; 8192], 4096);
    let mut writer = client.create("x", 8, PutOptions::default()).await.unwrap();
    writer.write(&[0; 8]).unwrap();
    let mut reader = client.get_reader("half", LONG).await.unwrap();
    let mut out = [0; 8192];
    assert_eq!(reader.read(&mut out, LONG).await.unwrap(), 4096);
    store.close_all();
    client.status().await.unwrap();
    let state = |error| match error {
        Error::ConnectionLost { call, .. } => call,
        error => panic!("{error}"),
    };
    assert_eq!(state(writer.seal().await.unwrap_err()), LostCall::Ended);
    assert_eq!(state(reader.read(&mut out, LONG).await.unwrap_err()), LostCall::Ended);
}
