//! Sessions on direct connections, between a real server and a bare client.
#![expect(clippy::unwrap_used, reason = "the functions around the tests are tests too")]

use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};
use hoplite_core::error::Plane;
use hoplite_core::placement::ShardList;
use hoplite_core::session::SHARD_PINGS;
use hoplite_core::shard::{
    LocationState, NodeInfo, Publish, Query, RequestId, Retention, ToShard, ToStore, Verdict,
};
use hoplite_core::{ClusterId, Error, Metadata, NodeId, ObjectId, PutId, id::Incarnation};
use hoplite_directory::DirectoryConfig;
use hoplite_net::Checked;
use hoplite_net::opening::{self, Caller};
use hoplite_proto::bounds::MAX_BATCH_BYTES;
use hoplite_proto::directory::{Preface, decode_shard_batch, encode_hello, encode_to_shard};
use hoplite_proto::framing;
use hoplite_proto::v1::directory_client::DirectoryClient;
use hoplite_proto::v1::{ShardMessages, StoreMessages};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

const TIME_LIMIT: Duration = Duration::from_secs(300);

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

    async fn connect(&self) -> Direct {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let caller = Caller::default();
        let records = opening::connect(&mut stream, None, &caller, Preface::Direct).await.unwrap();
        Direct { stream: Checked::new(stream, records), received: BytesMut::new() }
    }

    async fn session(&self, node: &str) -> Direct {
        let mut direct = self.connect().await;
        direct.write(&hello(node)).await;
        assert!(direct.next().await.unwrap().welcome.is_some());
        direct
    }

    async fn query_over_grpc(&self, node: &str, name: &str) -> Vec<ToStore> {
        let asked = StoreMessages { hello: None, messages: vec![encode_to_shard(query(name))] };
        let outbound = futures::stream::iter([hello(node), asked]);
        let outbound = futures::StreamExt::chain(outbound, futures::stream::pending());
        let mut client =
            DirectoryClient::connect(format!("http://{}", self.address)).await.unwrap();
        let mut inbound = client.session(outbound).await.unwrap().into_inner();
        assert!(inbound.message().await.unwrap().unwrap().welcome.is_some());
        let answer = timeout(TIME_LIMIT, inbound.message()).await.expect("something is said");
        decode_shard_batch(answer.unwrap().unwrap()).unwrap()
    }
}

fn hello(node: &str) -> StoreMessages {
    let info = NodeInfo {
        node: NodeId::new(node).unwrap(),
        incarnation: Incarnation(1),
        data_address: "127.0.0.1:7402".parse().unwrap(),
        labels: Vec::new(),
        shards: ShardList::new(["127.0.0.1:7401"]),
        version: hoplite_core::Version::NEWEST,
    };
    let hello = Some(encode_hello(&info, &ClusterId::new("hoplite").unwrap()));
    StoreMessages { hello, messages: Vec::new() }
}

struct Direct {
    stream: Checked<TcpStream>,
    received: BytesMut,
}

impl Direct {
    async fn send(&mut self, message: ToShard) {
        self.write(&StoreMessages { hello: None, messages: vec![encode_to_shard(message)] }).await;
    }

    async fn write(&mut self, messages: &StoreMessages) {
        let mut frame = BytesMut::new();
        framing::encode(messages, &mut frame).unwrap();
        self.write_bytes(&frame).await;
    }

    async fn write_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
        self.stream.flush().await.unwrap();
    }

    async fn receive(&mut self) -> Option<ToStore> {
        let mut messages = decode_shard_batch(self.next().await?).unwrap();
        assert_eq!(messages.len(), 1);
        messages.pop()
    }

    async fn end(&mut self) -> Error {
        let error = decode_shard_batch(self.next().await.expect("the shard says why")).unwrap_err();
        assert_eq!(self.next().await, None);
        error
    }

    async fn next(&mut self) -> Option<ShardMessages> {
        loop {
            let frame =
                framing::decode_on(Plane::Control, &mut self.received, MAX_BATCH_BYTES).unwrap();
            if frame.is_some() {
                return frame;
            }
            let read = timeout(TIME_LIMIT, self.stream.read_buf(&mut self.received)).await;
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
        returning: None,
    })
}

fn query(name: &str) -> ToShard {
    ToShard::Query(Query {
        request: RequestId(1),
        id: ObjectId::new(name).unwrap(),
        timeout: TIME_LIMIT,
        resume: None,
        avoid: Vec::new(),
    })
}

#[tokio::test]
async fn sessions_on_a_direct_connection_and_over_grpc_see_the_same_objects() {
    let server = Server::start().await;
    let mut direct = server.session("a").await;
    direct.send(publish("x")).await;
    assert!(matches!(
        direct.receive().await,
        Some(ToStore::Published { verdict: Verdict::Accepted, .. })
    ));
    let answer = server.query_over_grpc("b", "x").await;
    assert!(matches!(&answer[..], [ToStore::Inline { bytes, .. }] if **bytes == *b"bytes"));

    direct.send(publish("y")).await;
    direct.stream.shutdown().await.unwrap();
    assert!(matches!(direct.receive().await, Some(ToStore::Published { .. })));
    assert_eq!(direct.next().await, None);
    let answer = server.query_over_grpc("c", "y").await;
    assert!(matches!(&answer[..], [ToStore::Inline { .. }]), "{answer:?}");
}

#[tokio::test]
async fn a_newer_session_of_the_store_ends_the_older_one_with_the_reason() {
    let server = Server::start().await;
    let mut older = server.session("a").await;
    let mut newer = server.session("a").await;
    let error = older.end().await;
    assert!(error.to_string().contains("the store has opened another one"), "{error}");
    newer.send(publish("x")).await;
    assert!(newer.receive().await.is_some());
}

#[tokio::test]
async fn a_connection_with_another_preface_is_refused_with_the_reason() {
    let server = Server::start().await;
    let mut other = TcpStream::connect(server.address).await.unwrap();
    other.write_all(b"HEAD / HTTP/1.1\r\nHost: here and a bit more\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = timeout(TIME_LIMIT, other.read_to_end(&mut answer)).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 400 "), "{answer:?}");

    let mut direct = server.connect().await;
    direct.send(publish("x")).await;
    assert!(matches!(direct.end().await, Error::Malformed { .. }), "no hello");
    let mut direct = server.connect().await;
    let mut foreign = hello("a");
    foreign.hello.as_mut().unwrap().cluster = "another".to_owned();
    direct.write(&foreign).await;
    assert!(matches!(direct.end().await, Error::ClusterMismatch { .. }));
}

#[tokio::test]
async fn a_session_with_invalid_messages_ends_with_the_reason() {
    let server = Server::start().await;
    let mut too_long = BytesMut::new();
    too_long.put_u32_le(u32::try_from(MAX_BATCH_BYTES).unwrap() + 1);
    let no_message: &[u8] = b"\x02\0\0\0\xff\xff";
    let mut second_hello = BytesMut::new();
    framing::encode(&hello("a"), &mut second_hello).unwrap();
    for nonsense in [&too_long[..], no_message, &second_hello[..]] {
        let mut direct = server.session("a").await;
        direct.write_bytes(nonsense).await;
        direct.write_bytes(&[0; 4096]).await;
        assert!(matches!(direct.end().await, Error::Malformed { plane: Plane::Control, .. }));
    }
}

#[tokio::test]
async fn silent_connections_do_not_block_others() {
    let server = Server::start().await;
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    silent.write_all(Preface::Direct.bytes()).await.unwrap();
    let mut without_hello = server.connect().await;
    let mut direct = server.session("a").await;
    direct.send(publish("x")).await;
    assert!(direct.receive().await.is_some());
    let _ = timeout(TIME_LIMIT, silent.read_to_end(&mut Vec::new())).await.expect("it is closed");
    assert!(matches!(without_hello.end().await, Error::Timeout { .. }));
}

#[tokio::test]
async fn pings_keep_a_session_and_silence_ends_it() {
    let server = Server::start().await;
    let [mut pings, mut silent] = [server.session("a").await, server.session("b").await];
    let begun = Instant::now();
    let pinging = async {
        for count in 1.. {
            if begun.elapsed() >= SHARD_PINGS.silence_limit() + Duration::from_secs(1) {
                break;
            }
            pings.write(&StoreMessages::default()).await;
            assert_eq!(
                pings.next().await,
                Some(ShardMessages { pings: count, ..Default::default() })
            );
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    let ((), error) = tokio::join!(pinging, silent.end());
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    pings.send(publish("x")).await;
    assert!(pings.receive().await.is_some());
}

#[tokio::test]
async fn a_changed_byte_ends_the_session_with_a_reason() {
    let server = Server::start().await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let mut below = std::net::TcpStream::from(stream.as_fd().try_clone_to_owned().unwrap());
    let records =
        opening::connect(&mut stream, None, &Caller::default(), Preface::Direct).await.unwrap();
    let mut direct = Direct { stream: Checked::new(stream, records), received: BytesMut::new() };
    direct.write(&hello("a")).await;
    assert!(direct.next().await.unwrap().welcome.is_some());
    // Four bytes with a wrong checksum.
    let record = [8, 0, !8, !0, 0, 0, 0, 0, 1, 2, 3, 4];
    below.write_all(&record).unwrap();
    let error = direct.end().await;
    assert!(error.to_string().contains("changed on its way"), "{error}");
}
