//! `hoplite bench directory`: gets that one shard serves over gRPC, compared with the same messages
//! inside this process.
//!
//! After each grant, a simulated store reports the complete copy and then its eviction.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use futures::future::try_join_all;
use hoplite_core::batch::MAX_BATCH_MESSAGES;
use hoplite_core::id::Incarnation;
use hoplite_core::placement::ShardList;
use hoplite_core::shard::{
    Effect, Event, Grant, LocationState, NodeInfo, Publish, Query, RequestId, Retention, Shard,
    ShardConfig, ToShard, ToStore, UnpublishReason, Verdict,
};
use hoplite_core::{ClusterId, Limits, Metadata, NodeId, ObjectId, PutId, Time};
use hoplite_daemon::Security;
use hoplite_net::opening::Caller;
use hoplite_net::{Credentials, Route};
use hoplite_proto::directory::{check_welcome, decode_shard_batch, encode_hello, encode_to_shard};
use hoplite_proto::v1::directory_client::DirectoryClient;
use hoplite_proto::v1::{ShardMessages, StoreMessages};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

use super::processor;
use super::report::{Figure, Report};
use crate::cluster::Cluster;

const TIMEOUT: Duration = Duration::from_secs(60);
const SESSIONS_PER_CONNECTION: usize = 100;
const MAX_QUEUED_FRAMES: usize = 64;
/// A query, and the reports of the copy and of its eviction.
const MESSAGES_PER_GET: f64 = 3.0;
const TARGET_OPERATIONS: f64 = 100_000.0;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Number of objects that are requested in turn
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    objects: u32,
    /// Number of stores that have these objects; each also has a copy of one hot object, which is
    /// measured separately
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    copies: u32,
    /// Number of stores that get, each one object at a time
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1000))]
    receivers: u32,
    /// Number of timed gets, of the many objects and of the hot object
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    gets: u32,
}

#[derive(Debug, Clone, Copy)]
enum Wanted {
    Each(u64),
    /// The one object that each of the `copies` stores has.
    Hot,
}

#[derive(Debug, Clone, Copy)]
struct Speed {
    gets: u32,
    elapsed: Duration,
    cost: Duration,
}

pub(super) fn measure(cluster: &Cluster, arguments: &Arguments) -> anyhow::Result<Report> {
    let &Arguments { objects, copies, receivers, gets } = arguments;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let pid = *cluster.shard_pids.first().context("a cluster without a directory")?;
    let all = [Wanted::Each(objects.into()), Wanted::Hot];
    let over_grpc = runtime.block_on(over_grpc(cluster, arguments, pid, &all))?;
    let in_process: Vec<Speed> =
        all.iter().map(|wanted| in_process(arguments, *wanted)).collect::<anyhow::Result<_>>()?;

    let mut report = Report::new("directory");
    report.note(format!(
        "One shard, {gets} gets by {receivers} stores, each with one in flight; the stores share \
         the machine with the shard."
    ));
    report.note("A get is three messages to the shard: the query, the copy, and its eviction.");
    let names = [format!("{objects} objects"), format!("one object of {copies} copies")];
    for ((name, over_grpc), in_process) in names.iter().zip(over_grpc).zip(in_process) {
        let figures = [
            ("gets per second over gRPC", over_grpc.per_second(over_grpc.elapsed), None),
            (
                "gets per second of the shard's processor time",
                over_grpc.per_second(over_grpc.cost),
                None,
            ),
            (
                "messages per second of the shard's processor time",
                over_grpc.per_second(over_grpc.cost) * MESSAGES_PER_GET,
                Some(TARGET_OPERATIONS),
            ),
            (
                "messages per second in process",
                in_process.per_second(in_process.cost) * MESSAGES_PER_GET,
                Some(TARGET_OPERATIONS),
            ),
        ];
        for (what, value, target) in figures {
            report.figure(Figure { name: format!("{name}: {what}"), value, target });
        }
    }
    Ok(report)
}

impl Speed {
    fn per_second(&self, time: Duration) -> f64 {
        f64::from(self.gets) / time.as_secs_f64()
    }
}

async fn over_grpc(
    cluster: &Cluster,
    arguments: &Arguments,
    shard_pid: u32,
    all: &[Wanted],
) -> anyhow::Result<Vec<Speed>> {
    let (holders, receivers) =
        (stores("holder", arguments.copies)?, stores("receiver", arguments.receivers)?);
    let mut sessions = Sessions::to(cluster)?;
    let mut prepared = Vec::new();
    for holder in &holders {
        prepared.push(sessions.open(holder).await?);
    }
    for (number, session) in prepared.iter_mut().enumerate() {
        session.publish(held_by(number, arguments)?).await?;
    }
    let mut asking = Vec::new();
    for receiver in &receivers {
        asking.push(sessions.open(receiver).await?);
    }
    let mut speeds = Vec::new();
    for wanted in all {
        let before = processor::time_of(&[shard_pid])?;
        let started = Instant::now();
        let each = asking.iter_mut().enumerate().map(|(number, session)| {
            session.get(turns(number, receivers.len(), arguments.gets), *wanted)
        });
        try_join_all(each).await?;
        let elapsed = started.elapsed();
        let cost = processor::time_of(&[shard_pid])?.saturating_sub(before);
        speeds.push(Speed { gets: arguments.gets, elapsed, cost });
    }
    Ok(speeds)
}

fn in_process(arguments: &Arguments, wanted: Wanted) -> anyhow::Result<Speed> {
    let config = ShardConfig { limits: Limits::default(), warm_up: Duration::ZERO };
    let mut shard = Shard::new(config, Time::ZERO);
    let mut effects = Vec::new();
    let (holders, receivers) =
        (stores("holder", arguments.copies)?, stores("receiver", arguments.receivers)?);
    for store in holders.iter().chain(&receivers) {
        shard.connect(Time::ZERO, store.clone(), &mut effects);
    }
    for (number, holder) in holders.iter().enumerate() {
        for publish in held_by(number, arguments)? {
            let message = ToShard::Publish(publish);
            shard.apply(
                Time::ZERO,
                Event::Message { node: holder.node.clone(), message },
                &mut effects,
            );
        }
    }
    let started = Instant::now();
    for turn in 0..arguments.gets {
        let now = Time::ZERO + started.elapsed();
        let node = &receivers[turn as usize % receivers.len()].node;
        let message = ToShard::Query(query(turn.into(), wanted)?);
        effects.clear();
        shard.apply(now, Event::Message { node: node.clone(), message }, &mut effects);
        let grant = effects.drain(..).find_map(|effect| match effect {
            Effect::Send { message: ToStore::Granted(grant), .. } => Some(grant),
            _ => None,
        });
        for message in taken_and_evicted(grant.context("a query was not granted")?) {
            shard.apply(now, Event::Message { node: node.clone(), message }, &mut effects);
        }
    }
    let elapsed = started.elapsed();
    Ok(Speed { gets: arguments.gets, elapsed, cost: elapsed })
}

fn turns(receiver: usize, receivers: usize, gets: u32) -> impl Iterator<Item = u64> {
    (receiver as u64..u64::from(gets)).step_by(receivers)
}

fn stores(kind: &str, count: u32) -> anyhow::Result<Vec<NodeInfo>> {
    let store = |number: u32| {
        Ok(NodeInfo {
            node: NodeId::new(&format!("{kind}-{number}"))?,
            incarnation: Incarnation(1),
            data_address: "127.0.0.1:1".parse()?,
            labels: Vec::new(),
            shards: ShardList::new(["shard"]),
            version: hoplite_core::Version::NEWEST,
        })
    };
    (0..count).map(store).collect()
}

fn held_by(holder: usize, arguments: &Arguments) -> anyhow::Result<Vec<Publish>> {
    let own = (holder as u64..arguments.objects.into()).step_by(arguments.copies as usize);
    let hot = copy_of(hot()?, if holder == 0 { Retention::Pinned } else { Retention::Evictable });
    let own = own.map(|object| Ok(copy_of(object_id(object)?, Retention::Pinned)));
    own.chain([Ok(hot)]).collect()
}

fn copy_of(id: ObjectId, retention: Retention) -> Publish {
    Publish {
        id,
        put: PutId(1),
        size_bytes: 4 << 20,
        metadata: Metadata::default(),
        state: LocationState::Complete,
        retention,
        pulling_from: None,
        inline: None,
        slot: None,
        wants_answer: true,
        returning: None,
    }
}

fn object_id(object: u64) -> anyhow::Result<ObjectId> {
    Ok(ObjectId::new(format!("object-{object:08}"))?)
}

fn hot() -> anyhow::Result<ObjectId> {
    Ok(ObjectId::new("hot")?)
}

fn query(turn: u64, wanted: Wanted) -> anyhow::Result<Query> {
    let id = match wanted {
        Wanted::Each(objects) => object_id(turn % objects)?,
        Wanted::Hot => hot()?,
    };
    Ok(Query { request: RequestId(turn), id, timeout: TIMEOUT, resume: None, avoid: Vec::new() })
}

fn taken_and_evicted(grant: Grant) -> [ToShard; 2] {
    let Grant { id, put, size_bytes, metadata, grant, .. } = grant;
    let copy = Publish {
        put,
        size_bytes,
        metadata,
        slot: Some(grant),
        wants_answer: false,
        ..copy_of(id.clone(), Retention::Evictable)
    };
    [ToShard::Publish(copy), ToShard::Unpublish { id, put, reason: UnpublishReason::Evicted }]
}

struct Sessions {
    endpoint: Endpoint,
    credentials: Credentials,
    channels: Vec<Channel>,
    opened: usize,
}

impl Sessions {
    fn to(cluster: &Cluster) -> anyhow::Result<Self> {
        let address = cluster.shards.first().context("a cluster without a directory")?;
        let endpoint = Endpoint::from_shared(format!("http://{address}"))?.tcp_nodelay(true);
        let credentials = Security::from_environment().credentials()?;
        Ok(Self { endpoint, credentials, channels: Vec::new(), opened: 0 })
    }

    async fn open(&mut self, store: &NodeInfo) -> anyhow::Result<Session> {
        if self.opened.is_multiple_of(SESSIONS_PER_CONNECTION) {
            self.channels.push(self.credentials.channel(
                &self.endpoint,
                Caller::default(),
                Route::Network,
            ));
        }
        self.opened += 1;
        let channel = self.channels.last().context("there is a connection")?.clone();
        Session::open(channel, store).await
    }
}

struct Session {
    outbound: mpsc::Sender<StoreMessages>,
    inbound: Streaming<ShardMessages>,
}

impl Session {
    async fn open(service: Channel, store: &NodeInfo) -> anyhow::Result<Self> {
        let (outbound, mut frames) = mpsc::channel(MAX_QUEUED_FRAMES);
        let cluster = std::env::var("HOPLITE_CLUSTER").unwrap_or_else(|_| "hoplite".to_owned());
        let cluster = ClusterId::new(&cluster)?;
        let hello =
            StoreMessages { hello: Some(encode_hello(store, &cluster)), messages: Vec::new() };
        outbound.send(hello).await?;
        let frames = futures::stream::poll_fn(move |context| frames.poll_recv(context));
        let mut inbound = DirectoryClient::new(service).session(frames).await?.into_inner();
        let first = timeout(TIMEOUT, inbound.message()).await??;
        let welcome =
            first.and_then(|first| first.welcome).context("the shard did not welcome a store")?;
        check_welcome(&welcome, hoplite_core::Version::NEWEST)?;
        Ok(Self { outbound, inbound })
    }

    async fn say(&self, messages: impl IntoIterator<Item = ToShard>) -> anyhow::Result<()> {
        let messages = messages.into_iter().map(encode_to_shard).collect();
        Ok(self.outbound.send(StoreMessages { hello: None, messages }).await?)
    }

    async fn hear(&mut self) -> anyhow::Result<Vec<ToStore>> {
        let batch = timeout(TIMEOUT, self.inbound.message()).await??;
        Ok(decode_shard_batch(batch.context("the shard has ended a session")?)?)
    }

    async fn publish(&mut self, copies: Vec<Publish>) -> anyhow::Result<()> {
        let mut copies = copies.into_iter().map(ToShard::Publish).peekable();
        while copies.peek().is_some() {
            let batch: Vec<ToShard> = copies.by_ref().take(MAX_BATCH_MESSAGES).collect();
            let mut open = batch.len();
            self.say(batch).await?;
            while open > 0 {
                for message in self.hear().await? {
                    match message {
                        ToStore::Published { verdict: Verdict::Accepted, .. } => open -= 1,
                        other => bail!("a publication was answered with {other:?}"),
                    }
                }
            }
        }
        Ok(())
    }

    async fn get(
        &mut self,
        turns: impl Iterator<Item = u64>,
        wanted: Wanted,
    ) -> anyhow::Result<()> {
        let mut ended = Vec::new();
        for turn in turns {
            ended.push(ToShard::Query(query(turn, wanted)?));
            self.say(ended.drain(..)).await?;
            for message in self.hear().await? {
                match message {
                    ToStore::Granted(grant) => ended.extend(taken_and_evicted(grant)),
                    other => bail!("a query was answered with {other:?}"),
                }
            }
            ensure!(!ended.is_empty(), "a query was not answered");
        }
        self.say(ended).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_get_is_granted_in_process() {
        let arguments = Arguments { objects: 20, copies: 40, receivers: 3, gets: 100 };
        for wanted in [Wanted::Each(20), Wanted::Hot] {
            assert_eq!(in_process(&arguments, wanted).unwrap().gets, 100);
        }
    }
}
