//! A real server, and a bare client that opens a session over gRPC and then speaks on a direct connection.
#![expect(clippy::unwrap_used, reason = "the functions around the tests are tests too")]

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use hoplite_core::error::Plane;
use hoplite_core::placement::ShardList;
use hoplite_core::shard::{
    LocationState, NodeInfo, Publish, Query, RequestId, Retention, ToShard, ToStore, Verdict,
};
use hoplite_core::{ClusterId, Error, Metadata, NodeId, ObjectId, PutId, id::Incarnation};
use hoplite_directory::DirectoryConfig;
use hoplite_net::Checked;
use hoplite_net::opening::{self, Caller};
use hoplite_proto::bounds::MAX_BATCH_BYTES;
use hoplite_proto::directory::{BypassKey, Preface, decode_shard_batch, encode_hello, encode_to_shard};
use hoplite_proto::status::from_status;
use hoplite_proto::v1::directory_client::DirectoryClient;
use hoplite_proto::v1::{ShardMessages, StoreMessages};
use hoplite_proto::{framing, v1};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::Streaming;

/// Long enough for a busy machine; nothing here waits for it when all is well.
const PATIENCE: Duration = Duration::from_secs(300);

struct Server {
    address: SocketAddr,
    _shutdown: DropGuard,
}

impl Server {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let directory = DirectoryConfig::default();
        tokio::spawn(hoplite_directory::run(directory, None, listener, shutdown.clone()));
        Self { address, _shutdown: shutdown.drop_guard() }
    }

    /// A session over gRPC, and the key that it offers.
    async fn session(&self, node: &str) -> Session {
        let (outbound, receiver) = mpsc::channel::<StoreMessages>(16);
        let info = NodeInfo {
            node: NodeId::new(node).unwrap(),
            incarnation: Incarnation(1),
            data_address: "127.0.0.1:7402".parse().unwrap(),
            labels: Vec::new(),
            shards: ShardList::new(["127.0.0.1:7401"]),
        };
        let hello = Some(encode_hello(&info, &ClusterId::new("hoplite").unwrap()));
        outbound.send(StoreMessages { hello, messages: Vec::new() }).await.unwrap();
        let outbound_stream = futures::stream::unfold(receiver, |mut receiver| async move {
            receiver.recv().await.map(|message| (message, receiver))
        });
        let mut client = DirectoryClient::connect(format!("http://{}", self.address)).await.unwrap();
        let mut inbound = client.session(outbound_stream).await.unwrap().into_inner();
        let welcome = inbound.message().await.unwrap().unwrap().welcome.unwrap();
        let key = BypassKey::of_bytes(&welcome.bypass_key).expect("a key");
        Session { key, outbound, inbound }
    }

    /// A connection for the session of `key`.
    async fn connect(&self, key: BypassKey) -> Direct {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let opened = opening::connect(&mut stream, None, &Caller::default(), Some(key)).await.unwrap();
        Direct { stream: Checked::new(stream, opened.records), received: BytesMut::new() }
    }

    /// A session over a direct connection.
    async fn diverted(&self, node: &str) -> (Session, Direct) {
        let mut session = self.session(node).await;
        let bypass = self.connect(session.key).await;
        assert!(session.next().await.unwrap().unwrap().bypassed);
        (session, bypass)
    }
}

struct Session {
    key: BypassKey,
    outbound: mpsc::Sender<StoreMessages>,
    inbound: Streaming<ShardMessages>,
}

impl Session {
    async fn next(&mut self) -> Result<Option<ShardMessages>, Error> {
        let next = timeout(PATIENCE, self.inbound.message()).await.expect("something is said");
        next.map_err(|status| from_status(&status))
    }
}

struct Direct {
    stream: Checked<TcpStream>,
    received: BytesMut,
}

impl Direct {
    async fn say(&mut self, message: ToShard) {
        let messages = vec![encode_to_shard(message)];
        let mut frame = BytesMut::new();
        framing::encode(&StoreMessages { hello: None, messages }, &mut frame).unwrap();
        self.stream.write_all(&frame).await.unwrap();
        self.stream.flush().await.unwrap();
    }

    /// The next message; `None` at the end of the connection.
    async fn hear(&mut self) -> Option<ToStore> {
        loop {
            let frame = framing::decode_on(Plane::Control, &mut self.received, MAX_BATCH_BYTES).unwrap();
            if let Some(frame) = frame {
                let mut messages = decode_shard_batch(frame).unwrap();
                assert_eq!(messages.len(), 1);
                return messages.pop();
            }
            let read = timeout(PATIENCE, self.stream.read_buf(&mut self.received)).await;
            match read.expect("something is said") {
                Ok(0) => return None,
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return None,
                read => drop(read.unwrap()),
            }
        }
    }
}

fn publish(name: &str) -> ToShard {
    ToShard::Publish(Publish {
        id: ObjectId::new(name).unwrap(),
        put: PutId(1),
        size_bytes: 5,
        metadata: Metadata::default(),
        state: LocationState::Complete,
        retention: Retention::Pinned,
        pulling_from: None,
        inline: Some(Bytes::from_static(b"bytes").into()),
        slot: None,
        wants_answer: true,
    })
}

fn query(name: &str) -> ToShard {
    ToShard::Query(Query {
        request: RequestId(1),
        id: ObjectId::new(name).unwrap(),
        timeout: PATIENCE,
        resume: None,
        avoid: Vec::new(),
    })
}

#[tokio::test]
async fn a_session_goes_on_past_grpc_beside_one_that_does_not() {
    let server = Server::start().await;
    let (session, mut bypass) = server.diverted("a").await;
    bypass.say(publish("x")).await;
    assert!(matches!(bypass.hear().await, Some(ToStore::Published { verdict: Verdict::Accepted, .. })));

    let mut other = server.session("b").await;
    let asked = StoreMessages { hello: None, messages: vec![encode_to_shard(query("x"))] };
    other.outbound.send(asked).await.unwrap();
    let answer = decode_shard_batch(other.next().await.unwrap().unwrap()).unwrap();
    assert!(matches!(&answer[..], [ToStore::Inline { bytes, .. }] if **bytes == *b"bytes"));

    // What was said before the end still counts; then gRPC ends, too.
    bypass.say(publish("y")).await;
    bypass.stream.shutdown().await.unwrap();
    let mut session = session;
    assert_eq!(session.next().await, Ok(None));
    let asked = StoreMessages { hello: None, messages: vec![encode_to_shard(query("y"))] };
    other.outbound.send(asked).await.unwrap();
    let answer = decode_shard_batch(other.next().await.unwrap().unwrap()).unwrap();
    assert!(matches!(&answer[..], [ToStore::Inline { .. }]), "{answer:?}");
}

#[tokio::test]
async fn the_end_of_grpc_ends_the_bypass() {
    let server = Server::start().await;
    let (session, mut bypass) = server.diverted("a").await;
    drop(session);
    assert_eq!(bypass.hear().await, None);
}

#[tokio::test]
async fn a_newer_session_of_the_store_ends_both_connections_with_the_reason() {
    let server = Server::start().await;
    let (mut session, mut bypass) = server.diverted("a").await;
    let (_newer, mut newer_bypass) = server.diverted("a").await;
    assert_eq!(bypass.hear().await, None);
    assert!(matches!(session.next().await, Err(Error::Unavailable { .. })));
    newer_bypass.say(publish("x")).await;
    assert!(newer_bypass.hear().await.is_some());
}

#[tokio::test]
async fn only_the_key_of_a_session_opens_a_bypass_and_only_once() {
    let server = Server::start().await;
    assert_eq!(server.connect(BypassKey([7; 32])).await.hear().await, None);
    let mut other = TcpStream::connect(server.address).await.unwrap();
    other.write_all(b"HEAD / HTTP/1.1\r\nHost: here and a bit more\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = timeout(PATIENCE, other.read_to_end(&mut answer)).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 400 "), "{answer:?}");

    let (mut session, mut bypass) = server.diverted("a").await;
    assert_eq!(server.connect(session.key).await.hear().await, None);
    bypass.say(publish("x")).await;
    assert!(bypass.hear().await.is_some(), "the session goes on");
    drop(bypass);
    assert_eq!(session.next().await, Ok(None));
    assert_eq!(server.connect(session.key).await.hear().await, None);
}

#[tokio::test]
async fn what_makes_no_sense_ends_the_session_and_grpc_says_why() {
    let server = Server::start().await;
    let mut too_long = BytesMut::new();
    too_long.put_u32_le(u32::try_from(MAX_BATCH_BYTES).unwrap() + 1);
    let no_message: &[u8] = b"\x02\0\0\0\xff\xff";
    let mut second_hello = BytesMut::new();
    let hello = StoreMessages { hello: Some(v1::Hello::default()), messages: Vec::new() };
    framing::encode(&hello, &mut second_hello).unwrap();
    for nonsense in [&too_long[..], no_message, &second_hello[..]] {
        let (mut session, mut bypass) = server.diverted("a").await;
        bypass.stream.write_all(nonsense).await.unwrap();
        bypass.stream.flush().await.unwrap();
        assert!(matches!(session.next().await, Err(Error::Malformed { plane: Plane::Control, .. })));
        assert_eq!(bypass.hear().await, None);
    }
}

#[tokio::test]
async fn a_bypass_that_says_nothing_keeps_nobody_out() {
    let server = Server::start().await;
    let mut session = server.session("a").await;
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    silent.write_all(Preface::Direct.bytes()).await.unwrap();
    let mut bypass = server.connect(session.key).await;
    assert!(session.next().await.unwrap().unwrap().bypassed);
    bypass.say(publish("x")).await;
    assert!(bypass.hear().await.is_some());
    let _ = timeout(PATIENCE, silent.read_to_end(&mut Vec::new())).await.expect("it is closed");
}

#[tokio::test]
async fn a_changed_byte_ends_the_session_and_grpc_says_why() {
    let server = Server::start().await;
    let mut session = server.session("a").await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let opened = opening::connect(&mut stream, None, &Caller::default(), Some(session.key)).await.unwrap();
    assert!(session.next().await.unwrap().unwrap().bypassed);
    let (mut sealer, _) = opened.records;
    let (mut frame, mut records) = (BytesMut::new(), BytesMut::new());
    let messages = vec![encode_to_shard(publish("x"))];
    framing::encode(&StoreMessages { hello: None, messages }, &mut frame).unwrap();
    sealer.seal(&frame, &mut records);
    let middle = records.len() / 2;
    records[middle] ^= 0x10;
    stream.write_all(&records).await.unwrap();
    assert!(matches!(session.next().await, Err(Error::Malformed { plane: Plane::Control, .. })));
}
