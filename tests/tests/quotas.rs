#![expect(
    clippy::unwrap_used,
    reason = "these are tests, and so are the functions that they share"
)]

use std::process::{Command, Output};
use std::time::Duration;

use hoplite_client::blocking::Client;
use hoplite_client::{
    Dtype, Metadata, PutOptions, QuotaExcess, QuotaLimits, QuotaResource, QuotaSubject, QuotaUse,
    ReduceOp,
};
use hoplite_core::{Error as ObjectError, ObjectId};
use hoplite_tests::TIME_LIMIT;
use hoplite_tests::cluster::{Cluster, Plan, await_that, program, refusal};
use hoplite_tests::contents::bytes;
use hoplite_tests::http::get;
use serde_json::{Value, json};

use crate::spill::{MIB, Spilling};

const SIZE: usize = 100_000;
const SOON: Duration = Duration::from_millis(200);

fn objects(limit: u64) -> Option<QuotaLimits> {
    Some(QuotaLimits { objects: Some(limit), ..QuotaLimits::default() })
}

fn memory(limit_bytes: usize) -> Option<QuotaLimits> {
    Some(QuotaLimits { memory_bytes: Some(limit_bytes as u64), ..QuotaLimits::default() })
}

fn user() -> QuotaSubject {
    QuotaSubject::User(rustix::process::geteuid().as_raw())
}

fn prefix(text: &str) -> QuotaSubject {
    QuotaSubject::Prefix(ObjectId::new(text).unwrap())
}

fn within(timeout: Duration) -> PutOptions {
    PutOptions { timeout, ..PutOptions::default() }
}

fn used(client: &Client) -> Vec<QuotaUse> {
    client.quotas().unwrap().into_iter().map(|quota| quota.used).collect()
}

#[track_caller]
fn excess<T>(result: hoplite_client::Result<T>) -> QuotaExcess {
    match refusal(result) {
        ObjectError::QuotaExceeded(excess) => *excess,
        other => panic!("expected an exceeded quota, got {other}"),
    }
}

fn hoplite(cluster: &Cluster, arguments: &[&str]) -> Output {
    let mut command = Command::new(program("hoplite"));
    command.arg("--socket").arg(cluster.socket(0)).args(arguments).output().unwrap()
}

fn rows(cluster: &Cluster, arguments: &[&str]) -> Value {
    let output = hoplite(cluster, arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_put_over_the_quota_of_its_user_waits_for_a_delete() {
    let mut cluster = Cluster::of(1);
    let client = cluster.client(0);
    client.put("a", &bytes(1, SIZE)).unwrap();
    assert_eq!(client.set_quota(user(), objects(2)).unwrap().used.objects, 1);
    client.put("b", &bytes(2, 100)).unwrap();
    for size in [100, SIZE] {
        let QuotaExcess { subject, resource, needed, used, limit } =
            excess(client.put_with("c", &bytes(3, size), within(SOON)));
        assert_eq!((subject, resource), (user(), QuotaResource::Objects));
        assert_eq!((needed, used, limit), (1, 2, 2));
    }
    client.put("a", &bytes(1, SIZE)).expect("a repeated put needs no room");
    std::thread::scope(|scope| {
        let waiting =
            scope.spawn(|| cluster.client(0).put_with("c", &bytes(3, SIZE), within(TIME_LIMIT)));
        await_that("the client", || client.status().unwrap().clients == 2);
        client.delete(["b"], TIME_LIMIT).unwrap();
        waiting.join().unwrap().expect("the delete makes room");
    });
    client.set_quota(user(), None).unwrap();
    client.put("d", &bytes(4, SIZE)).unwrap();
    client.delete(["a", "c", "d"], TIME_LIMIT).unwrap();
    cluster.assert_serves();
}

#[test]
fn each_client_has_a_quota_to_itself() {
    let mut cluster = Cluster::of(1);
    let (greedy, other) = (cluster.client(0), cluster.client(0));
    other.set_quota(QuotaSubject::EachClient, objects(2)).unwrap();
    greedy.put("a", &bytes(1, SIZE)).unwrap();
    greedy.put("b", &bytes(2, 100)).unwrap();
    let QuotaExcess { subject, used: in_use, limit, .. } =
        excess(greedy.put_with("c", &bytes(3, SIZE), within(SOON)));
    assert_eq!((subject, in_use, limit), (QuotaSubject::EachClient, 2, 2));
    other.put("c", &bytes(3, SIZE)).unwrap();
    assert_eq!(used(&other)[0].objects, 2);
    drop(greedy);
    await_that("the end of the client", || used(&other)[0].objects == 1);
    other.put("d", &bytes(4, 100)).unwrap();
    other.set_quota(QuotaSubject::EachClient, None).unwrap();
    other.put("e", &bytes(5, 100)).unwrap();
    cluster.assert_serves();
}

#[test]
fn puts_above_a_quota_of_memory_spill_unused_objects_of_the_quota() {
    let spilling = Spilling::start_as(&[], false, "16MiB");
    let client = spilling.cluster.client(0);
    client.put("other", &bytes(0, MIB)).unwrap();
    let limit_bytes = 2 * (MIB + 4096);
    client.set_quota(prefix("q/"), memory(limit_bytes)).unwrap();
    let name = |number: u64| format!("q/{number}");
    for number in 1..10 {
        client.put_with(name(number), &bytes(number, MIB), within(TIME_LIMIT)).unwrap();
    }
    let [QuotaUse { memory_bytes, objects, .. }] = used(&client)[..] else { panic!("one quota") };
    assert!(memory_bytes <= limit_bytes as u64 && objects == 9, "{memory_bytes} {objects}");
    assert_eq!(client.status().unwrap().spill.objects, 7);
    assert_eq!(*client.get("other", TIME_LIMIT).unwrap(), bytes(0, MIB));
    for number in 1..10 {
        assert_eq!(*client.get(name(number), TIME_LIMIT).unwrap(), bytes(number, MIB));
    }
}

#[test]
fn a_quota_of_disk_limits_spilled_objects() {
    let spilling = Spilling::start_as(&[], false, "16MiB");
    let client = spilling.cluster.client(0);
    let limits = QuotaLimits {
        disk_bytes: Some(3 * (MIB as u64 + 100)),
        ..memory(2 * (MIB + 4096)).unwrap()
    };
    client.set_quota(prefix("q/"), Some(limits)).unwrap();
    let name = |number: u64| format!("q/{number}");
    for number in 1..6 {
        client.put_with(name(number), &bytes(number, MIB), within(TIME_LIMIT)).unwrap();
    }
    let sixth = client.put_with(name(6), &bytes(6, MIB), within(Duration::from_millis(300)));
    assert_eq!(excess(sixth).resource, QuotaResource::Memory);
    let disk_bytes = used(&client)[0].disk_bytes;
    assert!((3 * MIB as u64..=limits.disk_bytes.unwrap()).contains(&disk_bytes), "{disk_bytes}");
    for number in 10..40 {
        client.put_with(number.to_string(), &bytes(number, MIB), within(TIME_LIMIT)).unwrap();
    }
    for number in 1..6 {
        assert_eq!(*client.get(name(number), TIME_LIMIT).unwrap(), bytes(number, MIB));
    }
    client.delete([name(1)], TIME_LIMIT).unwrap();
    client.put_with(name(6), &bytes(6, MIB), within(TIME_LIMIT)).unwrap();
}

#[test]
fn many_objects_beyond_their_quota_of_disk_stop_no_other_puts() {
    let spilling = Spilling::start_as(&[], false, "16MiB");
    let client = spilling.cluster.client(0);
    let limits = QuotaLimits { disk_bytes: Some(0), ..QuotaLimits::default() };
    client.set_quota(prefix("q/"), Some(limits)).unwrap();
    let small = bytes(0, 1000);
    let objects = (0..9000).map(|number| (format!("q/{number}"), &small));
    let put = client.put_many(objects, PutOptions::default()).unwrap();
    assert!(put.iter().all(Result::is_ok), "they fit into memory");
    for number in 0..30 {
        client.put_with(number.to_string(), &bytes(number, MIB), within(TIME_LIMIT)).unwrap();
    }
    assert_eq!(*client.get("0", TIME_LIMIT).unwrap(), bytes(0, MIB));
    let full = refusal(client.put_with("large", &bytes(0, 10 * MIB), within(SOON))).to_string();
    assert!(full.contains("of objects exceed a quota of disk and stay in memory"), "{full}");
    let [QuotaUse { disk_bytes: 0, objects: 9000, .. }] = used(&client)[..] else {
        panic!("{:?}", used(&client))
    };
}

#[test]
fn the_command_sets_lists_and_removes_quotas() {
    let cluster = Cluster::of(1);
    let client = cluster.client(0);
    let uid = rustix::process::geteuid().as_raw();
    let name = hoplite_daemon::User(0).name().unwrap();
    client.put("tmp/x", &bytes(1, SIZE)).unwrap();
    let set = "quota set --prefix tmp/ --memory 150KiB --disk 1MiB --objects 7";
    let set: Vec<_> = set.split(' ').collect();
    let set = String::from_utf8(hoplite(&cluster, &set).stdout).unwrap();
    let expected = "QUOTA          MEMORY      LIMIT  DISK    LIMIT  OBJECTS  LIMIT\nprefix tmp/  97.8 KiB  150.0 KiB   0 B  1.0 MiB        1      7\n";
    assert_eq!(set, expected);
    let set = hoplite(&cluster, &["quota", "set", "--user", &name, "--objects", "3"]);
    assert!(set.status.success(), "{}", String::from_utf8_lossy(&set.stderr));
    let quotas = rows(&cluster, &["quota", "--json"]);
    let used_bytes = client.quotas().unwrap()[1].used.memory_bytes;
    assert!(used_bytes > SIZE as u64 && used_bytes < SIZE as u64 + 256, "{used_bytes}");
    let of_user = json!({
        "user": name, "uid": 0, "each_client": false, "prefix": null,
        "memory_bytes": if uid == 0 { used_bytes } else { 0 },
        "memory_limit_bytes": null, "disk_bytes": 0, "disk_limit_bytes": null,
        "objects": u64::from(uid == 0), "objects_limit": 3,
    });
    let of_prefix = json!({
        "user": null, "uid": null, "each_client": false, "prefix": { "id": "tmp/", "id_hex": "746d702f" },
        "memory_bytes": used_bytes, "memory_limit_bytes": 150 << 10, "disk_bytes": 0,
        "disk_limit_bytes": 1 << 20, "objects": 1, "objects_limit": 7,
    });
    assert_eq!(quotas, json!([of_user, of_prefix]));
    let file = cluster.directory().join("file");
    std::fs::write(&file, bytes(2, SIZE)).unwrap();
    let put = hoplite(&cluster, &["--timeout", "0", "put", "tmp/y", file.to_str().unwrap()]);
    assert_eq!(put.status.code(), Some(1));
    let said = String::from_utf8(put.stderr).unwrap();
    assert!(said.contains(": the quota of prefix tmp/ is exceeded: "), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    let set = hoplite(&cluster, &["quota", "set", "--prefix", "json/", "--objects", "7", "--json"]);
    for output in [set, hoplite(&cluster, &["quota", "remove", "--prefix", "json/", "--json"])] {
        let quotas: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(
            (&quotas[0]["prefix"]["id"], &quotas[0]["objects_limit"]),
            (&"json/".into(), &7.into())
        );
    }
    let set = hoplite(&cluster, &["quota", "set", "--each-client", "--memory", "1MiB"]);
    assert!(String::from_utf8(set.stdout).unwrap().contains("\neach client "));
    let removed = rows(&cluster, &["quota", "remove", "--each-client", "--json"]);
    assert_eq!(removed[0]["each_client"], true);
    let removed = hoplite(&cluster, &["quota", "remove", "--prefix", "tmp/"]);
    assert_eq!(String::from_utf8(removed.stdout).unwrap(), "removed the quota of prefix tmp/\n");
    let again = hoplite(&cluster, &["quota", "remove", "--prefix", "tmp/"]);
    assert_eq!(again.status.code(), Some(1));
    assert!(String::from_utf8(again.stderr).unwrap().contains("there is no quota of prefix tmp/"));
    assert_eq!(rows(&cluster, &["quota", "--json"]).as_array().unwrap().len(), 1);
}

#[test]
fn unfinished_puts_copies_and_deletes_leave_no_charge() {
    let cluster = Cluster::of(2);
    let (client, other) = (cluster.client(0), cluster.client(1));
    for one in [&client, &other] {
        one.set_quota(prefix("x"), memory(10 * SIZE)).unwrap();
    }
    let failed = cluster.client(0);
    let mut writer = failed.create("x/unfinished", SIZE as u64, PutOptions::default()).unwrap();
    writer.write(&[1]).unwrap();
    assert_eq!(used(&client)[0].objects, 1);
    drop((writer, failed));
    await_that("the end of the put", || used(&client)[0] == QuotaUse::default());
    client.put("x/1", &bytes(1, SIZE)).unwrap();
    assert!(other.get("x/1", TIME_LIMIT).unwrap()[..] == bytes(1, SIZE)[..]);
    assert_eq!(used(&other), [QuotaUse::default()], "a copy of another node is a cache");
    let excess = excess(client.put_with("x/2", &bytes(2, 11 * SIZE), within(TIME_LIMIT)));
    assert!(excess.is_final(), "it fails at once");
    client.delete(["x/1"], TIME_LIMIT).unwrap();
    assert_eq!(used(&client), [QuotaUse::default()]);
}

#[test]
fn the_target_of_a_reduce_is_charged_to_the_user_of_the_call() {
    let cluster = Cluster::of(2);
    let (client, other) = (cluster.client(0), cluster.client(1));
    let metadata = Metadata { dtype: Dtype::F32, shape: Some(vec![25_000]), ..Metadata::default() };
    let options = || PutOptions { metadata: metadata.clone(), ..PutOptions::default() };
    client.put_with("a", &[0; SIZE], options()).unwrap();
    other.put_with("b", &[0; SIZE], options()).unwrap();
    client.set_quota(user(), objects(2)).unwrap();
    client.reduce("t", ["a", "b"], ReduceOp::Sum, TIME_LIMIT).unwrap();
    assert_eq!(used(&client)[0].objects, 2);
    let mut refused = None;
    await_that("an answer of the directory in time", || {
        match refusal(client.reduce("u", ["a", "b"], ReduceOp::Sum, SOON)) {
            ObjectError::QuotaExceeded(excess) => refused = Some(excess),
            ObjectError::Timeout { .. } => {}
            other => panic!("{other}"),
        }
        refused.is_some()
    });
    let refused = refused.unwrap();
    assert_eq!((refused.used, refused.limit), (2, 2));
    client.delete(["t"], TIME_LIMIT).unwrap();
    client.reduce("u", ["a", "b"], ReduceOp::Sum, TIME_LIMIT).unwrap();
}

#[test]
fn the_number_of_quotas_is_limited_and_refused_puts_are_counted() {
    let store_arguments = vec!["--metrics".to_owned(), "0".to_owned()];
    let cluster = Cluster::start(Plan { nodes: 1, store_arguments, ..Plan::default() });
    let client = cluster.client(0);
    for number in 0..1024 {
        client.set_quota(prefix(&format!("x{number:04}")), objects(0)).unwrap();
    }
    let error = refusal(client.set_quota(prefix("y"), objects(1)));
    assert!(matches!(error, ObjectError::LimitExceeded { maximum: 1024, .. }), "{error}");
    assert_eq!(client.quotas().unwrap().len(), 1024);
    let error = refusal(client.set_quota(prefix("x0000"), Some(QuotaLimits::default())));
    assert!(matches!(error, ObjectError::InvalidRequest { .. }), "{error}");
    excess(client.put("x1023/y", b"refused"));
    client.put("x1024/y", b"admitted").unwrap();
    let address = cluster.stores[0].as_ref().unwrap().addresses().metrics.unwrap();
    let (_, metrics) = get(address, "/metrics");
    assert!(metrics.contains("\nhoplite_store_over_quota_puts_total 1\n"), "{metrics}");
}
