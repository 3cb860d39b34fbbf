//! Each tool names the problems of a cluster with the same words.
#![expect(
    clippy::unwrap_used,
    reason = "these are tests, and so are the functions that they share"
)]

use std::process::Command;
use std::thread;

use hoplite_client::{Metadata, PutOptions, Replicas};
use hoplite_core::problem::{Problem, ProblemKind};
use hoplite_proto::directory::decode_problems;
use hoplite_proto::v1::StatusRequest;
use hoplite_tests::TIME_LIMIT;
use hoplite_tests::cluster::{Cluster, Plan, await_that, directory, program};
use hoplite_tests::contents::bytes;
use serde_json::Value;

fn output_of(cluster: &Cluster, node: usize, verb: &str) -> Value {
    let mut command = Command::new(program("hoplite"));
    command.arg("--socket").arg(cluster.socket(node)).args([verb, "--json"]);
    if verb == "doctor" {
        command.args(["--directory", &cluster.shard_addresses[0]]);
    }
    serde_json::from_slice(&command.output().unwrap().stdout).unwrap()
}

fn problems(cluster: &Cluster) -> Vec<Problem> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let reply = runtime.block_on(async {
        directory(&cluster.shard_addresses[0]).status(StatusRequest { loads: true }).await.unwrap()
    });
    decode_problems(reply.into_inner().problems)
}

fn kinds(cluster: &Cluster) -> Vec<ProblemKind> {
    problems(cluster).into_iter().map(|problem| problem.kind).collect()
}

fn assert_in_each_tool(cluster: &Cluster, kind: ProblemKind) {
    let own = output_of(cluster, 0, "status");
    let problem = &own["problems"][0];
    assert_eq!(problem["cure"], kind.cure(), "{own}");
    assert_eq!(problem["cause"], kind.cause(), "{own}");
    for (node, what) in [(0, "store"), (1, "cluster")] {
        await_that(&format!("the doctor at node {node} to name {kind:?}"), || {
            let findings = output_of(cluster, node, "doctor");
            let found = findings.as_array().unwrap().iter().find(|finding| finding["what"] == what);
            let text = found.and_then(|finding| finding["says"].as_str());
            text.is_some_and(|text| text.contains("node-0") && text.contains(kind.cure()))
        });
    }
}

#[test]
fn a_store_that_is_nearly_full_has_the_same_cure_in_each_tool() {
    let cluster = Cluster::start(Plan { nodes: 2, memory: "64MiB".to_owned(), ..Plan::default() });
    let client = cluster.client(0);
    client.put("kept", &bytes(1, 60 << 20)).unwrap();
    await_that("the directory knows it", || kinds(&cluster) == [ProblemKind::NearlyFull]);
    assert_in_each_tool(&cluster, ProblemKind::NearlyFull);
    client.delete(&["kept"], TIME_LIMIT).unwrap();
    await_that("the end", || kinds(&cluster).is_empty());
}

#[test]
fn a_full_store_has_the_same_cure_in_each_tool() {
    let cluster = Cluster::start(Plan { nodes: 2, memory: "64MiB".to_owned(), ..Plan::default() });
    let client = cluster.client(0);
    client.put("kept", &bytes(1, 50 << 20)).unwrap();
    assert_eq!(kinds(&cluster), []);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| cluster.client(0).put("waits", &bytes(2, 32 << 20)));
        await_that("the directory knows it", || kinds(&cluster) == [ProblemKind::Full]);
        assert_in_each_tool(&cluster, ProblemKind::Full);
        client.delete(&["kept"], TIME_LIMIT).unwrap();
        waiting.join().unwrap().unwrap();
    });
    await_that("the end", || kinds(&cluster).is_empty());
}

#[test]
fn an_object_that_lost_its_second_copy_is_a_problem_until_it_has_another() {
    let mut cluster = Cluster::of(2);
    let replicas = Replicas { wanted: 2, ..Replicas::default() };
    let metadata = Metadata { replicas, ..Metadata::default() };
    cluster
        .client(0)
        .put_with("x", &bytes(1, 1 << 20), PutOptions { metadata, ..PutOptions::default() })
        .unwrap();
    cluster.kill_store(1);
    await_that("the problem", || kinds(&cluster).contains(&ProblemKind::Copies));
    let problems = problems(&cluster);
    let problem = problems.iter().find(|problem| problem.kind == ProblemKind::Copies).unwrap();
    assert_eq!(problem.places[0].text, "x: there is no other store");
    cluster.restart_store(1);
    await_that("the copy", || !kinds(&cluster).contains(&ProblemKind::Copies));
}
