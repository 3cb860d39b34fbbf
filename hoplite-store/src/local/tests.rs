use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bytes::BytesMut;
use hoplite_core::error::Error;
use hoplite_core::extent::Extent;
use hoplite_core::node::{self, CallId, CopyId, Inspection, Node, NodeConfig, Until};
use hoplite_core::placement::ShardMap;
use hoplite_core::topology::place::EVERYWHERE;
use hoplite_core::{ClusterId, Limits, Metadata, NodeId, ObjectId};
use hoplite_net::HalfOpen;
use hoplite_proto::framing::{self, MAX_RESPONSE_BYTES, max_request_bytes};
use hoplite_proto::local::{Request, Response, decode_response, encode_request};
use hoplite_proto::{PROTOCOL_VERSION, v1};
use hoplite_shm::{Arena, Backing};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::turns::LastTurn;
use super::{LocalPlane, MAX_HALF_OPEN, Shares, SocketAccess, connection};
use hoplite_core::plan::collective::SchedulePreference;

use crate::config::ClientRules;
use crate::data::{DataConfig, DataMetrics, Puller};
use crate::engine::Engine;
use crate::shards::ShardLinks;

const HOUR: Duration = Duration::from_secs(3600);
const STATUS: Request = Request::Node(node::Request::Inspect(Inspection::Status));

async fn plane(limits: Limits) -> Arc<LocalPlane> {
    let arena = Arena::create(Backing::Pages, 1 << 20).unwrap();
    let (cluster, node) = (ClusterId::new("c").unwrap(), NodeId::new("n").unwrap());
    let metrics = Arc::new(DataMetrics::default());
    let config = Arc::new(DataConfig::new(cluster.clone(), node.clone()));
    let state = Node::new(NodeConfig {
        node: node.clone(),
        path: EVERYWHERE,
        capacity_bytes: arena.capacity_bytes(),
        limits: limits.clone(),
        shards: ShardMap::new(["127.0.0.1:1"]),
        allreduce_schedule: SchedulePreference::Auto,
        replicas: 1,
        spill: None,
        serves_directory: false,
        seed: 1,
    });
    let puller = Puller::new(config, Arc::clone(&metrics));
    let running = (TaskTracker::new(), tokio::runtime::Handle::current());
    let engine = Engine::new(state, arena, puller, metrics, running, CancellationToken::new());
    let newest = hoplite_core::Version::NEWEST;
    let shards = ShardLinks::none(hoplite_net::Credentials::default(), &cluster, &node, newest);
    Arc::new(LocalPlane {
        newest,
        engine,
        access: SocketAccess {
            mode: 0o600,
            owner: None,
            group: None,
            clients: ClientRules::default(),
        },
        half_open: HalfOpen::new(MAX_HALF_OPEN),
        shares: Shares::new(
            limits.max_clients,
            max_request_bytes(&limits),
            limits.max_ids_per_request,
        ),
        turns: Arc::default(),
        replicas: 1,
        limits,
        node,
        cluster,
        advertised: None,
        shards: Arc::new(shards),
        prefaulted_bytes: Arc::new(AtomicU64::new(0)),
    })
}

struct Client {
    stream: UnixStream,
    inbox: BytesMut,
    last_call: u64,
}

impl Client {
    async fn connect(plane: &Arc<LocalPlane>) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        tokio::spawn(connection::serve(theirs, Arc::clone(plane), CancellationToken::new()));
        let mut client = Self { stream: ours, inbox: BytesMut::new(), last_call: 0 };
        client
            .say(&v1::ClientHello {
                version: PROTOCOL_VERSION,
                program: "test".to_owned(),
                ..Default::default()
            })
            .await;
        client
    }

    async fn greeted(plane: &Arc<LocalPlane>) -> Self {
        let mut client = Self::connect(plane).await;
        assert_eq!(client.hear::<v1::ServerHello>().await.unwrap().error, None);
        client
    }

    async fn say(&mut self, message: &impl Message) {
        let mut frame = BytesMut::new();
        framing::encode(message, &mut frame).unwrap();
        self.stream.write_all(&frame).await.unwrap();
    }

    async fn hear<M: Message + Default>(&mut self) -> Option<M> {
        loop {
            if let Some(message) = framing::decode(&mut self.inbox, MAX_RESPONSE_BYTES).unwrap() {
                return Some(message);
            }
            // Reads byte by byte, because reads also end at passed descriptors.
            let mut byte = [0];
            if self.stream.read(&mut byte).await.unwrap() == 0 {
                return None;
            }
            self.inbox.extend_from_slice(&byte);
        }
    }

    async fn ask(&mut self, request: impl Into<Request>) -> CallId {
        self.last_call += 1;
        self.say(&encode_request(CallId(self.last_call), request.into())).await;
        CallId(self.last_call)
    }

    async fn answer(&mut self) -> (CallId, Result<Response, Error>) {
        decode_response(self.hear().await.unwrap())
    }

    async fn create(&mut self, id: &str, size_bytes: u64) -> (CopyId, Extent) {
        let id = ObjectId::new(id).unwrap();
        let metadata = Metadata::default();
        self.ask(Request::Node(node::Request::Create { id, size_bytes, metadata, timeout: HOUR }))
            .await;
        match self.answer().await.1.unwrap() {
            Response::Node(node::Response::Created(view)) => (view.copy, view.extent),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_cancelled_wait_for_progress_is_over() {
    let plane = plane(Limits { max_requests_per_client: 2, ..Limits::default() }).await;
    let mut client = Client::greeted(&plane).await;
    let (copy, _) = client.create("a", 10).await;
    let follow = |timeout| Request::Node(node::Request::Follow { copy, beyond_bytes: 0, timeout });
    let first = client.ask(follow(HOUR)).await;
    let second = client.ask(follow(HOUR)).await;
    let third = client.ask(follow(HOUR)).await;
    let (call, refused) = client.answer().await;
    assert_eq!(call, third);
    assert!(matches!(refused, Err(Error::LimitExceeded { .. })), "{refused:?}");
    for call in [first, second] {
        client.ask(Request::Node(node::Request::Cancel { call })).await;
    }
    let fourth = client.ask(follow(Duration::ZERO)).await;
    let (call, answer) = client.answer().await;
    assert_eq!(call, fourth);
    assert!(matches!(answer, Err(Error::Timeout { .. })), "{answer:?}");
}

#[tokio::test]
async fn a_client_follows_only_what_it_holds() {
    let plane = plane(Limits::default()).await;
    let mut writer = Client::greeted(&plane).await;
    let (copy, _) = writer.create("a", 10).await;
    let mut stranger = Client::greeted(&plane).await;
    let follow = node::Request::Follow { copy, beyond_bytes: 0, timeout: Duration::ZERO };
    stranger.ask(Request::Node(follow)).await;
    let (_, answer) = stranger.answer().await;
    assert_eq!(answer, Err(Error::UnknownReference { reference: copy.0 }));
}

#[tokio::test]
async fn a_client_that_reads_late_gets_all_answers() {
    const COUNT: u64 = 20_000;
    let plane = plane(Limits::default()).await;
    let mut client = Client::greeted(&plane).await;
    let unknown = CopyId(1 << 40);
    let mut calls = Vec::new();
    for _ in 0..COUNT {
        let follow = node::Request::Follow { copy: unknown, beyond_bytes: 0, timeout: HOUR };
        calls.push(client.ask(Request::Node(follow)).await);
    }
    let mut other = Client::greeted(&plane).await;
    other.ask(STATUS).await;
    other.answer().await.1.unwrap();
    for call in calls {
        let answer = tokio::time::timeout(Duration::from_secs(300), client.answer()).await.unwrap();
        assert_eq!(answer, (call, Err(Error::UnknownReference { reference: unknown.0 })));
    }
}

#[tokio::test]
async fn a_client_that_waits_for_its_turn_gets_the_answers_to_earlier_requests() {
    const CROWD: u64 = 20_000;
    let plane = plane(Limits::default()).await;
    let mut client = Client::greeted(&plane).await;
    let (copy, _) = client.create("a", 10).await;
    let follow = node::Request::Follow { copy, beyond_bytes: 0, timeout: HOUR };
    let early = client.ask(Request::Node(follow)).await;
    client.ask(STATUS).await;
    assert!(matches!(client.answer().await.1, Ok(Response::Status(_))));
    let crowd: Vec<_> =
        (0..CROWD).map(|_| plane.turns.enter(LastTurn::EARLIEST, 1 << 20)).collect();
    client.ask(STATUS).await;
    while plane.turns.waiters().0 <= CROWD {
        tokio::task::yield_now().await;
    }
    plane.engine.copies().get(copy).unwrap().fail(Error::unavailable("the test"));
    let (call, answer) = client.answer().await;
    assert_eq!((call, answer.is_err()), (early, true));
    assert!(plane.turns.waiters().1 > 0, "the client must not have had its turn");
    assert!(matches!(client.answer().await.1, Ok(Response::Status(_))));
    drop(crowd);
}

#[tokio::test]
async fn a_client_that_asks_for_many_contents_at_once_gets_them_all() {
    const COUNT: u64 = 1000;
    let plane = plane(Limits::default()).await;
    let mut client = Client::greeted(&plane).await;
    let (copy, _) = client.create("a", node::MAX_CONTENTS_BYTES).await;
    client.ask(Request::Node(node::Request::SealUnconfirmed { copy })).await;
    let mut requests = BytesMut::new();
    let calls: Vec<CallId> = (1000..1000 + COUNT).map(CallId).collect();
    for call in &calls {
        let id = ObjectId::new("a").unwrap();
        let get =
            node::Request::Get { id, until: Until::Contents, timeout: HOUR, allow_stale: false };
        framing::encode(&encode_request(*call, Request::Node(get)), &mut requests).unwrap();
    }
    client.stream.write_all(&requests).await.unwrap();
    for call in calls {
        let answer = tokio::time::timeout(Duration::from_secs(300), client.answer()).await.unwrap();
        let (answered, Ok(Response::Node(node::Response::Contents { bytes, .. }))) = answer else {
            panic!("{answer:?}")
        };
        assert_eq!((answered, bytes.len() as u64), (call, node::MAX_CONTENTS_BYTES));
    }
}

#[tokio::test]
async fn what_a_client_said_before_it_left_counts_even_if_it_takes_no_answer() {
    let plane = plane(Limits::default()).await;
    let mut other = Client::greeted(&plane).await;
    let mut client = Client::greeted(&plane).await;
    let (copy, _) = client.create("a", 10).await;
    rustix::net::shutdown(&client.stream, rustix::net::Shutdown::Read).unwrap();
    client.ask(STATUS).await;
    for _ in 0..3 {
        other.ask(STATUS).await;
        other.answer().await.1.unwrap();
    }
    client.ask(Request::Node(node::Request::SealUnconfirmed { copy })).await;
    drop(client);
    let id = ObjectId::new("a").unwrap();
    other
        .ask(Request::Node(node::Request::Get {
            id,
            until: Until::Complete,
            timeout: HOUR,
            allow_stale: false,
        }))
        .await;
    let (_, answer) = other.answer().await;
    assert!(matches!(answer, Ok(Response::Node(node::Response::Object(_)))), "{answer:?}");
}

#[tokio::test]
async fn who_does_not_speak_the_protocol_is_told_so() {
    let plane = plane(Limits::default()).await;
    let mut client = Client::greeted(&plane).await;
    client.stream.write_all(&[255; 4]).await.unwrap();
    let (call, answer) = client.answer().await;
    assert_eq!(call, CallId(0));
    assert!(matches!(answer, Err(Error::Malformed { .. })), "{answer:?}");
    assert!(client.hear::<v1::Response>().await.is_none());

    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut stranger = Client { stream: ours, inbox: BytesMut::new(), last_call: 0 };
    stranger.stream.write_all(&[255; 4]).await.unwrap();
    connection::serve(theirs, Arc::clone(&plane), CancellationToken::new()).await;
    assert!(stranger.hear::<v1::ServerHello>().await.unwrap().error.is_some());
}

#[tokio::test]
async fn there_are_no_more_clients_than_allowed_and_a_request_may_follow_the_hello_at_once() {
    let plane = plane(Limits { max_clients: 1, ..Limits::default() }).await;
    let mut client = Client::connect(&plane).await;
    client.ask(STATUS).await;
    assert_eq!(client.hear::<v1::ServerHello>().await.unwrap().error, None);
    assert!(matches!(client.answer().await.1, Ok(Response::Status(_))));
    let mut refused = Client::connect(&plane).await;
    assert!(refused.hear::<v1::ServerHello>().await.unwrap().error.is_some());
}

#[tokio::test]
async fn all_that_a_client_held_is_taken_back() {
    let plane = plane(Limits::default()).await;
    let mut client = Client::greeted(&plane).await;
    let (_, extent) = client.create("a", 10).await;
    drop(client);
    let mut other = Client::greeted(&plane).await;
    assert_eq!(other.create("a", 10).await.1, extent);
}
