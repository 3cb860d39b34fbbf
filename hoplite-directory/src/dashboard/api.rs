//! JSON of bounded size for the page; long lists are split into pages.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use hoplite_core::error::Result;
use hoplite_core::id::{NodeId, ObjectId};
use hoplite_core::load::Load;
use hoplite_core::shard::{
    CopyOverview, Found, LocationState, LostObject, NodeOverview, ObjectOverview, ObjectTree,
    Retention, Shard, ShardStatus,
};
use hoplite_core::time::Time;
use hoplite_daemon::metrics::label_of;
use hoplite_proto::dashboard::query::to_hex;
use hoplite_proto::dashboard::{MAX_NODES, Question};
use serde::Serialize;

use super::DashboardData;
use super::heat::Heat;
use super::node::{MAX_NODE_TRANSFERS, NodePage, Recent, history};
use super::reduces::{Reduces, Schedules};
use super::rows::{EventRow, Grant, Node, ProblemRow, age_ms, millis, wall_ms};
use crate::events::RecordedEvent;
use crate::problems::{Problematic, problems_now};

const MAX_BUSY: usize = 50;
const MAX_RECENT: usize = 100;

pub(super) async fn answer(question: Question, data: &DashboardData) -> Result<String> {
    let shard = &data.shard;
    Ok(match question {
        Question::Overview => {
            let look = |shard: &Shard| {
                (
                    shard.counters(),
                    shard.node_counts(),
                    shard.shard_list().cloned(),
                    Problematic::of(shard),
                )
            };
            let (status, nodes, shards, objects) = shard.inspect(look).await?;
            let shards = shards.iter().flat_map(|list| list.names()).map(str::to_owned).collect();
            json(&Overview::new(data, status, nodes, shards, &objects))
        }
        Question::Nodes { after, limit } => {
            let (nodes, more) =
                shard.inspect(move |shard| shard.node_overviews(&after, limit)).await?;
            let loads = data.loads.of(nodes.iter().map(|node| &node.node));
            let nodes = nodes.into_iter().zip(loads);
            let nodes = nodes.map(|(node, load)| Node::new(node, load)).collect();
            json(&Nodes { nodes, more })
        }
        Question::Objects(search) => {
            let Found { objects, next } = shard.inspect(move |shard| shard.search(&search)).await?;
            let objects = rows(shard.uptime(), objects);
            json(&Objects { objects, next: next.map(|id| to_hex(id.as_bytes())) })
        }
        Question::Object(id) => {
            let asked = id.clone();
            let tree = shard.inspect(move |shard| shard.object_tree(&asked)).await?;
            json(&Tree::new(data, &id, tree))
        }
        Question::Transfers => {
            let busy = shard.inspect(|shard| shard.busiest_objects(MAX_BUSY)).await?;
            json(&Objects { objects: rows(shard.uptime(), busy), next: None })
        }
        Question::Reduces => json(&Reduces::new(&data.loads)),
        Question::Reduce(id) => json(&Schedules::new(&id, &data.loads)),
        Question::Links { group } => {
            let (nodes, _) = shard.inspect(|shard| shard.node_overviews("", MAX_NODES)).await?;
            json(&Links::new(&data.loads.all(), &nodes, &group))
        }
        Question::Events => {
            let losses = shard.inspect(Shard::losses).await?;
            json(&events(shard.uptime(), data.events.latest(), losses))
        }
        Question::History { node, after } => json(&history(data, node.as_ref(), after)),
        Question::Node(name) => {
            data.loads.request_detailed_reports(&name);
            let asked = name.clone();
            let look = move |shard: &Shard| {
                (shard.node_overview(&asked), shard.transfers_of(&asked, MAX_NODE_TRANSFERS))
            };
            let (overview, transfers) = shard.inspect(look).await?;
            let load = data.loads.of([&name]).pop().flatten();
            json(&NodePage::new(data, &name, (overview, load), transfers))
        }
        Question::Prefixes(prefix) => json(&data.prefixes.of(shard, prefix).await?),
        Question::Recent => {
            let recent = shard.inspect(|shard| shard.recent_objects(MAX_RECENT)).await?;
            json(&Recent::new(shard.uptime(), recent))
        }
    })
}

fn json(answer: &impl Serialize) -> String {
    serde_json::to_string(answer).expect("these types have names and numbers only")
}

#[derive(Serialize)]
struct Overview {
    cluster: String,
    version: &'static str,
    uptime_ms: u64,
    objects: usize,
    inline_bytes: u64,
    waiting: usize,
    subscriptions: usize,
    transfers: usize,
    tombstones: usize,
    under_replicated: usize,
    received_messages: u64,
    sent_messages: u64,
    queue: usize,
    connected: usize,
    away: usize,
    /// Number of stores with a load report. The sums below cover only these.
    telling: usize,
    capacity_bytes: u64,
    free_bytes: u64,
    pinned_bytes: u64,
    evictable_bytes: u64,
    reserved_bytes: u64,
    receive_rate: u64,
    pulls: u64,
    reduces: usize,
    shards: Vec<ShardHealth>,
    problems: Vec<ProblemRow>,
}

#[derive(Serialize)]
struct ShardHealth {
    name: String,
    /// Reporting stores that have a session with this shard.
    sessions: usize,
}

impl Overview {
    fn new(
        data: &DashboardData,
        status: ShardStatus,
        (connected, away): (usize, usize),
        shards: Vec<String>,
        objects: &Problematic,
    ) -> Self {
        let loads = data.loads.all();
        let sum = |what: fn(&Load) -> u64| {
            loads.iter().map(|(_, load)| what(load)).fold(0, u64::saturating_add)
        };
        let sessions = |index: usize| {
            loads
                .iter()
                .filter(|(_, load)| load.shards_up.get(index).copied().unwrap_or(false))
                .count()
        };
        let shards = shards
            .into_iter()
            .enumerate()
            .map(|(index, name)| ShardHealth { name, sessions: sessions(index) });
        let problems = problems_now(&data.shard, &data.loads, &data.events, objects);
        Self {
            problems: problems.iter().map(ProblemRow::from).collect(),
            cluster: data.cluster.to_string(),
            version: env!("CARGO_PKG_VERSION"),
            uptime_ms: millis(data.shard.uptime()),
            objects: status.objects,
            inline_bytes: status.inline_bytes,
            waiting: status.waiting_queries,
            subscriptions: status.subscriptions,
            transfers: status.grants,
            tombstones: status.tombstones,
            under_replicated: status.under_replicated,
            received_messages: status.received_messages,
            sent_messages: status.sent_messages,
            queue: data.shard.queue_length(),
            connected,
            away,
            telling: loads.len(),
            capacity_bytes: sum(|load| load.capacity_bytes),
            free_bytes: sum(|load| load.free_bytes),
            pinned_bytes: sum(|load| load.pinned_bytes),
            evictable_bytes: sum(|load| load.evictable_bytes),
            reserved_bytes: sum(|load| load.reserved_bytes),
            receive_rate: sum(|load| load.receive_rate),
            pulls: sum(|load| load.pulls),
            reduces: loads.iter().map(|(_, load)| load.reduces.len()).sum(),
            shards: shards.collect(),
        }
    }
}

#[derive(Serialize)]
struct Nodes {
    nodes: Vec<Node>,
    more: bool,
}

#[derive(Serialize)]
struct Objects {
    objects: Vec<Object>,
    next: Option<String>,
}

#[derive(Serialize)]
struct Object {
    key: String,
    id: String,
    size_bytes: u64,
    dtype: &'static str,
    shape: Option<Vec<u64>>,
    creator: String,
    age_ms: u64,
    copies: usize,
    complete: usize,
    pinned: bool,
    inline: bool,
    lost: bool,
    transfers: usize,
    waiting: usize,
}

fn rows(uptime: Duration, objects: Vec<ObjectOverview>) -> Vec<Object> {
    objects.into_iter().map(|object| Object::new(uptime, object)).collect()
}

impl Object {
    fn new(uptime: Duration, object: ObjectOverview) -> Self {
        Self {
            key: to_hex(object.id.as_bytes()),
            id: object.id.readable(),
            size_bytes: object.size_bytes,
            dtype: object.dtype.name(),
            shape: object.shape,
            creator: object.creator.to_string(),
            age_ms: age_ms(uptime, object.created),
            copies: object.copies,
            complete: object.complete,
            pinned: object.pinned,
            inline: object.inline,
            lost: object.lost,
            transfers: object.transfers,
            waiting: object.waiting,
        }
    }
}

#[derive(Serialize)]
struct Tree {
    id: String,
    object: Option<Object>,
    copies: Vec<Copy>,
    grants: Vec<Grant>,
}

#[derive(Serialize)]
struct Copy {
    node: String,
    state: String,
    pinned: bool,
    away: bool,
    sender: Option<String>,
    reason: Option<String>,
    age_ms: Option<u64>,
    valid_bytes: Option<u64>,
    rate: Option<u64>,
}

impl Tree {
    fn new(data: &DashboardData, id: &ObjectId, tree: ObjectTree) -> Self {
        let uptime = data.shard.uptime();
        let loads = data.loads.of(tree.copies.iter().map(|copy| &copy.node));
        let copy = |(copy, load): (CopyOverview, Option<Arc<Load>>)| {
            let load = load.as_ref();
            let transfer =
                load.and_then(|load| load.transfers.iter().find(|transfer| transfer.id == *id));
            Copy {
                node: copy.node.to_string(),
                state: label_of(copy.state),
                pinned: copy.retention == Retention::Pinned,
                away: copy.away,
                sender: copy.sender.map(|sender| sender.to_string()),
                reason: copy.grant.map(|(reason, _)| label_of(reason)),
                age_ms: copy.grant.map(|(_, at)| age_ms(uptime, at)),
                valid_bytes: transfer
                    .map(|transfer| transfer.valid_bytes)
                    .filter(|_| copy.state != LocationState::Complete),
                rate: transfer.map(|transfer| transfer.rate),
            }
        };
        Self {
            id: id.readable(),
            object: tree.object.map(|object| Object::new(uptime, object)),
            copies: tree.copies.into_iter().zip(loads).map(copy).collect(),
            grants: tree.grants.into_iter().map(|grant| Grant::new(uptime, grant)).collect(),
        }
    }
}

#[derive(Serialize)]
struct Links {
    telling: usize,
    keys: BTreeSet<String>,
    #[serde(flatten)]
    heat: Heat,
}

impl Links {
    fn new(loads: &[(NodeId, Arc<Load>)], nodes: &[NodeOverview], group: &str) -> Self {
        let labels = || {
            nodes
                .iter()
                .flat_map(|node| node.labels.iter().map(move |(key, value)| (node, key, value)))
        };
        let places: BTreeMap<&NodeId, &str> = labels()
            .filter(|(_, key, _)| key.as_str() == group)
            .map(|(node, _, value)| (&node.node, value.as_str()))
            .collect();
        Self {
            telling: loads.len(),
            keys: labels().map(|(_, key, _)| key.clone()).collect(),
            heat: Heat::new(loads, |node| match places.get(node) {
                Some(value) => value,
                None if group.is_empty() => node.as_str(),
                None => "(none)",
            }),
        }
    }
}

#[derive(Serialize)]
struct EventList {
    events: Vec<EventRow>,
}

fn events(uptime: Duration, past: Vec<RecordedEvent>, losses: Vec<LostObject>) -> EventList {
    let past = past.into_iter().map(|event| EventRow::new(uptime, event));
    let losses = losses.into_iter().rev().map(|loss| EventRow {
        at_ms: wall_ms(uptime, loss.at.since(Time::ZERO)),
        kind: "object-lost".to_owned(),
        node: None,
        text: loss.id.readable(),
    });
    let mut events: Vec<EventRow> = past.chain(losses).collect();
    events.sort_by_key(|event| std::cmp::Reverse(event.at_ms));
    EventList { events }
}
