use hoplite_core::shard::{
    Description, GrantReason, GrantRecord, KnownNode, MAX_PAGE_BYTES, Page, PullOutcome,
    ShardStatus,
};
use hoplite_core::{ClusterId, NodeId};
use hoplite_proto::bounds::encode_address;
use hoplite_proto::directory::encode_locations;
use hoplite_proto::v1;
use prost::Message;

pub(crate) fn listing(page: Page) -> v1::ListReply {
    let Page { objects, more } =
        page.cut(MAX_PAGE_BYTES, |object| encode_locations(object).encoded_len());
    v1::ListReply { objects: objects.iter().map(encode_locations).collect(), more }
}

pub(crate) fn description(description: &Description) -> v1::ObjectDescription {
    v1::ObjectDescription {
        locations: Some(encode_locations(&description.locations)),
        grants: description.grants.iter().map(grant).collect(),
        waiting_receivers: u32::try_from(description.waiting_receivers).unwrap_or(u32::MAX),
    }
}

pub(crate) fn status(
    status: &ShardStatus,
    cluster: &ClusterId,
    uptime: std::time::Duration,
) -> v1::StatusReply {
    v1::StatusReply {
        cluster: cluster.as_str().to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        uptime_ms: u64::try_from(uptime.as_millis()).unwrap_or(u64::MAX),
        objects: count(status.objects),
        inline_bytes: status.inline_bytes,
        waiting_queries: count(status.waiting_queries),
        subscriptions: count(status.subscriptions),
        grants: count(status.grants),
        tombstones: count(status.tombstones),
        under_replicated: count(status.under_replicated),
        received_messages: status.received_messages,
        sent_messages: status.sent_messages,
        places_version: status.measured.0,
        uplink_permille: status.measured.1.permille(),
        nodes: status.nodes.iter().map(node).collect(),
        problems: Vec::new(),
    }
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

fn node(status: &KnownNode) -> v1::status_reply::Node {
    v1::status_reply::Node {
        node: name(&status.node),
        data_address: encode_address(status.data_address),
        connected: status.connected,
        protocol: status.version.number(),
        labels: status.labels.iter().cloned().collect(),
        load: None,
    }
}

fn grant(record: &GrantRecord) -> v1::GrantRecord {
    v1::GrantRecord {
        receiver: name(&record.receiver),
        sender: name(&record.sender),
        reason: reason_name(record.reason).to_owned(),
        at_us: record.at.as_micros(),
        outcome: record.outcome.map_or("", outcome_name).to_owned(),
    }
}

fn name(node: &NodeId) -> String {
    node.as_str().to_owned()
}

fn reason_name(reason: GrantReason) -> &'static str {
    match reason {
        GrantReason::OnlyCandidate => "only-candidate",
        GrantReason::CompleteBeforePartial => "complete-before-partial",
        GrantReason::Closest => "closest",
        GrantReason::LeastRecentlyUsed => "least-recently-used",
        GrantReason::EarliestBytes => "earliest-bytes",
        GrantReason::ChainHasBytes => "chain-has-bytes",
        GrantReason::AvoidedButOnly => "avoided-but-only",
        GrantReason::FirstOfGroup => "first-of-group",
        GrantReason::CloserAreBusy => "closer-are-busy",
        GrantReason::FasterLink => "faster-link",
        GrantReason::SlowButOnly => "slow-but-only",
    }
}

fn outcome_name(outcome: PullOutcome) -> &'static str {
    match outcome {
        PullOutcome::Complete => "complete",
        PullOutcome::SenderUnreachable => "sender-unreachable",
        PullOutcome::SenderStalled => "sender-stalled",
        PullOutcome::SenderHasNoCopy => "sender-has-no-copy",
        PullOutcome::Corrupt => "corrupt",
        PullOutcome::Cancelled => "cancelled",
        PullOutcome::GaveWay => "gave-way",
    }
}
