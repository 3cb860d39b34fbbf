//! The session with one shard: connects, introduces the store, carries messages both ways, and starts again when it is
//! lost.
//!
//! It is opened over gRPC, whose pings tell whether the shard lives. If the shard offers it, the messages have a direct connection.

use std::future::pending;
use std::io;
use std::pin::pin;
use std::sync::Arc;

use futures::stream::{self, Stream, StreamExt};
use hoplite_core::error::{Error, Plane};
use hoplite_core::node::Event;
use hoplite_core::session::{Attempts, BYPASS_PINGS, BYPASS_TIMEOUT, BypassTries, Next, OPEN_TIMEOUT};
use hoplite_core::shard::NodeInfo;
use hoplite_core::{ClusterId, Time};
use hoplite_daemon::metrics::label_of;
use hoplite_net::{Credentials, cause};
use hoplite_proto::directory::{BypassKey, check_welcome, decode_shard_batch, encode_hello, encode_to_shard};
use hoplite_proto::status::from_status;
use hoplite_proto::trace;
use hoplite_proto::v1::{ShardMessages, StoreMessage, StoreMessages};
use tokio::sync::{oneshot, watch};
use tokio::task::yield_now;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

use crate::advertised::{Advertised, check_certificate};
use crate::direct::{DirectConnection, PING};
use crate::engine::Engine;
use crate::metrics;
use crate::outbox::{Batches, outbox};
use crate::report::LoadReports;
use crate::shard_link::ShardLink;

/// After so many frames in a row, what waits to be written has its turn.
const FRAMES_PER_TURN: usize = 16;
/// Most frames that a shard says before the store has said anything.
const MAX_EARLY_FRAMES: usize = 64;

/// How a session stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SessionState {
    /// Not connected (yet); tries go on.
    Down,
    /// Messages flow.
    Up,
    /// The shard refuses this store, and no further try is made.
    GivenUp(Error),
}

/// The conversation of this store with one shard.
pub(crate) struct Session {
    pub(crate) engine: Arc<Engine>,
    /// The shard's number in the configured list.
    pub(crate) shard: usize,
    pub(crate) link: ShardLink,
    pub(crate) load_reports: LoadReports,
    /// The data plane's address in here is what it was at the start.
    pub(crate) info: NodeInfo,
    /// Where other stores reach the data plane, if there is one.
    pub(crate) advertised: Option<Advertised>,
    pub(crate) cluster: ClusterId,
    pub(crate) started: Instant,
    pub(crate) bypass_tries: BypassTries,
}

impl Session {
    /// Keeps a session until it ends while `leaving`, or until `stop`; tells how it stands in `state`.
    pub(crate) async fn run(
        mut self,
        state: watch::Sender<SessionState>,
        leaving: CancellationToken,
        stop: CancellationToken,
    ) {
        let shard = self.link.address.clone();
        let mut attempts = Attempts::default();
        while !leaving.is_cancelled() {
            let Some(ended) = stop.run_until_cancelled(self.run_once(&state)).await else { return };
            let was_up = *state.borrow() == SessionState::Up;
            if was_up {
                self.engine.session_down(self.shard);
                attempts.opened();
            } else if let Err(failure) = &ended {
                self.engine.session_failed(&failure.cause());
            }
            let ended = ended.map_err(|failure| failure.error);
            if let Err(error) = &ended {
                self.engine.apply(Event::ShardFailed { shard: self.shard, error: error.clone() });
            }
            let next = attempts.ended(self.now(), ended.as_ref().err());
            let is_news = matches!(next, Next::GiveUp | Next::Retry { is_news: true, .. });
            match &ended {
                Ok(()) => tracing::info!(shard, "the directory shard ended the session"),
                Err(error) if was_up => tracing::warn!(shard, %error, "lost the directory shard"),
                Err(error) if is_news && (attempts.is_refused() || is_refusal(error)) => {
                    tracing::warn!(shard, %error, "the directory shard refuses this store");
                }
                Err(error) if is_news => tracing::warn!(shard, %error, "cannot reach the directory shard"),
                Err(error) => tracing::debug!(shard, %error, "cannot reach the directory shard"),
            }
            match (next, ended) {
                (Next::GiveUp, Err(error)) => {
                    state.send_replace(SessionState::GivenUp(error));
                    // The others go on until the daemon ends, which is soon.
                    return stop.cancelled().await;
                }
                (Next::GiveUp, Ok(())) => return,
                (Next::Retry { pause, .. }, _) => {
                    state.send_replace(SessionState::Down);
                    let _ = leaving.run_until_cancelled(tokio::time::sleep(pause)).await;
                }
            }
        }
    }

    async fn run_once(&mut self, state: &watch::Sender<SessionState>) -> Result<(), Failure> {
        let (outbox, batches) = outbox().map_err(|_| Error::unavailable("a timer"))?;
        if let Some(advertised) = &self.advertised {
            let address = advertised.now().await;
            if address != self.info.data_address
                && let Some(tls) = &self.link.credentials.tls
                && let Err(error) = check_certificate(tls, address)
            {
                tracing::warn!(%address, %error, "no other store can read from this one at its new address");
            }
            self.info.data_address = address;
        }
        let info = self.info.clone();
        let hello = StoreMessages { hello: Some(encode_hello(&info, &self.cluster)), messages: Vec::new() };
        let (over_grpc, queued) = oneshot::channel();
        let mut client = self.link.client();
        let opening = async {
            let mut inbound = client.session(outbound(hello, queued)).await?.into_inner();
            let first = inbound.message().await?;
            Ok::<_, Status>((inbound, first))
        };
        let opened = timeout(OPEN_TIMEOUT, opening).await;
        let (mut inbound, first) = opened
            .map_err(|_| Error::unavailable("the directory shard"))?
            .map_err(|status| Failure::of_opening(&self.link.credentials, status))?;
        let Some(ShardMessages { welcome: Some(welcome), messages, .. }) = first else {
            return Err(Error::unavailable("the directory shard").into());
        };
        check_welcome(&welcome)?;
        let mut early = vec![ShardMessages { messages, ..Default::default() }];
        let bypass = match BypassKey::of_bytes(&welcome.bypass_key) {
            Some(key) if self.bypass_tries.is_due(self.now()) => {
                self.divert(key, &mut inbound, &mut early).await?
            }
            _ => None,
        };
        let (shard, is_past_grpc) = (&self.link.address, bypass.is_some());
        tracing::info!(shard, is_past_grpc, "session with the directory shard is up");
        self.engine.session_up(self.shard, outbox);
        state.send_replace(SessionState::Up);
        for batch in early {
            self.take(batch)?;
        }
        let telling = self.load_reports.run(&self.link);
        let begun = self.now();
        let ended = tokio::select! {
            ended = async {
                match bypass {
                    Some(bypass) => {
                        let ended = self.talk_past_grpc(bypass, batches, &mut inbound).await;
                        // The stream over gRPC ends with this, and the session with that stream.
                        drop(over_grpc);
                        ended
                    }
                    None => {
                        // Refused only if the call has ended, which shows next.
                        let _ = over_grpc.send(batches);
                        self.talk_over_grpc(&mut inbound).await.map(|()| Heard::End)
                    }
                }
            } => ended,
            never = telling => match never {},
        };
        if let Ok(Heard::Nothing) = ended {
            self.bypass_tries.failed(self.now());
            return Err(Error::unavailable("the direct connection to the directory shard").into());
        }
        if is_past_grpc {
            self.bypass_tries.ended(begun, self.now());
        }
        Ok(ended.map(drop)?)
    }

    /// Opens the direct connection. Returns `None` if the shard cannot be reached for that. What the shard says before is added to
    /// `early`.
    async fn divert(
        &mut self,
        key: BypassKey,
        inbound: &mut Streaming<ShardMessages>,
        early: &mut Vec<ShardMessages>,
    ) -> Result<Option<DirectConnection>, Error> {
        let mut bypass = match self.link.open_direct(key).await {
            Ok(bypass) => bypass,
            Err(error) => {
                tracing::debug!(shard = self.link.address, %error, "cannot open a direct connection");
                self.bypass_tries.failed(self.now());
                return Ok(None);
            }
        };
        // The shard may turn from here on, so it must.
        let turning = async {
            while early.len() < MAX_EARLY_FRAMES
                && let Some(next) = inbound.message().await.map_err(|status| from_status(&status))?
            {
                if next.bypassed {
                    let answer = bypass.reader.next().await?;
                    early.push(
                        answer.ok_or(Error::unavailable("the direct connection to the directory shard"))?,
                    );
                    return Ok(());
                }
                early.push(next);
            }
            Err(Error::unavailable("the direct connection to the directory shard"))
        };
        let turned = timeout(BYPASS_TIMEOUT, turning).await;
        let turned =
            turned.unwrap_or(Err(Error::unavailable("the direct connection to the directory shard")));
        if turned.is_err() {
            self.bypass_tries.failed(self.now());
        }
        turned.map(|()| Some(bypass))
    }

    async fn talk_over_grpc(&self, inbound: &mut Streaming<ShardMessages>) -> Result<(), Error> {
        while let Some(batch) = inbound.message().await.map_err(|status| from_status(&status))? {
            self.take(batch)?;
        }
        Ok(())
    }

    /// Talks over the direct connection until that ends; gRPC says why, unless the shard is silent here.
    async fn talk_past_grpc(
        &self,
        DirectConnection { mut reader, mut writer }: DirectConnection,
        mut batches: Batches,
        inbound: &mut Streaming<ShardMessages>,
    ) -> Result<Heard, Error> {
        let talking = async {
            for number in 1.. {
                let Ok(next) = timeout(BYPASS_PINGS.silence_limit(), reader.next()).await else {
                    return Ok(Heard::Nothing);
                };
                let Some(batch) = next? else { break };
                self.take(batch)?;
                if number % FRAMES_PER_TURN == 0 {
                    yield_now().await;
                }
            }
            Ok::<_, Error>(Heard::End)
        };
        let writing = async {
            let mut pings = interval_at(Instant::now() + BYPASS_PINGS.interval, BYPASS_PINGS.interval);
            pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    frame = next_frame(&mut batches) => match frame {
                        Some(frame) => writer.write(&frame).await?,
                        None => break,
                    },
                    _ = pings.tick() => writer.write(&PING).await?,
                }
            }
            writer.end().await
        };
        // If writing fails, reading does.
        let writing = async { (writing.await.ok(), pending::<()>().await) };
        let mut reason = pin!(inbound.message());
        let said = tokio::select! {
            biased;
            ended = talking => {
                if let Heard::Nothing = ended? {
                    return Ok(Heard::Nothing);
                }
                let waited = timeout(BYPASS_TIMEOUT, &mut reason).await;
                waited.map_err(|_| Error::unavailable("the direct connection to the directory shard"))?
            }
            said = &mut reason => said,
            _ = writing => Ok(None),
        };
        match said {
            Ok(None) => Ok(Heard::End),
            Ok(Some(_)) => Err(Error::malformed(Plane::Control, "a message over gRPC after the turn")),
            Err(status) => Err(from_status(&status)),
        }
    }

    fn now(&self) -> Time {
        Time::ZERO + self.started.elapsed()
    }

    /// Tells the node what the shard has said.
    fn take(&self, batch: ShardMessages) -> Result<(), Error> {
        for message in decode_shard_batch(batch)? {
            self.engine.apply(Event::FromShard { shard: self.shard, message });
        }
        Ok(())
    }
}

/// Returns `true` if the shard was reached and does not want this store.
const fn is_refusal(error: &Error) -> bool {
    matches!(
        error,
        Error::PermissionDenied { .. }
            | Error::ClusterMismatch { .. }
            | Error::VersionMismatch { .. }
            | Error::NodeIdInUse { .. }
            | Error::ShardListMismatch { .. }
    )
}

/// The reason for which the shard is listened to no more.
enum Heard {
    /// The session has ended.
    End,
    /// Not even an answer to pings.
    Nothing,
}

/// Why a session has ended, or did not come about.
struct Failure {
    error: Error,
    is_tls: bool,
}

impl Failure {
    /// As the value of a label.
    fn cause(&self) -> String {
        if self.is_tls { metrics::TLS.to_owned() } else { label_of(self.error.code()) }
    }

    /// Returns the reason for which a session did not come about.
    fn of_opening(credentials: &Credentials, status: Status) -> Self {
        // This side did not accept what the other one has shown, or the other one said nonsense. That the other one does not
        // accept this side ends the connection later, without this being said.
        let is_tls = cause::<rustls::Error>(&status).is_some();
        let detail = cause::<rustls::Error>(&status).map(ToString::to_string);
        let detail = detail.or_else(|| cause::<io::Error>(&status).map(ToString::to_string));
        let error = match (credentials.error_of(status), detail) {
            (Error::Unavailable { what }, Some(detail)) if !what.contains(&detail) => {
                Error::Unavailable { what: format!("{what}: {detail}").into() }
            }
            (error, _) => error,
        };
        Self { error, is_tls }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { error, is_tls: false }
    }
}

/// The stream of frames to the shard over gRPC: the hello, then what is queued, if that is to go this way.
fn outbound(
    hello: StoreMessages,
    queued: oneshot::Receiver<Batches>,
) -> impl Stream<Item = StoreMessages> + Send + 'static {
    let queued = stream::once(queued).filter_map(async |queued| queued.ok()).flat_map(|batches| {
        stream::unfold(batches, async |mut batches| Some((next_frame(&mut batches).await?, batches)))
    });
    stream::iter([hello]).chain(queued)
}

/// What is queued, several messages at a time.
async fn next_frame(batches: &mut Batches) -> Option<StoreMessages> {
    let encode = |(message, cause)| StoreMessage { trace: trace::encode(cause), ..encode_to_shard(message) };
    let messages = batches.next().await?.into_iter().map(encode).collect();
    Some(StoreMessages { hello: None, messages })
}
