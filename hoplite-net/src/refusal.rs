//! The end of a connection whose peer is refused.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Time for a refused peer to close the connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Largest number of bytes that are read from a refused peer, and discarded.
const MAX_DISCARDED_BYTES: u64 = 256 << 10;

/// Closes the sending side of `stream` and waits until the peer closes the other one, for at most a second.
///
/// A socket that is dropped while it has unread bytes resets the connection, and the peer's system then
/// discards the refusal that was sent last. The bytes that the peer still sends are read for that reason.
pub async fn close_refused<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S) {
    let closing = async {
        stream.shutdown().await?;
        let mut rest = stream.take(MAX_DISCARDED_BYTES);
        let mut discarded = [0; 1024];
        while rest.read(&mut discarded).await? > 0 {}
        Ok::<_, io::Error>(())
    };
    // The caller already reports the refusal, so an error while closing changes nothing.
    let _ = timeout(CLOSE_TIMEOUT, closing).await;
}

/// Performs the handshake of TLS with a peer that has connected. A peer that is refused can read the alert.
///
/// # Errors
/// Errors of the connection; a [`rustls::Error`] within one of kind [`io::ErrorKind::InvalidData`].
pub async fn accept_tls<S: AsyncRead + AsyncWrite + Unpin>(
    config: Arc<ServerConfig>,
    stream: S,
) -> io::Result<TlsStream<S>> {
    match TlsAcceptor::from(config).accept(stream).into_fallible().await {
        Ok(stream) => Ok(stream),
        Err((error, mut stream)) => {
            close_refused(&mut stream).await;
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    #[tokio::test]
    async fn a_refused_peer_that_still_sends_reads_the_refusal() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut stream, _) = listener.accept().await.unwrap();
        peer.write_all(&[7; 4096]).await.unwrap();
        stream.readable().await.unwrap();
        stream.write_all(b"no").await.unwrap();
        let refusing = tokio::spawn(async move { close_refused(&mut stream).await });
        // The refusal is in the buffers of the peer before it is read, and so is a reset, if there is one.
        let mut answer = Vec::new();
        peer.write_all(&[7; 4096]).await.unwrap();
        peer.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, b"no");
        drop(peer);
        refusing.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_peer_that_stays_is_not_waited_for() {
        let (mut near, _far) = tokio::io::duplex(64);
        close_refused(&mut near).await;
    }
}
