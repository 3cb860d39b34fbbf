#![expect(
    clippy::unwrap_used,
    reason = "these are tests, and so are the functions that they share"
)]

use std::fs;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use hoplite_client::blocking::Client;
use hoplite_client::{Metadata, PutOptions};
use hoplite_proto::PROTOCOL_VERSION;
use hoplite_proto::v1::ClientHello;
use hoplite_tests::cluster::{Cluster, Daemon, await_that, program, run_to_end};
use hoplite_tests::contents::bytes;
use hoplite_tests::raw::RawClient;

use super::TIME_LIMIT;

const SHORT: Duration = Duration::from_secs(2);

fn limited(limits: &str, name: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit {limits} && exec \"$@\""), "sh"]).arg(program(name));
    command
}

fn limited_store(limits: &str, socket: &Path) -> Command {
    let mut command = limited(limits, "hoplite-store");
    command.args(["--print-addresses", "--no-prefault", "--socket"]).arg(socket);
    command
}

#[test]
fn a_limit_below_the_memory_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("store.sock");
    for (limits, memory, name) in
        [("-f 1000", "64MiB", "ulimit -f"), ("-v 1900000", "2GiB", "ulimit -v")]
    {
        let mut store = limited_store(limits, &socket);
        let (code, text) = run_to_end(store.args(["--log", "error", "--memory", memory]));
        assert_eq!(code, 1, "{limits}: {text}");
        assert!(text.contains(name), "{limits}: {text}");
        assert!(!socket.exists());
    }
}

#[test]
fn the_default_memory_fits_into_the_limits() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("store.sock");
    for (limits, most) in [("-f 32768", 16 << 20), ("-v 4000000", 2 << 30)] {
        let mut store = Daemon::start("store", &mut limited_store(limits, &socket));
        let client = Client::connect(&socket).unwrap();
        assert!(client.status().unwrap().capacity_bytes <= most, "{limits}");
        client.put("object", &bytes(1, 100_000)).unwrap();
        assert_eq!(store.terminate(), 0);
    }
}

#[test]
fn the_doctor_names_limits_that_keep_a_store_from_working() {
    let output = limited("-f 1000", "hoplite").args(["doctor", "--json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "it ends by itself");
    let findings: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let found =
        findings.as_array().unwrap().iter().find(|finding| finding["what"] == "shared memory");
    let found = found.unwrap();
    assert_eq!(found["verdict"], "bad");
    assert!(found["says"].as_str().unwrap().contains("ulimit -f"), "{found}");
    let output = limited("-v 4000000", "hoplite").args(["doctor", "--json"]).output().unwrap();
    let findings: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let found =
        findings.as_array().unwrap().iter().find(|finding| finding["what"] == "memory").unwrap();
    assert!(found["says"].as_str().unwrap().contains("ulimit -v"), "{found}");
}

#[test]
fn a_file_that_would_be_too_long_is_an_error_of_the_command_line() {
    let cluster = Cluster::of(1);
    cluster.client(0).put("object", &bytes(1, 1 << 20)).unwrap();
    let copy = cluster.directory().join("copy");
    let mut get = limited("-f 1000", "hoplite");
    get.arg("--socket").arg(cluster.socket(0)).args(["get", "object", "-o"]).arg(&copy);
    let (code, text) = run_to_end(&mut get);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("File too large"), "{text}");
}

#[test]
fn no_client_can_truncate_the_memory_of_a_store() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let (socket, file) = (directory.path().join("store.sock"), directory.path().join("arena"));
    let mut command = Command::new(program("hoplite-store"));
    command.args(["--print-addresses", "--memory", "16MiB", "--arena-file"]).arg(&file);
    let mut store = Daemon::start("store", command.arg("--socket").arg(&socket));
    assert!(!file.exists(), "no file can be opened by its path");
    let client = Client::connect(&socket).unwrap();
    let contents = bytes(1, 4 << 20);
    client.put("object", &contents).unwrap();
    let mut tried = 0;
    for entry in fs::read_dir(format!("/proc/{}/fd", store.pid())).unwrap().flatten() {
        let is_arena = fs::read_link(entry.path())
            .is_ok_and(|to| to.to_string_lossy().contains("hoplite-arena"));
        if !is_arena {
            continue;
        }
        let opened = fs::OpenOptions::new().write(true).open(entry.path()).unwrap();
        for size in [0, 4096, 32 << 20] {
            let error = opened.set_len(size).unwrap_err();
            assert_eq!(
                error.kind(),
                std::io::ErrorKind::PermissionDenied,
                "{}",
                opened.as_raw_fd()
            );
        }
        tried += 1;
    }
    assert!(tried > 0, "the memory was found");
    assert!(client.get("object", TIME_LIMIT).unwrap()[..] == contents[..]);
    client.put("another", &contents).unwrap();
    assert_eq!(store.terminate(), 0);
}

#[test]
fn huge_pages_that_are_not_reserved_are_counted() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("store.sock");
    let mut command = Command::new(program("hoplite-store"));
    command
        .args(["--log", "error", "--huge-pages=2MiB", "--memory", "4GiB", "--socket"])
        .arg(&socket);
    let (code, text) = run_to_end(&mut command);
    assert_eq!(code, 1, "this test expects fewer than 2048 reserved huge pages");
    assert!(text.contains("huge pages") || text.contains("ulimit"), "{text}");
}

fn descriptor_limits(pid: u32) -> (String, String) {
    let text = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let mut fields = line.split_whitespace().map(str::to_owned);
    (fields.next().unwrap(), fields.next().unwrap())
}

#[test]
fn daemons_raise_their_limit_of_descriptors() {
    let directory = tempfile::tempdir().unwrap();
    let mut shard = limited("-S -n 100", "hoplite-directory");
    shard.args(["--print-addresses", "--listen", "127.0.0.1:0"]);
    let mut store = limited_store("-S -n 100", &directory.path().join("store.sock"));
    for (name, command) in [("shard", &mut shard), ("store", store.args(["--memory", "1MiB"]))] {
        let mut daemon = Daemon::start(name, command);
        let (soft, hard) = descriptor_limits(daemon.pid());
        assert_eq!(soft, hard, "{name}");
        assert_eq!(daemon.terminate(), 0);
    }
}

#[test]
fn clients_that_take_all_descriptors_leave_some_for_transfers() {
    let mut cluster = Cluster::of(1);
    let socket = cluster.directory().join("flooded.sock");
    let mut command = limited_store("-n 128", &socket);
    command.args([
        "--memory",
        "16MiB",
        "--node-id",
        "flooded",
        "--directory",
        &cluster.shard_addresses[0],
    ]);
    let mut store = Daemon::start("flooded", &mut command);
    let client = Client::connect(&socket).unwrap();
    let began = Instant::now();
    let hello = ClientHello {
        version: PROTOCOL_VERSION,
        program: "flood".to_owned(),
        ..Default::default()
    };
    let flood: Vec<RawClient> = (0..150)
        .map(|_| {
            let mut client = RawClient::connect(&socket);
            client.send(&hello);
            client
        })
        .collect();
    store.await_log("cannot accept a connection");
    for round in 0..20 {
        let id = format!("object-{round}");
        let contents = bytes(round, 200_000);
        cluster.client(0).put(&id, &contents).unwrap();
        assert!(
            client.get(&id, TIME_LIMIT).unwrap()[..] == contents[..],
            "a new connection to another store"
        );
    }
    drop(flood);
    await_that("room for clients", || Client::connect(&socket).is_ok());
    let warnings = store.log().matches("cannot accept a connection").count() as u64;
    assert!(warnings <= began.elapsed().as_secs() + 1, "{warnings} warnings");
    assert_eq!(store.terminate(), 0);
    cluster.assert_serves();
}

fn private_bytes(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn requests_that_never_end_are_bounded_for_all_connections_of_a_user() {
    const CONNECTIONS: usize = 60;
    const REQUEST_BYTES: usize = 16_500_000;
    let mut cluster = Cluster::of(1);
    let (pid, socket) = (cluster.stores[0].as_ref().unwrap().pid(), cluster.socket(0));
    let client = cluster.client(0);
    let before = private_bytes(pid);
    let mut frame = u32::try_from(REQUEST_BYTES).unwrap().to_le_bytes().to_vec();
    frame.resize(REQUEST_BYTES, 0);
    let unfinished: Vec<RawClient> = std::thread::scope(|scope| {
        let senders: Vec<_> = (0..CONNECTIONS)
            .map(|_| {
                scope.spawn(|| {
                    let mut client = RawClient::greeted(&socket);
                    client.try_send(&frame, SHORT);
                    client
                })
            })
            .collect();
        senders.into_iter().map(|sender| sender.join().unwrap()).collect()
    });
    let held = private_bytes(pid).saturating_sub(before);
    eprintln!("{CONNECTIONS} unfinished requests hold {} MiB", held >> 20);
    assert!(held < 150 << 20, "{held} bytes");
    client.put("object", b"bytes").expect("others are served");
    assert_eq!(&client.get("object", TIME_LIMIT).unwrap()[..], b"bytes");
    drop(unfinished);
    let ids: Vec<String> = (0..20_000).map(|number| format!("{number:0>200}")).collect();
    assert_eq!(client.delete(&ids, TIME_LIMIT).unwrap(), 0);
    await_that("the memory back", || private_bytes(pid).saturating_sub(before) < 40 << 20);
    cluster.assert_serves();
}

#[test]
fn memory_returns_to_the_system_after_a_peak() {
    const OBJECTS: usize = 20_000;
    let mut cluster = Cluster::of(1);
    let (store, shard) = (&cluster.stores[0], &cluster.shards[0]);
    let pids = [store, shard].map(|daemon| daemon.as_ref().unwrap().pid());
    let used = || pids.map(|pid| private_bytes(pid) >> 20);
    let clients: Vec<Client> = (0..4).map(|_| cluster.client(0)).collect();
    let before = used();
    let ids =
        |client: usize| (0..OBJECTS / 4).map(move |number| format!("object-{client}-{number}"));
    std::thread::scope(|scope| {
        for (number, client) in clients.iter().enumerate() {
            scope.spawn(move || {
                let metadata = Metadata { user: vec![7; 4096].into(), ..Metadata::default() };
                let options = || PutOptions { metadata: metadata.clone(), ..PutOptions::default() };
                for id in ids(number) {
                    client.put_with(id, b"bytes", options()).unwrap();
                }
            });
        }
    });
    let peak = used();
    for (number, client) in clients.iter().enumerate() {
        client.delete(ids(number), TIME_LIMIT).unwrap();
    }
    await_that("half of the memory back", || {
        (0..2).all(|at| used()[at].saturating_sub(before[at]) < (peak[at] - before[at]) / 2)
    });
    eprintln!(
        "MiB of store and shard: {before:?} before, {peak:?} with objects, {:?} after",
        used()
    );
    assert!((0..2).all(|at| peak[at] - before[at] > 60), "this test fills {peak:?} MiB");
    cluster.assert_serves();
}

#[test]
fn transfers_are_not_logged_at_the_default_level() {
    let mut cluster = Cluster::of(2);
    let lines = |cluster: &Cluster| -> usize {
        cluster
            .stores
            .iter()
            .chain(&cluster.shards)
            .flatten()
            .map(|daemon| daemon.log().lines().count())
            .sum()
    };
    cluster.assert_serves();
    let before = lines(&cluster);
    for round in 0..100 {
        let id = format!("object-{round}");
        cluster.client(0).put(&id, &bytes(round, 100_000)).unwrap();
        cluster.client(1).get(&id, TIME_LIMIT).unwrap();
        cluster.client(1).delete([&id], TIME_LIMIT).unwrap();
    }
    let after = lines(&cluster);
    assert!(after < before + 10, "{} lines for 300 calls", after - before);
    for store in cluster.stores.iter_mut().flatten() {
        assert_eq!(store.terminate(), 0);
        let log = store.log();
        assert!(!log.contains("served") && !log.contains("pulled"), "{log}");
    }
}
