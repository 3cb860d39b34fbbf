use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hoplite_core::error::Error;
use hoplite_core::id::NodeId;
use hoplite_core::topology::probe::MAX_PROBES;
use hoplite_core::topology::probe::survey::{Finding, MAX_TRAIN_BYTES, SurveyWork};
use hoplite_proto::data::frame::Kind;
use hoplite_proto::data::probe::{
    Measure, checked_train_bytes, decode_arm, decode_measure, encode_finding,
};
use hoplite_proto::v1;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use super::super::collective::MemberHost;
use super::super::connection::{ConnectionError, PeerConnection};
use super::super::keepalive::{Awaited, KeepaliveEvent};
use super::super::server::Server;
use super::super::serving::{Ending, HopHost, ServeSource, end_message};
use super::echo::Echo;
use super::train;

/// Longest time in a probe of links: 2,000 nodes under load take a quarter of an hour.
const MAX_PARTICIPATION: Duration = Duration::from_secs(60 * 60);

/// The store's part in a probe of the network, if one runs.
#[derive(Debug)]
pub(in super::super) struct ProbePlace {
    place: Semaphore,
    directed: Mutex<Option<Directed>>,
}

#[derive(Debug)]
struct Directed {
    nonce: u64,
    train_bytes_left: u64,
    echoes_left: u32,
}

impl Default for ProbePlace {
    fn default() -> Self {
        Self { place: Semaphore::new(1), directed: Mutex::new(None) }
    }
}

impl ProbePlace {
    pub(in super::super) async fn answer_echo(
        &self,
        connection: &mut PeerConnection,
        echo: &v1::Echo,
    ) -> Result<(), ConnectionError> {
        let is_directed = self.charge_budget(echo.nonce, |directed| {
            directed.echoes_left = directed.echoes_left.checked_sub(1)?;
            Some(())
        });
        if is_directed {
            connection.write_control(Kind::Echo, echo).await
        } else {
            refuse(connection).await
        }
    }

    pub(in super::super) async fn send_train(
        &self,
        connection: &mut PeerConnection,
        train: &v1::TakeTrain,
    ) -> Result<(), ConnectionError> {
        let bytes = checked_train_bytes(train.bytes)?;
        let is_directed = self.charge_budget(train.nonce, |directed| {
            directed.train_bytes_left = directed.train_bytes_left.checked_sub(bytes)?;
            Some(())
        });
        if is_directed { train::send(connection, bytes).await } else { refuse(connection).await }
    }

    /// Charges the probing peer's limit. Returns `false` if the limit is spent or `nonce` is wrong.
    fn charge_budget(&self, nonce: u64, take: impl FnOnce(&mut Directed) -> Option<()>) -> bool {
        let mut directed = self.directed.lock().unwrap_or_else(PoisonError::into_inner);
        directed.as_mut().filter(|directed| directed.nonce == nonce).and_then(take).is_some()
    }

    fn direct(&self, nonce: Option<u64>) {
        *self.directed.lock().unwrap_or_else(PoisonError::into_inner) =
            nonce.map(|nonce| Directed {
                nonce,
                // Trains double in size up to the largest one, so all trains together have less
                // than twice its size.
                train_bytes_left: 2 * MAX_TRAIN_BYTES,
                echoes_left: MAX_PROBES,
            });
    }
}

async fn refuse(connection: &mut PeerConnection) -> Result<(), ConnectionError> {
    let error = Error::permission_denied("no probe directs this store to answer that");
    connection.write_control(Kind::End, &end_message(Ending::Refused(error))).await
}

struct Participation<'a>(&'a ProbePlace);

impl Drop for Participation<'_> {
    fn drop(&mut self) {
        self.0.direct(None);
    }
}

enum Next {
    Found(Finding),
    Frame(hoplite_proto::data::frame::Header),
}

impl<S: ServeSource + HopHost + MemberHost> Server<S> {
    /// Takes part in a probe until the coordinating store ends it, disconnects, or is silent for
    /// too long.
    pub(in super::super) async fn host_probe(
        &self,
        connection: &mut PeerConnection,
        coordinator: &NodeId,
    ) -> Result<(), ConnectionError> {
        let Ok(place) = self.probe.place.try_acquire() else {
            let error = Error::limit_exceeded("probes in which a store takes part at once", 1);
            return connection.write_control(Kind::End, &end_message(Ending::Refused(error))).await;
        };
        tracing::info!(%coordinator, "takes part in a probe");
        let participation = Participation(&self.probe);
        let limit = Instant::now() + MAX_PARTICIPATION;
        let ended = timeout_at(limit, self.take_part(connection)).await;
        drop((participation, place));
        match &ended {
            Ok(Ok(())) => tracing::info!(%coordinator, "a probe ended"),
            Ok(Err(error)) => tracing::warn!(%coordinator, %error, "a probe lost its coordinator"),
            Err(_) => tracing::warn!(%coordinator, "a probe took too long"),
        }
        ended.map_err(|_| ConnectionError::Idle(MAX_PARTICIPATION))??;
        let released = v1::End { outcome: v1::end::Outcome::Released.into(), ..v1::End::default() };
        connection.write_control(Kind::End, &released).await
    }

    async fn take_part(&self, connection: &mut PeerConnection) -> Result<(), ConnectionError> {
        let own_address = connection.addresses()?.0.ip();
        let mut echo = Echo::bind(own_address).await.ok();
        let echo_port = echo.as_ref().and_then(|echo| echo.port().ok()).unwrap_or(0).into();
        connection.write_control(Kind::ProbeReady, &v1::ProbeReady { echo_port }).await?;
        let keepalive = self.keepalive(Awaited::Producer);
        let mut measure = None;
        loop {
            let next = {
                let mut work = std::pin::pin!(self.work(echo.as_mut(), measure.as_ref()));
                loop {
                    match keepalive.until(connection, work.as_mut()).await? {
                        KeepaliveEvent::Done(finding) => break Next::Found(finding),
                        KeepaliveEvent::Frame(header) if header.kind() == Kind::Keepalive => {
                            connection.read_control::<()>(&header).await?;
                        }
                        KeepaliveEvent::Frame(header) => break Next::Frame(header),
                    }
                }
            };
            let header = match next {
                Next::Found(finding) => {
                    measure = None;
                    connection.write_control(Kind::Found, &encode_finding(&finding)).await?;
                    continue;
                }
                Next::Frame(header) => header,
            };
            measure = None;
            match header.kind() {
                Kind::Arm => {
                    let arm = decode_arm(&connection.read_control(&header).await?)?;
                    self.probe.direct(Some(arm.nonce));
                    if let Some(echo) = &mut echo {
                        echo.arm(arm.nonce, arm.asker);
                    }
                    connection.write_control(Kind::Armed, &()).await?;
                }
                Kind::Measure => {
                    measure = Some(decode_measure(&connection.read_control(&header).await?)?)
                }
                Kind::Release => return connection.read_control::<()>(&header).await,
                kind => return Err(ConnectionError::Unexpected(kind)),
            }
        }
    }

    async fn work(&self, echo: Option<&mut Echo>, measure: Option<&Measure>) -> Finding {
        let Some(measure) = measure else {
            match echo {
                Some(echo) => echo.answer().await,
                None => std::future::pending().await,
            }
            return Finding::Nothing;
        };
        let measured = match measure.work {
            SurveyWork::Echo { probes } => {
                if let (Some(echo), Some(peer)) = (echo, measure.echo_address)
                    && let Some(echoes) = echo.exchange_echoes(peer, measure.nonce, probes).await
                {
                    return Finding::Echoes { echoes, by_tcp: false };
                }
                train::echoes(&self.config, measure, probes).await
            }
            SurveyWork::Train { bytes, at_least } => {
                train::receive_trains(&self.config, measure, bytes, at_least).await
            }
        };
        measured.unwrap_or_else(|error| {
            tracing::debug!(peer = %measure.node, %error, "a peer cannot be measured");
            Finding::Nothing
        })
    }
}

pub(super) const fn echo_address(data: SocketAddr, port: u16) -> Option<SocketAddr> {
    if port == 0 { None } else { Some(SocketAddr::new(data.ip(), port)) }
}
