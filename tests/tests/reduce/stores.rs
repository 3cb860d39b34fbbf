//! Stores die or freeze anywhere in the chain of a reduce.

use hoplite_client::{Error, ReduceOptions};
use hoplite_tests::cluster::Cluster;
use rustix::process::Signal;

use super::*;

#[test]
fn a_node_of_the_chain_that_dies_takes_its_source_with_it() {
    for victim in 1..=3 {
        let mut cluster = Cluster::start(chained(4));
        let unfinished = halves(&cluster, 3);
        std::thread::scope(|scope| {
            let running = start(scope, &cluster, 0, "target", &[1, 2, 3], ReduceOptions::default());
            drop(await_half(&cluster, 0, "target", &[1, 2, 3]));
            cluster.kill_store(victim);
            let error = refusal(running.join().unwrap());
            let lost = id(victim as u64);
            let is_named = matches!(&error, ObjectError::ObjectLost { id } if id.as_bytes() == lost.as_bytes());
            assert!(is_named, "{error}");
        });
        await_no_hops(&cluster);
        for (unfinished, node) in unfinished.into_iter().zip(1..) {
            assert_eq!(unfinished.finish().is_ok(), node != victim);
        }
        cluster.restart_store(victim);
        assert_nothing_left(&mut cluster);
    }
}

#[test]
fn a_spare_takes_the_place_of_a_node_that_dies() {
    for victim in 1..=3 {
        let mut cluster = Cluster::start(chained(5));
        let unfinished = halves(&cluster, 3);
        put(&cluster, 4, LARGE, 4);
        let numbers: Vec<u64> = (1..=4).filter(|number| *number != victim as u64).collect();
        std::thread::scope(|scope| {
            let running = start(scope, &cluster, 0, "target", &[1, 2, 3, 4], first(3));
            let reader = await_half(&cluster, 0, "target", &[1, 2, 3]);
            let client = cluster.client(4);
            let get = scope.spawn(move || client.get_vec("target", TIME_LIMIT));
            drop(await_half(&cluster, 4, "target", &[1, 2, 3]));
            cluster.kill_store(victim);
            await_superseded(reader);
            drop(await_half(&cluster, 0, "target", &numbers));
            for (unfinished, node) in unfinished.into_iter().zip(1..) {
                assert_eq!(unfinished.finish().is_ok(), node != victim);
            }
            let mut joined = super::numbers(&running.join().unwrap().unwrap());
            joined.sort_unstable();
            assert_eq!(joined, numbers);
            assert!(get.join().unwrap().unwrap() == LARGE.reduced(ReduceOp::Sum, &numbers));
        });
        assert_sum(&cluster, "target", &numbers);
        assert_eq!(record(&cluster, 0, "target").restarts, 1);
        cluster.restart_store(victim);
        assert_nothing_left(&mut cluster);
    }
}

#[test]
fn a_source_that_is_elsewhere_too_is_read_from_there_and_nothing_is_done_twice() {
    let mut cluster = Cluster::start(chained(5));
    put(&cluster, 2, LARGE, 2);
    drop(cluster.client(4).get(id(2), TIME_LIMIT).unwrap());
    let unfinished = [1, 3].map(|node| Unfinished::half(&cluster, node, LARGE, node as u64));
    std::thread::scope(|scope| {
        let running = start(scope, &cluster, 0, "target", &[1, 2, 3], ReduceOptions::default());
        let mut reader = await_half(&cluster, 0, "target", &[1, 2, 3]);
        cluster.kill_store(2);
        finish_all(unfinished);
        let expected = LARGE.reduced(ReduceOp::Sum, &[1, 2, 3]);
        assert!(read_to(&mut reader, MIB) == expected[MIB..], "the reader just goes on");
        running.join().unwrap().unwrap();
    });
    let received_bytes = cluster.client(0).status().unwrap().received_bytes;
    assert_eq!(received_bytes, LARGE.size_bytes(), "the target goes on where it was");
    let record = record(&cluster, 0, "target");
    assert!(record.mendings >= 1 && record.restarts == 0, "{record:?}");
    assert_sum(&cluster, "target", &[1, 2, 3]);
    cluster.restart_store(2);
    assert_nothing_left(&mut cluster);
}

#[test]
fn a_source_that_is_lost_is_taken_when_it_is_put_again_elsewhere() {
    let mut cluster = Cluster::start(chained(4));
    let unfinished = halves(&cluster, 2);
    std::thread::scope(|scope| {
        // The third source is never put.
        let running = start(scope, &cluster, 0, "target", &[1, 2, 3], first(2));
        let reader = await_half(&cluster, 0, "target", &[1, 2]);
        cluster.kill_store(1);
        let client = cluster.client(2);
        let error = refusal(client.get(id(1), TIME_LIMIT));
        assert!(matches!(error, ObjectError::ObjectLost { .. }), "{error}");
        assert!(!running.is_finished());
        put(&cluster, 3, LARGE, 1);
        await_superseded(reader);
        drop(await_half(&cluster, 0, "target", &[1, 2]));
        for (unfinished, node) in unfinished.into_iter().zip(1..) {
            assert_eq!(unfinished.finish().is_ok(), node != 1);
        }
        assert_eq!(numbers(&running.join().unwrap().unwrap()), [2, 1]);
    });
    assert_sum(&cluster, "target", &[1, 2]);
    cluster.restart_store(1);
    assert_nothing_left(&mut cluster);
}

#[test]
fn a_frozen_node_is_left_after_its_silence() {
    let mut cluster = Cluster::start(chained(5));
    let mut unfinished = halves(&cluster, 3);
    put(&cluster, 4, LARGE, 4);
    std::thread::scope(|scope| {
        let running = start(scope, &cluster, 0, "target", &[1, 2, 3, 4], first(3));
        drop(await_half(&cluster, 0, "target", &[1, 2, 3]));
        cluster.store(2).signal(Signal::STOP);
        let frozen = unfinished.remove(1);
        finish_all(unfinished);
        let mut joined = numbers(&running.join().unwrap().unwrap());
        joined.sort_unstable();
        assert_eq!(joined, [1, 3, 4]);
        cluster.store(2).signal(Signal::CONT);
        cluster.await_sessions(2);
        frozen.finish().unwrap();
    });
    assert_sum(&cluster, "target", &[1, 3, 4]);
    assert_nothing_left(&mut cluster);
}

#[test]
fn a_coordinator_that_was_frozen_begins_again_what_has_ended() {
    let mut cluster = Cluster::start(chained(4));
    let unfinished = halves(&cluster, 3);
    std::thread::scope(|scope| {
        let running = start(scope, &cluster, 0, "target", &[1, 2, 3], ReduceOptions::default());
        drop(await_half(&cluster, 0, "target", &[1, 2, 3]));
        cluster.store(0).signal(Signal::STOP);
        for node in 1..4 {
            let client = cluster.client(node);
            await_that("only the source", || client.status().unwrap().copies == 1);
        }
        cluster.store(0).signal(Signal::CONT);
        finish_all(unfinished);
        running.join().unwrap().unwrap();
    });
    cluster.await_sessions(0);
    assert_sum(&cluster, "target", &[1, 2, 3]);
    assert_nothing_left(&mut cluster);
}

#[test]
fn the_hops_of_a_coordinator_that_dies_end() {
    let mut cluster = Cluster::start(chained(4));
    let unfinished = halves(&cluster, 3);
    std::thread::scope(|scope| {
        let running = start(scope, &cluster, 0, "target", &[1, 2, 3], ReduceOptions::default());
        let mut reader = await_half(&cluster, 1, "target", &[1, 2, 3]);
        assert!(
            cluster.client(2).status().unwrap().copies >= 2,
            "a source and the output of a hop"
        );
        cluster.kill_store(0);
        assert!(matches!(running.join().unwrap(), Err(Error::ConnectionLost { .. })));
        let error = refusal(reader.read(&mut [0; 10], TIME_LIMIT));
        assert!(matches!(error, ObjectError::ObjectLost { .. }), "{error}");
    });
    for node in 1..4 {
        let client = cluster.client(node);
        await_that("only the source", || client.status().unwrap().copies == 1);
    }
    finish_all(unfinished);
    cluster.restart_store(0);
    cluster.client(0).reduce("target", ids(&[1, 2, 3]), ReduceOp::Sum, TIME_LIMIT).unwrap();
    assert_sum(&cluster, "target", &[1, 2, 3]);
    assert_nothing_left(&mut cluster);
}
