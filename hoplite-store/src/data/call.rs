use hoplite_proto::data::frame::{Header, Kind};
use prost::Message;

use super::connection::{ConnectionError, PeerConnection};
use super::pool::Peer;
use super::puller::Puller;

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
    /// `true` if the connection is new, or the peer has sent a byte.
    is_proven: bool,
}

impl<'a> Call<'a> {
    pub(super) async fn begin(
        puller: &'a Puller,
        peer: Peer,
        kind: Kind,
        message: &impl Message,
    ) -> Result<Self, CallError> {
        let pooled = puller.pool.take(&peer);
        let is_proven = pooled.is_none();
        let connection = match pooled {
            Some(connection) => connection,
            None => puller.connect(&peer).await.map_err(CallError::Connect)?,
        };
        let payload = message.encode_to_vec();
        let mut call = Self { puller, peer, kind, payload, connection, is_proven };
        match send(puller, &mut call.connection, kind, &call.payload).await {
            Err(error) if is_proven => Err(error.into()),
            _ => Ok(call),
        }
    }

    pub(super) const fn sent(
        puller: &'a Puller,
        peer: Peer,
        kind: Kind,
        connection: PeerConnection,
    ) -> Self {
        Self { puller, peer, kind, payload: Vec::new(), connection, is_proven: true }
    }

    pub(super) const fn connection(&mut self) -> &mut PeerConnection {
        &mut self.connection
    }

    /// Reads the next header of the answer. Before the first header, may send the request again.
    /// Cancel safe.
    pub(super) async fn read_header(&mut self) -> Result<Header, CallError> {
        match self.connection.read_header().await {
            Err(ConnectionError::Closed | ConnectionError::Io(_)) if !self.is_proven => {
                let mut connection =
                    self.puller.connect(&self.peer).await.map_err(CallError::Connect)?;
                send(self.puller, &mut connection, self.kind, &self.payload).await?;
                (self.connection, self.is_proven) = (connection, true);
                Ok(self.connection.read_header().await?)
            }
            header => {
                self.is_proven = true;
                Ok(header?)
            }
        }
    }

    /// Returns the connection to the pool after the whole answer was read.
    pub(super) fn finish(self) {
        self.puller.pool.put(self.peer, self.connection);
    }
}

async fn send(
    puller: &Puller,
    connection: &mut PeerConnection,
    kind: Kind,
    payload: &[u8],
) -> Result<(), ConnectionError> {
    connection.expect_within(Some(puller.config.silence_timeout));
    connection.write_payload(kind, payload).await
}
