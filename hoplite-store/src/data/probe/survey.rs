use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use hoplite_core::error::Error;
use hoplite_core::peer::RELEASE_TIMEOUT;
use hoplite_core::time::Time;
use hoplite_core::topology::probe::survey::{
    MAX_NODES, MAX_NODES_OF_PAIRS, Survey, SurveyCommand, SurveyError, SurveyEvent, SurveyLoss,
    SurveyOptions, SurveyProgress, SurveyReport,
};
use hoplite_daemon::warn_repeated;
use hoplite_proto::data::frame::Kind;
use hoplite_proto::data::probe::{Arm, Measure, decode_finding, encode_arm, encode_measure};
use hoplite_proto::v1;
use rustix::rand::{GetRandomFlags, getrandom};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::super::config::DataConfig;
use super::super::connection::{ConnectionError, PeerConnection};
use super::super::handshake;
use super::super::keepalive::{Awaited, Keepalive, KeepaliveEvent};
use super::super::pool::Peer;
use super::super::route::RouteUse;
use super::host::echo_address;

/// The survey's queued orders to one node: one to answer a peer, others to measure links.
const MAX_QUEUED_DIRECTIONS: usize = 4;
/// A full queue delays the reading of further reports.
const MAX_EVENTS: usize = 1024;

#[derive(Debug, thiserror::Error)]
pub(crate) enum SurveyFailure {
    #[error(transparent)]
    Survey(#[from] SurveyError),
    #[error("this store coordinates another probe")]
    Busy,
    #[error("no random numbers")]
    Random(#[source] io::Error),
}

impl From<SurveyFailure> for Error {
    fn from(failure: SurveyFailure) -> Self {
        match failure {
            SurveyFailure::Survey(SurveyError::TooManyNodes { .. }) => {
                Self::limit_exceeded("nodes of a probe", MAX_NODES as u64)
            }
            SurveyFailure::Survey(SurveyError::TooManyPairs { .. }) => {
                Self::limit_exceeded("nodes of a probe of all pairs", MAX_NODES_OF_PAIRS as u64)
            }
            SurveyFailure::Survey(error) => {
                Self::InvalidRequest { reason: error.to_string().into() }
            }
            SurveyFailure::Busy => {
                Self::limit_exceeded("probes that a store coordinates at once", 1)
            }
            SurveyFailure::Random(_) => Self::unavailable("random numbers"),
        }
    }
}

/// Coordinates one probe at a time.
#[derive(Debug)]
pub(crate) struct Surveyor {
    config: Arc<DataConfig>,
    place: Semaphore,
    progress: Mutex<SurveyProgress>,
    tally: Mutex<SurveyTally>,
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SurveyTally {
    pub(crate) complete: u64,
    pub(crate) failed: u64,
    pub(crate) cancelled: u64,
    pub(crate) last: Option<LastSurvey>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct LastSurvey {
    pub(crate) ended: SystemTime,
    pub(crate) elapsed: Duration,
    pub(crate) measured: usize,
    pub(crate) left_out: usize,
}

impl Surveyor {
    pub(in super::super) fn new(config: Arc<DataConfig>) -> Self {
        Self {
            config,
            place: Semaphore::new(1),
            progress: Mutex::default(),
            tally: Mutex::default(),
        }
    }

    pub(crate) fn progress(&self) -> SurveyProgress {
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn tally(&self) -> SurveyTally {
        *self.lock_tally()
    }

    fn lock_tally(&self) -> MutexGuard<'_, SurveyTally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn advance(&self, progress: SurveyProgress) {
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner) = progress;
    }

    /// Measures the links between `peers`, whose names differ. A link without a bandwidth
    /// measurement counts as `assumed_ps_per_byte` (picoseconds).
    ///
    /// Dropping the future ends the probe at all nodes.
    pub(crate) async fn survey(
        &self,
        peers: Vec<Peer>,
        options: SurveyOptions,
        assumed_ps_per_byte: u32,
    ) -> Result<SurveyReport, SurveyFailure> {
        let Ok(_place) = self.place.try_acquire() else { return Err(SurveyFailure::Busy) };
        let mut under_way = RunningSurvey { surveyor: self, is_over: false };
        let begun = Instant::now();
        let surveyed = self.measure(peers, options, assumed_ps_per_byte).await;
        under_way.over(begun.elapsed(), surveyed.as_ref().ok());
        surveyed
    }

    async fn measure(
        &self,
        peers: Vec<Peer>,
        options: SurveyOptions,
        assumed_ps_per_byte: u32,
    ) -> Result<SurveyReport, SurveyFailure> {
        if peers.len() > MAX_NODES {
            return Err(SurveyError::TooManyNodes { count: peers.len() }.into());
        }
        let mut seed = [0; 8];
        getrandom(&mut seed, GetRandomFlags::empty())
            .map_err(|error| SurveyFailure::Random(io::Error::from(error)))?;
        let mut participants = Participants::gather(&self.config, peers).await;
        let names: Vec<String> =
            participants.members.iter().map(|member| member.peer.0.to_string()).collect();
        let (origin, mut commands) = (Instant::now(), Vec::new());
        let now = || Time::ZERO + origin.elapsed();
        let mut survey =
            Survey::begin(names, options, u64::from_le_bytes(seed), now(), &mut commands)?;
        while !survey.is_done() {
            for command in std::mem::take(&mut commands) {
                if let Some(lost) = participants.forward(command) {
                    survey.apply(now(), lost, &mut commands);
                }
            }
            self.advance(survey.progress());
            if !commands.is_empty() || survey.is_done() {
                continue;
            }
            let deadline = origin + Duration::from_micros(survey.deadline().as_micros());
            let event = tokio::select! {
                Some(event) = participants.events.recv() => event,
                () = sleep_until(deadline) => SurveyEvent::Tick,
            };
            survey.apply(now(), event, &mut commands);
        }
        let report = survey.report(assumed_ps_per_byte);
        let missing = std::mem::take(&mut participants.missing);
        participants.dismiss().await;
        let mut report = report?;
        report.lost.extend(missing);
        Ok(report)
    }
}

struct RunningSurvey<'a> {
    surveyor: &'a Surveyor,
    is_over: bool,
}

impl RunningSurvey<'_> {
    fn over(&mut self, elapsed: Duration, report: Option<&SurveyReport>) {
        self.is_over = true;
        let mut tally = self.surveyor.lock_tally();
        let Some(report) = report else {
            tally.failed += 1;
            return;
        };
        tally.complete += 1;
        let (measured, left_out) = (report.matrix.len(), report.lost.len());
        tally.last = Some(LastSurvey { ended: SystemTime::now(), elapsed, measured, left_out });
    }
}

impl Drop for RunningSurvey<'_> {
    fn drop(&mut self) {
        self.surveyor.advance(SurveyProgress::default());
        if !self.is_over {
            self.surveyor.lock_tally().cancelled += 1;
        }
    }
}

/// The nodes of a probe. Dropping this closes the connections to the nodes.
struct Participants {
    members: Vec<Member>,
    missing: Vec<(String, SurveyLoss)>,
    events: mpsc::Receiver<SurveyEvent>,
    tasks: JoinSet<()>,
}

struct Member {
    peer: Peer,
    echo_address: Option<SocketAddr>,
    /// `None` after the node's release from the probe.
    directions: Option<mpsc::Sender<Direction>>,
}

#[derive(Debug)]
enum Direction {
    Arm(Arm),
    Measure(Box<Measure>),
}

impl Participants {
    async fn gather(config: &Arc<DataConfig>, peers: Vec<Peer>) -> Self {
        let mut joining = JoinSet::new();
        for (index, peer) in peers.into_iter().enumerate() {
            let config = Arc::clone(config);
            joining.spawn(async move {
                let joined = join(&config, &peer).await;
                (index, peer, joined)
            });
        }
        let mut joined = joining.join_all().await;
        joined.sort_by_key(|(index, ..)| *index);
        let (sender, events) = mpsc::channel(MAX_EVENTS);
        let (mut members, mut missing, mut tasks) = (Vec::new(), Vec::new(), JoinSet::new());
        for (_, peer, joined) in joined {
            match joined {
                Ok(Joined { connection, echo_address }) => {
                    let (directions, queue) = mpsc::channel(MAX_QUEUED_DIRECTIONS);
                    let node = members.len() as u32;
                    tasks.spawn(forward_directions(
                        Arc::clone(config),
                        connection,
                        node,
                        queue,
                        sender.clone(),
                    ));
                    members.push(Member { peer, echo_address, directions: Some(directions) });
                }
                Err((loss, error)) => {
                    warn_repeated!(node = %peer.0, %error, "a store takes no part in a probe");
                    missing.push((peer.0.to_string(), loss));
                }
            }
        }
        Self { members, missing, events, tasks }
    }

    /// Sends the command to its node. Returns the node's loss if it is gone.
    fn forward(&mut self, command: SurveyCommand) -> Option<SurveyEvent> {
        let (node, direction) = match command {
            SurveyCommand::Arm { node, peer, nonce } => {
                let asker = self.members[peer as usize].echo_address;
                (node, Direction::Arm(Arm { nonce, asker }))
            }
            SurveyCommand::Measure { node, peer, nonce, work } => {
                let Member { peer: (name, address), echo_address, .. } =
                    &self.members[peer as usize];
                let (node_id, address, echo_address) = (name.clone(), *address, *echo_address);
                let measure = Measure { nonce, node: node_id, address, echo_address, work };
                (node, Direction::Measure(Box::new(measure)))
            }
            SurveyCommand::Dismiss { node } => {
                self.members[node as usize].directions = None;
                return None;
            }
        };
        let directions = self.members[node as usize].directions.as_ref();
        let is_forwarded =
            directions.is_some_and(|directions| directions.try_send(direction).is_ok());
        (!is_forwarded).then_some(SurveyEvent::Lost { node, loss: SurveyLoss::Gone })
    }

    async fn dismiss(mut self) {
        for member in &mut self.members {
            member.directions = None;
        }
        self.events.close();
        let _ = timeout(RELEASE_TIMEOUT, async { while self.tasks.join_next().await.is_some() {} })
            .await;
    }
}

struct Joined {
    connection: PeerConnection,
    echo_address: Option<SocketAddr>,
}

async fn join(config: &DataConfig, peer: &Peer) -> Result<Joined, (SurveyLoss, ConnectionError)> {
    let unreachable = |error| (SurveyLoss::Unreachable, error);
    let (node, rail) = (&peer.0, RouteUse::main(peer.1));
    let connected = handshake::connect(config, node, &rail).await;
    let (mut connection, _) = connected.map_err(unreachable)?;
    connection.expect_within(Some(config.silence_timeout));
    let (_, address) = connection.addresses().map_err(|error| unreachable(error.into()))?;
    connection.write_control(Kind::Probe, &()).await.map_err(unreachable)?;
    let header = connection.read_header().await.map_err(unreachable)?;
    match header.kind() {
        Kind::ProbeReady => {
            let ready: v1::ProbeReady =
                connection.read_control(&header).await.map_err(unreachable)?;
            let port = u16::try_from(ready.echo_port).unwrap_or(0);
            Ok(Joined { connection, echo_address: echo_address(address, port) })
        }
        Kind::End => {
            let end: v1::End = connection.read_control(&header).await.map_err(unreachable)?;
            let refused = end.error.map_or(Error::ShuttingDown, |error| {
                hoplite_proto::error::decode(error, hoplite_core::error::Plane::Data)
            });
            Err((SurveyLoss::Busy, refused.into()))
        }
        kind => Err(unreachable(ConnectionError::Unexpected(kind))),
    }
}

async fn forward_directions(
    config: Arc<DataConfig>,
    mut connection: PeerConnection,
    node: u32,
    mut directions: mpsc::Receiver<Direction>,
    events: mpsc::Sender<SurveyEvent>,
) {
    let attended = converse(&config, &mut connection, node, &mut directions, &events).await;
    if let Err(error) = attended {
        warn_repeated!(node, %error, "a store is lost to a probe");
        let loss = if matches!(error, ConnectionError::Idle(_)) {
            SurveyLoss::Silent
        } else {
            SurveyLoss::Gone
        };
        let _ = events.send(SurveyEvent::Lost { node, loss }).await;
    }
}

async fn converse(
    config: &DataConfig,
    connection: &mut PeerConnection,
    node: u32,
    directions: &mut mpsc::Receiver<Direction>,
    events: &mpsc::Sender<SurveyEvent>,
) -> Result<(), ConnectionError> {
    let interval = config.keepalive_interval;
    let keepalive = Keepalive { interval, started: Instant::now(), awaited: Awaited::Producer };
    loop {
        let event = match keepalive.until(connection, directions.recv()).await? {
            KeepaliveEvent::Done(Some(Direction::Arm(arm))) => {
                connection.write_control(Kind::Arm, &encode_arm(arm)).await?;
                continue;
            }
            KeepaliveEvent::Done(Some(Direction::Measure(measure))) => {
                connection.write_control(Kind::Measure, &encode_measure(&measure)).await?;
                continue;
            }
            KeepaliveEvent::Done(None) => return release(connection).await,
            KeepaliveEvent::Frame(header) => match header.kind() {
                Kind::Keepalive => {
                    connection.read_control::<()>(&header).await?;
                    continue;
                }
                Kind::Armed => {
                    connection.read_control::<()>(&header).await?;
                    SurveyEvent::Armed { node }
                }
                Kind::Found => {
                    let finding = decode_finding(&connection.read_control(&header).await?);
                    SurveyEvent::Found { node, finding }
                }
                kind => return Err(ConnectionError::Unexpected(kind)),
            },
        };
        if events.send(event).await.is_err() {
            return release(connection).await;
        }
    }
}

async fn release(connection: &mut PeerConnection) -> Result<(), ConnectionError> {
    connection.write_control(Kind::Release, &()).await?;
    loop {
        let header = connection.read_header().await?;
        match header.kind() {
            Kind::Keepalive | Kind::Armed => connection.read_control::<()>(&header).await?,
            Kind::Found => drop(connection.read_control::<v1::Found>(&header).await?),
            Kind::End => return connection.read_control::<v1::End>(&header).await.map(|_| ()),
            kind => return Err(ConnectionError::Unexpected(kind)),
        }
    }
}
