//! Connections of the control plane, below gRPC: how many there are, and when they end.
//!
//! HTTP/2 itself does not limit how long a peer may take to send its first bytes, nor can a server be told to drop a
//! connection; both are done here.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::stream::{self, Stream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tonic::transport::server::{Connected, TcpConnectInfo};

/// Most connections at once: one per store of the largest cluster, and some for tools.
const MAX_CONNECTIONS: usize = 16_384;
/// How long a peer may take to send the preface of HTTP/2.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(5);
/// Length of that preface (RFC 9113, section 3.4).
const PREFACE_BYTES: usize = 24;
/// How long to wait when no connection can be accepted, for example because too many files are open.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The connections that `listener` accepts. `abort` breaks all of them; `tasks` knows of each while it lasts.
pub(crate) fn accept(
    listener: TcpListener,
    abort: CancellationToken,
    tasks: TaskTracker,
) -> impl Stream<Item = io::Result<Connection>> {
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    stream::unfold((listener, abort, tasks, permits), |(listener, abort, tasks, permits)| async move {
        let permit = permits.clone().acquire_owned().await.ok()?;
        let stream = loop {
            match listener.accept().await {
                Ok((stream, _)) => break stream,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        };
        let connection = Connection::new(stream, &abort, &tasks, permit);
        Some((Ok(connection), (listener, abort, tasks, permits)))
    })
}

/// A connection that can be broken from outside, and that must begin to speak soon.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    abort: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Until when the preface must be there, and how much of it is.
    preface: Option<(Pin<Box<Sleep>>, usize)>,
    _task: TaskTrackerToken,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    fn new(
        stream: TcpStream,
        abort: &CancellationToken,
        tasks: &TaskTracker,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        // Grants are small and waited for. If it cannot be set the connection works nevertheless.
        let _ = stream.set_nodelay(true);
        Self {
            stream,
            abort: Box::pin(abort.clone().cancelled_owned()),
            preface: Some((Box::pin(tokio::time::sleep(PREFACE_TIMEOUT)), 0)),
            _task: tasks.token(),
            _permit: permit,
        }
    }

    /// HTTP/2 always waits for input, so that the checks on reading also end a connection that only writes.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.abort.as_mut().poll(cx).is_ready() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        if let Some((deadline, _)) = &mut self.preface
            && deadline.as_mut().poll(cx).is_ready()
        {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        if let Some((_, received)) = &mut self.preface {
            *received += buffer.filled().len() - before;
            if *received >= PREFACE_BYTES {
                self.preface = None;
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}
