use std::io;
use std::os::fd::BorrowedFd;

use bytes::{BufMut, BytesMut};
use rustix::net::{RecvFlags, recv};

/// Appends available bytes to `inbox`, up to its capacity, without blocking. Returns their number;
/// zero if the peer has closed or `inbox` is full.
///
/// # Errors
/// [`WouldBlock`](io::ErrorKind::WouldBlock) if no bytes are available, or the connection's error.
pub fn receive(socket: BorrowedFd<'_>, inbox: &mut BytesMut) -> io::Result<usize> {
    let length = rustix::io::retry_on_intr(|| {
        let ((received, _), _) = recv(socket, inbox.spare_capacity_mut(), RecvFlags::DONTWAIT)?;
        Ok(received.len())
    })?;
    // SAFETY: `recv` has just initialised this many bytes after the end.
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
    fn available_bytes_are_appended_up_to_the_capacity() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut inbox = BytesMut::with_capacity(8);
        inbox.extend_from_slice(b"ab");
        assert_eq!(
            receive(ours.as_fd(), &mut inbox).unwrap_err().kind(),
            io::ErrorKind::WouldBlock
        );
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
