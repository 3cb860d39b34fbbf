//! One connection between two stores. Each frame is checked, and each wait is bounded.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use hoplite_core::Version;
use hoplite_core::checksum::crc32c;
use hoplite_core::error::Error;
use hoplite_core::id::IdError;
use hoplite_core::link::Delivery;
use hoplite_core::stall::Sign;
use hoplite_net::{AcknowledgementWatch, Transport};
use hoplite_proto::data::frame::{FrameError, HEADER_BYTES, Header, Kind};
use hoplite_proto::v1;
use hoplite_shm::Buffer;
use prost::Message;
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout, timeout_at};

use super::config::{SMALL_BYTES, Sizes};

/// Size of the buffer for a header and a small control payload, so that an `End` takes one system
/// call. Small, because bytes of blocks in it are copied once more.
const BUFFERED_BYTES: usize = 256;

#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectionError {
    #[error("the peer closed the connection")]
    Closed,
    #[error("the connection broke: {0}")]
    Io(#[source] io::Error),
    /// TLS rejected the peer or its certificate, or found changed bytes.
    #[error("TLS failed: {0}")]
    Tls(#[source] io::Error),
    #[error("nothing moved for {0:?}")]
    Idle(Duration),
    /// The peer sent keepalives, but no sign that a producer of the next byte is alive.
    #[error("no byte and no sign of its producer for {0:?}")]
    Stalled(Duration),
    /// The peer answers over another route.
    #[error("the peer acknowledges no bytes over this route")]
    Cut,
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("unexpected frame of kind {0:?}")]
    Unexpected(Kind),
    #[error("the payload of a frame is not the message that it should be")]
    Payload(#[from] prost::DecodeError),
    #[error("a message makes no sense: {0}")]
    Nonsense(&'static str),
    /// This side refuses the peer or its message, or the peer refuses this side.
    #[error(transparent)]
    Refused(#[from] Error),
    #[error("too many connections are in their handshake, and this one has been longest")]
    Crowded,
}

impl From<IdError> for ConnectionError {
    fn from(error: IdError) -> Self {
        Self::Refused(error.into())
    }
}

impl From<io::Error> for ConnectionError {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::InvalidData { Self::Tls(error) } else { Self::Io(error) }
    }
}

impl ConnectionError {
    pub(super) const fn is_malformed(&self) -> bool {
        !matches!(self, Self::Closed | Self::Io(_) | Self::Idle(_) | Self::Stalled(_) | Self::Cut)
    }
}

#[derive(Debug)]
pub(super) struct PeerConnection {
    transport: Transport,
    pub(super) sizes: Sizes,
    pub(super) version: Version,
    /// Number of this store's network card, if several.
    pub(super) rail: Option<usize>,
    /// Longest silence of the peer; `None` while the peer has nothing to send.
    read_timeout: Option<Duration>,
    write_timeout: Duration,
    /// Time when bytes last arrived, or were first expected.
    received_at: Instant,
    sent_at: Instant,
    unsent_limit_bytes: u64,
    buffered: [u8; BUFFERED_BYTES],
    /// Arrived and unconsumed part of `buffered`.
    unread: Range<usize>,
}

impl PeerConnection {
    pub(super) fn new(transport: Transport, write_timeout: Duration) -> Self {
        let now = Instant::now();
        Self {
            transport,
            sizes: Sizes::Any,
            version: Version::OLDEST,
            rail: None,
            read_timeout: None,
            write_timeout,
            received_at: now,
            sent_at: now,
            unsent_limit_bytes: 0,
            buffered: [0; BUFFERED_BYTES],
            unread: 0..0,
        }
    }

    pub(super) const fn carries(&self, size_bytes: u64) -> bool {
        matches!(self.sizes, Sizes::Any) || size_bytes <= SMALL_BYTES
    }

    pub(super) fn on(self, runtime: &Handle) -> io::Result<Self> {
        Ok(Self { transport: self.transport.on(runtime)?, ..self })
    }

    /// Limits the peer's silence from now on; `None` for no limit.
    pub(super) fn expect_within(&mut self, limit: Option<Duration>) {
        (self.read_timeout, self.received_at) = (limit, Instant::now());
    }

    pub(super) const fn received_at(&self) -> Instant {
        self.received_at
    }

    pub(super) const fn sent_at(&self) -> Instant {
        self.sent_at
    }

    /// Returns delivery statistics; `None` before the first acknowledgement.
    pub(super) fn delivery(&self) -> Option<Delivery> {
        self.transport.delivery()
    }

    pub(super) fn watch_acknowledgements(&self) -> io::Result<AcknowledgementWatch> {
        self.transport.watch_acknowledgements()
    }

    /// Limits unsent bytes in the kernel; zero for its default. Skips small changes.
    pub(super) fn limit_unsent(&mut self, bytes: u64) {
        let known = self.unsent_limit_bytes;
        let is_alike = bytes == known || (known / 2 < bytes && bytes < 2 * known);
        if !is_alike {
            let _ = self.transport.limit_unsent(bytes);
            self.unsent_limit_bytes = bytes;
        }
    }

    pub(super) fn addresses(&self) -> io::Result<(SocketAddr, SocketAddr)> {
        self.transport.addresses()
    }

    /// Returns `true` if the peer has closed the connection, or sent bytes without a request.
    pub(super) fn is_disturbed(&mut self) -> bool {
        !self.unread.is_empty() || self.transport.is_readable()
    }

    /// Cancel safe: a partial header stays in the buffer.
    pub(super) async fn read_header(&mut self) -> Result<Header, ConnectionError> {
        while self.unread.len() < HEADER_BYTES {
            self.fill().await?;
            Header::check_start(&self.buffered[self.unread.clone()])?;
        }
        let mut bytes = [0; HEADER_BYTES];
        bytes.copy_from_slice(&self.buffered[self.unread.start..self.unread.start + HEADER_BYTES]);
        let header = Header::decode(&bytes)?;
        self.unread.start += HEADER_BYTES;
        Ok(header)
    }

    pub(super) async fn read_control<M: Message + Default>(
        &mut self,
        header: &Header,
    ) -> Result<M, ConnectionError> {
        let mut payload = vec![0; header.length_bytes() as usize];
        self.read_payload(header, &mut payload).await?;
        Ok(M::decode(payload.as_slice())?)
    }

    pub(super) async fn read_payload(
        &mut self,
        header: &Header,
        payload: &mut [u8],
    ) -> Result<(), ConnectionError> {
        let mut filled = 0;
        while filled < payload.len() {
            filled += self.read_part(&mut payload[filled..]).await?;
        }
        match header.kind() {
            Kind::Block => self.check_block(header, || crc32c(payload)),
            _ => Ok(header.check_payload(crc32c(payload))?),
        }
    }

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

    /// Reads at least one byte of a payload into `into`, which is not empty. The caller counts the
    /// bytes and verifies the checksum. Cancel safe.
    pub(super) async fn read_part(&mut self, into: &mut [u8]) -> Result<usize, ConnectionError> {
        match self.read_buffered(into.len(), |bytes| into[..bytes.len()].copy_from_slice(bytes)) {
            0 => arrived(self.read_timeout, &mut self.received_at, self.transport.read(into)).await,
            taken => Ok(taken),
        }
    }

    /// Reads the payload of a block into `buffer` from `start_bytes` on. The caller has checked
    /// that it fits. The bytes are valid only on success.
    ///
    /// Not cancel safe: the connection becomes useless. Nothing touches `buffer` after the future
    /// is dropped.
    pub(super) async fn read_block(
        &mut self,
        header: &Header,
        buffer: &Buffer,
        start_bytes: u64,
    ) -> Result<(), ConnectionError> {
        let whole = start_bytes..start_bytes + u64::from(header.length_bytes());
        let length = header.length_bytes() as usize;
        let copied = self.read_buffered(length, |bytes| buffer.write(whole.start, bytes));
        let mut rest = whole.start + copied as u64..whole.end;
        while !rest.is_empty() {
            let receive = self.transport.read_into(buffer, rest.clone());
            rest.start += arrived(self.read_timeout, &mut self.received_at, receive).await? as u64;
        }
        self.check_block(header, || buffer.crc32c(whole))
    }

    /// Verifies the checksum of an arrived block, unless the transport has done so.
    pub(super) fn check_block(
        &self,
        header: &Header,
        crc: impl FnOnce() -> u32,
    ) -> Result<(), ConnectionError> {
        if !self.transport.finds_damage() {
            header.check_payload(crc())?;
        }
        Ok(())
    }

    pub(super) async fn write_control(
        &mut self,
        kind: Kind,
        message: &impl Message,
    ) -> Result<(), ConnectionError> {
        self.write_payload(kind, &message.encode_to_vec()).await
    }

    pub(super) async fn write_payload(
        &mut self,
        kind: Kind,
        payload: &[u8],
    ) -> Result<(), ConnectionError> {
        let Some(header) = Header::control(kind, payload) else {
            return Err(ConnectionError::Nonsense(
                "a control message of ours is too long for a frame",
            ));
        };
        let mut bytes = Vec::with_capacity(HEADER_BYTES + payload.len());
        bytes.extend_from_slice(&header.encode());
        bytes.extend_from_slice(payload);
        self.write_raw(&bytes).await
    }

    pub(super) async fn write_raw(&mut self, bytes: &[u8]) -> Result<(), ConnectionError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let accepted =
                accepted(self.write_timeout, &mut self.sent_at, self.transport.write(rest)).await?;
            rest = &rest[accepted..];
        }
        self.flush().await
    }

    /// Sends a keepalive with `sign`, the producer's latest proof of life.
    pub(super) async fn write_keepalive(&mut self, sign: Sign) -> Result<(), ConnectionError> {
        self.write_control(Kind::Keepalive, &v1::Keepalive { sign: sign.0 }).await
    }

    /// Writes valid bytes of `buffer`, at most one frame, as a block.
    ///
    /// Not cancel safe, as [`read_block`](Self::read_block).
    pub(super) async fn write_block(
        &mut self,
        range: Range<u64>,
        buffer: &Buffer,
    ) -> Result<(), ConnectionError> {
        self.write_part(range.start, range, buffer).await
    }

    /// Acts as [`write_block`](Self::write_block), but for bytes at `position_bytes` of a stream.
    pub(super) async fn write_part(
        &mut self,
        position_bytes: u64,
        mut range: Range<u64>,
        buffer: &Buffer,
    ) -> Result<(), ConnectionError> {
        let crc = if self.transport.finds_damage() { 0 } else { buffer.crc32c(range.clone()) };
        let Some(header) = Header::block(position_bytes, range.end - range.start, crc) else {
            return Err(ConnectionError::Nonsense("a block of ours is too long for a frame"));
        };
        let head = header.encode();
        let mut head = head.as_slice();
        while !(head.is_empty() && range.is_empty()) {
            let send = self.transport.write_from(head, buffer, range.clone());
            let accepted = accepted(self.write_timeout, &mut self.sent_at, send).await?;
            let of_head = accepted.min(head.len());
            head = &head[of_head..];
            range.start += (accepted - of_head) as u64;
        }
        self.flush().await
    }

    /// Writes bytes outside of shared memory, at most one frame, as a block.
    pub(super) async fn write_bytes(
        &mut self,
        position_bytes: u64,
        bytes: &[u8],
    ) -> Result<(), ConnectionError> {
        let crc = if self.transport.finds_damage() { 0 } else { crc32c(bytes) };
        let Some(header) = Header::block(position_bytes, bytes.len() as u64, crc) else {
            return Err(ConnectionError::Nonsense("a block of ours is too long for a frame"));
        };
        let mut frame = Vec::with_capacity(HEADER_BYTES + bytes.len());
        frame.extend_from_slice(&header.encode());
        frame.extend_from_slice(bytes);
        self.write_raw(&frame).await
    }

    fn read_buffered(&mut self, limit: usize, take: impl FnOnce(&[u8])) -> usize {
        let taken = self.unread.len().min(limit);
        take(&self.buffered[self.unread.start..self.unread.start + taken]);
        self.unread.start += taken;
        taken
    }

    async fn fill(&mut self) -> Result<(), ConnectionError> {
        self.buffered.copy_within(self.unread.clone(), 0);
        self.unread = 0..self.unread.len();
        let read = self.transport.read(&mut self.buffered[self.unread.end..]);
        self.unread.end += arrived(self.read_timeout, &mut self.received_at, read).await?;
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), ConnectionError> {
        let limit = self.write_timeout;
        timeout(limit, self.transport.flush())
            .await
            .map_err(|_| ConnectionError::Idle(limit))??;
        Ok(())
    }
}

/// Waits for the bytes of `read`, at most until `limit` after `received_at`.
async fn arrived(
    limit: Option<Duration>,
    received_at: &mut Instant,
    read: impl Future<Output = io::Result<usize>>,
) -> Result<usize, ConnectionError> {
    let bytes = match limit {
        Some(limit) => timeout_at(*received_at + limit, read)
            .await
            .map_err(|_| ConnectionError::Idle(limit))?,
        None => read.await,
    };
    match bytes? {
        0 => Err(ConnectionError::Closed),
        bytes => {
            *received_at = Instant::now();
            Ok(bytes)
        }
    }
}

/// Waits until the peer accepts bytes of `write`, at most for `limit`.
async fn accepted(
    limit: Duration,
    sent_at: &mut Instant,
    write: impl Future<Output = io::Result<usize>>,
) -> Result<usize, ConnectionError> {
    let bytes = timeout(limit, write).await.map_err(|_| ConnectionError::Idle(limit))??;
    *sent_at = Instant::now();
    Ok(bytes)
}
