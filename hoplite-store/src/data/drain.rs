use std::time::Duration;

use hoplite_core::Version;
use hoplite_core::error::Error;
use hoplite_core::id::NodeId;
use hoplite_core::node::DrainReport;
use hoplite_proto::data::drain::{
    DRAIN_STORE_SINCE, decode_drain_answer, decode_drain_store, encode_drain_answer,
    encode_drain_store,
};
use hoplite_proto::data::frame::Kind;
use hoplite_proto::v1;

use super::collective::MemberHost;
use super::connection::{ConnectionError, PeerConnection};
use super::keepalive::Awaited;
use super::pool::Peer;
use super::puller::Puller;
use super::server::Server;
use super::serving::{HopHost, ServeSource};

impl<S: ServeSource + HopHost + MemberHost> Server<S> {
    pub(super) async fn answer_drain(
        &self,
        connection: &mut PeerConnection,
        peer: &NodeId,
        request: &v1::DrainStore,
    ) -> Result<(), ConnectionError> {
        let timeout = decode_drain_store(request);
        if timeout.is_some() {
            tracing::info!(%peer, "another store requests a drain");
        }
        let drained = self.source.drain(timeout);
        let (report, answering) =
            self.keepalive(Awaited::Producer).during(connection, drained).await?;
        connection.write_control(Kind::DrainAnswer, &encode_drain_answer(report)).await?;
        drop(answering);
        Ok(())
    }
}

fn too_old(peer: &Peer, version: Version) -> Error {
    let number = version.number();
    let reason =
        format!("store {} speaks protocol version {number}: drain it on its own machine", peer.0);
    Error::InvalidRequest { reason: reason.into() }
}

impl Puller {
    /// Makes another store move its objects away. Without a timeout, only requests the progress.
    pub(crate) async fn drain_store(
        &self,
        peer: &Peer,
        timeout: Option<Duration>,
    ) -> Result<DrainReport, Error> {
        let request = encode_drain_store(timeout);
        let answer = async {
            let (mut connection, _rail, _) = self.open(peer, false).await?;
            if !connection.version.at_least(DRAIN_STORE_SINCE) {
                return Err(ConnectionError::Refused(too_old(peer, connection.version)));
            }
            connection.expect_within(Some(self.config.silence_timeout));
            connection.write_control(Kind::DrainStore, &request).await?;
            loop {
                let header = connection.read_header().await?;
                match header.kind() {
                    Kind::Keepalive => {
                        connection.read_control::<v1::Keepalive>(&header).await?;
                    }
                    Kind::DrainAnswer => {
                        return connection.read_control::<v1::DrainAnswer>(&header).await;
                    }
                    kind => return Err(ConnectionError::Unexpected(kind)),
                }
            }
        };
        let answer = answer.await.map_err(|error| match error {
            ConnectionError::Refused(error) => error,
            error => Error::Unavailable { what: format!("store {} ({error})", peer.0).into() },
        })?;
        decode_drain_answer(answer)
    }
}
