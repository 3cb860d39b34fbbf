use std::io::{ErrorKind, Write};
use std::net::TcpStream;

use hoplite_core::{Error, ErrorCode};
use hoplite_proto::status::from_status;
use hoplite_proto::v1::directory_client::DirectoryClient;
use hoplite_proto::v1::{
    DescribeRequest, Hello, ListRequest, ShardMessages, StatusRequest, StoreMessage, StoreMessages,
    store_message,
};
use hoplite_proto::{FILE_DESCRIPTOR_SET, PROTOCOL_VERSION};
use hoplite_tests::cluster::Cluster;
use hoplite_tests::raw::RawPeer;
use prost::Message;
use prost_types::{DescriptorProto, FileDescriptorSet};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];

#[test]
fn bytes_that_are_not_grpc_do_not_stop_the_shard() {
    let mut cluster = Cluster::open(2);
    let address = cluster.shard_addresses[0].clone();
    let oversized_frame = [PREFACE, &[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1]].concat();
    let garbage = [PREFACE, &[0xa5; 4096]].concat();
    for (what, bad_input) in [
        ("nothing", &b""[..]),
        ("eight zeros", &[0; 8]),
        ("text", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
        ("random bytes", &hoplite_tests::contents::bytes(1, 10_000)),
        ("half a preface", &PREFACE[..12]),
        ("a preface and an oversized frame", &oversized_frame),
        ("a preface and garbage", &garbage),
    ] {
        let mut peer = RawPeer::connect(&address);
        peer.send_bytes(bad_input);
        peer.finish();
        peer.await_close();
        cluster.assert_serves();
        eprintln!("{what} was survived");
    }
    drop(RawPeer::connect(&address));
    cluster.assert_serves();
}

/// Makes a frame of HTTP/2 on stream 1 (RFC 9113, section 4.1).
fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("it is short").to_be_bytes();
    [&length[1..], &[kind, 0], &[0, 0, 0, 1], payload].concat()
}

#[test]
fn headers_are_bounded() {
    let mut cluster = Cluster::open(1);
    let address = cluster.shard_addresses[0].clone();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut client =
            DirectoryClient::connect(format!("http://{address}")).await.expect("it listens");
        for length in [20_000, 1_000_000] {
            let mut request = tonic::Request::new(ListRequest::default());
            request.metadata_mut().insert("x", "y".repeat(length).parse().expect("it is text"));
            assert!(client.list(request).await.is_err(), "{length} bytes");
        }
    });
    // Headers without end. Each is unindexed (RFC 7541, section 6.2.2).
    let piece = [0x00, 1, b'x', 1, b'y'].repeat(3000);
    let mut peer = TcpStream::connect(&address).expect("it listens");
    peer.set_write_timeout(Some(super::TIME_LIMIT)).expect("a socket has a timeout");
    let (headers, continuation) = (frame(1, &piece), frame(9, &piece));
    let bad_input = [PREFACE, &SETTINGS, &headers].concat();
    let mut sent = peer.write_all(&bad_input).map(|()| bad_input.len());
    while let Ok(bytes) = sent
        && bytes < 64 << 20
    {
        sent = peer.write_all(&continuation).map(|()| bytes + continuation.len());
    }
    let ended = sent.expect_err("it is not heard to its end").kind();
    assert!(matches!(ended, ErrorKind::BrokenPipe | ErrorKind::ConnectionReset), "{ended}");
    cluster.assert_serves();
}

fn hello() -> Hello {
    Hello {
        version: PROTOCOL_VERSION,
        cluster: "hoplite".to_owned(),
        node: "raw".to_owned(),
        incarnation: 7,
        data_address: "127.0.0.1:9".to_owned(),
        labels: std::collections::HashMap::new(),
        shards: vec!["127.0.0.1:7401".to_owned()],
        shards_version: 0,
        newest_version: 0,
    }
}

fn with_hello(hello: Hello) -> StoreMessages {
    StoreMessages { hello: Some(hello), messages: vec![] }
}

async fn rejection(address: &str, bad_input: Vec<StoreMessages>) -> Error {
    let mut client =
        DirectoryClient::connect(format!("http://{address}")).await.expect("the shard listens");
    let open =
        futures::StreamExt::chain(futures::stream::iter(bad_input), futures::stream::pending());
    let ended = async {
        let mut answers = client.session(open).await?.into_inner();
        loop {
            if answers.message().await?.is_none() {
                return Ok::<ShardMessages, tonic::Status>(ShardMessages::default());
            }
        }
    };
    let ended =
        tokio::time::timeout(super::TIME_LIMIT, ended).await.expect("the shard ends the session");
    from_status(&ended.expect_err("the session ends with an error"))
}

fn messages_with(field: &str) -> Vec<String> {
    fn search(outer: &str, message: &DescriptorProto, field: &str, found: &mut Vec<String>) {
        let name = format!("{outer}{}", message.name());
        if message.field.iter().any(|candidate| candidate.name() == field) {
            found.push(name.clone());
        }
        let outer = format!("{name}.");
        message.nested_type.iter().for_each(|inner| search(&outer, inner, field, found));
    }
    let set =
        FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).expect("the protocol describes itself");
    let mut found = Vec::new();
    let messages = set.file.iter().flat_map(|file| &file.message_type);
    messages.for_each(|message| search("", message, field, &mut found));
    found
}

#[test]
fn no_reply_reveals_an_incarnation() {
    assert_eq!(
        messages_with("incarnation"),
        ["Hello"],
        "stores tell it to shards, and shards to nobody"
    );
    let mut cluster = Cluster::open(1);
    let address = cluster.shard_addresses[0].clone();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let known = runtime.block_on(async {
        let mut client = DirectoryClient::connect(format!("http://{address}")).await.unwrap();
        client.status(StatusRequest { loads: true }).await.unwrap().into_inner()
    });
    let victim = &known.nodes[0];
    let shards = vec![address.clone()];
    let data_address = victim.data_address.clone();
    let forged = Hello { node: victim.node.clone(), data_address, shards, ..hello() };
    let error = runtime.block_on(rejection(&address, vec![with_hello(forged)]));
    assert_eq!(error.code(), ErrorCode::NodeIdInUse, "{error}");
    cluster.assert_serves();
}

#[test]
fn invalid_sessions_are_refused_with_a_reason() {
    let mut cluster = Cluster::open(2);
    let address = cluster.shard_addresses[0].clone();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let publish = |id: Vec<u8>| StoreMessage {
        body: Some(store_message::Body::Publish(store_message::Publish {
            id: id.into(),
            put: 1,
            size_bytes: 5,
            state: 3,
            retention: 1,
            ..store_message::Publish::default()
        })),
        ..StoreMessage::default()
    };
    let then = |messages| vec![with_hello(hello()), StoreMessages { hello: None, messages }];
    for (what, bad_input, code) in [
        (
            "another version",
            vec![with_hello(Hello { version: 99, ..hello() })],
            ErrorCode::VersionMismatch,
        ),
        (
            "another cluster",
            vec![with_hello(Hello { cluster: "other".to_owned(), ..hello() })],
            ErrorCode::ClusterMismatch,
        ),
        (
            "no name",
            vec![with_hello(Hello { node: String::new(), ..hello() })],
            ErrorCode::InvalidName,
        ),
        (
            "a name that is taken",
            vec![with_hello(Hello { node: "node-0".to_owned(), ..hello() })],
            ErrorCode::NodeIdInUse,
        ),
        (
            "another list of shards",
            vec![with_hello(Hello { shards: vec!["a:1".to_owned(), "b:1".to_owned()], ..hello() })],
            ErrorCode::ShardListMismatch,
        ),
        (
            "no list of shards",
            vec![with_hello(Hello { shards: Vec::new(), ..hello() })],
            ErrorCode::Malformed,
        ),
        (
            "no address",
            vec![with_hello(Hello { data_address: "nowhere".to_owned(), ..hello() })],
            ErrorCode::Malformed,
        ),
        (
            "no hello",
            vec![StoreMessages { hello: None, messages: vec![publish(vec![1])] }],
            ErrorCode::Malformed,
        ),
        ("a second hello", vec![with_hello(hello()), with_hello(hello())], ErrorCode::Malformed),
        ("an empty id", then(vec![publish(vec![])]), ErrorCode::InvalidId),
        ("a long id", then(vec![publish(vec![7; 256])]), ErrorCode::InvalidId),
        ("no message in a message", then(vec![StoreMessage::default()]), ErrorCode::Malformed),
        ("too many messages", then(vec![publish(vec![1]); 5000]), ErrorCode::LimitExceeded),
    ] {
        let error = runtime.block_on(rejection(&address, bad_input));
        assert_eq!(error.code(), code, "{what}: {error}");
        cluster.assert_serves();
    }
}

#[test]
fn invalid_inspections_are_refused_with_a_reason() {
    let mut cluster = Cluster::open(1);
    let address = cluster.shard_addresses[0].clone();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut client = DirectoryClient::connect(format!("http://{address}")).await.unwrap();
        for id in [vec![], vec![7; 256]] {
            let status = client.describe(DescribeRequest { id: id.into() }).await.unwrap_err();
            assert_eq!(from_status(&status).code(), ErrorCode::InvalidId);
        }
        let prefix = vec![7; 256].into();
        let status =
            client.list(ListRequest { prefix, ..ListRequest::default() }).await.unwrap_err();
        assert_eq!(from_status(&status).code(), ErrorCode::InvalidId);
        let prefix = vec![7; 16 << 20].into();
        assert!(client.list(ListRequest { prefix, ..ListRequest::default() }).await.is_err());
    });
    cluster.assert_serves();
}
