//! Limits, authenticates and ends connections of the control plane, below gRPC.
//!
//! A connection is half open until its peer has finished the TLS handshake, if any, and has proven
//! that it belongs to the cluster ([`opening`]). If there is a token, clients of plain gRPC are
//! visitors: they may query health, for a short time.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::stream::{self, Stream};
use hoplite_core::Version;
use hoplite_core::error::Error;
use hoplite_core::id::ClusterId;
use hoplite_core::session::HELLO_TIMEOUT;
use hoplite_daemon::Acceptor;
use hoplite_net::opening::{self, OpeningError, Records};
use hoplite_net::{
    Checked, Credentials, HalfOpen, InProcessListener, Protocol, Socket, accept_tls,
};
use hoplite_proto::directory::{PREFACE_BYTES, Preface};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tonic::transport::server::Connected;

use crate::direct::DirectSessions;
use crate::events::Events;
use crate::refusals::Refusals;

/// Most connections: two for each store of the largest cluster, and some for tools.
const MAX_CONNECTIONS: usize = 32_768;
/// Most half-open connections, as when many stores reconnect; one more closes the oldest.
const MAX_HALF_OPEN: usize = 1024;
/// Most connections without a proven token; one more closes the oldest.
const MAX_VISITORS: usize = 64;
/// Longest connection of a visitor, such as a health probe.
const VISIT_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_WAITING: usize = 64;
/// RFC 9113, section 3.4.
const HTTP2_PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Answer to browsers, and to TLS at a shard without TLS.
const NOT_HTTP1: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\n\r\n\
    This port speaks gRPC over HTTP/2.\n";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Peer(Option<SocketAddr>);

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(address) => write!(f, "{address}"),
            None => f.write_str("this process"),
        }
    }
}

/// A source of connections to the shard.
#[derive(Debug)]
pub enum Listener {
    /// A TCP port.
    Tcp(TcpListener),
    /// Connections of the store in this process.
    InProcess(InProcessListener),
}

impl Listener {
    /// Returns `None` after the last connection.
    async fn accept(&mut self, acceptor: &Acceptor) -> Option<(Socket, Peer)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, address) = acceptor.accept(&*listener, || listener.accept()).await;
                // A failure only delays small messages.
                let _ = stream.set_nodelay(true);
                Some((Socket::Tcp(stream), Peer(Some(address))))
            }
            Self::InProcess(listener) => Some((listener.accept().await?, Peer(None))),
        }
    }
}

pub(crate) struct Gate {
    pub(crate) credentials: Credentials,
    pub(crate) cluster: ClusterId,
    pub(crate) newest: Version,
    pub(crate) direct: DirectSessions,
    pub(crate) refusals: Arc<Refusals>,
    pub(crate) events: Events,
    pub(crate) abort: CancellationToken,
    pub(crate) tasks: TaskTracker,
}

pub(crate) struct Accepted {
    pub(crate) members: mpsc::Receiver<Incoming>,
    pub(crate) visitors: mpsc::Receiver<Incoming>,
}

pub(crate) fn served(
    accepted: mpsc::Receiver<Incoming>,
) -> impl Stream<Item = io::Result<Incoming>> {
    stream::unfold(accepted, async |mut accepted| Some((Ok(accepted.recv().await?), accepted)))
}

struct ConnectionHandle {
    task: TaskTrackerToken,
    permit: OwnedSemaphorePermit,
}

enum Admitted {
    Member(Box<dyn ByteStream>),
    Visitor(Box<dyn ByteStream>),
    Direct(Socket, Records),
}

enum Refused {
    /// The peer has no token, or belongs to another cluster or version.
    Rejected(Error),
    Handshake(io::Error),
    Broken,
}

impl Refused {
    /// Ignores a broken connection: the peer may be a health check that only closes it.
    fn of_handshake(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::InvalidData {
            Self::Handshake(error)
        } else {
            Self::Broken
        }
    }
}

impl From<io::Error> for Refused {
    fn from(_: io::Error) -> Self {
        Self::Broken
    }
}

impl From<OpeningError> for Refused {
    fn from(error: OpeningError) -> Self {
        match error {
            OpeningError::Refuses(Error::Malformed { .. }) | OpeningError::Io(_) => Self::Broken,
            OpeningError::Refuses(error) | OpeningError::Refused(error) => Self::Rejected(error),
            _ => Self::Broken,
        }
    }
}

impl Gate {
    pub(crate) fn open(self, listener: Listener, stop: CancellationToken) -> Accepted {
        let ((members, to_members), (visitors, to_visitors)) =
            (mpsc::channel(MAX_WAITING), mpsc::channel(MAX_WAITING));
        let tasks = self.tasks.clone();
        let accepting = Arc::new(self).run(listener, members, visitors);
        tasks.spawn(async move { stop.run_until_cancelled(accepting).await });
        Accepted { members: to_members, visitors: to_visitors }
    }

    async fn run(
        self: Arc<Self>,
        mut listener: Listener,
        members: mpsc::Sender<Incoming>,
        visitors: mpsc::Sender<Incoming>,
    ) {
        let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let acceptor = Acceptor::new("users of the control plane");
        let (half_open, visits) = (HalfOpen::new(MAX_HALF_OPEN), HalfOpen::new(MAX_VISITORS));
        loop {
            let Ok(permit) = permits.clone().acquire_owned().await else { return };
            let Some((socket, peer)) = listener.accept(&acceptor).await else { return };
            let handle = ConnectionHandle { task: self.tasks.token(), permit };
            let (gate, place, visits) = (Arc::clone(&self), half_open.admit(), Arc::clone(&visits));
            let (members, visitors) = (members.clone(), visitors.clone());
            let abort = self.abort.clone();
            let admitting = async move {
                let admitted = tokio::select! {
                    admitted = timeout(HELLO_TIMEOUT, gate.admit(socket)) => {
                        admitted.unwrap_or(Err(Refused::Broken))
                    }
                    () = place.evicted() => Err(Refused::Broken),
                };
                drop(place);
                let abort = gate.abort.clone();
                match admitted {
                    Ok(Admitted::Member(stream)) => {
                        let incoming = Incoming::new(stream, peer, abort.cancelled_owned(), handle);
                        let _ = members.send(incoming).await;
                    }
                    Ok(Admitted::Visitor(stream)) => {
                        let place = visits.admit();
                        let refusals = Arc::clone(&gate.refusals);
                        let end = async move {
                            tokio::select! {
                                () = abort.cancelled() => return,
                                () = place.evicted() => {}
                                () = sleep(VISIT_TIMEOUT) => {}
                            }
                            refusals.connections.fetch_add(1, Ordering::Relaxed);
                        };
                        let _ = visitors.send(Incoming::new(stream, peer, end, handle)).await;
                    }
                    Ok(Admitted::Direct(socket, records)) => {
                        gate.direct.adopt(socket, records, abort, (handle.task, handle.permit));
                    }
                    Err(Refused::Rejected(error)) => {
                        gate.refusals.report(&gate.events, peer, &error);
                    }
                    Err(Refused::Handshake(error)) => {
                        gate.refusals.report_handshake(&gate.events, peer, &error);
                    }
                    Err(Refused::Broken) => {
                        gate.refusals.connections.fetch_add(1, Ordering::Relaxed);
                    }
                }
            };
            self.tasks.spawn(async move { abort.run_until_cancelled(admitting).await });
        }
    }

    async fn admit(&self, socket: Socket) -> Result<Admitted, Refused> {
        let Credentials { token, tls, .. } = &self.credentials;
        let token = token.as_ref();
        let mut socket = match (tls, socket) {
            (Some(tls), Socket::Tcp(stream)) => {
                let accepted = accept_tls(tls.server(Protocol::Http2), stream).await;
                let stream = accepted.map_err(Refused::of_handshake)?;
                Protocol::Http2.check(stream.get_ref().1).map_err(io::Error::other)?;
                Socket::Tls(Box::new(stream.into()))
            }
            (_, socket) => socket,
        };
        let Some(preface) = self.preface(&mut socket).await? else {
            let prefixed = Box::new(Prefixed { unread: HTTP2_PREFACE, stream: socket });
            return Ok(if token.is_some() {
                Admitted::Visitor(prefixed)
            } else {
                Admitted::Member(prefixed)
            });
        };
        let records = opening::accept(&mut socket, token, &self.cluster, self.newest).await?;
        Ok(match preface {
            Preface::Direct => Admitted::Direct(socket, records),
            Preface::Grpc => Admitted::Member(Box::new(Checked::new(socket, records))),
        })
    }

    /// Reads the first bytes, which name the protocol; `None` for plain gRPC.
    async fn preface(&self, stream: &mut Socket) -> Result<Option<Preface>, Refused> {
        let mut preface = [0; PREFACE_BYTES];
        stream.read_exact(&mut preface).await?;
        let (start, rest) = HTTP2_PREFACE.split_at(PREFACE_BYTES);
        if preface == start {
            let mut end = [0; HTTP2_PREFACE.len() - PREFACE_BYTES];
            stream.read_exact(&mut end).await?;
            return if end == rest { Ok(None) } else { Err(Refused::Broken) };
        }
        match Preface::of_bytes(&preface) {
            Some(preface) => Ok(Some(preface)),
            None => {
                stream.write_all(NOT_HTTP1).await?;
                stream.shutdown().await?;
                Err(Refused::Broken)
            }
        }
    }
}

pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// Stream that first returns the bytes read to detect the protocol.
struct Prefixed<S> {
    unread: &'static [u8],
    stream: S,
}

impl<S: AsyncRead + Unpin> AsyncRead for Prefixed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.unread.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buffer);
        }
        let (now, later) = self.unread.split_at(self.unread.len().min(buffer.remaining()));
        buffer.put_slice(now);
        self.unread = later;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Prefixed<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

pub(crate) struct Incoming {
    stream: Box<dyn ByteStream>,
    peer: Peer,
    end: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    _handle: ConnectionHandle,
}

impl Incoming {
    fn new(
        stream: Box<dyn ByteStream>,
        peer: Peer,
        end: impl Future<Output = ()> + Send + 'static,
        handle: ConnectionHandle,
    ) -> Self {
        Self { stream, peer, end: Some(Box::pin(end)), _handle: handle }
    }

    /// Fails once `end` has requested the connection's end. Called for reads and writes, because
    /// HTTP/2 may stop reading.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if let Some(end) = &mut self.end {
            if end.as_mut().poll(cx).is_pending() {
                return Ok(());
            }
            self.end = None;
        }
        Err(io::ErrorKind::ConnectionAborted.into())
    }
}

impl AsyncRead for Incoming {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Incoming {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl Connected for Incoming {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer
    }
}
