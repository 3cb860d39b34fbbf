//! The socket of a client.

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

/// The time to look for room to write again if that cannot be waited for.
const RETRY: Duration = Duration::from_millis(10);

/// A connected socket whose event loop hears when there is something to read, and of room to write only while somebody waits for
/// it. A stream of tokio always hears of both: whenever a client reads an answer there is more room, and to be told so costs
/// the store about as much as a small request.
#[derive(Debug)]
pub(super) struct Socket(AsyncFd<OwnedFd>);

impl Socket {
    pub(super) fn new(stream: UnixStream) -> io::Result<Self> {
        register(stream.into_std()?.into(), Interest::READABLE).map(Self)
    }

    /// Waits until there is something to read, and appends it to `inbox`, which has room. Zero means that the client has left.
    ///
    /// # Cancel safety
    /// Cancelled, nothing was read.
    pub(super) async fn read(&self, inbox: &mut BytesMut) -> io::Result<usize> {
        // Others have their turn even if there is always something to read.
        consume_budget().await;
        loop {
            let mut ready = self.0.readable().await?;
            if let Ok(read) = ready.try_io(|socket| hoplite_shm::receive(socket.as_fd(), inbox)) {
                if inbox.len() < inbox.capacity() {
                    // That was all: to ask once more would be a system call for nothing.
                    ready.clear_ready();
                }
                return read;
            }
        }
    }

    /// Writes what there is room for now.
    pub(super) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        Ok(rustix::io::retry_on_intr(|| send(self.0.get_ref(), bytes, flags))?)
    }

    /// Waits until there is room to write, or a moment if no descriptor is left with which to wait.
    pub(super) async fn writable(&self) -> io::Result<()> {
        match self.0.get_ref().try_clone().and_then(|also| register(also, Interest::WRITABLE)) {
            Ok(also) => also.writable().await?.retain_ready(),
            Err(_) => sleep(RETRY).await,
        }
        Ok(())
    }
}
