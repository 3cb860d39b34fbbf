//! Metrics whose values are read on each scrape.

mod spill;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::UNIX_EPOCH;

use hoplite_core::shard::Placed;
use hoplite_core::topology::live::PeerLink;
use hoplite_core::topology::place::LEVEL_KEYS;
use hoplite_daemon::metrics::{
    Gauge, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Metrics, follow, level,
};

use crate::data::SurveyTally;
use crate::engine::Engine;
use spill::SpillLevels;

/// Maximum number of links with separate series.
const MAX_EXPORTED_LINKS: usize = 8;
const PROBE_RESULTS: [&str; 3] = ["complete", "failed", "cancelled"];
const PICOSECONDS: i64 = 1_000_000_000_000;

struct Levels {
    memory_bytes: IntGaugeVec,
    copies: IntGauge,
    clients: IntGauge,
    waiting_for_room: IntGauge,
    active_pulls: IntGauge,
    active_reduces: IntGauge,
    active_hops: IntGaugeVec,
    sessions: IntGaugeVec,
    evictions: IntCounter,
    expired: IntCounter,
    abandoned: IntCounter,
    spill: SpillLevels,
    put_conflicts: IntCounter,
    over_quota_puts: IntCounter,
    transfer_bytes: IntCounterVec,
    slow_links: IntGauge,
    link_rate: IntGaugeVec,
    link_round_trip: IntGaugeVec,
    places_version: IntGauge,
    uplinks: IntGaugeVec,
    probes: IntCounterVec,
    last_probe_nodes: IntGaugeVec,
    last_probe_seconds: Gauge,
    last_probe_ended: IntGauge,
    lanes: IntGauge,
    lane_changes: IntCounterVec,
    corrupt_frames: IntCounter,
    malformed_connections: IntCounter,
    incompatible_peers: IntCounter,
    refused_connections: IntCounter,
}

impl Levels {
    fn new(metrics: &Metrics) -> Self {
        Self {
            memory_bytes: metrics.gauges(
                "hoplite_store_memory_bytes",
                "Shared memory: its size (capacity), and its free, pinned, evictable, reserved (for \
                 reduces) and touched (prefaulted) bytes.",
                "state",
            ),
            copies: metrics.gauge("hoplite_store_copies", "Copies of objects in this store."),
            clients: metrics.gauge("hoplite_store_clients", "Connected clients."),
            waiting_for_room: metrics
                .gauge("hoplite_store_waiting_for_room", "Puts, gets and reduces that wait for room."),
            active_pulls: metrics.gauge("hoplite_store_active_pulls", "Running transfers from other stores."),
            active_reduces: metrics
                .gauge("hoplite_store_active_reduces", "Reduces that this store coordinates now."),
            active_hops: metrics.gauges(
                "hoplite_store_active_hops",
                "Running hops of reduces: performed here, or directed from here.",
                "role",
            ),
            sessions: metrics.gauges(
                "hoplite_store_shard_connected",
                "1 if there is a session with the shard, else 0.",
                "shard",
            ),
            evictions: metrics.counter("hoplite_store_evictions_total", "Evicted copies."),
            expired: metrics
                .counter("hoplite_store_expired_total", "Objects put here whose time to live has ended."),
            abandoned: metrics.counter(
                "hoplite_store_abandoned_total",
                "Objects put here and deleted because their owner was gone.",
            ),
            spill: SpillLevels::new(metrics),
            put_conflicts: metrics
                .counter("hoplite_store_put_conflicts_total", "Puts that met another put of the same id."),
            over_quota_puts: metrics.counter(
                "hoplite_store_over_quota_puts_total",
                "Requests for puts and reduces that were refused because of a quota.",
            ),
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
            places_version: metrics.gauge(
                "hoplite_store_places_version",
                "Version of the measured places that this store uses: the time of the measurement \
                 in milliseconds since 1970, if the clocks are right. 0: none.",
            ),
            uplinks: metrics.gauges(
                "hoplite_store_uplink_permille",
                "Measured bandwidth of a group's uplink, in thousandths of a host's link, by the \
                 level of the group. 0: not measured.",
                "level",
            ),
            probes: metrics.counters(
                "hoplite_store_probes_total",
                "Network probes that this store has coordinated: complete, failed if the nodes \
                 could not be measured, or cancelled if the caller left.",
                "result",
                &PROBE_RESULTS,
            ),
            last_probe_nodes: metrics.gauges(
                "hoplite_store_last_probe_nodes",
                "Nodes of the last complete probe that this store has coordinated: measured, or \
                 left out.",
                "state",
            ),
            last_probe_seconds: metrics
                .fractional_gauge("hoplite_store_last_probe_seconds", "Duration of the last complete probe."),
            last_probe_ended: metrics.gauge(
                "hoplite_store_last_probe_timestamp_seconds",
                "End of the last complete probe, in seconds since 1970. 0: none.",
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

    fn update(&self, engine: &Engine, prefaulted_bytes: u64, shards: &[String], connected: &[bool]) {
        let status = engine.status();
        for (state, bytes) in [
            ("capacity", status.capacity_bytes),
            ("free", status.free_bytes),
            ("pinned", status.pinned_bytes),
            ("evictable", status.evictable_bytes),
            ("reserved", status.reserved_bytes),
            ("prefaulted", prefaulted_bytes),
        ] {
            self.memory_bytes.with_label_values(&[state]).set(level(bytes));
        }
        self.copies.set(level(status.copies));
        self.clients.set(level(engine.clients()));
        self.waiting_for_room.set(level(status.waiting_for_room));
        self.active_pulls.set(level(status.pulls));
        self.active_reduces.set(level(status.reductions));
        self.active_hops.with_label_values(&["performed"]).set(level(status.hops));
        self.active_hops.with_label_values(&["directed"]).set(level(status.directed_hops));
        for (shard, connected) in shards.iter().zip(connected) {
            self.sessions.with_label_values(&[shard]).set((*connected).into());
        }
        follow(&self.evictions, status.evictions);
        follow(&self.expired, status.expired);
        follow(&self.abandoned, status.abandoned);
        follow(&self.put_conflicts, status.put_conflicts);
        follow(&self.over_quota_puts, status.over_quota_puts);
        self.spill.update(&status.spill);
        let data = engine.metrics();
        self.lanes.set(level(data.lanes.load(Ordering::Relaxed)));
        self.update_links(&data.links());
        self.update_places(status.place);
        self.update_probes(engine.probe_tally());
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
}

impl Levels {
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
            self.link_round_trip.with_label_values(&[peer.as_str()]).set(2 * i64::from(link.alpha_ns));
        }
    }
}

impl Levels {
    fn update_places(&self, Placed { version, uplink, .. }: Placed) {
        self.places_version.set(level(version));
        for (key, permille) in LEVEL_KEYS.into_iter().zip(uplink.levels()) {
            self.uplinks.with_label_values(&[key]).set(permille.into());
        }
    }

    fn update_probes(&self, tally: SurveyTally) {
        for (result, count) in PROBE_RESULTS.into_iter().zip([tally.complete, tally.failed, tally.cancelled])
        {
            follow(&self.probes.with_label_values(&[result]), count);
        }
        let last = tally.last;
        for (state, nodes) in
            [("measured", last.map(|last| last.measured)), ("left-out", last.map(|last| last.left_out))]
        {
            self.last_probe_nodes.with_label_values(&[state]).set(level(nodes.unwrap_or(0)));
        }
        if let Some(last) = last {
            self.last_probe_seconds.set(last.elapsed.as_secs_f64());
            let ended = last.ended.duration_since(UNIX_EPOCH).unwrap_or_default();
            self.last_probe_ended.set(level(ended.as_secs()));
        }
    }
}

/// Sets the metrics to present values on each scrape. The store is ready while it has a session
/// with a shard.
pub(crate) fn look(
    metrics: &Metrics,
    engine: &Arc<Engine>,
    shards: Vec<String>,
    prefaulted_bytes: Arc<AtomicU64>,
) {
    let levels = Levels::new(metrics);
    // A weak reference, because metrics outlive the engine, whose end must free its memory.
    let engine: Weak<Engine> = Arc::downgrade(engine);
    metrics.update_before_scrape(Box::new(move || {
        let ready = match engine.upgrade() {
            None => Err("the store has stopped".to_owned()),
            Some(engine) => {
                let connected = engine.shards_up();
                levels.update(&engine, prefaulted_bytes.load(Ordering::Relaxed), &shards, &connected);
                if connected.contains(&true) {
                    Ok(())
                } else {
                    Err(format!("no session with the directory at {}", shards.join(", ")))
                }
            }
        };
        Box::pin(std::future::ready(ready))
    }));
}
