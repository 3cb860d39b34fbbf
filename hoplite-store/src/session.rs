//! The session with one shard, which begins again after a loss.
//!
//! Messages travel over a direct connection. Pings over gRPC detect a dead shard sooner.

use std::collections::VecDeque;
use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};

use hoplite_core::error::Error;
use hoplite_core::node::Event;
use hoplite_core::session::{Attempts, DIRECT_PINGS, Next, OPEN_TIMEOUT};
use hoplite_core::shard::{NodeInfo, ShardRun};
use hoplite_core::{ClusterId, Time, Version};
use hoplite_daemon::metrics::label_of;
use hoplite_net::{Credentials, FrameReader, FrameWriter, cause};
use hoplite_proto::bounds::MAX_SHARD_FRAME_BYTES;
use hoplite_proto::directory::{check_welcome, decode_shard_batch, encode_hello, encode_to_shard};
use hoplite_proto::trace;
use hoplite_proto::v1::{ShardMessages, StoreMessage, StoreMessages};
use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};
use tokio_util::sync::CancellationToken;

use crate::advertised::{Advertised, check_certificate};
use crate::engine::Engine;
use crate::metrics;
use crate::outbox::{Batches, outbox};
use crate::report::LoadReports;
use crate::shard_link::ShardLink;

/// Messages or empty frames handled in a row before clients have turns, and messages are written.
const MESSAGES_PER_TURN: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SessionState {
    Down,
    Up,
    /// The shard refuses this store for good.
    GivenUp(Error),
}

pub(crate) struct Session {
    pub(crate) engine: Arc<Engine>,
    pub(crate) shard: usize,
    pub(crate) link: ShardLink,
    pub(crate) load_reports: LoadReports,
    /// Description of this store, updated before each session.
    pub(crate) info: NodeInfo,
    pub(crate) advertised: Option<Advertised>,
    pub(crate) cluster: ClusterId,
    pub(crate) started: Instant,
}

impl Session {
    /// Keeps a session with the shard. Ends at `stop`, or with the session once `leaving` is set.
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
                Err(error) if is_news => {
                    tracing::warn!(shard, %error, "cannot reach the directory shard")
                }
                Err(error) => tracing::debug!(shard, %error, "cannot reach the directory shard"),
            }
            match (next, ended) {
                (Next::GiveUp, Err(error)) => {
                    state.send_replace(SessionState::GivenUp(error));
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
        self.info.shards = self.engine.shards().list();
        let hello = encode_hello(&self.info, &self.cluster);
        let hello = StoreMessages { hello: Some(hello), messages: Vec::new() };
        let asked_at = if self.link.is_in_process() { Time::NEVER } else { self.engine.now() };
        let opened = timeout(OPEN_TIMEOUT, self.open(hello)).await;
        let (reader, writer, (run, version), first) = opened.map_err(|_| lost())??;
        tracing::info!(
            shard = self.link.address,
            protocol = version.number(),
            "session with the directory shard is up"
        );
        self.engine.session_up(self.shard, (run, version), asked_at, outbox);
        state.send_replace(SessionState::Up);
        self.take(first)?;
        let ended = tokio::select! {
            ended = self.talk(reader, writer, batches) => ended,
            lost = self.load_reports.run(&self.link) => Err(lost),
        };
        Ok(ended?)
    }

    async fn open(
        &self,
        hello: StoreMessages,
    ) -> Result<(FrameReader, FrameWriter, (ShardRun, Version), ShardMessages), Failure> {
        let connected = self.link.connect().await;
        let (mut reader, mut writer) =
            connected.map_err(|error| Failure::of_opening(&self.link.credentials, &error))?;
        writer.write(&hello).await.map_err(|_| lost())?;
        let mut first: ShardMessages =
            reader.next(MAX_SHARD_FRAME_BYTES).await?.ok_or_else(lost)?;
        let Some(welcome) = first.welcome.take() else {
            decode_shard_batch(first)?;
            return Err(lost().into());
        };
        let agreed = check_welcome(&welcome, self.info.version)?;
        Ok((reader, writer, agreed, first))
    }

    async fn talk(
        &self,
        mut reader: FrameReader,
        mut writer: FrameWriter,
        mut batches: Batches,
    ) -> Result<(), Error> {
        let sent_pings = SentPings::default();
        let reading = async {
            let mut handled = 0;
            loop {
                let next =
                    timeout(DIRECT_PINGS.silence_limit(), reader.next(MAX_SHARD_FRAME_BYTES)).await;
                let next: Option<ShardMessages> = next.map_err(|_| lost())??;
                let Some(batch) = next else { break };
                if let Some(pinged_at) = sent_pings.answered(batch.pings) {
                    self.answered(pinged_at);
                }
                handled += batch.messages.len().max(1);
                self.take(batch)?;
                if handled >= MESSAGES_PER_TURN {
                    handled = 0;
                    yield_now().await;
                }
            }
            Ok::<_, Error>(())
        };
        let writing = async {
            let mut pings =
                interval_at(Instant::now() + DIRECT_PINGS.interval, DIRECT_PINGS.interval);
            pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    frame = next_frame(&mut batches) => match frame {
                        Some(frame) => writer.write(&frame).await?,
                        None => break,
                    },
                    _ = pings.tick() => {
                        sent_pings.sent(self.engine.now());
                        writer.write(&StoreMessages::default()).await?;
                    }
                }
            }
            writer.end().await
        };
        let mut reading = pin!(reading);
        let written = tokio::select! {
            biased;
            ended = &mut reading => return ended.and(Err(lost())),
            written = writing => written,
        };
        // The shard answers the sent messages before it ends the session. After a failed write, it
        // may send the reason.
        reading.await?;
        written.map_err(|_| lost())
    }

    fn now(&self) -> Time {
        Time::ZERO + self.started.elapsed()
    }

    /// Renews the lease, unless the shard runs in this process and needs none.
    fn answered(&self, pinged_at: Time) {
        if !self.link.is_in_process() {
            self.engine.apply(Event::ShardAnswered { shard: self.shard, pinged_at });
        }
    }

    fn take(&self, batch: ShardMessages) -> Result<(), Error> {
        for message in decode_shard_batch(batch)? {
            self.engine.apply(Event::FromShard { shard: self.shard, message });
        }
        Ok(())
    }
}

/// Number of answered pings, and the times of unanswered pings, oldest first. The session ends
/// after a few unanswered pings.
#[derive(Debug, Default)]
struct SentPings(Mutex<(u64, VecDeque<Time>)>);

impl SentPings {
    fn sent(&self, now: Time) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1.push_back(now);
    }

    /// Notes the number of pings that the shard has received; zero if a frame answers none. Returns
    /// the time of the latest answered ping.
    fn answered(&self, pings: u64) -> Option<Time> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (answered, times) = &mut *state;
        let mut latest = None;
        while *answered < pings
            && let Some(time) = times.pop_front()
        {
            *answered += 1;
            latest = Some(time);
        }
        latest
    }
}

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

fn lost() -> Error {
    Error::unavailable("the directory shard")
}

struct Failure {
    error: Error,
    is_tls: bool,
}

impl Failure {
    fn cause(&self) -> String {
        if self.is_tls { metrics::TLS.to_owned() } else { label_of(self.error.code()) }
    }

    fn of_opening(credentials: &Credentials, error: &io::Error) -> Self {
        // This side rejected the certificate, or the peer sent invalid TLS. If the peer rejects the
        // certificate, the connection ends later, without a reason.
        let is_tls = cause::<rustls::Error>(error).is_some();
        Self { error: credentials.error_of(error), is_tls }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { error, is_tls: false }
    }
}

async fn next_frame(batches: &mut Batches) -> Option<StoreMessages> {
    let encode =
        |(message, cause)| StoreMessage { trace: trace::encode(cause), ..encode_to_shard(message) };
    let messages = batches.next().await?.into_iter().map(encode).collect();
    Some(StoreMessages { hello: None, messages })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_counts_from_the_ping_that_it_answers() {
        let at = Time::from_micros;
        let pings = SentPings::default();
        for time in [1, 2, 3] {
            pings.sent(at(time));
        }
        assert_eq!(pings.answered(0), None, "the frame was sent before a ping arrived");
        assert_eq!(pings.answered(2), Some(at(2)));
        assert_eq!(pings.answered(2), None);
        assert_eq!(
            pings.answered(u64::MAX),
            Some(at(3)),
            "more pings than were sent are not believed"
        );
        pings.sent(at(4));
        assert_eq!(pings.answered(4), Some(at(4)));
    }
}
