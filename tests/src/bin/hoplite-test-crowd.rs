//! Many simulated stores, for the directory's views: `hoplite-test-crowd ADDRESS NODES OBJECTS
//! RECEIVERS`.
//!
//! The stores have no bytes. RECEIVERS stores pull an object of the first store, in several chains.
//! Restarts after the directory has ended all sessions. Ends with its standard input.
#![forbid(unsafe_code)]

use std::io::{Read, Write};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use futures::StreamExt;
use futures::stream::{FuturesUnordered, TryStreamExt};
use hoplite_core::id::Incarnation;
use hoplite_core::load::{
    CombinationLoad, LinkLoad, Load, MAX_LINKS, ReduceLoad, Sender, TransferLoad,
};
use hoplite_core::placement::ShardList;
use hoplite_core::shard::{
    LocationState, NodeInfo, Publish, Query, RequestId, Retention, ToShard, ToStore,
};
use hoplite_core::{ClusterId, Metadata, NodeId, ObjectId, PutId};
use hoplite_proto::directory::{decode_shard_batch, encode_hello, encode_load, encode_to_shard};
use hoplite_proto::v1::directory_client::DirectoryClient;
use hoplite_proto::v1::{LoadReport, ShardMessages, StoreMessages};
use hoplite_tests::TIME_LIMIT;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tonic::Streaming;
use tonic::transport::Channel;

const BROADCAST: &str = "weights/step-1200";
const BROADCAST_BYTES: u64 = 2 << 30;
/// A node needs two streams, and a connection permits 128.
const NODES_PER_CONNECTION: usize = 60;
const BATCH: usize = 256;
static STARTED: LazyLock<Instant> = LazyLock::new(Instant::now);

type Client = DirectoryClient<Channel>;

struct Node {
    outbox: mpsc::Sender<StoreMessages>,
    inbound: Streaming<ShardMessages>,
    _reports: JoinSet<anyhow::Result<()>>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, nodes, objects, receivers] = &arguments[..] else {
        bail!("ADDRESS NODES OBJECTS RECEIVERS")
    };
    let (nodes, objects, receivers): (usize, usize, usize) =
        (nodes.parse()?, objects.parse()?, receivers.parse()?);
    ensure!(receivers < nodes, "the first node only sends");
    let started = Instant::now();
    let mut waiting = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
    let mut is_ready = false;
    for round in 1.. {
        let gathered = tokio::select! {
            gathered = gather(address, round, nodes, objects, receivers) => gathered,
            _ = &mut waiting => return Ok(()),
        };
        let mut crowd = match gathered {
            Ok(crowd) => crowd,
            Err(_) if is_ready || started.elapsed() < TIME_LIMIT => {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
            Err(error) => return Err(error),
        };
        if !std::mem::replace(&mut is_ready, true) {
            writeln!(std::io::stdout(), "ready")?;
        }
        let reading: FuturesUnordered<_> = crowd
            .iter_mut()
            .map(|node| async { while let Ok(Some(_)) = node.inbound.message().await {} })
            .collect();
        tokio::select! {
            () = reading.collect::<()>() => {}
            _ = &mut waiting => return Ok(()),
        }
    }
    Ok(())
}

async fn gather(
    address: &str,
    round: u64,
    nodes: usize,
    objects: usize,
    receivers: usize,
) -> anyhow::Result<Vec<Node>> {
    let mut clients: Vec<Client> = Vec::new();
    for _ in 0..nodes.div_ceil(NODES_PER_CONNECTION) {
        clients.push(DirectoryClient::connect(format!("http://{address}")).await?);
    }
    let joining = (0..nodes).map(|number| {
        let client = clients[number / NODES_PER_CONNECTION].clone();
        join(client, (number, round), address, receivers)
    });
    let mut crowd: Vec<Node> = futures::stream::iter(joining).buffered(64).try_collect().await?;

    let published: Vec<ToShard> =
        (0..objects).map(|number| publish(&format!("objects/{number:06}"), 4096)).collect();
    for batch in published.chunks(BATCH) {
        crowd[0].send(batch.to_vec()).await?;
    }
    crowd[0].send(vec![publish(BROADCAST, BROADCAST_BYTES)]).await?;
    // A third of the receivers forms a chain, whose first quarter sends to the other receivers.
    let first = receivers.div_ceil(3);
    for (number, node) in crowd.iter_mut().enumerate().skip(1).take(first) {
        let slot = node.pull(number).await?;
        if number <= first / 4 {
            let complete = Publish {
                state: LocationState::Complete,
                retention: Retention::Evictable,
                slot: Some(slot),
                ..publication(BROADCAST, BROADCAST_BYTES)
            };
            node.send(vec![ToShard::Publish(complete)]).await?;
        }
    }
    for (number, node) in crowd.iter().enumerate().take(receivers + 1).skip(first + 1) {
        node.request(number).await?;
    }
    Ok(crowd)
}

impl Node {
    async fn send(&self, messages: Vec<ToShard>) -> anyhow::Result<()> {
        let messages = messages.into_iter().map(encode_to_shard).collect();
        self.outbox
            .send(StoreMessages { hello: None, messages })
            .await
            .context("the session has ended")
    }

    async fn request(&self, number: usize) -> anyhow::Result<()> {
        let id = ObjectId::new(BROADCAST)?;
        let request = RequestId(number as u64);
        let query = Query {
            request,
            id,
            timeout: Duration::from_secs(3600),
            resume: None,
            avoid: Vec::new(),
        };
        self.send(vec![ToShard::Query(query)]).await
    }

    async fn pull(&mut self, number: usize) -> anyhow::Result<hoplite_core::shard::GrantId> {
        self.request(number).await?;
        loop {
            let batch = tokio::time::timeout(TIME_LIMIT, self.inbound.message()).await??;
            for message in decode_shard_batch(batch.context("the session has ended")?)? {
                if let ToStore::Granted(grant) = message {
                    return Ok(grant.grant);
                }
            }
        }
    }
}

async fn join(
    mut client: Client,
    (number, round): (usize, u64),
    address: &str,
    receivers: usize,
) -> anyhow::Result<Node> {
    let node = NodeId::new(&format!("gpu-{number:04}"))?;
    let info = NodeInfo {
        node: node.clone(),
        incarnation: Incarnation(round),
        data_address: format!("10.{}.{}.{}:7400", number / 65536, number / 256 % 256, number % 256)
            .parse()?,
        labels: vec![
            ("rack".to_owned(), format!("{:02}", number / 32)),
            ("zone".to_owned(), if number % 64 < 32 { "a" } else { "b" }.to_owned()),
        ],
        shards: ShardList::new([address]),
        version: hoplite_core::Version::NEWEST,
    };
    let (outbox, mut queued) = mpsc::channel(16);
    outbox
        .send(StoreMessages {
            hello: Some(encode_hello(&info, &ClusterId::new("hoplite")?)),
            messages: Vec::new(),
        })
        .await?;
    let outbound = futures::stream::poll_fn(move |cx| queued.poll_recv(cx));
    let mut inbound = client.session(outbound).await?.into_inner();
    ensure!(
        inbound.message().await?.is_some_and(|first| first.welcome.is_some()),
        "the node is refused"
    );
    let mut reports = JoinSet::new();
    reports.spawn(send_load(client, node, load(number, receivers)));
    Ok(Node { outbox, inbound, _reports: reports })
}

async fn send_load(mut client: Client, node: NodeId, load: Load) -> anyhow::Result<()> {
    let (reports, mut queued) = mpsc::channel(2);
    reports.send(LoadReport { node: node.to_string(), ..LoadReport::default() }).await?;
    let outbound = futures::stream::poll_fn(move |cx| queued.poll_recv(cx));
    let mut orders = client.watch(outbound).await?.into_inner();
    while orders.message().await?.is_some() {
        let mut load = load.clone();
        load.combinations.iter_mut().for_each(|one| one.age += STARTED.elapsed());
        reports.send(encode_load(load)).await?;
    }
    Ok(())
}

fn past_reduce(number: usize) -> Vec<CombinationLoad> {
    const CHAIN: usize = 8;
    if !(1..=CHAIN).contains(&number) {
        return Vec::new();
    }
    let output = |number: usize| match number {
        CHAIN => ObjectId::new("gradients/sum-87").expect("a valid id"),
        _ => ObjectId::of_hop(PutId(number as u64)),
    };
    let sender = |before: usize| Sender {
        node: NodeId::new(&format!("gpu-{before:04}")).expect("a valid name"),
        hop: (before > 0).then(|| output(before)),
    };
    vec![CombinationLoad {
        number: 1,
        output: output(number),
        put: PutId(number as u64),
        op: "sum".to_owned(),
        plan: if number == CHAIN {
            "chain, estimated to take 39.2s".to_owned()
        } else {
            String::new()
        },
        senders: vec![sender(number - 1)],
        all_senders: 1,
        size_bytes: 2 << 30,
        age: Duration::from_secs(60 - 3 * number as u64),
        took: Duration::from_secs(18),
        is_complete: true,
    }]
}

fn load(number: usize, receivers: usize) -> Load {
    let spread = (number * 7919 % 1000) as u64;
    let capacity_bytes = 64 << 30;
    let pinned_bytes = (4 << 30) + spread * (20 << 20);
    let evictable_bytes = (spread * 37 % 1000) * (34 << 20);
    let is_receiver = (1..=receivers).contains(&number);
    let rate = if is_receiver { (180 << 20) + spread * 40_000 } else { 0 };
    let transfers = is_receiver.then(|| TransferLoad {
        id: ObjectId::new(BROADCAST).expect("a valid id"),
        size_bytes: BROADCAST_BYTES,
        valid_bytes: BROADCAST_BYTES * 9 / 10
            - BROADCAST_BYTES * number as u64 * 8 / 10 / (receivers as u64 + 1),
        rate,
    });
    let reduces = (number == 1).then(|| ReduceLoad {
        target: ObjectId::new("gradients/sum-88").expect("a valid id"),
        op: "sum".to_owned(),
        joined: 61,
        sources: 64,
        plan: "chain of 2 dimensions, estimated to take 412.0ms; the next best is a tree, 466.1ms"
            .to_owned(),
        elapsed: Duration::from_millis(213),
    });
    Load {
        combinations: past_reduce(number),
        capacity_bytes,
        free_bytes: capacity_bytes - pinned_bytes - evictable_bytes,
        pinned_bytes,
        evictable_bytes,
        copies: 10 + spread,
        clients: 8,
        pulls: u64::from(is_receiver),
        send_rate: if number <= receivers / 2 { rate } else { 0 },
        receive_rate: rate,
        shards_up: vec![true],
        transfers: transfers.into_iter().collect(),
        reduces: reduces.into_iter().collect(),
        links: links(number),
        ..Load::default()
    }
}

fn publication(id: &str, size_bytes: u64) -> Publish {
    Publish {
        id: ObjectId::new(id).expect("a valid id"),
        put: PutId(1),
        size_bytes,
        metadata: Metadata::default(),
        state: LocationState::Complete,
        retention: Retention::Pinned,
        pulling_from: None,
        inline: None,
        slot: None,
        wants_answer: false,
        returning: None,
    }
}

fn publish(id: &str, size_bytes: u64) -> ToShard {
    ToShard::Publish(publication(id, size_bytes))
}

/// A node's links to its rack, and to its place in other racks. Links of node 7 are slow.
fn links(number: usize) -> Vec<LinkLoad> {
    let (rack, place) = (number / 32, number % 32);
    let inside = (0..32)
        .filter(|other| *other != place)
        .map(|other| (rack * 32 + other, 2_900_000_000, 14_000));
    let across = (0..4)
        .filter(|other| *other != rack)
        .map(|other| (other * 32 + place, 1_150_000_000, 43_000));
    let all = across.chain(inside).enumerate().map(|(index, (peer, usual, round_trip_ns))| {
        let broken = number == 7 || peer == 7;
        let usual = if broken { 240_000_000 } else { usual };
        LinkLoad {
            peer: NodeId::new(&format!("gpu-{peer:04}")).expect("a valid name"),
            bytes_per_second: usual - usual / 8 * ((number * 31 + index * 17) % 8) as u64 / 8,
            round_trip_ns,
            is_slow: broken,
            lanes: 4,
        }
    });
    all.take(MAX_LINKS).collect()
}
