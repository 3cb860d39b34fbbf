use std::time::{Duration, Instant};

use hoplite_client::blocking::Client;
use hoplite_client::{ConnectFailure, ConnectOptions, Error, PutOptions, ReduceOp};
use hoplite_core::Error as ObjectError;
use hoplite_tests::TIME_LIMIT;
use hoplite_tests::cluster::{Cluster, Plan, await_that, refusal};
use hoplite_tests::contents::bytes;

const SHORT: Duration = Duration::from_millis(150);
const MIB: usize = 1 << 20;

fn within(timeout: Duration) -> PutOptions {
    PutOptions { timeout, ..PutOptions::default() }
}

fn cluster(nodes: usize, memory: &str, store_arguments: &[&str]) -> Cluster {
    let store_arguments = store_arguments.iter().map(|argument| (*argument).to_owned()).collect();
    Cluster::start(Plan { nodes, memory: memory.to_owned(), store_arguments, ..Plan::default() })
}

fn refused_for_room(mut get: impl FnMut() -> ObjectError) -> ObjectError {
    let mut refused = None;
    await_that("an answer of the directory in time", || {
        refused = Some(get()).filter(|error| !matches!(error, ObjectError::Timeout { .. }));
        refused.is_some()
    });
    refused.expect("it was refused")
}

#[test]
fn the_copy_that_was_used_longest_ago_is_evicted() {
    let memory_of = [(1, "10MiB".to_owned())].into();
    let mut cluster = Cluster::start(Plan { memory_of, ..Plan::default() });
    let (origin, client) = (cluster.client(0), cluster.client(1));
    let contents = |number: u64| bytes(number, 3 * MIB);
    for number in 0..4 {
        origin.put(format!("object-{number}"), &contents(number)).unwrap();
    }
    let get = |number: u64| drop(client.get(format!("object-{number}"), TIME_LIMIT).unwrap());
    for number in 0..3 {
        get(number);
    }
    assert_eq!(client.status().unwrap().evictions, 0);
    get(0);
    get(3);
    let status = client.status().unwrap();
    assert_eq!((status.evictions, status.copies, status.pinned_bytes), (1, 3, 0));
    let holders = |number: u64| {
        client.locate(format!("object-{number}"), TIME_LIMIT).unwrap().locations.len()
    };
    await_that("the directory to know", || [0, 1, 2, 3].map(holders) == [2, 1, 2, 2]);
    assert!(client.get("object-1", TIME_LIMIT).unwrap()[..] == contents(1)[..]);
    assert_eq!(client.status().unwrap().evictions, 2);
    cluster.assert_serves();
}

#[test]
fn many_ids_of_one_user_do_not_block_the_calls_of_others() {
    let cluster = cluster(2, "64MiB", &[]);
    let (origin, other) = (cluster.client(0), cluster.client(1));
    origin.put("there", &bytes(1, 3 * MIB)).unwrap();
    let waits: Vec<Client> = (0..2).map(|_| cluster.client(1)).collect();
    let ids = |wait: usize| (0..1 << 16).map(move |number| format!("none/{wait}/{number}"));
    let is_refused = |error: &Error| error.to_string().contains("ids of a user's open requests");
    let wait = |wait: usize, client: &Client| {
        let mut outcome = None;
        await_that("room for the ids of a call", || {
            let waited = client.wait(ids(wait), 1, TIME_LIMIT);
            outcome = Some(waited).filter(|waited| !waited.as_ref().is_err_and(is_refused));
            outcome.is_some()
        });
        outcome.expect("it had room")
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = waits
            .iter()
            .enumerate()
            .map(|(number, client)| {
                scope.spawn({
                    let wait = &wait;
                    move || wait(number, client)
                })
            })
            .collect();
        await_that("calls that have all ids of the user", || {
            other.wait(["a", "b"], 1, SHORT).is_err_and(|error| is_refused(&error))
        });
        assert!(other.get("there", TIME_LIMIT).unwrap()[..] == bytes(1, 3 * MIB)[..]);
        assert!(matches!(refusal(other.get("nowhere", SHORT)), ObjectError::Timeout { .. }));
        other.put("made", b"here").unwrap();
        other.delete(["made"], TIME_LIMIT).unwrap();
        origin.put("none/0/0", b"x").unwrap();
        origin.put("none/1/0", b"x").unwrap();
        for thread in threads {
            assert_eq!(thread.join().unwrap().unwrap(), [0]);
        }
    });
    await_that("room for ids", || other.wait(["a", "b"], 1, SHORT).is_ok());
}

#[test]
fn pinned_objects_fill_the_arena_until_a_delete_makes_room() {
    let mut cluster = cluster(1, "10MiB", &[]);
    let client = cluster.client(0);
    for number in 0..3 {
        client.put(format!("object-{number}"), &bytes(number, 3 * MIB)).unwrap();
    }
    let started = Instant::now();
    let error = refusal(client.put_with("more", &bytes(9, 3 * MIB), within(SHORT)));
    let ObjectError::StoreFull { needed_bytes, free_bytes, capacity_bytes, .. } = error else {
        panic!("{error}")
    };
    assert!(started.elapsed() >= SHORT, "it waits as long as it may");
    assert_eq!(capacity_bytes, 10 * MIB as u64);
    assert!(
        needed_bytes >= 3 * MIB as u64 && free_bytes < needed_bytes,
        "{needed_bytes}, {free_bytes}"
    );
    client.put("small", &bytes(1, 1000)).expect("what fits is put");

    std::thread::scope(|scope| {
        let waiting = scope
            .spawn(|| cluster.client(0).put_with("more", &bytes(9, 3 * MIB), within(TIME_LIMIT)));
        await_that("the client", || client.status().unwrap().clients == 2);
        client.delete(["object-1"], TIME_LIMIT).unwrap();
        waiting.join().unwrap().expect("the delete makes room");
    });
    assert!(client.get("more", TIME_LIMIT).unwrap()[..] == bytes(9, 3 * MIB)[..]);
    assert_eq!(client.status().unwrap().evictions, 0, "what was put is not evicted");
    assert!(client.get("object-0", TIME_LIMIT).unwrap()[..] == bytes(0, 3 * MIB)[..]);
    cluster.assert_serves();
}

#[test]
fn a_get_on_a_full_node_fails_and_the_node_goes_on() {
    let memory_of = [(1, "4MiB".to_owned())].into();
    let mut cluster = Cluster::start(Plan { memory_of, ..Plan::default() });
    let (origin, full) = (cluster.client(0), cluster.client(1));
    full.put("pinned", &bytes(1, 2 * MIB)).unwrap();
    origin.put("object", &bytes(2, 3 * MIB)).unwrap();
    let error = refused_for_room(|| refusal(full.get("object", SHORT)));
    assert!(
        matches!(error, ObjectError::StoreFull { needed_bytes, .. } if needed_bytes > 3 * MIB as u64),
        "{error}"
    );
    let mut out = vec![0; 3 * MIB];
    let error = refused_for_room(|| refusal(full.get_into("object", &mut out, SHORT)));
    assert!(matches!(error, ObjectError::StoreFull { .. }), "{error}");
    assert!(origin.get("object", TIME_LIMIT).unwrap()[..] == bytes(2, 3 * MIB)[..]);
    std::thread::scope(|scope| {
        let waiting =
            scope.spawn(|| cluster.client(1).get("object", TIME_LIMIT).map(|view| view.to_vec()));
        await_that("the client", || full.status().unwrap().clients == 2);
        origin.delete(["pinned"], TIME_LIMIT).unwrap();
        assert!(waiting.join().unwrap().unwrap() == bytes(2, 3 * MIB));
    });
    cluster.assert_serves();
}

#[test]
fn unfreed_objects_fill_the_memory_and_deletes_free_it() {
    let mut cluster = cluster(1, "16MiB", &[]);
    let client = cluster.client(0);
    for round in 0..2 {
        let mut ids = Vec::new();
        let began = Instant::now();
        let error = loop {
            assert!(began.elapsed() < TIME_LIMIT, "the memory is not full in time");
            let number = ids.len();
            let id = format!("object-{number}");
            assert!(number < 10_000, "the memory is never full");
            let size = 1 + number * 7919 % (300 << 10);
            match client.put_with(&id, &bytes(number as u64, size), within(SHORT)) {
                Ok(()) => ids.push((id, size)),
                Err(Error::Object(ObjectError::Timeout { .. })) => {}
                Err(error) => break refusal::<()>(Err(error)),
            }
        };
        assert!(matches!(error, ObjectError::StoreFull { .. }), "round {round}: {error}");
        assert!(ids.len() > 50, "{} objects fit", ids.len());
        for (number, (id, size)) in ids.iter().enumerate() {
            assert!(
                client.get(id, TIME_LIMIT).unwrap()[..] == bytes(number as u64, *size)[..],
                "{id}"
            );
        }
        let (even, odd): (Vec<_>, Vec<_>) =
            ids.iter().enumerate().partition(|(number, _)| number % 2 == 0);
        for half in [even, odd] {
            let deleted = client.delete(half.iter().map(|(_, (id, _))| id), TIME_LIMIT).unwrap();
            assert_eq!(deleted, half.len());
        }
        cluster.await_empty(0);
        let all = 15 * MIB;
        client.put("everything", &bytes(1, all)).expect("the memory is in one piece again");
        client.delete(["everything"], TIME_LIMIT).unwrap();
    }
    cluster.assert_serves();
}

#[test]
fn clients_are_limited() {
    let mut cluster = cluster(1, "4MiB", &["--max-clients=3"]);
    let mut clients = vec![cluster.client(0)];
    await_that("the client of the start gone", || clients[0].status().unwrap().clients == 1);
    clients.extend((0..2).map(|_| cluster.client(0)));
    for client in &clients {
        client.put("object", b"contents").expect("all of them are served");
    }
    let options = || ConnectOptions { socket: cluster.socket(0), ..ConnectOptions::default() };
    let Err(Error::Connect { kind: ConnectFailure::Refused(error), .. }) =
        Client::connect_with(options())
    else {
        panic!("a fourth client is refused");
    };
    assert!(matches!(error, ObjectError::LimitExceeded { maximum: 3, .. }), "{error}");
    clients.pop();
    let watcher = &clients[0];
    await_that("the client gone", || watcher.status().unwrap().clients == 2);
    Client::connect_with(options()).expect("there is room again");
    clients.truncate(1);
    await_that("the others gone", || clients[0].status().unwrap().clients == 1);
    cluster.assert_serves();
}

#[test]
fn calls_of_a_client_are_limited() {
    let mut cluster = cluster(1, "4MiB", &["--max-calls=8"]);
    let client = cluster.client(0);
    std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..8)
            .map(|number| {
                let client = client.clone();
                scope.spawn(move || {
                    client.get(format!("object-{number}"), TIME_LIMIT).map(|view| view.len())
                })
            })
            .collect();
        let other = cluster.client(0);
        await_that("eight calls", || other.status().unwrap().shards[0].waiting_queries == 8);
        let error = refusal(client.get("ninth", TIME_LIMIT));
        assert!(matches!(error, ObjectError::LimitExceeded { maximum: 8, .. }), "{error}");
        let error = refusal(client.create("tenth", 10, PutOptions::default()));
        assert!(matches!(error, ObjectError::LimitExceeded { maximum: 8, .. }), "{error}");
        for number in 0..8 {
            other.put(format!("object-{number}"), b"12345").expect("another client is served");
        }
        for get in waiting {
            assert_eq!(get.join().unwrap().unwrap(), 5);
        }
    });
    client.put("eleventh", b"1").expect("there is room again");
    cluster.assert_serves();
}

#[test]
fn references_of_a_client_are_limited() {
    let mut cluster = cluster(2, "4MiB", &["--max-references=4"]);
    let (origin, client) = (cluster.client(0), cluster.client(1));
    let contents = [7; 5000];
    for number in 0..5 {
        origin.put(format!("object-{number}"), &contents).unwrap();
    }
    let get = |number: usize| client.get(format!("object-{number}"), TIME_LIMIT);
    let mut views: Vec<_> = (0..4).map(|number| get(number).unwrap()).collect();
    for number in [3, 4] {
        let error = refusal(get(number));
        assert!(matches!(error, ObjectError::LimitExceeded { maximum: 4, .. }), "{error}");
    }
    client.create("new", 10, PutOptions::default()).expect("puts have references of their own");
    assert_eq!(views[0][..], contents);
    views.pop();
    assert_eq!(get(4).expect("there is room again")[..], contents);
    drop(views);
    cluster.assert_serves();
}

#[test]
fn copies_in_a_store_are_limited() {
    let mut cluster = cluster(1, "4MiB", &["--max-objects=3"]);
    let client = cluster.client(0);
    for number in 0..3 {
        client.put(format!("object-{number}"), b"contents").unwrap();
    }
    let error = refusal(client.put_with("fourth", b"contents", within(SHORT)));
    assert!(error.is_retryable(), "{error}");
    client.delete(["object-0"], TIME_LIMIT).unwrap();
    client.put("fourth", b"contents").expect("there is room again");
    client.delete(["object-1", "object-2", "fourth"], TIME_LIMIT).unwrap();
    cluster.assert_serves();
}

#[test]
fn ids_in_a_request_are_limited() {
    let mut cluster = cluster(1, "4MiB", &["--max-ids=10"]);
    let client = cluster.client(0);
    let ids: Vec<String> = (0..11).map(|number| format!("object-{number}")).collect();
    assert_eq!(client.delete(&ids, TIME_LIMIT).unwrap(), 0);
    assert_eq!(client.wait(&ids, 1, SHORT).unwrap(), [0_usize; 0]);
    let reduce = |ids: &[String]| refusal(client.reduce("target", ids, ReduceOp::Sum, SHORT));
    let error = reduce(&ids);
    assert!(matches!(error, ObjectError::LimitExceeded { maximum: 10, .. }), "{error}");
    let error = reduce(&ids[..10]);
    assert!(matches!(error, ObjectError::Timeout { .. }), "{error}");
    cluster.assert_serves();
}

#[test]
fn objects_in_a_shard_are_limited() {
    let mut cluster = Cluster::start(Plan {
        shard_arguments: vec!["--max-objects=4".to_owned()],
        ..Plan::default()
    });
    let client = cluster.client(0);
    for number in 0..4 {
        client.put(format!("object-{number}"), &bytes(number, 100_000)).unwrap();
    }
    let error = refusal(client.put_with("fifth", &bytes(5, 100_000), within(TIME_LIMIT)));
    assert!(matches!(error, ObjectError::LimitExceeded { maximum: _, .. }), "{error}");
    assert!(cluster.client(1).get("object-2", TIME_LIMIT).unwrap()[..] == bytes(2, 100_000)[..]);
    let ids: Vec<String> = (0..4).map(|number| format!("object-{number}")).collect();
    client.delete(&ids, TIME_LIMIT).unwrap();
    cluster.assert_serves();
}
