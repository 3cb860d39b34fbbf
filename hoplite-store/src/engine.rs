//! The store's state.
//!
//! [`Engine::apply`] gives an event to the [`Node`] and performs the effects (`effects`) in order,
//! under one short lock that never waits. `tasks` has the longer work. Events come from the local
//! plane, the data plane, the sessions, and the alarm for deadlines. Requests of other stores come
//! through `hosts`.

mod drain;
mod effects;
mod hosts;
mod report;
mod spill;
mod tasks;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use dashmap::DashMap;
use hoplite_core::collective::{Decision, EnlistmentId, Member, MembershipId, Report};
use hoplite_core::error::Error;
use hoplite_core::id::ObjectId;
use hoplite_core::lifetime::Owner;
use hoplite_core::node::{
    ClientId, CombineId, CopyId, DrainReport, Effect, Event, HopId, HopReport, HostingId, Node,
    NodeStatus, PullId, ReduceRecord, ServeId, SpillRecord, Troubles,
};
use hoplite_core::placement::ShardMap;
use hoplite_core::plan::link::LinkEstimate;
use hoplite_core::shard::ShardRun;
use hoplite_core::time::Time;
use hoplite_core::topology::probe::survey::{SurveyOptions, SurveyProgress, SurveyReport};
use hoplite_core::{TraceContext, Version};
use hoplite_shm::Arena;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::copies::{Copies, LiveCopy};
use crate::data::{DataMetrics, Peer, Puller, SMALL_BYTES, SurveyTally, Surveyor};
use crate::local::Answers;
use crate::metrics::Observer;
use crate::outbox::Outbox;
use crate::spill::SpillFiles;
use crate::traces::Traces;

const KEPT_EFFECTS: usize = 1024;

#[derive(Debug)]
struct State {
    node: Node,
    effects: Vec<Effect>,
    alarm_at: Option<Time>,
    pulls: BTreeMap<PullId, CancellationToken>,
    combines: BTreeMap<CombineId, CancellationToken>,
    done: VecDeque<Event>,
    verdicts: BTreeMap<ServeId, oneshot::Sender<Option<Verdict>>>,
    hops: BTreeMap<HopId, CancellationToken>,
    hostings: BTreeMap<HostingId, mpsc::Sender<HopReport>>,
    enlistments: BTreeMap<EnlistmentId, mpsc::Sender<Decision>>,
    memberships: BTreeMap<MembershipId, mpsc::Sender<Report>>,
    sessions: Vec<Option<Outbox>>,
    left_shards: Vec<usize>,
    observer: Option<Observer>,
    traces: Option<Traces>,
}

#[derive(Debug)]
enum Verdict {
    Memory(Arc<LiveCopy>),
    File { copy: CopyId, size_bytes: u64, record: SpillRecord },
}

#[derive(Debug, Clone)]
struct RuntimePuller {
    puller: Arc<Puller>,
    runtime: Handle,
}

#[derive(Debug)]
pub(crate) struct Engine {
    state: Mutex<State>,
    origin: Instant,
    last_number: AtomicU64,
    arena: Arc<Arena>,
    copies: Copies,
    clients: DashMap<ClientId, Arc<Answers>>,
    bulk: RuntimePuller,
    /// Pulls of small objects and results, on the thread of clients and shards.
    small: RuntimePuller,
    surveyor: Arc<Surveyor>,
    metrics: Arc<DataMetrics>,
    tasks: TaskTracker,
    stop: CancellationToken,
    alarm: Notify,
    shards_changed: Notify,
    spill: OnceLock<Arc<SpillFiles>>,
    drained: watch::Sender<Option<DrainReport>>,
    drain_answers: TaskTracker,
}

impl Engine {
    /// Pulls run as `tasks` until `stop`: pulls of small objects in the runtime `for_small`, other
    /// pulls in the current one.
    pub(crate) fn new(
        node: Node,
        arena: Arc<Arena>,
        puller: Puller,
        metrics: Arc<DataMetrics>,
        (tasks, for_small): (TaskTracker, Handle),
        stop: CancellationToken,
    ) -> Arc<Self> {
        let link = puller.link();
        let surveyor = Arc::new(puller.surveyor());
        let bulk = RuntimePuller { puller: Arc::new(puller), runtime: Handle::current() };
        // Over TLS, small pulls use the other pulls' runtime: TLS buffers stay on their runtime,
        // and handshakes take long.
        let small = match bulk.puller.is_plain() {
            true => RuntimePuller { puller: Arc::new(bulk.puller.for_small()), runtime: for_small },
            false => bulk.clone(),
        };
        let engine = Arc::new(Self {
            state: Mutex::new(State {
                sessions: (0..node.shards().len()).map(|_| None).collect(),
                left_shards: Vec::new(),
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
            shards_changed: Notify::new(),
            spill: OnceLock::new(),
            drained: watch::Sender::new(None),
            drain_answers: TaskTracker::new(),
        });
        engine.apply(Event::Measured { link });
        engine
    }

    pub(crate) fn observe(&self, observer: Observer) {
        self.lock().observer = Some(observer);
    }

    pub(crate) fn trace(&self, traces: Traces) {
        self.lock().traces = Some(traces);
    }

    pub(crate) fn apply(self: &Arc<Self>, event: Event) {
        self.apply_locked(&mut self.lock(), event);
    }

    pub(crate) fn apply_traced(self: &Arc<Self>, event: Event, trace: Option<TraceContext>) {
        self.apply_caused(&mut self.lock(), event, trace);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic under the lock is a bug. Other threads continue with the state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn apply_locked(self: &Arc<Self>, state: &mut State, event: Event) {
        self.apply_caused(state, event, None);
    }

    fn apply_caused(
        self: &Arc<Self>,
        state: &mut State,
        event: Event,
        trace: Option<TraceContext>,
    ) {
        for told in self.bulk.puller.reports().take_events() {
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
        // Frees the memory after many effects at once, for example of a large delete.
        if effects.capacity() <= KEPT_EFFECTS {
            state.effects = effects;
        }
    }

    /// Begins a session with this run of `shard`: see [`Event::ShardUp`]. A session with a removed
    /// shard ends at once.
    pub(crate) fn session_up(
        self: &Arc<Self>,
        shard: usize,
        (run, version): (ShardRun, Version),
        asked_at: Time,
        outbox: Outbox,
    ) {
        let mut state = self.lock();
        if !state.node.shards().is_listed(shard) {
            return;
        }
        state.sessions[shard] = Some(outbox);
        self.apply_locked(&mut state, Event::ShardUp { shard, run, asked_at, version });
    }

    pub(crate) fn session_down(self: &Arc<Self>, shard: usize) {
        let mut state = self.lock();
        state.sessions[shard] = None;
        self.apply_locked(&mut state, Event::ShardDown { shard });
    }

    pub(crate) fn session_failed(&self, cause: &str) {
        if let Some(observer) = &self.lock().observer {
            observer.session_failed(cause);
        }
    }

    pub(crate) fn end_sessions(&self) {
        self.lock().sessions.iter_mut().for_each(|session| *session = None);
    }

    pub(crate) fn shard_versions(&self) -> Vec<(usize, Option<Version>)> {
        let state = self.lock();
        state.node.shards().listed().map(|shard| (shard, state.node.shard_version(shard))).collect()
    }

    pub(crate) fn refused_version(self: &Arc<Self>, error: Error) {
        self.metrics().incompatible_peers.fetch_add(1, Ordering::Relaxed);
        self.apply(Event::Incompatible { error });
    }

    pub(crate) fn shards(&self) -> ShardMap {
        self.lock().node.shards().clone()
    }

    /// Waits for new shards, or shards to leave. Returns the latter.
    pub(crate) async fn shards_changed(&self) -> Vec<usize> {
        self.shards_changed.notified().await;
        std::mem::take(&mut self.lock().left_shards)
    }

    pub(crate) fn shards_up(&self) -> Vec<(String, bool)> {
        let state = self.lock();
        let shards = state.node.shards();
        let session =
            |shard: usize| (shards.name(shard).to_owned(), state.sessions[shard].is_some());
        shards.listed().map(session).collect()
    }

    /// Registers a client, which keeps the objects of `owners` alive while connected.
    pub(crate) fn client_connected(
        self: &Arc<Self>,
        name: String,
        user: u32,
        owners: Vec<Owner>,
    ) -> (ClientId, Arc<Answers>) {
        let client = ClientId(self.next_number());
        let answers = Arc::new(Answers::of(name));
        self.clients.insert(client, Arc::clone(&answers));
        self.apply(Event::ClientConnected { client, user, owners });
        (client, answers)
    }

    pub(crate) fn client_gone(self: &Arc<Self>, client: ClientId) {
        self.clients.remove(&client);
        self.apply(Event::ClientGone { client });
    }

    pub(crate) fn clients(&self) -> usize {
        self.clients.len()
    }

    pub(crate) const fn copies(&self) -> &Copies {
        &self.copies
    }

    pub(crate) async fn close_idle_connections(&self, stop: CancellationToken) {
        tokio::join!(
            self.bulk.puller.maintain(stop.clone()),
            self.bulk.puller.keep_testing_routes(stop.clone()),
            self.small.puller.maintain(stop),
        );
    }

    pub(crate) fn asker(&self) -> &Puller {
        &self.small.puller
    }

    /// Chooses the puller by the object's size. Both ends of a connection must make the same
    /// choice.
    const fn puller_for(&self, size_bytes: u64) -> &RuntimePuller {
        if size_bytes <= SMALL_BYTES { &self.small } else { &self.bulk }
    }

    fn link(&self) -> LinkEstimate {
        self.bulk.puller.link()
    }

    pub(crate) fn probe_progress(&self) -> SurveyProgress {
        self.surveyor.progress()
    }

    pub(crate) fn probe_tally(&self) -> SurveyTally {
        self.surveyor.tally()
    }

    /// Lets `peers` measure the links between them, until the future is dropped or the store ends.
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

    pub(crate) const fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    pub(crate) fn metrics(&self) -> &DataMetrics {
        &self.metrics
    }

    pub(crate) fn status(&self) -> NodeStatus {
        self.lock().node.status()
    }

    /// Other stores of the collective that makes `target`, and the number of all its
    /// stores.
    pub(crate) fn others_making(&self, target: &ObjectId) -> (Vec<(usize, Member)>, usize) {
        let state = self.lock();
        let Some((own, members)) = state.node.members_making(target) else {
            return (Vec::new(), 0);
        };
        let others = members.iter().cloned().enumerate().filter(|(index, _)| *index != own);
        (others.collect(), members.len())
    }

    pub(crate) fn how_made(&self, target: &ObjectId) -> Option<ReduceRecord> {
        let mut record = self.lock().node.how_made(target, self.now())?;
        if let Some(position) = &mut record.position
            && let Some(live) = position.copy.and_then(|copy| self.copies.get(copy))
        {
            position.final_bytes =
                position.final_bytes.max(live.valid_bytes()).min(position.size_bytes);
        }
        Some(record)
    }

    pub(crate) fn troubles(&self) -> (Troubles, Time) {
        let now = self.now();
        (self.lock().node.troubles(now), now)
    }

    pub(crate) fn uptime(&self) -> Duration {
        self.origin.elapsed()
    }

    pub(crate) fn now(&self) -> Time {
        Time::ZERO + self.origin.elapsed()
    }

    fn next_number(&self) -> u64 {
        self.last_number.fetch_add(1, Ordering::Relaxed) + 1
    }

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
    use hoplite_core::plan::collective::SchedulePreference;
    use hoplite_core::reduce::ReduceOp;
    use hoplite_core::shard::PullOutcome;
    use hoplite_core::topology::place::EVERYWHERE;
    use hoplite_shm::Backing;
    use tokio::task::JoinHandle;
    use tokio::time::timeout;

    use super::*;
    use crate::data::{DataConfig, HopHost, HopRequest, ServeRequest, ServeSource, Served};

    const PATIENCE: Duration = Duration::from_secs(300);
    const PUT: PutId = PutId(7);

    fn engine() -> Arc<Engine> {
        let (name, arena) =
            (NodeId::new("n").unwrap(), Arena::create(Backing::Pages, 1 << 20).unwrap());
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
            replicas: 1,
            spill: None,
            serves_directory: false,
            seed: 1,
        });
        let running = (TaskTracker::new(), Handle::current());
        Engine::new(node, arena, puller, metrics, running, CancellationToken::new())
    }

    fn output() -> ObjectId {
        ObjectId::of_hop(PUT)
    }

    fn ask(engine: &Arc<Engine>, awaits_hop: bool) -> JoinHandle<Option<Served>> {
        let peer = NodeId::new("peer").unwrap();
        let request = ServeRequest { peer, id: output(), put: PUT, awaits_hop, trace: None };
        let engine = Arc::clone(engine);
        tokio::spawn(async move { engine.serve(request).await?.in_memory() })
    }

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
        assert!(
            state.verdicts.is_empty() && state.hostings.is_empty() && state.combines.is_empty()
        );
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
