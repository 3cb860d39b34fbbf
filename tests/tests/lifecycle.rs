#![expect(
    clippy::unwrap_used,
    reason = "these are tests, and so are the functions that they share"
)]

use std::process::Command;
use std::time::{Duration, Instant};

use hoplite_client::blocking::Client;
use hoplite_client::{Error, PutOptions};
use hoplite_core::Error as ObjectError;
use hoplite_tests::TIME_LIMIT;
use hoplite_tests::cluster::{Cluster, Daemon, Plan, await_that, program};
use hoplite_tests::contents::bytes;
use rustix::process::Signal;

const MEASURED: Duration = Duration::from_secs(2);

fn is_parting(error: &Error) -> bool {
    matches!(
        error,
        Error::Object(ObjectError::ShuttingDown)
            | Error::ConnectionLost { .. }
            | Error::Connect { .. }
    )
}

#[test]
fn a_signal_ends_a_busy_store() {
    let size = 4 << 20;
    let mut cluster = Cluster::of(3);
    let expected = bytes(1, size);
    let mut writer =
        cluster.client(0).create("object", size as u64, PutOptions::default()).unwrap();
    writer.write(&expected[..size / 2]).unwrap();
    let held = cluster.client(1);
    held.put("held", b"contents").unwrap();
    let view = held.get("held", TIME_LIMIT).unwrap();
    std::thread::scope(|scope| {
        let client = || cluster.client(1);
        let pulled = client();
        let pulled = scope.spawn(move || pulled.get("object", TIME_LIMIT).map(drop));
        let unknown = client();
        let unknown = scope.spawn(move || unknown.get("unknown", TIME_LIMIT).map(drop));
        let waiting = client();
        let waiting = scope.spawn(move || waiting.wait(["unknown"], 1, TIME_LIMIT).map(drop));
        let locating = client();
        let locating = scope.spawn(move || locating.locate("unknown", TIME_LIMIT).map(drop));
        let other = cluster.client(2);
        let other = scope.spawn(move || other.get("object", TIME_LIMIT).map(|view| view.to_vec()));
        for node in [1, 2] {
            let client = cluster.client(node);
            await_that("half of it", || client.status().unwrap().received_bytes >= size as u64 / 2);
        }
        let mut store = cluster.stores[1].take().expect("it runs");
        assert_eq!(store.terminate(), 0);
        assert!(!store.log().contains("did not end in time"), "{}", store.log());
        for call in [pulled, unknown, waiting, locating] {
            let error = call.join().unwrap().expect_err("the store is gone");
            assert!(is_parting(&error), "{error}");
        }
        assert!(!cluster.socket(1).exists());
        assert_eq!(&view[..], b"contents", "a view outlives the store");
        let error = held.put("late", b"1").expect_err("the store is gone");
        assert!(is_parting(&error), "{error}");
        writer.write(&expected[size / 2..]).unwrap();
        writer.seal().unwrap();
        assert!(other.join().unwrap().unwrap() == expected, "the others are not disturbed");
    });
    cluster.restart_store(1);
    cluster.assert_serves();
}

#[test]
fn an_object_only_on_an_ended_store_is_lost_at_once() {
    let mut cluster = Cluster::of(2);
    let contents = bytes(2, 300_000);
    cluster.client(0).put("object", &contents).unwrap();
    let client = cluster.client(1);
    assert_eq!(client.wait(["object"], 1, TIME_LIMIT).unwrap(), [0]);
    let mut store = cluster.stores[0].take().expect("it runs");
    store.signal(Signal::INT);
    assert_eq!(store.exit_code(), 0, "as for SIGTERM");
    let asked = Instant::now();
    let error = client.get("object", TIME_LIMIT).expect_err("nobody has it");
    assert!(matches!(error, Error::Object(ObjectError::ObjectLost { .. })), "{error}");
    assert!(asked.elapsed() < TIME_LIMIT / 2, "it does not wait for its timeout");
    cluster.assert_serves();
}

#[test]
fn daemons_end_cleanly_in_any_order() {
    for shard_first in [true, false] {
        let mut cluster = Cluster::start(Plan { nodes: 2, shards: 2, ..Plan::default() });
        cluster.client(0).put("object", &bytes(3, 300_000)).unwrap();
        let clients = [cluster.client(0), cluster.client(1)];
        let mut daemons: Vec<Daemon> = cluster.stores.iter_mut().filter_map(Option::take).collect();
        let shards = cluster.shards.iter_mut().filter_map(Option::take);
        if shard_first {
            daemons.splice(0..0, shards);
        } else {
            daemons.extend(shards);
        }
        for daemon in &mut daemons {
            assert_eq!(daemon.terminate(), 0);
            assert!(!daemon.log().contains("did not end in time"), "{}", daemon.log());
            assert!(!daemon.log().contains("panicked"), "{}", daemon.log());
        }
        for node in 0..2 {
            assert!(!cluster.socket(node).exists());
        }
        drop(clients);
        let left: Vec<_> = std::fs::read_dir(cluster.directory()).unwrap().collect();
        assert!(left.is_empty(), "nothing is left: {left:?}");
    }
}

#[test]
fn a_killed_store_is_started_again_over_its_leftovers() {
    let mut cluster = Cluster::of(2);
    let client = cluster.client(0);
    client.put("object", b"contents").unwrap();
    let view = client.get("object", TIME_LIMIT).unwrap();
    for round in 0..3 {
        cluster.kill_store(0);
        assert!(cluster.socket(0).exists(), "nobody has cleaned up");
        cluster.restart_store(0);
        client.put(format!("more-{round}"), b"1").expect("the client connects again");
        assert_eq!(&view[..], b"contents", "a view outlives the store");
        cluster.assert_serves();
    }
    let clock = Instant::now();
    await_that("the name to be this node's again", || {
        cluster.client(1).status().unwrap().shards[0].nodes == 2
    });
    assert!(clock.elapsed() < TIME_LIMIT);
}

#[test]
fn a_store_without_any_flag_is_a_working_node() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(program("hoplite-store"));
    // Without this option, the store would touch a third of the memory.
    command
        .env("HOPLITE_NO_PREFAULT", "true")
        .env("XDG_RUNTIME_DIR", directory.path())
        .env_remove("HOPLITE_SOCKET");
    let mut store = Daemon::spawn("store", &mut command);
    let socket = directory.path().join("hoplite/store.sock");
    await_that("the socket", || Client::connect(&socket).is_ok());
    let client = Client::connect(&socket).unwrap();
    for size in [100, 1 << 20] {
        let contents = bytes(4, size);
        client.put(format!("object-{size}"), &contents).unwrap();
        assert!(client.get(format!("object-{size}"), TIME_LIMIT).unwrap()[..] == contents[..]);
        assert!(client.contains(format!("object-{size}")).unwrap());
    }
    assert_eq!(client.delete(["object-100", "unknown"], TIME_LIMIT).unwrap(), 1);
    let status = client.status().unwrap();
    assert_eq!((status.shards.len(), status.copies), (1, 1));
    assert_eq!(store.terminate(), 0);
    assert!(!socket.exists());
}

fn processor_seconds(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = text.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u32 = fields[11].parse::<u32>().unwrap() + fields[12].parse::<u32>().unwrap();
    f64::from(ticks) / rustix::param::clock_ticks_per_second() as f64
}

#[test]
fn idle_daemons_use_next_to_no_processor_time() {
    let mut cluster = Cluster::of(4);
    cluster.assert_serves();
    for node in 0..4 {
        let client = cluster.client(node);
        await_that("the memory touched", || {
            let status = client.status().unwrap();
            status.prefaulted_bytes >= status.capacity_bytes
        });
    }
    let daemons = cluster.stores.iter().chain(&cluster.shards).flatten();
    let pids: Vec<u32> = daemons.map(Daemon::pid).collect();
    let used = || pids.iter().map(|pid| processor_seconds(*pid)).sum::<f64>();
    // Earlier work may still run.
    await_that("a period in which nobody polls", || {
        let (before, began) = (used(), Instant::now());
        std::thread::sleep(MEASURED);
        let percent = (used() - before) / began.elapsed().as_secs_f64() * 100.0;
        eprintln!("four idle stores and a shard use {percent:.2} % of one processor");
        percent < 50.0
    });
}

#[test]
fn sixteen_stores_broadcast_on_one_machine() {
    let nodes = 16;
    let store_arguments = vec!["--no-prefault".to_owned()];
    let mut cluster = Cluster::start(Plan {
        nodes,
        memory: "8MiB".to_owned(),
        store_arguments,
        ..Plan::default()
    });
    let expected = bytes(5, 2 << 20);
    std::thread::scope(|scope| {
        let receivers: Vec<_> = (1..nodes)
            .map(|node| {
                let client = cluster.client(node);
                scope.spawn(move || client.get("object", TIME_LIMIT).map(|view| view.to_vec()))
            })
            .collect();
        await_that("all of them", || {
            cluster.client(0).status().unwrap().shards[0].waiting_queries == nodes as u64 - 1
        });
        cluster.client(0).put("object", &expected).unwrap();
        for receiver in receivers {
            assert!(receiver.join().unwrap().unwrap() == expected);
        }
    });
    let sent = cluster.client(0).status().unwrap().sent_bytes;
    eprintln!(
        "the origin sent {:.2} times the object to 15 receivers",
        sent as f64 / expected.len() as f64
    );
    assert!(sent <= 5 * expected.len() as u64, "receivers relay: the origin sent {sent} bytes");
    cluster.assert_serves();
}
