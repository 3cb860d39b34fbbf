//! A real server, and a bare gRPC client that acts as the stores.
#![expect(clippy::unwrap_used, reason = "the functions around the tests are tests too")]

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use hoplite_core::placement::ShardList;
use hoplite_core::shard::{
    Grant, GrantId, LocationState, NodeInfo, Publish, PullOutcome, Query, RequestId, Retention,
    ToShard, ToStore, UnpublishReason, Verdict, Wants,
};
use hoplite_core::{ClusterId, Error, Limits, Metadata, NodeId, ObjectId, PutId, id::Incarnation};
use hoplite_directory::{DirectoryConfig, DirectoryError};
use hoplite_proto::directory::{check_welcome, decode_shard_batch, encode_hello, encode_to_shard};
use hoplite_proto::status::from_status;
use hoplite_proto::v1;
use hoplite_proto::v1::directory_client::DirectoryClient;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::Streaming;
use tonic::transport::Channel;

const TIME_LIMIT: Duration = Duration::from_secs(300);

struct Server {
    address: SocketAddr,
    shutdown: CancellationToken,
    task: JoinHandle<Result<(), DirectoryError>>,
}

impl Server {
    async fn start() -> Self {
        Self::with_limits(Limits { node_grace: Duration::from_millis(100), ..Limits::default() })
            .await
    }

    async fn with_limits(limits: Limits) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let config = DirectoryConfig { limits, ..DirectoryConfig::default() };
        let task = tokio::spawn(hoplite_directory::run(config, None, listener, shutdown.clone()));
        Self { address, shutdown, task }
    }

    async fn channel(&self) -> Channel {
        Channel::from_shared(format!("http://{}", self.address)).unwrap().connect().await.unwrap()
    }

    async fn client(&self) -> DirectoryClient<Channel> {
        DirectoryClient::new(self.channel().await)
    }

    async fn open(&self, hello: v1::Hello) -> Result<Store, Error> {
        let (sender, receiver) = mpsc::channel::<v1::StoreMessages>(16);
        let first = v1::StoreMessages { hello: Some(hello), messages: Vec::new() };
        sender.send(first).await.unwrap();
        self.open_with(sender, receiver).await
    }

    async fn open_with(
        &self,
        sender: mpsc::Sender<v1::StoreMessages>,
        receiver: mpsc::Receiver<v1::StoreMessages>,
    ) -> Result<Store, Error> {
        let outbound = futures::stream::unfold(receiver, |mut receiver| async move {
            receiver.recv().await.map(|message| (message, receiver))
        });
        let session =
            self.client().await.session(outbound).await.map_err(|status| from_status(&status))?;
        let mut inbound = session.into_inner();
        let first = inbound.message().await.map_err(|status| from_status(&status))?.unwrap();
        check_welcome(&first.welcome.unwrap(), hoplite_core::Version::NEWEST).unwrap();
        Ok(Store { outbound: sender, inbound, pending: Vec::new() })
    }

    async fn store(&self, node: &str) -> Store {
        self.open(hello(node, 1)).await.unwrap()
    }

    async fn stop(self) {
        self.shutdown.cancel();
        timeout(TIME_LIMIT, self.task).await.expect("the server stops").unwrap().unwrap();
    }
}

struct Store {
    outbound: mpsc::Sender<v1::StoreMessages>,
    inbound: Streaming<v1::ShardMessages>,
    pending: Vec<ToStore>,
}

impl Store {
    async fn send(&self, message: ToShard) {
        let messages = vec![encode_to_shard(message)];
        self.outbound.send(v1::StoreMessages { hello: None, messages }).await.unwrap();
    }

    async fn receive(&mut self) -> ToStore {
        while self.pending.is_empty() {
            let batch = timeout(TIME_LIMIT, self.inbound.message())
                .await
                .expect("an answer")
                .unwrap()
                .unwrap();
            self.pending = decode_shard_batch(batch).unwrap();
        }
        self.pending.remove(0)
    }

    async fn end(mut self) -> Option<Error> {
        loop {
            match timeout(TIME_LIMIT, self.inbound.message()).await.expect("an end") {
                Ok(Some(_)) => {}
                Ok(None) => return None,
                Err(status) => return Some(from_status(&status)),
            }
        }
    }

    async fn publish(&mut self, name: &str, put: u64, inline: Option<Bytes>) -> Verdict {
        let size_bytes = inline.as_ref().map_or(1 << 20, |bytes| bytes.len() as u64);
        self.send(ToShard::Publish(Publish {
            id: id(name),
            put: PutId(put),
            size_bytes,
            metadata: Metadata::default(),
            state: LocationState::Complete,
            retention: Retention::Pinned,
            pulling_from: None,
            inline: inline.map(Into::into),
            slot: None,
            wants_answer: true,
            returning: None,
        }))
        .await;
        match self.receive().await {
            ToStore::Published { verdict, .. } => verdict,
            other => panic!("not an answer to publish: {other:?}"),
        }
    }

    async fn query(&mut self, name: &str, request: u64, wait: Duration) -> ToStore {
        self.send(query(name, request, wait)).await;
        self.receive().await
    }
}

fn hello(node: &str, incarnation: u64) -> v1::Hello {
    let info = NodeInfo {
        node: NodeId::new(node).unwrap(),
        incarnation: Incarnation(incarnation),
        data_address: "127.0.0.1:7402".parse().unwrap(),
        labels: vec![("rack".to_owned(), "7".to_owned())],
        shards: ShardList::new(["127.0.0.1:7401"]),
        version: hoplite_core::Version::NEWEST,
    };
    encode_hello(&info, &ClusterId::new("hoplite").unwrap())
}

fn id(name: &str) -> ObjectId {
    ObjectId::new(name).unwrap()
}

fn query(name: &str, request: u64, timeout: Duration) -> ToShard {
    ToShard::Query(Query {
        request: RequestId(request),
        id: id(name),
        timeout,
        resume: None,
        avoid: Vec::new(),
    })
}

fn granted(message: ToStore) -> Grant {
    match message {
        ToStore::Granted(grant) => grant,
        other => panic!("not a grant: {other:?}"),
    }
}

#[tokio::test]
async fn hellos_of_another_version_or_cluster_are_refused_with_the_reason() {
    let server = Server::start().await;
    let refusal = async |hello| server.open(hello).await.err().expect("a refusal");
    let version = refusal(v1::Hello { version: 99, newest_version: 99, ..hello("a", 1) }).await;
    assert_eq!(
        version,
        Error::VersionMismatch { ours: 99, theirs: hoplite_proto::PROTOCOL_VERSION }
    );
    let cluster = refusal(v1::Hello { cluster: "other".to_owned(), ..hello("a", 1) }).await;
    assert!(matches!(cluster, Error::ClusterMismatch { .. }), "{cluster}");
    let name = refusal(v1::Hello { node: "no spaces".to_owned(), ..hello("a", 1) }).await;
    assert!(matches!(name, Error::InvalidName { .. }), "{name}");
    server.stop().await;
}

#[tokio::test]
async fn sessions_without_a_hello_are_refused() {
    let server = Server::start().await;
    let (sender, receiver) = mpsc::channel(1);
    sender.send(v1::StoreMessages::default()).await.unwrap();
    let error = server.open_with(sender, receiver).await.err().unwrap();
    assert!(matches!(error, Error::Malformed { .. }), "{error}");
    server.stop().await;
}

#[tokio::test]
async fn a_store_without_a_hello_is_disconnected() {
    let server = Server::start().await;
    let (sender, receiver) = mpsc::channel(1);
    let silent = server.open_with(sender, receiver).await.err().unwrap();
    assert!(matches!(silent, Error::Timeout { .. }), "{silent}");
    server.stop().await;
}

#[tokio::test]
async fn the_second_of_two_nodes_with_one_name_is_refused_and_the_first_goes_on() {
    let server = Server::start().await;
    let mut first = server.store("a").await;
    let error = server.open(hello("a", 2)).await.err().unwrap();
    assert_eq!(error, Error::NodeIdInUse { node: NodeId::new("a").unwrap() });
    assert_eq!(first.publish("x", 1, None).await, Verdict::Accepted);
    server.stop().await;
}

#[tokio::test]
async fn a_new_session_of_the_same_run_takes_the_place_of_the_old_one() {
    let server = Server::start().await;
    let old = server.store("a").await;
    let mut new = server.store("a").await;
    assert!(matches!(old.end().await, Some(Error::Unavailable { .. })));
    assert_eq!(new.publish("x", 1, None).await, Verdict::Accepted);
    server.stop().await;
}

#[tokio::test]
async fn a_published_copy_is_granted_and_inline_bytes_come_with_the_answer() {
    let server = Server::start().await;
    let mut sender = server.store("sender").await;
    let mut receiver = server.store("receiver").await;
    assert_eq!(sender.publish("large", 1, None).await, Verdict::Accepted);
    let small = Bytes::from_static(b"small");
    assert_eq!(sender.publish("small", 2, Some(small.clone())).await, Verdict::Accepted);

    let grant = granted(receiver.query("large", 1, TIME_LIMIT).await);
    assert_eq!(
        (grant.request, grant.sender.as_str(), grant.put),
        (RequestId(1), "sender", PutId(1))
    );
    match receiver.query("small", 2, TIME_LIMIT).await {
        ToStore::Inline { request: RequestId(2), bytes, .. } => assert_eq!(*bytes, *small),
        other => panic!("not inline: {other:?}"),
    }
    match receiver.query("absent", 3, Duration::from_millis(1)).await {
        ToStore::Failed { request: RequestId(3), error: Error::Timeout { .. } } => {}
        other => panic!("not a timeout: {other:?}"),
    }
    server.stop().await;
}

#[tokio::test]
async fn a_lost_session_returns_its_slot_to_a_waiting_receiver() {
    let server = Server::start().await;
    let mut sender = server.store("sender").await;
    sender.publish("x", 1, None).await;
    let mut first = server.store("first").await;
    granted(first.query("x", 1, TIME_LIMIT).await);
    // Once the shard forgets the first store's copy, the second store must wait for the sender's
    // slot.
    let (put, reason) = (PutId(1), UnpublishReason::PullEnded);
    first.send(ToShard::Unpublish { id: id("x"), put, reason }).await;
    let mut client = server.client().await;
    let describe = v1::DescribeRequest { id: Bytes::from_static(b"x") };
    until(async || {
        let object = client.describe(describe.clone()).await.unwrap().into_inner();
        object.locations.unwrap().locations.len() == 1
    })
    .await;
    let mut second = server.store("second").await;
    second.send(query("x", 1, TIME_LIMIT)).await;
    until(async || {
        client.status(v1::StatusRequest::default()).await.unwrap().into_inner().waiting_queries == 1
    })
    .await;

    drop(first);
    assert_eq!(granted(second.receive().await).sender.as_str(), "sender");
    server.stop().await;
}

#[tokio::test]
async fn an_object_whose_only_holder_is_gone_is_lost() {
    let server = Server::start().await;
    let mut holder = server.store("holder").await;
    holder.publish("x", 1, None).await;
    let mut other = server.store("other").await;
    drop(holder);
    match other.query("x", 1, TIME_LIMIT).await {
        ToStore::Failed { error: Error::ObjectLost { .. }, .. } => {}
        ToStore::Granted(grant) => {
            other
                .send(ToShard::ReturnSlot {
                    grant: grant.grant,
                    outcome: PullOutcome::SenderUnreachable,
                })
                .await;
            let again = other.query("x", 2, TIME_LIMIT).await;
            assert!(
                matches!(again, ToStore::Failed { error: Error::ObjectLost { .. }, .. }),
                "{again:?}"
            );
        }
        unexpected => panic!("neither lost nor granted: {unexpected:?}"),
    }
    server.stop().await;
}

#[tokio::test]
async fn a_malformed_message_ends_its_session_and_no_other() {
    let server = Server::start().await;
    let bad = server.store("bad").await;
    let mut good = server.store("good").await;
    let message = v1::StoreMessages { hello: None, messages: vec![v1::StoreMessage::default()] };
    bad.outbound.send(message).await.unwrap();
    assert!(matches!(bad.end().await, Some(Error::Malformed { .. })));
    assert_eq!(good.publish("x", 1, None).await, Verdict::Accepted);
    server.stop().await;
}

#[tokio::test]
async fn a_frame_above_the_limit_ends_its_session() {
    let server = Server::start().await;
    let store = server.store("a").await;
    let id = Bytes::from(vec![0; 5 << 20]);
    let body = v1::store_message::Body::Delete(v1::store_message::Delete {
        request: 1,
        id,
        ..Default::default()
    });
    let messages = vec![v1::StoreMessage { body: Some(body), ..Default::default() }];
    store.outbound.send(v1::StoreMessages { hello: None, messages }).await.unwrap();
    assert!(store.end().await.is_some());
    server.store("a").await;
    server.stop().await;
}

#[tokio::test]
async fn a_store_that_closes_its_side_is_answered_first() {
    let server = Server::start().await;
    let mut store = server.store("a").await;
    for put in 0..100 {
        store
            .send(ToShard::Subscribe {
                request: RequestId(put),
                id: id("x"),
                wants: Wants::Locations,
                makes: false,
            })
            .await;
    }
    store.outbound = mpsc::channel(1).0;
    for put in 0..100 {
        let answer = store.receive().await;
        assert!(
            matches!(answer, ToStore::Locations { request, .. } if request == RequestId(put)),
            "{answer:?}"
        );
    }
    assert_eq!(store.end().await, None);
    server.stop().await;
}

#[tokio::test]
async fn tools_see_objects_grants_and_nodes() {
    let server = Server::start().await;
    let mut sender = server.store("sender").await;
    let mut receiver = server.store("receiver").await;
    for name in ["a/1", "a/2", "b/1"] {
        sender.publish(name, 1, None).await;
    }
    let grant = granted(receiver.query("a/1", 1, TIME_LIMIT).await);
    let mut client = server.client().await;

    let request =
        v1::ListRequest { prefix: Bytes::from_static(b"a/"), after: Bytes::new(), limit: 1 };
    let page = client.list(request).await.unwrap().into_inner();
    assert_eq!((page.objects[0].id.as_ref(), page.more), (b"a/1".as_ref(), true));
    let request =
        v1::ListRequest { after: page.objects[0].id.clone(), limit: 9, ..Default::default() };
    let page = client.list(request).await.unwrap().into_inner();
    assert_eq!(
        page.objects.iter().map(|object| object.id.as_ref()).collect::<Vec<_>>(),
        [b"a/2", b"b/1"]
    );
    assert!(!page.more);

    let describe = v1::DescribeRequest { id: Bytes::from_static(b"a/1") };
    let object = client.describe(describe.clone()).await.unwrap().into_inner();
    assert_eq!(object.grants.len(), 1);
    assert_eq!(
        (object.grants[0].sender.as_str(), object.grants[0].receiver.as_str()),
        ("sender", "receiver")
    );
    assert_eq!(
        (object.grants[0].reason.as_str(), object.grants[0].outcome.as_str()),
        ("only-candidate", "")
    );
    assert_ne!(grant.grant, GrantId(0));
    receiver.send(ToShard::ReturnSlot { grant: grant.grant, outcome: PullOutcome::Complete }).await;
    until(async || {
        let object = client.describe(describe.clone()).await.unwrap().into_inner();
        object.grants[0].outcome == "complete"
    })
    .await;

    let status = client.status(v1::StatusRequest::default()).await.unwrap().into_inner();
    assert_eq!((status.cluster.as_str(), status.objects), ("hoplite", 3));
    let nodes: Vec<&str> = status.nodes.iter().map(|node| node.node.as_str()).collect();
    assert_eq!(nodes, ["receiver", "sender"]);
    assert!(status.nodes.iter().all(|node| node.connected && node.labels["rack"] == "7"));

    let empty = client.describe(v1::DescribeRequest::default()).await.unwrap_err();
    assert_eq!(from_status(&empty), Error::InvalidId { length_bytes: 0 });
    server.stop().await;
}

#[tokio::test]
async fn health_and_reflection_answer() {
    use tonic_health::pb::health_check_response::ServingStatus;
    use tonic_health::pb::health_client::HealthClient;
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

    let server = Server::start().await;
    let mut health = HealthClient::new(server.channel().await);
    for service in ["", "hoplite.v1.Directory"] {
        let request = tonic_health::pb::HealthCheckRequest { service: service.to_owned() };
        let status = health.check(request).await.unwrap().into_inner().status;
        assert_eq!(status, i32::from(ServingStatus::Serving), "{service:?}");
    }

    let mut reflection = ServerReflectionClient::new(server.channel().await);
    let mut reflect = async |question| {
        let request = tonic_reflection::pb::v1::ServerReflectionRequest {
            host: String::new(),
            message_request: Some(question),
        };
        let requests = futures::stream::once(std::future::ready(request));
        let mut answers = reflection.server_reflection_info(requests).await.unwrap().into_inner();
        answers.message().await.unwrap().unwrap().message_response.unwrap()
    };
    let MessageResponse::ListServicesResponse(list) =
        reflect(MessageRequest::ListServices(String::new())).await
    else {
        panic!("not a list of services");
    };
    let services: Vec<&str> = list.service.iter().map(|service| service.name.as_str()).collect();
    assert!(services.contains(&"hoplite.v1.Directory"), "{services:?}");
    assert!(services.contains(&"grpc.health.v1.Health"), "{services:?}");
    let symbol = reflect(MessageRequest::FileContainingSymbol("hoplite.v1.Error".to_owned())).await;
    assert!(matches!(symbol, MessageResponse::FileDescriptorResponse(_)), "{symbol:?}");
    server.stop().await;
}

#[tokio::test]
async fn garbage_on_the_port_is_ignored() {
    let server = Server::start().await;
    drop(TcpStream::connect(server.address).await.unwrap());
    for garbage in [
        &[0; 8][..],
        b"GET / HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff",
        &[0xff; 4096],
    ] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(garbage).await.unwrap();
        stream.shutdown().await.unwrap();
        let _ = timeout(TIME_LIMIT, stream.read_to_end(&mut Vec::new()))
            .await
            .expect("the connection is closed");
    }
    let mut store = server.store("a").await;
    assert_eq!(store.publish("x", 1, None).await, Verdict::Accepted);
    server.stop().await;
}

#[tokio::test]
async fn shutdown_ends_sessions_at_once_with_a_reason() {
    let server = Server::start().await;
    let store = server.store("a").await;
    let silent = TcpStream::connect(server.address).await.unwrap();
    let idle = server.client().await;
    server.shutdown.cancel();
    assert_eq!(store.end().await, Some(Error::ShuttingDown));
    let address = server.address;
    server.stop().await;
    assert!(TcpStream::connect(address).await.is_err(), "nobody listens any more");
    drop((silent, idle));
}

#[tokio::test]
async fn a_store_that_reads_nothing_loses_its_session_without_effect_on_others() {
    let limits = Limits { max_requests_per_client: 1 << 16, ..Limits::default() };
    let server = Server::with_limits(limits).await;
    let blocked = server.store("deaf").await;
    blocked
        .send(ToShard::Subscribe {
            request: RequestId(1),
            id: id("x"),
            wants: Wants::Locations,
            makes: false,
        })
        .await;
    let mut busy = server.store("busy").await;
    let mut client = server.client().await;
    until(async || {
        client.status(v1::StatusRequest::default()).await.unwrap().into_inner().subscriptions == 1
    })
    .await;
    let connected = async |client: &mut DirectoryClient<Channel>| {
        let status = client.status(v1::StatusRequest::default()).await.unwrap().into_inner();
        status.nodes.iter().any(|node| node.node == "deaf" && node.connected)
    };
    let mut rounds = 0;
    while connected(&mut client).await {
        rounds += 1;
        assert!(rounds < 1000, "the session never ended");
        let mut messages = Vec::new();
        for _ in 0..1000 {
            messages.push(encode_to_shard(publication()));
            messages.push(encode_to_shard(ToShard::Unpublish {
                id: id("x"),
                put: PutId(1),
                reason: hoplite_core::shard::UnpublishReason::Evicted,
            }));
        }
        busy.outbound.send(v1::StoreMessages { hello: None, messages }).await.unwrap();
        for _ in 0..1000 {
            busy.receive().await;
        }
    }
    assert_eq!(busy.publish("y", 1, None).await, Verdict::Accepted);
    assert!(matches!(blocked.end().await, Some(Error::LimitExceeded { .. })));
    server.stop().await;
}

fn publication() -> ToShard {
    ToShard::Publish(Publish {
        id: id("x"),
        put: PutId(1),
        size_bytes: 1 << 20,
        metadata: Metadata { user: Bytes::from(vec![7; 4000]), ..Metadata::default() },
        state: LocationState::Complete,
        retention: Retention::Evictable,
        pulling_from: None,
        inline: None,
        slot: None,
        wants_answer: true,
        returning: None,
    })
}

async fn until(mut condition: impl AsyncFnMut() -> bool) {
    let met = async {
        while !condition().await {
            tokio::task::yield_now().await;
        }
    };
    timeout(TIME_LIMIT, met).await.expect("the condition is met");
}
