use std::time::UNIX_EPOCH;

use hoplite_core::shard::Placed;
use hoplite_core::topology::place::LEVEL_KEYS;
use hoplite_daemon::metrics::{
    Gauge, IntCounterVec, IntGauge, IntGaugeVec, Metrics, follow, level,
};

use crate::data::SurveyTally;

const PROBE_RESULTS: [&str; 3] = ["complete", "failed", "cancelled"];

pub(super) struct PlaceLevels {
    places_version: IntGauge,
    uplinks: IntGaugeVec,
    probes: IntCounterVec,
    last_probe_nodes: IntGaugeVec,
    last_probe_seconds: Gauge,
    last_probe_ended: IntGauge,
}

impl PlaceLevels {
    pub(super) fn new(metrics: &Metrics) -> Self {
        Self {
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
            last_probe_seconds: metrics.fractional_gauge(
                "hoplite_store_last_probe_seconds",
                "Duration of the last complete network probe.",
            ),
            last_probe_ended: metrics.gauge(
                "hoplite_store_last_probe_timestamp_seconds",
                "End of the last complete probe, in seconds since 1970. 0: none.",
            ),
        }
    }

    pub(super) fn update_places(&self, Placed { version, uplink, .. }: Placed) {
        self.places_version.set(level(version));
        for (key, permille) in LEVEL_KEYS.into_iter().zip(uplink.levels()) {
            self.uplinks.with_label_values(&[key]).set(permille.into());
        }
    }

    pub(super) fn update_probes(&self, tally: SurveyTally) {
        for (result, count) in
            PROBE_RESULTS.into_iter().zip([tally.complete, tally.failed, tally.cancelled])
        {
            follow(&self.probes.with_label_values(&[result]), count);
        }
        let last = tally.last;
        for (state, nodes) in [
            ("measured", last.map(|last| last.measured)),
            ("left-out", last.map(|last| last.left_out)),
        ] {
            self.last_probe_nodes.with_label_values(&[state]).set(level(nodes.unwrap_or(0)));
        }
        if let Some(last) = last {
            self.last_probe_seconds.set(last.elapsed.as_secs_f64());
            let ended = last.ended.duration_since(UNIX_EPOCH).unwrap_or_default();
            self.last_probe_ended.set(level(ended.as_secs()));
        }
    }
}
