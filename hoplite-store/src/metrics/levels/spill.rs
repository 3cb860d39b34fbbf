use hoplite_core::node::SpillStatus;
use hoplite_daemon::metrics::{
    IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Metrics, follow, level,
};

const DIRECTIONS: [&str; 2] = ["spilled", "loaded"];

pub(super) struct SpillLevels {
    objects: IntGauge,
    bytes: IntGaugeVec,
    files: IntGauge,
    moved_objects: IntCounterVec,
    moved_bytes: IntCounterVec,
    failures: IntCounter,
    recovered: IntCounterVec,
}

const OUTCOMES: [&str; 2] = ["recovered", "dropped"];

impl SpillLevels {
    pub(super) fn new(metrics: &Metrics) -> Self {
        Self {
            objects: metrics.gauge("hoplite_store_spilled_objects", "Objects that are only in spill files."),
            bytes: metrics.gauges(
                "hoplite_store_spill_bytes",
                "Bytes of objects that are only in spill files (objects), of these files (files), their \
                 limit (limit, 0: none), and of objects that are in the memory and in a file (clean).",
                "state",
            ),
            files: metrics.gauge("hoplite_store_spill_files", "Spill files."),
            moved_objects: metrics.counters(
                "hoplite_store_spill_moved_objects_total",
                "Objects that were written to spill files (spilled), or read from them (loaded).",
                "direction",
                &DIRECTIONS,
            ),
            moved_bytes: metrics.counters(
                "hoplite_store_spill_moved_bytes_total",
                "Bytes of objects that were written to spill files (spilled), or read from them (loaded).",
                "direction",
                &DIRECTIONS,
            ),
            failures: metrics.counter(
                "hoplite_store_spill_failures_total",
                "Writes and reads of spill files that failed.",
            ),
            recovered: metrics.counters(
                "hoplite_store_spill_recovered_objects_total",
                "Objects in the spill files of killed stores, which this store has taken over \
                 (recovered) or dropped, at once or later (dropped).",
                "outcome",
                &OUTCOMES,
            ),
        }
    }

    pub(super) fn update(&self, status: &SpillStatus) {
        self.objects.set(level(status.objects));
        for (state, bytes) in [
            ("objects", status.bytes),
            ("files", status.file_bytes),
            ("limit", status.limit_bytes),
            ("clean", status.clean_bytes),
        ] {
            self.bytes.with_label_values(&[state]).set(level(bytes));
        }
        self.files.set(level(status.files));
        let moved = [
            (status.spilled_objects, status.spilled_bytes),
            (status.loaded_objects, status.loaded_bytes),
        ];
        for (direction, (objects, bytes)) in DIRECTIONS.into_iter().zip(moved) {
            follow(&self.moved_objects.with_label_values(&[direction]), objects);
            follow(&self.moved_bytes.with_label_values(&[direction]), bytes);
        }
        follow(&self.failures, status.failures);
        let recovered = [status.recovered_objects, status.unrecovered_objects];
        for (outcome, objects) in OUTCOMES.into_iter().zip(recovered) {
            follow(&self.recovered.with_label_values(&[outcome]), objects);
        }
    }
}
