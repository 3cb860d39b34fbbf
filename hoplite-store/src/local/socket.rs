use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use bytes::BytesMut;
use hoplite_daemon::register;
use rustix::net::{SendFlags, send};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;
use tokio::task::coop::consume_budget;
use tokio::time::sleep;

const RETRY: Duration = Duration::from_millis(10);

/// A client's socket, registered for writability only while a task waits for it. Otherwise each
/// answer that a client reads would wake the store.
#[derive(Debug)]
pub(super) struct Socket(AsyncFd<OwnedFd>);

impl Socket {
    pub(super) fn new(stream: UnixStream) -> io::Result<Self> {
        register(stream.into_std()?.into(), Interest::READABLE).map(Self)
    }

    /// Waits for bytes and appends them to `inbox`, which must have free capacity. Returns zero if
    /// the client has closed the connection. Cancel safe.
    pub(super) async fn read(&self, inbox: &mut BytesMut) -> io::Result<usize> {
        consume_budget().await;
        loop {
            let mut ready = self.0.readable().await?;
            if let Ok(read) = ready.try_io(|socket| hoplite_shm::receive(socket.as_fd(), inbox)) {
                if inbox.len() < inbox.capacity() {
                    ready.clear_ready();
                }
                return read;
            }
        }
    }

    pub(super) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        Ok(rustix::io::retry_on_intr(|| send(self.0.get_ref(), bytes, flags))?)
    }

    /// Waits until the socket is writable, or for [`RETRY`] if no file descriptor is free.
    pub(super) async fn writable(&self) -> io::Result<()> {
        match self.0.get_ref().try_clone().and_then(|also| register(also, Interest::WRITABLE)) {
            Ok(also) => also.writable().await?.retain_ready(),
            Err(_) => sleep(RETRY).await,
        }
        Ok(())
    }
}
