use hoplite_client::{Error, ReduceOptions};
use hoplite_tests::cluster::{Cluster, Worker, retry};
use rustix::process::Signal;

use super::*;

fn assert_lost(running: Running<'_>, cluster: &Cluster, number: u64) {
    let error = refusal(running.join().unwrap());
    let is_named = matches!(&error, ObjectError::ObjectLost { id: lost } if lost.as_bytes() == id(number).as_bytes());
    assert!(is_named, "{error}");
    assert!(!cluster.client(0).contains("target").unwrap());
}

fn producer(cluster: &Cluster, node: usize, number: u64) -> Worker {
    let mut worker = Worker::start(&cluster.socket(node));
    worker.succeed(&format!("create {} {} f32 {}", id(number), LARGE.size_bytes(), LARGE.length));
    worker.succeed(&format!("write {MIB}"));
    worker
}

fn await_half_of_any(cluster: &Cluster, node: usize) -> ObjectReader {
    let mut reader = cluster.client(node).get_reader("target", TIME_LIMIT).unwrap();
    read_to(&mut reader, MIB);
    reader
}

#[test]
fn a_source_whose_producer_dies_ends_the_reduce() {
    for node in 1..=3 {
        let mut cluster = Cluster::start(chained(4));
        let mut worker = producer(&cluster, node, node as u64);
        let others = (1..=3).filter(|other| *other != node);
        let others: Vec<_> =
            others.map(|other| Unfinished::half(&cluster, other, LARGE, other as u64)).collect();
        std::thread::scope(|scope| {
            let running = start(scope, &cluster, 0, "target", &[1, 2, 3], ReduceOptions::default());
            let mut reader = await_half_of_any(&cluster, 0);
            worker.kill();
            assert_lost(running, &cluster, node as u64);
            let error = refusal(reader.read(&mut [0; 10], TIME_LIMIT));
            assert!(matches!(error, ObjectError::ObjectLost { .. }), "{error}");
        });
        finish_all(others);
        assert_nothing_left(&mut cluster);
    }
}

#[test]
fn a_source_that_is_put_again_on_another_node_is_taken_instead() {
    let mut cluster = Cluster::start(chained(5));
    let mut worker = producer(&cluster, 2, 2);
    let others = [1, 3].map(|node| Unfinished::half(&cluster, node, LARGE, node as u64));
    std::thread::scope(|scope| {
        let running = start(scope, &cluster, 0, "target", &[1, 2, 3], ReduceOptions::default());
        let reader = await_half_of_any(&cluster, 0);
        let coordinator = cluster.stores[0].as_ref().unwrap();
        coordinator.signal(Signal::STOP);
        worker.kill();
        let client = cluster.client(4);
        await_that("the loss", || {
            retry("describe", || client.describe(id(2))).locations.locations.is_empty()
        });
        put(&cluster, 4, LARGE, 2);
        coordinator.signal(Signal::CONT);
        await_superseded(reader);
        drop(await_half(&cluster, 0, "target", &[1, 2, 3]));
        finish_all(others);
        running.join().unwrap().unwrap();
    });
    assert_sum(&cluster, "target", &[1, 2, 3]);
    assert_eq!(record(&cluster, 0, "target").restarts, 1);
    assert_nothing_left(&mut cluster);
}

#[test]
fn a_spare_takes_the_place_of_a_source_whose_producer_dies() {
    let mut cluster = Cluster::start(chained(5));
    let mut worker = producer(&cluster, 1, 1);
    let others = [2, 3].map(|node| Unfinished::half(&cluster, node, LARGE, node as u64));
    put(&cluster, 4, LARGE, 4);
    std::thread::scope(|scope| {
        let running = start(scope, &cluster, 0, "target", &[1, 2, 3, 4], first(3));
        let reader = await_half_of_any(&cluster, 0);
        worker.kill();
        await_superseded(reader);
        drop(await_half(&cluster, 0, "target", &[2, 3, 4]));
        finish_all(others);
        assert_eq!(numbers(&running.join().unwrap().unwrap()), [2, 3, 4]);
    });
    assert_sum(&cluster, "target", &[2, 3, 4]);
    assert_nothing_left(&mut cluster);
}

#[test]
fn readers_of_a_part_get_the_right_target() {
    let mut cluster = Cluster::start(chained(5));
    let mut worker = producer(&cluster, 1, 1);
    let others = [2, 3].map(|node| Unfinished::half(&cluster, node, LARGE, node as u64));
    put(&cluster, 4, LARGE, 4);
    std::thread::scope(|scope| {
        let running = start(scope, &cluster, 0, "target", &[1, 2, 3, 4], first(3));
        let readers = [0, 4].map(|node| await_half_of_any(&cluster, node));
        let gets: Vec<_> = (0..5)
            .flat_map(|node| {
                let (copying, viewing) = (cluster.client(node), cluster.client(node));
                let get_into = move || {
                    let mut out = vec![0; 2 * MIB];
                    copying.get_into("target", &mut out, TIME_LIMIT).map(|_| out)
                };
                let get = move || viewing.get("target", TIME_LIMIT).map(|view| view.to_vec());
                [scope.spawn(get_into), scope.spawn(get)]
            })
            .collect();
        for node in 0..5 {
            await_half_of_any(&cluster, node);
        }
        worker.kill();
        readers.into_iter().for_each(await_superseded);
        drop(await_half(&cluster, 4, "target", &[2, 3, 4]));
        finish_all(others);
        running.join().unwrap().unwrap();
        let expected = LARGE.reduced(ReduceOp::Sum, &[2, 3, 4]);
        for get in gets {
            assert!(get.join().unwrap().unwrap() == expected);
        }
    });
    assert_sum(&cluster, "target", &[2, 3, 4]);
    assert_nothing_left(&mut cluster);
}

#[test]
fn a_source_that_is_deleted_ends_the_reduce() {
    for victim in 0..3 {
        let mut cluster = Cluster::start(chained(4));
        let mut unfinished = halves(&cluster, 3);
        std::thread::scope(|scope| {
            let running = start(scope, &cluster, 0, "target", &[1, 2, 3], ReduceOptions::default());
            drop(await_half(&cluster, 0, "target", &[1, 2, 3]));
            let number = victim as u64 + 1;
            assert_eq!(cluster.client(2).delete([id(number)], TIME_LIMIT).unwrap(), 1);
            assert_lost(running, &cluster, number);
        });
        let error = refusal(unfinished.remove(victim).finish());
        assert!(matches!(error, ObjectError::Deleted { .. }), "{error}");
        finish_all(unfinished);
        assert_nothing_left(&mut cluster);
    }
}

#[test]
fn a_source_of_the_caller_that_is_deleted_ends_the_reduce() {
    let mut cluster = Cluster::start(chained(3));
    let unfinished = [0, 1, 2].map(|node| Unfinished::half(&cluster, node, LARGE, node as u64));
    let [own, others @ ..] = unfinished;
    std::thread::scope(|scope| {
        let running = start(scope, &cluster, 0, "target", &[0, 1, 2], ReduceOptions::default());
        drop(await_half(&cluster, 1, "target", &[0, 1, 2]));
        assert_eq!(cluster.client(2).delete([id(0)], TIME_LIMIT).unwrap(), 1);
        assert_lost(running, &cluster, 0);
    });
    assert!(matches!(own.finish(), Err(Error::Object(ObjectError::Deleted { .. }))));
    finish_all(others);
    assert_nothing_left(&mut cluster);
}

#[test]
fn a_small_source_lost_during_the_wait_is_replaced() {
    let mut cluster = Cluster::start(chained(3));
    let small = Arrays::of_bytes(1000);
    put(&cluster, 1, small, 1);
    std::thread::scope(|scope| {
        let running = start(scope, &cluster, 0, "target", &[1, 2, 3], first(2));
        cluster.client(1).delete([id(1)], TIME_LIMIT).unwrap();
        for number in [2, 3] {
            put(&cluster, 2, small, number);
        }
        let joined = numbers(&running.join().unwrap().unwrap());
        assert_reduced(&cluster, [0, 1], "target", (small, ReduceOp::Sum), &joined);
    });
    assert_nothing_left(&mut cluster);
}
