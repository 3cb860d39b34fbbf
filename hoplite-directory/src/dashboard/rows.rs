use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hoplite_core::id::NodeId;
use hoplite_core::load::Load;
use hoplite_core::problem::{Place, Problem, Severity};
use hoplite_core::shard::{GrantRecord, NodeOverview};
use hoplite_core::time::Time;
use hoplite_daemon::metrics::label_of;
use hoplite_proto::bounds::encode_address;
use hoplite_proto::dashboard::query::to_hex;
use hoplite_proto::report::LoadNumbers;
use serde::Serialize;

use crate::events::RecordedEvent;

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[derive(Serialize)]
pub(super) struct Node {
    node: String,
    address: String,
    labels: BTreeMap<String, String>,
    connected: bool,
    copies: usize,
    receiving: usize,
    requests: usize,
    load: Option<LoadNumbers>,
}

impl Node {
    pub(super) fn new(node: NodeOverview, load: Option<Arc<Load>>) -> Self {
        Self {
            node: node.node.to_string(),
            address: encode_address(node.data_address),
            labels: node.labels.into_iter().collect(),
            connected: node.connected,
            copies: node.copies,
            receiving: node.receiving,
            requests: node.requests,
            load: load.map(LoadNumbers),
        }
    }
}

#[derive(Serialize)]
pub(super) struct Grant {
    receiver: String,
    sender: String,
    reason: String,
    age_ms: u64,
    took_ms: Option<u64>,
    outcome: Option<String>,
}

impl Grant {
    pub(super) fn new(uptime: Duration, grant: GrantRecord) -> Self {
        Self {
            receiver: grant.receiver.to_string(),
            sender: grant.sender.to_string(),
            reason: label_of(grant.reason),
            age_ms: age_ms(uptime, grant.at),
            took_ms: grant.ended.map(|ended| millis(ended.since(grant.at))),
            outcome: grant.outcome.map(label_of),
        }
    }
}

pub(super) fn age_ms(uptime: Duration, at: Time) -> u64 {
    millis(uptime.saturating_sub(at.since(Time::ZERO)))
}

#[derive(Serialize)]
pub(super) struct EventRow {
    /// Milliseconds since 1970.
    pub(super) at_ms: u64,
    pub(super) kind: String,
    pub(super) node: Option<String>,
    pub(super) text: String,
}

impl EventRow {
    pub(super) fn new(uptime: Duration, event: RecordedEvent) -> Self {
        Self {
            at_ms: wall_ms(uptime, event.at),
            kind: label_of(event.kind),
            node: event.node.map(|node| node.to_string()),
            text: event.text,
        }
    }
}

/// Converts a time since the shard's start to milliseconds since 1970. `uptime` is the shard's
/// present uptime.
pub(super) fn wall_ms(uptime: Duration, at: Duration) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    millis(now.saturating_sub(uptime.saturating_sub(at)))
}

#[derive(Serialize)]
pub(super) struct ProblemRow {
    severity: &'static str,
    title: String,
    cause: &'static str,
    cure: &'static str,
    count: usize,
    places: Vec<PlaceRow>,
}

#[derive(Serialize)]
struct PlaceRow {
    node: Option<String>,
    object: Option<String>,
    text: String,
}

impl From<&Problem> for ProblemRow {
    fn from(problem: &Problem) -> Self {
        let place = |place: &Place| PlaceRow {
            node: place.node.as_ref().map(NodeId::to_string),
            object: place.object.as_ref().map(|id| to_hex(id.as_bytes())),
            text: place.text.clone(),
        };
        Self {
            severity: match problem.kind.severity() {
                Severity::Critical => "critical",
                Severity::Warning => "warning",
            },
            title: problem.title(),
            cause: problem.kind.cause(),
            cure: problem.kind.cure(),
            count: problem.count,
            places: problem.places.iter().map(place).collect(),
        }
    }
}
