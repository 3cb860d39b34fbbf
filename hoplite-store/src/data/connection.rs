//! One connection between two stores: frames in and out, with the bytes of objects going past every buffer of ours.

use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use hoplite_core::checksum::crc32c;
use hoplite_core::error::Error;
use hoplite_core::id::NodeId;
use hoplite_core::plan::blocks::Delivery;
use hoplite_proto::PROTOCOL_VERSION;
use hoplite_proto::data::frame::{FrameError, HEADER_BYTES, Header, Kind};
use hoplite_proto::v1;
use hoplite_shm::Buffer;
use prost::Message;
use rustix::net::sockopt::set_tcp_user_timeout;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::task::coop::consume_budget;
use tokio::time::timeout;

use super::DataConfig;
use super::pulse::Pulse;

/// Room for a header and a small control payload, so that an `End` takes one system call. What is read of a block
/// with its header is copied once more, so this stays small.
const BUFFERED_BYTES: usize = 256;

/// How long what was sent may go without an acknowledgement. The system's own limit is about a quarter of an hour: for so
/// long, a sender of keepalives would take a peer that vanished without a word for one that listens.
const UNACKNOWLEDGED_TIMEOUT_MS: u32 = 30_000;

/// Why a connection is of no more use.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectionError {
    /// The peer closed it.
    #[error("the peer closed the connection")]
    Closed,
    /// The operating system reports an error.
    #[error("the connection broke")]
    Io(#[from] io::Error),
    /// Nothing moved for too long.
    #[error("nothing moved for {0:?}")]
    Stalled(Duration),
    /// What arrived is no frame of ours.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A frame that has no place here.
    #[error("unexpected frame of kind {0:?}")]
    Unexpected(Kind),
    /// The payload of a control frame is no message.
    #[error("the payload of a frame is not the message that it should be")]
    Payload(#[from] prost::DecodeError),
    /// A field that makes no sense.
    #[error("a message makes no sense: {0}")]
    Nonsense(&'static str),
    /// The peer's hello was refused.
    #[error(transparent)]
    Refused(#[from] Error),
}

impl ConnectionError {
    /// Whether the peer, or something between us, sent what no correct peer sends.
    pub(super) const fn is_malformed(&self) -> bool {
        !matches!(self, Self::Closed | Self::Io(_) | Self::Stalled(_))
    }
}

/// A connection to another store.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    /// Beats whenever bytes move in either direction.
    pulse: Arc<Pulse>,
    buffered: [u8; BUFFERED_BYTES],
    /// Which of `buffered` has arrived and is not consumed.
    unread: Range<usize>,
    frames_read: u64,
}

impl Connection {
    pub(super) fn new(stream: TcpStream) -> io::Result<Self> {
        // Frames are whole when they are written; waiting for more to send would only delay them.
        stream.set_nodelay(true)?;
        set_tcp_user_timeout(&stream, UNACKNOWLEDGED_TIMEOUT_MS)?;
        let pulse = Arc::new(Pulse::new());
        Ok(Self { stream, pulse, buffered: [0; BUFFERED_BYTES], unread: 0..0, frames_read: 0 })
    }

    /// What beats while bytes move here.
    pub(super) fn pulse(&self) -> Arc<Pulse> {
        Arc::clone(&self.pulse)
    }

    /// What the peer has acknowledged of what we sent; `None` if nothing yet.
    pub(super) fn delivery(&self) -> Option<Delivery> {
        hoplite_shm::delivery(self.stream.as_fd())
    }

    /// How many frames have begun to arrive so far.
    pub(super) const fn frames_read(&self) -> u64 {
        self.frames_read
    }

    /// Whether the peer has closed, or sent something unasked, as far as is known without waiting.
    pub(super) fn is_disturbed(&self) -> bool {
        !self.unread.is_empty()
            || !matches!(self.stream.try_read(&mut [0]), Err(e) if e.kind() == io::ErrorKind::WouldBlock)
    }

    /// Waits, while it is our turn to send, until the peer closes or sends anything at all.
    ///
    /// # Cancel safety
    /// Cancel safe; but what the peer sent out of turn is lost, and with it the connection.
    pub(super) async fn disturbed(&self) -> ConnectionError {
        if !self.unread.is_empty() {
            return ConnectionError::Nonsense("a request while another one is being answered");
        }
        loop {
            if let Err(error) = self.stream.readable().await {
                return error.into();
            }
            match self.stream.try_read(&mut [0]) {
                Ok(0) => return ConnectionError::Closed,
                Ok(_) => return ConnectionError::Nonsense("a request while another one is being answered"),
                Err(error) if is_transient(&error) => {}
                Err(error) => return error.into(),
            }
        }
    }

    /// Reads the next header.
    ///
    /// # Cancel safety
    /// Cancel safe: what has arrived of the header stays here, and the next call goes on with it.
    pub(super) async fn read_header(&mut self) -> Result<Header, ConnectionError> {
        while self.unread.len() < HEADER_BYTES {
            self.fill().await?;
            Header::check_start(&self.buffered[self.unread.clone()])?;
        }
        let mut bytes = [0; HEADER_BYTES];
        bytes.copy_from_slice(&self.buffered[self.unread.start..self.unread.start + HEADER_BYTES]);
        let header = Header::decode(&bytes)?;
        self.unread.start += HEADER_BYTES;
        self.frames_read += 1;
        Ok(header)
    }

    /// Reads the payload of a control frame, and checks its checksum.
    pub(super) async fn read_control<M: Message + Default>(
        &mut self,
        header: &Header,
    ) -> Result<M, ConnectionError> {
        // Bounded by the frame's limit, which was checked with the header.
        let mut payload = vec![0; header.length_bytes() as usize];
        let mut filled = 0;
        while filled < payload.len() {
            filled += self.read_part(&mut payload[filled..]).await?;
        }
        header.check_payload(crc32c(&payload))?;
        Ok(M::decode(payload.as_slice())?)
    }

    /// Reads the next frame, which must be of this kind.
    pub(super) async fn read_expected<M: Message + Default>(
        &mut self,
        kind: Kind,
    ) -> Result<M, ConnectionError> {
        let header = self.read_header().await?;
        if header.kind() != kind {
            return Err(ConnectionError::Unexpected(header.kind()));
        }
        self.read_control(&header).await
    }

    /// Reads at least one byte of a payload, or as many as fit into `into`, which is not empty; the caller counts them,
    /// and checks the checksum of the whole.
    ///
    /// # Cancel safety
    /// Cancel safe: nothing is read if the future is dropped before it is done.
    pub(super) async fn read_part(&mut self, into: &mut [u8]) -> Result<usize, ConnectionError> {
        match self.take_buffered(into.len(), |bytes| into[..bytes.len()].copy_from_slice(bytes)) {
            0 => read_some(&self.stream, &self.pulse, |stream| stream.try_read(into)).await,
            taken => Ok(taken),
        }
    }

    /// Reads the payload of a block into `buffer` from `start_bytes` on; the caller has checked that it fits. It is valid
    /// only if this succeeds.
    ///
    /// # Cancel safety
    /// Not cancel safe: the connection is of no more use. Nothing touches `buffer` after the future is dropped.
    pub(super) async fn read_block(
        &mut self,
        header: &Header,
        buffer: &Buffer,
        start_bytes: u64,
    ) -> Result<(), ConnectionError> {
        let whole = start_bytes..start_bytes + u64::from(header.length_bytes());
        // A block is at most as long as a frame.
        let length = header.length_bytes() as usize;
        let copied = self.take_buffered(length, |bytes| buffer.write(whole.start, bytes));
        let mut rest = whole.start + copied as u64..whole.end;
        while !rest.is_empty() {
            let receive = |stream: &TcpStream| {
                stream.try_io(Interest::READABLE, || buffer.receive(stream.as_fd(), rest.clone()))
            };
            rest.start += read_some(&self.stream, &self.pulse, receive).await? as u64;
        }
        header.check_payload(buffer.crc32c(whole))?;
        Ok(())
    }

    /// Writes a control frame.
    pub(super) async fn write_control(
        &mut self,
        kind: Kind,
        message: &impl Message,
    ) -> Result<(), ConnectionError> {
        let payload = message.encode_to_vec();
        let Some(header) = Header::control(kind, &payload) else {
            return Err(ConnectionError::Nonsense("a control message of ours is too long for a frame"));
        };
        let mut bytes = Vec::with_capacity(HEADER_BYTES + payload.len());
        bytes.extend_from_slice(&header.encode());
        bytes.extend_from_slice(&payload);
        self.write_raw(&bytes).await
    }

    /// Writes bytes as they are.
    pub(super) async fn write_raw(&mut self, bytes: &[u8]) -> Result<(), ConnectionError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let accepted = write_some(&self.stream, &self.pulse, |stream| stream.try_write(rest)).await?;
            rest = &rest[accepted..];
        }
        Ok(())
    }

    /// Says that there is nothing to say.
    pub(super) async fn write_keepalive(&mut self) -> Result<(), ConnectionError> {
        self.write_control(Kind::Keepalive, &()).await
    }

    /// Writes a block: these bytes of `buffer`, which are valid and no more than fit in a frame.
    ///
    /// # Cancel safety
    /// Not cancel safe: the connection is of no more use. Nothing touches `buffer` after the future is dropped.
    pub(super) async fn write_block(
        &mut self,
        mut range: Range<u64>,
        buffer: &Buffer,
    ) -> Result<(), ConnectionError> {
        let crc = buffer.crc32c(range.clone());
        let Some(header) = Header::block(range.start, range.end - range.start, crc) else {
            return Err(ConnectionError::Nonsense("a block of ours is too long for a frame"));
        };
        let head = header.encode();
        let mut head = head.as_slice();
        while !(head.is_empty() && range.is_empty()) {
            let send = |stream: &TcpStream| {
                stream.try_io(Interest::WRITABLE, || buffer.send(stream.as_fd(), head, range.clone()))
            };
            let accepted = write_some(&self.stream, &self.pulse, send).await?;
            let of_head = accepted.min(head.len());
            head = &head[of_head..];
            range.start += (accepted - of_head) as u64;
        }
        Ok(())
    }

    /// Says who we are and learns who the peer is.
    ///
    /// Both sides say it without waiting for the other, so that each can tell why the other is refused.
    ///
    /// # Errors
    /// [`Error::VersionMismatch`], [`Error::ClusterMismatch`] or [`Error::InvalidName`] inside
    /// [`ConnectionError::Refused`]; [`ConnectionError::Stalled`] after `config.handshake_timeout`.
    pub(super) async fn handshake(&mut self, config: &DataConfig) -> Result<NodeId, ConnectionError> {
        let ours = v1::DataHello {
            version: PROTOCOL_VERSION,
            cluster: config.cluster.as_str().into(),
            node: config.node.as_str().into(),
            ..v1::DataHello::default()
        };
        let exchange = async {
            self.write_control(Kind::Hello, &ours).await?;
            self.read_expected::<v1::DataHello>(Kind::Hello).await
        };
        let limit = config.handshake_timeout;
        let theirs = timeout(limit, exchange).await.map_err(|_| ConnectionError::Stalled(limit))??;
        if theirs.version != PROTOCOL_VERSION {
            return Err(Error::VersionMismatch { ours: PROTOCOL_VERSION, theirs: theirs.version }.into());
        }
        if theirs.cluster != config.cluster.as_str() {
            return Err(Error::ClusterMismatch.into());
        }
        Ok(NodeId::new(&theirs.node)?)
    }

    /// Consumes up to `limit` buffered bytes; answers how many there were.
    fn take_buffered(&mut self, limit: usize, take: impl FnOnce(&[u8])) -> usize {
        let taken = self.unread.len().min(limit);
        take(&self.buffered[self.unread.start..self.unread.start + taken]);
        self.unread.start += taken;
        taken
    }

    /// Reads at least one more byte into the buffer, which is not full.
    async fn fill(&mut self) -> Result<(), ConnectionError> {
        self.buffered.copy_within(self.unread.clone(), 0);
        self.unread = 0..self.unread.len();
        let free = &mut self.buffered[self.unread.end..];
        self.unread.end += read_some(&self.stream, &self.pulse, |stream| stream.try_read(free)).await?;
        Ok(())
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Reads at least one byte.
async fn read_some(
    stream: &TcpStream,
    pulse: &Pulse,
    mut read: impl FnMut(&TcpStream) -> io::Result<usize>,
) -> Result<usize, ConnectionError> {
    // Neither direction may keep a thread of the runtime for itself when the socket never runs dry.
    consume_budget().await;
    loop {
        match read(stream) {
            Ok(0) => return Err(ConnectionError::Closed),
            Ok(received) => {
                pulse.beat();
                return Ok(received);
            }
            Err(error) if is_transient(&error) => stream.readable().await?,
            Err(error) => return Err(error.into()),
        }
    }
}

/// Writes at least one byte.
async fn write_some(
    stream: &TcpStream,
    pulse: &Pulse,
    mut write: impl FnMut(&TcpStream) -> io::Result<usize>,
) -> Result<usize, ConnectionError> {
    consume_budget().await;
    loop {
        match write(stream) {
            Ok(accepted) => {
                pulse.beat();
                return Ok(accepted);
            }
            Err(error) if is_transient(&error) => stream.writable().await?,
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::sockopt::tcp_user_timeout;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn what_is_never_acknowledged_ends_a_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let connection = Connection::new(stream).unwrap();
        assert_eq!(tcp_user_timeout(&connection.stream), Ok(UNACKNOWLEDGED_TIMEOUT_MS));
    }
}
