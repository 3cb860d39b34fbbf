mod bad_input;
mod combine;
mod faults;
mod hops;
mod lanes;
mod rails;
mod stalls;
mod tokens;
mod transfer;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hoplite_core::error::Error;
use hoplite_core::id::{ClusterId, NodeId, ObjectId, PutId};
use hoplite_core::node::{DrainReport, Hop, HopReport, Producer};
use hoplite_core::shard::PullOutcome;
use hoplite_core::trace::TraceContext;
use hoplite_net::Transport;
use hoplite_shm::{Arena, Backing, Buffer, Extent, HEADER_BYTES};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::transport;
use crate::copies::LiveCopy;
use crate::data::connection::PeerConnection;
use crate::data::handshake::{self, Side};
use crate::data::{
    DataConfig, DataMetrics, Enlisted, Found, HopHost, HopRequest, Hosted, MemberHost, PullRequest,
    Puller, ServeRequest, ServeSource, Served,
};

const PUT: PutId = PutId(7);
const TIME_LIMIT: Duration = Duration::from_secs(300);

struct TestStore {
    copies: watch::Sender<HashMap<(ObjectId, PutId), Arc<LiveCopy>>>,
    serves: watch::Sender<usize>,
    delay: Duration,
    hops: mpsc::UnboundedSender<(Hop, mpsc::Sender<HopReport>)>,
    hosted: watch::Sender<usize>,
}

impl ServeSource for TestStore {
    async fn serve(self: &Arc<Self>, request: ServeRequest) -> Option<Found> {
        tokio::time::sleep(self.delay).await;
        let ServeRequest { id, put, awaits_hop, .. } = request;
        let key = (id, put);
        let mut copies = self.copies.subscribe();
        if awaits_hop {
            copies.wait_for(|copies| copies.contains_key(&key)).await.ok()?;
        }
        let live = copies.borrow().get(&key).cloned()?;
        self.serves.send_modify(|serves| *serves += 1);
        let test_store = Arc::clone(self);
        Some(Found::Memory(Served::new(live, move || {
            test_store.serves.send_modify(|serves| *serves -= 1)
        })))
    }

    fn has_slow_links(self: &Arc<Self>, _: Vec<NodeId>) {}

    async fn drain(self: &Arc<Self>, _: Option<Duration>) -> (DrainReport, TaskTrackerToken) {
        (DrainReport::default(), TaskTracker::new().token())
    }

    fn refused_version(self: &Arc<Self>, _: Error) {}
}

impl HopHost for TestStore {
    fn host(self: &Arc<Self>, HopRequest { spec: hop, .. }: HopRequest) -> Hosted {
        let (sender, reports) = mpsc::channel(Hosted::MAX_REPORTS);
        self.hosted.send_modify(|hosted| *hosted += 1);
        let _ = self.hops.send((hop, sender));
        let test_store = Arc::clone(self);
        Hosted::new(reports, move || test_store.hosted.send_modify(|hosted| *hosted -= 1))
    }
}

impl MemberHost for TestStore {
    fn enlist(
        self: &Arc<Self>,
        _plan: Box<hoplite_core::collective::Plan>,
        _trace: Option<TraceContext>,
    ) -> Enlisted {
        let (_, reports) = mpsc::channel(Enlisted::MAX_REPORTS);
        Enlisted::new(reports, |_| {}, || {})
    }

    fn reject(
        self: &Arc<Self>,
        _target: ObjectId,
        _attempt: hoplite_core::collective::AttemptId,
        _error: hoplite_core::Error,
    ) {
    }

    fn how_made(&self, _target: &ObjectId) -> Option<hoplite_core::node::ReduceRecord> {
        None
    }
}

impl TestStore {
    fn add(&self, name: &str, live: &Arc<LiveCopy>) {
        self.copies.send_modify(|copies| drop(copies.insert((id(name), PUT), Arc::clone(live))));
    }

    async fn wait_for_serves(&self, count: usize) {
        let mut serves = self.serves.subscribe();
        timeout(TIME_LIMIT, serves.wait_for(|serves| *serves == count)).await.unwrap().unwrap();
    }

    async fn wait_for_hosted(&self, count: usize) {
        let mut hosted = self.hosted.subscribe();
        timeout(TIME_LIMIT, hosted.wait_for(|hosted| *hosted == count)).await.unwrap().unwrap();
    }
}

struct TestNode {
    config: Arc<DataConfig>,
    metrics: Arc<DataMetrics>,
    test_store: Arc<TestStore>,
    hops: mpsc::UnboundedReceiver<(Hop, mpsc::Sender<HopReport>)>,
    address: SocketAddr,
    puller: Arc<Puller>,
    shutdown: CancellationToken,
    server: JoinHandle<()>,
}

impl TestNode {
    async fn start(name: &str) -> Self {
        Self::start_with(config(name), Duration::ZERO).await
    }

    async fn start_with(config: DataConfig, delay: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::start_at(vec![listener], config, delay).await
    }

    async fn start_at(listeners: Vec<TcpListener>, config: DataConfig, delay: Duration) -> Self {
        let address = listeners[0].local_addr().unwrap();
        let config = Arc::new(config);
        let metrics = Arc::new(DataMetrics::default());
        let (hop_sender, hops) = mpsc::unbounded_channel();
        let test_store = Arc::new(TestStore {
            copies: watch::Sender::default(),
            serves: watch::Sender::new(0),
            delay,
            hops: hop_sender,
            hosted: watch::Sender::new(0),
        });
        let shutdown = CancellationToken::new();
        let server = tokio::spawn(crate::data::run(
            listeners,
            Arc::clone(&config),
            Arc::clone(&test_store),
            Arc::clone(&metrics),
            Some(tokio::runtime::Handle::current()),
            shutdown.clone(),
        ));
        let puller = Arc::new(Puller::new(Arc::clone(&config), Arc::clone(&metrics)));
        Self { config, metrics, test_store, hops, address, puller, shutdown, server }
    }

    fn request(&self, name: &str) -> PullRequest {
        request(name, self.config.node.as_str(), self.address)
    }

    async fn pull(&self, sender: &Self, name: &str, live: &LiveCopy) -> (u64, PullOutcome) {
        let cancel = CancellationToken::new();
        timeout(TIME_LIMIT, self.puller.pull(&sender.request(name), live, &cancel)).await.unwrap()
    }

    fn start_pull(
        &self,
        request: PullRequest,
        live: &Arc<LiveCopy>,
    ) -> (JoinHandle<(u64, PullOutcome)>, CancellationToken) {
        let (puller, live, cancel) =
            (Arc::clone(&self.puller), Arc::clone(live), CancellationToken::new());
        let token = cancel.clone();
        let pull =
            async move { timeout(TIME_LIMIT, puller.pull(&request, &live, &token)).await.unwrap() };
        (tokio::spawn(pull), cancel)
    }

    async fn stop(self) {
        self.shutdown.cancel();
        timeout(TIME_LIMIT, self.server).await.unwrap().unwrap();
    }
}

fn config(name: &str) -> DataConfig {
    let config = DataConfig::new(ClusterId::new("test").unwrap(), NodeId::new(name).unwrap());
    DataConfig { transport: transport(), max_lanes: 1, ..config }
}

fn id(name: &str) -> ObjectId {
    ObjectId::new(name).unwrap()
}

fn request(name: &str, sender: &str, sender_address: SocketAddr) -> PullRequest {
    let sender = NodeId::new(sender).unwrap();
    PullRequest {
        id: id(name),
        put: PUT,
        offset_bytes: 0,
        sender,
        sender_address,
        silence_limit: None,
        trace: None,
    }
}

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn content(size_bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(size_bytes + 8);
    while bytes.len() < size_bytes {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(&(state >> 16).to_le_bytes());
    }
    bytes.truncate(size_bytes);
    bytes
}

fn buffer(size_bytes: u64) -> Buffer {
    let (arena, extent) = arena(size_bytes);
    let buffer = arena.buffer(extent, size_bytes).unwrap();
    buffer.initialise();
    buffer
}

fn arena(size_bytes: u64) -> (Arc<Arena>, Extent) {
    let length_bytes = (HEADER_BYTES + size_bytes).next_multiple_of(4096);
    (Arena::create(Backing::Pages, length_bytes).unwrap(), Extent { offset_bytes: 0, length_bytes })
}

fn empty(size_bytes: u64) -> Arc<LiveCopy> {
    Arc::new(LiveCopy::new(buffer(size_bytes), Producer::Store))
}

fn filled(bytes: &[u8]) -> Arc<LiveCopy> {
    let live = empty(bytes.len() as u64);
    live.buffer().write(0, bytes);
    live.complete();
    live
}

fn prefix(live: &LiveCopy, length_bytes: u64) -> Vec<u8> {
    let mut bytes = vec![0; length_bytes as usize];
    live.buffer().read(0, &mut bytes);
    bytes
}

async fn arrived(live: &LiveCopy, valid_bytes: u64) {
    while timeout(TIME_LIMIT, live.beyond(valid_bytes - 1)).await.unwrap().unwrap() < valid_bytes {}
}

struct FakePeer {
    listener: TcpListener,
    config: DataConfig,
}

impl FakePeer {
    async fn start(name: &str) -> (Self, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (Self { listener, config: config(name) }, address)
    }

    async fn accept(&self) -> PeerConnection {
        let (stream, _) = timeout(TIME_LIMIT, self.listener.accept()).await.unwrap().unwrap();
        handshake::open(&self.config, stream, Side::Accepting, TIME_LIMIT).await.unwrap().0
    }
}

async fn connect(node: &TestNode) -> PeerConnection {
    let stream = TcpStream::connect(node.address).await.unwrap();
    handshake::open(
        &config("tester"),
        stream,
        Side::Connecting(&(node.config.node.clone(), node.address)),
        TIME_LIMIT,
    )
    .await
    .unwrap()
    .0
}
