//! Stores frozen while their objects changed.

use std::process::Command;
use std::time::Duration;

use hoplite_client::blocking::Client;
use hoplite_client::{
    Confirmation, DeleteOptions, DeleteWait, GetOptions, Metadata, NodeId, ObjectView, PutOptions,
    Replicas,
};
use hoplite_core::Error as ObjectError;
use hoplite_tests::cluster::{Cluster, Plan, await_that, program, refusal};
use hoplite_tests::contents::bytes;
use rustix::process::Signal;

use super::TIME_LIMIT;

fn replace_behind_a_frozen_store(cluster: &mut Cluster, old: &[u8], new: &[u8]) -> Client {
    for id in ["kept", "replaced", "deleted"] {
        cluster.client(0).put(id, old).unwrap();
        assert!(cluster.client(1).get(id, TIME_LIMIT).unwrap()[..] == *old);
    }
    let own = cluster.client(1);
    own.put("of-the-frozen", old).unwrap();
    assert!(cluster.client(0).get("of-the-frozen", TIME_LIMIT).unwrap()[..] == *old);
    cluster.store(1).signal(Signal::STOP);
    let gone = ["replaced", "deleted", "of-the-frozen"];
    assert_eq!(cluster.client(0).delete(gone, TIME_LIMIT).unwrap(), gone.len());
    cluster.client(0).put("replaced", new).unwrap();
    own
}

fn check_reads(cluster: &mut Cluster, client: &Client, old: &[u8], new: &[u8]) {
    std::thread::scope(|scope| {
        let reads: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| client.get("replaced", TIME_LIMIT).map(|view| view[..] == *new))
            })
            .collect();
        let absent: Vec<_> = ["deleted", "of-the-frozen"]
            .map(|id| {
                scope.spawn(move || client.get(id, Duration::from_secs(3)).map(|view| view.len()))
            })
            .into();
        let kept = scope.spawn(|| client.get("kept", TIME_LIMIT).map(|view| view[..] == *old));
        std::thread::sleep(Duration::from_millis(100));
        cluster.store(1).signal(Signal::CONT);
        for read in reads {
            assert!(read.join().unwrap().unwrap(), "the old value was read");
        }
        for read in absent {
            let error = refusal(read.join().unwrap());
            assert!(matches!(error, ObjectError::Timeout { .. }), "{error}");
        }
        assert!(kept.join().unwrap().unwrap(), "an object that was not deleted stays readable");
    });
    cluster.await_sessions(1);
    for node in 0..2 {
        assert!(
            cluster.client(node).get("replaced", TIME_LIMIT).unwrap()[..] == *new,
            "node {node}"
        );
        assert!(!cluster.client(node).contains("deleted").unwrap(), "node {node}");
    }
}

#[test]
fn a_store_that_was_frozen_never_serves_what_was_deleted() {
    for size in [1000, 1 << 20] {
        let (old, new) = (bytes(1, size), bytes(2, size));
        let mut cluster = Cluster::of(2);
        let client = replace_behind_a_frozen_store(&mut cluster, &old, &new);
        check_reads(&mut cluster, &client, &old, &new);
        cluster.assert_serves();
    }
}

#[test]
fn deleted_objects_do_not_come_back_after_the_tombstones() {
    let (old, new) = (bytes(1, 1 << 20), bytes(2, 1 << 20));
    let shard_arguments = vec!["--tombstone-ttl".to_owned(), "10s".to_owned()];
    let mut cluster = Cluster::start(Plan { shards: 2, shard_arguments, ..Plan::default() });
    let client = replace_behind_a_frozen_store(&mut cluster, &old, &new);
    std::thread::sleep(Duration::from_secs(11));
    check_reads(&mut cluster, &client, &old, &new);
    cluster.assert_serves();
}

#[test]
fn a_delete_names_a_frozen_store_or_waits_for_it() {
    let mut cluster = Cluster::of(2);
    for id in ["x", "y"] {
        cluster.client(0).put(id, &bytes(1, 1 << 20)).unwrap();
        assert!(cluster.client(1).get(id, TIME_LIMIT).is_ok());
    }
    cluster.store(1).signal(Signal::STOP);
    let frozen = [NodeId::new("node-1").unwrap()];
    let options = |timeout, wait| DeleteOptions { timeout, wait };
    let deletion =
        cluster.client(0).delete_with(["x"], options(TIME_LIMIT, DeleteWait::Reachable)).unwrap();
    assert_eq!((deletion.count, &deletion.absent[..], deletion.absent_count), (1, &frozen[..], 1));
    let socket = cluster.socket(0);
    let mut command = Command::new(program("hoplite"));
    command.arg("--socket").arg(&socket).args(["--timeout", "3s", "delete", "y", "--wait", "all"]);
    let output = command.output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && message.contains(frozen[0].as_str()), "{message}");
    std::thread::scope(|scope| {
        let client = cluster.client(0);
        let delete = scope
            .spawn(move || client.delete_with(["x", "y"], options(TIME_LIMIT, DeleteWait::All)));
        std::thread::sleep(Duration::from_millis(200));
        assert!(!delete.is_finished());
        cluster.store(1).signal(Signal::CONT);
        assert_eq!(delete.join().unwrap().unwrap().absent, []);
    });
    assert!(!cluster.client(1).contains("x").unwrap());
    cluster.assert_serves();
}

#[test]
fn the_client_of_a_losing_put_is_notified_once() {
    let (lost, won) = (bytes(1, 1 << 20), bytes(2, 1 << 20));
    let mut cluster = Cluster::of(2);
    let client = cluster.client(0);
    client.put("x", &lost).unwrap();
    cluster.store(0).signal(Signal::STOP);
    cluster.kill_shard(0);
    cluster.restart_shard(0);
    cluster.await_sessions(1);
    cluster.client(1).put("x", &won).unwrap();
    cluster.store(0).signal(Signal::CONT);
    await_that("the conflict", || cluster.client(0).status().unwrap().put_conflicts == 1);
    let error = refusal(client.get("x", TIME_LIMIT).map(|view| view.len()));
    assert!(matches!(error, ObjectError::PutConflict { .. }), "{error}");
    assert!(client.get("x", TIME_LIMIT).unwrap()[..] == *won);
    let metadata = Metadata {
        replicas: Replicas { quorum: true, ..Replicas::default() },
        ..Metadata::default()
    };
    let options =
        || PutOptions { metadata: metadata.clone(), timeout: TIME_LIMIT, ..PutOptions::default() };
    client.put_with("needs-both", &lost, options()).unwrap();
    cluster.kill_shard(0);
    cluster.await_lost_sessions(0);
    let error = refusal(client.put_with("needs-both-too", &lost, options()));
    assert!(matches!(error, ObjectError::Unavailable { .. }), "{error}");
}

#[test]
fn a_get_may_allow_a_copy_while_no_shard_can_be_reached() {
    let contents = bytes(1, 1 << 20);
    let mut cluster = Cluster::of(1);
    let client = cluster.client(0);
    client
        .put_with(
            "x",
            &contents,
            PutOptions { confirm: Confirmation::Confirmed, ..Default::default() },
        )
        .unwrap();
    let options = GetOptions { timeout: TIME_LIMIT, allow_stale: true };
    let socket = cluster.socket(0);
    let command = |timeout: &str, rest: &[&str]| {
        let mut get = Command::new(program("hoplite"));
        get.arg("--socket").arg(&socket).args(["--timeout", timeout, "get", "x"]);
        get.args(rest).output().unwrap()
    };
    assert!(!client.get_with("x", options).unwrap().is_stale());
    let fresh = command("0s", &["--allow-stale"]);
    assert!(fresh.stdout == contents && fresh.stderr.is_empty(), "{fresh:?}");
    cluster.kill_shard(0);
    cluster.await_lost_sessions(0);
    let error = refusal(client.get("x", Duration::from_millis(100)));
    assert!(matches!(error, ObjectError::Timeout { .. }), "{error}");
    let view = client.get_with("x", options).unwrap();
    assert!(view.is_stale() && view[..] == *contents);
    assert!(client.get_reader_with("x", options).unwrap().is_stale());
    let many = client.get_many(["x"], options).unwrap();
    assert!(many.iter().all(|view| view.as_ref().is_ok_and(ObjectView::is_stale)), "{many:?}");
    for timeout in ["0s", "1min"] {
        let stale = command(timeout, &["--allow-stale"]);
        let warning = String::from_utf8(stale.stderr).unwrap();
        assert!(
            stale.stdout == contents && warning.starts_with("hoplite: x may be deleted"),
            "{warning}"
        );
    }
    assert!(!command("100ms", &[]).status.success());
    cluster.restart_shard(0);
    assert!(!client.get("x", TIME_LIMIT).unwrap().is_stale());
    assert!(!client.get_with("x", options).unwrap().is_stale());
}
