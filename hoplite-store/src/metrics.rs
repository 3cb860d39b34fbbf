//! The metrics of a store, listed in `docs/reference/metrics.md`.
//!
//! An [`Observer`] counts events and effects of the node. [`look`] reads values without a history.

mod counted;
mod levels;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use hoplite_core::collective::CollectiveEffect;
use hoplite_core::error::Error;
use hoplite_core::id::NodeId;
use hoplite_core::node::{
    CallId, ClientId, CombineId, CombineOutcome, CopyId, Effect, Event, HopFailure, HopReport,
    PullId, Request, Response, ServeId,
};
use hoplite_core::plan::collective::Collective;
use hoplite_core::shard::ToStore;
use hoplite_daemon::metrics::{IntCounter, Metrics, label_of, level};

pub(crate) use counted::TLS;
pub(crate) use levels::look;

use counted::{
    DirectoryMetrics, HOP_FAILURES, OPERATIONS, OTHER_PEERS, OperationMetrics, ReduceMetrics,
    TransferMetrics, WITH_BYTES,
};

/// Most values of the label `peer`.
const MAX_PEERS: usize = 32;

/// Sees each event before the node handles it, and each effect afterwards.
pub(crate) struct Observer {
    operations: OperationMetrics,
    transfers: TransferMetrics,
    reduces: ReduceMetrics,
    directory: DirectoryMetrics,

    now: Instant,
    events: u64,
    calls: BTreeMap<(ClientId, CallId), Call>,
    batches: BTreeMap<(ClientId, CallId), Vec<Call>>,
    writes: BTreeMap<CopyId, Write>,
    pulls: BTreeMap<PullId, Pull>,
    /// The first stores from which this store has pulled have separate labels.
    peers: BTreeSet<NodeId>,
    exchanges: BTreeMap<CombineId, Exchange>,
    combinations: BTreeMap<CombineId, u64>,
    accepted_serves: BTreeSet<ServeId>,
}

struct Call {
    operation: &'static str,
    began: Instant,
    event: u64,
    copy: Option<CopyId>,
    put_bytes: Option<u64>,
}

struct Write {
    began: Instant,
    size_bytes: u64,
}

struct Pull {
    began: Instant,
    bytes: IntCounter,
    offset_bytes: u64,
}

struct Exchange {
    collective: String,
    began: Instant,
    size_bytes: u64,
}

impl std::fmt::Debug for Observer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Observer").field("calls", &self.calls.len()).finish_non_exhaustive()
    }
}

fn forget_client<T>(entries: &mut BTreeMap<(ClientId, CallId), T>, client: ClientId) {
    let mut later = entries.split_off(&(client, CallId(0)));
    if let Some(next) = client.0.checked_add(1) {
        entries.append(&mut later.split_off(&(ClientId(next), CallId(0))));
    }
}

impl Observer {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        Self {
            operations: OperationMetrics::new(metrics),
            transfers: TransferMetrics::new(metrics),
            reduces: ReduceMetrics::new(metrics),
            directory: DirectoryMetrics::new(metrics),
            now: Instant::now(),
            events: 0,
            calls: BTreeMap::new(),
            batches: BTreeMap::new(),
            writes: BTreeMap::new(),
            pulls: BTreeMap::new(),
            peers: BTreeSet::new(),
            exchanges: BTreeMap::new(),
            combinations: BTreeMap::new(),
            accepted_serves: BTreeSet::new(),
        }
    }

    pub(crate) fn session_failed(&self, cause: &str) {
        self.directory.session_failures.with_label_values(&[cause]).inc();
    }

    pub(crate) fn event(&mut self, event: &Event) {
        self.now = Instant::now();
        self.events += 1;
        match event {
            Event::Request { client, call, request } => self.request((*client, *call), request),
            Event::ClientGone { client } => {
                forget_client(&mut self.calls, *client);
                forget_client(&mut self.batches, *client);
                self.count_calls();
            }
            Event::ShardDown { .. } => self.directory.session_losses.inc(),
            Event::FromShard { message, .. } => {
                self.directory.from_shards.with_label_values(&[message.kind()]).inc();
                if let ToStore::Granted(grant) = message {
                    self.directory.grants.with_label_values(&[label_of(grant.reason)]).inc();
                }
            }
            Event::PullEnded { pull, outcome, valid_bytes } => {
                if let Some(Pull { began, bytes, offset_bytes }) = self.pulls.remove(pull) {
                    bytes.inc_by(valid_bytes.saturating_sub(offset_bytes));
                    let seconds = self.since(began);
                    self.transfers
                        .pull_seconds
                        .with_label_values(&[label_of(outcome)])
                        .observe(seconds);
                }
            }
            Event::ServeEnded { serve } => {
                self.accepted_serves.remove(serve);
                self.count_serves();
            }
            Event::CombineEnded { combine, valid_bytes, outcome } => {
                if let Some(from_bytes) = self.combinations.remove(combine) {
                    self.reduces.combined_bytes.inc_by(valid_bytes.saturating_sub(from_bytes));
                }
                if let Some(exchange) = self.exchanges.remove(combine) {
                    self.exchanged(&exchange, *outcome);
                }
            }
            Event::HopReported { report: HopReport::Failed(failure), .. } => {
                let reason = match failure {
                    HopFailure::Unreachable => HOP_FAILURES[0],
                    HopFailure::Input { .. } => HOP_FAILURES[1],
                    HopFailure::Refused(_) => HOP_FAILURES[2],
                };
                self.reduces.hop_failures.with_label_values(&[reason]).inc();
            }
            _ => {}
        }
    }

    fn request(&mut self, key: (ClientId, CallId), request: &Request) {
        match request {
            Request::SealUnconfirmed { copy } => return self.sealed(*copy),
            Request::Cancel { call } | Request::Unsubscribe { call } => {
                self.calls.remove(&(key.0, *call));
                self.batches.remove(&(key.0, *call));
            }
            Request::Batch(requests) => {
                let calls = requests.iter().filter_map(|request| self.call(request)).collect();
                self.batches.insert(key, calls);
            }
            request => match self.call(request) {
                Some(call) => drop(self.calls.insert(key, call)),
                None => return,
            },
        }
        self.count_calls();
    }

    fn call(&self, request: &Request) -> Option<Call> {
        let mut put_bytes = None;
        let (operation, copy) = match request {
            Request::Put { bytes, .. } => {
                put_bytes = Some(bytes.len() as u64);
                (OPERATIONS[0], None)
            }
            Request::Create { .. } => (OPERATIONS[0], None),
            Request::Seal { copy, .. } => (OPERATIONS[0], Some(*copy)),
            Request::Get { .. } => (OPERATIONS[1], None),
            Request::Reduce(_) => (OPERATIONS[2], None),
            Request::Delete { .. } => (OPERATIONS[3], None),
            Request::Wait { .. } => (OPERATIONS[4], None),
            Request::Locate { .. } => (OPERATIONS[5], None),
            Request::Join { .. } => (OPERATIONS[6], None),
            Request::Collective(Collective::Allreduce, _) => (OPERATIONS[7], None),
            Request::Collective(Collective::ReduceScatter, _) => (OPERATIONS[8], None),
            Request::Collective(Collective::Allgather, _) => (OPERATIONS[9], None),
            Request::Collective(Collective::AllToAll, _) => (OPERATIONS[10], None),
            _ => return None,
        };
        Some(Call { operation, began: self.now, event: self.events, copy, put_bytes })
    }

    pub(crate) fn effect(&mut self, effect: &Effect) {
        match effect {
            Effect::Reply { client, call, response } => {
                let key = (*client, *call);
                if let Some(call) = self.calls.remove(&key) {
                    self.answered(call, response);
                    self.count_calls();
                }
                if let Some(calls) = self.batches.remove(&key) {
                    self.batch_answered(calls, response);
                    self.count_calls();
                }
            }
            Effect::CopyClosed { copy } => drop(self.writes.remove(copy)),
            Effect::ToShard { message, .. } => {
                self.directory.to_shards.with_label_values(&[message.kind()]).inc()
            }
            Effect::StartPull { pull, sender, offset_bytes, .. } => {
                let (began, offset_bytes) = (self.now, *offset_bytes);
                let bytes = self.pulled_from(sender);
                self.pulls.insert(*pull, Pull { began, bytes, offset_bytes });
            }
            Effect::Collective(CollectiveEffect::StartExchange { combine, plan, .. }) => {
                let collective = label_of(plan.agreement.kind);
                let exchange =
                    Exchange { collective, began: self.now, size_bytes: plan.size_bytes };
                self.exchanges.insert(*combine, exchange);
            }
            Effect::StartCombine { combine, offset_bytes, .. } => {
                self.combinations.insert(*combine, *offset_bytes);
            }
            Effect::ServeAccepted { serve, .. } | Effect::ServeSpilled { serve, .. } => {
                self.transfers.serves.with_label_values(&["accepted"]).inc();
                self.accepted_serves.insert(*serve);
                self.count_serves();
            }
            Effect::ServeRefused { .. } => {
                self.transfers.serves.with_label_values(&["refused"]).inc()
            }
            _ => {}
        }
    }

    fn batch_answered(&mut self, calls: Vec<Call>, response: &Result<Response, Error>) {
        match response {
            Ok(Response::Batch(answers)) => {
                calls
                    .into_iter()
                    .zip(answers)
                    .for_each(|(call, answer)| self.answered(call, answer));
            }
            response => calls.into_iter().for_each(|call| self.answered(call, response)),
        }
    }

    fn answered(&mut self, call: Call, response: &Result<Response, Error>) {
        let Call { operation, began, event, copy, put_bytes } = call;
        match response {
            Ok(Response::Created(view)) => {
                if event != self.events {
                    self.operations.room_waits.observe(self.since(began));
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
                if let Response::Object(view) | Response::Contents { view, .. } = response
                    && WITH_BYTES.contains(&operation)
                {
                    self.operations.bytes.with_label_values(&[operation]).inc_by(view.size_bytes);
                }
                self.operations.seconds.with_label_values(&[operation]).observe(self.since(began));
            }
            Err(error) => {
                self.operations
                    .failures
                    .with_label_values(&[operation, &label_of(error.code())])
                    .inc();
            }
        }
    }

    fn sealed(&mut self, copy: CopyId) {
        if let Some(Write { began, size_bytes }) = self.writes.remove(&copy) {
            self.put_ended(began, size_bytes);
        }
    }

    fn put_ended(&self, began: Instant, size_bytes: u64) {
        self.operations.bytes.with_label_values(&["put"]).inc_by(size_bytes);
        self.operations.seconds.with_label_values(&["put"]).observe(self.since(began));
    }

    fn pulled_from(&mut self, sender: &NodeId) -> IntCounter {
        if self.peers.len() < MAX_PEERS {
            self.peers.insert(sender.clone());
        }
        let label = if self.peers.contains(sender) { sender.as_str() } else { OTHER_PEERS };
        self.transfers.pulled_bytes.with_label_values(&[label])
    }

    fn exchanged(&self, exchange: &Exchange, outcome: CombineOutcome) {
        let collective = [exchange.collective.as_str()];
        if outcome == CombineOutcome::Complete {
            self.reduces
                .exchange_seconds
                .with_label_values(&collective)
                .observe(self.since(exchange.began));
            self.reduces.exchange_bytes.with_label_values(&collective).inc_by(exchange.size_bytes);
        } else {
            self.reduces.exchange_failures.with_label_values(&collective).inc();
        }
    }

    fn since(&self, began: Instant) -> f64 {
        self.now.duration_since(began).as_secs_f64()
    }

    fn count_calls(&self) {
        self.operations.open_calls.set(level(self.calls.len() + self.batches.len()));
    }

    fn count_serves(&self) {
        self.transfers.active_serves.set(level(self.accepted_serves.len()));
    }
}
