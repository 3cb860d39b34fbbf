//! The socket of a client.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use bytes::BytesMut;
use hoplite_daemon::register;
use rustix::net::{SendFlags, send};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;

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

    /// Waits until there is room to write.
    pub(super) async fn writable(&self) -> io::Result<()> {
        let also = register(self.0.get_ref().try_clone()?, Interest::WRITABLE)?;
        also.writable().await?.retain_ready();
        Ok(())
    }
}
