use std::time::Duration;

use bytes::Bytes;

use super::{FakeStore, LONG, connect, pattern};
use crate::{Confirmation, Dtype, Error, LocationState, Metadata, PutOptions};
use hoplite_core::Error as ObjectError;
use hoplite_core::block::publishable_unsealed;
use hoplite_core::node::{Confirm, Request as NodeRequest};
use hoplite_proto::local::Request;

const SIZES: [usize; 8] = [0, 1, 4095, 4096, 4097, 65_536, (1 << 20) + 1, (5 << 20) + 3];

#[tokio::test]
async fn objects_of_all_sizes_round_trip_in_every_way() {
    let store = FakeStore::start();
    let client = connect(&store).await;
    for size in SIZES {
        let id = format!("object-{size}");
        let bytes = pattern(size, 1);
        client.put(&id, &bytes).await.unwrap();
        let view = client.get(&id, LONG).await.unwrap();
        assert!(view[..] == bytes[..], "{size}");
        assert_eq!(view.size_bytes(), size as u64);
        assert!(client.get_vec(&id, LONG).await.unwrap() == bytes);
        let mut out = vec![7; size + 3];
        assert_eq!(client.get_into(&id, &mut out, LONG).await.unwrap(), size);
        assert!(out[..size] == bytes[..] && out[size..] == [7; 3]);
    }
    store.until("all references are back", |state| state.references() == 0).await;
}

#[tokio::test]
async fn views_of_small_objects_hold_no_references() {
    let store = FakeStore::start();
    let client = connect(&store).await;
    for size in [0, 1, 4096] {
        let bytes = pattern(size, 1);
        client.put(format!("{size}"), &bytes).await.unwrap();
        let view = client.get(format!("{size}"), LONG).await.unwrap();
        store.until("the reference is back", |state| state.references() == 0).await;
        assert!(view[..] == bytes[..]);
        assert_eq!(view.as_ptr().align_offset(64), 0);
    }
    client.put("large", &pattern(4097, 1)).await.unwrap();
    let view = client.get("large", LONG).await.unwrap();
    store.until("the put is done", |state| state.references() == 1).await;
    assert!(view[..] == pattern(4097, 1)[..]);
}

#[tokio::test]
async fn small_puts_are_not_confirmed_unless_asked_for_and_large_ones_are() {
    let store = FakeStore::start();
    let client = connect(&store).await;
    client.put("small", &[1; 100]).await.unwrap();
    store.until("the release of the small one", |state| state.references() == 0).await;
    let confirmed = |request: &Request| {
        matches!(
            request,
            Request::Node(
                NodeRequest::Seal { .. } | NodeRequest::Put { confirm: Confirm::Yes, .. }
            )
        )
    };
    assert_eq!(store.state().count(confirmed), 0);
    let options = PutOptions { confirm: Confirmation::Confirmed, ..PutOptions::default() };
    client.put_with("confirmed", &[1; 100], options.clone()).await.unwrap();
    assert_eq!(store.state().count(confirmed), 1);
    client.put("larger", &[1; 20_000]).await.unwrap();
    assert_eq!(store.state().count(confirmed), 1);
    client.put_with("larger, confirmed", &[1; 20_000], options).await.unwrap();
    assert_eq!(store.state().count(confirmed), 2);
    client.put("large", &[1; 65_536]).await.unwrap();
    assert_eq!(store.state().count(confirmed), 3);
    store.until("all releases", |state| state.references() == 0).await;
}

#[tokio::test]
async fn metadata_travels_and_is_checked_before_anything_is_sent() {
    let store = FakeStore::start();
    let client = connect(&store).await;
    let metadata = Metadata {
        dtype: Dtype::F32,
        shape: Some(vec![2, 3]),
        user: Bytes::from_static(b"mine"),
        ..Metadata::default()
    };
    let options = PutOptions { metadata: metadata.clone(), ..PutOptions::default() };
    client.put_with("array", &[0; 24], options.clone()).await.unwrap();
    assert_eq!(*client.get("array", LONG).await.unwrap().metadata(), metadata);
    let error = client.put_with("other", &[0; 23], options).await.unwrap_err();
    assert!(matches!(error, Error::Object(ObjectError::InvalidMetadata(_))), "{error}");
    assert!(client.put("", b"x").await.is_err());
    assert!(client.put(vec![7; 256], b"x").await.is_err());
    assert_eq!(
        store.state().count(|request| matches!(request, Request::Node(NodeRequest::Put { .. }))),
        1
    );
}

#[tokio::test]
async fn the_same_object_may_be_put_twice_but_no_other() {
    let store = FakeStore::start();
    let client = connect(&store).await;
    let bytes = pattern((4 << 20) + 5, 3);
    client.put("a", &bytes).await.unwrap();
    client.put("a", &bytes).await.unwrap();
    let already_exists = |result: crate::Result<()>| matches!(result, Err(Error::Object(ObjectError::AlreadyExists { id })) if id.as_bytes() == b"a");
    for changed in [0, 4 << 20, bytes.len() - 1] {
        let mut other = bytes.clone();
        other[changed] ^= 1;
        assert!(already_exists(client.put("a", &other).await), "{changed}");
    }
    assert!(already_exists(client.put("a", &bytes[1..]).await));
    let typed = Metadata { dtype: Dtype::U8, ..Metadata::default() };
    let options = PutOptions { metadata: typed, ..PutOptions::default() };
    assert!(already_exists(client.put_with("a", &bytes, options).await));
    for small in [&b""[..], b"small"] {
        client.put(small.len().to_string(), small).await.unwrap();
        client.put(small.len().to_string(), small).await.unwrap();
    }
    let other = client.put("5", b"other").await;
    assert!(
        matches!(other, Err(Error::Object(ObjectError::AlreadyExists { id })) if id.as_bytes() == b"5")
    );
    store.until("all references are back", |state| state.references() == 0).await;
    assert!(client.get("a", LONG).await.unwrap()[..] == bytes[..]);
}

#[tokio::test]
async fn a_writer_streams_and_is_aborted_unless_sealed() {
    let store = FakeStore::start();
    let client = connect(&store).await;
    let bytes = pattern(3 << 20, 5);
    let mut writer =
        client.create("stream", bytes.len() as u64, PutOptions::default()).await.unwrap();
    let mut reader = client.get_reader("stream", LONG).await.unwrap();
    let mut read = Vec::new();
    let mut out = vec![0; 300_000];
    for piece in bytes.chunks(1_000_001) {
        let (written, length) = tokio::join!(
            async {
                store.until("the reader waits", crate::tests::fake_store::State::is_waiting).await;
                writer.write(piece)
            },
            reader.read(&mut out, LONG)
        );
        written.unwrap();
        read.extend_from_slice(&out[..length.unwrap()]);
        let passed_on = publishable_unsealed(writer.written_bytes(), bytes.len() as u64);
        while (read.len() as u64) < passed_on {
            let length = reader.read(&mut out, LONG).await.unwrap();
            read.extend_from_slice(&out[..length]);
        }
        read.truncate(read.len());
    }
    assert!(store.state().count(|request| matches!(request, Request::Doorbell { .. })) > 0);
    writer.seal().await.unwrap();
    while reader.position_bytes() < reader.size_bytes() {
        let length = reader.read(&mut out, LONG).await.unwrap();
        read.extend_from_slice(&out[..length]);
    }
    assert_eq!(reader.read(&mut out, LONG).await.unwrap(), 0);
    assert!(read == bytes);

    let mut writer = client.create("aborted", 10, PutOptions::default()).await.unwrap();
    writer.write(b"12345").unwrap();
    let error = writer.write(b"678901").unwrap_err();
    assert!(matches!(error, Error::SizeMismatch { size_bytes: 10, written_bytes: 11 }));
    drop(writer);
    store.until("the abort", |state| !state.has("aborted")).await;
    let unfinished = client.create("short", 10, PutOptions::default()).await.unwrap();
    let error = unfinished.seal().await.unwrap_err();
    assert!(matches!(error, Error::SizeMismatch { size_bytes: 10, written_bytes: 0 }));
    store.until("the abort", |state| !state.has("short")).await;
    drop(reader);
    store.until("all references are back", |state| state.references() == 0).await;
}

#[tokio::test]
async fn copies_run_behind_bytes_that_arrive() {
    let store = FakeStore::start();
    let client = connect(&store).await;
    let bytes = pattern(100_000, 9);
    let copy = store.produce("a", &bytes, 4096);
    let mut out = vec![0; bytes.len()];
    let arriving = async {
        for (start, end) in [(4096, 40_960), (40_960, 81_920), (81_920, 100_000)] {
            store.until("a copy waits for more", crate::tests::fake_store::State::is_waiting).await;
            store.produce_more(copy, &bytes, start..end);
        }
    };
    let (length, ()) = tokio::join!(client.get_into("a", &mut out, LONG), arriving);
    assert_eq!(length.unwrap(), bytes.len());
    assert!(out == bytes);

    let copy = store.produce("lost", &bytes, 4096);
    let (result, ()) = tokio::join!(client.get_vec("lost", LONG), async {
        store.until("a copy waits for more", crate::tests::fake_store::State::is_waiting).await;
        store.lose(copy);
    });
    assert!(matches!(result, Err(Error::Object(ObjectError::ObjectLost { .. }))));
    store.until("all references are back", |state| state.references() == 0).await;
}

#[tokio::test]
async fn a_buffer_that_is_too_small_is_refused() {
    let store = FakeStore::start();
    let client = connect(&store).await;
    client.put("a", &[1; 10]).await.unwrap();
    let error = client.get_into("a", &mut [0; 9], LONG).await.unwrap_err();
    assert!(matches!(error, Error::BufferTooSmall { needed_bytes: 10, given_bytes: 9 }));
    store.until("all references are back", |state| state.references() == 0).await;
}

#[tokio::test]
async fn objects_are_waited_for_located_listed_and_deleted() {
    let store = FakeStore::start();
    let client = connect(&store).await;
    client.put("a/1", b"x").await.unwrap();
    client.put("a/2", b"x").await.unwrap();
    client.put("b", b"x").await.unwrap();
    assert!(client.contains("b").await.unwrap());
    assert!(!client.contains("c").await.unwrap());
    assert_eq!(client.wait(["c", "b", "a/1"], 2, LONG).await.unwrap(), [1, 2]);
    assert_eq!(client.wait(["c"], 1, Duration::ZERO).await.unwrap(), [0_usize; 0]);
    assert!(client.wait(["c"], 2, LONG).await.is_err());
    let locations = client.locate("b", LONG).await.unwrap();
    assert_eq!(locations.locations[0].state, LocationState::Complete);
    let page = client.list("a/", "", 1).await.unwrap();
    assert_eq!(page.objects[0].id.as_bytes(), b"a/1");
    let page = client.list("a/", page.next.unwrap(), 1).await.unwrap();
    assert_eq!(page.objects[0].id.as_bytes(), b"a/2");
    assert_eq!(page.next, None);
    assert!(client.list([0; 256], "", 1).await.is_err());
    assert_eq!(client.describe("b").await.unwrap().shard, "fake:1");
    assert_eq!(client.status().await.unwrap().node, "fake");
    let view = client.get("b", LONG).await.unwrap();
    assert_eq!(client.delete(["a/1", "b", "c"], LONG).await.unwrap(), 2);
    assert!(!client.contains("b").await.unwrap());
    assert_eq!(&view[..], b"x");
    let many = vec!["x"; (1 << 16) + 1];
    assert_eq!(client.delete(many, LONG).await.unwrap(), 0, "it is divided");
}

#[tokio::test]
async fn a_watch_shows_the_latest_state_and_unsubscribes() {
    let store = FakeStore::start();
    let client = connect(&store).await;
    let mut watch = client.watch("a").await.unwrap();
    assert!(watch.next().await.unwrap().unwrap().object.is_none());
    let error = watch.next_within(std::time::Duration::from_millis(20)).await.unwrap_err();
    assert!(matches!(error, Error::Object(ObjectError::Timeout { .. })), "{error}");
    client.put("a", b"x").await.unwrap();
    loop {
        if watch.next().await.unwrap().unwrap().is_available() {
            break;
        }
    }
    drop(watch);
    store
        .until("the end of the subscription", |state| {
            state.count(|request| matches!(request, Request::Node(NodeRequest::Unsubscribe { .. })))
                == 1
        })
        .await;
}
