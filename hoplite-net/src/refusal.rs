use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
const MAX_DISCARDED_BYTES: u64 = 256 << 10;

/// Closes the sending side of a refused connection. Waits up to a second for the peer to close.
///
/// Discards arriving bytes: dropping a socket with unread bytes would reset it, and the peer would
/// lose the refusal.
pub async fn close_refused<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S) {
    let closing = async {
        stream.shutdown().await?;
        let mut rest = stream.take(MAX_DISCARDED_BYTES);
        let mut discarded = [0; 1024];
        while rest.read(&mut discarded).await? > 0 {}
        Ok::<_, io::Error>(())
    };
    let _ = timeout(CLOSE_TIMEOUT, closing).await;
}

/// Performs a TLS handshake. After a failure, waits until the peer has read the alert.
///
/// # Errors
/// The connection's errors; a [`rustls::Error`] inside [`io::ErrorKind::InvalidData`].
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
        let mut answer = Vec::new();
        peer.write_all(&[7; 4096]).await.unwrap();
        peer.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, b"no");
        drop(peer);
        refusing.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_peer_that_stays_open_is_closed_in_time() {
        let (mut near, _far) = tokio::io::duplex(64);
        close_refused(&mut near).await;
    }
}
