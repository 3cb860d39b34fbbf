use std::sync::Arc;
use std::sync::atomic::Ordering;

use hoplite_core::shard::{Shard, ShardStatus};
use hoplite_core::topology::place::LEVEL_KEYS;
use hoplite_daemon::metrics::{IntCounter, IntGauge, IntGaugeVec, Metrics, follow, level};

use crate::owner::ShardHandle;
use crate::refusals::Refusals;

#[derive(Clone)]
struct Levels {
    objects: IntGauge,
    inline_bytes: IntGauge,
    waiting_queries: IntGauge,
    subscriptions: IntGauge,
    slots: IntGauge,
    tombstones: IntGauge,
    under_replicated: IntGauge,
    nodes: IntGaugeVec,
    queue: IntGauge,
    places_version: IntGauge,
    placed_nodes: IntGauge,
    groups: IntGauge,
    uplinks: IntGaugeVec,
    refused_connections: IntCounter,
    refused_calls: IntCounter,
    incompatible_peers: IntCounter,
    refused_logins: IntCounter,
}

impl Levels {
    fn new(metrics: &Metrics) -> Self {
        Self {
            objects: metrics.gauge(
                "hoplite_directory_objects",
                "Objects that the shard knows, lost ones included while they are remembered.",
            ),
            inline_bytes: metrics
                .gauge("hoplite_directory_inline_bytes", "Bytes of objects that the shard holds itself."),
            waiting_queries: metrics.gauge(
                "hoplite_directory_waiting_queries",
                "Receivers that wait for an object, or for a sender that is free.",
            ),
            subscriptions: metrics.gauge("hoplite_directory_subscriptions", "Open subscriptions."),
            slots: metrics.gauge("hoplite_directory_slots", "Transfers that the shard has arranged now."),
            tombstones: metrics.gauge("hoplite_directory_tombstones", "Deleted objects that are remembered."),
            under_replicated: metrics.gauge(
                "hoplite_directory_under_replicated",
                "Objects with fewer pinned copies than their puts want. The first connected shard of an id counts them.",
            ),
            nodes: metrics.gauges(
                "hoplite_directory_nodes",
                "Stores: connected, or away and not given up yet.",
                "state",
            ),
            queue: metrics.gauge(
                "hoplite_directory_queue_length",
                "Batches of messages that wait until the shard takes them up.",
            ),
            places_version: metrics.gauge(
                "hoplite_directory_places_version",
                "The version of the measured places that the shard has: when they were measured, in milliseconds since 1970, if clocks are \
                 right. 0: none. Shards agree on it.",
            ),
            placed_nodes: metrics.gauge(
                "hoplite_directory_placed_nodes",
                "Stores that are in a group because it was measured, not by their labels.",
            ),
            groups: metrics.gauge(
                "hoplite_directory_measured_groups",
                "Groups of nodes that were measured; of levels within each other, the innermost.",
            ),
            uplinks: metrics.gauges(
                "hoplite_directory_uplink_permille",
                "What the uplink of a group carries by the measured places, in thousandths of a host's link, by the level of the group. \
                 0: not measured, or no store is in a group by measurements.",
                "level",
            ),
            refused_connections: metrics.counter(
                "hoplite_directory_refused_connections_total",
                "Connections that were closed before their peer had shown that it belongs to the cluster: it was slow, too many came, or \
                 the handshake of TLS failed.",
            ),
            refused_calls: metrics
                .counter("hoplite_directory_refused_calls_total", "Connections and calls without the token of the cluster."),
            incompatible_peers: metrics.counter(
                "hoplite_directory_incompatible_peers_total",
                "Connections and sessions that were refused, because both sides have no version of the protocol in common.",
            ),
            refused_logins: metrics
                .counter("hoplite_directory_refused_logins_total", "Wrong tokens at the dashboard."),
        }
    }

    fn update(&self, snapshot: &Snapshot, queue: usize, refusals: &Refusals) {
        let Snapshot { status, groups, placed_nodes } = snapshot;
        follow(&self.refused_connections, refusals.connections.load(Ordering::Relaxed));
        follow(&self.refused_calls, refusals.calls.load(Ordering::Relaxed));
        follow(&self.incompatible_peers, refusals.versions.load(Ordering::Relaxed));
        follow(&self.refused_logins, refusals.logins.load(Ordering::Relaxed));
        let connected = status.nodes.iter().filter(|node| node.connected).count();
        for (gauge, number) in [
            (&self.objects, status.objects),
            (&self.waiting_queries, status.waiting_queries),
            (&self.subscriptions, status.subscriptions),
            (&self.slots, status.grants),
            (&self.tombstones, status.tombstones),
            (&self.under_replicated, status.under_replicated),
            (&self.nodes.with_label_values(&["connected"]), connected),
            (&self.nodes.with_label_values(&["away"]), status.nodes.len() - connected),
            (&self.queue, queue),
            (&self.groups, *groups),
            (&self.placed_nodes, *placed_nodes),
        ] {
            gauge.set(level(number));
        }
        self.inline_bytes.set(level(status.inline_bytes));
        let (version, uplink) = status.measured;
        self.places_version.set(level(version));
        for (key, permille) in LEVEL_KEYS.into_iter().zip(uplink.levels()) {
            self.uplinks.with_label_values(&[key]).set(permille.into());
        }
    }
}

struct Snapshot {
    status: ShardStatus,
    groups: usize,
    placed_nodes: usize,
}

impl Snapshot {
    fn at(shard: &Shard) -> Self {
        let (groups, placed_nodes) = (shard.measured_places().groups(), shard.measured_nodes());
        Self { status: shard.status(), groups, placed_nodes }
    }
}

/// The daemon counts as ready while the shard answers.
pub(crate) fn register_gauges(metrics: &Metrics, shard: ShardHandle, refusals: Arc<Refusals>) {
    let levels = Levels::new(metrics);
    metrics.update_before_scrape(Box::new(move || {
        let (levels, shard, refusals) = (levels.clone(), shard.clone(), refusals.clone());
        Box::pin(async move {
            let queue = shard.queue_length();
            let snapshot = shard.inspect(Snapshot::at).await;
            levels.update(
                &snapshot.map_err(|error| format!("the directory: {error}"))?,
                queue,
                &refusals,
            );
            Ok(())
        })
    }));
}
