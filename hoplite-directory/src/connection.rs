//! Connections of the control plane, below gRPC: how many there are, and when they end.
//!
//! HTTP/2 itself does not limit how long a peer may take to send its first bytes, nor can a server be told to drop a
//! connection; both are done here. A connection is half open until its peer has sent the preface of HTTP/2 and, if the
//! directory has a token, made a call with it. One that begins as a bypass does is none of gRPC's.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use futures::stream::{self, Stream};
use hoplite_core::session::HELLO_TIMEOUT;
use hoplite_daemon::{ACCEPT_PAUSE, HalfOpen, HalfOpenPlace, Protocol, Tls};
use hoplite_proto::directory::FIRST_BYTE;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tonic::transport::server::Connected;

use crate::bypass::{Bypasses, Stranger};
use crate::wire::Wire;

/// Most connections at once: two per store of the largest cluster, and some for tools.
const MAX_CONNECTIONS: usize = 32_768;
/// Most connections that are half open; when there are more, the oldest is closed. Enough for all stores of a large cluster
/// to come back at once.
const MAX_HALF_OPEN: usize = 1024;
/// Length of that preface (RFC 9113, section 3.4).
const PREFACE_BYTES: usize = 24;

/// What is known of who has connected.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    address: SocketAddr,
    is_admitted: Arc<AtomicBool>,
}

impl Peer {
    /// Where it is.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// It has made a call that it may make.
    pub(crate) fn admit(&self) {
        self.is_admitted.store(true, Ordering::Relaxed);
    }
}

/// How many of those were refused who did not show that they belong to the cluster.
#[derive(Debug, Default)]
pub(crate) struct Strangers {
    /// Connections that were closed because they were half open too long, or too many were; or because TLS failed.
    pub(crate) connections: AtomicU64,
    /// Calls without the token.
    pub(crate) calls: AtomicU64,
    /// Wrong tokens at the dashboard.
    pub(crate) logins: AtomicU64,
}

/// When a connection is no longer half open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    /// When its preface is there.
    ByPreface,
    /// When its peer has been [admitted](Peer::admit).
    ByCall,
}

/// The connections that `listener` accepts. `abort` breaks all of them; `tasks` knows of each while it lasts. Those that begin as a
/// bypass go to `bypasses`, without TLS.
pub(crate) fn accept(
    listener: TcpListener,
    admission: Admission,
    strangers: Arc<Strangers>,
    tls: Option<Tls>,
    bypasses: Option<Bypasses>,
    abort: CancellationToken,
    tasks: TaskTracker,
) -> impl Stream<Item = io::Result<Incoming>> {
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let half_open = HalfOpen::new(MAX_HALF_OPEN);
    let state = (listener, strangers, tls, bypasses, abort, tasks, permits, half_open);
    stream::unfold(state, move |state| async move {
        let (listener, strangers, tls, bypasses, abort, tasks, permits, half_open) = state;
        let permit = permits.clone().acquire_owned().await.ok()?;
        let (stream, address) = loop {
            match listener.accept().await {
                Ok(accepted) => break accepted,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        };
        // Grants are small and waited for. If it cannot be set the connection works nevertheless.
        let _ = stream.set_nodelay(true);
        let wire = match &tls {
            Some(tls) => Wire::tls(tls.server(Protocol::Http2), stream),
            None => Wire::Plain(stream),
        };
        let connection = Incoming {
            wire,
            peer: Peer { address, is_admitted: Arc::default() },
            abort: Box::pin(abort.clone().cancelled_owned()),
            half_open: Some(HalfOpenState::new(admission, half_open.enter(), strangers.clone())),
            bypass: bypasses.clone().map(|bypasses| (bypasses, abort.clone())),
            held: Some((tasks.token(), permit)),
        };
        Some((Ok(connection), (listener, strangers, tls, bypasses, abort, tasks, permits, half_open)))
    })
}

/// A connection that can be broken from outside, and that must begin to speak soon.
pub(crate) struct Incoming {
    wire: Wire,
    peer: Peer,
    abort: Pin<Box<WaitForCancellationFutureOwned>>,
    half_open: Option<HalfOpenState>,
    /// Who takes it over if it turns out to be a bypass, until its first byte is there.
    bypass: Option<(Bypasses, CancellationToken)>,
    held: Option<(TaskTrackerToken, OwnedSemaphorePermit)>,
}

/// What bounds a connection while it is half open.
#[derive(Debug)]
struct HalfOpenState {
    admission: Admission,
    deadline: Pin<Box<Sleep>>,
    lost: Pin<Box<WaitForCancellationFutureOwned>>,
    /// How many bytes have arrived.
    received: usize,
    /// Where it is counted if it is closed; once.
    strangers: Option<Arc<Strangers>>,
    place: HalfOpenPlace,
}

impl HalfOpenState {
    fn new(admission: Admission, place: HalfOpenPlace, strangers: Arc<Strangers>) -> Self {
        Self {
            admission,
            deadline: Box::pin(tokio::time::sleep(HELLO_TIMEOUT)),
            lost: Box::pin(place.lost()),
            received: 0,
            strangers: Some(strangers),
            place,
        }
    }

    /// Why it is to be closed.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::ErrorKind> {
        let end = if self.deadline.as_mut().poll(cx).is_ready() {
            io::ErrorKind::TimedOut
        } else {
            ready!(self.lost.as_mut().poll(cx));
            io::ErrorKind::ConnectionAborted
        };
        self.count();
        Poll::Ready(end)
    }

    fn count(&mut self) {
        if let Some(strangers) = self.strangers.take() {
            strangers.connections.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Incoming {
    /// HTTP/2 always waits for input, so that the checks on reading also end a connection that only writes; but not before
    /// the handshake of TLS, for which either waits.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.abort.as_mut().poll(cx).is_ready() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let Some(half_open) = &mut self.half_open else { return Ok(()) };
        let is_open = match half_open.admission {
            Admission::ByPreface => half_open.received >= PREFACE_BYTES,
            Admission::ByCall => self.peer.is_admitted.load(Ordering::Relaxed),
        };
        if is_open {
            self.half_open = None;
        } else if let Poll::Ready(end) = half_open.poll_end(cx) {
            return Err(end.into());
        }
        Ok(())
    }

    /// Waits for the first byte, and gives the connection away if it is that of a bypass. HTTP/2 would speak before it listens.
    fn poll_first_byte(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.bypass.is_none() {
            return Poll::Ready(Ok(()));
        }
        self.check(cx)?;
        let Wire::Plain(stream) = &self.wire else { return Poll::Ready(Ok(())) };
        let mut first = [0; 1];
        ready!(stream.poll_peek(cx, &mut ReadBuf::new(&mut first)))?;
        let Some((bypasses, abort)) = self.bypass.take() else { return Poll::Ready(Ok(())) };
        if first != [FIRST_BYTE] {
            return Poll::Ready(Ok(()));
        }
        if let Wire::Plain(stream) = std::mem::replace(&mut self.wire, Wire::Gone)
            && let Some(HalfOpenState { place, deadline, strangers, .. }) = self.half_open.take()
            && let Some((task, permit)) = self.held.take()
        {
            let deadline = deadline.deadline();
            bypasses.adopt(Stranger { stream, place, deadline, strangers, abort, task, permit });
        }
        Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()))
    }

    /// Counts a handshake of TLS that fails, which is made by whoever reads or writes first.
    fn noted<T>(&mut self, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if let Poll::Ready(Err(_)) = outcome
            && let Wire::Handshake(_) = self.wire
            && let Some(half_open) = &mut self.half_open
        {
            half_open.count();
        }
        outcome
    }
}

impl AsyncRead for Incoming {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_first_byte(cx))?;
        self.check(cx)?;
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.wire).poll_read(cx, buffer);
        ready!(self.noted(read))?;
        if let Some(half_open) = &mut self.half_open {
            half_open.received += buffer.filled().len() - before;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Incoming {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_first_byte(cx))?;
        if self.half_open.is_some() {
            self.check(cx)?;
        }
        let done = Pin::new(&mut self.wire).poll_write(cx, bytes);
        self.noted(done)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_first_byte(cx))?;
        if self.half_open.is_some() {
            self.check(cx)?;
        }
        let done = Pin::new(&mut self.wire).poll_flush(cx);
        self.noted(done)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.wire).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_first_byte(cx))?;
        if self.half_open.is_some() {
            self.check(cx)?;
        }
        let done = Pin::new(&mut self.wire).poll_write_vectored(cx, parts);
        self.noted(done)
    }

    fn is_write_vectored(&self) -> bool {
        self.wire.is_write_vectored()
    }
}

impl Connected for Incoming {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}
