#![expect(
    clippy::unwrap_used,
    reason = "these are tests, and so are the functions that they share"
)]

use std::process::Command;
use std::time::{Duration, Instant};

use hoplite_proto::v1::{Lane, Lanes, Pull};
use hoplite_tests::TIME_LIMIT;
use hoplite_tests::cluster::{Cluster, Plan, await_that, program};
use hoplite_tests::http;
use hoplite_tests::raw::{Kind, RawPeer};
use prost::Message;
use serde_json::Value;

const SIZE: usize = 96 << 20;
/// After these bytes, the rest exceeds the buffers of sockets.
const EARLY: usize = SIZE - (24 << 20);
/// More than a store's wait for lanes.
const OPEN_TIMEOUT: Duration = Duration::from_millis(600);

fn try_request(address: &str, pull: &Pull, most_bytes: usize) -> Option<(RawPeer, Lanes)> {
    let mut peer = RawPeer::greeted(address);
    peer.send(Kind::Pull, pull);
    let mut received_bytes = 0;
    while received_bytes <= most_bytes {
        let (kind, payload) = peer.receive_other().expect("the stream has an end");
        if kind == Kind::Lanes as u8 {
            return Some((peer, Lanes::decode(payload.as_slice()).unwrap()));
        }
        if kind == Kind::End as u8 {
            return None;
        }
        received_bytes += payload.len();
    }
    None
}

pub(crate) fn await_request(address: &str, pull: &Pull, most_bytes: usize) -> (RawPeer, Lanes) {
    let mut found = None;
    await_that("the store asks for lanes", || {
        found = try_request(address, pull, most_bytes);
        found.is_some()
    });
    found.expect("it was found")
}

fn open_no_lanes(address: &str, pull: &Pull) {
    let Some((mut peer, _)) = try_request(address, pull, EARLY) else { return };
    let requested = Instant::now();
    await_that("the end of the time limit", || requested.elapsed() > OPEN_TIMEOUT);
    while peer.receive_other().expect("the stream has an end").0 != Kind::End as u8 {}
}

fn hoplite(cluster: &Cluster, arguments: &[&str]) -> String {
    let mut command = Command::new(program("hoplite"));
    let output = command.args(arguments).env("HOPLITE_SOCKET", cluster.socket(0)).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn lanes_of(links: &Value, key: &str) -> Option<u64> {
    links.as_array().unwrap().iter().find(|link| link[key] == "raw")?["lanes"].as_u64()
}

#[test]
fn lanes_are_shown_while_they_are_open_and_after_a_trial() {
    let mut plan = Plan { memory: "128MiB".to_owned(), ..Plan::open() };
    plan.store_arguments.extend(["--lanes", "16"].map(str::to_owned));
    plan.shard_arguments.extend(["--dashboard", "0"].map(str::to_owned));
    let mut cluster = Cluster::start(plan);
    let (client, address) = (cluster.client(0), cluster.data_address(0));
    client.put("object", &vec![0; SIZE]).unwrap();
    let put = client.get("object", TIME_LIMIT).unwrap().put_id().0;
    let pull =
        Pull { id: b"object".to_vec().into(), put, size_bytes: SIZE as u64, ..Pull::default() };
    let open = || {
        let status = client.status().unwrap();
        (status.max_lanes, status.extra_lanes)
    };
    assert_eq!(open(), (16, 0));

    let (main, requested) = await_request(&address, &Pull { max_lanes: 2, ..pull.clone() }, EARLY);
    let mut lane = RawPeer::greeted(&address);
    lane.send(Kind::Lane, &Lane { key: requested.key, other_streams: 0 });
    await_that("the second lane is open", || open() == (16, 1));
    let text = hoplite(&cluster, &["status"]);
    assert!(
        text.contains("at most 16 connections for a transfer; sends use 1 beyond the first"),
        "{text}"
    );
    let status: Value = serde_json::from_str(&hoplite(&cluster, &["status", "--json"])).unwrap();
    let transfers = &status["transfers"];
    assert_eq!((&transfers["max_lanes"], &transfers["extra_lanes"]), (&16.into(), &1.into()));
    drop((main, lane));
    await_that("the lanes end with their connections", || open() == (16, 0));

    let lanes = || {
        let links = client.status().unwrap().links;
        links.into_iter().find(|link| link.node == "raw").and_then(|link| link.lanes)
    };
    let pull = Pull { max_lanes: 16, ..pull };
    await_that("the trial of a peer that opens no lanes", || {
        open_no_lanes(&address, &pull);
        lanes() == Some(1)
    });
    let links: Value =
        serde_json::from_str(&hoplite(&cluster, &["topology", "show", "--json"])).unwrap();
    assert_eq!(lanes_of(&links, "node"), Some(1), "{links}");
    let text = hoplite(&cluster, &["topology", "show"]);
    let row = text.lines().find(|line| line.starts_with("raw")).unwrap();
    assert!(text.lines().next().unwrap().ends_with("LANES"), "{text}");
    assert_eq!(row.split_whitespace().last(), Some("1"), "{text}");
    let dashboard = cluster.shards[0].as_ref().unwrap().addresses().dashboard.unwrap();
    await_that("the dashboard shows the lanes", || {
        let (_, page) = http::get(dashboard, "/api/node?name=node-0");
        let page: Value = serde_json::from_str(&page).unwrap();
        lanes_of(&page["links"], "peer") == Some(1)
    });
    cluster.assert_serves();
}
