use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsStream;

use crate::idle_socket::prepare_idle_socket;

const MAX_WAITING: usize = 64;

/// One end of a connection.
#[derive(Debug)]
pub enum Socket {
    /// TCP.
    Tcp(TcpStream),
    /// TLS over TCP.
    Tls(Box<TlsStream<TcpStream>>),
    /// Within this process.
    InProcess(UnixStream),
}

/// Connects to a directory shard in this process.
#[derive(Debug, Clone)]
pub struct InProcess(mpsc::Sender<std::os::unix::net::UnixStream>);

/// Accepts the connections of an [`InProcess`].
#[derive(Debug)]
pub struct InProcessListener(mpsc::Receiver<std::os::unix::net::UnixStream>);

impl InProcess {
    /// Makes the connecting side and its listener.
    pub fn new() -> (Self, InProcessListener) {
        let (connect, accept) = mpsc::channel(MAX_WAITING);
        (Self(connect), InProcessListener(accept))
    }

    /// Opens a connection to the shard.
    ///
    /// # Errors
    /// [`io::ErrorKind::ConnectionRefused`] if the shard has ended; system errors.
    pub async fn connect(&self) -> io::Result<Socket> {
        let (near, far) = std::os::unix::net::UnixStream::pair()?;
        near.set_nonblocking(true)?;
        far.set_nonblocking(true)?;
        self.0.send(far).await.map_err(|_| io::ErrorKind::ConnectionRefused)?;
        Ok(Socket::InProcess(UnixStream::from_std(near)?))
    }
}

impl InProcessListener {
    /// Waits for a connection; `None` after the last [`InProcess`] was dropped.
    pub async fn accept(&mut self) -> Option<Socket> {
        loop {
            if let Ok(stream) = UnixStream::from_std(self.0.recv().await?) {
                return Some(Socket::InProcess(stream));
            }
        }
    }
}

/// Connection that moves between two tokio runtimes.
#[derive(Debug)]
pub enum DetachedSocket {
    /// TCP.
    Tcp(std::net::TcpStream),
    /// TLS over TCP. It stays registered with its first runtime.
    Tls(Box<TlsStream<TcpStream>>),
    /// Within this process.
    InProcess(std::os::unix::net::UnixStream),
}

impl Socket {
    /// Makes TCP send small messages at once, and detect a dead peer.
    pub fn prepare(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => Ok(prepare_idle_socket(stream)?),
            Self::Tls(stream) => Ok(prepare_idle_socket(stream.get_ref().0)?),
            Self::InProcess(_) => Ok(()),
        }
    }

    /// Makes a dropped connection discard its unsent bytes.
    pub fn discard_unsent(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_zero_linger(),
            Self::Tls(stream) => stream.get_ref().0.set_zero_linger(),
            Self::InProcess(_) => Ok(()),
        }
    }

    /// Detaches the connection from its tokio runtime.
    pub fn detach(self) -> io::Result<DetachedSocket> {
        Ok(match self {
            Self::Tcp(stream) => DetachedSocket::Tcp(stream.into_std()?),
            Self::Tls(stream) => DetachedSocket::Tls(stream),
            Self::InProcess(stream) => DetachedSocket::InProcess(stream.into_std()?),
        })
    }
}

impl DetachedSocket {
    /// Attaches the connection to the caller's runtime.
    pub fn attach(self) -> io::Result<Socket> {
        Ok(match self {
            Self::Tcp(stream) => Socket::Tcp(TcpStream::from_std(stream)?),
            Self::Tls(stream) => Socket::Tls(stream),
            Self::InProcess(stream) => Socket::InProcess(UnixStream::from_std(stream)?),
        })
    }
}

trait Stream: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

impl Socket {
    fn stream(self: Pin<&mut Self>) -> Pin<&mut dyn Stream> {
        let stream: &mut dyn Stream = match self.get_mut() {
            Self::Tcp(stream) => stream,
            Self::Tls(stream) => stream,
            Self::InProcess(stream) => stream,
        };
        Pin::new(stream)
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream().poll_read(cx, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stream().poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_shutdown(cx)
    }
}
