use std::thread;
use std::time::{Duration, Instant};

use hoplite_client::{Confirmation, DeleteOptions, DeleteWait, Metadata, PutOptions, Replicas};
use hoplite_core::Error as ObjectError;
use hoplite_core::session::LEASE;
use hoplite_tests::cluster::{await_that, refusal};
use hoplite_tests::contents::bytes;
use hoplite_tests::split::Split;
use rustix::process::Signal;

use super::TIME_LIMIT;

fn with_quorum() -> PutOptions {
    let replicas = Replicas { quorum: true, ..Replicas::default() };
    let metadata = Metadata { replicas, ..Metadata::default() };
    PutOptions { metadata, timeout: TIME_LIMIT, ..PutOptions::default() }
}

fn confirmed() -> PutOptions {
    PutOptions { confirm: Confirmation::Confirmed, ..PutOptions::default() }
}

fn await_connected(split: &Split, node: usize, count: usize) {
    let client = split.cluster.client(node);
    await_that("the sessions of a store", || {
        let shards = client.status().unwrap().shards;
        shards.iter().filter(|shard| shard.connected).count() == count
    });
}

#[test]
fn a_delete_also_waits_for_stores_that_only_the_second_shard_reaches() {
    let split = Split::start(2);
    let expected = bytes(1, 1 << 20);
    for id in ["x", "y"] {
        split.cluster.client(0).put(id, &expected).unwrap();
        assert!(split.cluster.client(1).get(id, TIME_LIMIT).unwrap()[..] == expected);
    }
    let [first, second] = split.shards_of("x");
    split.cut(1, first);
    await_connected(&split, 1, 1);
    // The delete ends after the first shard counts the store as lost.
    assert_eq!(split.cluster.client(0).delete(["y"], TIME_LIMIT).unwrap(), 1);
    let other = split.cluster.client(1);
    assert!(!other.contains("y").unwrap());
    let shard = split.cluster.shards[second].as_ref().unwrap();
    shard.signal(Signal::STOP);
    let frozen = Instant::now();
    thread::scope(|scope| {
        let delete = scope.spawn(|| {
            let options = DeleteOptions { timeout: TIME_LIMIT, wait: DeleteWait::Reachable };
            split.cluster.client(0).delete_with(["x"], options)
        });
        thread::sleep(Duration::from_millis(500));
        let is_finished = delete.is_finished();
        assert!(
            !is_finished || frozen.elapsed() > LEASE / 2,
            "the other store may still serve the object"
        );
        shard.signal(Signal::CONT);
        let deletion = delete.join().unwrap().unwrap();
        assert_eq!(deletion.count, 1);
        assert_eq!(deletion.absent_count, 1, "the first shard cannot confirm it: {deletion:?}");
    });
    let error = refusal(other.get("x", Duration::from_millis(500)).map(|view| view.len()));
    assert!(matches!(error, ObjectError::Timeout { .. }), "{error}");
    split.heal();
    split.cluster.await_sessions(1);
    assert!(!other.contains("x").unwrap() && !split.cluster.client(0).contains("x").unwrap());
}

#[test]
fn a_delete_goes_on_without_a_frozen_shard() {
    let split = Split::start(2);
    let ids: Vec<String> = (0..8).map(|number| format!("x{number}")).collect();
    for id in &ids {
        split.cluster.client(0).put(id, &bytes(1, 100_000)).unwrap();
        assert_eq!(split.cluster.client(1).get(id, TIME_LIMIT).unwrap().len(), 100_000);
    }
    let shard = split.cluster.shards[1].as_ref().unwrap();
    shard.signal(Signal::STOP);
    assert_eq!(split.cluster.client(0).delete(&ids, TIME_LIMIT).unwrap(), ids.len());
    shard.signal(Signal::CONT);
    for node in 0..2 {
        split.cluster.await_sessions(node);
        for id in &ids {
            assert!(!split.cluster.client(node).contains(id).unwrap(), "node {node} has {id}");
        }
    }
}

#[test]
fn after_a_split_the_client_of_the_lost_put_is_notified_once() {
    let split = Split::start(2);
    let (won, lost) = (bytes(1, 1 << 20), bytes(2, 1 << 20));
    let [first, second] = split.shards_of("x");
    let (winner, loser) = (split.cluster.client(0), split.cluster.client(1));
    split.cut(0, second);
    split.cut(1, first);
    for node in 0..2 {
        await_connected(&split, node, 1);
    }
    winner.put_with("x", &won, confirmed()).unwrap();
    loser.put_with("x", &lost, confirmed()).unwrap();
    for client in [&winner, &loser] {
        let error = refusal(client.put_with("y", &won, with_quorum()));
        assert!(matches!(error, ObjectError::Unavailable { .. }), "{error}");
    }
    split.heal();
    await_that("the conflict", || loser.status().unwrap().put_conflicts == 1);
    let error = refusal(loser.get("x", TIME_LIMIT).map(|view| view.len()));
    assert!(matches!(error, ObjectError::PutConflict { .. }), "{error}");
    assert!(loser.get("x", TIME_LIMIT).unwrap()[..] == *won, "reported once");
    assert!(winner.get("x", TIME_LIMIT).unwrap()[..] == *won, "the winner hears nothing");
    assert_eq!(winner.status().unwrap().put_conflicts, 0);
    for node in 0..2 {
        split.cluster.await_sessions(node);
    }
    winner.put_with("y", &won, with_quorum()).unwrap();
    let error = refusal(loser.put_with("y", &lost, with_quorum()));
    assert!(matches!(error, ObjectError::AlreadyExists { .. }), "{error}");
    assert!(loser.get("y", TIME_LIMIT).unwrap()[..] == *won);
}

#[test]
fn the_memory_of_a_shard_that_was_cut_off_beats_no_newer_put() {
    let split = Split::start(4);
    let client = |node: usize| split.cluster.client(node);
    let ids = (0..64).map(|number| format!("x{number}")).filter(|id| split.shards_of(id)[0] == 0);
    let ids: Vec<String> = ids.take(8).collect();
    for id in &ids {
        client(0).put(id, b"old").unwrap();
        assert_eq!(client(1).get(id, TIME_LIMIT).unwrap()[..], *b"old");
    }
    for node in 0..4 {
        split.cut(node, 0);
    }
    for node in 0..4 {
        await_connected(&split, node, 1);
    }
    assert_eq!(client(1).delete(&ids, TIME_LIMIT).unwrap(), ids.len());
    for id in &ids {
        client(2).put_with(id, b"newer", confirmed()).unwrap();
    }
    split.restore(2, 0);
    split.restore(3, 0);
    await_connected(&split, 2, 2);
    split.heal();
    for id in &ids {
        assert_eq!(client(3).get(id, TIME_LIMIT).unwrap()[..], *b"newer", "{id}");
    }
    for node in 0..4 {
        split.cluster.await_sessions(node);
        for id in &ids {
            assert_eq!(
                client(node).get(id, TIME_LIMIT).unwrap()[..],
                *b"newer",
                "node {node}: {id}"
            );
        }
    }
    assert_eq!(client(2).status().unwrap().put_conflicts, 0);
}
