//! The coordinator's side of a hop: asks another store to perform it, and listens to how it goes.

use std::time::Duration;

use hoplite_core::node::{Hop, HopFailure, HopReport};
use hoplite_proto::data::frame::Kind;
use hoplite_proto::data::{decode_hop_failure, encode_hop};
use hoplite_proto::v1;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::connection::{Connection, ConnectionError};
use super::pool::Peer;
use super::pull::{Exchange, PullError, Puller};
use super::{DataConfig, count};

/// How long a host may take to confirm that it has released a hop: many round trips. Without the confirmation the
/// connection is closed, which releases the hop as well.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);

impl Puller {
    /// Has `host` perform `hop` until `ended`, and calls `report` with what it says of it: maybe with `Complete`, and then
    /// maybe with `Failed`, after which it returns.
    ///
    /// Dropping the future closes the connection, which ends the hop too.
    pub(crate) async fn direct(
        &self,
        hop: &Hop,
        host: &Peer,
        ended: &CancellationToken,
        report: &(dyn Fn(HopReport) + Send + Sync),
    ) {
        let failure = match self.exchange(host, Direct { hop, ended, report, config: &self.config }).await {
            Ok(None) => return,
            Ok(Some(failure)) => failure,
            // Whether the host has heard it or not: it is not waited for any more.
            Err(_) if ended.is_cancelled() => return,
            Err(error) => {
                tracing::warn!(output = %hop.output, host = %host.0, %error, "a hop cannot be directed");
                if matches!(&error, PullError::Exchange(error) if error.is_malformed()) {
                    count(&self.metrics.corrupt_frames, 1);
                }
                HopFailure::Unreachable
            }
        };
        report(HopReport::Failed(failure));
    }
}

/// Directs one hop; the answer is why it failed, or `None` if it was released.
struct Direct<'a> {
    hop: &'a Hop,
    ended: &'a CancellationToken,
    report: &'a (dyn Fn(HopReport) + Send + Sync),
    config: &'a DataConfig,
}

impl Exchange for Direct<'_> {
    type Answer = Option<HopFailure>;

    async fn run(&self, connection: &mut Connection) -> Result<Option<HopFailure>, ConnectionError> {
        let Self { hop, ended, report, config } = self;
        if ended.is_cancelled() {
            return Ok(None);
        }
        connection.write_control(Kind::Combine, &encode_hop(hop)).await?;
        let (mut heard_at, mut said_at) = (Instant::now(), Instant::now());
        loop {
            tokio::select! {
                () = ended.cancelled() => {
                    release(connection).await?;
                    return Ok(None);
                }
                header = connection.read_header() => {
                    let header = header?;
                    heard_at = Instant::now();
                    match header.kind() {
                        Kind::Keepalive => connection.read_control::<()>(&header).await?,
                        Kind::Combined => {
                            connection.read_control::<()>(&header).await?;
                            report(HopReport::Complete);
                        }
                        Kind::End => {
                            let end = connection.read_control::<v1::End>(&header).await?;
                            return Ok(Some(decode_hop_failure(end, hop.inputs.len())?));
                        }
                        kind => return Err(ConnectionError::Unexpected(kind)),
                    }
                }
                () = sleep_until(said_at + config.keepalive_interval) => {
                    connection.write_keepalive().await?;
                    said_at = Instant::now();
                }
                () = sleep_until(heard_at + config.silence_timeout) => {
                    return Err(ConnectionError::Stalled(config.silence_timeout));
                }
            }
        }
    }
}

/// Tells the host that its hop is needed no longer, and waits until it has let go of it.
async fn release(connection: &mut Connection) -> Result<(), ConnectionError> {
    connection.write_control(Kind::Release, &()).await?;
    let confirmed = async {
        loop {
            let header = connection.read_header().await?;
            match header.kind() {
                // Said before it heard us; so may be an end that tells of a failure.
                Kind::Keepalive | Kind::Combined => connection.read_control::<()>(&header).await?,
                Kind::End => return connection.read_control::<v1::End>(&header).await.map(|_| ()),
                kind => return Err(ConnectionError::Unexpected(kind)),
            }
        }
    };
    timeout(RELEASE_TIMEOUT, confirmed).await.map_err(|_| ConnectionError::Stalled(RELEASE_TIMEOUT))?
}
