//! The store's one piece of state and what follows from its decisions.
//!
//! [`Engine::apply`] gives an event to the [`Node`] and performs the effects (`effects`), in order, under one short lock: nothing
//! in here waits. What takes time is done in `tasks`. Everything else in the store (local plane, data plane, sessions, alarm) turns
//! what happens into events; what other stores ask for comes in through `hosts`.

mod effects;
mod hosts;
mod tasks;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dashmap::DashMap;
use hoplite_core::TraceContext;
use hoplite_core::collective::{Decision, EnlistmentId, Member, MembershipId, Report};
use hoplite_core::error::Error;
use hoplite_core::id::ObjectId;
use hoplite_core::load::{LinkLoad, Load, MAX_LINKS, TransferLoad};
use hoplite_core::node::{
    ClientId, CombineId, CopyId, Effect, Event, HopId, HopReport, HostingId, Node, NodeStatus, PullId,
    ReduceRecord, ServeId, Troubles,
};
use hoplite_core::plan::link::LinkEstimate;
use hoplite_core::time::Time;
use hoplite_core::topology::probe::survey::{SurveyOptions, SurveyProgress, SurveyReport};
use hoplite_shm::Arena;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::copies::{Copies, LiveCopy};
use crate::data::{DataMetrics, Peer, Puller, SMALL_BYTES, SurveyTally, Surveyor};
use crate::local::Answers;
use crate::metrics::Observer;
use crate::outbox::Outbox;
use crate::traces::Traces;

/// The engine keeps room for so many effects of one event.
const KEPT_EFFECTS: usize = 1024;
/// Most clients that the explanation of a full store names.
const MAX_NAMED_HOLDERS: usize = 3;

/// What [`Engine::apply`] changes.
#[derive(Debug)]
struct State {
    node: Node,
    effects: Vec<Effect>,
    alarm_at: Option<Time>,
    pulls: BTreeMap<PullId, CancellationToken>,
    combines: BTreeMap<CombineId, CancellationToken>,
    /// What was done at once, and the node is to hear of next.
    done: VecDeque<Event>,
    /// The serves that were requested and not decided on.
    verdicts: BTreeMap<ServeId, oneshot::Sender<Option<Arc<LiveCopy>>>>,
    /// The hops that this store directs; cancelled when they are needed no longer.
    hops: BTreeMap<HopId, CancellationToken>,
    /// The hops that this store performs for others, and how their coordinators are told of them.
    hostings: BTreeMap<HostingId, mpsc::Sender<HopReport>>,
    /// The members of sessions that this store coordinates, and how they are told of decisions.
    enlistments: BTreeMap<EnlistmentId, mpsc::Sender<Decision>>,
    /// The sessions in which this store is a member, and how their coordinators are told of it.
    memberships: BTreeMap<MembershipId, mpsc::Sender<Report>>,
    /// For each shard, where messages of its present session go.
    sessions: Vec<Option<Outbox>>,
    /// Counts what happens, if anybody wants to know.
    observer: Option<Observer>,
    /// Tells what is done for what, if anybody wants to know.
    traces: Option<Traces>,
}

/// What exchanges bytes with other stores, and the runtime to which its connections belong.
#[derive(Debug, Clone)]
struct RuntimePuller {
    puller: Arc<Puller>,
    runtime: Handle,
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
    /// Moves anything.
    bulk: RuntimePuller,
    /// Moves small objects, and what is made of them, where clients and shards are listened to.
    small: RuntimePuller,
    surveyor: Arc<Surveyor>,
    metrics: Arc<DataMetrics>,
    tasks: TaskTracker,
    stop: CancellationToken,
    alarm: Notify,
}

impl Engine {
    /// An engine around `node`, whose extents lie in `arena`. Pulls run on `tasks` until `stop`, those of small objects in the
    /// runtime `for_small`, others in the current one.
    pub(crate) fn new(
        node: Node,
        arena: Arc<Arena>,
        puller: Puller,
        metrics: Arc<DataMetrics>,
        (tasks, for_small): (TaskTracker, Handle),
        stop: CancellationToken,
        shards: usize,
    ) -> Arc<Self> {
        let link = puller.link();
        let surveyor = Arc::new(puller.surveyor());
        let bulk = RuntimePuller { puller: Arc::new(puller), runtime: Handle::current() };
        // TLS has buffers that stay on their runtime, and its handshakes take long.
        let small = match bulk.puller.is_plain() {
            true => RuntimePuller { puller: Arc::new(bulk.puller.for_small()), runtime: for_small },
            false => bulk.clone(),
        };
        let engine = Arc::new(Self {
            state: Mutex::new(State {
                node,
                effects: Vec::new(),
                alarm_at: None,
                pulls: BTreeMap::new(),
                combines: BTreeMap::new(),
                done: VecDeque::new(),
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
            small,
            bulk,
            surveyor,
            metrics,
            tasks,
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
        for told in self.bulk.puller.reports().take_news() {
            self.apply_one(state, told, None);
        }
        let mut next = Some((event, trace));
        while let Some((event, trace)) = next {
            self.apply_one(state, event, trace);
            next = state.done.pop_front().map(|event| (event, None));
        }
        let next = state.node.next_deadline();
        if next.is_some_and(|next| state.alarm_at.is_none_or(|armed| next < armed)) {
            state.alarm_at = next;
            self.alarm.notify_one();
        }
    }

    fn apply_one(self: &Arc<Self>, state: &mut State, event: Event, trace: Option<TraceContext>) {
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
        // A burst, such as a delete of many objects, leaves no memory behind.
        if effects.capacity() <= KEPT_EFFECTS {
            state.effects = effects;
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
    pub(crate) fn client_connected(&self, name: String) -> (ClientId, Arc<Answers>) {
        let client = ClientId(self.next_number());
        let answers = Arc::new(Answers::of(name));
        self.clients.insert(client, Arc::clone(&answers));
        (client, answers)
    }

    /// Takes back all that a client held.
    pub(crate) fn client_gone(self: &Arc<Self>, client: ClientId) {
        self.clients.remove(&client);
        self.apply(Event::ClientGone { client });
    }

    /// Says in decisions why room is in use: by objects that stay until they are deleted, and by references of clients.
    pub(crate) fn holders(&self) -> String {
        let (status, holders) = {
            let state = self.lock();
            (state.node.status(), state.node.holders())
        };
        let name = |client| {
            let answers = self.clients.get(&client);
            answers.map_or_else(|| "a client".to_owned(), |answers| answers.client().to_owned())
        };
        let kept_bytes = status.pinned_bytes.saturating_sub(holders.deleted_bytes);
        let named = holders.clients.iter().take(MAX_NAMED_HOLDERS).map(|holder| {
            format!("{} holds {} bytes in {} objects", name(holder.client), holder.bytes, holder.copies)
        });
        let mut parts = vec![format!("objects that were put and not deleted take {kept_bytes}")];
        parts.extend(named);
        match holders.clients.len().saturating_sub(MAX_NAMED_HOLDERS) {
            0 => {}
            more => parts.push(format!("and {more} other clients hold some")),
        }
        parts.join(", ")
    }

    /// Returns the number of clients that are connected.
    pub(crate) fn clients(&self) -> usize {
        self.clients.len()
    }

    /// The copies that exist.
    pub(crate) const fn copies(&self) -> &Copies {
        &self.copies
    }

    /// Closes connections to other stores that have been idle for too long, until `stop`.
    pub(crate) async fn close_idle_connections(&self, stop: CancellationToken) {
        tokio::join!(self.bulk.puller.maintain(stop.clone()), self.small.puller.maintain(stop));
    }

    /// What asks other stores on behalf of clients, where these are listened to.
    pub(crate) fn asker(&self) -> &Puller {
        &self.small.puller
    }

    /// What exchanges so many bytes with other stores. Both ends of a connection must come to the same answer.
    const fn puller_for(&self, size_bytes: u64) -> &RuntimePuller {
        if size_bytes <= SMALL_BYTES { &self.small } else { &self.bulk }
    }

    /// What the links to other stores do.
    fn link(&self) -> LinkEstimate {
        self.bulk.puller.link()
    }

    /// How far the probe is that this store coordinates.
    pub(crate) fn probe_progress(&self) -> SurveyProgress {
        self.surveyor.progress()
    }

    /// What the probes came to that this store has coordinated.
    pub(crate) fn probe_tally(&self) -> SurveyTally {
        self.surveyor.tally()
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
        let link = self.link();
        let assumed = u32::try_from(PICOSECONDS / link.bytes_per_second.max(1)).unwrap_or(u32::MAX);
        let engine = Arc::clone(self);
        let task = async move {
            let survey = engine.surveyor.survey(peers, options, assumed);
            engine.stop.run_until_cancelled(survey).await
        };
        let task = AbortOnDropHandle::new(self.tasks.spawn_on(task, &self.bulk.runtime));
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

    /// The other members of the session that makes this target, with their indices, and how many members there are, if this store is
    /// one of them.
    pub(crate) fn others_making(&self, target: &ObjectId) -> (Vec<(usize, Member)>, usize) {
        let state = self.lock();
        let Some((own, members)) = state.node.members_making(target) else { return (Vec::new(), 0) };
        let others = members.iter().cloned().enumerate().filter(|(index, _)| *index != own);
        (others.collect(), members.len())
    }

    /// How this target is made, or was, as far as this store knows.
    pub(crate) fn how_made(&self, target: &ObjectId) -> Option<ReduceRecord> {
        let mut record = self.lock().node.how_made(target, self.now())?;
        if let Some(position) = &mut record.position
            && let Some(live) = position.copy.and_then(|copy| self.copies.get(copy))
        {
            position.final_bytes = position.final_bytes.max(live.valid_bytes()).min(position.size_bytes);
        }
        Some(record)
    }

    /// What goes wrong at this store, and the time at which it does.
    pub(crate) fn troubles(&self) -> (Troubles, Time) {
        let now = self.now();
        (self.lock().node.troubles(now), now)
    }

    /// Returns the time that the store has been running.
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

#[cfg(test)]
mod tests {
    use hoplite_core::dtype::Dtype;
    use hoplite_core::id::{ClusterId, NodeId, PutId};
    use hoplite_core::limits::Limits;
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
    use crate::data::{DataConfig, HopHost, HopRequest, ServeRequest, ServeSource, Served};

    /// Longer than anything here takes; a test that reaches it has hung.
    const PATIENCE: Duration = Duration::from_secs(300);
    const PUT: PutId = PutId(7);

    fn engine() -> Arc<Engine> {
        let (name, arena) = (NodeId::new("n").unwrap(), Arena::create(Backing::Pages, 1 << 20).unwrap());
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
        let running = (TaskTracker::new(), Handle::current());
        Engine::new(node, arena, puller, metrics, running, CancellationToken::new(), 1)
    }

    fn output() -> ObjectId {
        ObjectId::of_hop(PUT)
    }

    fn ask(engine: &Arc<Engine>, awaits_hop: bool) -> JoinHandle<Option<Served>> {
        let peer = NodeId::new("peer").unwrap();
        let request = ServeRequest { peer, id: output(), put: PUT, awaits_hop, trace: None };
        let engine = Arc::clone(engine);
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
