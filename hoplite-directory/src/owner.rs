use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hoplite_core::Time;
use hoplite_core::batch::{Full, MAX_QUEUED_ANSWERS};
use hoplite_core::error::{Error, Result};
use hoplite_core::id::{Incarnation, NodeId};
use hoplite_core::shard::{
    Effect, Event, ListStep, NodeInfo, PullOutcome, Reception, Shard, ShardConfig, ToShard, ToStore,
};
use hoplite_core::topology::measured::MeasuredPlaces;
use hoplite_daemon::metrics::label_of;
use hoplite_daemon::{Tracer, warn_repeated};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::batch::TracedMessage;
use crate::events::{EventKind, Events};
use crate::metrics::{SessionEnd, ShardMetrics};
use crate::pauses::Pauses;
use crate::send_queue::SendQueue;
use crate::traces::Traces;

/// Most waiting commands. The shard's task takes all of them at once.
const MAX_QUEUED_COMMANDS: usize = 256;

/// Number of a session; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SessionId(u64);

type Inspection = Box<dyn FnOnce(&Shard) + Send>;

enum Command {
    Open { info: NodeInfo, send_queue: Arc<SendQueue>, reply: oneshot::Sender<Result<SessionId>> },
    Messages { session: SessionId, messages: Vec<TracedMessage> },
    Close { session: SessionId },
    Place { places: MeasuredPlaces, reply: oneshot::Sender<PlacesOutcome> },
    ChangeList { step: ListStep, reply: oneshot::Sender<Result<()>> },
    Inspect(Inspection),
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct PlacesOutcome {
    /// `true` if the shard now uses the measured places.
    pub(crate) counts: bool,
    pub(crate) nodes: usize,
}

#[derive(Debug, Clone)]
pub(crate) struct ShardHandle {
    commands: mpsc::Sender<Command>,
    started: Instant,
}

impl ShardHandle {
    pub(crate) async fn open(
        &self,
        info: NodeInfo,
        send_queue: Arc<SendQueue>,
    ) -> Result<SessionId> {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Open { info, send_queue, reply }).await?;
        answer.await.map_err(|_| Error::ShuttingDown)?
    }

    /// Has no effect if the session has ended.
    pub(crate) async fn send_messages(
        &self,
        session: SessionId,
        messages: Vec<TracedMessage>,
    ) -> Result<()> {
        self.send(Command::Messages { session, messages }).await
    }

    pub(crate) async fn close(&self, session: SessionId) -> Result<()> {
        self.send(Command::Close { session }).await
    }

    /// The shard ignores a measurement of nodes' places if it has a newer one.
    pub(crate) async fn update_places(&self, places: MeasuredPlaces) -> Result<PlacesOutcome> {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Place { places, reply }).await?;
        answer.await.map_err(|_| Error::ShuttingDown)
    }

    pub(crate) async fn change_list(&self, step: ListStep) -> Result<()> {
        let (reply, answer) = oneshot::channel();
        self.send(Command::ChangeList { step, reply }).await?;
        answer.await.map_err(|_| Error::ShuttingDown)?
    }

    /// Calls `read` with the shard between two events.
    pub(crate) async fn inspect<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Shard) -> T + Send + 'static,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let inspection = move |shard: &Shard| {
            let _ = reply.send(read(shard));
        };
        self.send(Command::Inspect(Box::new(inspection))).await?;
        answer.await.map_err(|_| Error::ShuttingDown)
    }

    pub(crate) fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    pub(crate) fn queue_length(&self) -> usize {
        self.commands.max_capacity() - self.commands.capacity()
    }

    async fn send(&self, command: Command) -> Result<()> {
        self.commands.send(command).await.map_err(|_| Error::ShuttingDown)
    }
}

#[derive(Debug)]
pub(crate) struct ShardOwner {
    shard: Shard,
    started: Instant,
    commands: mpsc::Receiver<Command>,
    sessions: BTreeMap<SessionId, Session>,
    current: BTreeMap<NodeId, SessionId>,
    next_session: u64,
    metrics: Option<ShardMetrics>,
    traces: Option<Traces>,
    events: Events,
    pauses: Pauses,
    handled_pauses: u64,
}

#[derive(Debug)]
struct Session {
    node: NodeId,
    incarnation: Incarnation,
    send_queue: Arc<SendQueue>,
}

impl ShardOwner {
    pub(crate) fn new(
        config: ShardConfig,
        metrics: Option<ShardMetrics>,
        events: Events,
        pauses: Pauses,
    ) -> (Self, ShardHandle) {
        let (sender, commands) = mpsc::channel(MAX_QUEUED_COMMANDS);
        let started = Instant::now();
        let owner = Self {
            shard: Shard::new(config, Time::ZERO),
            started,
            commands,
            sessions: BTreeMap::new(),
            current: BTreeMap::new(),
            next_session: 1,
            metrics,
            traces: None,
            events,
            handled_pauses: pauses.count(),
            pauses,
        };
        (owner, ShardHandle { commands: sender, started })
    }

    pub(crate) fn traced(self, tracer: Option<Tracer>) -> Self {
        Self { traces: tracer.map(Traces::new), ..self }
    }

    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut commands = Vec::new();
        loop {
            commands.clear();
            let deadline = self.shard.next_deadline();
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = self.pauses.next() => self.end_sessions_after_pause(),
                count = self.commands.recv_many(&mut commands, MAX_QUEUED_COMMANDS) => {
                    if count == 0 {
                        break;
                    }
                }
                () = sleep_until(self.started, deadline) => {
                    self.end_sessions_after_pause();
                    self.apply(Event::Tick);
                }
            }
            for command in commands.drain(..) {
                self.end_sessions_after_pause();
                self.execute(command);
            }
        }
        for session in self.sessions.values() {
            session.send_queue.fail(Error::ShuttingDown);
        }
    }

    fn execute(&mut self, command: Command) {
        match command {
            Command::Open { info, send_queue, reply } => {
                let answer = self.open(info, send_queue);
                let opened = answer.as_ref().ok().copied();
                if reply.send(answer).is_err()
                    && let Some(session) = opened
                {
                    self.close(session, SessionEnd::Gone);
                }
            }
            Command::Messages { session, messages } => {
                let began = Instant::now();
                for (message, trace) in messages {
                    self.end_sessions_after_pause();
                    // An earlier message may have ended the session.
                    let Some(node) =
                        self.sessions.get(&session).map(|session| session.node.clone())
                    else {
                        break;
                    };
                    self.count(|metrics| metrics.received(&message));
                    self.note_failure(&node, &message);
                    let span = self
                        .traces
                        .as_mut()
                        .and_then(|traces| traces.received(&node, &message, trace));
                    self.apply(Event::Message { node, message });
                    drop(span);
                }
                self.count(|metrics| metrics.turn(began.elapsed()));
            }
            Command::Close { session } => self.close(session, SessionEnd::Gone),
            Command::Place { places, reply } => {
                let (version, measured) = (places.version, places.paths.len());
                self.apply(Event::Places(places.clone()));
                let counts = places == *self.shard.measured_places();
                let outcome = PlacesOutcome { counts, nodes: self.shard.measured_nodes() };
                tracing::info!(version, measured, ?outcome, "received measured places of nodes");
                let _ = reply.send(outcome);
            }
            Command::ChangeList { step, reply } => {
                let mut effects = Vec::new();
                let done = self.shard.change_list(self.now(), step.clone(), &mut effects);
                tracing::info!(?step, ?done, "received a step of a change of the list of shards");
                self.perform_effects(effects);
                let _ = reply.send(done);
            }
            Command::Inspect(read) => read(&self.shard),
        }
    }

    fn open(&mut self, info: NodeInfo, send_queue: Arc<SendQueue>) -> Result<SessionId> {
        let (node, incarnation) = (info.node.clone(), info.incarnation);
        let mut effects = Vec::new();
        match self.shard.connect(self.now(), info, &mut effects) {
            Reception::Accepted => {}
            Reception::Replaces => self.end_replaced_session(&node),
            Reception::Refused(error) => {
                warn_repeated!(%node, %error, "refused a store");
                self.events.push(EventKind::Refused, &node, error.to_string());
                self.count(ShardMetrics::refused);
                self.perform_effects(effects);
                return Err(error);
            }
        }
        let session = SessionId(self.next_session);
        self.next_session += 1;
        self.current.insert(node.clone(), session);
        tracing::info!(%node, "a store has connected");
        self.events.push(EventKind::Connected, &node, "");
        self.count(ShardMetrics::opened);
        self.sessions.insert(session, Session { node, incarnation, send_queue });
        self.perform_effects(effects);
        Ok(session)
    }

    fn end_replaced_session(&mut self, node: &NodeId) {
        if let Some(older) =
            self.current.remove(node).and_then(|session| self.sessions.remove(&session))
        {
            if let Some(traces) = &mut self.traces {
                traces.forget_node(node);
            }
            tracing::info!(node = %older.node, "a newer session of the store replaces this one");
            self.events.push(
                EventKind::Disconnected,
                &older.node,
                "a newer session of the store has replaced it",
            );
            self.count(|metrics| metrics.ended(SessionEnd::Replaced));
            older
                .send_queue
                .fail(Error::unavailable("this session, since the store has opened another one,"));
        }
    }

    fn close(&mut self, session: SessionId, end: SessionEnd) {
        let Some(Session { node, incarnation, send_queue }) = self.sessions.remove(&session) else {
            return;
        };
        send_queue.close();
        self.current.remove(&node);
        if let Some(traces) = &mut self.traces {
            traces.forget_node(&node);
        }
        tracing::info!(%node, "the session of a store has ended");
        let why = match end {
            SessionEnd::Deaf => "it did not read its messages",
            SessionEnd::Paused => "the shard has paused",
            SessionEnd::Gone | SessionEnd::Replaced => "",
        };
        self.events.push(EventKind::Disconnected, &node, why);
        self.count(|metrics| metrics.ended(end));
        self.apply(match end {
            SessionEnd::Deaf | SessionEnd::Paused => Event::Ended { node, incarnation },
            SessionEnd::Gone | SessionEnd::Replaced => Event::Disconnected { node, incarnation },
        });
    }

    /// Ends all sessions after a pause, because queued messages may be out of date.
    fn end_sessions_after_pause(&mut self) {
        let pauses = self.pauses.count();
        if std::mem::replace(&mut self.handled_pauses, pauses) == pauses {
            return;
        }
        tracing::warn!(sessions = self.sessions.len(), "this process has paused: its sessions end");
        for session in self.sessions.keys().copied().collect::<Vec<_>>() {
            if let Some(session) = self.sessions.get(&session) {
                session
                    .send_queue
                    .fail(Error::unavailable("the directory shard, which has paused,"));
            }
            self.close(session, SessionEnd::Paused);
        }
    }

    fn apply(&mut self, event: Event) {
        let mut effects = Vec::new();
        self.shard.apply(self.now(), event, &mut effects);
        self.perform_effects(effects);
    }

    fn perform_effects(&mut self, effects: Vec<Effect>) {
        let mut blocked_sessions = Vec::new();
        for effect in effects {
            match effect {
                Effect::Send { node, message } => {
                    if let Err((session, Full)) = self.send(&node, message) {
                        blocked_sessions.push(session);
                    }
                }
                Effect::Granted { id, record } => tracing::debug!(
                    %id, receiver = %record.receiver, sender = %record.sender, reason = ?record.reason, "granted"
                ),
                Effect::PlaceKeysDiffer { counts } => tracing::warn!(
                    "stores describe their places by different label keys, so stores of one rack \
                     may be in different groups: {counts}"
                ),
            }
        }
        for session in blocked_sessions {
            if let Some(session) = self.sessions.get(&session) {
                tracing::warn!(node = %session.node, "the store does not read its messages: its session ends");
                session.send_queue.fail(Error::limit_exceeded(
                    "unread messages of a session",
                    MAX_QUEUED_ANSWERS as u64,
                ));
            }
            self.close(session, SessionEnd::Deaf);
        }
    }

    fn note_failure(&self, node: &NodeId, message: &ToShard) {
        let ToShard::ReturnSlot { outcome, .. } = message else { return };
        if !matches!(outcome, PullOutcome::Complete | PullOutcome::Cancelled | PullOutcome::GaveWay)
        {
            self.events.push(EventKind::TransferFailed, node, label_of(outcome));
        }
    }

    fn send(&mut self, node: &NodeId, message: ToStore) -> Result<(), (SessionId, Full)> {
        if let Some(traces) = &mut self.traces {
            traces.answers(node, &message);
        }
        let Some(session) = self.current.get(node) else { return Ok(()) };
        let Some(Session { send_queue, .. }) = self.sessions.get(session) else { return Ok(()) };
        self.count(|metrics| metrics.sent(&message));
        send_queue.push(message).map_err(|full| (*session, full))
    }

    fn count(&self, what: impl FnOnce(&ShardMetrics)) {
        if let Some(metrics) = &self.metrics {
            what(metrics);
        }
    }

    fn now(&self) -> Time {
        Time::ZERO + self.started.elapsed()
    }
}

async fn sleep_until(started: Instant, deadline: Option<Time>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(started + deadline.since(Time::ZERO)).await,
        None => std::future::pending().await,
    }
}
