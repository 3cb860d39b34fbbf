use hoplite_client::{PutOptions, ReduceOptions};
use hoplite_core::error::Missing;
use hoplite_tests::cluster::{Cluster, Plan, Worker};

use super::*;

fn within(timeout: Duration) -> ReduceOptions {
    ReduceOptions { timeout, ..ReduceOptions::default() }
}

#[test]
fn the_hops_of_a_client_that_dies_end() {
    let mut cluster = Cluster::start(chained(4));
    let free = |node: usize| cluster.client(node).status().unwrap().free_bytes;
    let unfinished = halves(&cluster, 3);
    let before: Vec<u64> = (0..4).map(free).collect();
    let mut worker = Worker::start(&cluster.socket(0));
    worker.send_command("reduce target array-1 array-2 array-3");
    let mut reader = await_half(&cluster, 1, "target", &[1, 2, 3]);
    assert!(free(2) < before[2], "there is a hop");
    let [coordinator, host] = [0, 2].map(|node| cluster.client(node).status().unwrap());
    assert_eq!((coordinator.reduces, host.reduces, host.hops), (1, 0, 1));
    assert!(coordinator.directed_hops >= 1 && host.combinations == 1);
    worker.kill();
    let error = refusal(reader.read(&mut [0; 10], TIME_LIMIT));
    assert!(matches!(error, ObjectError::ObjectLost { .. }), "{error}");
    drop(reader);
    for (node, before) in before.iter().enumerate() {
        await_that("the memory back", || free(node) == *before);
    }
    finish_all(unfinished);
    cluster
        .client(3)
        .reduce("target", ids(&[1, 2, 3]), ReduceOp::Sum, TIME_LIMIT)
        .expect("the id is free");
    assert_sum(&cluster, "target", &[1, 2, 3]);
    assert_nothing_left(&mut cluster);
}

#[test]
fn a_delete_of_the_target_ends_the_reduce() {
    let mut cluster = Cluster::start(chained(4));
    let unfinished = halves(&cluster, 3);
    // Any node may delete the target, also before it exists.
    for (node, is_begun) in [(0, true), (1, true), (3, true), (0, false), (3, false)] {
        std::thread::scope(|scope| {
            let missing = if is_begun { 3 } else { 4 };
            let running =
                start(scope, &cluster, 0, "target", &[1, 2, missing], ReduceOptions::default());
            if is_begun {
                drop(await_half(&cluster, 2, "target", &[1, 2, 3]));
            } else {
                await_that("the first hop", || cluster.client(2).status().unwrap().copies == 2);
            }
            let deleted = cluster.client(node).delete(["target"], TIME_LIMIT).unwrap();
            assert_eq!(deleted, usize::from(is_begun || node == 0));
            let error = refusal(running.join().unwrap());
            assert!(
                matches!(&error, ObjectError::Deleted { id } if id.as_bytes() == b"target"),
                "{error}"
            );
        });
        await_no_hops(&cluster);
    }
    finish_all(unfinished);
    cluster
        .client(3)
        .reduce("target", ids(&[1, 2, 3]), ReduceOp::Sum, TIME_LIMIT)
        .expect("the id is free");
    assert_sum(&cluster, "target", &[1, 2, 3]);
    assert_nothing_left(&mut cluster);
}

#[test]
fn a_reduce_that_takes_too_long_times_out() {
    let mut cluster = Cluster::start(chained(4));
    let client = cluster.client(0);
    let timed_out = |numbers: &[u64], timeout: Duration| {
        let error = refusal(client.reduce_with("target", ids(numbers), within(timeout)));
        assert!(matches!(error, ObjectError::Timeout { .. }), "{error}");
        await_no_hops(&cluster);
    };
    let short = Duration::from_millis(300);
    timed_out(&[1], Duration::ZERO);
    timed_out(&[1, 2, 3], short);
    let unfinished = halves(&cluster, 3);
    timed_out(&[1, 2, 4], short);
    timed_out(&[1, 2, 3], short);
    assert!(!client.contains("target").unwrap());
    finish_all(unfinished);
    client.reduce_with("target", ids(&[1, 2, 3]), within(TIME_LIMIT)).expect("the id is free");
    assert_sum(&cluster, "target", &[1, 2, 3]);
    assert_nothing_left(&mut cluster);
}

#[test]
fn a_reduce_names_the_source_that_no_store_offers() {
    let mut cluster = Cluster::start(chained(2));
    put(&cluster, 1, LARGE, 1);
    let short = within(Duration::from_millis(500));
    let absent = [ObjectId::new(id(2)).unwrap()];
    await_that("the name of the source", || {
        let error = refusal(cluster.client(0).reduce_with("target", ids(&[1, 2]), short.clone()));
        let ObjectError::Timeout { missing, .. } = &error else { panic!("{error}") };
        matches!(missing.as_deref(), Some(Missing::Sources { sources }) if sources.first == absent)
    });
    assert_nothing_left(&mut cluster);
}

#[test]
fn a_store_without_space_for_a_hop_is_left_out() {
    let mut plan = chained(4);
    plan.memory_of = [(2, "3MiB".to_owned())].into();
    let mut cluster = Cluster::start(plan);
    for node in 1..=3 {
        put(&cluster, node, LARGE, node as u64);
    }
    // The hop waits two seconds for memory.
    let options = within(TIME_LIMIT);
    let joined = cluster.client(0).reduce_with("target", ids(&[1, 2, 3]), options).unwrap();
    assert_eq!(joined.len(), 3);
    assert_reduced(&cluster, [0, 1, 3], "target", (LARGE, ReduceOp::Sum), &[1, 2, 3]);
    assert_eq!(record(&cluster, 0, "target").hops, 1, "that of node 3");
    assert_nothing_left(&mut cluster);
}

#[test]
fn a_hop_waits_for_space() {
    let mut plan = chained(4);
    plan.memory_of = [(2, "5MiB".to_owned())].into();
    let mut cluster = Cluster::start(plan);
    let unfinished = halves(&cluster, 3);
    let client = cluster.client(2);
    client.put("filler", &vec![1; 2 * MIB]).unwrap();
    std::thread::scope(|scope| {
        let running = start(scope, &cluster, 0, "target", &[1, 2, 3], ReduceOptions::default());
        let reader = cluster.client(0).get_reader("target", TIME_LIMIT).unwrap();
        assert_eq!(client.status().unwrap().copies, 2, "there is no room for the output");
        drop(reader);
        client.delete(["filler"], TIME_LIMIT).unwrap();
        drop(await_half(&cluster, 0, "target", &[1, 2, 3]));
        finish_all(unfinished);
        running.join().unwrap().unwrap();
    });
    assert_eq!(record(&cluster, 0, "target").hops, 2);
    assert_reduced(&cluster, [0, 1, 3], "target", (LARGE, ReduceOp::Sum), &[1, 2, 3]);
    assert_nothing_left(&mut cluster);
}

#[test]
fn reduces_that_compete_for_space_succeed() {
    let nodes = 4;
    let mut cluster = Cluster::start(Plan { memory: "11MiB".to_owned(), ..chained(nodes) });
    for node in 0..nodes {
        put(&cluster, node, LARGE, node as u64);
    }
    let calls =
        (0..nodes).flat_map(|node| (0..3).map(move |call| (node, format!("target-{node}-{call}"))));
    let calls: Vec<(usize, String)> = calls.collect();
    let all = [0, 1, 2, 3];
    std::thread::scope(|scope| {
        let running: Vec<_> = calls
            .iter()
            .map(|(node, target)| {
                start(scope, &cluster, *node, target, &all, ReduceOptions::default())
            })
            .collect();
        for running in running {
            assert_eq!(running.join().unwrap().unwrap().len(), nodes);
        }
    });
    for (node, target) in &calls {
        assert_reduced(&cluster, [*node], target, (LARGE, ReduceOp::Sum), &all);
    }
    assert_nothing_left(&mut cluster);
}

#[test]
fn a_target_waits_for_space_until_its_deadline() {
    let mut cluster = Cluster::start(Plan { memory: "5MiB".to_owned(), ..chained(3) });
    let client = cluster.client(0);
    for node in 1..=2 {
        put(&cluster, node, LARGE, node as u64);
    }
    for id in ["filler", "other filler"] {
        client.put_with(id, &vec![1; 2 * MIB], PutOptions::default()).unwrap();
    }
    let short = Duration::from_millis(300);
    await_that("a reduce that lacks room", || {
        let error = refusal(client.reduce_with("target", ids(&[1, 2]), within(short)));
        assert!(
            matches!(error, ObjectError::StoreFull { .. } | ObjectError::Timeout { .. }),
            "{error}"
        );
        matches!(error, ObjectError::StoreFull { .. })
    });
    await_no_hops(&cluster);
    std::thread::scope(|scope| {
        let running = start(scope, &cluster, 0, "target", &[1, 2], ReduceOptions::default());
        await_that("the reduce", || {
            let error = refusal(client.reduce_with("target", ids(&[3]), within(Duration::ZERO)));
            matches!(error, ObjectError::AlreadyExists { .. })
        });
        assert_eq!(
            cluster.client(2).status().unwrap().copies,
            1,
            "nothing is combined before there is room for the sum"
        );
        client.delete(["filler"], TIME_LIMIT).unwrap();
        running.join().unwrap().unwrap();
    });
    assert_reduced(&cluster, [0], "target", (LARGE, ReduceOp::Sum), &[1, 2]);
    assert_nothing_left(&mut cluster);
}

#[test]
fn a_target_that_never_fits_is_refused() {
    let mut plan = chained(3);
    plan.memory_of = [(0, "1MiB".to_owned())].into();
    let mut cluster = Cluster::start(plan);
    for node in 1..=2 {
        put(&cluster, node, LARGE, node as u64);
    }
    let error = refusal(cluster.client(0).reduce_with("target", ids(&[1, 2]), within(TIME_LIMIT)));
    assert!(
        matches!(&error, ObjectError::ObjectTooLarge { id, .. } if id.as_bytes() == b"target"),
        "{error}"
    );
    assert_nothing_left(&mut cluster);
}
