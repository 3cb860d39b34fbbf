use std::os::unix::net::UnixListener;
use std::time::Duration;

use hoplite_core::node::Request as NodeRequest;
use hoplite_core::{Error as ObjectError, Version};
use hoplite_proto::local::Request;
use hoplite_proto::{PROTOCOL_VERSION, v1};

use super::LONG;
use super::fake_store::{CAPACITY_BYTES, FakeStore, Greeting};
use crate::{
    Client, ConnectFailure, ConnectOptions, DeleteOptions, DeleteWait, Error, Lifetime, Metadata,
    Owner, PutOptions, Replicas, Ttl, TtlAction,
};

async fn failure(socket: impl AsRef<std::path::Path>) -> ConnectFailure {
    failure_within(LONG, socket).await
}

async fn failure_within(timeout: Duration, socket: impl AsRef<std::path::Path>) -> ConnectFailure {
    let path = socket.as_ref().to_owned();
    let options = ConnectOptions { socket: path.clone(), timeout, ..Default::default() };
    match Client::connect_with(options).await {
        Err(error @ Error::Connect { .. }) => {
            assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
            let Error::Connect { kind, .. } = error else { unreachable!() };
            kind
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn paths_without_a_store() {
    let store = FakeStore::start();
    let directory = store.directory();
    assert!(matches!(failure(directory.join("missing")).await, ConnectFailure::NoSuchSocket));
    assert!(matches!(
        failure(directory.join("missing/store.sock")).await,
        ConnectFailure::NoSuchSocket
    ));
    std::fs::write(directory.join("file"), b"").unwrap();
    assert!(matches!(failure(directory.join("file")).await, ConnectFailure::NotASocket));
    assert!(matches!(failure(directory).await, ConnectFailure::NotASocket));
    drop(UnixListener::bind(directory.join("left-over")).unwrap());
    assert!(matches!(failure(directory.join("left-over")).await, ConnectFailure::NotListening));
    assert!(matches!(failure(directory.join("x".repeat(200))).await, ConnectFailure::PathTooLong));
}

#[tokio::test]
async fn somebody_who_never_answers_times_out() {
    let store = FakeStore::greeting(Greeting::Silence);
    let failure = failure_within(Duration::from_millis(500), store.socket()).await;
    assert!(matches!(failure, ConnectFailure::TimedOut { .. }));
}

#[tokio::test]
async fn somebody_who_never_accepts_times_out() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.sock");
    let _listener = UnixListener::bind(&path).unwrap();
    let failure = failure_within(Duration::from_millis(500), &path).await;
    assert!(matches!(failure, ConnectFailure::TimedOut { .. }));
}

const LATER: u32 = PROTOCOL_VERSION + 1;

#[tokio::test]
async fn greetings_that_are_not_of_a_store() {
    let hello = |hello: v1::ServerHello| Greeting::Hello(Box::new(hello));
    let node = || "fake".to_owned();
    let greetings = [
        Greeting::Raw(vec![0; 8]),
        Greeting::Raw(vec![255; 8]),
        Greeting::Raw(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()),
        Greeting::Raw(vec![10, 0, 0, 0, 8]),
        hello(v1::ServerHello {
            version: PROTOCOL_VERSION,
            node: "not a name".to_owned(),
            ..Default::default()
        }),
    ];
    for greeting in greetings {
        let store = FakeStore::greeting(greeting.clone());
        let kind = failure(store.socket()).await;
        assert!(matches!(kind, ConnectFailure::NotAStore), "{greeting:?}: {kind:?}");
    }
    let store = FakeStore::greeting(Greeting::Raw(Vec::new()));
    let kind = failure(store.socket()).await;
    assert!(matches!(kind, ConnectFailure::ClosedEarly), "{kind:?}");
    let store = FakeStore::greeting(hello(v1::ServerHello {
        version: LATER,
        node: node(),
        ..Default::default()
    }));
    let kind = failure(store.socket()).await;
    assert!(
        matches!(
            kind,
            ConnectFailure::Refused(ObjectError::VersionMismatch {
                ours: PROTOCOL_VERSION,
                theirs: LATER
            })
        ),
        "{kind:?}"
    );
    let error = Some(hoplite_proto::error::encode(&ObjectError::limit_exceeded("clients", 3)));
    let store = FakeStore::greeting(hello(v1::ServerHello {
        version: PROTOCOL_VERSION,
        error,
        ..Default::default()
    }));
    let kind = failure(store.socket()).await;
    assert!(matches!(kind, ConnectFailure::Refused(ObjectError::LimitExceeded { .. })), "{kind:?}");
    let too_much = v1::ServerHello {
        version: PROTOCOL_VERSION,
        node: node(),
        cluster: "fakes".to_owned(),
        arena_bytes: 1 << 40,
        ..Default::default()
    };
    let store = FakeStore::greeting(hello(too_much));
    let kind = failure(store.socket()).await;
    assert!(matches!(kind, ConnectFailure::Arena { .. }), "{kind:?}");
}

#[tokio::test]
async fn a_client_speaks_the_newest_version_of_both_sides() {
    let [old, new] = [Version::OLDEST, Version::NEWEST].map(Version::number);
    for (version, newest_version, agreed) in [(old, 0, old), (old, new, new), (old, LATER, new)] {
        let hello = v1::ServerHello {
            version,
            newest_version,
            node: "fake".to_owned(),
            cluster: "fakes".to_owned(),
            arena_bytes: CAPACITY_BYTES,
            ..Default::default()
        };
        let store = FakeStore::greeting(Greeting::Hello(Box::new(hello)));
        let client = Client::connect(store.socket()).await.unwrap();
        assert_eq!(client.protocol().number(), agreed);
    }
}

#[tokio::test]
async fn an_old_store_gets_no_request_that_it_would_perform_in_part() {
    let hello = v1::ServerHello {
        version: Version::OLDEST.number(),
        node: "fake".to_owned(),
        cluster: "fakes".to_owned(),
        arena_bytes: CAPACITY_BYTES,
        max_object_bytes: CAPACITY_BYTES,
        max_calls: 8,
        max_ids: 10,
        ..Default::default()
    };
    let store = FakeStore::greeting(Greeting::Hello(Box::new(hello)));
    let client = Client::connect(store.socket()).await.unwrap();
    let ttl = Ttl::new(Duration::from_secs(60), TtlAction::Delete).unwrap();
    let metadata = Metadata { lifetime: Lifetime::of(None, Some(ttl)), ..Metadata::default() };
    let options = PutOptions { metadata, ..PutOptions::default() };
    let mismatch = |error: &Error| {
        matches!(error, Error::Object(ObjectError::VersionMismatch { ours: 9, theirs: 8 }))
    };
    for size_bytes in [10, 1_000_000] {
        let put = client.put_with("x", &vec![0; size_bytes], options.clone()).await;
        assert!(put.as_ref().is_err_and(mismatch), "{size_bytes} bytes: {put:?}");
    }
    let replicas = Replicas { quorum: true, ..Replicas::default() };
    let quorum = Metadata { replicas, ..Metadata::default() };
    let quorum = PutOptions { metadata: quorum, ..PutOptions::default() };
    for size_bytes in [10, 1_000_000] {
        let put = client.put_with("x", &vec![0; size_bytes], quorum.clone()).await;
        assert!(put.as_ref().is_err_and(mismatch), "{size_bytes} bytes: {put:?}");
    }
    let several = client.put_many([("x", b"bytes"), ("y", b"bytes")], quorum).await;
    assert!(several.as_ref().is_err_and(mismatch), "{several:?}");
    let delete = DeleteOptions { wait: DeleteWait::All, ..DeleteOptions::default() };
    let deleted = client.delete_with(["x"], delete).await;
    assert!(deleted.as_ref().is_err_and(mismatch), "{deleted:?}");
    let listed = client.ownerless("", "", 10).await;
    assert!(listed.as_ref().is_err_and(mismatch), "{listed:?}");
    let owners = vec![Owner::new("job").unwrap()];
    let options = ConnectOptions { socket: store.socket(), owners, ..ConnectOptions::default() };
    let refused = Client::connect_with(options).await;
    let is_refused = |error: &Error| {
        let Error::Connect { kind: ConnectFailure::Refused(error), .. } = error else {
            return false;
        };
        matches!(error, ObjectError::VersionMismatch { .. })
    };
    assert!(refused.as_ref().is_err_and(is_refused), "{refused:?}");
}

#[tokio::test]
async fn the_store_says_how_much_it_takes() {
    let hello = v1::ServerHello {
        version: PROTOCOL_VERSION,
        node: "fake".to_owned(),
        cluster: "fakes".to_owned(),
        arena_bytes: CAPACITY_BYTES,
        max_calls: 1,
        max_ids: 2,
        ..Default::default()
    };
    let store = FakeStore::greeting(Greeting::Hello(Box::new(hello)));
    let client = Client::connect(store.socket()).await.unwrap();
    let limit = |error| match error {
        Error::Object(ObjectError::LimitExceeded { maximum, .. }) => maximum,
        other => panic!("{other}"),
    };
    assert_eq!(client.cluster().as_str(), "fakes");
    assert_eq!(limit(client.gather(["a", "b", "c"], Duration::ZERO).await.unwrap_err()), 2);
    client.delete(["a", "b", "c"], Duration::ZERO).await.unwrap();
    let deletes = |request: &Request| matches!(request, Request::Node(NodeRequest::Delete { .. }));
    assert_eq!(store.state().count(deletes), 2);
    let mut waiting = Box::pin(client.get("missing", Duration::from_secs(60)));
    assert!(futures::poll!(&mut waiting).is_pending());
    assert_eq!(limit(client.delete(["a"], Duration::ZERO).await.unwrap_err()), 1);
}
