use std::process::Command;

use hoplite_tests::cluster::{Cluster, Daemon, await_that, program};
use serde_json::{Value, json};

#[test]
fn stores_with_different_label_keys_are_logged() {
    let cluster = Cluster::of(1);
    let start = |node: usize, labels: &str| {
        Daemon::start(labels, cluster.store_command(node).args(["--labels", labels]))
    };
    let hoplite = |arguments: &[&str]| {
        let mut command = Command::new(program("hoplite"));
        let output =
            command.args(arguments).env("HOPLITE_SOCKET", cluster.socket(0)).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(!hoplite(&["status"]).contains("places"));
    let _stores = [start(1, "rack=1,disk=ssd"), start(2, "zone=a"), start(3, "rack=2")];
    let says = "labels do not fit together: 1 by nothing, 1 by zone, 2 by rack; give all stores the same keys";
    await_that("the stores to connect", || hoplite(&["status"]).contains(says));
    let status: Value = serde_json::from_str(&hoplite(&["status", "--json"])).unwrap();
    assert_eq!(
        status["shards"][0]["place_keys"],
        json!([{"keys": [], "nodes": 1}, {"keys": ["zone"], "nodes": 1}, {"keys": ["rack"], "nodes": 2}])
    );
    let doubtful = format!("doubtful  node-0 runs, but {says}");
    await_that("the doctor to say so", || hoplite(&["doctor"]).contains(&doubtful));
    let shard = cluster.shards[0].as_ref().unwrap();
    let warnings =
        || shard.log().matches("stores describe their places by different label keys").count();
    await_that("both lines in the log", || warnings() >= 2);
    assert_eq!(warnings(), 2, "{}", shard.log());
}
