//! The store's one piece of state and what follows from its decisions.
//!
//! [`Engine::apply`] gives an event to the [`Node`] and performs the effects, in order, under one short lock: nothing
//! in here waits. Everything else in the store (local plane, data plane, sessions, alarm) turns what happens into
//! events.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dashmap::DashMap;
use hoplite_core::node::{ClientId, CopyId, Effect, Event, Node, NodeStatus, PullId, ServeId, Urgency};
use hoplite_core::shard::ToShard;
use hoplite_core::time::Time;
use hoplite_core::{ObjectId, PutId};
use hoplite_proto::local::Response;
use hoplite_shm::Arena;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::copies::{Copies, LiveCopy};
use crate::data::{CompareRequest, DataMetrics, PullRequest, Puller, ServeSource, Served};
use crate::local::Answers;
use crate::outbox::{Full, Outbox, Outgoing};

/// What [`Engine::apply`] changes.
#[derive(Debug)]
struct State {
    node: Node,
    effects: Vec<Effect>,
    alarm_at: Option<Time>,
    pulls: BTreeMap<PullId, CancellationToken>,
    /// The verdict on the serve that is being requested.
    verdict: Option<(ServeId, Option<CopyId>)>,
    /// For each shard, where messages of its present session go.
    sessions: Vec<Option<Outbox>>,
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
        Arc::new(Self {
            state: Mutex::new(State {
                node,
                effects: Vec::new(),
                alarm_at: None,
                pulls: BTreeMap::new(),
                verdict: None,
                sessions: (0..shards).map(|_| None).collect(),
            }),
            origin: Instant::now(),
            last_number: AtomicU64::new(0),
            arena,
            copies: Copies::default(),
            clients: DashMap::new(),
            puller,
            metrics,
            tasks,
            runtime: Handle::current(),
            stop,
            alarm: Notify::new(),
        })
    }

    /// Tells the node what happened and does what it decides.
    pub(crate) fn apply(self: &Arc<Self>, event: Event) {
        self.apply_locked(&mut self.lock(), event);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic inside the lock is a bug that the panic itself reports; the others go on with the state as it is.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn apply_locked(self: &Arc<Self>, state: &mut State, event: Event) {
        tracing::trace!(?event);
        let mut effects = std::mem::take(&mut state.effects);
        state.node.apply(self.now(), event, &mut effects);
        for effect in effects.drain(..) {
            tracing::trace!(?effect);
            self.perform(state, effect);
        }
        state.effects = effects;
        let next = state.node.next_deadline();
        if next.is_some_and(|next| state.alarm_at.is_none_or(|armed| next < armed)) {
            state.alarm_at = next;
            self.alarm.notify_one();
        }
    }

    fn perform(self: &Arc<Self>, state: &mut State, effect: Effect) {
        match effect {
            Effect::Reply { client, call, response } => {
                if let Some(answers) = self.clients.get(&client) {
                    answers.add((call, response.map(Response::Node)));
                }
            }
            Effect::ToShard { shard, message, inline_from, urgency } => {
                self.tell_shard(state, shard, message, inline_from, urgency)
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
                let request = PullRequest { id, put, offset_bytes, sender, sender_address };
                let cancelled = self.stop.child_token();
                state.pulls.insert(pull, cancelled.clone());
                self.spawn_pull(pull, live, request, cancelled);
            }
            Effect::CancelPull { pull } => {
                if let Some(cancelled) = state.pulls.get(&pull) {
                    cancelled.cancel();
                }
            }
            Effect::ServeAccepted { serve, copy, .. } => state.verdict = Some((serve, Some(copy))),
            Effect::ServeRefused { serve } => state.verdict = Some((serve, None)),
            Effect::Compare { copy, id, winner, holder } => {
                let live = self.copies.get(copy).expect("a copy is open while it is compared");
                let request = CompareRequest { id, put: winner, holder: holder.0, holder_address: holder.1 };
                self.spawn_compare(copy, live, request);
            }
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
            engine.apply_locked(&mut state, Event::PullEnded { pull, valid_bytes, outcome });
        };
        self.tasks.spawn_on(task, &self.runtime);
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

    fn tell_shard(
        &self,
        state: &mut State,
        shard: usize,
        message: ToShard,
        inline_from: Option<CopyId>,
        urgency: Urgency,
    ) {
        let inline_from = inline_from.and_then(|copy| self.copies.get(copy));
        if let Some(session) = &state.sessions[shard]
            && session.push(Outgoing { message, inline_from, urgency }) == Err(Full)
        {
            // Too far behind. Without its outbox the session ends; the next one starts with a full publication.
            tracing::warn!(shard, "the session's queue is full, starting a new session");
            state.sessions[shard] = None;
        }
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

impl ServeSource for Engine {
    async fn serve(self: &Arc<Self>, id: ObjectId, put: PutId) -> Option<Served> {
        let serve = ServeId(self.next_number());
        let copy = {
            let mut state = self.lock();
            self.apply_locked(&mut state, Event::ServeRequested { serve, id, put });
            state.verdict.take().filter(|(asked, _)| *asked == serve).and_then(|(_, copy)| copy)
        };
        let live = copy.and_then(|copy| self.copies.get(copy));
        let Some(live) = live else {
            self.apply(Event::ServeEnded { serve });
            return None;
        };
        let engine = Arc::clone(self);
        Some(Served::new(live, move || engine.apply(Event::ServeEnded { serve })))
    }
}
