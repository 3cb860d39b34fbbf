#![expect(
    clippy::unwrap_used,
    reason = "these are tests, and so are the functions that they share"
)]

use std::collections::BTreeSet;
use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use hoplite_core::topology::probe::MAX_PROBES;
use hoplite_core::topology::probe::echo::{Packet, PacketKind};
use hoplite_proto::data::probe::encode_packet;
use hoplite_proto::v1;
use hoplite_tests::cluster::{Cluster, Plan, await_that, directory, program};
use hoplite_tests::raw::{Kind, RawPeer, data_frame};
use prost::Message;
use serde_json::Value;

fn probe(cluster: &Cluster, node: usize, arguments: &[&str]) -> Command {
    let mut command = Command::new(program("hoplite"));
    command.args(["topology", "probe"]).args(arguments).env("HOPLITE_SOCKET", cluster.socket(node));
    command
}

fn succeed(mut command: Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn failure(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let line = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(line.starts_with("hoplite: ") && line.lines().count() == 1, "{line}");
    line
}

fn begin_long(cluster: &Cluster, node: usize) -> Child {
    let count = MAX_PROBES.to_string();
    let mut command = probe(cluster, node, &["--json", "--probes", &count]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn echo_ports(cluster: &Cluster, node: usize) -> BTreeSet<u16> {
    let pid = cluster.stores[node].as_ref().unwrap().pid();
    let own: BTreeSet<String> = fs::read_dir(Path::new("/proc").join(pid.to_string()).join("fd"))
        .unwrap()
        .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
        .filter_map(|link| {
            Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
        })
        .collect();
    let table = fs::read_to_string("/proc/net/udp").unwrap();
    let port = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_own = own.contains(*fields.get(9)?);
        let port = u16::from_str_radix(fields[1].split_once(':')?.1, 16).ok()?;
        is_own.then_some(port)
    };
    table.lines().skip(1).filter_map(port).collect()
}

#[test]
fn a_probe_makes_a_matrix_and_leaves_nothing_behind() {
    let cluster = Cluster::of(3);
    let file = cluster.directory().join("m.json");
    let path = file.to_str().unwrap();
    let text = succeed(probe(&cluster, 0, &["--output", path, "--bandwidth", "--loaded"]));
    assert!(text.starts_with("RANK") && text.contains("3 nodes in"), "{text}");
    let matrix: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(matrix["nodes"], serde_json::json!(["node-0", "node-1", "node-2"]));
    assert_eq!(matrix["lost"], serde_json::json!([]));
    assert!(matrix["echoes"].as_u64().unwrap() >= 3 * 256, "{matrix}");
    for row in 0..3 {
        for column in 0..3 {
            for table in ["alpha_ns", "ps_per_byte"] {
                let entry = matrix[table][row][column].as_u64().unwrap();
                assert_eq!(entry == 0, row == column, "{table} {row} {column}: {matrix}");
                assert_eq!(matrix[table][column][row], entry, "symmetric");
            }
        }
    }
    for node in 0..3 {
        assert_eq!(echo_ports(&cluster, node), BTreeSet::new(), "no socket is left");
    }
    let order = ["topology", "order", "--matrix", path, "--for", "ring", "--size", "1MiB"];
    let mut command = Command::new(program("hoplite"));
    command.args(order);
    succeed(command);
    let text =
        succeed(probe(&cluster, 2, &["--json", "--nodes", "node-2,node-1", "--probes", "5"]));
    let matrix: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(matrix["nodes"], serde_json::json!(["node-1", "node-2"]));
    assert_eq!(matrix["echoes"], 5);
}

#[test]
fn measured_places_can_be_applied_repeatedly() {
    let cluster = Cluster::start(Plan { nodes: 2, shards: 2, ..Plan::default() });
    let status = || {
        let mut command = Command::new(program("hoplite"));
        command.args(["status", "--json"]).env("HOPLITE_SOCKET", cluster.socket(1));
        let status: Value = serde_json::from_str(&succeed(command)).unwrap();
        [0, 1].map(|shard| status["shards"][shard]["places_version"].as_u64().unwrap())
    };
    assert_eq!(status(), [0, 0]);
    let apply = || {
        let text = succeed(probe(&cluster, 0, &["--json", "--apply", "--probes", "5"]));
        let applied: Value = serde_json::from_str(&text).unwrap();
        let applied = applied["applied"].clone();
        assert_eq!(
            (applied["shards"].as_u64(), applied["all_shards"].as_u64()),
            (Some(2), Some(2))
        );
        assert_eq!(
            (applied["groups"].as_u64(), &applied["uplink_permille"]),
            (Some(0), &Value::Null)
        );
        applied["version"].as_u64().unwrap()
    };
    let first = apply();
    assert_eq!(status(), [first, first]);
    let second = apply();
    assert!(second > first);
    assert_eq!(status(), [second, second]);
    let text = succeed(probe(&cluster, 1, &["--apply", "--probes", "5"]));
    assert!(text.contains("applied at 2 of 2 shards") && text.contains("no groups"), "{text}");
    let version = status()[0].to_string();
    let mut command = Command::new(program("hoplite"));
    command.arg("status").env("HOPLITE_SOCKET", cluster.socket(1));
    let text = succeed(command);
    assert_eq!(text.matches(&version).count(), 2, "{text}");
    let output = probe(&cluster, 0, &["--apply", "--nodes", "node-0,node-1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--nodes"), "{output:?}");
}

fn places(cluster: &Cluster) -> Vec<(u64, Option<u64>)> {
    let mut command = Command::new(program("hoplite"));
    command.args(["status", "--json"]).env("HOPLITE_SOCKET", cluster.socket(0));
    let status: Value = serde_json::from_str(&succeed(command)).unwrap();
    let shards = status["shards"].as_array().unwrap().iter();
    shards
        .map(|shard| (shard["places_version"].as_u64().unwrap(), shard["uplink_permille"].as_u64()))
        .collect()
}

fn place(cluster: &Cluster, shard: usize, version: u64) {
    let node = |(number, group): (usize, u32)| v1::measured_places::Node {
        node: format!("node-{number}"),
        groups: vec![0, 0, group, 0],
    };
    let nodes = [1, 1, 2, 2].into_iter().enumerate().map(node).collect();
    let places = v1::MeasuredPlaces { version, nodes, uplinks_permille: vec![250; 4] };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let reply = runtime.block_on(async {
        directory(&cluster.shard_addresses[shard]).place(places).await.unwrap().into_inner()
    });
    assert!(reply.counts && reply.nodes == 4, "{reply:?}");
}

#[test]
fn a_shard_that_is_restarted_learns_again_where_nodes_are() {
    let mut cluster = Cluster::of(4);
    place(&cluster, 0, 5);
    assert_eq!(places(&cluster), [(5, Some(250))]);
    cluster.kill_shard(0);
    cluster.restart_shard(0);
    await_that("the stores to say where they are", || places(&cluster) == [(5, Some(250))]);
}

#[test]
fn a_shard_that_missed_a_probe_learns_its_places_from_the_stores() {
    let cluster = Cluster::start(Plan { nodes: 4, shards: 2, ..Plan::default() });
    place(&cluster, 0, 5);
    await_that("the stores to pass it on", || places(&cluster) == [(5, Some(250)), (5, Some(250))]);
}

#[test]
fn impossible_probes_are_refused() {
    let cluster = Cluster::of(2);
    let fail = |arguments: &[&str]| failure(&probe(&cluster, 0, arguments).output().unwrap());
    assert!(fail(&["--nodes", "node-7"]).contains("no node node-7 is connected"));
    await_that("needs two nodes", || fail(&["--nodes", "node-1"]).contains("needs two nodes"));
    let mut long = begin_long(&cluster, 0);
    for (node, reason) in [(0, "coordinates at once are limited to 1"), (1, "needs two nodes")] {
        await_that(reason, || {
            if long.try_wait().unwrap().is_some() {
                long = begin_long(&cluster, 0);
            }
            await_that("the probe to begin", || {
                !echo_ports(&cluster, 1).is_empty() || long.try_wait().unwrap().is_some()
            });
            let output = probe(&cluster, node, &[]).output().unwrap();
            !output.status.success() && failure(&output).contains(reason)
        });
    }
    long.kill().unwrap();
    long.wait().unwrap();
    await_that("the sockets to close", || (0..2).all(|node| echo_ports(&cluster, node).is_empty()));
    succeed(probe(&cluster, 1, &["--probes", "5"]));
}

#[test]
fn a_store_that_dies_is_left_out_and_named() {
    let mut cluster = Cluster::of(4);
    let long = begin_long(&cluster, 0);
    await_that("the probe to begin", || !echo_ports(&cluster, 2).is_empty());
    cluster.kill_store(2);
    let output = long.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let matrix: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(matrix["nodes"], serde_json::json!(["node-0", "node-1", "node-3"]));
    assert_eq!(matrix["lost"][0]["node"], "node-2");
}

#[test]
fn a_coordinator_that_dies_leaves_nothing_behind() {
    let mut cluster = Cluster::of(3);
    let long = begin_long(&cluster, 0);
    await_that("the probe to begin", || (1..3).all(|node| !echo_ports(&cluster, node).is_empty()));
    cluster.kill_store(0);
    assert!(!long.wait_with_output().unwrap().status.success());
    await_that("the sockets to close", || (1..3).all(|node| echo_ports(&cluster, node).is_empty()));
    succeed(probe(&cluster, 1, &["--probes", "5", "--nodes", "node-1,node-2"]));
}

#[test]
fn forged_echoes_are_not_answered_and_change_nothing() {
    let cluster = Cluster::of(2);
    let long = begin_long(&cluster, 0);
    let forger = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut ports = Vec::new();
    await_that("the probe to begin", || {
        ports = (0..2).filter_map(|node| echo_ports(&cluster, node).first().copied()).collect();
        ports.len() == 2
    });
    for port in ports {
        let address: SocketAddr = ([127, 0, 0, 1], port).into();
        for kind in [PacketKind::Reply, PacketKind::Ask { is_prompt: true }] {
            for nonce in 0..100 {
                let packet = Packet { kind, nonce, number: u32::MAX, round_trip_ns: 1 };
                forger.send_to(&encode_packet(&packet), address).unwrap();
                forger.send_to(&[0x5a; 1400], address).unwrap();
            }
        }
    }
    let output = long.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let matrix: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(matrix["guessed"], serde_json::json!([]));
    assert!(
        matrix["alpha_ns"][0][1].as_u64().unwrap() > 1000,
        "no round trip is a nanosecond: {matrix}"
    );
    forger.set_nonblocking(true).unwrap();
    assert!(forger.recv_from(&mut [0; 64]).is_err(), "no reply");
}

#[test]
fn a_probe_serves_only_its_own_peers() {
    let cluster = Cluster::open(2);
    let refused = |kind, message: &dyn Fn(&mut RawPeer, Kind)| {
        let mut peer = RawPeer::greeted(&cluster.data_address(0));
        message(&mut peer, kind);
        let (kind, payload) = peer.receive().unwrap();
        assert_eq!(kind, Kind::End as u8);
        let end = v1::End::decode(payload.as_slice()).unwrap();
        assert!(end.error.unwrap().text.contains("no probe directs"));
    };
    refused(Kind::Echo, &|peer, kind| peer.send(kind, &v1::Echo { nonce: 7 }));
    refused(Kind::TakeTrain, &|peer, kind| {
        peer.send(kind, &v1::TakeTrain { nonce: 7, bytes: 1 << 20 })
    });
    for (kind, message) in [
        (Kind::Arm, v1::Arm { nonce: 7, asker: "127.0.0.1:9".to_owned() }.encode_to_vec()),
        (Kind::Measure, v1::Measure::default().encode_to_vec()),
        (Kind::TakeTrain, v1::TakeTrain { nonce: 7, bytes: u64::MAX }.encode_to_vec()),
    ] {
        let mut peer = RawPeer::greeted(&cluster.data_address(0));
        peer.send_bytes(&data_frame(kind, &message));
        peer.await_close();
    }
    let mut coordinator = RawPeer::greeted(&cluster.data_address(0));
    coordinator.send(Kind::Probe, &());
    let (kind, _) = coordinator.receive().unwrap();
    assert_eq!(kind, Kind::ProbeReady as u8);
    assert_eq!(echo_ports(&cluster, 0).len(), 1);
    let mut second = RawPeer::greeted(&cluster.data_address(0));
    second.send(Kind::Probe, &());
    let (kind, _) = second.receive().unwrap();
    assert_eq!(kind, Kind::End as u8, "one probe at a time");
    coordinator.send(Kind::Measure, &v1::Measure::default());
    coordinator.await_close();
    await_that("the socket to close", || echo_ports(&cluster, 0).is_empty());
    succeed(probe(&cluster, 1, &["--probes", "5"]));
}
