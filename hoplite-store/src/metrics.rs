//! What a store tells Prometheus. The table of it is in `docs/metrics.md`.
//!
//! An [`Observer`] is shown every event and effect of the node, and needs no help of theirs: it remembers when a call, a
//! write or a pull began, and counts it when it ends. What only has a present value is looked up by [`look`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use hoplite_core::error::Error;
use hoplite_core::node::{
    CallId, ClientId, CombineId, CopyId, Effect, Event, HopFailure, HopReport, PullId, Request, Response,
    ServeId,
};
use hoplite_core::shard::{GrantReason, PullOutcome, ToShard, ToStore};
use hoplite_core::topology::live::PeerLink;
use hoplite_daemon::metrics::{
    Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Metrics, follow, label_of,
    level,
};

use crate::engine::Engine;

/// What clients ask for. A put is a request for room, and the seal.
const OPERATIONS: [&str; 6] = ["put", "get", "reduce", "delete", "wait", "locate"];
/// Those of which the bytes are counted.
const WITH_BYTES: [&str; 2] = ["put", "get"];
const PULL_OUTCOMES: [PullOutcome; 7] = [
    PullOutcome::Complete,
    PullOutcome::SenderUnreachable,
    PullOutcome::SenderStalled,
    PullOutcome::SenderHasNoCopy,
    PullOutcome::Corrupt,
    PullOutcome::Cancelled,
    PullOutcome::GaveWay,
];
const GRANT_REASONS: [GrantReason; 9] = [
    GrantReason::OnlyCandidate,
    GrantReason::CompleteBeforePartial,
    GrantReason::Closest,
    GrantReason::LeastRecentlyUsed,
    GrantReason::EarliestBytes,
    GrantReason::ChainHasBytes,
    GrantReason::AvoidedButOnly,
    GrantReason::FirstOfGroup,
    GrantReason::CloserAreBusy,
];
const HOP_FAILURES: [&str; 3] = ["unreachable", "input", "refused"];
/// Why a session was not opened, beside what errors are called.
pub(crate) const TLS: &str = "tls";

/// Counts what passes the engine. To be shown each event before the node is, and each effect after it.
pub(crate) struct Observer {
    seconds: HistogramVec,
    bytes: IntCounterVec,
    failures: IntCounterVec,
    room_waits: Histogram,
    pull_seconds: HistogramVec,
    grants: IntCounterVec,
    serves: IntCounterVec,
    combined_bytes: IntCounter,
    hop_failures: IntCounterVec,
    session_failures: IntCounterVec,
    session_losses: IntCounter,
    to_shards: IntCounterVec,
    from_shards: IntCounterVec,
    open_calls: IntGauge,
    active_serves: IntGauge,

    /// When the present event came.
    now: Instant,
    /// How many came before it.
    events: u64,
    calls: BTreeMap<(ClientId, CallId), Call>,
    /// The copies that clients write.
    writes: BTreeMap<CopyId, Write>,
    pulls: BTreeMap<PullId, Instant>,
    /// From which byte on.
    combinations: BTreeMap<CombineId, u64>,
    accepted_serves: BTreeSet<ServeId>,
}

struct Call {
    operation: &'static str,
    began: Instant,
    event: u64,
    /// What it seals.
    copy: Option<CopyId>,
    /// The size of what it puts by itself.
    put_bytes: Option<u64>,
}

struct Write {
    began: Instant,
    size_bytes: u64,
}

impl std::fmt::Debug for Observer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Observer").field("calls", &self.calls.len()).finish_non_exhaustive()
    }
}

impl Observer {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        let outcomes = PULL_OUTCOMES.map(label_of);
        let reasons = GRANT_REASONS.map(label_of);
        let timeouts = OPERATIONS.map(|operation| [operation, "timeout"]);
        Self {
            seconds: metrics.seconds_by(
                "hoplite_store_operation_seconds",
                "How long operations of clients took that succeeded; a put, from its request for room to its seal.",
                "operation",
                &OPERATIONS,
            ),
            bytes: metrics.counters(
                "hoplite_store_operation_bytes_total",
                "Sizes of the objects that clients have put, and got.",
                "operation",
                &WITH_BYTES,
            ),
            failures: metrics.counters_by_two(
                "hoplite_store_operation_failures_total",
                "Operations of clients that failed.",
                ["operation", "error"],
                &timeouts,
            ),
            room_waits: metrics.seconds(
                "hoplite_store_room_wait_seconds",
                "How long puts waited that found no room, or an unfinished put of their id, and then succeeded.",
            ),
            pull_seconds: metrics.seconds_by(
                "hoplite_store_pull_seconds",
                "How long transfers from other stores took. Those that failed are tried again.",
                "outcome",
                &outcomes.each_ref().map(String::as_str),
            ),
            grants: metrics.counters(
                "hoplite_store_grants_total",
                "Senders that the directory named to this store, by why it chose them.",
                "reason",
                &reasons.each_ref().map(String::as_str),
            ),
            serves: metrics.counters(
                "hoplite_store_serves_total",
                "Transfers that other stores asked for.",
                "result",
                &["accepted", "refused"],
            ),
            combined_bytes: metrics.counter(
                "hoplite_store_combined_bytes_total",
                "Bytes that this store has computed for reduces, its own and those of others.",
            ),
            hop_failures: metrics.counters(
                "hoplite_store_hop_failures_total",
                "Hops of this store's reduces that failed; the reduce is mended.",
                "reason",
                &HOP_FAILURES,
            ),
            session_failures: metrics.counters(
                "hoplite_store_session_failures_total",
                "Tries to open a session with a shard that failed, by the error; tls if this store did not accept the \
                 certificate of the shard. The shard counts those that it did not accept.",
                "error",
                &["unavailable", TLS],
            ),
            session_losses: metrics
                .counter("hoplite_store_session_losses_total", "Sessions with shards that were lost."),
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
            open_calls: metrics
                .gauge("hoplite_store_open_calls", "Operations of clients that are not answered yet."),
            active_serves: metrics.gauge("hoplite_store_active_serves", "Transfers to other stores now."),
            now: Instant::now(),
            events: 0,
            calls: BTreeMap::new(),
            writes: BTreeMap::new(),
            pulls: BTreeMap::new(),
            combinations: BTreeMap::new(),
            accepted_serves: BTreeSet::new(),
        }
    }

    pub(crate) fn session_failed(&self, cause: &str) {
        self.session_failures.with_label_values(&[cause]).inc();
    }

    pub(crate) fn event(&mut self, event: &Event) {
        self.now = Instant::now();
        self.events += 1;
        match event {
            Event::Request { client, call, request } => self.request((*client, *call), request),
            Event::ClientGone { client } => {
                let mut later = self.calls.split_off(&(*client, CallId(0)));
                if let Some(next) = client.0.checked_add(1) {
                    self.calls.append(&mut later.split_off(&(ClientId(next), CallId(0))));
                }
                self.count_calls();
            }
            Event::ShardDown { .. } => self.session_losses.inc(),
            Event::FromShard { message, .. } => {
                self.from_shards.with_label_values(&[message.kind()]).inc();
                if let ToStore::Granted(grant) = message {
                    self.grants.with_label_values(&[label_of(grant.reason)]).inc();
                }
            }
            Event::PullEnded { pull, outcome, .. } => {
                if let Some(began) = self.pulls.remove(pull) {
                    let seconds = self.since(began);
                    self.pull_seconds.with_label_values(&[label_of(outcome)]).observe(seconds);
                }
            }
            Event::ServeEnded { serve } => {
                self.accepted_serves.remove(serve);
                self.count_serves();
            }
            Event::CombineEnded { combine, valid_bytes, .. } => {
                if let Some(from_bytes) = self.combinations.remove(combine) {
                    self.combined_bytes.inc_by(valid_bytes.saturating_sub(from_bytes));
                }
            }
            Event::HopReported { report: HopReport::Failed(failure), .. } => {
                let reason = match failure {
                    HopFailure::Unreachable => HOP_FAILURES[0],
                    HopFailure::Input { .. } => HOP_FAILURES[1],
                    HopFailure::Refused(_) => HOP_FAILURES[2],
                };
                self.hop_failures.with_label_values(&[reason]).inc();
            }
            _ => {}
        }
    }

    fn request(&mut self, key: (ClientId, CallId), request: &Request) {
        let mut put_bytes = None;
        let (operation, copy) = match request {
            Request::Put { bytes, .. } => {
                put_bytes = Some(bytes.len() as u64);
                (OPERATIONS[0], None)
            }
            Request::Create { .. } => (OPERATIONS[0], None),
            Request::Seal { copy, .. } => (OPERATIONS[0], Some(*copy)),
            Request::SealUnconfirmed { copy } => return self.sealed(*copy),
            Request::Get { .. } => (OPERATIONS[1], None),
            Request::Reduce(_) => (OPERATIONS[2], None),
            Request::Delete { .. } => (OPERATIONS[3], None),
            Request::Wait { .. } => (OPERATIONS[4], None),
            Request::Locate { .. } => (OPERATIONS[5], None),
            // Not answered any more.
            Request::Cancel { call } | Request::Unsubscribe { call } => {
                self.calls.remove(&(key.0, *call));
                return self.count_calls();
            }
            _ => return,
        };
        self.calls.insert(key, Call { operation, began: self.now, event: self.events, copy, put_bytes });
        self.count_calls();
    }

    pub(crate) fn effect(&mut self, effect: &Effect) {
        match effect {
            Effect::Reply { client, call, response } => {
                if let Some(call) = self.calls.remove(&(*client, *call)) {
                    self.answered(call, response);
                    self.count_calls();
                }
            }
            Effect::CopyClosed { copy } => drop(self.writes.remove(copy)),
            Effect::ToShard { message, .. } => self.to_shards.with_label_values(&[message.kind()]).inc(),
            Effect::StartPull { pull, .. } => drop(self.pulls.insert(*pull, self.now)),
            Effect::StartCombine { combine, offset_bytes, .. } => {
                self.combinations.insert(*combine, *offset_bytes);
            }
            Effect::ServeAccepted { serve, .. } => {
                self.serves.with_label_values(&["accepted"]).inc();
                self.accepted_serves.insert(*serve);
                self.count_serves();
            }
            Effect::ServeRefused { .. } => self.serves.with_label_values(&["refused"]).inc(),
            _ => {}
        }
    }

    fn answered(&mut self, call: Call, response: &Result<Response, Error>) {
        let Call { operation, began, event, copy, put_bytes } = call;
        match response {
            Ok(Response::Created(view)) => {
                if event != self.events {
                    self.room_waits.observe(self.since(began));
                }
                self.writes.insert(view.copy, Write { began, size_bytes: view.size_bytes });
            }
            Ok(Response::Sealed) => {
                if let Some(copy) = copy {
                    self.sealed(copy);
                }
                if let Some(size_bytes) = put_bytes {
                    self.put_ended(began, size_bytes);
                }
            }
            Ok(response) => {
                if let Response::Object(view) = response {
                    self.bytes.with_label_values(&[operation]).inc_by(view.size_bytes);
                }
                self.seconds.with_label_values(&[operation]).observe(self.since(began));
            }
            Err(error) => {
                self.failures.with_label_values(&[operation, &label_of(error.code())]).inc();
            }
        }
    }

    /// A client has written all of a copy.
    fn sealed(&mut self, copy: CopyId) {
        if let Some(Write { began, size_bytes }) = self.writes.remove(&copy) {
            self.put_ended(began, size_bytes);
        }
    }

    fn put_ended(&self, began: Instant, size_bytes: u64) {
        self.bytes.with_label_values(&["put"]).inc_by(size_bytes);
        self.seconds.with_label_values(&["put"]).observe(self.since(began));
    }

    fn since(&self, began: Instant) -> f64 {
        self.now.duration_since(began).as_secs_f64()
    }

    fn count_calls(&self) {
        self.open_calls.set(level(self.calls.len()));
    }

    fn count_serves(&self) {
        self.active_serves.set(level(self.accepted_serves.len()));
    }
}

/// Most links that are exported, so that the number of series does not grow with the cluster.
const MAX_EXPORTED_LINKS: usize = 8;
const PICOSECONDS: i64 = 1_000_000_000_000;

/// What is looked up when somebody asks.
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
    put_conflicts: IntCounter,
    transfer_bytes: IntCounterVec,
    slow_links: IntGauge,
    link_rate: IntGaugeVec,
    link_round_trip: IntGaugeVec,
    corrupt_frames: IntCounter,
    malformed_connections: IntCounter,
    refused_connections: IntCounter,
}

impl Levels {
    fn new(metrics: &Metrics) -> Self {
        Self {
            memory_bytes: metrics.gauges(
                "hoplite_store_memory_bytes",
                "The shared memory: all of it (capacity), and what is free, pinned, evictable, reserved for reduces, and \
                 touched so far (prefaulted).",
                "state",
            ),
            copies: metrics.gauge("hoplite_store_copies", "Copies of objects in this store."),
            clients: metrics.gauge("hoplite_store_clients", "Connected clients."),
            waiting_for_room: metrics
                .gauge("hoplite_store_waiting_for_room", "Puts, gets and reduces that wait for room."),
            active_pulls: metrics.gauge("hoplite_store_active_pulls", "Transfers from other stores now."),
            active_reduces: metrics
                .gauge("hoplite_store_active_reduces", "Reduces that this store coordinates now."),
            active_hops: metrics.gauges(
                "hoplite_store_active_hops",
                "Hops of reduces now: performed here, or directed from here.",
                "role",
            ),
            sessions: metrics.gauges(
                "hoplite_store_shard_connected",
                "Whether there is a session with the shard: 1 or 0.",
                "shard",
            ),
            evictions: metrics.counter("hoplite_store_evictions_total", "Copies that were evicted."),
            put_conflicts: metrics
                .counter("hoplite_store_put_conflicts_total", "Puts that met another put of the same id."),
            transfer_bytes: metrics.counters(
                "hoplite_store_transfer_bytes_total",
                "Bytes of objects to and from other stores.",
                "direction",
                &["sent", "received"],
            ),
            slow_links: metrics.gauge(
                "hoplite_store_slow_links",
                "Links to other stores that carry much less than most, or take much longer, as transfers show.",
            ),
            link_rate: metrics.gauges(
                "hoplite_store_link_bytes_per_second",
                "What the links to other stores carry, as transfers show; of the eight that carry least.",
                "peer",
            ),
            link_round_trip: metrics.gauges(
                "hoplite_store_link_round_trip_nanoseconds",
                "The round trips to other stores, as transfers show; of the eight that carry least.",
                "peer",
            ),
            corrupt_frames: metrics.counter(
                "hoplite_store_corrupt_frames_total",
                "Transfers that ended because a frame was damaged; they are tried again.",
            ),
            malformed_connections: metrics.counter(
                "hoplite_store_malformed_connections_total",
                "Connections of peers that did not speak the protocol, or belong to another cluster.",
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
        follow(&self.put_conflicts, status.put_conflicts);
        let data = engine.metrics();
        self.update_links(&data.links());
        for (counter, count) in [
            (&self.transfer_bytes.with_label_values(&["sent"]), &data.sent_bytes),
            (&self.transfer_bytes.with_label_values(&["received"]), &data.received_bytes),
            (&self.corrupt_frames, &data.corrupt_frames),
            (&self.malformed_connections, &data.malformed_connections),
            (&self.refused_connections, &data.refused_connections),
        ] {
            follow(counter, count.load(Ordering::Relaxed));
        }
    }
}

impl Levels {
    /// The labels are those of the worst links now: a peer that is no longer among them is not exported any more.
    fn update_links(&self, worst_first: &[PeerLink]) {
        self.slow_links.set(level(worst_first.iter().filter(|link| link.is_slow).count()));
        self.link_rate.reset();
        self.link_round_trip.reset();
        if worst_first.is_empty() {
            // So that the series are there before the first transfer.
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

/// Looks the rest up whenever somebody asks. The store is ready when it has a session with a shard.
pub(crate) fn look(
    metrics: &Metrics,
    engine: &Arc<Engine>,
    shards: Vec<String>,
    prefaulted_bytes: Arc<AtomicU64>,
) {
    let levels = Levels::new(metrics);
    // The metrics outlive the engine, whose end gives the memory back.
    let engine: Weak<Engine> = Arc::downgrade(engine);
    metrics.look_when_asked(Box::new(move || {
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
