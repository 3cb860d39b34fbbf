//! File descriptors that travel with bytes over a Unix stream socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

/// Most descriptors of one message. A store sends two; the others are reserved for later versions.
pub const MAX_FDS: usize = 8;

const CONTROL_BYTES: usize = rustix::cmsg_space!(ScmRights(MAX_FDS));

/// Sends `bytes`, and `fds` along with the first of them, in one system call.
///
/// Returns the number of bytes that the socket took. If it took any, it took all of `fds`, and the
/// caller sends the other bytes without them. Blocks only if the socket is blocking. A closed
/// connection is an error instead of a signal.
///
/// # Errors
///
/// [`InvalidInput`](io::ErrorKind::InvalidInput) for more than [`MAX_FDS`] descriptors, or for
/// descriptors without bytes; [`WouldBlock`](io::ErrorKind::WouldBlock) if a non-blocking socket is
/// full; or the error of the broken connection.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        let fits = fds.len() <= MAX_FDS && control.push(SendAncillaryMessage::ScmRights(fds));
        if !fits || bytes.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "descriptors that no byte can carry"));
        }
    }
    let parts = [IoSlice::new(bytes)];
    Ok(rustix::io::retry_on_intr(|| rustix::net::sendmsg(socket, &parts, &mut control, SendFlags::NOSIGNAL))?)
}

/// Receives bytes into `bytes`, and appends their descriptors to `fds`, in one system call.
///
/// Returns the number of bytes; zero means that the peer has closed its side. Blocks only if the
/// socket is blocking. The descriptors are closed on exec. One call returns at most [`MAX_FDS`]
/// descriptors.
///
/// # Errors
///
/// [`InvalidData`](io::ErrorKind::InvalidData) if the peer sent more than [`MAX_FDS`] descriptors,
/// or more than this process may open. They are then closed, and the connection is unusable.
/// [`WouldBlock`](io::ErrorKind::WouldBlock) if a non-blocking socket is empty; or the error of the
/// broken connection.
pub fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let mut received = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            received.extend(rights);
        }
    }
    // The space for control messages is padded, so one more descriptor may fit before the kernel
    // drops any.
    if message.flags.contains(ReturnFlags::CTRUNC) || received.len() > MAX_FDS {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "more descriptors than can be received"));
    }
    fds.append(&mut received);
    Ok(message.bytes)
}
