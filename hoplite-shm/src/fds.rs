//! Sends file descriptors over Unix stream sockets.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

/// Most descriptors in a message. A store sends two.
pub const MAX_FDS: usize = 8;

const CONTROL_BYTES: usize = rustix::cmsg_space!(ScmRights(MAX_FDS));

/// Sends `bytes` in one system call. The first byte carries the descriptors `fds`.
///
/// Returns the number of sent bytes. Unless it is zero, all `fds` were sent too, and the caller
/// sends the remaining bytes without `fds`. A closed connection causes no SIGPIPE. Blocks only if
/// the socket is blocking.
///
/// # Errors
/// [`InvalidInput`](io::ErrorKind::InvalidInput) for more than [`MAX_FDS`] descriptors, or
/// descriptors without bytes; [`WouldBlock`](io::ErrorKind::WouldBlock) if the socket is full; or
/// the connection's error.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        let fits = fds.len() <= MAX_FDS && control.push(SendAncillaryMessage::ScmRights(fds));
        if !fits || bytes.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "descriptors that no byte can carry",
            ));
        }
    }
    let parts = [IoSlice::new(bytes)];
    Ok(rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(socket, &parts, &mut control, SendFlags::NOSIGNAL)
    })?)
}

/// Receives into `bytes` and appends descriptors to `fds`, in one system call.
///
/// Returns the number of bytes; zero means that the peer has closed. Descriptors are closed on
/// exec. Blocks only if the socket is blocking.
///
/// # Errors
/// [`InvalidData`](io::ErrorKind::InvalidData) for more than [`MAX_FDS`] descriptors, or more than
/// this process may open: they are closed, and the connection is unusable.
/// [`WouldBlock`](io::ErrorKind::WouldBlock) if the socket is empty; or the connection's error.
pub fn receive(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(
            socket,
            &mut [IoSliceMut::new(bytes)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )
    })?;
    let mut received = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            received.extend(rights);
        }
    }
    // Padding may admit one descriptor more than `MAX_FDS`.
    if message.flags.contains(ReturnFlags::CTRUNC) || received.len() > MAX_FDS {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "more descriptors than can be received",
        ));
    }
    fds.append(&mut received);
    Ok(message.bytes)
}
