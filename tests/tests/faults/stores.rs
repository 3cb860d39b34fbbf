use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use hoplite_client::{Confirmation, Error, PutOptions};
use hoplite_core::Error as ObjectError;
use hoplite_tests::cluster::{Cluster, Plan, await_that, refusal, retry};
use hoplite_tests::contents::bytes;
use rustix::process::Signal;

use super::{TIME_LIMIT, await_received, begin, finish, gets};

#[test]
fn receivers_of_a_relay_that_dies_resume_elsewhere() {
    let (nodes, size) = (5, 8 << 20);
    let mut cluster = Cluster::of(nodes);
    let expected = bytes(1, size);
    let writer = begin(&cluster, 0, "object", &expected, size / 2);
    std::thread::scope(|scope| {
        let receivers = gets(scope, &cluster, 1..nodes, "object");
        for node in 1..nodes {
            await_received(&cluster, node, size / 2);
        }
        let senders = cluster.senders(0, "object");
        let relay = *senders.values().find(|sender| **sender != 0).expect("receivers relay");
        cluster.kill_store(relay);
        finish(writer, &expected).unwrap();
        for (node, receiver) in receivers {
            let got = receiver.join().unwrap();
            if node == relay {
                assert!(matches!(got, Err(Error::ConnectionLost { .. })), "{got:?}");
                continue;
            }
            assert!(got.unwrap() == expected, "node {node} has the right bytes");
            let received = cluster.client(node).status().unwrap().received_bytes;
            assert_eq!(received, size as u64, "node {node} resumed, it did not start again");
        }
    });
    cluster.assert_serves();
}

#[test]
fn an_origin_that_dies_is_replaced_by_another_copy() {
    let mut cluster = Cluster::of(4);
    let expected = bytes(2, 4 << 20);
    cluster.client(0).put("object", &expected).unwrap();
    cluster.client(1).get("object", TIME_LIMIT).unwrap();
    await_that("both are known to be complete, and free", || {
        let grants = retry("describe", || cluster.client(2).describe("object")).grants;
        grants.len() == 1 && grants.iter().all(|grant| grant.outcome.is_some())
    });
    for holder in 0..2 {
        cluster.store(holder).signal(Signal::STOP);
    }
    std::thread::scope(|scope| {
        let receivers = gets(scope, &cluster, 2..4, "object");
        await_that("a pull from each", || {
            let grants = retry("describe", || cluster.client(2).describe("object")).grants;
            let late = grants.iter().filter(|grant| grant.receiver != "node-1");
            let senders: BTreeSet<String> = late.map(|grant| grant.sender.clone()).collect();
            senders.len() == 2
        });
        cluster.kill_store(0);
        cluster.store(1).signal(Signal::CONT);
        for (_, receiver) in receivers {
            assert!(receiver.join().unwrap().unwrap() == expected);
        }
    });
    cluster.assert_serves();
}

#[test]
fn a_frozen_relay_is_left_after_its_silence() {
    let size = 4 << 20;
    let mut cluster = Cluster::of(3);
    let expected = bytes(3, size);
    let writer = begin(&cluster, 0, "object", &expected, size / 2);
    std::thread::scope(|scope| {
        let first = gets(scope, &cluster, [1], "object");
        await_received(&cluster, 1, size / 2);
        let second = gets(scope, &cluster, [2], "object");
        await_received(&cluster, 2, size / 2);
        assert_eq!(
            cluster.senders(0, "object").get(&2),
            Some(&1),
            "node 2 pulls from the receiver"
        );
        cluster.store(1).signal(Signal::STOP);
        finish(writer, &expected).unwrap();
        for (_, receiver) in second {
            assert!(receiver.join().unwrap().unwrap() == expected);
        }
        cluster.store(1).signal(Signal::CONT);
        for (_, receiver) in first {
            assert!(receiver.join().unwrap().unwrap() == expected, "it goes on where it was");
        }
    });
    cluster.await_sessions(1);
    cluster.assert_serves();
}

#[test]
fn a_frozen_holder_delays_no_get_if_another_node_has_the_object() {
    let mut cluster = Cluster::of(3);
    let expected = bytes(5, 1 << 20);
    let ids: Vec<String> = (0..6).map(|number| format!("x{number}")).collect();
    for (number, id) in ids.iter().enumerate() {
        let (putter, holder) = (number % 2, 1 - number % 2);
        cluster.client(putter).put(id, &expected).unwrap();
        assert!(cluster.client(holder).get(id, TIME_LIMIT).unwrap()[..] == expected);
    }
    cluster.store(1).signal(Signal::STOP);
    let client = cluster.client(2);
    let mut slow = 0;
    for id in &ids {
        let began = Instant::now();
        // Less than a handshake with a silent store (5 s).
        assert!(client.get(id, Duration::from_millis(4800)).unwrap()[..] == expected, "{id}");
        slow += usize::from(began.elapsed() > Duration::from_secs(3));
    }
    assert!(slow < 2, "{slow} gets waited for the frozen store");
    let was_requested = |id: &String| {
        let grants = retry("describe", || client.describe(id)).grants;
        grants.iter().any(|grant| (&grant.receiver[..], &grant.sender[..]) == ("node-2", "node-1"))
    };
    assert!(ids.iter().any(was_requested), "the frozen store was asked for some object");
    cluster.store(1).signal(Signal::CONT);
    cluster.await_sessions(1);
    cluster.assert_serves();
}

#[test]
fn an_object_whose_only_holder_dies_is_lost() {
    let mut cluster = Cluster::start(Plan { nodes: 3, ..Plan::default() });
    let size = 2 << 20;
    let contents = bytes(4, size);
    cluster.client(0).put("complete", &contents).unwrap();
    cluster.client(0).put("small", b"inline").unwrap();
    assert_eq!(cluster.client(1).wait(["complete", "small"], 2, TIME_LIMIT).unwrap(), [0, 1]);
    let writer = begin(&cluster, 0, "half", &contents, size / 2);
    std::thread::scope(|scope| {
        let waiting = gets(scope, &cluster, [1, 2], "half");
        for node in [1, 2] {
            await_received(&cluster, node, size / 2);
        }
        let killed = Instant::now();
        cluster.kill_store(0);
        for (_, get) in waiting {
            let error = refusal(get.join().unwrap());
            assert!(matches!(error, ObjectError::ObjectLost { .. }), "{error}");
        }
        assert!(killed.elapsed() < TIME_LIMIT / 2, "nobody waits for the timeout");
    });
    assert!(finish(writer, &contents).is_err(), "the writer hears of it too");
    let asked = Instant::now();
    for id in ["half", "complete"] {
        for node in [1, 2] {
            let client = cluster.client(node);
            let error = refusal(client.get(id, TIME_LIMIT));
            assert!(matches!(error, ObjectError::ObjectLost { .. }), "{id}: {error}");
            assert!(!client.contains(id).unwrap());
        }
    }
    assert!(asked.elapsed() < TIME_LIMIT / 2, "nobody waits for the timeout");
    assert_eq!(
        &cluster.client(2).get("small", TIME_LIMIT).unwrap()[..],
        b"inline",
        "the directory has it"
    );
    for id in ["half", "complete"] {
        let confirmed = PutOptions { confirm: Confirmation::Confirmed, ..PutOptions::default() };
        cluster.client(1).put_with(id, b"new", confirmed).unwrap();
        assert_eq!(&cluster.client(2).get(id, TIME_LIMIT).unwrap()[..], b"new");
    }
    cluster.assert_serves();
}

fn short() -> PutOptions {
    PutOptions { timeout: Duration::from_millis(200), ..PutOptions::default() }
}

#[test]
fn a_copy_that_replaces_a_pinned_one_is_pinned() {
    let size = 2 << 20;
    let mut cluster =
        Cluster::start(Plan { nodes: 3, memory: "7MiB".to_owned(), ..Plan::default() });
    let expected = bytes(5, size);
    cluster.client(0).put("object", &expected).unwrap();
    let keeper = cluster.client(1);
    drop(keeper.get("object", TIME_LIMIT).unwrap());
    assert_eq!(keeper.status().unwrap().pinned_bytes, 0);
    cluster.kill_store(0);
    await_that("the promotion", || keeper.status().unwrap().pinned_bytes > size as u64);
    for round in 0..4 {
        let id = format!("filler-{round}");
        cluster.client(2).put(&id, &bytes(round, 2 * size)).unwrap();
        drop(keeper.get(&id, TIME_LIMIT).unwrap());
        if round < 3 {
            cluster.client(2).delete([&id], TIME_LIMIT).unwrap();
        }
    }
    let error = refusal(keeper.create("larger", 5 << 20, short()));
    assert!(matches!(error, ObjectError::StoreFull { .. }), "{error}");
    cluster.client(2).delete(["filler-3"], TIME_LIMIT).unwrap();
    assert!(cluster.client(2).get("object", TIME_LIMIT).unwrap()[..] == expected[..]);
    assert!(keeper.get("object", Duration::ZERO).unwrap()[..] == expected[..], "it is still here");
    cluster.assert_serves();
}
