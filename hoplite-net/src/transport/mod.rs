//! Transports of bytes between two stores.
//!
//! [`Plain`](Transport::Plain) moves bytes between socket and arena without copies; TLS needs
//! buffers.

#[cfg(feature = "buffered")]
mod buffered;
mod plain;
mod tls;

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

use hoplite_core::link::{Delivery, Unacknowledged};
use hoplite_shm::Buffer;
use rustix::net::sockopt::set_tcp_user_timeout;
use tokio::net::TcpStream;
use tokio::runtime::Handle;

#[cfg(feature = "buffered")]
use self::buffered::Buffered;
use self::plain::PlainStream;
use self::tls::TlsStream;
use crate::Tls;

/// Time without an acknowledgement after which the kernel closes a connection (Linux's default: 15
/// minutes).
const UNACKNOWLEDGED_TIMEOUT_MS: u32 = 30_000;

/// Kind of a transport.
#[derive(Debug, Clone, Default)]
pub enum TransportKind {
    /// TCP, from arena to arena.
    #[default]
    Plain,
    /// TLS over TCP.
    Tls(Tls),
    /// TCP behind buffers, for tests.
    #[cfg(feature = "buffered")]
    Buffered,
}

/// Connection between two stores.
#[derive(Debug)]
pub enum Transport {
    /// A socket.
    Plain(PlainStream),
    /// Socket behind TLS.
    Tls(Box<TlsStream>),
    /// Socket behind buffers, for tests.
    #[cfg(feature = "buffered")]
    Buffered(Box<Buffered>),
}

/// Watches the acknowledgements of a connection. The socket closes only after the watch ends.
#[derive(Debug)]
pub struct AcknowledgementWatch(OwnedFd);

impl AcknowledgementWatch {
    /// Returns the kernel's statistics of unacknowledged bytes, if it has some.
    pub fn unacknowledged(&self) -> Option<Unacknowledged> {
        hoplite_shm::unacknowledged(self.0.as_fd())
    }
}

impl Transport {
    /// Makes the transport of an outgoing connection.
    pub async fn connect(kind: &TransportKind, stream: TcpStream) -> io::Result<Self> {
        prepare(&stream)?;
        Ok(match kind {
            TransportKind::Plain => Self::Plain(PlainStream::new(stream)),
            TransportKind::Tls(tls) => Self::Tls(Box::new(TlsStream::connect(tls, stream).await?)),
            #[cfg(feature = "buffered")]
            TransportKind::Buffered => Self::Buffered(Box::new(Buffered::new(stream))),
        })
    }

    /// Makes the transport of an accepted connection.
    pub async fn accept(kind: &TransportKind, stream: TcpStream) -> io::Result<Self> {
        prepare(&stream)?;
        Ok(match kind {
            TransportKind::Plain => Self::Plain(PlainStream::new(stream)),
            TransportKind::Tls(tls) => Self::Tls(Box::new(TlsStream::accept(tls, stream).await?)),
            #[cfg(feature = "buffered")]
            TransportKind::Buffered => Self::Buffered(Box::new(Buffered::new(stream))),
        })
    }

    /// Moves a plain transport to another runtime. Others have buffers, and stay.
    pub fn on(self, runtime: &Handle) -> io::Result<Self> {
        match self {
            Self::Plain(stream) => Ok(Self::Plain(stream.on(runtime)?)),
            other => Ok(other),
        }
    }

    /// Reads at least one byte into `into`, which must not be empty. Zero means that the peer has
    /// closed.
    ///
    /// # Cancel safety
    /// A dropped future has read nothing.
    pub async fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(into).await,
            Self::Tls(stream) => stream.read(into).await,
            #[cfg(feature = "buffered")]
            Self::Buffered(stream) => stream.read(into).await,
        }
    }

    /// Acts as [`read`](Self::read), into `range` of `buffer`.
    pub async fn read_into(&mut self, buffer: &Buffer, range: Range<u64>) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read_into(buffer, range).await,
            Self::Tls(stream) => stream.read_into(buffer, range).await,
            #[cfg(feature = "buffered")]
            Self::Buffered(stream) => stream.read_into(buffer, range).await,
        }
    }

    /// Writes some bytes, and returns their number.
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(bytes).await,
            Self::Tls(stream) => stream.write(bytes).await,
            #[cfg(feature = "buffered")]
            Self::Buffered(stream) => stream.write(bytes).await,
        }
    }

    /// Writes some bytes of `head`, then of `range` of `buffer`. Returns their number, `head`
    /// included.
    pub async fn write_from(
        &mut self,
        head: &[u8],
        buffer: &Buffer,
        range: Range<u64>,
    ) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write_from(head, buffer, range).await,
            Self::Tls(stream) => stream.write_from(head, buffer, range).await,
            #[cfg(feature = "buffered")]
            Self::Buffered(stream) => stream.write_from(head, buffer, range).await,
        }
    }

    /// Sends buffered bytes.
    pub async fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(_) => Ok(()),
            Self::Tls(stream) => stream.flush().await,
            #[cfg(feature = "buffered")]
            Self::Buffered(stream) => stream.flush().await,
        }
    }

    /// Returns `true` if the peer has closed or sent bytes, which the call may discard. Never
    /// waits.
    pub fn is_readable(&mut self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_readable(),
            Self::Tls(stream) => stream.is_readable(),
            #[cfg(feature = "buffered")]
            Self::Buffered(stream) => stream.is_readable(),
        }
    }

    /// Returns `true` if the transport detects damaged bytes.
    pub const fn finds_damage(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    /// Kernel's statistics; `None` before the first acknowledgement.
    pub fn delivery(&self) -> Option<Delivery> {
        hoplite_shm::delivery(self.socket().as_fd())
    }

    /// Begins to watch the peer's acknowledgements.
    pub fn watch_acknowledgements(&self) -> io::Result<AcknowledgementWatch> {
        Ok(AcknowledgementWatch(self.socket().as_fd().try_clone_to_owned()?))
    }

    /// Limits the unsent bytes that the kernel takes; zero for the system's default.
    pub fn limit_unsent(&self, bytes: u64) -> io::Result<()> {
        hoplite_shm::set_unsent_limit(
            self.socket().as_fd(),
            usize::try_from(bytes).unwrap_or(usize::MAX),
        )
    }

    /// Addresses of this store and its peer.
    pub fn addresses(&self) -> io::Result<(SocketAddr, SocketAddr)> {
        Ok((self.socket().local_addr()?, self.socket().peer_addr()?))
    }

    fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream.socket(),
            Self::Tls(stream) => stream.socket(),
            #[cfg(feature = "buffered")]
            Self::Buffered(stream) => stream.socket(),
        }
    }
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    // Frames are written whole: Nagle's algorithm would delay them.
    stream.set_nodelay(true)?;
    set_tcp_user_timeout(stream, UNACKNOWLEDGED_TIMEOUT_MS)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use rustix::net::sockopt::tcp_user_timeout;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn unacknowledged_bytes_end_a_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stream = TcpStream::connect(address).await.unwrap();
        let transport = Transport::connect(&TransportKind::Plain, stream).await.unwrap();
        let Transport::Plain(stream) = transport else { panic!("{transport:?} is not plain") };
        assert_eq!(tcp_user_timeout(stream.socket()), Ok(UNACKNOWLEDGED_TIMEOUT_MS));
    }
}
