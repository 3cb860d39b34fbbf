use hoplite_core::plan::collective::Collective;
use hoplite_core::shard::{GrantReason, PullOutcome, ToShard, ToStore};
use hoplite_daemon::metrics::{
    Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, Metrics, label_of,
};

/// Operations in metrics. A put with two requests (memory, then seal) counts once.
pub(super) const OPERATIONS: [&str; 11] = [
    "put", "get", "reduce", "delete", "wait", "locate", "join", "allreduce", "reduce-scatter",
    "allgather", "all-to-all",
];
pub(super) const WITH_BYTES: [&str; 2] = ["put", "get"];
const COLLECTIVES: [Collective; 4] =
    [Collective::Allreduce, Collective::ReduceScatter, Collective::Allgather, Collective::AllToAll];
/// Label of all stores beyond the first `MAX_PEERS`. No node can have this name.
pub(super) const OTHER_PEERS: &str = "(others)";
const PULL_OUTCOMES: [PullOutcome; 7] = [
    PullOutcome::Complete,
    PullOutcome::SenderUnreachable,
    PullOutcome::SenderStalled,
    PullOutcome::SenderHasNoCopy,
    PullOutcome::Corrupt,
    PullOutcome::Cancelled,
    PullOutcome::GaveWay,
];
const GRANT_REASONS: [GrantReason; 11] = [
    GrantReason::OnlyCandidate,
    GrantReason::CompleteBeforePartial,
    GrantReason::Closest,
    GrantReason::LeastRecentlyUsed,
    GrantReason::EarliestBytes,
    GrantReason::ChainHasBytes,
    GrantReason::AvoidedButOnly,
    GrantReason::FirstOfGroup,
    GrantReason::CloserAreBusy,
    GrantReason::FasterLink,
    GrantReason::SlowButOnly,
];
pub(super) const HOP_FAILURES: [&str; 3] = ["unreachable", "input", "refused"];
/// Label of failed TLS handshakes. Other failures have the code of their error.
pub(crate) const TLS: &str = "tls";

pub(super) struct OperationMetrics {
    pub(super) seconds: HistogramVec,
    pub(super) bytes: IntCounterVec,
    pub(super) failures: IntCounterVec,
    pub(super) room_waits: Histogram,
    pub(super) open_calls: IntGauge,
}

impl OperationMetrics {
    pub(super) fn new(metrics: &Metrics) -> Self {
        let timeouts = OPERATIONS.map(|operation| [operation, "timeout"]);
        Self {
            seconds: metrics.seconds_by(
                "hoplite_store_operation_seconds",
                "Duration of successful operations of clients; of a put, from its request for room \
                 to its seal.",
                "operation",
                &OPERATIONS,
            ),
            bytes: metrics.counters(
                "hoplite_store_operation_bytes_total",
                "Bytes of objects that clients have put and got.",
                "operation",
                &WITH_BYTES,
            ),
            failures: metrics.counters_by_pair(
                "hoplite_store_operation_failures_total",
                "Failed operations of clients, by error.",
                ["operation", "error"],
                &timeouts,
            ),
            room_waits: metrics.seconds(
                "hoplite_store_room_wait_seconds",
                "Waiting time of successful puts that first found no room, or an unfinished put of \
                 the same id.",
            ),
            open_calls: metrics.gauge("hoplite_store_open_calls", "Open operations of clients."),
        }
    }
}

pub(super) struct TransferMetrics {
    pub(super) pull_seconds: HistogramVec,
    pub(super) pulled_bytes: IntCounterVec,
    pub(super) serves: IntCounterVec,
    pub(super) active_serves: IntGauge,
}

impl TransferMetrics {
    pub(super) fn new(metrics: &Metrics) -> Self {
        let outcomes = PULL_OUTCOMES.map(label_of);
        Self {
            pull_seconds: metrics.seconds_by(
                "hoplite_store_pull_seconds",
                "Duration of transfers from other stores, by outcome. Failed transfers are \
                 repeated.",
                "outcome",
                &outcomes.each_ref().map(String::as_str),
            ),
            pulled_bytes: metrics.counters(
                "hoplite_store_pulled_bytes_total",
                "Bytes of objects pulled from other stores, by store; stores beyond the first 32 \
                 share one series.",
                "peer",
                &[OTHER_PEERS],
            ),
            serves: metrics.counters(
                "hoplite_store_serves_total",
                "Transfers that other stores requested.",
                "result",
                &["accepted", "refused"],
            ),
            active_serves: metrics
                .gauge("hoplite_store_active_serves", "Running transfers to other stores."),
        }
    }
}

pub(super) struct ReduceMetrics {
    pub(super) exchange_seconds: HistogramVec,
    pub(super) exchange_bytes: IntCounterVec,
    pub(super) exchange_failures: IntCounterVec,
    pub(super) combined_bytes: IntCounter,
    pub(super) hop_failures: IntCounterVec,
}

impl ReduceMetrics {
    pub(super) fn new(metrics: &Metrics) -> Self {
        let collectives = COLLECTIVES.map(label_of);
        let collectives = collectives.each_ref().map(String::as_str);
        Self {
            exchange_seconds: metrics.seconds_by(
                "hoplite_store_exchange_seconds",
                "Duration of successful exchanges with the other members of a collective.",
                "collective",
                &collectives,
            ),
            exchange_bytes: metrics.counters(
                "hoplite_store_exchange_bytes_total",
                "Sizes of the results of successful exchanges.",
                "collective",
                &collectives,
            ),
            exchange_failures: metrics.counters(
                "hoplite_store_exchange_failures_total",
                "Failed exchanges; the collective continues without an exchange, or fails.",
                "collective",
                &collectives,
            ),
            combined_bytes: metrics.counter(
                "hoplite_store_combined_bytes_total",
                "Bytes that this store has computed for its own reduces and for other stores.",
            ),
            hop_failures: metrics.counters(
                "hoplite_store_hop_failures_total",
                "Failed hops of this store's reduces; the reduce is repaired.",
                "reason",
                &HOP_FAILURES,
            ),
        }
    }
}

pub(super) struct DirectoryMetrics {
    pub(super) grants: IntCounterVec,
    pub(super) session_failures: IntCounterVec,
    pub(super) session_losses: IntCounter,
    pub(super) to_shards: IntCounterVec,
    pub(super) from_shards: IntCounterVec,
}

impl DirectoryMetrics {
    pub(super) fn new(metrics: &Metrics) -> Self {
        let reasons = GRANT_REASONS.map(label_of);
        Self {
            grants: metrics.counters(
                "hoplite_store_grants_total",
                "Senders that the directory assigned to this store, by the reason for the choice.",
                "reason",
                &reasons.each_ref().map(String::as_str),
            ),
            session_failures: metrics.counters(
                "hoplite_store_session_failures_total",
                "Failed attempts to open a session with a shard, by error; tls if this store \
                 rejected the shard's certificate. The shard counts its own rejections.",
                "error",
                &["unavailable", TLS],
            ),
            session_losses: metrics.counter(
                "hoplite_store_session_losses_total",
                "Sessions with shards that were lost.",
            ),
            to_shards: metrics.counters(
                "hoplite_store_directory_sent_messages_total",
                "Messages to shards of the directory.",
                "kind",
                &ToShard::KINDS,
            ),
            from_shards: metrics.counters(
                "hoplite_store_directory_received_messages_total",
                "Messages from shards of the directory.",
                "kind",
                &ToStore::KINDS,
            ),
        }
    }
}
