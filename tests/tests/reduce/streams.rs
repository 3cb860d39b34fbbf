use hoplite_client::{ReduceOp, ReduceOptions};
use hoplite_tests::cluster::Cluster;

use super::*;

#[test]
fn sources_may_come_after_the_call_in_any_order() {
    let mut cluster = Cluster::start(chained(4));
    for arrays in [Arrays::of_bytes(1000), LARGE] {
        std::thread::scope(|scope| {
            let numbers = [0, 1, 2, 3];
            let running = start(scope, &cluster, 0, "target", &numbers, ReduceOptions::default());
            for node in [2, 0, 3, 1] {
                assert!(!running.is_finished());
                put(&cluster, node, arrays, node as u64);
            }
            let joined = running.join().unwrap().unwrap();
            assert_reduced(&cluster, 0..4, "target", (arrays, ReduceOp::Sum), &numbers);
            assert_eq!(joined.len(), 4);
        });
        cluster
            .client(0)
            .delete(ids(&[0, 1, 2, 3]).into_iter().chain(["target".to_owned()]), TIME_LIMIT)
            .unwrap();
    }
    assert_nothing_left(&mut cluster);
}

#[test]
fn a_target_is_read_everywhere_while_its_sources_are_written() {
    let mut cluster = Cluster::start(chained(4));
    let numbers = [1, 2, 3, 4];
    let mut unfinished = halves(&cluster, 3);
    unfinished.push(Unfinished::half(&cluster, 0, LARGE, 4));
    let expected = LARGE.reduced(ReduceOp::Sum, &numbers);
    std::thread::scope(|scope| {
        let running = start(scope, &cluster, 0, "target", &numbers, ReduceOptions::default());
        let mut readers: Vec<_> =
            (0..4).map(|node| await_half(&cluster, node, "target", &numbers)).collect();
        for end in [MIB + 4096, MIB + 300 * 1024, 2 * MIB - 4096] {
            unfinished.iter_mut().for_each(|unfinished| unfinished.write_to(end).unwrap());
            for reader in &mut readers {
                let start = usize::try_from(reader.position_bytes()).unwrap();
                assert!(read_to(reader, end - start) == expected[start..end]);
            }
        }
        assert!(!running.is_finished());
        finish_all(unfinished);
        for reader in &mut readers {
            assert!(read_to(reader, 4096) == expected[2 * MIB - 4096..]);
        }
        running.join().unwrap().unwrap();
    });
    assert_eq!(record(&cluster, 0, "target").restarts, 0);
    assert_nothing_left(&mut cluster);
}

#[test]
fn a_source_that_comes_in_the_middle_joins() {
    let mut cluster = Cluster::start(chained(4));
    let numbers = [1, 2, 3];
    std::thread::scope(|scope| {
        let running = start(scope, &cluster, 0, "target", &numbers, ReduceOptions::default());
        let unfinished = halves(&cluster, 2);
        let client = cluster.client(2);
        await_that("the first hop", || client.status().unwrap().received_bytes == MIB as u64);
        put(&cluster, 3, LARGE, 3);
        drop(await_half(&cluster, 0, "target", &numbers));
        finish_all(unfinished);
        running.join().unwrap().unwrap();
    });
    assert_sum(&cluster, "target", &numbers);
    assert_nothing_left(&mut cluster);
}

#[test]
fn reduces_of_reduces_stream() {
    let mut cluster = Cluster::start(chained(5));
    std::thread::scope(|scope| {
        let client = cluster.client(0);
        let sources = ["left".to_owned(), "right".to_owned(), id(1)];
        let last = scope.spawn(move || client.reduce("all", sources, ReduceOp::Sum, TIME_LIMIT));
        let left = start(scope, &cluster, 1, "left", &[1, 2], ReduceOptions::default());
        let right = start(scope, &cluster, 2, "right", &[3, 4], ReduceOptions::default());
        let unfinished = halves(&cluster, 4);
        drop(await_half(&cluster, 0, "all", &[1, 1, 2, 3, 4]));
        finish_all(unfinished);
        for running in [left, right, last] {
            running.join().unwrap().unwrap();
        }
    });
    assert_sum(&cluster, "left", &[1, 2]);
    assert_sum(&cluster, "right", &[3, 4]);
    assert_sum(&cluster, "all", &[1, 1, 2, 3, 4]);
    assert_nothing_left(&mut cluster);
}

#[test]
fn reduces_share_their_sources() {
    let mut cluster = Cluster::start(chained(4));
    for arrays in [Arrays::of_bytes(1000), LARGE] {
        let (early, late) = ([1, 2], [1, 2, 3]);
        put(&cluster, 1, arrays, 1);
        std::thread::scope(|scope| {
            let sum = ReduceOptions::default;
            let waiting = [(0, "late"), (1, "late-1"), (2, "late-2"), (3, "late-3"), (3, "late-4")]
                .map(|(node, target)| start(scope, &cluster, node, target, &late, sum()));
            put(&cluster, 2, arrays, 2);
            let done = [(0, "early"), (1, "early-1"), (3, "early-3")].map(|(node, target)| {
                (target, start(scope, &cluster, node, target, &early, sum()))
            });
            for (target, running) in done {
                running.join().unwrap().unwrap();
                assert_reduced(&cluster, [0, 3], target, (arrays, ReduceOp::Sum), &early);
            }
            assert!(waiting.iter().all(|running| !running.is_finished()), "one source is missing");
            put(&cluster, 3, arrays, 3);
            for running in waiting {
                running.join().unwrap().unwrap();
            }
            for target in ["late", "late-1", "late-2", "late-3", "late-4"] {
                assert_reduced(&cluster, [0], target, (arrays, ReduceOp::Sum), &late);
            }
        });
        let objects = retry("list", || cluster.client(0).list("", "", 100)).objects;
        cluster.client(0).delete(objects.iter().map(|object| &object.id), TIME_LIMIT).unwrap();
    }
    assert_nothing_left(&mut cluster);
}

#[test]
fn a_target_is_broadcast_while_it_grows() {
    let nodes = 6;
    let mut cluster = Cluster::start(chained(nodes));
    let numbers = [1, 2, 3, 4, 5];
    std::thread::scope(|scope| {
        let gets: Vec<_> = (0..nodes)
            .map(|node| {
                let client = cluster.client(node);
                scope.spawn(move || client.get_vec("target", TIME_LIMIT))
            })
            .collect();
        let running = start(scope, &cluster, 0, "target", &numbers, ReduceOptions::default());
        let unfinished = halves(&cluster, 5);
        let half = |node: usize| {
            let streams = if node <= 1 { 1 } else { 2 };
            let client = cluster.client(node);
            await_that("half of it", || {
                client.status().unwrap().received_bytes >= streams * MIB as u64
            });
        };
        (0..nodes).for_each(half);
        finish_all(unfinished);
        running.join().unwrap().unwrap();
        let expected = LARGE.reduced(ReduceOp::Sum, &numbers);
        for get in gets {
            assert!(get.join().unwrap().unwrap() == expected);
        }
    });
    let size = LARGE.size_bytes();
    let total: u64 =
        (0..nodes).map(|node| cluster.client(node).status().unwrap().received_bytes).sum();
    assert_eq!(total, 10 * size, "five streams of the chain, five of the broadcast");
    let sent = cluster.client(0).status().unwrap().sent_bytes;
    assert!(sent <= 2 * size, "receivers relay: the coordinator sent {sent} bytes");
    assert_nothing_left(&mut cluster);
}
