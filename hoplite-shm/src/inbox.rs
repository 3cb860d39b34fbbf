//! Receives into memory that is not initialised before.

use std::io;
use std::os::fd::BorrowedFd;

use bytes::{BufMut, BytesMut};
use rustix::net::{RecvFlags, recv};

/// Appends to `inbox` what has arrived at `socket`, as far as `inbox` has room, and returns how many bytes that is. Never waits.
///
/// Zero means that the peer has closed its side, or that there is no room.
///
/// # Errors
///
/// [`WouldBlock`](io::ErrorKind::WouldBlock) if there is nothing; or why the connection is broken.
pub fn receive(socket: BorrowedFd<'_>, inbox: &mut BytesMut) -> io::Result<usize> {
    let length = rustix::io::retry_on_intr(|| {
        let ((received, _), _) = recv(socket, inbox.spare_capacity_mut(), RecvFlags::DONTWAIT)?;
        Ok(received.len())
    })?;
    // SAFETY: so many bytes after the end have just been initialised.
    unsafe { inbox.advance_mut(length) };
    Ok(length)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn what_has_arrived_is_appended_as_far_as_there_is_room() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut inbox = BytesMut::with_capacity(8);
        inbox.extend_from_slice(b"ab");
        assert_eq!(receive(ours.as_fd(), &mut inbox).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        theirs.write_all(b"cdefghij").unwrap();
        let room = inbox.capacity() - inbox.len();
        assert_eq!(receive(ours.as_fd(), &mut inbox).unwrap(), room.min(8));
        assert_eq!(inbox[..], b"abcdefghij"[..2 + room.min(8)]);
        drop(theirs);
        inbox.reserve(8);
        while receive(ours.as_fd(), &mut inbox).unwrap() > 0 {}
        assert_eq!(inbox[..], b"abcdefghij"[..]);
    }
}
