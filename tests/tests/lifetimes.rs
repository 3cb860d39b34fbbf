#![expect(
    clippy::unwrap_used,
    reason = "these are tests, and so are the functions that they share"
)]

use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use hoplite_client::blocking::Client;
use hoplite_client::{
    ConnectFailure, ConnectOptions, Dtype, Error, Lifetime, Metadata, ObjectView, Owner,
    PutOptions, ReduceOp, Replicas, Ttl, TtlAction,
};
use hoplite_core::Error as ObjectError;
use hoplite_core::lifetime::MAX_TTL;
use hoplite_tests::TIME_LIMIT;
use hoplite_tests::cluster::{Cluster, Plan, Worker, await_that, program, refusal, retry};
use hoplite_tests::contents::bytes;
use hoplite_tests::raw::RawClient;
use serde_json::Value;

const SIZE: usize = 100_000;
const SOON: Duration = Duration::from_millis(200);

fn cluster(nodes: usize, grace: &str) -> Cluster {
    let store_arguments = ["--owner-grace", grace].map(str::to_owned).to_vec();
    Cluster::start(Plan { nodes, store_arguments, ..Plan::default() })
}

fn for_ttl(after: Duration, action: TtlAction) -> PutOptions {
    options(Lifetime::of(None, Some(Ttl::new(after, action).unwrap())))
}

fn owned(owner: &str) -> PutOptions {
    options(Lifetime::of(Some(Owner::new(owner).unwrap()), None))
}

fn options(lifetime: Option<Arc<Lifetime>>) -> PutOptions {
    PutOptions { metadata: Metadata { lifetime, ..Metadata::default() }, ..PutOptions::default() }
}

fn holder(cluster: &Cluster, owners: &[&str]) -> hoplite_client::Result<Client> {
    let owners = owners.iter().map(|name| Owner::new(name).unwrap()).collect();
    Client::connect_with(ConnectOptions {
        socket: cluster.socket(0),
        owners,
        ..ConnectOptions::default()
    })
}

/// Puts objects with a growing time to live until `reader` gets one in time. Returns the last
/// object's id and view, and the number of objects.
fn got_in_time(
    writer: &Client,
    reader: &Client,
    name: &str,
    action: TtlAction,
) -> (String, ObjectView, u64) {
    let (mut ttl, mut puts) = (SOON, 0);
    loop {
        let id = format!("{name}-{puts}");
        let put = writer.put_with(&id, &bytes(1, SIZE), for_ttl(ttl, action));
        puts += 1;
        match put.and_then(|()| reader.get(&id, ttl)) {
            Ok(view) => return (id, view, puts),
            Err(error) => assert!(ttl < TIME_LIMIT, "{error}"),
        }
        ttl *= 2;
    }
}

fn await_deleted(client: &Client, id: &str) {
    await_that("the end of the object", || {
        retry("describe", || client.describe(id)).locations.object.is_none()
    });
}

fn hoplite(cluster: &Cluster, arguments: &[&str]) -> Output {
    let mut command = Command::new(program("hoplite"));
    command.arg("--socket").arg(cluster.socket(0)).args(arguments).output().unwrap()
}

fn gc(cluster: &Cluster, arguments: &[&str]) -> Vec<(String, Option<String>, bool)> {
    let output = hoplite(cluster, &[&["gc", "--json"], arguments].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let row = |row: &Value| {
        (text(&row["id"]).unwrap(), text(&row["owner"]), row["deleted"].as_bool().unwrap())
    };
    rows.iter().map(row).collect()
}

#[test]
fn a_ttl_ends_the_object_everywhere_and_a_view_keeps_its_bytes() {
    let mut cluster = cluster(2, "30s");
    let (client, other) = (cluster.client(0), cluster.client(1));
    client.put_with("small", b"small", for_ttl(SOON, TtlAction::Delete)).unwrap();
    let (large, view, puts) = got_in_time(&client, &other, "large", TtlAction::Delete);
    for id in [&*large, "small"] {
        await_deleted(&other, id);
        assert!(matches!(
            refusal(other.get(id, Duration::from_millis(50))),
            ObjectError::Timeout { .. }
        ));
    }
    assert!(view[..] == bytes(1, SIZE)[..], "the view of another store");
    drop(view);
    cluster.await_empty(0);
    cluster.await_empty(1);
    assert_eq!(client.status().unwrap().expired, puts + 1);
    cluster.assert_serves();
}

#[test]
fn a_freed_object_stays_at_the_other_stores() {
    let mut cluster = cluster(2, "30s");
    let (id, view, _) = got_in_time(&cluster.client(0), &cluster.client(1), "x", TtlAction::Free);
    assert!(view[..] == bytes(1, SIZE)[..]);
    drop(view);
    cluster.await_empty(0);
    await_that("the promotion", || cluster.client(1).status().unwrap().pinned_bytes > 0);
    assert!(cluster.client(0).get(&id, TIME_LIMIT).unwrap()[..] == bytes(1, SIZE)[..]);
    cluster.assert_serves();
}

#[test]
fn the_objects_of_a_killed_client_are_deleted_after_the_grace_period() {
    let mut cluster = cluster(2, "200ms");
    let mut worker = Worker::start(&cluster.socket(0));
    worker.succeed(&format!("own large {SIZE}"));
    worker.succeed("own small 10");
    worker.succeed("put plain 10");
    let other = cluster.client(1);
    assert_eq!(other.get("large", TIME_LIMIT).unwrap().len(), SIZE);
    let stat = hoplite(&cluster, &["stat", "large"]);
    let stat = String::from_utf8_lossy(&stat.stdout);
    assert!(stat.contains("owner      client:"), "{stat}");
    worker.kill();
    await_deleted(&other, "large");
    await_deleted(&other, "small");
    assert_eq!(other.get("plain", TIME_LIMIT).unwrap().len(), 10);
    assert_eq!(cluster.client(0).status().unwrap().abandoned, 2);
    cluster.assert_serves();
}

#[test]
fn the_last_holder_of_a_name_keeps_its_objects() {
    let mut cluster = cluster(1, "200ms");
    let driver = holder(&cluster, &["job-7"]).unwrap();
    let worker = cluster.client(0);
    worker.put_with("x", &bytes(1, SIZE), owned("job-7")).unwrap();
    let another = holder(&cluster, &["other", "job-7"]).unwrap();
    drop(driver);
    std::thread::sleep(2 * SOON);
    assert_eq!(worker.get("x", TIME_LIMIT).unwrap().len(), SIZE);
    drop(another);
    await_deleted(&worker, "x");
    let refused = refusal(worker.put_with("y", b"y", owned("job-7")));
    assert!(
        refused.to_string().contains("no client of this store holds the owner job-7"),
        "{refused}"
    );
    cluster.assert_serves();
}

#[test]
fn a_view_is_a_part_of_its_client() {
    let mut cluster = cluster(1, "0s");
    let owner = holder(&cluster, &["job"]).unwrap();
    owner.put_with("x", &bytes(1, SIZE), owned("job")).unwrap();
    let view = owner.get("x", TIME_LIMIT).unwrap();
    drop(owner);
    std::thread::sleep(SOON);
    assert_eq!(
        cluster.client(0).get("x", TIME_LIMIT).unwrap().len(),
        SIZE,
        "the view holds the owner"
    );
    drop(view);
    await_deleted(&cluster.client(0), "x");
    cluster.assert_serves();
}

#[test]
fn gc_lists_ownerless_objects_and_deletes_the_selected_ones() {
    let mut cluster = cluster(1, "1h");
    let client = cluster.client(0);
    let leaving = holder(&cluster, &["job"]).unwrap();
    leaving.put_with("job/1", &bytes(1, SIZE), owned("job")).unwrap();
    leaving.put("tmp/1", &bytes(2, SIZE)).unwrap();
    leaving.put("tmp/2", b"small").unwrap();
    leaving.put("kept", b"kept").unwrap();
    leaving.put_with("ttl", b"ttl", for_ttl(MAX_TTL, TtlAction::Delete)).unwrap();
    let metadata = Metadata { dtype: Dtype::U8, ..Metadata::default() };
    let typed = PutOptions { metadata, ..PutOptions::default() };
    client.put_with("mine", b"mine", typed).unwrap();
    leaving.reduce("sum", ["mine"], ReduceOp::Sum, TIME_LIMIT).unwrap();
    assert_eq!(gc(&cluster, &[]), []);
    drop(leaving);
    let job = || Some("job".to_owned());
    let expected = |deleted: &[&str]| -> Vec<_> {
        let row =
            |(id, owner): (&str, Option<String>)| (id.to_owned(), owner, deleted.contains(&id));
        [("job/1", job()), ("kept", None), ("tmp/1", None), ("tmp/2", None)]
            .into_iter()
            .map(row)
            .collect()
    };
    await_that("the end of the connection", || gc(&cluster, &[]) == expected(&[]));
    assert_eq!(gc(&cluster, &["--dry-run"]), expected(&[]));
    assert_eq!(gc(&cluster, &["--gone", "--unowned", "tmp/", "--dry-run"]), expected(&[]));
    let table = hoplite(&cluster, &["gc", "--gone", "--dry-run"]);
    let table = String::from_utf8_lossy(&table.stdout);
    assert!(table.contains("would be deleted"), "{table}");
    assert_eq!(gc(&cluster, &["--gone"]), expected(&["job/1"]));
    await_deleted(&client, "job/1");
    assert_eq!(gc(&cluster, &["--unowned", "tmp/"]), expected(&["tmp/1", "tmp/2"])[1..]);
    assert_eq!(gc(&cluster, &[]), [("kept".to_owned(), None, false)]);
    assert_eq!(client.get("mine", TIME_LIMIT).unwrap()[..], b"mine"[..]);
    cluster.assert_serves();
}

#[test]
fn the_command_line_sets_and_shows_lifetimes() {
    let mut cluster = cluster(1, "30s");
    let holder = holder(&cluster, &["job-7"]).unwrap();
    let file = cluster.directory().join("file");
    std::fs::write(&file, bytes(1, SIZE)).unwrap();
    let file = file.to_str().unwrap();
    let put = |arguments: &[&str]| hoplite(&cluster, &[&["put", "x", file], arguments].concat());
    for wrong in [
        &["--ttl", "0"][..],
        &["--ttl", "31d"],
        &["--ttl", "nan"],
        &["--ttl", "-1"],
        &["--owner", ""],
    ] {
        let output = put(wrong);
        assert!(!output.status.success(), "{wrong:?}");
        assert!(!output.stderr.is_empty(), "{wrong:?}");
    }
    let output = put(&["--owner", "job-7", "--ttl", "30d"]);
    assert!(output.status.success(), "{output:?}");
    let stat = hoplite(&cluster, &["stat", "x", "--json"]);
    let stat: Value = serde_json::from_slice(&stat.stdout).unwrap();
    let lifetime = &stat["lifetime"];
    assert_eq!(
        (&lifetime["owner"], &lifetime["ttl_action"]),
        (&"job-7".into(), &"delete".into()),
        "{stat}"
    );
    assert!(lifetime["here"]["expires_in_ms"].as_u64().unwrap() > 0, "{stat}");
    let listed = hoplite(&cluster, &["ls"]);
    let listed = String::from_utf8_lossy(&listed.stdout);
    assert!(listed.contains("job-7, 30days"), "{listed}");
    drop(holder);
    let stat = || String::from_utf8_lossy(&hoplite(&cluster, &["stat", "x"]).stdout).into_owned();
    await_that("the end of the connection", || stat().contains("gone, the object is deleted in"));
    cluster.assert_serves();
}

#[test]
fn wrong_lifetimes_are_refused_and_the_store_goes_on() {
    let mut cluster = cluster(1, "30s");
    let mut client = RawClient::greeted(&cluster.socket(0));
    let lifetime = |owner: &'static [u8], ttl_ms, ttl_action| hoplite_proto::v1::Lifetime {
        owner: owner.into(),
        ttl_ms,
        ttl_action,
    };
    let long: &'static [u8] = Box::leak(vec![b'x'; 256].into_boxed_slice());
    let wrong = [
        lifetime(b"", Some(0), 0),
        lifetime(b"", Some(u64::MAX), 0),
        lifetime(b"", Some(1), 7),
        lifetime(b"", None, 1),
        lifetime(b"\xff\xfe", None, 0),
        lifetime(b"a\nb", None, 0),
        lifetime(long, None, 0),
        lifetime(b"nobody", None, 0),
    ];
    for lifetime in wrong {
        let metadata =
            hoplite_proto::v1::Metadata { lifetime: Some(lifetime.clone()), ..Default::default() };
        let put = hoplite_proto::v1::request::Put {
            id: b"x".as_slice().into(),
            metadata: Some(metadata),
            ..Default::default()
        };
        client.request(hoplite_proto::v1::request::Body::Put(put));
        let answer: hoplite_proto::v1::Response = client.receive().unwrap();
        assert!(
            matches!(answer.body, Some(hoplite_proto::v1::response::Body::Error(_))),
            "{lifetime:?}: {answer:?}"
        );
    }
    let replicas = Replicas { wanted: 2, awaited: 1, quorum: false };
    let mut freed = for_ttl(SOON, TtlAction::Free);
    freed.metadata.replicas = replicas;
    assert!(matches!(
        refusal(cluster.client(0).put_with("x", b"x", freed)),
        ObjectError::InvalidRequest { .. }
    ));
    let many: Vec<String> = (0..8).map(|number| format!("job-{number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert!(holder(&cluster, &many[..7]).is_ok());
    let refused = holder(&cluster, &many).map(|_| ()).unwrap_err();
    let Error::Connect { kind: ConnectFailure::Refused(error), .. } = refused else {
        panic!("{refused}")
    };
    assert!(matches!(error, ObjectError::LimitExceeded { maximum: 8, .. }), "{error}");
    cluster.assert_serves();
}
