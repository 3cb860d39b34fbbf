use std::time::{Duration, Instant};

use hoplite_client::{Confirmation, Dtype, Error, Metadata, PutOptions};
use hoplite_core::{Error as ObjectError, Operation};
use hoplite_tests::cluster::{Cluster, Plan, await_that, refusal};
use hoplite_tests::contents::bytes;

use super::TIME_LIMIT;

const SIZES: [usize; 2] = [1000, 300_000];

fn confirmed() -> PutOptions {
    PutOptions { confirm: Confirmation::Confirmed, ..PutOptions::default() }
}

#[test]
fn an_unknown_object_is_a_timeout() {
    let cluster = Cluster::of(1);
    let client = cluster.client(0);
    let started = Instant::now();
    for timeout in [Duration::ZERO, Duration::from_millis(120)] {
        let is_right = |error: ObjectError, expected: Operation| match error {
            ObjectError::Timeout { operation, waited, .. } => {
                operation == expected && waited >= timeout
            }
            _ => false,
        };
        assert!(is_right(refusal(client.get("none", timeout)), Operation::Get));
        assert!(is_right(refusal(client.get_into("none", &mut [0; 8], timeout)), Operation::Get));
        assert!(is_right(refusal(client.get_vec("none", timeout)), Operation::Get));
        assert!(is_right(refusal(client.get_reader("none", timeout)), Operation::Get));
        assert!(client.wait(["none", "neither"], 1, timeout).unwrap().is_empty());
        assert_eq!(client.delete(["none"], TIME_LIMIT).unwrap(), 0);
    }
    let timeout = Duration::from_millis(120);
    let error = refusal(client.locate("none", timeout));
    assert!(matches!(error, ObjectError::Timeout { operation: Operation::Locate, .. }), "{error}");
    assert!(!client.contains("none").unwrap());
    assert!(started.elapsed() < TIME_LIMIT, "nothing waits longer than it was asked to");
    assert_eq!(client.status().unwrap().shards[0].waiting_queries, 0);
}

#[test]
fn ids_have_1_to_255_bytes() {
    let mut cluster = Cluster::of(1);
    let client = cluster.client(0);
    for length in [0, 256, 100_000] {
        let id = vec![b'x'; length];
        let is_right = |error| error == ObjectError::InvalidId { length_bytes: length };
        assert!(is_right(refusal(client.put(&id, b"1"))));
        assert!(is_right(refusal(client.create(&id, 1, PutOptions::default()))));
        assert!(is_right(refusal(client.get(&id, TIME_LIMIT))));
        assert!(is_right(refusal(client.get_into(&id, &mut [], TIME_LIMIT))));
        assert!(is_right(refusal(client.delete([&id], TIME_LIMIT))));
        assert!(is_right(refusal(client.wait([&id], 1, TIME_LIMIT))));
        assert!(is_right(refusal(client.contains(&id))));
        assert!(is_right(refusal(client.locate(&id, TIME_LIMIT))));
        assert!(is_right(refusal(client.watch(&id))));
        assert!(is_right(refusal(client.describe(&id))));
    }
    for id in [vec![0xff; 255], vec![0], b"\n\xf0".to_vec()] {
        client.put(&id, b"1").unwrap();
        assert_eq!(&client.get(&id, TIME_LIMIT).unwrap()[..], b"1");
    }
    cluster.assert_serves();
}

#[test]
fn an_id_is_put_once_on_one_node() {
    let mut cluster = Cluster::of(1);
    let client = cluster.client(0);
    for size in SIZES {
        let id = format!("object-{size}");
        let first = bytes(1, size);
        let exists = |error| matches!(error, ObjectError::AlreadyExists { id: named } if named.as_bytes() == id.as_bytes());
        client.put(&id, &first).unwrap();
        client.put(&id, &first).expect("the same object may be put again");
        client.put_with(&id, &first, confirmed()).expect("the same object may be put again");
        let mut other = first.clone();
        other[size - 1] ^= 1;
        assert!(exists(refusal(client.put(&id, &other))), "other bytes");
        assert!(exists(refusal(client.put(&id, &first[1..]))), "less");
        assert!(exists(refusal(client.put(&id, b""))), "nothing");
        assert!(exists(refusal(client.put(&id, &bytes(1, size + 1)))), "more");
        let metadata = Metadata { dtype: Dtype::U8, ..Metadata::default() };
        let typed = PutOptions { metadata, ..PutOptions::default() };
        assert!(exists(refusal(client.put_with(&id, &first, typed))), "another type");
        assert!(client.get(&id, TIME_LIMIT).unwrap()[..] == first[..]);
        assert_eq!(client.delete([&id], TIME_LIMIT).unwrap(), 1);
    }
    await_that("all memory back", || client.status().unwrap().copies == 0);
    cluster.assert_serves();
}

#[test]
fn an_id_is_put_once_on_two_nodes() {
    let mut cluster = Cluster::of(2);
    let (one, other) = (cluster.client(0), cluster.client(1));
    for size in SIZES {
        let id = format!("object-{size}");
        let first = bytes(1, size);
        let exists = |error| matches!(error, ObjectError::AlreadyExists { id: named } if named.as_bytes() == id.as_bytes());
        one.put_with(&id, &first, confirmed()).unwrap();
        let conflicts = other.status().unwrap().put_conflicts;
        assert!(exists(refusal(other.put_with(&id, &bytes(2, size), confirmed()))), "other bytes");
        assert!(
            exists(refusal(other.put_with(&id, &bytes(1, size + 1), confirmed()))),
            "another size"
        );
        assert_eq!(other.status().unwrap().put_conflicts, conflicts + 2);
        other.put_with(&id, &first, confirmed()).expect("the same object may be put again");
        assert!(
            exists(refusal(other.put_with(&id, &bytes(2, size), confirmed()))),
            "other bytes, again"
        );
        for client in [&one, &other] {
            assert!(client.get(&id, TIME_LIMIT).unwrap()[..] == first[..]);
        }
        assert_eq!(other.delete([&id], TIME_LIMIT).unwrap(), 1);
        for client in [&one, &other] {
            await_that("all memory back", || client.status().unwrap().copies == 0);
        }
    }
    cluster.assert_serves();
}

#[test]
fn a_second_small_put_fails_also_without_waiting() {
    let mut cluster = Cluster::of(2);
    let (one, other) = (cluster.client(0), cluster.client(1));
    one.put_with("small", b"first", confirmed()).unwrap();
    other.put("small", b"other").expect("it does not wait for the directory");
    await_that("the conflict", || other.status().unwrap().put_conflicts == 1);
    assert_eq!(&other.get("small", TIME_LIMIT).unwrap()[..], b"first");
    cluster.assert_serves();
}

#[test]
fn a_put_during_another_waits_for_its_bytes() {
    let mut cluster = Cluster::of(3);
    let size = 1 << 20;
    let first = bytes(1, size);
    let mut writer =
        cluster.client(0).create("object", size as u64, PutOptions::default()).unwrap();
    writer.write(&first[..size / 2]).unwrap();
    let observer = cluster.client(0);
    await_that("the directory to know it", || {
        observer.describe("object").unwrap().locations.object.is_some()
    });
    std::thread::scope(|scope| {
        let put = |node: usize, contents: Vec<u8>| {
            let client = cluster.client(node);
            scope.spawn(move || client.put("object", &contents))
        };
        let (equal, different) = (put(1, first.clone()), put(2, bytes(2, size)));
        for node in [1, 2] {
            await_that("a copy", || cluster.client(node).status().unwrap().copies == 1);
        }
        writer.write(&first[size / 2..]).unwrap();
        writer.seal().unwrap();
        equal.join().unwrap().expect("the same bytes");
        let error = refusal(different.join().unwrap());
        assert!(matches!(error, ObjectError::AlreadyExists { .. }), "{error}");
    });
    for node in 0..3 {
        assert!(cluster.client(node).get("object", TIME_LIMIT).unwrap()[..] == first[..]);
    }
    cluster.assert_serves();
}

#[test]
fn empty_objects_are_objects() {
    let mut cluster = Cluster::of(2);
    let (one, other) = (cluster.client(0), cluster.client(1));
    let shape = Metadata {
        dtype: Dtype::F32,
        shape: Some(vec![3, 0]),
        user: b"note".to_vec().into(),
        ..Metadata::default()
    };
    one.put_with("empty", b"", PutOptions { metadata: shape.clone(), ..confirmed() }).unwrap();
    one.put_with("empty", b"", PutOptions { metadata: shape.clone(), ..confirmed() }).unwrap();
    for client in [&one, &other] {
        let view = client.get("empty", TIME_LIMIT).unwrap();
        assert_eq!((&view[..], view.metadata()), (&b""[..], &shape));
        assert_eq!(client.get_into("empty", &mut [], TIME_LIMIT).unwrap(), 0);
        assert_eq!(
            client.get_reader("empty", TIME_LIMIT).unwrap().read(&mut [0; 4], TIME_LIMIT).unwrap(),
            0
        );
        assert!(client.contains("empty").unwrap());
        assert_eq!(client.wait(["empty"], 1, TIME_LIMIT).unwrap(), [0]);
    }
    assert!(matches!(refusal(other.put("empty", b"x")), ObjectError::AlreadyExists { .. }));
    assert_eq!(one.delete(["empty"], TIME_LIMIT).unwrap(), 1);
    let writer = other.create("empty", 0, PutOptions::default()).unwrap();
    writer.seal().expect("an empty object can be written in no pieces");
    assert_eq!(one.get("empty", TIME_LIMIT).unwrap().len(), 0);
    cluster.assert_serves();
}

#[test]
fn objects_larger_than_the_arena_are_refused_at_once() {
    let small = [(1, "1MiB".to_owned())].into();
    let mut cluster = Cluster::start(Plan { memory_of: small, ..Plan::default() });
    let (large, small) = (cluster.client(0), cluster.client(1));
    let contents = bytes(3, 2 << 20);
    for (size, error) in [
        (2 << 20, refusal(small.put("object", &contents))),
        (1 << 20, refusal(small.create("object", 1 << 20, PutOptions::default()))),
        (u64::MAX, refusal(small.create("object", u64::MAX, PutOptions::default()))),
    ] {
        let ObjectError::ObjectTooLarge { size_bytes, limit_bytes, .. } = error else {
            panic!("{error}")
        };
        assert_eq!(size_bytes, size);
        assert!(limit_bytes < 1 << 20, "the header needs room too");
    }
    large.put("object", &contents).unwrap();
    let error = refusal(small.get("object", TIME_LIMIT));
    assert!(
        matches!(error, ObjectError::ObjectTooLarge { size_bytes, .. } if size_bytes == 2 << 20),
        "{error}"
    );
    assert!(large.get("object", TIME_LIMIT).unwrap()[..] == contents[..]);
    cluster.assert_serves();
}

#[test]
fn objects_above_the_configured_limit_are_refused() {
    let store_arguments = vec!["--max-object=1000".to_owned()];
    let cluster = Cluster::start(Plan { nodes: 1, store_arguments, ..Plan::default() });
    let client = cluster.client(0);
    client.put("fits", &[0; 1000]).unwrap();
    let error = refusal(client.put("too large", &[0; 1001]));
    assert!(matches!(error, ObjectError::ObjectTooLarge { limit_bytes: 1000, .. }), "{error}");
}

#[test]
fn inconsistent_requests_are_refused() {
    let mut cluster = Cluster::of(1);
    let client = cluster.client(0);
    let free = client.status().unwrap().free_bytes;
    let mut writer = client.create("short", 10, PutOptions::default()).unwrap();
    writer.write(b"12345").unwrap();
    let error = writer.write(b"123456").unwrap_err();
    assert!(matches!(error, Error::SizeMismatch { size_bytes: 10, written_bytes: 11 }), "{error}");
    let error = writer.seal().unwrap_err();
    assert!(matches!(error, Error::SizeMismatch { size_bytes: 10, written_bytes: 5 }), "{error}");
    await_that("the object aborted", || client.status().unwrap().free_bytes == free);

    client.put("object", b"12345").unwrap();
    let error = client.get_into("object", &mut [0; 4], TIME_LIMIT).unwrap_err();
    assert!(matches!(error, Error::BufferTooSmall { needed_bytes: 5, given_bytes: 4 }), "{error}");

    let error = refusal(client.wait(["object"], 2, TIME_LIMIT));
    assert!(matches!(error, ObjectError::InvalidRequest { .. }), "{error}");
    let metadata = Metadata { dtype: Dtype::F64, shape: Some(vec![2]), ..Metadata::default() };
    let error = refusal(client.put_with(
        "typed",
        b"12345",
        PutOptions { metadata, ..PutOptions::default() },
    ));
    assert!(matches!(error, ObjectError::InvalidMetadata(_)), "{error}");
    cluster.assert_serves();
}
