use std::time::{Duration, Instant};

use super::{FakeStore, LONG, pattern};
use crate::blocking::Client;
use crate::connection::{Connection, handshake};
use crate::{ConnectFailure, ConnectOptions, Error, PutOptions};
use hoplite_core::{Error as ObjectError, Operation};

#[test]
fn threads_share_a_connection() {
    let store = FakeStore::start();
    let client = Client::connect(store.socket()).unwrap();
    std::thread::scope(|scope| {
        for seed in 0..8_u8 {
            let client = &client;
            scope.spawn(move || {
                for round in 0..50 {
                    let id = format!("{seed}/{round}");
                    let bytes = pattern(usize::from(seed) * 1000, seed);
                    client.put(&id, &bytes).unwrap();
                    assert_eq!(client.get(&id, LONG).unwrap()[..], bytes[..]);
                    assert_eq!(client.get_vec(&id, LONG).unwrap(), bytes);
                }
            });
        }
    });
    store.wait_until("all references are back", |state| state.references() == 0);
}

#[test]
fn every_method_does_what_the_asynchronous_one_does() {
    let store = FakeStore::start();
    let client = Client::connect(store.socket()).unwrap();
    assert_eq!(client.node().as_str(), "fake");
    assert_eq!(client.confirmed_from_bytes(), 64 << 10);
    let mut watch = client.watch("a").unwrap();
    assert!(watch.next_within(LONG).unwrap().unwrap().object.is_none());
    client.put_with("a", b"12345", PutOptions::default()).unwrap();
    assert!(client.contains("a").unwrap());
    assert_eq!(client.locate("a", LONG).unwrap().object.unwrap().size_bytes, 5);
    assert_eq!(client.wait(["a"], 1, LONG).unwrap(), [0]);
    assert_eq!(client.list("", "", 10).unwrap().objects.len(), 1);
    assert_eq!(client.describe("a").unwrap().shard, "fake:1");
    assert_eq!(client.status().unwrap().node, "fake");
    let mut writer = client.create("b", 6, PutOptions::default()).unwrap();
    writer.write(b"123").unwrap();
    assert_eq!(writer.written_bytes(), 3);
    writer.write(b"456").unwrap();
    writer.seal().unwrap();
    let mut reader = client.get_reader("b", LONG).unwrap();
    let mut out = [0; 4];
    assert_eq!(reader.read(&mut out, LONG).unwrap(), 4);
    assert_eq!((&out, reader.position_bytes(), reader.size_bytes()), (b"1234", 4, 6));
    let mut out = [0; 6];
    assert_eq!(client.get_into("b", &mut out, LONG).unwrap(), 6);
    assert_eq!(&out, b"123456");
    assert_eq!(client.delete(["a", "b"], LONG).unwrap(), 2);
    assert!(matches!(client.get("b", Duration::ZERO), Err(Error::Object(_))));
}

#[test]
fn a_watch_waits_no_longer_than_it_is_told() {
    let store = FakeStore::start();
    let client = Client::connect(store.socket()).unwrap();
    let mut watch = client.watch("a").unwrap();
    assert!(watch.next_within(LONG).unwrap().unwrap().object.is_none(), "the state now");
    let short = Duration::from_millis(20);
    let error = watch.next_within(short).unwrap_err();
    let expected = ObjectError::timeout(Operation::Locate, short);
    assert!(matches!(&error, Error::Object(error) if *error == expected), "{error}");
    client.put("a", b"12345").unwrap();
    while !watch.next_within(LONG).unwrap().expect("the watch goes on").is_available() {}
    store.close_all();
    while let Ok(next) = watch.next_within(LONG) {
        assert!(next.is_some(), "the error comes first");
    }
    assert!(watch.next_within(LONG).unwrap().is_none(), "it has ended");
}

#[test]
fn views_outlive_the_client_and_are_dropped_anywhere() {
    let store = FakeStore::start();
    let client = Client::connect(store.socket()).unwrap();
    client.put("a", &[7; 5000]).unwrap();
    let view = client.get("a", LONG).unwrap();
    let other = client.get("a", LONG).unwrap();
    drop(client);
    std::thread::spawn(move || drop(other)).join().unwrap();
    store.wait_until("one reference is back", |state| state.references() == 1);
    assert_eq!(view[..], [7; 5000]);
    assert_eq!(store.state().ended_clients, 0);
    drop(view);
    store.wait_until("the end of the connection", |state| state.ended_clients == 1);
}

#[test]
fn a_client_may_be_dropped_inside_a_runtime() {
    let store = FakeStore::start();
    let client = Client::connect(store.socket()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async move { drop(client) });
    store.wait_until("the end of the connection", |state| state.ended_clients == 1);
}

#[test]
fn failures_to_connect_are_the_same() {
    let error = Client::connect("/nowhere/store.sock").unwrap_err();
    assert!(matches!(error, Error::Connect { kind: ConnectFailure::NoSuchSocket, .. }));
}

#[test]
fn a_frozen_store_is_given_up_and_late_references_come_back_with_the_next_call() {
    let store = FakeStore::start();
    let client = Client::connect(store.socket()).unwrap();
    client.put("a", &[7; 5000]).unwrap();
    store.wait_until("the put is done", |state| state.references() == 0);
    let view = client.get("a", LONG).unwrap();
    store.set_paused(true);
    drop(view);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let error = client.get("a", Duration::ZERO).unwrap_err();
                assert!(matches!(error, Error::Object(ObjectError::Timeout { .. })), "{error}");
            });
        }
    });
    store.set_paused(false);
    client.status().unwrap();
    store.wait_until("all references are back", |state| state.references() == 0);
}

#[test]
fn what_another_thread_does_wakes_whoever_receives() {
    let store = FakeStore::start();
    let options =
        ConnectOptions { socket: store.socket(), ..ConnectOptions::default() }.with_own_owner();
    let (connection, pump) =
        Connection::pumped(handshake::greet(&options, options.timeout).unwrap()).unwrap();
    let run = |future: tokio::sync::oneshot::Receiver<()>| {
        let began = Instant::now();
        let woken = pump.run(connection.within(LONG, future));
        assert!(matches!(woken, Some(Ok(()))) && began.elapsed() < LONG, "{woken:?}");
    };
    for _ in 0..100 {
        let (leader, leads) = tokio::sync::oneshot::channel();
        let (follower, follows) = tokio::sync::oneshot::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| run(leads));
            scope.spawn(|| run(follows));
            leader.send(()).unwrap();
            follower.send(()).unwrap();
        });
    }
}

#[test]
fn all_threads_hear_of_the_end_of_the_store() {
    let store = FakeStore::start();
    let client = Client::connect(store.socket()).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let error = client.get("never", LONG).unwrap_err();
                assert!(matches!(error, Error::ConnectionLost { .. }), "{error}");
            });
        }
        store.wait_until("all wait", |state| state.requests.len() == 4);
        store.close_all();
    });
    client.put("a", b"x").unwrap();
}

#[test]
fn whoever_drives_may_give_up_while_it_waits() {
    let store = FakeStore::start();
    let client = Client::connect(store.socket()).unwrap();
    let mut pauses = 0;
    let pause = || {
        pauses += 1;
        if pauses < 3 { Ok(()) } else { Err("enough") }
    };
    let outcome = client
        .drive(LONG, Duration::from_millis(1), pause, async |client| client.get("a", LONG).await);
    assert_eq!(outcome.err(), Some("enough"));
    assert_eq!(pauses, 3);
    client.put("a", b"x").unwrap();
    let no_pause = || Err("there is nothing to wait for so long");
    let driven = client.drive(LONG, LONG, no_pause, async |client| client.get("a", LONG).await);
    assert_eq!(driven.unwrap().unwrap()[..], b"x"[..]);
    store.wait_until("all references are back", |state| state.references() == 0);
}
