use hoplite_core::Error as ObjectError;
use hoplite_tests::cluster::{Cluster, await_that, refusal};
use hoplite_tests::contents::bytes;

use super::{TIME_LIMIT, await_received, begin, finish, gets};

#[test]
fn a_delete_ends_running_streams() {
    let (nodes, size) = (4, 4 << 20);
    let mut cluster = Cluster::of(nodes);
    let old = bytes(1, size);
    let writer = begin(&cluster, 0, "object", &old, size / 2);
    std::thread::scope(|scope| {
        let receivers = gets(scope, &cluster, 1..nodes, "object");
        for node in 1..nodes {
            await_received(&cluster, node, size / 2);
        }
        assert_eq!(cluster.client(3).delete(["object"], TIME_LIMIT).unwrap(), 1);
        for (_, receiver) in receivers {
            let error = refusal(receiver.join().unwrap());
            assert!(matches!(error, ObjectError::Deleted { .. }), "{error}");
        }
    });
    for node in 1..nodes {
        cluster.await_empty(node);
    }
    let error = refusal(finish(writer, &old));
    assert!(matches!(error, ObjectError::Deleted { .. }), "{error}");
    cluster.await_empty(0);

    let new = bytes(2, size);
    cluster.client(2).put("object", &new).expect("the id is free at once");
    for node in 0..nodes {
        assert!(
            cluster.client(node).get("object", TIME_LIMIT).unwrap()[..] == new[..],
            "node {node}"
        );
    }
    cluster.assert_serves();
}

#[test]
fn a_view_of_a_deleted_object_stays_readable() {
    let mut cluster = Cluster::of(2);
    let client = cluster.client(1);
    for round in 0..5 {
        let expected = bytes(round, 100_000);
        cluster.client(0).put("object", &expected).unwrap();
        let view = client.get("object", TIME_LIMIT).unwrap();
        assert_eq!(cluster.client(0).delete(["object"], TIME_LIMIT).unwrap(), 1);
        cluster.client(1).put("other", &bytes(100, 100_000)).unwrap();
        assert!(view[..] == expected[..], "round {round}");
        drop(view);
        cluster.client(0).delete(["other"], TIME_LIMIT).unwrap();
        cluster.await_empty(1);
    }
    cluster.assert_serves();
}

#[test]
fn gets_of_one_object_on_one_node_share_one_pull() {
    let size = 4 << 20;
    let cluster = Cluster::of(2);
    let expected = bytes(3, size);
    let writer = begin(&cluster, 0, "object", &expected, size / 2);
    std::thread::scope(|scope| {
        let mut receivers = gets(scope, &cluster, [1; 20], "object");
        let client = cluster.client(1);
        for _ in 0..20 {
            let client = client.clone();
            receivers.push((1, scope.spawn(move || client.get_vec("object", TIME_LIMIT))));
        }
        await_received(&cluster, 1, size / 2);
        finish(writer, &expected).unwrap();
        for (_, receiver) in receivers {
            assert!(receiver.join().unwrap().unwrap() == expected);
        }
    });
    assert_eq!(cluster.client(1).status().unwrap().received_bytes, size as u64);
}

#[test]
fn gets_before_the_put_get_it() {
    let nodes = 4;
    for size in [0, 1000, 1 << 20] {
        let cluster = Cluster::of(nodes);
        let expected = bytes(4, size);
        std::thread::scope(|scope| {
            let receivers = gets(scope, &cluster, (0..nodes).chain([0]), "object");
            await_that("the gets to wait", || {
                cluster.client(1).status().unwrap().shards[0].waiting_queries == 4
            });
            cluster.client(0).put("object", &expected).unwrap();
            for (_, receiver) in receivers {
                assert!(receiver.join().unwrap().unwrap() == expected);
            }
        });
        assert_eq!(
            cluster.client(0).status().unwrap().received_bytes,
            0,
            "the origin fetches nothing"
        );
        assert_eq!(cluster.client(0).delete(["object"], TIME_LIMIT).unwrap(), 1);
        for node in 0..nodes {
            cluster.await_empty(node);
        }
    }
}
