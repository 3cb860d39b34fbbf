use hoplite_core::ErrorCode;
use hoplite_proto::PROTOCOL_VERSION;
use hoplite_proto::v1::request::{self, Body};
use hoplite_proto::v1::response::Body as Answer;
use hoplite_proto::v1::{self, ClientHello, ServerHello};
use hoplite_tests::cluster::{Cluster, Plan, await_that};
use hoplite_tests::raw::RawClient;
use prost::Message;

fn error_code(answer: Answer) -> u32 {
    match answer {
        Answer::Error(error) => error.code,
        other => panic!("not an error: {other:?}"),
    }
}

#[test]
fn a_client_without_a_hello_is_disconnected() {
    let mut cluster = Cluster::of(1);
    let socket = cluster.socket(0);
    let long =
        ClientHello { version: PROTOCOL_VERSION, program: "x".repeat(4096), ..Default::default() }
            .encode_to_vec();
    let long_frame = [u32::try_from(long.len()).unwrap().to_le_bytes().as_slice(), &long].concat();
    let endless = u32::MAX.to_le_bytes();
    for (what, bad_input) in [
        ("nothing", &b""[..]),
        ("text", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
        ("a length that is cut off", &[9, 0]),
        ("a hello that is cut off", &[9, 0, 0, 0, 8, 1]),
        ("an oversized hello", &long_frame),
        ("an endless hello", &endless),
        ("a hello that is no message", &[3, 0, 0, 0, 0xff, 0xff, 0xff]),
    ] {
        let mut client = RawClient::connect(&socket);
        client.send_bytes(bad_input);
        client.finish();
        client.await_close();
        cluster.assert_serves();
        eprintln!("{what} was survived");
    }
    drop(RawClient::connect(&socket));
    cluster.assert_serves();
}

#[test]
fn another_version_is_refused_with_a_reason() {
    let mut cluster = Cluster::of(1);
    for version in [0, PROTOCOL_VERSION + 1, u32::MAX] {
        let mut client = RawClient::connect(&cluster.socket(0));
        client.send(&ClientHello { version, program: "raw".to_owned(), ..Default::default() });
        let hello: ServerHello = client.receive().expect("the store says why");
        let error = hello.error.expect("it is refused");
        assert_eq!(error.code, ErrorCode::VersionMismatch as u32);
        client.await_close();
    }
    cluster.assert_serves();
}

#[test]
fn invalid_frames_end_only_their_connection() {
    let mut cluster = Cluster::of(1);
    let bystander = cluster.client(0);
    bystander.put("object", b"contents").unwrap();
    let view = bystander.get("object", super::TIME_LIMIT).unwrap();
    let endless = u32::MAX.to_le_bytes();
    for (what, bad_input) in [
        ("a frame that is no message", &[4, 0, 0, 0, 0xff, 0xff, 0xff, 0xff][..]),
        ("a frame that is cut off", &[200, 0, 0, 0, 8, 1]),
        ("an endless frame", &endless),
        ("zeros and text", b"\0\0\0\0GET / HTTP/1.1\r\n\r\n"),
    ] {
        let mut client = RawClient::greeted(&cluster.socket(0));
        client.send_bytes(bad_input);
        client.finish();
        client.await_close();
        cluster.assert_serves();
        eprintln!("{what} was survived");
    }
    assert_eq!(&view[..], b"contents");
    await_that("the others gone", || bystander.status().unwrap().clients == 1);
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of requests")]
fn invalid_requests_are_answered_with_errors() {
    let mut cluster = Cluster::start(Plan { nodes: 1, ..Plan::default() });
    let mut client = RawClient::greeted(&cluster.socket(0));
    let create = |id: Vec<u8>, size_bytes| {
        Body::Create(request::Create { id: id.into(), size_bytes, metadata: None, timeout_ms: 100 })
    };
    let nonsense = v1::Metadata { dtype: 99, ..v1::Metadata::default() };
    let misshapen = v1::Metadata {
        shape: Some(v1::Shape { extents: vec![u64::MAX, u64::MAX] }),
        dtype: 4,
        ..v1::Metadata::default()
    };
    let with = |metadata| {
        let id = b"object".to_vec().into();
        Body::Create(request::Create {
            id,
            size_bytes: 8,
            metadata: Some(metadata),
            timeout_ms: 100,
        })
    };
    let reduce = |change: fn(&mut request::Reduce)| {
        let mut reduce = request::Reduce {
            target: b"target".to_vec().into(),
            sources: [b"a", b"b"].map(|id| id.to_vec().into()).to_vec(),
            count: 2,
            op: v1::ReduceOp::Sum.into(),
            timeout_ms: 100,
            ..request::Reduce::default()
        };
        change(&mut reduce);
        Body::Reduce(reduce)
    };
    let copy = 12345;
    for (body, code) in [
        (create(vec![], 1), ErrorCode::InvalidId),
        (create(vec![7; 256], 1), ErrorCode::InvalidId),
        (create(b"object".to_vec(), u64::MAX), ErrorCode::ObjectTooLarge),
        (with(nonsense), ErrorCode::InvalidMetadata),
        (with(misshapen), ErrorCode::InvalidMetadata),
        (
            Body::Get(request::Get {
                id: vec![].into(),
                until: 0,
                timeout_ms: 100,
                allow_stale: false,
            }),
            ErrorCode::InvalidId,
        ),
        (
            Body::Get(request::Get {
                id: vec![1].into(),
                until: 77,
                timeout_ms: 100,
                allow_stale: false,
            }),
            ErrorCode::Malformed,
        ),
        (Body::Seal(request::Seal { copy, timeout_ms: 100 }), ErrorCode::UnknownReference),
        (
            Body::Follow(request::Follow { copy, beyond_bytes: u64::MAX, timeout_ms: 100 }),
            ErrorCode::UnknownReference,
        ),
        (
            Body::Wait(request::Wait { ids: vec![vec![1].into()], count: 2, timeout_ms: 100 }),
            ErrorCode::InvalidRequest,
        ),
        (reduce(|reduce| reduce.target = vec![].into()), ErrorCode::InvalidId),
        (reduce(|reduce| reduce.sources[1] = vec![7; 256].into()), ErrorCode::InvalidId),
        (reduce(|reduce| reduce.sources[1] = b"a".to_vec().into()), ErrorCode::DuplicateId),
        (reduce(|reduce| reduce.sources[1] = b"target".to_vec().into()), ErrorCode::DuplicateId),
        (reduce(|reduce| reduce.sources.clear()), ErrorCode::InvalidRequest),
        (reduce(|reduce| reduce.count = 0), ErrorCode::InvalidRequest),
        (reduce(|reduce| reduce.count = u64::MAX), ErrorCode::InvalidRequest),
        (reduce(|reduce| reduce.op = 0), ErrorCode::Malformed),
        (reduce(|reduce| reduce.op = 99), ErrorCode::Malformed),
        (reduce(|reduce| reduce.order = 99), ErrorCode::Malformed),
        (
            reduce(|reduce| {
                reduce.range = Some(request::ByteRange { offset_bytes: 8, length_bytes: u64::MAX });
            }),
            ErrorCode::InvalidRequest,
        ),
        (reduce(|_| {}), ErrorCode::Timeout),
    ] {
        let what = format!("{body:?}");
        client.request(body);
        assert_eq!(error_code(client.answer()), code as u32, "{what}");
    }
    client.request(Body::SealUnconfirmed(request::SealUnconfirmed { copy }));
    client.request(Body::Abort(request::Abort { copy }));
    client.request(Body::Release(request::Release { copy: u64::MAX }));
    client.request(Body::Doorbell(request::Doorbell { copy }));
    client.request(Body::Cancel(request::Cancel { call: 4 }));
    client.request(Body::Unsubscribe(request::Unsubscribe { call: u64::MAX }));
    let get = request::Get { id: vec![1].into(), until: 0, timeout_ms: 20_000, allow_stale: false };
    let waiting = client.request(Body::Get(get.clone()));
    client.send(&v1::Request { call: waiting, body: Some(Body::Get(get)), ..Default::default() });
    assert_eq!(error_code(client.answer()), ErrorCode::InvalidRequest as u32);
    client.request(Body::Status(request::Status {}));
    assert!(matches!(client.answer(), Answer::Status(_)), "the connection goes on");
    client.send(&v1::Request { call: 1000, ..Default::default() });
    let answer: Option<v1::Response> = client.receive();
    let code = answer.and_then(|answer| answer.body).map(error_code);
    assert!(code.is_none_or(|code| code == ErrorCode::Malformed as u32), "{code:?}");
    cluster.assert_serves();
}

#[test]
fn a_client_that_reads_no_answers_blocks_no_other() {
    let store_arguments = vec!["--max-calls=16".to_owned()];
    let mut cluster = Cluster::start(Plan { nodes: 1, store_arguments, ..Plan::default() });
    let watcher = cluster.client(0);
    let mut client = RawClient::greeted(&cluster.socket(0));
    client.request(Body::Subscribe(request::Subscribe { id: b"object".to_vec().into() }));
    let question = v1::Request {
        call: 1000,
        body: Some(Body::Status(request::Status {})),
        ..Default::default()
    };
    while client.try_send_message(&question, std::time::Duration::from_millis(300)) {}
    cluster.assert_serves();
    drop(client);
    await_that("the client gone", || watcher.status().unwrap().clients == 1);
    cluster.assert_serves();
}
