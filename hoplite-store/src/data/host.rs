//! The host's side of a hop: performs it as long as the coordinator needs it.

use hoplite_core::error::Error;
use hoplite_core::id::NodeId;
use hoplite_core::node::{HopFailure, HopReport};
use hoplite_proto::data::frame::Kind;
use hoplite_proto::data::{decode_hop, encode_hop_failure};
use hoplite_proto::v1;
use tokio::time::{Instant, sleep_until};

use super::connection::{Connection, ConnectionError};
use super::server::Server;
use super::{DataConfig, HopHost, Hosted};

impl<S: HopHost> Server<S> {
    /// Performs a hop until the coordinator releases it, or it fails. If the coordinator is gone, or is silent for too
    /// long, the hop ends too.
    pub(super) async fn host_hop(
        &self,
        connection: &mut Connection,
        coordinator: &NodeId,
        combine: v1::Combine,
    ) -> Result<(), ConnectionError> {
        let hop = decode_hop(combine)?;
        let (output, put) = (hop.output.clone(), hop.put);
        tracing::info!(%output, %put, %coordinator, inputs = hop.inputs.len(), "a hop begins");
        let mut hosted = self.source.host(hop);
        let ended = attend(connection, &mut hosted, &self.config).await;
        // Before the answer, so that a coordinator which has it finds the hop gone.
        drop(hosted);
        match &ended {
            Ok(end) => tracing::info!(%output, %put, outcome = ?end.outcome(), "a hop ended"),
            Err(error) => tracing::warn!(%output, %put, %coordinator, %error, "a hop lost its coordinator"),
        }
        connection.write_control(Kind::End, &ended?).await
    }
}

/// Tells the coordinator how its hop goes, until it ends; answers how.
async fn attend(
    connection: &mut Connection,
    hosted: &mut Hosted,
    config: &DataConfig,
) -> Result<v1::End, ConnectionError> {
    // At once, so that the coordinator knows that the request has arrived: it repeats one that nothing came back to.
    connection.write_keepalive().await?;
    let (mut heard_at, mut said_at) = (Instant::now(), Instant::now());
    loop {
        tokio::select! {
            report = hosted.next_report() => match report {
                Some(HopReport::Complete) => {
                    connection.write_control(Kind::Combined, &()).await?;
                    said_at = Instant::now();
                }
                Some(HopReport::Failed(failure)) => return Ok(encode_hop_failure(&failure)),
                None => return Ok(encode_hop_failure(&HopFailure::Refused(Error::ShuttingDown))),
            },
            header = connection.read_header() => {
                let header = header?;
                heard_at = Instant::now();
                match header.kind() {
                    Kind::Keepalive => connection.read_control::<()>(&header).await?,
                    Kind::Release => {
                        connection.read_control::<()>(&header).await?;
                        return Ok(v1::End { outcome: v1::end::Outcome::Released.into(), ..v1::End::default() });
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
