use std::time::Duration;

use hoplite_core::{Error as ObjectError, ErrorCode};
use hoplite_tests::cluster::{Cluster, Plan, await_that, refusal};
use hoplite_tests::contents::bytes;

use super::{TIME_LIMIT, begin, finish, gets};

fn ids(prefix: &str) -> Vec<String> {
    (0..16).map(|number| format!("{prefix}-{number}")).collect()
}

fn contents(number: usize) -> Vec<u8> {
    bytes(number as u64, if number.is_multiple_of(2) { 1000 } else { 200_000 })
}

fn put_all(cluster: &Cluster, prefix: &str) {
    for (number, id) in ids(prefix).iter().enumerate() {
        cluster.client(number % 3).put(id, &contents(number)).unwrap();
    }
}

fn get_all(cluster: &Cluster, prefix: &str) {
    for (number, id) in ids(prefix).iter().enumerate() {
        let view = cluster.client((number + 1) % 3).get(id, TIME_LIMIT).unwrap();
        assert!(view[..] == contents(number)[..], "{id}");
    }
}

fn delete_all(cluster: &Cluster, prefix: &str) {
    assert_eq!(cluster.client(2).delete(ids(prefix), TIME_LIMIT).unwrap(), ids(prefix).len());
    for id in ids(prefix) {
        assert!(!cluster.client(0).contains(&id).unwrap(), "{id}");
    }
}

#[test]
fn small_objects_survive_their_store_and_each_shard_after_it() {
    let mut cluster = Cluster::start(Plan { nodes: 3, shards: 2, ..Plan::default() });
    let contents = |number: usize| bytes(number as u64, 1000);
    for number in 0..6 {
        cluster.client(0).put(format!("small-{number}"), &contents(number)).unwrap();
    }
    let known = |cluster: &Cluster, count| {
        await_that("both shards to know all", || {
            cluster.client(1).status().unwrap().shards.iter().all(|shard| shard.objects == count)
        });
    };
    known(&cluster, 6);
    cluster.kill_store(0);
    cluster.kill_shard(0);
    cluster.restart_shard(0);
    for number in 0..6 {
        let view = cluster.client(1).get(format!("small-{number}"), TIME_LIMIT).unwrap();
        assert!(view[..] == contents(number)[..], "{number}");
    }
    known(&cluster, 6);
    cluster.kill_shard(1);
    cluster.restart_shard(1);
    cluster.await_sessions(2);
    for number in 0..6 {
        let view = cluster.client(2).get(format!("small-{number}"), TIME_LIMIT).unwrap();
        assert!(view[..] == contents(number)[..], "{number}");
    }
}

#[test]
fn with_two_shards_one_may_die_and_come_back() {
    let mut cluster = Cluster::start(Plan { nodes: 3, shards: 2, ..Plan::default() });
    for victim in 0..2 {
        put_all(&cluster, "old");
        put_all(&cluster, "doomed");
        cluster.kill_shard(victim);
        get_all(&cluster, "old");
        delete_all(&cluster, "doomed");
        put_all(&cluster, "new");
        get_all(&cluster, "new");
        cluster.restart_shard(victim);
        for node in 0..3 {
            cluster.await_sessions(node);
        }
        get_all(&cluster, "old");
        get_all(&cluster, "new");
        for id in ids("doomed") {
            assert!(!cluster.client(1).contains(&id).unwrap(), "{id} stays deleted");
        }
        delete_all(&cluster, "old");
        delete_all(&cluster, "new");
        for node in 0..3 {
            cluster.await_empty(node);
        }
    }
    cluster.assert_serves();
}

#[test]
fn an_object_is_described_by_the_shard_that_knows_it() {
    let mut cluster = Cluster::start(Plan { shards: 2, ..Plan::default() });
    cluster.put_zeros(0, "x");
    let copies = |cluster: &Cluster| {
        let described = cluster.client(1).describe("x")?;
        hoplite_client::Result::Ok(described.locations.locations.len())
    };
    for shard in 0..2 {
        await_that("both shards to know it", || {
            cluster.client(1).status().unwrap().shards.iter().all(|shard| shard.objects == 1)
        });
        cluster.kill_shard(shard);
        assert_eq!(copies(&cluster).unwrap(), 1, "without shard {shard}");
        cluster.restart_shard(shard);
        (0..2).for_each(|node| cluster.await_sessions(node));
        assert_eq!(copies(&cluster).unwrap(), 1, "after a restart of shard {shard}");
    }
    cluster.kill_shard(0);
    cluster.kill_shard(1);
    let error = refusal(copies(&cluster));
    assert_eq!(error.code(), ErrorCode::Unavailable, "{error}");
}

#[test]
fn calls_outlast_the_restart_of_the_only_shard() {
    let mut cluster = Cluster::start(Plan { nodes: 3, ..Plan::default() });
    put_all(&cluster, "old");
    put_all(&cluster, "doomed");
    let size = 2 << 20;
    let expected = bytes(99, size);
    let writer = begin(&cluster, 0, "streaming", &expected, size / 2);
    std::thread::scope(|scope| {
        let streaming = gets(scope, &cluster, [1, 2], "streaming");
        cluster.kill_shard(0);
        (0..3).for_each(|node| cluster.await_lost_sessions(node));
        let early = gets(scope, &cluster, [1], "old-1");
        let late = gets(scope, &cluster, [2], "put while the shard is away");
        let client = cluster.client(0);
        let put = scope.spawn(move || client.put("put while the shard is away", &bytes(98, size)));
        let client = cluster.client(1);
        let delete = scope.spawn(move || client.delete(ids("doomed"), TIME_LIMIT));
        cluster.restart_shard(0);
        for (_, get) in early {
            assert!(get.join().unwrap().unwrap() == contents(1));
        }
        for (_, get) in late {
            assert!(get.join().unwrap().unwrap() == bytes(98, size));
        }
        put.join().unwrap().unwrap();
        finish(writer, &expected).unwrap();
        for (_, get) in streaming {
            assert!(get.join().unwrap().unwrap() == expected);
        }
        let deleted = delete.join().unwrap().expect("a delete waits for the shard");
        assert_eq!(deleted, ids("doomed").len());
    });
    for node in 0..3 {
        cluster.await_sessions(node);
    }
    get_all(&cluster, "old");
    for (number, id) in ids("doomed").iter().enumerate() {
        assert!(!cluster.client(number % 3).contains(id).unwrap(), "{id} was deleted");
    }
    cluster.assert_serves();
}

#[test]
fn without_any_directory_only_new_puts_are_served() {
    let mut cluster = Cluster::of(1);
    let client = cluster.client(0);
    let expected = bytes(5, 300_000);
    client.put("before", &expected).unwrap();
    cluster.kill_shard(0);
    cluster.await_lost_sessions(0);
    let error = refusal(client.get("before", Duration::from_millis(500)));
    let missing = match &error {
        ObjectError::Timeout { missing: Some(missing), .. } => missing.kind(),
        other => panic!("{other}"),
    };
    assert_eq!(missing, "shard", "{error}");
    client.put("small", b"1").unwrap();
    assert_eq!(&client.get("small", TIME_LIMIT).unwrap()[..], b"1");
    let started = std::time::Instant::now();
    assert!(client.get("unknown", Duration::from_millis(100)).is_err());
    assert!(started.elapsed() < TIME_LIMIT, "the timeout holds");
    cluster.restart_shard(0);
    cluster.await_sessions(0);
    assert!(client.contains("small").unwrap());
    assert!(client.get("before", TIME_LIMIT).unwrap()[..] == expected[..]);
    cluster.assert_serves();
}
