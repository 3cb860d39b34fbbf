#![expect(
    clippy::unwrap_used,
    reason = "these are tests, and so are the functions that they share"
)]

use std::process::Command;

use hoplite_client::{Dtype, Metadata, NodeStatus, PutOptions, RailStatus, ReduceOp};
use hoplite_core::problem::ProblemKind;
use hoplite_tests::TIME_LIMIT;
use hoplite_tests::cluster::{Cluster, Plan, await_that, program};
use hoplite_tests::contents::bytes;
use hoplite_tests::http;
use hoplite_tests::links::Links;
use serde_json::Value;

const SIZE: usize = 32 << 20;

/// Two addresses of loopback stand for the network cards of a host; the first is the default.
fn plan() -> Plan {
    let mut plan = Plan { memory: "128MiB".to_owned(), ..Plan::open() };
    let more = ["--listen", "127.0.0.2:0", "--metrics", "0"];
    plan.store_arguments.extend(more.map(str::to_owned));
    plan.shard_arguments.extend(["--dashboard", "0"].map(str::to_owned));
    plan
}

fn status(cluster: &Cluster, node: usize) -> NodeStatus {
    cluster.client(node).status().unwrap()
}

fn dashboard(cluster: &Cluster, path: &str) -> Value {
    let address = cluster.shards[0].as_ref().unwrap().addresses().dashboard.unwrap();
    serde_json::from_str(&http::get(address, path).1).unwrap()
}

#[test]
fn stores_use_all_network_cards() {
    let mut cluster = Cluster::start(plan());
    let content = bytes(1, SIZE);
    let (near, far) = (cluster.client(0), cluster.client(1));
    let mut objects = 0;
    await_that("both cards are in use", || {
        let name = format!("object-{objects}");
        objects += 1;
        near.put(&name, &content).unwrap();
        assert_eq!(&far.get(&name, TIME_LIMIT).unwrap()[..], &content[..]);
        near.delete(&[&name], TIME_LIMIT).unwrap();
        status(&cluster, 1).rails.iter().all(|rail| rail.received_bytes > 0)
    });
    let received = status(&cluster, 1);
    let total = (objects * SIZE) as u64;
    let cards: Vec<_> = received.rails.iter().map(|rail| rail.address.as_str()).collect();
    assert_eq!((cards, received.max_lanes), (vec!["127.0.0.1", "127.0.0.2"], 2));
    let sum: u64 = received.rails.iter().map(|rail| rail.received_bytes).sum();
    assert_eq!((sum, received.failed_routes), (total, 0));
    await_that("the sender counts all bytes", || {
        let sent = status(&cluster, 0);
        sent.rails.iter().map(|rail| rail.sent_bytes).sum::<u64>() == total
    });

    let mut command = Command::new(program("hoplite"));
    let output = command.arg("status").env("HOPLITE_SOCKET", cluster.socket(1)).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("card       127.0.0.2: "), "{text}");
    let mut command = Command::new(program("hoplite"));
    command.args(["status", "--json"]).env("HOPLITE_SOCKET", cluster.socket(1));
    let status: Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
    assert_eq!(status["transfers"]["rails"][1]["address"], "127.0.0.2");

    let metrics = cluster.stores[1].as_ref().unwrap().addresses().metrics.unwrap();
    let (_, page) = http::get(metrics, "/metrics");
    assert!(page.contains("hoplite_store_rail_received_bytes_total{rail=\"127.0.0.2\"}"), "{page}");
    assert_directory_shows_cards(&cluster, total);
    cluster.assert_serves();
}

fn assert_directory_shows_cards(cluster: &Cluster, total: u64) {
    let assert_all = |cards: &Value| {
        let cards = cards.as_array().unwrap();
        let addresses: Vec<_> =
            cards.iter().map(|card| card["address"].as_str().unwrap()).collect();
        assert_eq!(addresses, ["127.0.0.1", "127.0.0.2"]);
        let received = cards.iter().map(|card| card["received_bytes"].as_u64().unwrap());
        assert_eq!(received.sum::<u64>(), total, "{cards:?}");
    };
    let mut page = Value::Null;
    await_that("the node reports its cards", || {
        page = dashboard(cluster, "/api/node?name=node-1");
        page["rails"][1]["received_bytes"].as_u64() > Some(0)
    });
    assert_all(&page["rails"]);
    let mut command = Command::new(program("hoplite"));
    command.args(["nodes", "--json"]).env("HOPLITE_SOCKET", cluster.socket(1));
    let nodes: Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
    assert_all(&nodes[1]["load"]["rails"]);
}

#[test]
fn each_tool_names_failed_routes() {
    let links = Links::new(2);
    // Nothing listens at the second address.
    let advertised = links.addresses().iter().map(|main| format!("{main},127.0.0.3:1")).collect();
    let cluster = Cluster::start(Plan { advertised, ..plan() });
    links.attach(&cluster);
    cluster.client(0).put("object", &bytes(4, SIZE)).unwrap();
    cluster.client(1).get("object", TIME_LIMIT).unwrap();
    await_that("a failed route", || status(&cluster, 1).failed_routes == 1);
    let text = "failed routes between network cards: 1 (1 of 127.0.0.2)";
    let problems = status(&cluster, 1).problems();
    assert_eq!(problems, [(ProblemKind::Routes, vec![text.to_owned()])]);
    await_that("the problem in the dashboard", || {
        let overview = dashboard(&cluster, "/api/overview");
        let problem = &overview["problems"][0];
        let mut places = problem["places"].as_array().into_iter().flatten();
        problem["cure"] == ProblemKind::Routes.cure()
            && places.any(|place| place["node"] == "node-1" && place["text"] == text)
    });
    let page = dashboard(&cluster, "/api/node?name=node-1");
    assert_eq!(page["rails"][1]["failed_routes"], 1, "{page}");
}

#[test]
fn reduces_use_all_network_cards() {
    let cluster = Cluster::start(plan());
    let clients = [cluster.client(0), cluster.client(1)];
    let shape = Some(vec![SIZE as u64 / 8]);
    let metadata = Metadata { dtype: Dtype::U64, shape, ..Metadata::default() };
    let options = || PutOptions { metadata: metadata.clone(), ..PutOptions::default() };
    clients[0].put_with("near", &vec![0; SIZE], options()).unwrap();
    let content = bytes(2, SIZE);
    clients[1].put_with("far", &content, options()).unwrap();
    clients[0].reduce("sum", ["near", "far"], ReduceOp::Sum, TIME_LIMIT).unwrap();
    assert_eq!(&clients[1].get("sum", TIME_LIMIT).unwrap()[..], &content[..]);
    let moved = |card: &RailStatus| card.received_bytes + card.sent_bytes;
    let cards = clients[0].status().unwrap().rails;
    assert!(cards.iter().all(|card| moved(card) > 0), "{cards:?}");
}

#[test]
fn a_store_may_come_back_with_a_single_address() {
    let mut cluster = Cluster::start(plan());
    let content = bytes(3, SIZE);
    cluster.client(1).put("before", &content).unwrap();
    assert_eq!(&cluster.client(0).get("before", TIME_LIMIT).unwrap()[..], &content[..]);
    cluster.kill_store(1);
    cluster.plan_mut().store_arguments = Plan::open().store_arguments;
    cluster.restart_store(1);
    let single = cluster.client(1);
    cluster.client(0).put("object", &content).unwrap();
    assert_eq!(&single.get("object", TIME_LIMIT).unwrap()[..], &content[..]);
    single.put("back", &content).unwrap();
    assert_eq!(&cluster.client(0).get("back", TIME_LIMIT).unwrap()[..], &content[..]);
    assert!(single.status().unwrap().rails.is_empty());
    await_that("the old routes are forgotten", || {
        cluster.client(0).status().unwrap().failed_routes == 0
    });
}
