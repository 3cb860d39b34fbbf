//! The host's end of a hop's connection: the store that combines inputs of a reduce.

use hoplite_core::error::Error;
use hoplite_core::id::NodeId;
use hoplite_core::node::{HopFailure, HopReport};
use hoplite_daemon::warn_repeated;
use hoplite_proto::data::frame::Kind;
use hoplite_proto::data::{decode_hop, encode_hop_failure};
use hoplite_proto::{trace, v1};

use super::collective::MemberHost;
use super::connection::{ConnectionError, PeerConnection};
use super::cut::{CutWatch, unless_cut};
use super::keepalive::{Awaited, Keepalive, KeepaliveEvent};
use super::server::Server;
use super::serving::{HopHost, HopRequest, Hosted, ServeSource};

impl<S: ServeSource + HopHost + MemberHost> Server<S> {
    /// Performs a hop until it fails, or the coordinator releases it, is gone, or is silent for too
    /// long.
    pub(super) async fn host_hop(
        &self,
        connection: &mut PeerConnection,
        coordinator: &NodeId,
        combine: v1::Combine,
    ) -> Result<(), ConnectionError> {
        let trace = trace::decode(&combine.trace);
        let hop = decode_hop(combine)?;
        let (output, put) = (hop.output.clone(), hop.put);
        tracing::debug!(%output, %put, %coordinator, inputs = hop.inputs.len(), "a hop begins");
        let mut hosted = self.source.host(HopRequest { spec: hop, trace });
        let watch = CutWatch::incoming(&self.config, coordinator, connection);
        let keepalive = self.keepalive(Awaited::Producer);
        let reports = forward_hop_reports(connection, &mut hosted, &keepalive);
        let ended = unless_cut(watch, reports).await;
        // Ends the hop before the answer, because the coordinator then relies on its end.
        drop(hosted);
        match &ended {
            Ok(end) => tracing::debug!(%output, %put, outcome = ?end.outcome(), "a hop ended"),
            Err(error) => {
                warn_repeated!(%output, %put, %coordinator, %error, "a hop lost its coordinator")
            }
        }
        connection.write_control(Kind::End, &ended?).await
    }
}

async fn forward_hop_reports(
    connection: &mut PeerConnection,
    hosted: &mut Hosted,
    keepalive: &Keepalive<'_>,
) -> Result<v1::End, ConnectionError> {
    // Acknowledges the request, which the coordinator would repeat otherwise.
    connection.write_keepalive(keepalive.sign()).await?;
    loop {
        match keepalive.until(connection, hosted.next_report()).await? {
            KeepaliveEvent::Done(Some(HopReport::Complete)) => {
                connection.write_control(Kind::Combined, &()).await?
            }
            KeepaliveEvent::Done(Some(HopReport::Failed(failure))) => {
                return Ok(encode_hop_failure(&failure));
            }
            KeepaliveEvent::Done(None) => {
                return Ok(encode_hop_failure(&HopFailure::Refused(Error::ShuttingDown)));
            }
            KeepaliveEvent::Frame(header) => match header.kind() {
                Kind::Keepalive => connection.read_control::<()>(&header).await?,
                Kind::Release => {
                    connection.read_control::<()>(&header).await?;
                    return Ok(v1::End {
                        outcome: v1::end::Outcome::Released.into(),
                        ..v1::End::default()
                    });
                }
                kind => return Err(ConnectionError::Unexpected(kind)),
            },
        }
    }
}
