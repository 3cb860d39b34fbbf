use std::sync::atomic::Ordering;

use hoplite_core::topology::live::PeerLink;
use hoplite_daemon::metrics::{
    IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Metrics, follow, level,
};

use crate::data::{DataMetrics, RailTable};

const MAX_EXPORTED_LINKS: usize = 8;
const PICOSECONDS: i64 = 1_000_000_000_000;

pub(super) struct DataLevels {
    transfer_bytes: IntCounterVec,
    slow_links: IntGauge,
    link_rate: IntGaugeVec,
    link_round_trip: IntGaugeVec,
    lanes: IntGauge,
    lane_changes: IntCounterVec,
    rails: RailLevels,
    corrupt_frames: IntCounter,
    malformed_connections: IntCounter,
    incompatible_peers: IntCounter,
    refused_connections: IntCounter,
}

impl DataLevels {
    pub(super) fn new(metrics: &Metrics) -> Self {
        Self {
            transfer_bytes: metrics.counters(
                "hoplite_store_transfer_bytes_total",
                "Bytes of objects to and from other stores.",
                "direction",
                &["sent", "received"],
            ),
            slow_links: metrics.gauge(
                "hoplite_store_slow_links",
                "Links to other stores with much less bandwidth or much longer latency than most, \
                 as measured by transfers.",
            ),
            link_rate: metrics.gauges(
                "hoplite_store_link_bytes_per_second",
                "Bandwidth of the links to other stores, as measured by transfers; only the eight \
                 slowest links.",
                "peer",
            ),
            link_round_trip: metrics.gauges(
                "hoplite_store_link_round_trip_nanoseconds",
                "Round-trip time of the links to other stores, as measured by transfers; only the \
                 eight links with the least bandwidth.",
                "peer",
            ),
            lanes: metrics.gauge(
                "hoplite_store_lanes",
                "Connections over which transfers to other stores are sent, in addition to the one \
                 of each transfer.",
            ),
            lane_changes: metrics.counters(
                "hoplite_store_lane_changes_total",
                "Connections that transfers to other stores have added (opened), used to the end \
                 (ended), lost because they broke (lost), or given up without a gain (left).",
                "change",
                &["opened", "left", "lost", "ended"],
            ),
            rails: RailLevels::new(metrics),
            corrupt_frames: metrics.counter(
                "hoplite_store_corrupt_frames_total",
                "Transfers that ended because a frame was damaged; they are repeated.",
            ),
            malformed_connections: metrics.counter(
                "hoplite_store_malformed_connections_total",
                "Connections of peers that did not speak the protocol, or belong to another \
                 cluster.",
            ),
            incompatible_peers: metrics.counter(
                "hoplite_store_incompatible_peers_total",
                "Connections of clients and other stores that were refused, because both sides have \
                 no version of the protocol in common.",
            ),
            refused_connections: metrics.counter(
                "hoplite_store_refused_connections_total",
                "Connections of other stores that were closed because there were too many.",
            ),
        }
    }

    pub(super) fn update(&self, data: &DataMetrics) {
        self.lanes.set(level(data.lanes.load(Ordering::Relaxed)));
        self.update_links(&data.links());
        for (counter, count) in [
            (&self.transfer_bytes.with_label_values(&["sent"]), &data.sent_bytes),
            (&self.transfer_bytes.with_label_values(&["received"]), &data.received_bytes),
            (&self.lane_changes.with_label_values(&["opened"]), &data.lanes_opened),
            (&self.lane_changes.with_label_values(&["left"]), &data.lanes_left),
            (&self.lane_changes.with_label_values(&["lost"]), &data.lanes_lost),
            (&self.lane_changes.with_label_values(&["ended"]), &data.lanes_ended),
            (&self.corrupt_frames, &data.corrupt_frames),
            (&self.malformed_connections, &data.malformed_connections),
            (&self.incompatible_peers, &data.incompatible_peers),
            (&self.refused_connections, &data.refused_connections),
        ] {
            follow(counter, count.load(Ordering::Relaxed));
        }
    }

    pub(super) fn update_rails(&self, rails: &RailTable) {
        self.rails.update(rails);
    }

    fn update_links(&self, worst_first: &[PeerLink]) {
        self.slow_links.set(level(worst_first.iter().filter(|link| link.is_slow).count()));
        self.link_rate.reset();
        self.link_round_trip.reset();
        if worst_first.is_empty() {
            self.link_rate.with_label_values(&[""]).set(0);
            self.link_round_trip.with_label_values(&[""]).set(0);
        }
        for PeerLink { peer, link, .. } in worst_first.iter().take(MAX_EXPORTED_LINKS) {
            let rate = PICOSECONDS / i64::from(link.ps_per_byte).max(1);
            self.link_rate.with_label_values(&[peer.as_str()]).set(rate);
            self.link_round_trip
                .with_label_values(&[peer.as_str()])
                .set(2 * i64::from(link.alpha_ns));
        }
    }
}

/// Metrics of network cards.
struct RailLevels {
    sent_bytes: IntCounterVec,
    received_bytes: IntCounterVec,
    failed_routes: IntGauge,
}

impl RailLevels {
    fn new(metrics: &Metrics) -> Self {
        Self {
            sent_bytes: metrics.counters(
                "hoplite_store_rail_sent_bytes_total",
                "Bytes of objects sent to other stores over each network card; only with several.",
                "rail",
                &[""],
            ),
            received_bytes: metrics.counters(
                "hoplite_store_rail_received_bytes_total",
                "Bytes of objects received over each network card; only with several.",
                "rail",
                &[""],
            ),
            failed_routes: metrics.gauge(
                "hoplite_store_failed_routes",
                "Routes (pairs of network cards) that do not work, while others reach the same \
                 store.",
            ),
        }
    }

    fn update(&self, rails: &RailTable) {
        self.failed_routes.set(level(rails.failed_routes()));
        for rail in rails.reports() {
            let label = [rail.address.to_string()];
            follow(&self.sent_bytes.with_label_values(&label), rail.sent_bytes);
            follow(&self.received_bytes.with_label_values(&label), rail.received_bytes);
        }
    }
}
