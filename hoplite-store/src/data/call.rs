use hoplite_core::plan::rails::RAIL_ANSWER_TIMEOUT;
use hoplite_proto::data::frame::{Header, Kind};
use prost::Message;

use super::connection::{ConnectionError, PeerConnection};
use super::cut::CutWatch;
use super::pool::Peer;
use super::puller::Puller;
use super::route::RouteUse;

#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    #[error("cannot connect: {0}")]
    Connect(#[source] ConnectionError),
    #[error(transparent)]
    Connection(#[from] ConnectionError),
}

/// A request to another store, and the connection of the answer.
///
/// The peer may have closed an idle connection, which shows only on a read. If no byte comes back,
/// the request is sent again over a new connection.
#[derive(Debug)]
pub(super) struct Call<'a> {
    puller: &'a Puller,
    peer: Peer,
    kind: Kind,
    payload: Vec<u8>,
    connection: PeerConnection,
    rail: RouteUse,
    /// `true` if the connection is new, or the peer has sent a byte.
    is_proven: bool,
    /// `true` after the first header of the answer, which has a separate time limit.
    is_answered: bool,
}

impl<'a> Call<'a> {
    pub(super) async fn begin(
        puller: &'a Puller,
        peer: Peer,
        kind: Kind,
        message: &impl Message,
    ) -> Result<Self, CallError> {
        let (mut connection, rail, is_proven) =
            puller.open(&peer, true).await.map_err(CallError::Connect)?;
        let payload = message.encode_to_vec();
        match send(puller, &mut connection, &rail, (kind, &payload)).await {
            Err(error) if is_proven => Err(error.into()),
            _ => {
                let is_answered = false;
                Ok(Self { puller, peer, kind, payload, connection, rail, is_proven, is_answered })
            }
        }
    }

    pub(super) fn sent(
        puller: &'a Puller,
        peer: Peer,
        kind: Kind,
        (connection, rail): (PeerConnection, RouteUse),
    ) -> Self {
        let (payload, is_proven, is_answered) = (Vec::new(), true, true);
        Self { puller, peer, kind, payload, connection, rail, is_proven, is_answered }
    }

    pub(super) const fn rail(&mut self) -> &mut RouteUse {
        &mut self.rail
    }

    pub(super) const fn route(&self) -> usize {
        self.rail.route()
    }

    pub(super) const fn connection(&mut self) -> &mut PeerConnection {
        &mut self.connection
    }

    /// Begins to watch the connection; `None` for a peer with one route.
    pub(super) fn watch(&self) -> Option<CutWatch> {
        let route = self.rail.known()?;
        CutWatch::begin(&self.puller.config, self.peer.clone(), route, &self.connection)
    }

    /// Reads the next header of the answer. Before the first header, may send the request again.
    /// Cancel safe.
    pub(super) async fn read_header(&mut self) -> Result<Header, CallError> {
        let header = match self.connection.read_header().await {
            Err(ConnectionError::Closed | ConnectionError::Io(_)) if !self.is_proven => {
                let opened = self.puller.open(&self.peer, false).await;
                let (mut connection, rail, _) = opened.map_err(CallError::Connect)?;
                let request = (self.kind, self.payload.as_slice());
                send(self.puller, &mut connection, &rail, request).await?;
                (self.connection, self.rail, self.is_proven) = (connection, rail, true);
                self.connection.read_header().await
            }
            header => {
                self.is_proven = true;
                header
            }
        };
        match &header {
            Ok(_) if !self.is_answered => {
                self.is_answered = true;
                self.connection.expect_within(Some(self.puller.config.silence_timeout));
            }
            Ok(_) => {}
            Err(error) => drop(self.rail.broke(error)),
        }
        Ok(header?)
    }

    /// Pools the connection after the whole answer was read.
    pub(super) fn finish(self) {
        self.puller.pool.put(self.peer, self.rail.route(), self.connection);
    }
}

async fn send(
    puller: &Puller,
    connection: &mut PeerConnection,
    rail: &RouteUse,
    (kind, payload): (Kind, &[u8]),
) -> Result<(), ConnectionError> {
    let mut limit = puller.config.silence_timeout;
    if matches!(kind, Kind::Pull | Kind::Take) {
        limit = rail.limit(limit, RAIL_ANSWER_TIMEOUT);
    }
    connection.expect_within(Some(limit));
    connection.write_payload(kind, payload).await
}
