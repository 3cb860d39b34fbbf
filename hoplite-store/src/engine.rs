//! The store's one piece of state and what follows from its decisions.
//!
//! [`Engine::apply`] gives an event to the [`Node`] and performs the effects, in order, under one short lock: nothing
//! in here waits. Everything else in the store (local plane, data plane, sessions, alarm) turns what happens into
//! events.
//!
//! A get passes six files; this is number 3. Next: `hoplite-core/src/node/gets.rs`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dashmap::DashMap;
use hoplite_core::TraceContext;
use hoplite_core::batch::Full;
use hoplite_core::collective::{
    CollectiveEffect, CollectiveEvent, EnlistmentId, MembershipId, Plan, Report, Word,
};
use hoplite_core::error::Error;
use hoplite_core::id::ObjectId;
use hoplite_core::load::{LinkLoad, Load, MAX_LINKS, TransferLoad};
use hoplite_core::node::{
    ClientId, CombineId, CombineInput, CombineOutcome, CopyId, Effect, Event, HopId, HopReport, HostingId,
    Node, NodeStatus, PullId, ReduceRecord, ServeId, Urgency,
};
use hoplite_core::time::Time;
use hoplite_core::topology::probe::survey::{SurveyOptions, SurveyProgress, SurveyReport};
use hoplite_proto::local::Response;
use hoplite_shm::Arena;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::copies::{Copies, LiveCopy};
use crate::data::{
    CombineRequest, CombineSource, CompareRequest, DataMetrics, Enlisted, Exchange, HopHost, HopRequest,
    Hosted, MemberHost, Peer, PullRequest, Puller, ServeRequest, ServeSource, Served, Surveyor, Words,
};
use crate::local::{Answers, Work};
use crate::metrics::Observer;
use crate::outbox::{Outbox, Outgoing};
use crate::traces::Traces;

/// Most words that a coordinator says to a member.
const MAX_WORDS: usize = 2;

/// What [`Engine::apply`] changes.
#[derive(Debug)]
struct State {
    node: Node,
    effects: Vec<Effect>,
    alarm_at: Option<Time>,
    pulls: BTreeMap<PullId, CancellationToken>,
    combines: BTreeMap<CombineId, CancellationToken>,
    /// The serves that were requested and not decided on.
    verdicts: BTreeMap<ServeId, oneshot::Sender<Option<Arc<LiveCopy>>>>,
    /// The hops that this store directs; cancelled when they are needed no longer.
    hops: BTreeMap<HopId, CancellationToken>,
    /// The hops that this store performs for others, and how their coordinators are told of them.
    hostings: BTreeMap<HostingId, mpsc::Sender<HopReport>>,
    /// The members of sessions that this store coordinates, and how they are told of decisions.
    enlistments: BTreeMap<EnlistmentId, mpsc::Sender<Word>>,
    /// The sessions in which this store is a member, and how their coordinators are told of it.
    memberships: BTreeMap<MembershipId, mpsc::Sender<Report>>,
    /// For each shard, where messages of its present session go.
    sessions: Vec<Option<Outbox>>,
    /// Counts what happens, if anybody wants to know.
    observer: Option<Observer>,
    /// Tells what is done for what, if anybody wants to know.
    traces: Option<Traces>,
}

/// The store's state and its hands.
#[derive(Debug)]
pub(crate) struct Engine {
    state: Mutex<State>,
    origin: Instant,
    last_number: AtomicU64,
    arena: Arc<Arena>,
    copies: Copies,
    clients: DashMap<ClientId, Arc<Answers>>,
    puller: Puller,
    surveyor: Arc<Surveyor>,
    metrics: Arc<DataMetrics>,
    tasks: TaskTracker,
    /// Where tasks run: events also come from the thread of the local plane, which has a runtime of its own.
    runtime: Handle,
    stop: CancellationToken,
    alarm: Notify,
}

impl Engine {
    /// An engine around `node`, whose extents lie in `arena`. Pulls run on `tasks`, in the current runtime, until `stop`.
    pub(crate) fn new(
        node: Node,
        arena: Arc<Arena>,
        puller: Puller,
        metrics: Arc<DataMetrics>,
        tasks: TaskTracker,
        stop: CancellationToken,
        shards: usize,
    ) -> Arc<Self> {
        let link = puller.link();
        let surveyor = Arc::new(puller.surveyor());
        let engine = Arc::new(Self {
            state: Mutex::new(State {
                node,
                effects: Vec::new(),
                alarm_at: None,
                pulls: BTreeMap::new(),
                combines: BTreeMap::new(),
                verdicts: BTreeMap::new(),
                hops: BTreeMap::new(),
                hostings: BTreeMap::new(),
                enlistments: BTreeMap::new(),
                memberships: BTreeMap::new(),
                sessions: (0..shards).map(|_| None).collect(),
                observer: None,
                traces: None,
            }),
            origin: Instant::now(),
            last_number: AtomicU64::new(0),
            arena,
            copies: Copies::default(),
            clients: DashMap::new(),
            puller,
            surveyor,
            metrics,
            tasks,
            runtime: Handle::current(),
            stop,
            alarm: Notify::new(),
        });
        engine.apply(Event::Measured { link });
        engine
    }

    /// Lets `observer` count what happens from now on.
    pub(crate) fn observe(&self, observer: Observer) {
        self.lock().observer = Some(observer);
    }

    /// Has `traces` tell what is done for what from now on.
    pub(crate) fn trace(&self, traces: Traces) {
        self.lock().traces = Some(traces);
    }

    /// Tells the node what happened and does what it decides.
    pub(crate) fn apply(self: &Arc<Self>, event: Event) {
        self.apply_locked(&mut self.lock(), event);
    }

    /// As [`Engine::apply`], for what somebody asks for in a trace.
    pub(crate) fn apply_traced(self: &Arc<Self>, event: Event, trace: Option<TraceContext>) {
        self.apply_caused(&mut self.lock(), event, trace);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic inside the lock is a bug that the panic itself reports; the others go on with the state as it is.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn apply_locked(self: &Arc<Self>, state: &mut State, event: Event) {
        self.apply_caused(state, event, None);
    }

    fn apply_caused(self: &Arc<Self>, state: &mut State, event: Event, trace: Option<TraceContext>) {
        tracing::trace!(?event);
        if let Some(observer) = &mut state.observer {
            observer.event(&event);
        }
        if let Some(traces) = &mut state.traces {
            traces.event(&event, trace);
        }
        let mut effects = std::mem::take(&mut state.effects);
        state.node.apply(self.now(), event, &mut effects);
        for effect in effects.drain(..) {
            tracing::trace!(?effect);
            if let Some(observer) = &mut state.observer {
                observer.effect(&effect);
            }
            let trace = state.traces.as_mut().and_then(|traces| traces.effect(&effect));
            self.perform(state, effect, trace);
        }
        state.effects = effects;
        let next = state.node.next_deadline();
        if next.is_some_and(|next| state.alarm_at.is_none_or(|armed| next < armed)) {
            state.alarm_at = next;
            self.alarm.notify_one();
        }
    }

    fn perform(self: &Arc<Self>, state: &mut State, effect: Effect, trace: Option<TraceContext>) {
        match effect {
            Effect::Reply { client, call, response } => {
                if let Some(answers) = self.clients.get(&client) {
                    answers.add((call, response.map(Response::Node)));
                }
            }
            Effect::Follow { client, call, copy, beyond_bytes } => {
                let live = self.copies.get(copy).expect("a copy is open while a client refers to it");
                if let Some(answers) = self.clients.get(&client) {
                    answers.add_work(Work::Follow { call, live, beyond_bytes });
                }
            }
            Effect::Inspect { client, call, inspection, shards } => {
                if let Some(answers) = self.clients.get(&client) {
                    answers.add_work(Work::Inspect { call, inspection, shards });
                }
            }
            Effect::CallEnded { client, call } => {
                if let Some(answers) = self.clients.get(&client) {
                    answers.add_work(Work::End { call });
                }
            }
            Effect::ToShard { shard, message, inline_from, urgency } => {
                let inline_from = inline_from.and_then(|copy| self.copies.get(copy));
                tell_shard(state, shard, Outgoing { message, inline_from, trace }, urgency);
            }
            Effect::CopyOpened { copy, extent, size_bytes, producer } => {
                let buffer =
                    self.arena.buffer(extent, size_bytes).expect("the allocator stays inside the arena");
                buffer.initialise();
                self.copies.open(copy, LiveCopy::new(buffer, producer));
            }
            Effect::Fill { copy, bytes } => {
                if let Some(live) = self.copies.get(copy) {
                    live.buffer().write(0, &bytes);
                }
            }
            Effect::CopyCompleted { copy } => {
                if let Some(live) = self.copies.get(copy) {
                    live.complete();
                }
            }
            Effect::CopyFailed { copy, error } => {
                if let Some(live) = self.copies.get(copy) {
                    live.fail(error);
                }
            }
            Effect::CopyClosed { copy } => {
                self.copies.close(copy);
            }
            Effect::StartPull { pull, copy, id, put, size_bytes, sender, sender_address, offset_bytes } => {
                tracing::debug!(%id, %sender, size_bytes, offset_bytes, "pull starts");
                let live = self.copies.get(copy).expect("a copy is open while it is pulled");
                let request = PullRequest { id, put, offset_bytes, sender, sender_address, trace };
                let cancelled = self.stop.child_token();
                state.pulls.insert(pull, cancelled.clone());
                self.spawn_pull(pull, live, request, cancelled);
            }
            Effect::CancelPull { pull } => {
                if let Some(cancelled) = state.pulls.get(&pull) {
                    cancelled.cancel();
                }
            }
            Effect::ServeAccepted { serve, copy, .. } => state.decide(serve, self.copies.get(copy)),
            Effect::ServeRefused { serve } => state.decide(serve, None),
            Effect::Compare { copy, id, winner, holder } => {
                let live = self.copies.get(copy).expect("a copy is open while it is compared");
                let request = CompareRequest { id, put: winner, holder: holder.0, holder_address: holder.1 };
                self.spawn_compare(copy, live, request);
            }
            Effect::StartCombine { combine, copy, op, dtype, offset_bytes, inputs } => {
                tracing::debug!(?combine, %op, offset_bytes, inputs = inputs.len(), "combination starts");
                let live = self.copies.get(copy).expect("a copy is open while it is filled");
                let inputs = inputs.into_iter().map(|input| self.source(input)).collect();
                let cancelled = self.stop.child_token();
                state.combines.insert(combine, cancelled.clone());
                self.spawn_combine(
                    combine,
                    live,
                    CombineRequest { op, dtype, offset_bytes, inputs, trace },
                    cancelled,
                );
            }
            Effect::CancelCombine { combine } => {
                if let Some(cancelled) = state.combines.get(&combine) {
                    cancelled.cancel();
                }
            }
            Effect::StartHop { hop, node, address, spec } => {
                tracing::debug!(?hop, host = %node, inputs = spec.inputs.len(), "hop starts");
                let ended = CancellationToken::new();
                state.hops.insert(hop, ended.clone());
                self.spawn_hop(hop, (node, address), HopRequest { spec, trace }, ended);
            }
            Effect::EndHop { hop } => {
                if let Some(ended) = state.hops.remove(&hop) {
                    ended.cancel();
                }
            }
            Effect::Collective(effect) => self.perform_collective(state, effect),
            Effect::HopReport { hosting, report } => {
                if let Some(reports) = state.hostings.get(&hosting)
                    && let Err(error) = reports.try_send(report)
                {
                    tracing::debug!(?hosting, %error, "a report of a hop came after its end");
                }
            }
        }
    }

    fn perform_collective(self: &Arc<Self>, state: &mut State, effect: CollectiveEffect) {
        match effect {
            CollectiveEffect::Enlist { enlistment, plan } => {
                let (sender, words) = mpsc::channel(MAX_WORDS);
                state.enlistments.insert(enlistment, sender);
                self.spawn_enlistment(enlistment, plan, words);
            }
            CollectiveEffect::Tell { enlistment, word } => {
                let is_last = matches!(word, Word::Stop(_));
                if let Some(words) = state.enlistments.get(&enlistment)
                    && let Err(error) = words.try_send(word)
                {
                    tracing::debug!(?enlistment, %error, "a member was gone before it could be told");
                }
                if is_last {
                    state.enlistments.remove(&enlistment);
                }
            }
            CollectiveEffect::Dismiss { enlistment } => {
                state.enlistments.remove(&enlistment);
            }
            CollectiveEffect::Report { membership, report } => {
                if let Some(reports) = state.memberships.get(&membership)
                    && let Err(error) = reports.try_send(report)
                {
                    tracing::debug!(?membership, %error, "a report of a member came after its end");
                }
            }
            CollectiveEffect::Deny { node, address, target, error } => {
                let engine = Arc::clone(self);
                let task = async move {
                    let peer = (node, address);
                    engine.stop.run_until_cancelled(engine.puller.deny(&peer, &target, &error)).await;
                };
                self.tasks.spawn_on(task, &self.runtime);
            }
            CollectiveEffect::StartExchange { combine, copy, sources, plan } => {
                tracing::debug!(?combine, schedule = %plan.schedule, "exchange starts");
                let live = self.copies.get(copy).expect("a copy is open while it is filled");
                let sources = sources
                    .into_iter()
                    .map(|source| self.copies.get(source).expect("a copy is open while it is read"));
                let exchange = Arc::new(Exchange::new(plan, sources.collect()));
                live.set_exchange(Arc::clone(&exchange));
                let cancelled = self.stop.child_token();
                state.combines.insert(combine, cancelled.clone());
                self.spawn_exchange(combine, live, exchange, cancelled);
            }
        }
    }

    fn spawn_exchange(
        self: &Arc<Self>,
        combine: CombineId,
        live: Arc<LiveCopy>,
        exchange: Arc<Exchange>,
        cancelled: CancellationToken,
    ) {
        let engine = Arc::clone(self);
        let task = async move {
            let filled = || engine.apply(Event::Collective(CollectiveEvent::Filled { combine }));
            let outcome = engine.puller.exchange(&exchange, &live, &cancelled, filled).await;
            let valid_bytes = if outcome == CombineOutcome::Complete { live.size_bytes() } else { 0 };
            tracing::debug!(?combine, ?outcome, "exchange ended");
            // The node may free the copies that were read as soon as it hears of the end.
            drop((exchange, live));
            let mut state = engine.lock();
            state.combines.remove(&combine);
            engine.apply_locked(&mut state, Event::Measured { link: engine.puller.link() });
            engine.apply_locked(&mut state, Event::CombineEnded { combine, valid_bytes, outcome });
        };
        self.tasks.spawn_on(task, &self.runtime);
    }

    /// Keeps in touch with a member, and tells the node what it says.
    fn spawn_enlistment(self: &Arc<Self>, enlistment: EnlistmentId, plan: Box<Plan>, words: Words) {
        let engine = Arc::clone(self);
        let task = async move {
            let report = |report| engine.member_reported(enlistment, report);
            engine.stop.run_until_cancelled(engine.puller.enlist(&plan, words, &report)).await;
        };
        self.tasks.spawn_on(task, &self.runtime);
    }

    /// Tells the node what a member says, unless it is not needed any more.
    fn member_reported(self: &Arc<Self>, enlistment: EnlistmentId, report: Report) {
        tracing::debug!(?enlistment, ?report, "a member reported");
        let mut state = self.lock();
        let is_wanted = match report {
            Report::Filled => state.enlistments.contains_key(&enlistment),
            Report::Failed(_) => state.enlistments.remove(&enlistment).is_some(),
        };
        if is_wanted {
            let event = CollectiveEvent::Reported { enlistment, report };
            self.apply_locked(&mut state, Event::Collective(event));
        }
    }

    /// Where the shell reads an input.
    fn source(&self, input: CombineInput) -> CombineSource {
        match input {
            CombineInput::Local { copy, base_bytes } => {
                let live = self.copies.get(copy).expect("a copy is open while it is read");
                CombineSource::Local { live, base_bytes }
            }
            CombineInput::Remote(input) => CombineSource::Remote(input),
        }
    }

    fn spawn_pull(
        self: &Arc<Self>,
        pull: PullId,
        live: Arc<LiveCopy>,
        request: PullRequest,
        cancelled: CancellationToken,
    ) {
        let engine = Arc::clone(self);
        let task = async move {
            let started = Instant::now();
            let (valid_bytes, outcome) = engine.puller.pull(&request, &live, &cancelled).await;
            let seconds = started.elapsed().as_secs_f64();
            tracing::debug!(id = %request.id, sender = %request.sender, ?outcome, valid_bytes, seconds, "pull ended");
            let mut state = engine.lock();
            state.pulls.remove(&pull);
            engine.apply_locked(&mut state, Event::Measured { link: engine.puller.link() });
            engine.apply_locked(&mut state, Event::PullEnded { pull, valid_bytes, outcome });
        };
        self.tasks.spawn_on(task, &self.runtime);
    }

    fn spawn_combine(
        self: &Arc<Self>,
        combine: CombineId,
        live: Arc<LiveCopy>,
        request: CombineRequest,
        cancelled: CancellationToken,
    ) {
        let engine = Arc::clone(self);
        let task = async move {
            let started = Instant::now();
            let (valid_bytes, outcome) = engine.puller.combine(&request, &live, &cancelled).await;
            let seconds = started.elapsed().as_secs_f64();
            tracing::debug!(?combine, ?outcome, valid_bytes, seconds, "combination ended");
            // The node may free the copies that were read as soon as it hears of the end.
            drop((request, live));
            let mut state = engine.lock();
            state.combines.remove(&combine);
            engine.apply_locked(&mut state, Event::Measured { link: engine.puller.link() });
            engine.apply_locked(&mut state, Event::CombineEnded { combine, valid_bytes, outcome });
        };
        self.tasks.spawn_on(task, &self.runtime);
    }

    /// Directs a hop at `host`, and tells the node how it goes.
    fn spawn_hop(self: &Arc<Self>, hop: HopId, host: Peer, request: HopRequest, ended: CancellationToken) {
        let engine = Arc::clone(self);
        let task = async move {
            let report = |report| engine.hop_reported(hop, report);
            engine.stop.run_until_cancelled(engine.puller.direct(&request, &host, &ended, &report)).await;
        };
        self.tasks.spawn_on(task, &self.runtime);
    }

    /// Tells the node what a host says of a hop, unless the node has ended it.
    fn hop_reported(self: &Arc<Self>, hop: HopId, report: HopReport) {
        tracing::debug!(?hop, ?report, "hop reported");
        let mut state = self.lock();
        let is_wanted = match report {
            HopReport::Complete => state.hops.contains_key(&hop),
            HopReport::Failed(_) => state.hops.remove(&hop).is_some(),
        };
        if is_wanted {
            self.apply_locked(&mut state, Event::HopReported { hop, report });
        }
    }

    fn spawn_compare(self: &Arc<Self>, copy: CopyId, live: Arc<LiveCopy>, request: CompareRequest) {
        let engine = Arc::clone(self);
        let task = async move {
            let equal = engine.puller.compare(&request, &live, &engine.stop).await;
            tracing::info!(id = %request.id, ?equal, "compared with an earlier put of the same id");
            engine.apply(Event::Compared { copy, equal });
        };
        self.tasks.spawn_on(task, &self.runtime);
    }

    /// A session with `shard` is up; what the node says to it goes to `outbox`.
    pub(crate) fn session_up(self: &Arc<Self>, shard: usize, outbox: Outbox) {
        let mut state = self.lock();
        state.sessions[shard] = Some(outbox);
        self.apply_locked(&mut state, Event::ShardUp { shard });
    }

    /// The session with `shard` is lost.
    pub(crate) fn session_down(self: &Arc<Self>, shard: usize) {
        let mut state = self.lock();
        state.sessions[shard] = None;
        self.apply_locked(&mut state, Event::ShardDown { shard });
    }

    /// A session could not be opened.
    pub(crate) fn session_failed(&self, cause: &str) {
        if let Some(observer) = &self.lock().observer {
            observer.session_failed(cause);
        }
    }

    /// Ends all sessions, after what is queued for them.
    pub(crate) fn end_sessions(&self) {
        self.lock().sessions.iter_mut().for_each(|session| *session = None);
    }

    /// Which shards have a session.
    pub(crate) fn shards_up(&self) -> Vec<bool> {
        self.lock().sessions.iter().map(Option::is_some).collect()
    }

    /// Enters a client; its answers go to the queue that is returned.
    pub(crate) fn client_connected(&self) -> (ClientId, Arc<Answers>) {
        let client = ClientId(self.next_number());
        let answers = Arc::new(Answers::default());
        self.clients.insert(client, Arc::clone(&answers));
        (client, answers)
    }

    /// Takes back all that a client held.
    pub(crate) fn client_gone(self: &Arc<Self>, client: ClientId) {
        self.clients.remove(&client);
        self.apply(Event::ClientGone { client });
    }

    /// How many clients are connected.
    pub(crate) fn clients(&self) -> usize {
        self.clients.len()
    }

    /// The copies that exist.
    pub(crate) const fn copies(&self) -> &Copies {
        &self.copies
    }

    /// The receiving side of the data plane.
    pub(crate) const fn puller(&self) -> &Puller {
        &self.puller
    }

    /// How far the probe is that this store coordinates.
    pub(crate) fn probe_progress(&self) -> SurveyProgress {
        self.surveyor.progress()
    }

    /// Has `peers` measure the links between them. Runs with the rest of the store until the future is dropped, or the store ends.
    ///
    /// # Errors
    /// [`Error::LimitExceeded`] for too many nodes, or while another probe goes on; [`Error::InvalidRequest`] if there are too few, or
    /// they do not reach each other; [`Error::ShuttingDown`].
    pub(crate) async fn survey(
        self: &Arc<Self>,
        peers: Vec<Peer>,
        options: SurveyOptions,
    ) -> Result<SurveyReport, Error> {
        const PICOSECONDS: u64 = 1_000_000_000_000;
        let link = self.puller.link();
        let assumed = u32::try_from(PICOSECONDS / link.bytes_per_second.max(1)).unwrap_or(u32::MAX);
        let engine = Arc::clone(self);
        let task = async move {
            let survey = engine.surveyor.survey(peers, options, assumed);
            engine.stop.run_until_cancelled(survey).await
        };
        let task = AbortOnDropHandle::new(self.tasks.spawn_on(task, &self.runtime));
        match task.await {
            Ok(Some(report)) => report.map_err(Error::from),
            Ok(None) | Err(_) => Err(Error::ShuttingDown),
        }
    }

    /// The arena in which they lie.
    pub(crate) const fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// What the data plane has done.
    pub(crate) fn metrics(&self) -> &DataMetrics {
        &self.metrics
    }

    /// What is in the store.
    pub(crate) fn status(&self) -> NodeStatus {
        self.lock().node.status()
    }

    /// How the store is, for those who watch the cluster. Its sessions are told of in this `order` of the shards.
    pub(crate) fn load(&self, order: &[usize]) -> Load {
        let state = self.lock();
        let load = state.node.load(self.now());
        let pulled: Vec<(CopyId, ObjectId)> =
            state.node.pulled().map(|(copy, id)| (copy, id.clone())).collect();
        let up = order.iter().map(|shard| state.sessions.get(*shard).is_some_and(Option::is_some));
        let shards_up = up.collect();
        drop(state);
        let transfers = pulled.into_iter().filter_map(|(copy, id)| {
            let live = self.copies.get(copy)?;
            let (size_bytes, valid_bytes) = (live.size_bytes(), live.valid_bytes());
            Some(TransferLoad { id, size_bytes, valid_bytes, rate: 0 })
        });
        Load {
            clients: self.clients() as u64,
            sent_bytes: self.metrics.sent_bytes.load(Ordering::Relaxed),
            received_bytes: self.metrics.received_bytes.load(Ordering::Relaxed),
            shards_up,
            transfers: transfers.collect(),
            links: self.metrics.links().into_iter().take(MAX_LINKS).map(LinkLoad::from).collect(),
            ..load
        }
    }

    /// How the latest reduce of this target went, if this store coordinated it and remembers.
    pub(crate) fn reduce_record(&self, target: &ObjectId) -> Option<ReduceRecord> {
        self.lock().node.reduce_record(target).cloned()
    }

    /// How long the store has been running.
    pub(crate) fn uptime(&self) -> Duration {
        self.origin.elapsed()
    }

    fn now(&self) -> Time {
        Time::ZERO + self.origin.elapsed()
    }

    fn next_number(&self) -> u64 {
        self.last_number.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Wakes the node at its deadlines, for ever.
    pub(crate) async fn run_alarm(self: Arc<Self>) {
        loop {
            let alarm_at = self.lock().alarm_at;
            let due = async {
                match alarm_at {
                    Some(time) => tokio::time::sleep(time.since(self.now())).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = due => {
                    let mut state = self.lock();
                    state.alarm_at = None;
                    self.apply_locked(&mut state, Event::Tick);
                }
                () = self.alarm.notified() => {}
            }
        }
    }
}

impl State {
    /// Tells the task that waits for it what the node thinks of a serve. A task that has left says that the serve has ended.
    fn decide(&mut self, serve: ServeId, live: Option<Arc<LiveCopy>>) {
        if let Some(verdict) = self.verdicts.remove(&serve) {
            let _ = verdict.send(live);
        }
    }
}

fn tell_shard(state: &mut State, shard: usize, outgoing: Outgoing, urgency: Urgency) {
    if let Some(session) = &state.sessions[shard]
        && session.push(outgoing, urgency) == Err(Full)
    {
        // Too far behind. Without its outbox the session ends; the next one starts with a full publication.
        tracing::warn!(shard, "the session's queue is full, starting a new session");
        state.sessions[shard] = None;
    }
}

/// Says that a serve has ended when it is dropped.
struct Serve {
    engine: Arc<Engine>,
    serve: ServeId,
}

impl Drop for Serve {
    fn drop(&mut self) {
        let mut state = self.engine.lock();
        state.verdicts.remove(&self.serve);
        self.engine.apply_locked(&mut state, Event::ServeEnded { serve: self.serve });
    }
}

impl ServeSource for Engine {
    async fn serve(self: &Arc<Self>, request: ServeRequest) -> Option<Served> {
        let ServeRequest { id, put, awaits_hop, trace } = request;
        let serve = Serve { engine: Arc::clone(self), serve: ServeId(self.next_number()) };
        let (verdict, decided) = oneshot::channel();
        {
            let mut state = self.lock();
            state.verdicts.insert(serve.serve, verdict);
            let event = Event::ServeRequested { serve: serve.serve, id, put, awaits_hop };
            self.apply_caused(&mut state, event, trace);
        }
        let live = decided.await.ok().flatten()?;
        Some(Served::new(live, move || drop(serve)))
    }
}

impl HopHost for Engine {
    fn host(self: &Arc<Self>, HopRequest { spec: hop, trace }: HopRequest) -> Hosted {
        let hosting = HostingId(self.next_number());
        let (sender, reports) = mpsc::channel(Hosted::MAX_REPORTS);
        {
            let mut state = self.lock();
            state.hostings.insert(hosting, sender);
            self.apply_caused(&mut state, Event::HopRequested { hosting, hop }, trace);
        }
        let engine = Arc::clone(self);
        Hosted::new(reports, move || {
            let mut state = engine.lock();
            state.hostings.remove(&hosting);
            engine.apply_locked(&mut state, Event::HopReleased { hosting });
        })
    }
}

impl MemberHost for Engine {
    fn enlist(self: &Arc<Self>, plan: Box<Plan>) -> Enlisted {
        let membership = MembershipId(self.next_number());
        let (sender, reports) = mpsc::channel(Enlisted::MAX_REPORTS);
        {
            let mut state = self.lock();
            state.memberships.insert(membership, sender);
            self.apply_locked(&mut state, Event::Collective(CollectiveEvent::Asked { membership, plan }));
        }
        let (teller, leaver) = (Arc::clone(self), Arc::clone(self));
        let tell = move |word| teller.apply(Event::Collective(CollectiveEvent::Told { membership, word }));
        let leave = move || {
            let mut state = leaver.lock();
            state.memberships.remove(&membership);
            leaver.apply_locked(&mut state, Event::Collective(CollectiveEvent::Left { membership }));
        };
        Enlisted::new(reports, tell, leave)
    }

    fn deny(self: &Arc<Self>, target: ObjectId, error: Error) {
        self.apply(Event::Collective(CollectiveEvent::Denied { target, error }));
    }
}

#[cfg(test)]
mod tests {
    use hoplite_core::id::{ClusterId, NodeId, PutId};
    use hoplite_core::limits::Limits;
    use hoplite_core::metadata::Dtype;
    use hoplite_core::node::{Hop, HopFailure, HopInput, NodeConfig};
    use hoplite_core::placement::ShardMap;
    use hoplite_core::plan::collective::SchedulePreference;
    use hoplite_core::reduce::ReduceOp;
    use hoplite_core::shard::PullOutcome;
    use hoplite_core::topology::place::EVERYWHERE;
    use hoplite_shm::Backing;
    use tokio::task::JoinHandle;
    use tokio::time::timeout;

    use super::*;
    use crate::data::DataConfig;

    /// Longer than anything here takes; a test that reaches it has hung.
    const PATIENCE: Duration = Duration::from_secs(30);
    const PUT: PutId = PutId(7);

    fn engine() -> Arc<Engine> {
        let (name, arena) = (NodeId::new("n").unwrap(), Arena::create(Backing::Memfd, 1 << 20).unwrap());
        let data = Arc::new(DataConfig::new(ClusterId::new("c").unwrap(), name.clone()));
        let metrics = Arc::new(DataMetrics::default());
        let puller = Puller::new(data, Arc::clone(&metrics));
        let node = Node::new(NodeConfig {
            node: name,
            capacity_bytes: arena.capacity_bytes(),
            limits: Limits::default(),
            shards: ShardMap::new(["shard"]),
            path: EVERYWHERE,
            allreduce_schedule: SchedulePreference::Auto,
            seed: 1,
        });
        Engine::new(node, arena, puller, metrics, TaskTracker::new(), CancellationToken::new(), 1)
    }

    fn output() -> ObjectId {
        ObjectId::of_hop(PUT)
    }

    fn ask(engine: &Arc<Engine>, awaits_hop: bool) -> JoinHandle<Option<Served>> {
        let (engine, request) =
            (Arc::clone(engine), ServeRequest { id: output(), put: PUT, awaits_hop, trace: None });
        tokio::spawn(async move { engine.serve(request).await })
    }

    /// A hop with an input at a node where nobody listens.
    fn hop() -> Hop {
        let input = HopInput {
            id: ObjectId::new("x").unwrap(),
            put: PUT,
            size_bytes: 8,
            base_bytes: 0,
            node: NodeId::new("elsewhere").unwrap(),
            address: "127.0.0.1:1".parse().unwrap(),
            is_hop: false,
        };
        Hop {
            output: output(),
            put: PUT,
            op: ReduceOp::Sum,
            dtype: Dtype::F32,
            size_bytes: 8,
            offset_bytes: 0,
            inputs: vec![input],
            timeout: PATIENCE,
        }
    }

    #[tokio::test]
    async fn a_serve_waits_for_its_hop_and_nothing_is_left_of_those_who_leave() {
        let engine = engine();
        assert!(ask(&engine, false).await.unwrap().is_none(), "there is no such object");
        let (waits, leaves) = (ask(&engine, true), ask(&engine, true));
        tokio::task::yield_now().await;
        assert_eq!(engine.lock().verdicts.len(), 2);
        leaves.abort();
        assert!(leaves.await.is_err());
        assert_eq!(engine.lock().verdicts.len(), 1);

        let mut hosted = engine.host(HopRequest { spec: hop(), trace: None });
        let served = timeout(PATIENCE, waits).await.unwrap().unwrap();
        assert_eq!(served.as_ref().map(|served| served.size_bytes()), Some(8));
        let failure = HopFailure::Input { index: 0, outcome: PullOutcome::SenderUnreachable };
        let report = timeout(PATIENCE, hosted.next_report()).await.unwrap();
        assert_eq!(report, Some(HopReport::Failed(failure)));
        drop((served, hosted));
        let state = engine.lock();
        assert!(state.verdicts.is_empty() && state.hostings.is_empty() && state.combines.is_empty());
        assert_eq!(state.node.status().copies, 0);
    }

    #[tokio::test]
    async fn a_hop_whose_host_is_not_there_is_over() {
        let engine = engine();
        let host = (NodeId::new("elsewhere").unwrap(), "127.0.0.1:1".parse().unwrap());
        let ended = CancellationToken::new();
        engine.lock().hops.insert(HopId(1), ended.clone());
        engine.spawn_hop(HopId(1), host, HopRequest { spec: hop(), trace: None }, ended);
        engine.tasks.close();
        timeout(PATIENCE, engine.tasks.wait()).await.unwrap();
        assert!(engine.lock().hops.is_empty());
    }
}
