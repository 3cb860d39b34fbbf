//! What carries the bytes of a connection: TCP, or TLS over it.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept, TlsAcceptor};

/// A stream of bytes. The handshake of TLS is made by whoever reads or writes first.
pub(crate) enum Wire {
    /// TCP.
    Plain(TcpStream),
    /// TLS in its handshake.
    Handshake(Box<Accept<TcpStream>>),
    /// TLS.
    Tls(Box<TlsStream<TcpStream>>),
    /// Somebody else has it.
    Gone,
}

impl Wire {
    /// TLS over `stream`.
    pub(crate) fn tls(config: Arc<ServerConfig>, stream: TcpStream) -> Self {
        Self::Handshake(Box::new(TlsAcceptor::from(config).accept(stream)))
    }

    /// Finishes the handshake; then answers what is read from and written to.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Pin<&mut dyn Stream>>> {
        if let Self::Handshake(accept) = self {
            *self = Self::Tls(Box::new(ready!(Pin::new(accept.as_mut()).poll(cx))?));
        }
        Poll::Ready(match self {
            Self::Plain(stream) => Ok(Pin::new(stream)),
            Self::Tls(stream) => Ok(Pin::new(stream.as_mut())),
            Self::Handshake(_) | Self::Gone => Err(io::ErrorKind::NotConnected.into()),
        })
    }
}

/// What can be read from and written to.
trait Stream: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> Stream for T {}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_ready(cx))?.poll_read(cx, buffer)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_ready(cx))?.poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_ready(cx))?.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_ready(cx))?.poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_ready(cx))?.poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            // As the stream of TLS says once it is there.
            Self::Handshake(_) | Self::Tls(_) | Self::Gone => true,
        }
    }
}
