//! The coordinator's end of its connection to the host of a hop.

use hoplite_core::node::{HopFailure, HopReport};
use hoplite_core::peer::RELEASE_TIMEOUT;
use hoplite_daemon::warn_repeated;
use hoplite_proto::data::frame::Kind;
use hoplite_proto::data::{decode_hop_failure, encode_hop};
use hoplite_proto::{trace, v1};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::call::{Call, CallError};
use super::connection::{ConnectionError, PeerConnection};
use super::cut::unless_cut;
use super::keepalive::{Awaited, Keepalive, KeepaliveEvent};
use super::metrics::count;
use super::pool::Peer;
use super::puller::Puller;
use super::serving::HopRequest;

impl Puller {
    /// Lets `host` perform a hop (partial reduce) until `ended`. Reports `Complete` when the output
    /// is complete; or `Failed`, and returns. Dropping the future ends the hop.
    pub(crate) async fn direct(
        &self,
        request: &HopRequest,
        host: &Peer,
        ended: &CancellationToken,
        report: &(dyn Fn(HopReport) + Send + Sync),
    ) {
        let hop = &request.spec;
        let failure = match self.try_direct(request, host, ended, report).await {
            Ok(None) => return,
            Ok(Some(failure)) => failure,
            // The coordinator no longer waits.
            Err(_) if ended.is_cancelled() => return,
            Err(error) => {
                warn_repeated!(output = %hop.output, host = %host.0, %error, "a hop cannot be directed");
                if matches!(&error, CallError::Connection(error) if error.is_malformed()) {
                    count(&self.metrics.corrupt_frames, 1);
                }
                HopFailure::Unreachable
            }
        };
        report(HopReport::Failed(failure));
    }

    /// Directs a hop; `None` if the coordinator ended it.
    async fn try_direct(
        &self,
        HopRequest { spec: hop, trace }: &HopRequest,
        host: &Peer,
        ended: &CancellationToken,
        report: &(dyn Fn(HopReport) + Send + Sync),
    ) -> Result<Option<HopFailure>, CallError> {
        if ended.is_cancelled() {
            return Ok(None);
        }
        let interval = self.config.keepalive_interval;
        let keepalive = Keepalive { interval, started: Instant::now(), awaited: Awaited::Producer };
        let combine = v1::Combine { trace: trace::encode(*trace), ..encode_hop(hop) };
        let mut call = Call::begin(self, host.clone(), Kind::Combine, &combine).await?;
        let mut next = match ended.run_until_cancelled(call.read_header()).await {
            Some(header) => KeepaliveEvent::Frame(header?),
            None => KeepaliveEvent::Done(()),
        };
        let watch = call.watch();
        let directed = async {
            let failure = loop {
                let connection = call.connection();
                match next {
                    KeepaliveEvent::Done(()) => {
                        release(connection).await?;
                        break None;
                    }
                    KeepaliveEvent::Frame(header) => match header.kind() {
                        Kind::Keepalive => connection.read_control::<()>(&header).await?,
                        Kind::Combined => {
                            connection.read_control::<()>(&header).await?;
                            report(HopReport::Complete);
                        }
                        Kind::End => {
                            let end = connection.read_control::<v1::End>(&header).await?;
                            let failure = decode_hop_failure(end, hop.inputs.len());
                            break Some(failure.map_err(ConnectionError::from)?);
                        }
                        kind => return Err(ConnectionError::Unexpected(kind).into()),
                    },
                }
                next = keepalive.until(connection, ended.cancelled()).await?;
            };
            Ok::<_, CallError>(failure)
        };
        let failure = unless_cut(watch, directed).await?;
        call.finish();
        Ok(failure)
    }
}

async fn release(connection: &mut PeerConnection) -> Result<(), ConnectionError> {
    connection.write_control(Kind::Release, &()).await?;
    let confirmed = async {
        loop {
            let header = connection.read_header().await?;
            match header.kind() {
                // The host may send these before it reads the release. The end may report a
                // failure.
                Kind::Keepalive | Kind::Combined => connection.read_control::<()>(&header).await?,
                Kind::End => return connection.read_control::<v1::End>(&header).await.map(|_| ()),
                kind => return Err(ConnectionError::Unexpected(kind)),
            }
        }
    };
    timeout(RELEASE_TIMEOUT, confirmed).await.map_err(|_| ConnectionError::Idle(RELEASE_TIMEOUT))?
}
