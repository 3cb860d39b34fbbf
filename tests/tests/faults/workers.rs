use std::time::{Duration, Instant};

use hoplite_core::Error as ObjectError;
use hoplite_core::block::publishable_unsealed;
use hoplite_tests::cluster::{Cluster, Plan, Worker, await_that, refusal};
use hoplite_tests::contents::bytes;

use super::{TIME_LIMIT, await_received, begin, gets};

#[test]
fn an_object_whose_writer_dies_is_aborted_everywhere() {
    let mut cluster = Cluster::of(3);
    let large = 8 << 20;
    let rounds = [
        (large, 0),
        (large, 4096),
        (large, 3 << 20),
        (large, large - 4096),
        (large, large),
        (large + 1, large + 1),
        (64 << 10, 64 << 10),
    ];
    for (round, (size, written)) in rounds.into_iter().enumerate() {
        let mut worker = Worker::start(&cluster.socket(0));
        worker.succeed(&format!("create object {size}"));
        worker.succeed(&format!("write {written}"));
        let passed_on = usize::try_from(publishable_unsealed(written, size)).unwrap();
        let received: Vec<u64> =
            (1..3).map(|node| cluster.client(node).status().unwrap().received_bytes).collect();
        std::thread::scope(|scope| {
            let waiting = gets(scope, &cluster, 1..3, "object");
            for node in 1..3 {
                await_received(
                    &cluster,
                    node,
                    usize::try_from(received[node - 1]).unwrap() + passed_on,
                );
            }
            await_that("both gets on their way", || {
                let status = |node: usize| cluster.client(node).status().unwrap();
                let pulls = status(1).pulls + status(2).pulls;
                pulls + status(0).shards[0].waiting_queries >= 2
            });
            let killed = Instant::now();
            worker.kill();
            for (_, get) in waiting {
                let error = refusal(get.join().unwrap());
                assert!(matches!(error, ObjectError::ObjectLost { .. }), "{error}");
            }
            eprintln!("aborted {} ms after the writer's death", killed.elapsed().as_millis());
            assert!(killed.elapsed() < TIME_LIMIT / 2, "nobody waits for the timeout");
        });
        for node in 0..3 {
            cluster.await_empty(node);
        }
        if round % 2 == 0 {
            let other = bytes(1, 300_000);
            cluster.client(1).put("object", &other).expect("the id is free again");
            assert!(cluster.client(2).get("object", TIME_LIMIT).unwrap()[..] == other[..]);
            cluster.client(0).delete(["object"], TIME_LIMIT).unwrap();
        }
    }
    cluster.assert_serves();
}

#[test]
fn an_object_dropped_unsealed_is_never_read_to_its_end() {
    let cluster = Cluster::of(3);
    let contents = bytes(3, 1 << 20);
    let writer = begin(&cluster, 0, "object", &contents, contents.len());
    let mut readers: Vec<_> =
        (0..3).map(|node| cluster.client(node).get_reader("object", TIME_LIMIT).unwrap()).collect();
    let mut out = vec![0; contents.len()];
    for reader in &mut readers {
        let mut position = 0;
        while position < contents.len() - 4096 {
            position += reader.read(&mut out[position..], TIME_LIMIT).unwrap();
        }
        assert_eq!(position, contents.len() - 4096);
        let error = refusal(reader.read(&mut out, Duration::from_millis(50)));
        assert!(matches!(error, ObjectError::Timeout { .. }), "{error}");
    }
    drop(writer);
    for reader in &mut readers {
        let error = refusal(reader.read(&mut out, TIME_LIMIT));
        assert!(matches!(error, ObjectError::ObjectLost { .. }), "{error}");
    }
    drop(readers);
    for node in 0..3 {
        cluster.await_empty(node);
    }
}

#[test]
fn a_small_object_of_a_dead_writer_is_not_visible() {
    let mut cluster = Cluster::of(2);
    let mut worker = Worker::start(&cluster.socket(0));
    worker.succeed("create object 1000");
    worker.succeed("write 1000");
    worker.kill();
    cluster.await_empty(0);
    let error = refusal(cluster.client(1).get("object", Duration::from_millis(100)));
    assert!(matches!(error, ObjectError::Timeout { .. }), "{error}");
    cluster.assert_serves();
}

#[test]
fn a_sealed_object_outlives_its_writer() {
    let cluster = Cluster::of(2);
    let mut worker = Worker::start(&cluster.socket(0));
    worker.succeed("put large 1000000");
    worker.succeed("put small 1000");
    worker.kill();
    for (id, size) in [("large", 1_000_000), ("small", 1000)] {
        assert_eq!(cluster.client(1).get(id, TIME_LIMIT).unwrap()[..], vec![0; size]);
    }
}

#[test]
fn memory_that_a_dead_worker_viewed_is_reusable() {
    let memory_of = [(1, "8MiB".to_owned())].into();
    let mut cluster = Cluster::start(Plan { memory_of, ..Plan::default() });
    let size = 5 << 20;
    for id in ["first", "second"] {
        cluster.client(0).put(id, &bytes(2, size)).unwrap();
    }
    let mut worker = Worker::start(&cluster.socket(1));
    worker.succeed("get first");
    let client = cluster.client(1);
    await_that("a get that lacks room", || {
        let error = refusal(client.get("second", Duration::from_millis(200)));
        assert!(
            matches!(error, ObjectError::StoreFull { .. } | ObjectError::Timeout { .. }),
            "{error}"
        );
        matches!(error, ObjectError::StoreFull { .. })
    });
    std::thread::scope(|scope| {
        let waiting = gets(scope, &cluster, [1], "second");
        worker.kill();
        for (_, get) in waiting {
            assert!(get.join().unwrap().unwrap() == bytes(2, size));
        }
    });
    assert_eq!(client.status().unwrap().evictions, 1);
    cluster.client(0).delete(["first", "second"], TIME_LIMIT).unwrap();
    cluster.await_empty(1);
    cluster.assert_serves();
}
