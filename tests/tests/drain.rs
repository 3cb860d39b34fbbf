#![expect(
    clippy::unwrap_used,
    reason = "these are tests, and so are the functions that they share"
)]

use std::process::{Command, Output};
use std::time::Instant;

use hoplite_client::{Client, DrainReport, Metadata, PutOptions, Replicas};
use hoplite_core::Error as ObjectError;
use hoplite_tests::TIME_LIMIT;
use hoplite_tests::cluster::{Cluster, Plan, await_that, program, refusal};
use hoplite_tests::contents::bytes;
use rustix::process::Signal;
use serde_json::Value;

fn drain(cluster: &Cluster, node: usize, timeout: &str) -> Output {
    let mut command = Command::new(program("hoplite"));
    command.arg("--socket").arg(cluster.socket(node));
    command.args(["--timeout", timeout, "drain", "--json"]).output().unwrap()
}

fn drain_other(cluster: &Cluster, node: &str, timeout: &str) -> Output {
    let mut command = Command::new(program("hoplite"));
    command.arg("--socket").arg(cluster.socket(0));
    command.args(["--timeout", timeout, "drain", node, "--json"]).output().unwrap()
}

fn runtime() -> tokio::runtime::Runtime {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime can be made")
}

fn connected_nodes(cluster: &Cluster) -> Vec<String> {
    let status = runtime().block_on(async {
        let client = Client::connect(cluster.socket(0)).await?;
        client.directory_status().await
    });
    let connected = status.unwrap().nodes.into_iter().filter(|node| node.connected);
    connected.map(|node| node.node).collect()
}

fn drain_until(cluster: &Cluster, node: usize, is_far: impl Fn(&DrainReport) -> bool) -> Output {
    let runtime = runtime();
    std::thread::scope(|scope| {
        let draining = scope.spawn(|| drain(cluster, node, "300s"));
        let progress = || async {
            let client = Client::connect(cluster.socket(node)).await?;
            client.drain_progress(None).await
        };
        await_that("the progress of the drain", || {
            runtime.block_on(progress()).is_ok_and(|report| is_far(&report))
        });
        // A second drain joins the first, and sets the time limit of both.
        drain(cluster, node, "1ms");
        draining.join().expect("the drain ends")
    })
}

fn report(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text)
        .unwrap_or_else(|_| panic!("{text} {}", String::from_utf8_lossy(&output.stderr)))
}

#[test]
fn a_drained_store_stops_and_its_objects_are_elsewhere() {
    let mut cluster = Cluster::of(3);
    let sizes = [1, 1000, 20_000, 100_000, 4 << 20];
    let client = cluster.client(0);
    for (number, size) in sizes.into_iter().enumerate() {
        client.put(format!("x{number}"), &bytes(size as u64, size)).unwrap();
    }
    let replicas = Replicas { wanted: 2, awaited: 0, quorum: false };
    let metadata = Metadata { replicas, ..Metadata::default() };
    client
        .put_with("two", &bytes(9, 50_000), PutOptions { metadata, ..PutOptions::default() })
        .unwrap();
    let output = drain(&cluster, 0, "60s");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report = report(&output);
    assert_eq!(
        (&report["state"], &report["left_objects"]),
        (&"drained".into(), &0.into()),
        "{report}"
    );
    assert_eq!(report["moved_objects"], sizes.len() as u64 + 1, "{report}");
    assert!(cluster.store(0).has_ended(), "the command returns after the store");
    assert_eq!(cluster.store(0).exit_code(), 0);
    cluster.stores[0] = None;
    for (number, size) in sizes.into_iter().enumerate() {
        let got = cluster.client(1).get(format!("x{number}"), TIME_LIMIT).unwrap();
        assert!(got[..] == bytes(size as u64, size)[..], "{size} bytes");
    }
    assert!(cluster.client(2).get("two", TIME_LIMIT).unwrap()[..] == bytes(9, 50_000)[..]);
}

#[test]
fn a_drain_that_only_gives_up_a_copy_does_not_claim_to_move_it() {
    let cluster = Cluster::of(2);
    let replicas = Replicas { wanted: 2, awaited: 2, quorum: false };
    let metadata = Metadata { replicas, ..Metadata::default() };
    let options = PutOptions { metadata, ..PutOptions::default() };
    cluster.client(0).put_with("two", &bytes(1, 50_000), options).unwrap();
    let mut command = Command::new(program("hoplite"));
    let output = command.arg("--socket").arg(cluster.socket(0)).arg("drain").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "moved 0 objects, 0 B\n1 object already at other stores\n\
         1 object with fewer copies than wanted: there are too few other stores\n"
    );
    assert!(cluster.client(1).get("two", TIME_LIMIT).unwrap()[..] == bytes(1, 50_000)[..]);
}

#[test]
fn a_signal_drains_a_store_with_that_setting() {
    let arguments = ["--drain", "60s"].map(str::to_owned).to_vec();
    let mut cluster =
        Cluster::start(Plan { nodes: 2, store_arguments: arguments, ..Plan::default() });
    for number in 0..20 {
        cluster.client(0).put(format!("x{number}"), &bytes(number, 100_000)).unwrap();
    }
    assert_eq!(cluster.store(0).terminate(), 0);
    for number in 0..20 {
        let got = cluster.client(1).get(format!("x{number}"), TIME_LIMIT).unwrap();
        assert!(got[..] == bytes(number, 100_000)[..]);
    }
    let mut last = cluster.stores[1].take().unwrap();
    assert_eq!(last.terminate(), 0);
    last.await_log("the drain has failed");
    last.await_log("NoNode");
}

#[test]
fn the_last_store_says_at_once_that_it_cannot_drain_and_goes_on() {
    let mut cluster = Cluster::of(1);
    cluster.client(0).put("x", &bytes(1, 100_000)).unwrap();
    cluster.client(0).put("small", b"s").unwrap();
    let began = Instant::now();
    let output = drain(&cluster, 0, "300s");
    assert!(began.elapsed() < TIME_LIMIT / 2, "it does not wait for its timeout");
    assert_eq!(output.status.code(), Some(1));
    let report = report(&output);
    assert_eq!(
        (&report["state"], &report["left_objects"]),
        (&"failed".into(), &2.into()),
        "{report}"
    );
    assert_eq!(report["unmoved"][0]["reason"], "there is no other store", "{report}");
    cluster.assert_serves();
    cluster.client(0).put("y", b"accepted").unwrap();
}

#[test]
fn a_drain_lists_objects_that_fit_no_other_store() {
    let memory_of = [(1, "2MiB".to_owned())].into();
    let mut cluster = Cluster::start(Plan { nodes: 2, memory_of, ..Plan::default() });
    cluster.client(0).put("large", &bytes(1, 8 << 20)).unwrap();
    cluster.client(0).put("fits", &bytes(2, 100_000)).unwrap();
    let output = drain_until(&cluster, 0, |report| {
        report.moved_objects == 1 && report.unmoved.iter().all(|object| object.obstacle.is_some())
    });
    assert_eq!(output.status.code(), Some(1));
    let report = report(&output);
    assert_eq!(report["moved_objects"], 1, "{report}");
    assert_eq!(report["unmoved"][0]["id"], "large", "{report}");
    assert_eq!(report["unmoved"][0]["reason"], "no other store has room", "{report}");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("not moved: 1 object, 8.0 MiB"), "{errors}");
    assert!(cluster.client(0).get("large", TIME_LIMIT).unwrap()[..] == bytes(1, 8 << 20)[..]);
    cluster.assert_serves();
}

#[test]
fn two_stores_drain_at_once_to_the_third() {
    let mut cluster = Cluster::of(3);
    for node in [0, 1] {
        for number in 0..10 {
            cluster.client(node).put(format!("{node}/{number}"), &bytes(number, 200_000)).unwrap();
        }
    }
    std::thread::scope(|scope| {
        let drains = [0, 1].map(|node| {
            scope.spawn({
                let cluster = &cluster;
                move || drain(cluster, node, "60s")
            })
        });
        for one in drains {
            let output = one.join().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
    });
    for node in [0, 1] {
        assert_eq!(cluster.store(node).exit_code(), 0);
        for number in 0..10 {
            let got = cluster.client(2).get(format!("{node}/{number}"), TIME_LIMIT).unwrap();
            assert!(got[..] == bytes(number, 200_000)[..]);
        }
    }
}

#[test]
fn a_store_that_drains_refuses_puts_serves_reads_and_waits_for_calls() {
    let mut cluster = Cluster::of(2);
    let client = cluster.client(0);
    client.put("x", &bytes(1, 100_000)).unwrap();
    let mut writer = client.create("open", 100_000, PutOptions::default()).unwrap();
    let waiting = cluster.client(0);
    let waiting =
        std::thread::spawn(move || waiting.get("late", TIME_LIMIT).map(|view| view.to_vec()));
    await_that("the get waits", || client.status().unwrap().shards[0].waiting_queries == 1);
    std::thread::scope(|scope| {
        let draining = scope.spawn(|| drain(&cluster, 0, "60s"));
        await_that("the drain", || client.status().unwrap().is_draining);
        assert_eq!(refusal(client.put("new", &bytes(2, 100_000))), ObjectError::Draining);
        assert!(client.get("x", TIME_LIMIT).unwrap()[..] == bytes(1, 100_000)[..]);
        writer.write(&bytes(3, 100_000)).unwrap();
        writer.seal().unwrap();
        assert!(!draining.is_finished());
        cluster.client(1).put("late", &bytes(4, 100_000)).unwrap();
        assert!(waiting.join().unwrap().unwrap() == bytes(4, 100_000));
        let output = draining.join().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    });
    assert_eq!(cluster.store(0).exit_code(), 0);
    assert!(cluster.client(1).get("open", TIME_LIMIT).unwrap()[..] == bytes(3, 100_000)[..]);
}

#[test]
fn a_drain_waits_for_a_call_only_until_its_timeout() {
    let mut cluster = Cluster::of(2);
    let client = cluster.client(0);
    client.put("x", &bytes(1, 100_000)).unwrap();
    let waiting = cluster.client(0);
    let waiting = std::thread::spawn(move || waiting.get("never", TIME_LIMIT).map(drop));
    await_that("the get waits", || client.status().unwrap().shards[0].waiting_queries == 1);
    let output = drain_until(&cluster, 0, |report| report.moved_objects == 1);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(report(&output)["open_calls"], 1);
    assert!(waiting.join().unwrap().is_err());
    assert_eq!(cluster.store(0).exit_code(), 0);
}

#[test]
fn a_store_is_drained_from_another_machine_by_its_name_or_address() {
    let mut cluster = Cluster::of(4);
    for node in [1, 2] {
        for number in 0..10 {
            cluster.client(node).put(format!("{node}/{number}"), &bytes(number, 200_000)).unwrap();
        }
    }
    for (node, name) in [(1, "node-1".to_owned()), (2, cluster.data_address(2))] {
        let output = drain_other(&cluster, &name, "60s");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let report = report(&output);
        assert_eq!(report["state"], "drained", "{report}");
        assert!(report["moved_objects"].as_u64() >= Some(10), "{report}");
        assert!(!connected_nodes(&cluster).contains(&format!("node-{node}")));
        assert_eq!(cluster.store(node).exit_code(), 0);
        cluster.stores[node] = None;
        for number in 0..10 {
            let got = cluster.client(3).get(format!("{node}/{number}"), TIME_LIMIT).unwrap();
            assert!(got[..] == bytes(number, 200_000)[..]);
        }
    }
    for (wrong, reason) in [
        ("node-1", "no node node-1 is connected"),
        (&cluster.data_address(0)[..], "this is the store to drain"),
    ] {
        let output = drain_other(&cluster, wrong, "60s");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(errors.contains(reason), "{errors}");
    }
    cluster.assert_serves();
}

#[test]
fn a_failed_drain_of_another_store_lists_its_objects_and_an_old_store_is_not_drained() {
    let memory_of = [(0, "2MiB".to_owned())].into();
    let mut cluster = Cluster::start(Plan { nodes: 2, memory_of, ..Plan::default() });
    cluster.client(1).put("large", &bytes(1, 8 << 20)).unwrap();
    let output = drain_other(&cluster, "node-1", "3s");
    assert_eq!(output.status.code(), Some(1));
    let report = report(&output);
    assert_eq!(report["unmoved"][0]["id"], "large", "{report}");
    cluster.client(1).put("accepted again", b"x").unwrap();

    let oldest = hoplite_core::Version::OLDEST.number().to_string();
    cluster.plan_mut().store_arguments = vec!["--newest-version".to_owned(), oldest];
    cluster.restart_store(1);
    let output = drain_other(&cluster, "node-1", "60s");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        errors.contains("store node-1 speaks protocol version 8: drain it on its own machine"),
        "{errors}"
    );
    cluster.assert_serves();
}

#[test]
fn the_loss_of_another_store_ends_its_drain() {
    let memory_of = [(0, "2MiB".to_owned())].into();
    let mut cluster = Cluster::start(Plan { nodes: 2, memory_of, ..Plan::default() });
    let client = cluster.client(1);
    client.put("large", &bytes(1, 8 << 20)).unwrap();
    let output = std::thread::scope(|scope| {
        let draining = scope.spawn(|| drain_other(&cluster, "node-1", "300s"));
        await_that("the drain", || client.status().unwrap().is_draining);
        cluster.stores[1].as_ref().unwrap().signal(Signal::KILL);
        draining.join().unwrap()
    });
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("store node-1"), "{errors}");
    cluster.kill_store(1);
    cluster.assert_serves();
}
