#![expect(
    clippy::unwrap_used,
    reason = "these are tests, and so are the functions that they share"
)]

use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use hoplite_client::ShardChange;
use hoplite_client::blocking::Client;
use hoplite_core::ErrorCode;
use hoplite_tests::TIME_LIMIT;
use hoplite_tests::cluster::{Cluster, Plan, await_that, program, refusal};
use hoplite_tests::contents::bytes;
use serde_json::Value;

fn shards(cluster: &Cluster, arguments: &[&str]) -> Output {
    let mut command = Command::new(program("hoplite"));
    command.arg("--socket").arg(cluster.socket(0));
    command.args(["--timeout", "120s", "shards"]).args(arguments).output().unwrap()
}

#[track_caller]
fn change(cluster: &Cluster, arguments: &[&str]) -> Value {
    let output = shards(cluster, &[arguments, &["--json"]].concat());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {error}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[track_caller]
fn error_of(cluster: &Cluster, arguments: &[&str]) -> String {
    let output = shards(cluster, arguments);
    assert!(!output.status.success(), "{arguments:?} is not refused");
    String::from_utf8(output.stderr).unwrap()
}

fn addresses(report: &Value) -> Vec<String> {
    let rows = report["shards"].as_array().unwrap().iter();
    rows.map(|row| row["address"].as_str().unwrap().to_owned()).collect()
}

fn sorted(mut addresses: Vec<&String>) -> Vec<String> {
    addresses.sort();
    addresses.into_iter().cloned().collect()
}

fn put_old(cluster: &Cluster) {
    for number in 0..60 {
        let size = if number % 2 == 0 { 1000 } else { 100_000 };
        cluster
            .client(number % 3)
            .put(format!("old-{number}"), &bytes(number as u64, size))
            .unwrap();
        cluster.client(number % 3).put(format!("doomed-{number}"), b"x").unwrap();
    }
    let doomed: Vec<String> = (0..60).map(|number| format!("doomed-{number}")).collect();
    // Small puts return before the directory knows them.
    cluster.client(1).wait(&doomed, doomed.len(), TIME_LIMIT).unwrap();
    cluster.client(1).delete(&doomed, TIME_LIMIT).unwrap();
}

#[track_caller]
fn assert_old(cluster: &Cluster) {
    for number in 0..60 {
        let size = if number % 2 == 0 { 1000 } else { 100_000 };
        let view =
            cluster.client((number + 1) % 3).get(format!("old-{number}"), TIME_LIMIT).unwrap();
        assert!(view[..] == bytes(number as u64, size)[..], "old-{number}");
        assert!(
            !cluster.client(number % 3).contains(format!("doomed-{number}")).unwrap(),
            "{number} is deleted"
        );
    }
}

fn load(putter: &Client, getter: &Client, name: &str, is_over: &AtomicBool) -> usize {
    let mut rounds = 0;
    while !is_over.load(Ordering::Relaxed) {
        let id = format!("{name}-{}", rounds % 7);
        let contents = bytes(rounds as u64, if rounds % 3 == 0 { 50_000 } else { 500 });
        putter
            .put(&id, &contents)
            .unwrap_or_else(|error| panic!("round {rounds}: put of {id}: {error}"));
        let view = getter.get(&id, TIME_LIMIT);
        let view = view.unwrap_or_else(|error| panic!("round {rounds}: get of {id}: {error}"));
        assert!(view[..] == contents[..], "round {rounds}: {id} has another value");
        drop(view);
        let deleted = getter.delete([&id], TIME_LIMIT);
        let deleted =
            deleted.unwrap_or_else(|error| panic!("round {rounds}: delete of {id}: {error}"));
        assert_eq!(deleted, 1, "round {rounds}: {id}");
        rounds += 1;
    }
    rounds
}

fn under_load<T>(cluster: &Cluster, act: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let pairs = [(0, 1), (1, 2), (2, 0)];
        let loads = pairs.map(|(from, to)| {
            let (putter, getter, is_over) = (cluster.client(from), cluster.client(to), &is_over);
            scope.spawn(move || load(&putter, &getter, &format!("load-{from}"), is_over))
        });
        let done = act();
        is_over.store(true, Ordering::Relaxed);
        for load in loads {
            assert!(load.join().unwrap() > 0, "the load has worked during the change");
        }
        done
    })
}

#[test]
fn all_shards_are_replaced_under_load_and_no_call_fails() {
    let mut cluster = Cluster::start(Plan { nodes: 3, shards: 2, ..Plan::default() });
    put_old(&cluster);
    let [old, other] = [0, 1].map(|shard| cluster.shard_addresses[shard].clone());
    let new = cluster.start_shard();
    let new = cluster.shard_addresses[new].clone();
    let report = under_load(&cluster, || change(&cluster, &["replace", &old, &new]));
    assert_eq!((report["version"].as_u64(), report["settled"].as_bool()), (Some(2), Some(true)));
    assert_eq!(addresses(&report), sorted(vec![&other, &new]));
    cluster.kill_shard(0);
    assert_old(&cluster);

    let new_address = cluster.shard_addresses.pop().unwrap();
    cluster.restart_store(2);
    cluster.shard_addresses.push(new_address);
    await_that("the restarted store to learn the list", || {
        addresses(&change(&cluster, &[])) == sorted(vec![&other, &new])
            && cluster.client(2).status().unwrap().shards.iter().all(|shard| shard.connected)
    });

    let newest = cluster.start_shard();
    let newest = cluster.shard_addresses.last().map(|address| (newest, address.clone())).unwrap();
    under_load(&cluster, || change(&cluster, &["replace", &other, &newest.1]));
    cluster.kill_shard(1);
    for number in (0..60).filter(|number| number % 3 != 2) {
        let size = if number % 2 == 0 { 1000 } else { 100_000 };
        let view =
            cluster.client((number + 1) % 3).get(format!("old-{number}"), TIME_LIMIT).unwrap();
        assert!(view[..] == bytes(number as u64, size)[..], "old-{number}");
    }
    for node in 0..3 {
        let status = cluster.client(node).status().unwrap();
        let shown: Vec<String> = status.shards.iter().map(|shard| shard.address.clone()).collect();
        assert_eq!(sorted(shown.iter().collect()), sorted(vec![&new, &newest.1]), "node {node}");
    }
    cluster.assert_serves();
}

#[test]
fn a_shard_joins_and_leaves_again() {
    let mut cluster = Cluster::start(Plan { nodes: 3, shards: 1, ..Plan::default() });
    put_old(&cluster);
    for round in 0..2_u64 {
        let new = cluster.start_shard();
        let new = cluster.shard_addresses[new].clone();
        let report = under_load(&cluster, || change(&cluster, &["add", &new]));
        assert_eq!(
            (report["version"].as_u64(), addresses(&report).len()),
            (Some(2 * round + 1), 2)
        );
        assert_old(&cluster);
        let report = under_load(&cluster, || change(&cluster, &["remove", &new]));
        assert_eq!(
            (report["version"].as_u64(), addresses(&report).len()),
            (Some(2 * round + 2), 1)
        );
        assert_old(&cluster);
        let error = error_of(&cluster, &["add", &new]);
        assert!(error.contains("restart it"), "what it knows is old: {error}");
    }
}

#[test]
fn a_dead_shard_is_replaced() {
    let mut cluster = Cluster::start(Plan { nodes: 3, shards: 3, ..Plan::default() });
    put_old(&cluster);
    let dead = cluster.shard_addresses[1].clone();
    cluster.kill_shard(1);
    let new = cluster.start_shard();
    let new = cluster.shard_addresses[new].clone();
    let report = change(&cluster, &["replace", &dead, &new]);
    assert!(addresses(&report).contains(&new) && !addresses(&report).contains(&dead));
    assert_old(&cluster);
    let doctor = cluster.client(0).status().unwrap().troubles;
    assert!(doctor.shards.is_empty(), "nobody misses the removed shard: {doctor:?}");
}

#[test]
fn without_a_majority_a_change_needs_force() {
    let mut cluster = Cluster::start(Plan { nodes: 3, shards: 2, ..Plan::default() });
    put_old(&cluster);
    let dead = cluster.shard_addresses[0].clone();
    cluster.kill_shard(0);
    let error = error_of(&cluster, &["remove", &dead]);
    assert!(error.contains("1 of 2 accept the change"), "{error}");
    let report = change(&cluster, &["remove", &dead, "--force"]);
    assert_eq!(addresses(&report), [cluster.shard_addresses[1].clone()]);
    assert_old(&cluster);
}

#[test]
fn changes_that_make_no_sense_are_refused_and_change_nothing() {
    let mut cluster = Cluster::start(Plan { nodes: 2, shards: 1, ..Plan::default() });
    let mut other = Cluster::start(Plan { nodes: 1, shards: 1, ..Plan::default() });
    let only = cluster.shard_addresses[0].clone();
    for (arguments, expected) in [
        (["remove", &only], "is the last shard"),
        (["remove", "10.0.0.9:7401"], "is no shard of the directory"),
        (["add", &only], "is a shard of the directory already"),
        (["add", "nonsense"], "is not the address host:port"),
        (["add", "127.0.0.1:1"], "the new shard at 127.0.0.1:1 cannot be reached"),
        (["add", &other.shard_addresses[0]], "has served stores already"),
    ] {
        let error = error_of(&cluster, &arguments);
        assert!(error.to_lowercase().contains(expected), "{arguments:?}: {error}");
    }
    let error = error_of(&cluster, &["replace", "10.0.0.9:7401", "127.0.0.1:1"]);
    assert!(error.contains("is no shard of the directory"), "{error}");
    let report = change(&cluster, &[]);
    assert_eq!((report["version"].as_u64(), addresses(&report)), (Some(0), vec![only]));
    cluster.assert_serves();
    other.assert_serves();
}

#[test]
fn a_store_that_cannot_follow_prevents_a_change() {
    let store_arguments = vec!["--newest-version".to_owned(), "9".to_owned()];
    let plan = Plan { nodes: 2, shards: 1, store_arguments, ..Plan::default() };
    let mut cluster = Cluster::start(plan);
    cluster.plan_mut().store_arguments.clear();
    cluster.restart_store(0);
    let new = cluster.start_shard();
    let add = ShardChange::Add(cluster.shard_addresses[new].clone());
    let error = refusal(cluster.client(0).change_shards(add, false));
    assert_eq!(error.code(), ErrorCode::VersionMismatch, "{error}");
    cluster.kill_shard(new);
    let unused = cluster.shard_addresses.pop().unwrap();
    cluster.restart_store(1);
    cluster.shard_addresses.push(unused);
    cluster.restart_shard(new);
    let add = ShardChange::Add(cluster.shard_addresses[new].clone());
    assert_eq!(cluster.client(0).change_shards(add, false).unwrap().version, 1);
}
