use std::borrow::Cow;
use std::time::Duration;

use hoplite_client::{Confirmation, Dtype, Error, Metadata, NewObject, ObjectId, PutOptions};
use hoplite_core::Error as ObjectError;
use hoplite_tests::TIME_LIMIT;
use hoplite_tests::cluster::{Cluster, Plan, await_that, refusal};
use hoplite_tests::contents::bytes;

const SHORT: Duration = Duration::from_millis(150);
/// Sizes around the limits of views without a reference (4 KiB) and of inline puts (8 KiB).
const SIZES: [usize; 7] = [0, 1, 4096, 4097, 8192, 8193, 100_000];

fn options() -> PutOptions {
    PutOptions { timeout: TIME_LIMIT, ..PutOptions::default() }
}

fn is_timeout<T>(result: &hoplite_client::Result<T>) -> bool {
    matches!(result, Err(Error::Object(ObjectError::Timeout { .. })))
}

#[test]
fn many_objects_of_all_sizes_reach_another_node() {
    let cluster = Cluster::of(2);
    let (origin, other) = (cluster.client(0), cluster.client(1));
    let contents: Vec<_> =
        (0..1000).map(|number| bytes(number, SIZES[number as usize % 7])).collect();
    let ids: Vec<_> = (0..1000).map(|number| format!("object-{number}")).collect();
    let put = origin.put_many(ids.iter().zip(&contents), options()).unwrap();
    assert!(put.iter().all(Result::is_ok) && put.len() == 1000, "{put:?}");
    for client in [&origin, &other] {
        let views = client.get_many(&ids, TIME_LIMIT).unwrap();
        assert_eq!(views.len(), 1000);
        for (view, contents) in views.into_iter().zip(&contents) {
            assert!(view.unwrap()[..] == contents[..]);
        }
    }
    let again = origin.put_many(ids.iter().zip(&contents), options()).unwrap();
    assert!(again.iter().all(Result::is_ok), "{again:?}");
    let deleted =
        other.delete_many(ids.iter().map(String::as_str).chain(["absent"]), TIME_LIMIT).unwrap();
    let deleted: Vec<bool> = deleted.into_iter().map(Result::unwrap).collect();
    assert!(deleted[..1000].iter().all(|was_there| *was_there) && !deleted[1000]);
    await_that("no copy and no reference", || origin.status().unwrap().copies == 0);
    cluster.await_empty(1);
}

#[test]
fn each_object_has_its_own_result() {
    let cluster = Cluster::of(1);
    let client = cluster.client(0);
    client.put("taken", b"before").unwrap();
    let put = client.put_many([("a", "1"), ("taken", "after"), ("b", "2")], options()).unwrap();
    assert!(put[0].is_ok() && put[2].is_ok());
    assert!(matches!(&put[1], Err(Error::Object(ObjectError::AlreadyExists { .. }))), "{put:?}");
    let views = client.get_many(["a", "absent", "taken"], SHORT).unwrap();
    assert_eq!(views[0].as_ref().unwrap()[..], *b"1");
    assert!(is_timeout(&views[1]), "{views:?}");
    assert_eq!(views[2].as_ref().unwrap()[..], *b"before");
    let wrong = Metadata { dtype: Dtype::F32, shape: Some(vec![3]), ..Metadata::default() };
    let object = |id: &str, metadata| NewObject {
        id: ObjectId::new(id).unwrap(),
        bytes: Cow::Borrowed(&[0; 8]),
        metadata,
    };
    let objects = vec![object("wrong", wrong), object("right", Metadata::default())];
    let put = client.put_many_with(objects, options()).unwrap();
    assert!(
        matches!(put[0], Err(Error::Object(ObjectError::InvalidMetadata(_)))) && put[1].is_ok(),
        "{put:?}"
    );
}

#[test]
fn a_get_of_many_waits_for_objects_that_do_not_exist_yet() {
    let cluster = Cluster::of(2);
    let (origin, other) = (cluster.client(0), cluster.client(1));
    let ids: Vec<_> = (0..600).map(|number| format!("later-{number}")).collect();
    std::thread::scope(|scope| {
        let get = scope.spawn(|| other.get_many(&ids, TIME_LIMIT).unwrap());
        for id in ids.iter().rev() {
            origin.put(id, id.as_bytes()).unwrap();
        }
        for (view, id) in get.join().unwrap().into_iter().zip(&ids) {
            assert_eq!(view.unwrap()[..], *id.as_bytes());
        }
    });
}

#[test]
fn batched_puts_wait_for_space_while_others_complete() {
    let cluster = Cluster::start(Plan { memory: "4MiB".to_owned(), ..Plan::default() });
    let client = cluster.client(0);
    let large = bytes(1, 3 << 20);
    client.put("large", &large).unwrap();
    let small = vec![7; 8192];
    let ids: Vec<_> = (0..400).map(|number| format!("small-{number}")).collect();
    let short = PutOptions { timeout: SHORT, ..PutOptions::default() };
    let put = client.put_many(ids.iter().map(|id| (id, &small)), short).unwrap();
    let full = |result: &hoplite_client::Result<()>| {
        matches!(result, Err(Error::Object(ObjectError::StoreFull { .. })))
    };
    let (stored, refused) =
        (put.iter().filter(|put| put.is_ok()).count(), put.iter().filter(|put| full(put)));
    assert_eq!(stored + refused.count(), 400);
    assert!((50..150).contains(&stored), "{stored}");
    client.delete(["large"], TIME_LIMIT).unwrap();
    let confirmed = PutOptions { confirm: Confirmation::Confirmed, ..options() };
    let put = client.put_many(ids.iter().map(|id| (id, &small)), confirmed).unwrap();
    assert!(put.iter().all(Result::is_ok), "{put:?}");
}

#[test]
fn too_many_objects_are_refused_before_anything_is_done() {
    let cluster = Cluster::of(1);
    let client = cluster.client(0);
    let too_many = |error| match error {
        ObjectError::LimitExceeded { what, maximum } => (what.into_owned(), maximum),
        error => panic!("{error}"),
    };
    let expected = ("ids in a request".to_owned(), 65_536);
    let ids = || (0..10_000_000).map(|number| format!("{number}"));
    assert_eq!(too_many(refusal(client.get_many(ids(), TIME_LIMIT))), expected);
    assert_eq!(too_many(refusal(client.delete_many(ids(), TIME_LIMIT))), expected);
    let objects = ids().take(65_537).map(|id| (id, []));
    assert_eq!(too_many(refusal(client.put_many(objects, options()))), expected);
    assert_eq!(client.status().unwrap().copies, 0);
    let most: Vec<_> = ids().take(65_536).collect();
    assert!(
        client
            .put_many(most.iter().map(|id| (id, id)), options())
            .unwrap()
            .iter()
            .all(Result::is_ok)
    );
    assert!(client.get_many(&most, TIME_LIMIT).unwrap().iter().all(Result::is_ok));
    let deleted = client.delete_many(&most, TIME_LIMIT).unwrap();
    assert!(deleted.into_iter().all(Result::unwrap));
}
