//! Metrics whose values are read on each scrape.

mod data;
mod places;
mod spill;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use hoplite_daemon::metrics::{IntCounter, IntGauge, IntGaugeVec, Metrics, follow, level};

use crate::engine::Engine;
use data::DataLevels;
use places::PlaceLevels;
use spill::SpillLevels;

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
    data: DataLevels,
    places: PlaceLevels,
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
            data: DataLevels::new(metrics),
            places: PlaceLevels::new(metrics),
        }
    }

    fn update(&self, engine: &Engine, prefaulted_bytes: u64, shards: &[(String, bool)]) {
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
        self.sessions.reset();
        for (shard, connected) in shards {
            self.sessions.with_label_values(&[shard]).set((*connected).into());
        }
        follow(&self.evictions, status.evictions);
        follow(&self.expired, status.expired);
        follow(&self.abandoned, status.abandoned);
        follow(&self.put_conflicts, status.put_conflicts);
        follow(&self.over_quota_puts, status.over_quota_puts);
        self.spill.update(&status.spill);
        self.data.update(engine.metrics());
        self.data.update_rails(engine.rails());
        self.places.update_places(status.place);
        self.places.update_probes(engine.probe_tally());
    }
}

/// Registers metrics. The daemon is ready while the store has a session with a shard.
pub(crate) fn look(metrics: &Metrics, engine: &Arc<Engine>, prefaulted_bytes: Arc<AtomicU64>) {
    let levels = Levels::new(metrics);
    // Weak, because metrics outlive the engine.
    let engine: Weak<Engine> = Arc::downgrade(engine);
    metrics.update_before_scrape(Box::new(move || {
        let ready = match engine.upgrade() {
            None => Err("the store has stopped".to_owned()),
            Some(engine) => {
                let shards = engine.shards_up();
                levels.update(&engine, prefaulted_bytes.load(Ordering::Relaxed), &shards);
                if shards.iter().any(|(_, connected)| *connected) {
                    Ok(())
                } else {
                    let names: Vec<&str> = shards.iter().map(|(name, _)| name.as_str()).collect();
                    Err(format!("no session with the directory at {}", names.join(", ")))
                }
            }
        };
        Box::pin(std::future::ready(ready))
    }));
}
