//! TLS between two stores.
//!
//! This module owns rustls' buffers, so that one system call moves many records. They stay small
//! until the peer has shown a certificate.

use std::fmt;
use std::io;
use std::ops::Range;

use hoplite_shm::Buffer;
use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use tokio::net::TcpStream;
use tokio::task::coop::consume_budget;

use crate::{Protocol, Tls, close_refused, tls_explanation};

/// Longest plain text: RFC 8446, section 5.1.
const RECORD_BYTES: usize = 16 << 10;
/// Header, plain text, and the cipher's overhead (RFC 8446, section 5.2).
const MAX_RECORD_BYTES: usize = 5 + RECORD_BYTES + 256;
/// Receive buffer for an unauthenticated peer's first message.
const FIRST_BYTES: usize = 2 << 10;
/// Receive buffer during a handshake: certificates have a few kilobytes.
const MAX_HANDSHAKE_BYTES: usize = 2 * MAX_RECORD_BYTES;
/// Records in the receive buffer after the handshake.
const INCOMING_RECORDS: usize = 8;
const OUTGOING_RECORDS: usize = 8;

/// An encrypted connection.
pub struct TlsStream {
    stream: TcpStream,
    session: TlsConnection,
    incoming: Vec<u8>,
    unread: Range<usize>,
    /// Decrypted bytes beyond the reader's buffer, for its next read.
    plain: Vec<u8>,
    plain_read: usize,
    outgoing: Outgoing,
    is_closed: bool,
    failed: Option<rustls::Error>,
}

enum TlsConnection {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

struct Outgoing {
    bytes: Vec<u8>,
    unsent: Range<usize>,
}

#[derive(Debug, PartialEq, Eq)]
enum Advance {
    Arrived,
    Queued,
    Blocked,
    /// All input is processed, and all output encrypted.
    Ready,
    Closed,
}

impl TlsStream {
    pub(super) async fn connect(tls: &Tls, stream: TcpStream) -> io::Result<Self> {
        let name = tls.name_at(&stream.peer_addr()?.ip().to_canonical().to_string());
        let name = name.map_err(io::Error::other)?;
        let session =
            UnbufferedClientConnection::new(tls.client(Protocol::Data), name).map_err(broken)?;
        Self::new(stream, TlsConnection::Client(session)).shake_hands().await
    }

    pub(super) async fn accept(tls: &Tls, stream: TcpStream) -> io::Result<Self> {
        let session =
            UnbufferedServerConnection::new(tls.server(Protocol::Data)).map_err(broken)?;
        Self::new(stream, TlsConnection::Server(session)).shake_hands().await
    }

    fn new(stream: TcpStream, session: TlsConnection) -> Self {
        Self {
            stream,
            session,
            incoming: vec![0; FIRST_BYTES],
            unread: 0..0,
            plain: Vec::new(),
            plain_read: 0,
            outgoing: Outgoing { bytes: Vec::new(), unsent: 0..0 },
            is_closed: false,
            failed: None,
        }
    }

    async fn shake_hands(mut self) -> io::Result<Self> {
        let mut early = Vec::new();
        loop {
            match self.step(&[], |bytes| early.extend_from_slice(bytes)) {
                Ok(Advance::Arrived | Advance::Queued) => {}
                Ok(Advance::Ready) => break,
                Ok(Advance::Blocked) => {
                    self.flush().await?;
                    self.fill().await?;
                    if self.is_closed {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Ok(Advance::Closed) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) => {
                    self.send_alert().await;
                    return Err(error);
                }
            }
        }
        self.plain = early;
        self.flush().await?;
        let agreed = match &self.session {
            TlsConnection::Client(session) => Protocol::Data.check(session),
            TlsConnection::Server(session) => Protocol::Data.check(session),
        };
        agreed.map_err(broken)?;
        self.incoming.resize(INCOMING_RECORDS * MAX_RECORD_BYTES, 0);
        self.outgoing.bytes.resize(OUTGOING_RECORDS * MAX_RECORD_BYTES, 0);
        Ok(self)
    }

    pub(super) async fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.receive(into.len(), |at, bytes| into[at..at + bytes.len()].copy_from_slice(bytes))
            .await
    }

    pub(super) async fn read_into(
        &mut self,
        buffer: &Buffer,
        range: Range<u64>,
    ) -> io::Result<usize> {
        let length = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        self.receive(length, |at, bytes| buffer.write(range.start + at as u64, bytes)).await
    }

    /// Passes 1 to `limit` decrypted bytes to `put`, in parts with their positions. Returns their
    /// number; zero means that the peer has closed.
    async fn receive(
        &mut self,
        limit: usize,
        mut put: impl FnMut(usize, &[u8]),
    ) -> io::Result<usize> {
        consume_budget().await;
        loop {
            let received = self.take(limit, &mut put)?;
            if received > 0 || self.is_closed {
                return Ok(received);
            }
            // Sends queued bytes, such as the answer to a key update. The next write sends the
            // rest.
            self.outgoing.send(&self.stream)?;
            self.fill().await?;
        }
    }

    fn take(&mut self, limit: usize, put: &mut impl FnMut(usize, &[u8])) -> io::Result<usize> {
        let mut received = limit.min(self.plain.len() - self.plain_read);
        put(0, &self.plain[self.plain_read..self.plain_read + received]);
        self.plain_read += received;
        if self.plain_read < self.plain.len() {
            return Ok(received);
        }
        let mut rest = std::mem::take(&mut self.plain);
        rest.clear();
        self.plain_read = 0;
        while received < limit {
            let stepped = self.step(&[], |bytes| {
                let fitting = bytes.len().min(limit - received);
                put(received, &bytes[..fitting]);
                received += fitting;
                rest.extend_from_slice(&bytes[fitting..]);
            });
            match stepped {
                Ok(Advance::Arrived | Advance::Queued) => {}
                Ok(Advance::Ready | Advance::Blocked) => break,
                Ok(Advance::Closed) => {
                    self.is_closed = true;
                    break;
                }
                Err(_) if received > 0 => break,
                Err(error) => return Err(error),
            }
        }
        self.plain = rest;
        Ok(received)
    }

    pub(super) async fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        consume_budget().await;
        self.flush().await?;
        let bytes = &bytes[..bytes.len().min(OUTGOING_RECORDS * RECORD_BYTES)];
        for record in bytes.chunks(RECORD_BYTES) {
            self.seal(record)?;
        }
        self.outgoing.send(&self.stream)?;
        Ok(bytes.len())
    }

    pub(super) async fn write_from(
        &mut self,
        head: &[u8],
        buffer: &Buffer,
        range: Range<u64>,
    ) -> io::Result<usize> {
        consume_budget().await;
        self.flush().await?;
        // The head gets a separate record, so that the peer can decrypt the object's bytes into its
        // arena.
        if !head.is_empty() {
            self.seal(head)?;
        }
        let sealed = self.seal_from(buffer, range)?;
        self.outgoing.send(&self.stream)?;
        Ok(head.len() + sealed)
    }

    fn seal_from(&mut self, buffer: &Buffer, mut range: Range<u64>) -> io::Result<usize> {
        let mut record = [0; RECORD_BYTES];
        let mut sealed = 0;
        while !range.is_empty() && self.outgoing.has_space() {
            let length =
                usize::try_from(range.end - range.start).unwrap_or(usize::MAX).min(RECORD_BYTES);
            buffer.read(range.start, &mut record[..length]);
            self.seal(&record[..length])?;
            range.start += length as u64;
            sealed += length;
        }
        Ok(sealed)
    }

    fn seal(&mut self, plain: &[u8]) -> io::Result<()> {
        loop {
            let mut arrived = std::mem::take(&mut self.plain);
            let stepped = self.step(plain, |bytes| arrived.extend_from_slice(bytes));
            self.plain = arrived;
            match stepped? {
                Advance::Arrived | Advance::Queued => {}
                // The peer has stopped sending, but may still receive.
                Advance::Closed => self.is_closed = true,
                Advance::Ready => return Ok(()),
                Advance::Blocked => return Err(io::ErrorKind::BrokenPipe.into()),
            }
        }
    }

    pub(super) async fn flush(&mut self) -> io::Result<()> {
        while !self.outgoing.send(&self.stream)? {
            self.stream.writable().await?;
        }
        Ok(())
    }

    pub(super) fn is_readable(&mut self) -> bool {
        self.plain_read < self.plain.len()
            || !self.unread.is_empty()
            || self.is_closed
            || !matches!(self.stream.try_read(&mut [0]), Err(e) if e.kind() == io::ErrorKind::WouldBlock)
    }

    pub(super) const fn socket(&self) -> &TcpStream {
        &self.stream
    }

    async fn fill(&mut self) -> io::Result<()> {
        self.incoming.copy_within(self.unread.clone(), 0);
        self.unread = 0..self.unread.len();
        if self.unread.len() == self.incoming.len() {
            // A valid handshake fits in a buffer of this size. After the handshake, the buffer is
            // larger.
            if self.incoming.len() >= MAX_HANDSHAKE_BYTES {
                let what = "a record, or a message of the handshake, is too long";
                return Err(broken(rustls::Error::General(what.to_owned())));
            }
            self.incoming.resize((2 * self.incoming.len()).min(MAX_HANDSHAKE_BYTES), 0);
        }
        loop {
            match self.stream.try_read(&mut self.incoming[self.unread.end..]) {
                Ok(0) => {
                    self.is_closed = true;
                    return Ok(());
                }
                Ok(read) => {
                    self.unread.end += read;
                    return Ok(());
                }
                Err(error) if is_transient(&error) => self.stream.readable().await?,
                Err(error) => return Err(error),
            }
        }
    }

    /// Decrypts the next record that has arrived, or encrypts `plain` if there is none.
    fn step(&mut self, plain: &[u8], arrived: impl FnMut(&[u8])) -> io::Result<Advance> {
        let stepped = match &self.failed {
            Some(error) => Err(error.clone()),
            None => self.step_unchecked(plain, arrived),
        };
        stepped.map_err(|error| {
            self.failed = Some(error.clone());
            broken(error)
        })
    }

    /// Sends rustls' alert after a failure, with the handshake messages that the peer needs to
    /// decrypt it. Then waits for the peer to close: otherwise, the system would discard the alert.
    async fn send_alert(&mut self) {
        // Other calls would make rustls process the refused bytes again.
        while self.has_unsent_alert() && self.step_unchecked(&[], |_| {}) == Ok(Advance::Queued) {}
        if self.outgoing.unsent.is_empty() {
            return;
        }
        if self.flush().await.is_ok() {
            close_refused(&mut self.stream).await;
        }
    }

    fn has_unsent_alert(&self) -> bool {
        match &self.session {
            TlsConnection::Client(session) => session.wants_write(),
            TlsConnection::Server(session) => session.wants_write(),
        }
    }

    fn step_unchecked(
        &mut self,
        plain: &[u8],
        arrived: impl FnMut(&[u8]),
    ) -> Result<Advance, rustls::Error> {
        let incoming = &mut self.incoming[self.unread.clone()];
        let stepped = match &mut self.session {
            TlsConnection::Client(session) => {
                step(session.process_tls_records(incoming), &mut self.outgoing, plain, arrived)
            }
            TlsConnection::Server(session) => {
                step(session.process_tls_records(incoming), &mut self.outgoing, plain, arrived)
            }
        };
        let (dealt_with, step) = stepped?;
        self.unread.start += dealt_with;
        Ok(step)
    }
}

impl fmt::Debug for TlsStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsStream").field("stream", &self.stream).finish_non_exhaustive()
    }
}

fn step<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    outgoing: &mut Outgoing,
    plain: &[u8],
    mut arrived: impl FnMut(&[u8]),
) -> Result<(usize, Advance), rustls::Error> {
    let UnbufferedStatus { mut discard, state } = status;
    let step = match state? {
        ConnectionState::ReadTraffic(mut traffic) => {
            while let Some(record) = traffic.next_record() {
                let record = record?;
                discard += record.discard;
                arrived(record.payload);
            }
            Advance::Arrived
        }
        ConnectionState::EncodeTlsData(mut message) => {
            outgoing.put(|buffer| match message.encode(buffer) {
                Ok(length) => Ok(Put::Whole(length)),
                Err(EncodeError::InsufficientSize(size)) => Ok(Put::Needs(size.required_size)),
                Err(EncodeError::AlreadyEncoded) => Err(rustls::Error::EncryptError),
            })?;
            Advance::Queued
        }
        ConnectionState::TransmitTlsData(message) => {
            message.done();
            Advance::Queued
        }
        ConnectionState::BlockedHandshake => Advance::Blocked,
        ConnectionState::WriteTraffic(_) if plain.is_empty() => Advance::Ready,
        ConnectionState::WriteTraffic(mut traffic) => {
            outgoing.put(|buffer| match traffic.encrypt(plain, buffer) {
                Ok(length) => Ok(Put::Whole(length)),
                Err(EncryptError::InsufficientSize(size)) => Ok(Put::Needs(size.required_size)),
                Err(EncryptError::EncryptExhausted) => Err(rustls::Error::EncryptError),
            })?;
            Advance::Ready
        }
        ConnectionState::PeerClosed | ConnectionState::Closed => Advance::Closed,
        // Early data, which is not permitted, or a state of a later rustls.
        _ => return Err(rustls::Error::General("an unknown state of a connection".to_owned())),
    };
    Ok((discard, step))
}

enum Put {
    Whole(usize),
    Needs(usize),
}

impl Outgoing {
    fn has_space(&self) -> bool {
        self.bytes.len() - self.unsent.end >= MAX_RECORD_BYTES
    }

    fn put(
        &mut self,
        mut encode: impl FnMut(&mut [u8]) -> Result<Put, rustls::Error>,
    ) -> Result<(), rustls::Error> {
        loop {
            match encode(&mut self.bytes[self.unsent.end..])? {
                Put::Whole(length) => {
                    self.unsent.end += length;
                    return Ok(());
                }
                Put::Needs(length) => self.bytes.resize(self.unsent.end + length, 0),
            }
        }
    }

    fn send(&mut self, stream: &TcpStream) -> io::Result<bool> {
        while !self.unsent.is_empty() {
            match stream.try_write(&self.bytes[self.unsent.clone()]) {
                Ok(sent) => self.unsent.start += sent,
                Err(error) if is_transient(&error) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        self.unsent = 0..0;
        Ok(true)
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

fn broken(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, TlsFailure(error))
}

#[derive(Debug)]
struct TlsFailure(rustls::Error);

impl fmt::Display for TlsFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match tls_explanation(&self.0) {
            Some(explanation) => write!(f, "{explanation} ({})", self.0),
            None => self.0.fmt(f),
        }
    }
}

impl std::error::Error for TlsFailure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}
