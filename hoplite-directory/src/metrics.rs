use std::time::Duration;

use hoplite_core::shard::{Grant, GrantReason, ToShard, ToStore};
use hoplite_daemon::metrics::{Histogram, IntCounter, IntCounterVec, Metrics, label_of};

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

#[derive(Debug, Clone, Copy)]
pub(crate) enum SessionEnd {
    /// The store closed the session, or the connection broke.
    Gone,
    Replaced,
    /// The store did not read its messages.
    Deaf,
    Paused,
}

#[derive(Debug, Clone)]
pub(crate) struct ShardMetrics {
    received: IntCounterVec,
    sent: IntCounterVec,
    grants: IntCounterVec,
    turn_seconds: Histogram,
    opened: IntCounter,
    refused: IntCounter,
    ended: IntCounterVec,
}

impl ShardMetrics {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        let reasons = GRANT_REASONS.map(label_of);
        Self {
            received: metrics.counters(
                "hoplite_directory_received_messages_total",
                "Messages from stores.",
                "kind",
                &ToShard::KINDS,
            ),
            sent: metrics.counters(
                "hoplite_directory_sent_messages_total",
                "Messages to stores.",
                "kind",
                &ToStore::KINDS,
            ),
            grants: metrics.counters(
                "hoplite_directory_grants_total",
                "Senders that were assigned to receivers, by the reason for the choice.",
                "reason",
                &reasons.each_ref().map(String::as_str),
            ),
            turn_seconds: metrics.seconds(
                "hoplite_directory_turn_seconds",
                "Time that the shard took for one batch of messages of a store; the sum is its busy \
                 time.",
            ),
            opened: metrics
                .counter("hoplite_directory_sessions_opened_total", "Sessions of stores that were opened."),
            refused: metrics.counter(
                "hoplite_directory_sessions_refused_total",
                "Stores that were refused, such as a second one of the same name.",
            ),
            ended: metrics.counters(
                "hoplite_directory_sessions_ended_total",
                "Ended sessions of stores, by reason.",
                "reason",
                &[SessionEnd::Gone, SessionEnd::Replaced, SessionEnd::Deaf, SessionEnd::Paused]
                    .map(label_of)
                    .each_ref()
                    .map(String::as_str),
            ),
        }
    }

    pub(crate) fn received(&self, message: &ToShard) {
        self.received.with_label_values(&[message.kind()]).inc();
    }

    pub(crate) fn sent(&self, message: &ToStore) {
        self.sent.with_label_values(&[message.kind()]).inc();
        if let ToStore::Granted(Grant { reason, .. }) = message {
            self.grants.with_label_values(&[label_of(reason)]).inc();
        }
    }

    pub(crate) fn turn(&self, took: Duration) {
        self.turn_seconds.observe(took.as_secs_f64());
    }

    pub(crate) fn opened(&self) {
        self.opened.inc();
    }

    pub(crate) fn refused(&self) {
        self.refused.inc();
    }

    pub(crate) fn ended(&self, end: SessionEnd) {
        self.ended.with_label_values(&[label_of(end)]).inc();
    }
}
