use std::sync::Arc;
use std::time::Duration;

use hoplite_core::id::NodeId;
use hoplite_core::load::Load;
use hoplite_core::shard::{NodeOverview, NodeTransfer, RecentObject};
use hoplite_proto::dashboard::query::to_hex;
use hoplite_proto::v1::load_report::{Client, Link, Rail};
use serde::Serialize;

use super::DashboardData;
use super::rows::{EventRow, Grant, Node, age_ms, millis};
use crate::history::{Point, STEP, Slice};

pub(super) const MAX_NODE_TRANSFERS: usize = 50;
const MAX_NODE_EVENTS: usize = 50;

#[derive(Serialize)]
pub(super) struct NodePage {
    name: String,
    node: Option<Node>,
    troubles: Vec<String>,
    receiving: Vec<Receiving>,
    links: Vec<Link>,
    rails: Vec<Rail>,
    reduces: Vec<String>,
    /// `None` before the node's first detailed report.
    clients: Option<Vec<Client>>,
    log: Option<Vec<String>>,
    transfers: Vec<Transfer>,
    events: Vec<EventRow>,
}

#[derive(Serialize)]
struct Receiving {
    key: String,
    id: String,
    size_bytes: u64,
    valid_bytes: u64,
    rate: u64,
}

#[derive(Serialize)]
struct Transfer {
    key: String,
    id: String,
    is_running: bool,
    #[serde(flatten)]
    grant: Grant,
}

impl NodePage {
    pub(super) fn new(
        data: &DashboardData,
        name: &NodeId,
        (overview, load): (Option<NodeOverview>, Option<Arc<Load>>),
        transfers: Vec<NodeTransfer>,
    ) -> Self {
        let uptime = data.shard.uptime();
        let events =
            data.events.latest().into_iter().filter(|event| event.node.as_ref() == Some(name));
        let transfer = |transfer: NodeTransfer| Transfer {
            key: to_hex(transfer.id.as_bytes()),
            id: transfer.id.readable(),
            is_running: transfer.is_running,
            grant: Grant::new(uptime, transfer.grant),
        };
        let node = overview.map(|overview| Node::new(overview, load.clone()));
        let load = load.map(|load| Load::clone(&load)).unwrap_or_default();
        let (clients, log) = load.detail.map(|detail| (detail.clients, detail.log)).unzip();
        Self {
            name: name.to_string(),
            node,
            troubles: load.troubles.into_iter().map(|trouble| trouble.text).collect(),
            receiving: load
                .transfers
                .into_iter()
                .map(|transfer| Receiving {
                    key: to_hex(transfer.id.as_bytes()),
                    id: transfer.id.readable(),
                    size_bytes: transfer.size_bytes,
                    valid_bytes: transfer.valid_bytes,
                    rate: transfer.rate,
                })
                .collect(),
            links: load.links.iter().map(Link::from).collect(),
            rails: load.rails.iter().map(Rail::from).collect(),
            reduces: load.reduces.iter().map(|reduce| reduce.target.readable()).collect(),
            clients: clients.map(|clients| clients.into_iter().map(Client::from).collect()),
            log,
            transfers: transfers.into_iter().map(transfer).collect(),
            events: events
                .take(MAX_NODE_EVENTS)
                .map(|event| EventRow::new(uptime, event))
                .collect(),
        }
    }
}

#[derive(Serialize)]
pub(super) struct HistoryPage {
    step_ms: u64,
    last: u64,
    /// Points after the request's `after`, oldest first: bytes received and sent per second, bytes
    /// in use, gets and failures per second, median and 99th percentile of waits in seconds.
    points: Vec<[f32; 7]>,
}

/// Empty for an unknown node.
pub(super) fn history(data: &DashboardData, node: Option<&NodeId>, after: u64) -> HistoryPage {
    let Slice { last, points } =
        data.loads.history(node, after).unwrap_or(Slice { last: 0, points: Vec::new() });
    let list = |point: Point| {
        let Point { received, sent, used, gets, failures, median, slowest } = point;
        [received, sent, used, gets, failures, median, slowest]
    };
    HistoryPage { step_ms: millis(STEP), last, points: points.into_iter().map(list).collect() }
}

#[derive(Serialize)]
pub(super) struct Recent {
    objects: Vec<Sent>,
}

#[derive(Serialize)]
struct Sent {
    key: String,
    id: String,
    size_bytes: Option<u64>,
    grants: usize,
    running: usize,
    failed: usize,
    age_ms: u64,
    /// Time from the start of the object's first transfer to the latest start or end of a transfer,
    /// or to now while a transfer runs.
    took_ms: u64,
}

impl Recent {
    pub(super) fn new(uptime: Duration, recent: Vec<RecentObject>) -> Self {
        let sent = |object: RecentObject| Sent {
            key: to_hex(object.id.as_bytes()),
            id: object.id.readable(),
            size_bytes: object.size_bytes,
            grants: object.grants,
            running: object.running,
            failed: object.failed,
            age_ms: age_ms(uptime, object.began),
            took_ms: match object.running {
                0 => millis(object.latest.since(object.began)),
                _ => age_ms(uptime, object.began),
            },
        };
        Self { objects: recent.into_iter().map(sent).collect() }
    }
}
